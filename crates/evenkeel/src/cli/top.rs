//! `evenkeel top`: the busiest clients of a running server, live in the terminal.
//!
//! A client of the admin door that asks once in each interval. `view` is what is looked at and how,
//! changed by keys and answers; `screen` draws it. What is here waits: for keys, for answers, for
//! the next interval. A server that goes away stays on the screen as it was last seen, and is asked
//! again.

mod screen;
mod view;

use crate::cli::remote::Remote;
use crate::watch::snapshot::Query;
use ratatui::crossterm::event::{self, Event};
use ratatui::{DefaultTerminal, Frame};
use std::io::{self, IsTerminal};
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use view::View;

/// Clients that are asked for, of each limit: as many as anybody scrolls through.
const ROWS: usize = 200;
/// How often keys are looked for.
const KEYS_EVERY: Duration = Duration::from_millis(40);

/// What is looked at, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The server.
    pub remote: Remote<'a>,
    /// The limit to begin with.
    pub limit: Option<&'a str>,
    /// From one question to the next.
    pub every: Duration,
}

/// Draws until `q` is pressed.
///
/// # Errors
/// Where there is no terminal, or it cannot be drawn on.
pub fn run(options: &Options<'_>) -> io::Result<()> {
    if !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        let text = "top draws on a terminal; for scripts and pipes there is `evenkeel doctor`";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut terminal = ratatui::try_init()?;
    let ended = runtime.block_on(live(options, &mut terminal));
    ratatui::try_restore()?;
    ended
}

async fn live(options: &Options<'_>, terminal: &mut DefaultTerminal) -> io::Result<()> {
    let mut view = View::new(options.remote.address, options.limit);
    let query = Query { limit: None, rows: ROWS };
    let mut intervals = tokio::time::interval(options.every);
    intervals.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut keys = tokio::time::interval(KEYS_EVERY);
    keys.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut asked = None;
    loop {
        terminal.draw(|frame: &mut Frame<'_>| screen::draw(frame, &view))?;
        tokio::select! {
            answer = answer_to(&mut asked) => {
                asked = None;
                view.answered(answer);
            }
            _ = intervals.tick(), if asked.is_none() && !view.paused() => {
                asked = Some(Box::pin(options.remote.snapshot(&query)));
            }
            _ = keys.tick() => {
                while event::poll(Duration::ZERO)? {
                    if let Event::Key(key) = event::read()?
                        && view.pressed(key).is_break()
                    {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Waits for ever where nothing is asked.
async fn answer_to<F: Future + Unpin>(asked: &mut Option<F>) -> F::Output {
    match asked {
        Some(asked) => asked.await,
        None => std::future::pending().await,
    }
}

//! `evenkeel top`: the busiest clients of a running server, live in the terminal.
//!
//! This is a client of the admin door that asks once in each interval. `view` holds the state of
//! the screen, which keys and answers change; `screen` draws it. This file waits for keys, for
//! answers and for the next interval. If the server becomes unreachable, the last answer stays on
//! the screen, and the requests continue.

mod screen;
mod view;

use crate::cli::remote::AdminClient;
use evenkeel_telemetry::snapshot::TopQuery;
use ratatui::crossterm::event::{self, Event};
use ratatui::{DefaultTerminal, Frame};
use std::io::{self, IsTerminal};
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use view::TopView;

/// The number of clients requested of each limit; few people scroll further.
const ROWS_REQUESTED: usize = 200;
/// The interval between two checks for pressed keys.
const KEY_POLL_INTERVAL: Duration = Duration::from_millis(40);

/// Draws until `q` is pressed. `limit` is shown first; `None`: the first limit of the server.
pub fn run(remote: &AdminClient<'_>, limit: Option<&str>, every: Duration) -> io::Result<()> {
    if !(io::stdout().is_terminal() && io::stdin().is_terminal()) {
        let text = "top needs a terminal; for scripts and pipes use `evenkeel clients`";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut terminal = ratatui::try_init()?;
    let view = TopView::new(remote.address, limit);
    let ended = runtime.block_on(live(remote, view, every, &mut terminal));
    ratatui::try_restore()?;
    ended
}

async fn live(
    remote: &AdminClient<'_>,
    mut view: TopView,
    every: Duration,
    terminal: &mut DefaultTerminal,
) -> io::Result<()> {
    let query = TopQuery { limit: None, rows: ROWS_REQUESTED };
    let mut intervals = tokio::time::interval(every);
    intervals.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut keys = tokio::time::interval(KEY_POLL_INTERVAL);
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
                asked = Some(Box::pin(remote.snapshot(&query)));
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

/// Waits for the pending answer, or for ever if there is no pending request.
async fn answer_to<F: Future + Unpin>(asked: &mut Option<F>) -> F::Output {
    match asked {
        Some(asked) => asked.await,
        None => std::future::pending().await,
    }
}

//! `evenkeel demo`: a site, a crawler, a human and the proxy, all inside this program.
//!
//! It shows what the throttle is for on any machine with nothing installed: first without it,
//! then with it, the same length each. The proxy and the engine are the real ones, with the
//! default shares; only the burst is shorter, so that the effect shows within seconds. One scene:
//! `demo/scene.rs`; what is shown of it: `demo/report.rs`.

pub mod report;
pub mod scene;
pub mod site;
pub mod tally;
pub mod visitors;

use evenkeel_core::limit::Action;
use report::Outcome;
use scene::Scene;
use std::io::{self, Write};
use std::time::Duration;
use visitors::{LOOK, PAUSE, Visitor};

/// What the demo is asked to do.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// How long each of the two parts runs, in seconds
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// What happens to a client in debt: queue, hold, delay or reject
    #[arg(long, value_name = "ACTION", default_value = "queue", value_parser = action)]
    pub action: Action,
    /// How many connections the crawler opens
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    pub connections: u16,
    /// How many of the site's requests are worked on at once, all on one core
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// Print the outcome as JSON, and nothing else
    #[arg(long)]
    pub json: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { seconds: 10, action: Action::Queue, connections: 32, workers: 8, json: false }
    }
}

fn action(text: &str) -> Result<Action, String> {
    [Action::Queue, Action::Hold, Action::Delay, Action::Reject]
        .into_iter()
        .find(|action| action.name() == text)
        .ok_or_else(|| String::from("write queue, hold, delay or reject"))
}

/// Why the demo could not be shown. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something it needs of this machine could not be had.
    #[error("the demo could not start: {what}: {why}")]
    Start {
        /// What it needs.
        what: &'static str,
        /// What the system says.
        why: io::Error,
    },
    /// Nobody reads what it prints.
    #[error("the demo could not print: {0}")]
    Print(#[from] io::Error),
}

/// Shows the demo on standard output. Ctrl-C ends it early; that is no error, nor is a reader who
/// has seen enough.
///
/// # Errors
/// See [`Error`].
pub fn run(options: &Options) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    let shown = if options.json { print(&mut out, options) } else { show(&mut out, options) };
    match shown {
        Err(Error::Print(why)) if why.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        shown => shown,
    }
}

/// For people: each second when it is over, then the summary.
fn show(out: &mut impl Write, options: &Options) -> Result<(), Error> {
    introduce(out, options)?;
    match block_on(options, out, interrupt())? {
        Some(outcome) => Ok(report::summary(out, &outcome)?),
        None => Ok(writeln!(out, "\nStopped.")?),
    }
}

/// For programs: all at the end, nothing if it was interrupted.
fn print(out: &mut impl Write, options: &Options) -> Result<(), Error> {
    let Some(outcome) = block_on(options, &mut io::sink(), interrupt())? else { return Ok(()) };
    serde_json::to_writer_pretty(&mut *out, &outcome).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

async fn interrupt() {
    // Where no signal can be had, nothing interrupts.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// Plays both parts and shows them on `out`; `None` if `interrupted` came first.
fn block_on(
    options: &Options,
    out: &mut impl Write,
    interrupted: impl Future<Output = ()>,
) -> Result<Option<Outcome>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| Error::Start { what: "its runtime", why })?;
    let played = async {
        tokio::select! {
            outcome = play(options, out) => outcome.map(Some),
            () = interrupted => Ok(None),
        }
    };
    let outcome = runtime.block_on(played);
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

/// Both parts, one after the other, each with a site and a proxy of its own: nothing of the first
/// is left over in the second.
async fn play(options: &Options, out: &mut impl Write) -> Result<Outcome, Error> {
    let without = Scene::open(options, None)?.play(options.seconds, out).await?;
    let with = Scene::open(options, Some(options.action))?.play(options.seconds, out).await?;
    Ok(Outcome::of(without, with))
}

/// Says what is about to be seen.
fn introduce(out: &mut impl Write, options: &Options) -> io::Result<()> {
    let [crawler, human] = Visitor::ALL.map(Visitor::address);
    let Options { connections, workers, .. } = options;
    let (look, pause) = (LOOK.as_millis(), PAUSE.as_millis());
    writeln!(out, "Everything runs inside this program, on loopback:\n")?;
    writeln!(
        out,
        "  site     /page takes 2 ms of CPU time, /search 100 ms; it works on {workers}"
    )?;
    writeln!(out, "           at a time, all on one core, first come, first served")?;
    writeln!(out, "  crawler  {crawler}, {connections} connections that ask for /search without")?;
    writeln!(out, "           a rest ({pause} ms after a refusal)")?;
    writeln!(out, "  human    {human}, asks for /page, looks at it for {look} ms, asks again")?;
    writeln!(out, "  proxy    Evenkeel; it trusts 127.0.0.1 to say whom it speaks for")?;
    writeln!(out, "\nThe limits are the defaults: 10% of the CPU for an address, 25% for a /24,")?;
    writeln!(out, "50% for a /16. Only the burst is 1s instead of 30s, so that you see")?;
    writeln!(out, "within seconds what otherwise takes a minute.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crawler_is_limited_and_the_human_is_not() {
        let options = Options { seconds: 2, ..Options::default() };
        let mut screen = Vec::new();
        let outcome = block_on(&options, &mut screen, std::future::pending())
            .expect("it starts")
            .expect("nobody interrupts it");
        assert_eq!((outcome.without.seconds.len(), outcome.with.seconds.len()), (2, 2));
        assert!(outcome.without.crawler_account.is_none());
        let with = &outcome.with;
        let level = |account: &Option<report::Account>| {
            account.as_ref().expect("it has a bucket").level_cpu_s
        };
        let (crawler, human) = (level(&with.crawler_account), level(&with.human_account));
        assert!(crawler <= human, "the crawler has {crawler} left, the human {human}");
        // Beyond the burst and what is refilled meanwhile, whatever the speed of the machine.
        if with.crawler.cpu_share * 2.0 > 1.5 {
            assert!(crawler < 0.0, "the crawler still has {crawler}");
        }
        assert_eq!(with.human.refused, 0);
        let screen = String::from_utf8(screen).expect("text");
        assert!(screen.contains("With the throttle (queue)"), "{screen}");
    }

    #[test]
    fn an_interrupt_ends_it() {
        let options = Options { seconds: 3600, ..Options::default() };
        let outcome = block_on(&options, &mut io::sink(), std::future::ready(()));
        assert!(outcome.expect("it starts").is_none());
    }

    #[test]
    fn the_command_line_is_checked() {
        use clap::{Args, Command, FromArgMatches};
        let command = || Options::augment_args(Command::new("demo"));
        let parse = |args: &[&str]| command().try_get_matches_from(args);
        let matches = parse(&["demo", "--seconds", "2", "--action", "reject"]).expect("good");
        let options = Options::from_arg_matches(&matches).expect("good");
        assert_eq!((options.seconds, options.action), (2, Action::Reject));
        for bad in [["--seconds", "0"], ["--action", "throw"], ["--connections", "0"]] {
            assert!(parse(&["demo", bad[0], bad[1]]).is_err(), "{bad:?}");
        }
    }
}

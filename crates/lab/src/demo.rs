//! `evenkeel demo`: a site, a crawler, a human and the proxy, all inside this program.
//!
//! The demo shows the purpose of the throttle on any machine, with nothing installed: one part
//! without the throttle, then one with it, both of the same length. The proxy and the engine are
//! the real ones with the default shares. Only the burst is shorter, so that the effect shows
//! within seconds. `demo/scene.rs` plays one part; `demo/report.rs` prints the results.

mod report;
mod scene;
mod site;
mod tally;
mod visitors;

use evenkeel_core::limit::LimitAction;
use report::DemoOutcome;
use scene::DemoScene;
use std::io::{self, Write};
use std::time::Duration;
use visitors::{DemoVisitor, PAGE_LOOK_TIME, REFUSAL_PAUSE};

/// The options of `evenkeel demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoOptions {
    /// The length of each of the two parts, in seconds
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// What happens to a client in debt: queue, hold, delay or reject
    #[arg(long, value_name = "ACTION", default_value = "queue", value_parser = action)]
    pub action: LimitAction,
    /// The number of connections of the crawler
    #[arg(long, value_name = "N", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=512))]
    pub connections: u16,
    /// The number of requests that the site works on at once, all on one core
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// Print only the result, as JSON
    #[arg(long)]
    pub json: bool,
}

impl Default for DemoOptions {
    fn default() -> DemoOptions {
        DemoOptions {
            seconds: 10,
            action: LimitAction::Queue,
            connections: 32,
            workers: 8,
            json: false,
        }
    }
}

fn action(text: &str) -> Result<LimitAction, String> {
    [LimitAction::Queue, LimitAction::Hold, LimitAction::Delay, LimitAction::Reject]
        .into_iter()
        .find(|action| action.name() == text)
        .ok_or_else(|| String::from("write queue, hold, delay or reject"))
}

/// Why the demo failed. All its threads and ports are released.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The system refused a resource that the demo needs.
    #[error("the demo could not start: {what}: {why}")]
    Start {
        /// The part of the demo that could not start.
        what: &'static str,
        /// The error of the system.
        why: io::Error,
    },
    /// The output cannot be written.
    #[error("the demo could not print: {0}")]
    Print(#[from] io::Error),
}

/// Runs the demo on standard output. Ctrl-C ends it early; neither that nor a closed pipe is an
/// error.
pub fn run(options: &DemoOptions) -> Result<(), DemoError> {
    let mut out = io::stdout().lock();
    let shown = if options.json { print(&mut out, options) } else { show(&mut out, options) };
    match shown {
        Err(DemoError::Print(why)) if why.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        shown => shown,
    }
}

/// Output for people: a line for each second when it is over, then the summary.
fn show(out: &mut impl Write, options: &DemoOptions) -> Result<(), DemoError> {
    introduce(out, options)?;
    match block_on(options, out, interrupt())? {
        Some(outcome) => Ok(report::summary(out, &outcome)?),
        None => Ok(writeln!(out, "\nStopped.")?),
    }
}

/// Output for programs: everything at the end, and no output if the demo is interrupted.
fn print(out: &mut impl Write, options: &DemoOptions) -> Result<(), DemoError> {
    let Some(outcome) = block_on(options, &mut io::sink(), interrupt())? else { return Ok(()) };
    serde_json::to_writer_pretty(&mut *out, &outcome).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

async fn interrupt() {
    // If signals cannot be received, the demo cannot be interrupted.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}

/// Plays both parts and prints them on `out`; `None` if `interrupted` completed first.
fn block_on(
    options: &DemoOptions,
    out: &mut impl Write,
    interrupted: impl Future<Output = ()>,
) -> Result<Option<DemoOutcome>, DemoError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| DemoError::Start { what: "its runtime", why })?;
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

/// Plays both parts, one after the other. Each has its own site and proxy, so no state of the first
/// part affects the second.
async fn play(options: &DemoOptions, out: &mut impl Write) -> Result<DemoOutcome, DemoError> {
    let without = DemoScene::open(options, None)?.play(options.seconds, out).await?;
    let with = DemoScene::open(options, Some(options.action))?.play(options.seconds, out).await?;
    Ok(DemoOutcome::of(without, with))
}

/// Prints an introduction to what follows.
fn introduce(out: &mut impl Write, options: &DemoOptions) -> io::Result<()> {
    let [crawler, human] = DemoVisitor::ALL.map(DemoVisitor::address);
    let DemoOptions { connections, workers, .. } = options;
    let (look, pause) = (PAGE_LOOK_TIME.as_millis(), REFUSAL_PAUSE.as_millis());
    writeln!(out, "Everything runs inside this program, on loopback:\n")?;
    writeln!(out, "  site     /page takes 2 ms of CPU time, /search 100 ms; it handles {workers}")?;
    writeln!(out, "           requests at a time on one core, in order of arrival")?;
    writeln!(out, "  crawler  {crawler}, {connections} connections that request /search without")?;
    writeln!(out, "           a pause ({pause} ms after a refusal)")?;
    writeln!(out, "  human    {human}, requests /page, reads it for {look} ms, requests the next")?;
    writeln!(out, "  proxy    Evenkeel; it trusts the forwarding headers of 127.0.0.1")?;
    writeln!(out, "\nThe limits are the defaults: 10% of the CPU for an address, 25% for a /24,")?;
    writeln!(out, "50% for a /16. Only the burst is 1s instead of 30s, so that you see")?;
    writeln!(out, "within seconds what otherwise takes a minute.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crawler_is_limited_and_the_human_is_not() {
        let options = DemoOptions { seconds: 2, ..DemoOptions::default() };
        let mut screen = Vec::new();
        let outcome = block_on(&options, &mut screen, std::future::pending())
            .expect("it starts")
            .expect("nobody interrupts it");
        assert_eq!((outcome.without.seconds.len(), outcome.with.seconds.len()), (2, 2));
        assert!(outcome.without.crawler_account.is_none());
        let with = &outcome.with;
        let level = |account: &Option<report::VisitorAccount>| {
            account.as_ref().expect("it has a bucket").level_cpu_s
        };
        let (crawler, human) = (level(&with.crawler_account), level(&with.human_account));
        assert!(crawler <= human, "the crawler has {crawler} left, the human {human}");
        // More than the burst and the refill during the part, whatever the speed of the machine.
        if with.crawler.cpu_share * 2.0 > 1.5 {
            assert!(crawler < 0.0, "the crawler still has {crawler}");
        }
        assert_eq!(with.human.refused, 0);
        let screen = String::from_utf8(screen).expect("text");
        assert!(screen.contains("With the throttle (queue)"), "{screen}");
    }

    #[test]
    fn an_interrupt_ends_it() {
        let options = DemoOptions { seconds: 3600, ..DemoOptions::default() };
        let outcome = block_on(&options, &mut io::sink(), std::future::ready(()));
        assert!(outcome.expect("it starts").is_none());
    }

    #[test]
    fn the_command_line_is_checked() {
        use clap::{Args, Command, FromArgMatches};
        let command = || DemoOptions::augment_args(Command::new("demo"));
        let parse = |args: &[&str]| command().try_get_matches_from(args);
        let matches = parse(&["demo", "--seconds", "2", "--action", "reject"]).expect("good");
        let options = DemoOptions::from_arg_matches(&matches).expect("good");
        assert_eq!((options.seconds, options.action), (2, LimitAction::Reject));
        for bad in [["--seconds", "0"], ["--action", "throw"], ["--connections", "0"]] {
            assert!(parse(&["demo", bad[0], bad[1]]).is_err(), "{bad:?}");
        }
    }
}

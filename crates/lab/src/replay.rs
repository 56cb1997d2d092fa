//! `evenkeel replay`: plays access logs against the limits, on their own clock, and reports which
//! requests would have been held, delayed, queued or refused, when and for how long.
//!
//! `files` opens and decompresses the logs, `reader` parses lines into entries with a `format`,
//! `merge` sorts the entries of all logs, `play` finds the CPU time of each request and asks the
//! engine, `tally` counts, `people` classifies clients, and `report` shows the results. A replay
//! looks up no names and sends no data.

mod entry;
mod files;
mod format;
mod merge;
mod people;
mod play;
mod progress;
mod reader;
mod report;
pub mod sample;
mod swarm;
mod tally;

use anyhow::Context;
use evenkeel_config::ProxyFlags;
use evenkeel_config::fault::Misuse;
use evenkeel_config::machine::Machine;
use evenkeel_config::settings::{CostSource, ProxySettings};
use evenkeel_config::source::ConfigSource;
use evenkeel_core::condition::Clause;
use evenkeel_core::fact::ClientFact;
use evenkeel_core::limit::KeyPart;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_identity::address::ProxyTrust;
use evenkeel_identity::networks::live::LiveNetworks;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use files::LogSource;
pub use format::AccessLogFormat;
use merge::LogMerge;
pub use people::ClientKind;
pub use play::baseline::{BaselineSimulation, RecordedRequest};
pub use play::processors::Processors;
pub use play::{ReplayOutcome, ReplaySimulation};
use progress::Progress;
pub use report::ReplayReport;
use report::{ReplaySite, ReportContext};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tally::{ReplayTally, TalliedLimit};

/// The options of `evenkeel replay`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReplayOptions {
    /// Access logs, plain or compressed by gzip or zstd; `-` is standard input
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
    /// The configuration file with the limits [default: the default limits]
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// CPU-seconds per second to share out, if the configuration does not say [default: those of
    /// this machine, which may differ from those of the site]
    #[arg(long, value_name = "N")]
    pub cpus: Option<String>,
    /// What happens to a client in debt: queue, hold, delay or reject [default: queue]
    #[arg(long, value_name = "ACTION", conflicts_with = "config")]
    pub action: Option<String>,
    /// Proxies with a trusted X-Forwarded-For: networks, separated by commas [default: none]
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "config")]
    pub trusted_proxies: Vec<String>,
    /// The CPU time of a page, for logs without the durations of requests
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = page_cost)]
    pub page_cost: Nanos,
    /// The maximum number of clients in each list
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rows: u16,
    /// Report when requests came from many addresses that are used once or twice, and what they
    /// cost, instead of playing the limits
    #[arg(long, conflicts_with_all = ["action", "html"])]
    pub swarm: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Also write the report as an HTML page to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

fn page_cost(text: &str) -> Result<Nanos, String> {
    let read: Nanos = text.parse().map_err(|why: evenkeel_core::units::QuantityParseError| {
        format!("{why}; write a duration such as 50ms")
    })?;
    let fits = (Nanos(1)..=Nanos::from_secs(60)).contains(&read);
    fits.then_some(read).ok_or_else(|| "from 1ns to 60s".to_owned())
}

/// Plays the logs and prints the report.
///
/// # Errors
/// Returns an error if the configuration is faulty, no request can be read, or the report cannot be
/// written.
pub fn run(options: &ReplayOptions) -> anyhow::Result<()> {
    let clock = Clock::start();
    let begun = clock.now();
    let (text, lines) = match options.swarm {
        true => swarm_text(options)?,
        false => limits_text(options)?,
    };
    if is_watched(options.json) {
        let seconds = clock.now().since(begun).as_secs_f64();
        let pace = report::text::count((lines as f64 / seconds.max(1e-3)) as u64);
        let lines = report::text::count(lines);
        writeln!(io::stderr(), "{lines} lines in {seconds:.1} s, {pace} a second")?;
    }
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Plays the limits. Returns the report as text or JSON, and the number of lines read.
fn limits_text(options: &ReplayOptions) -> anyhow::Result<(String, u64)> {
    let (report, lines) = play(options)?;
    if let Some(path) = &options.html {
        let written = files::write(path, &report::html::page(&report));
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let text = match options.json {
        true => report.json(),
        false => report::text::text(&report),
    };
    Ok((text, lines))
}

/// The same of a search for swarms.
fn swarm_text(options: &ReplayOptions) -> anyhow::Result<(String, u64)> {
    let (report, lines) = swarm::search(options)?;
    Ok((if options.json { report.json() } else { report.text() }, lines))
}

/// Writes a generated log to standard output.
pub fn sample(options: sample::SampleLogOptions) -> anyhow::Result<()> {
    sample::make(options, io::BufWriter::with_capacity(1 << 16, io::stdout().lock()))?;
    Ok(())
}

/// The proxy section with the limits, and the warnings about it.
fn proxy(options: &ReplayOptions) -> anyhow::Result<(ProxySettings, Vec<String>)> {
    let machine = Machine::here();
    let here = machine.cpus;
    let mut told = Vec::new();
    let flags = ProxyFlags {
        backend: "http://127.0.0.1:80".to_owned(),
        cpus: options.cpus.clone(),
        action: options.action.clone(),
        trusted_proxies: options.trusted_proxies.clone(),
        ..ProxyFlags::default()
    };
    let from_flags = evenkeel_config::from_flags(&flags, machine);
    let from_flags = from_flags.map_err(|faults| Misuse(faults, "replay"))?.settings.proxy;
    let from_flags = from_flags.context("no limits")?;
    let Some(path) = &options.config else {
        if options.cpus.is_none() {
            told.push(format!(
                "the {here} CPUs of this machine are assumed; `--cpus N` sets those of the site"
            ));
        }
        return Ok((from_flags, told));
    };
    let config = ConfigSource::new(path).load(Machine { cpus: from_flags.cpus, ..machine })?;
    let proxy = config.settings.proxy.with_context(|| {
        format!("{} has no section `proxy` or `check` with limits", path.display())
    })?;
    Ok((proxy, told))
}

/// The requests of all logs in the order of their arrival, with the CPU time that each needed.
struct LogPlayback {
    merge: LogMerge,
    past: BaselineSimulation,
    count: Arc<AtomicU64>,
    bar: Option<Progress>,
}

impl LogPlayback {
    fn new(options: &ReplayOptions, proxy: &ProxySettings) -> LogPlayback {
        let trust = ProxyTrust::new(&proxy.trusted_networks(), &proxy.client_address);
        let places: Vec<LogSource> = options.logs.iter().map(|path| LogSource::of(path)).collect();
        let count = Arc::new(AtomicU64::new(0));
        let merge = LogMerge::new(&places, trust, Arc::clone(&count));
        let past = BaselineSimulation::new(proxy.cpus, options.page_cost);
        LogPlayback { merge, past, count, bar: bar(&places, options.json) }
    }

    /// Reads all logs, and calls `see` with each request.
    fn each(&mut self, mut see: impl FnMut(RecordedRequest)) {
        let mut number = 0_u64;
        loop {
            let entry = self.merge.next();
            let is_last = entry.is_none();
            match entry {
                Some(entry) => self.past.push(entry),
                None => self.past.finish(),
            }
            while let Some(was) = self.past.pop() {
                see(was);
                number += 1;
                if let (Some(bar), true) = (&mut self.bar, number.is_multiple_of(4_096)) {
                    bar.at(self.count.load(Relaxed));
                }
            }
            if is_last {
                self.bar = None;
                return;
            }
        }
    }
}

/// Plays the logs. Returns the report and the number of lines read.
pub fn play(options: &ReplayOptions) -> anyhow::Result<(ReplayReport, u64)> {
    let (proxy, mut warnings) = proxy(options)?;
    let mut log = LogPlayback::new(options, &proxy);
    let mut play = ReplaySimulation::new(&proxy);
    let watch = Arc::new(Watch::new(Time::ZERO));
    LiveNetworks::load(&proxy.network_files(), play.engine().networks(), &watch)?;
    let mut tally = ReplayTally::new(TalliedLimit::all(&proxy), proxy.cpus);
    let mut number = 0;
    log.each(|was| {
        tally.arrive(number, &was);
        play.push(was);
        play.outcomes().for_each(|outcome| tally.over(&outcome));
        number += 1;
    });
    play.finish();
    play.outcomes().for_each(|outcome| tally.over(&outcome));
    let LogPlayback { merge, past, .. } = log;
    let lines = merge.accounts.iter().map(|account| account.lines).sum();
    anyhow::ensure!(tally.totals.requests > 0, nothing(&merge));
    warnings.extend(doubts(&merge, &past, &tally, &proxy));
    let site = ReplaySite {
        config: options.config.as_ref().map(|path| path.display().to_string()),
        cpus: proxy.cpus,
        action: proxy.action.name(),
        costs: costs(past.guessed, tally.totals.requests),
        guessed: past.guessed,
    };
    let about = ReportContext {
        accounts: merge.accounts,
        site,
        warnings,
        peak: play.peak,
        rows: options.rows.into(),
    };
    Ok((ReplayReport::new(&tally, about), lines))
}

/// The source of the costs.
fn costs(guessed: u64, requests: u64) -> &'static str {
    match guessed {
        0 => "measured",
        guessed if guessed == requests => "estimated",
        _ => "mixed",
    }
}

/// Whether a person watches the progress on a terminal.
fn is_watched(json: bool) -> bool {
    io::stderr().is_terminal() && !json
}

/// On a terminal: how far it is, by bytes.
fn bar(places: &[LogSource], json: bool) -> Option<Progress> {
    let sizes: Option<u64> = places.iter().map(LogSource::size).sum();
    sizes.filter(|_| is_watched(json)).map(Progress::new)
}

/// The error message that says why there is no report.
fn nothing(merge: &LogMerge) -> String {
    let each = merge.accounts.iter().map(|account| {
        let why = account.fault.clone().or_else(|| {
            let (line, text) = account.example.clone()?;
            Some(format!("{} lines cannot be read, such as line {line}: {text}", account.unread))
        });
        format!("{}: {}", account.name, why.unwrap_or_else(|| "it contains no requests".to_owned()))
    });
    each.collect::<Vec<_>>().join("\n")
}

/// Warnings about logs from which no result can be exact. `forwarded` is the number of requests
/// whose forwarding header was not believed.
fn log_doubts(
    merge: &LogMerge,
    past: &BaselineSimulation,
    forwarded: u64,
    requests: u64,
    proxy: &ProxySettings,
) -> Vec<String> {
    let forwarded = (forwarded * 2 > requests).then(|| {
        format!(
            "{forwarded} requests have forwarding headers from proxies that are not trusted: all \
             users of such a proxy count as one client; name the proxies in `--trusted-proxies` \
             or `trusted_proxies`"
        )
    });
    let overrun = (past.overrun > 0).then(|| {
        format!(
            "{} requests arrived while {} were already running and are not counted as work: the \
             log needs more CPU time than {} CPUs provide; see `--cpus` and `--page-cost`",
            past.overrun,
            play::baseline::RUNNING_MAX,
            proxy.cpus
        )
    });
    let late = (merge.late > 0).then(|| {
        format!(
            "{} requests were logged more than a minute late; they count at their place in the log",
            merge.late
        )
    });
    [forwarded, overrun, late].into_iter().flatten().collect()
}

/// Warnings about facts that make the results differ from those in front of the site.
fn doubts(
    merge: &LogMerge,
    past: &BaselineSimulation,
    tally: &ReplayTally,
    proxy: &ProxySettings,
) -> Vec<String> {
    let totals = &tally.totals;
    let mut doubts = log_doubts(merge, past, totals.forwarded, totals.requests, proxy);
    let mut doubt = |is: bool, what: String| doubts.extend(is.then_some(what));
    let gone = tally.visitors.gone;
    doubt(
        gone > 0,
        format!("{gone} clients with few requests are counted, but not listed by name"),
    );
    let door = "the replay ignores `shadow` of the whole section";
    doubt(proxy.shadow, format!("{door}: the results show what would happen without it"));
    let rules = proxy.denials.iter().filter(|rule| rule.shadow).map(|rule| &*rule.name);
    let quiet = proxy.limits.iter().filter(|limit| limit.shadow).map(|limit| &*limit.name);
    let quiet = quiet.chain(rules);
    let quiet = quiet.collect::<Vec<_>>().join(", ");
    doubt(
        !quiet.is_empty(),
        format!(
            "in shadow, as in front of the site: {quiet}; these limits stop no request, and the \
             list of limits shows which requests they would have affected"
        ),
    );
    doubt(
        proxy.hosts.needs_names(),
        "host names of clients are not looked up: `host:` patterns match no client, `by: host` \
         counts addresses"
            .to_owned(),
    );
    doubts.extend(unlogged(proxy, merge.tells()));
    doubts
}

/// Warnings about costs and keys that a log does not have.
fn unlogged(proxy: &ProxySettings, tells: entry::LogFields) -> Vec<String> {
    let source = match &proxy.cost {
        CostSource::Cgroup(_) => Some("cgroup"),
        CostSource::Header(_) => Some("header"),
        _ => None,
    };
    let source = source.map(|source| {
        let what = "costs are derived from the time where the log does not have them";
        format!("`cost: {source}` is not in a log of times: {what}")
    });
    let parts = missing(proxy, tells).into_iter().map(|part| {
        format!("a log does not have {part}: all its requests count as requests without it")
    });
    source.into_iter().chain(parts).collect()
}

/// The fields that limits count by and that not all logs have.
fn missing(proxy: &ProxySettings, tells: entry::LogFields) -> Vec<String> {
    let mut missing = Vec::new();
    let mut parts: Vec<KeyPart> =
        proxy.limits.iter().flat_map(|limit| limit.by.iter().cloned()).collect();
    let conditions = proxy.limits.iter().map(|limit| &limit.when);
    let conditions = conditions.chain(proxy.denials.iter().map(|rule| &rule.when));
    for condition in conditions.chain(&proxy.exempt_when) {
        condition.for_each(&mut |clause| {
            parts.extend(match clause {
                Clause::Header(name, _) if **name == *"user-agent" => Some(KeyPart::UserAgent),
                Clause::Header(name, _) => Some(KeyPart::Header(name.clone())),
                Clause::Cookie(name, _) => Some(KeyPart::Cookie(name.clone())),
                Clause::Vhost(_) => Some(KeyPart::Vhost),
                Clause::Fact(fact, _) => Some(KeyPart::Fact(*fact)),
                _ => None,
            });
        });
    }
    for part in parts {
        let lacks = match &part {
            KeyPart::UserAgent if !tells.agent => "the user agent".to_owned(),
            KeyPart::Header(name) if **name == *"referer" && tells.referrer => continue,
            KeyPart::Header(name) if **name == *"host" && tells.host => continue,
            KeyPart::Header(name) if !tells.headers => format!("the header `{name}`"),
            KeyPart::Cookie(name) if !tells.headers => format!("the cookie `{name}`"),
            KeyPart::ApiKey if !tells.headers => "the API key".to_owned(),
            KeyPart::Json(at) => format!("`{at}` of the body"),
            KeyPart::Vhost if !tells.host => "the requested host".to_owned(),
            // The engine finds these two by the address.
            KeyPart::Fact(ClientFact::Asn | ClientFact::Country) => continue,
            KeyPart::Fact(fact) => format!("the fact `{fact}`"),
            _ => continue,
        };
        if !missing.contains(&lacks) {
            missing.push(lacks);
        }
    }
    missing
}

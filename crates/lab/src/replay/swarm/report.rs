//! The report of a search for swarms: as text for a terminal, and as JSON.
//!
//! Ten minutes belong to a swarm if at least [`ADDRESSES_MIN`] addresses that are used once or
//! twice come, and their requests need at least a tenth of the processors and a third of all CPU
//! time. Below that they are the ordinary newcomers of a site, or too light to matter. Swarm times
//! with less than an hour between them are one.

use super::{STEP_MINUTES, STEP_SECONDS, StrangerSums, SwarmSearch, SwarmStep, room, second_of};
use crate::replay::reader::LogAccount;
use crate::replay::report::text::{account, costs, count, length, part, time};
use evenkeel_telemetry::printable::printable;
use serde::Serialize;
use std::fmt::Write;

/// The version of the JSON format.
const SCHEMA: u32 = 1;
/// The minimum number of new addresses in ten minutes of a swarm.
const ADDRESSES_MIN: u64 = 20;
/// The minimum part of the processors that they need: one in this number.
const ROOM_PART_MIN: u64 = 10;
/// The minimum part of all CPU time that they need: one in this number.
const COST_PART_MIN: u64 = 3;
/// The longest time between parts of one swarm, in seconds.
const GAP_MAX: u64 = 3_600;
/// In a full minute, requests came that need at least this many hundredths of the processors.
const FULL_PERCENT: u64 = 90;
/// A log of up to this many seconds is shown by the hour, a longer one by the day.
const BY_HOUR_MAX: u64 = 2 * 86_400;
/// The maximum number of rows of the table over time.
const ROWS_MAX: usize = 400;

/// The whole report.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SwarmReport {
    /// The version of the format: `SCHEMA`.
    pub schema: u32,
    /// The version of this program.
    pub version: &'static str,
    /// The logs, and the lines in them that could not be read.
    pub logs: Vec<LogAccount>,
    /// Warnings about facts that limit the value of the report.
    pub warnings: Vec<String>,
    #[serde(flatten)]
    pub context: SwarmReportContext,
    /// All requests.
    pub all: SwarmPeriod,
    /// The times of swarms.
    pub swarms: Vec<SwarmPeriod>,
    /// The length of the parts in `periods`, in seconds.
    pub period_seconds: u64,
    /// The requests over time, without times that have none.
    pub periods: Vec<SwarmPeriod>,
}

/// The site whose logs were searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SwarmReportContext {
    /// The processors of the site.
    pub cpus: f64,
    /// The source of the costs: `measured` by the log, `estimated`, or `mixed`.
    pub costs: &'static str,
    /// The number of requests with a guessed cost.
    pub guessed: u64,
}

/// The requests of some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SwarmPeriod {
    /// Where it begins, in seconds since 1970.
    pub from: u64,
    pub until: u64,
    pub requests: u64,
    pub cpu_seconds: f64,
    /// The CPU time that the requests need, as a part of what the processors provide in this time.
    pub of_room: f64,
    /// The number of minutes whose requests need at least 90 % of what the processors provide.
    pub full_minutes: u64,
    /// The number of addresses that were used once or twice in a day.
    pub strangers: u64,
    pub stranger_requests: u64,
    pub stranger_cpu_seconds: f64,
}

impl SwarmReport {
    /// The report without the logs and the warnings.
    pub fn new(search: &SwarmSearch, context: SwarmReportContext) -> SwarmReport {
        let cpus = context.cpus;
        let (first, last) = search.span.unwrap_or_default();
        let span = (first, last + 1);
        let all = || search.steps.iter().map(|(step, sums)| (*step, sums));
        let period_seconds = if span.1 - span.0 <= BY_HOUR_MAX { 3_600 } else { 86_400 };
        SwarmReport {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            logs: Vec::new(),
            warnings: Vec::new(),
            context,
            all: grouped(all(), span, cpus, |_, _| true).pop().unwrap_or_default(),
            swarms: grouped(all().filter(|(_, step)| is_swarm(step, cpus)), span, cpus, |a, b| {
                second_of(b) - second_of(a + 1) < GAP_MAX
            }),
            period_seconds,
            periods: grouped(all(), span, cpus, |a, b| {
                second_of(a) / period_seconds == second_of(b) / period_seconds
            }),
        }
    }

    /// The report as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = write(&mut text, self);
        text
    }
}

fn is_swarm(step: &SwarmStep, cpus: f64) -> bool {
    let StrangerSums { addresses, cost, .. } = step.strangers;
    addresses >= ADDRESSES_MIN
        && cost.0 >= room(cpus, STEP_SECONDS).0 / ROOM_PART_MIN
        && cost.0 >= step.cost.0 / COST_PART_MIN
}

/// Adds up neighbouring steps that belong `together`. `span` is that of the log.
fn grouped<'a>(
    steps: impl Iterator<Item = (u64, &'a SwarmStep)>,
    span: (u64, u64),
    cpus: f64,
    together: impl Fn(u64, u64) -> bool,
) -> Vec<SwarmPeriod> {
    let mut found: Vec<SwarmPeriod> = Vec::new();
    let mut last = None;
    for (step, sums) in steps {
        let (from, until) = (second_of(step).max(span.0), second_of(step + 1).min(span.1));
        if !last.is_some_and(|last| together(last, step)) {
            found.push(SwarmPeriod { from, ..SwarmPeriod::default() });
        }
        last = Some(step);
        if let Some(period) = found.last_mut() {
            period.add(sums, cpus);
            period.until = until;
            let seconds = (period.until - period.from).max(1) as f64;
            period.of_room = period.cpu_seconds / (cpus * seconds);
        }
    }
    found
}

impl SwarmPeriod {
    fn add(&mut self, step: &SwarmStep, cpus: f64) {
        let full = room(cpus, 60).0 / 100 * FULL_PERCENT;
        self.requests += step.requests;
        self.cpu_seconds += step.cost.as_secs_f64();
        self.full_minutes += step.minutes.iter().filter(|cost| cost.0 >= full).count() as u64;
        self.strangers += step.strangers.addresses;
        self.stranger_requests += step.strangers.requests;
        self.stranger_cpu_seconds += step.strangers.cost.as_secs_f64();
    }
}

fn write(out: &mut String, report: &SwarmReport) -> std::fmt::Result {
    report.logs.iter().try_for_each(|log| account(out, log))?;
    let (all, context) = (&report.all, &report.context);
    writeln!(out, "\n{} CPUs. Costs are {}", context.cpus, costs(context.costs, context.guessed))?;
    let (from, until) = (time(all.from as f64), time(all.until as f64));
    writeln!(out, "{} requests from {from} to {until} UTC", count(all.requests))?;
    for warning in &report.warnings {
        writeln!(out, "note: {}", printable(warning))?;
    }
    writeln!(out)?;
    if report.swarms.is_empty() {
        writeln!(
            out,
            "No swarm: in no {STEP_MINUTES} minutes did addresses that are used once or twice in a \
             day need a\ntenth of the CPUs and a third of all CPU time"
        )?;
    } else {
        writeln!(out, "Swarms: many addresses that are used once or twice in a day\n")?;
        table(out, &report.swarms)?;
    }
    let by = if report.period_seconds == 86_400 { "day" } else { "hour" };
    writeln!(out, "\nAddresses that are used once or twice in a day, by {by}\n")?;
    table(out, &report.periods[..report.periods.len().min(ROWS_MAX)])?;
    if report.periods.len() > ROWS_MAX {
        writeln!(out, "  and {} more", report.periods.len() - ROWS_MAX)?;
    }
    writeln!(
        out,
        "\nof CPUs: what all requests need, of what the CPUs provide. full min: minutes in which \
         that is {FULL_PERCENT}% or more"
    )
}

/// A time in UTC, to the minute.
fn minute(second: u64) -> String {
    let mut text = time(second as f64);
    text.truncate("2026-10-01 00:00".len());
    text
}

fn table(out: &mut String, periods: &[SwarmPeriod]) -> std::fmt::Result {
    let mut line = |cells: [String; 9]| {
        let [from, until, number, requests, of_requests, cpu, of_cpu, of_room, full] = cells;
        writeln!(
            out,
            "  {from:<16}  {until:<16} {number:>10} {requests:>10} {of_requests:>7} {cpu:>9} \
             {of_cpu:>7} {of_room:>9} {full:>9}"
        )
    };
    let heads = ["from", "until", "addresses", "requests", "of all", "CPU", "of all"];
    let [from, until, number, requests, of_requests, cpu, of_cpu] = heads.map(str::to_owned);
    let (of_room, full) = ("of CPUs".to_owned(), "full min".to_owned());
    line([from, until, number, requests, of_requests, cpu, of_cpu, of_room, full])?;
    for row in periods {
        line([
            minute(row.from),
            minute(row.until),
            count(row.strangers),
            count(row.stranger_requests),
            part(row.stranger_requests as f64, row.requests as f64),
            length(row.stranger_cpu_seconds),
            part(row.stranger_cpu_seconds, row.cpu_seconds),
            part(row.of_room, 1.0),
            count(row.full_minutes),
        ])?;
    }
    Ok(())
}

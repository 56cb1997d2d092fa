//! `evenkeel replay --swarm`: finds swarms in the logs, with their times and their cost.
//!
//! A swarm uses each of its addresses once or twice. So the cost of requests from such addresses is
//! compared with the processors of the site, ten minutes at a time. No limit is played. An address
//! counts anew each day (UTC), so memory is that for a day's addresses. The definition of a swarm,
//! and the report: `report`.

pub mod report;

use super::merge::LogMerge;
use super::play::baseline::RecordedRequest;
use evenkeel_core::key::network;
use evenkeel_core::units::{Nanos, SECOND};
use foldhash::fast::RandomState;
use report::{SwarmReport, SwarmReportContext};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// The number of minutes in a step, the unit of the search.
pub const STEP_MINUTES: u64 = 10;
const STEP_SECONDS: u64 = 60 * STEP_MINUTES;
const DAY_SECONDS: u64 = 86_400;
/// An address with at most this many requests in a day is used once or twice.
const REQUESTS_MAX: usize = 2;
/// The maximum number of addresses of a day. Requests of more are counted, but not as strangers'.
const ADDRESSES_MAX: usize = 4_000_000;

/// The requests of [`STEP_MINUTES`] minutes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SwarmStep {
    pub requests: u64,
    pub cost: Nanos,
    /// The cost of the requests that arrived in each minute.
    pub minutes: [Nanos; STEP_MINUTES as usize],
    pub strangers: StrangerSums,
}

/// The addresses that were used once or twice in a day, and their requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StrangerSums {
    /// Those whose first request came in this time.
    pub addresses: u64,
    pub requests: u64,
    pub cost: Nanos,
}

/// The first requests of an address on a day: step of the day and cost in microseconds.
#[derive(Clone, Copy, Default)]
struct DayAddress {
    requests: u8,
    first: [(u8, u32); REQUESTS_MAX],
}

/// Adds up the requests of a log by time, and those of addresses that are used once or twice.
#[derive(Default)]
pub struct SwarmSearch {
    /// The day of the last request, in days since 1970.
    day: u64,
    addresses: HashMap<IpAddr, DayAddress, RandomState>,
    /// By the number of the step since 1970.
    pub steps: BTreeMap<u64, SwarmStep>,
    /// The seconds of the first and of the last request.
    pub span: Option<(u64, u64)>,
    /// Requests whose forwarding header was not believed.
    pub forwarded: u64,
    /// Requests of addresses beyond the maximum of a day.
    pub left_out: u64,
}

impl SwarmSearch {
    /// Counts a request. Invariant: the calls are in the order of arrival.
    pub fn push(&mut self, was: &RecordedRequest) {
        let second = was.entry.second();
        if second / DAY_SECONDS != self.day {
            self.finish();
            self.day = second / DAY_SECONDS;
        }
        self.span = Some((self.span.map_or(second, |(first, _)| first), second));
        self.forwarded += u64::from(was.entry.forwarded);
        let step = self.steps.entry(second / STEP_SECONDS).or_default();
        step.requests += 1;
        step.cost = step.cost.plus(was.needed);
        let minute = &mut step.minutes[(second / 60 % STEP_MINUTES) as usize];
        *minute = minute.plus(was.needed);
        // One client as the limits count it.
        let address = network(was.entry.address, 32, 64);
        if self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains_key(&address) {
            self.left_out += 1;
            return;
        }
        let seen = self.addresses.entry(address).or_default();
        if let Some(place) = seen.first.get_mut(usize::from(seen.requests)) {
            let step_of_day = second % DAY_SECONDS / STEP_SECONDS;
            let micros = u32::try_from(was.needed.0 / 1_000).unwrap_or(u32::MAX);
            *place = (step_of_day as u8, micros);
        }
        seen.requests = seen.requests.saturating_add(1);
    }

    /// Counts the strangers of the last day, when its requests are complete.
    pub fn finish(&mut self) {
        let first_step = self.day * DAY_SECONDS / STEP_SECONDS;
        for seen in self.addresses.drain().map(|(_, seen)| seen) {
            let requests = usize::from(seen.requests);
            for (number, (step, micros)) in seen.first.iter().take(requests).enumerate() {
                if requests > REQUESTS_MAX {
                    break;
                }
                let strangers =
                    &mut self.steps.entry(first_step + u64::from(*step)).or_default().strangers;
                strangers.addresses += u64::from(number == 0);
                strangers.requests += 1;
                strangers.cost = strangers.cost.plus(Nanos(u64::from(*micros) * 1_000));
            }
        }
    }
}

/// Searches the logs. Returns the report and the number of lines read.
///
/// # Errors
/// Returns an error if the configuration is faulty or no request can be read.
pub fn search(options: &super::ReplayOptions) -> anyhow::Result<(SwarmReport, u64)> {
    let (proxy, mut warnings) = super::proxy(options)?;
    let mut log = super::LogPlayback::new(options, &proxy);
    let mut search = SwarmSearch::default();
    log.each(|was| search.push(&was));
    search.finish();
    let merge: &LogMerge = &log.merge;
    let requests = search.steps.values().map(|step| step.requests).sum();
    anyhow::ensure!(requests > 0, super::nothing(merge));
    warnings.extend(super::log_doubts(merge, &log.past, search.forwarded, requests, &proxy));
    if search.left_out > 0 {
        warnings.push(format!(
            "{} requests of a day with more than {ADDRESSES_MAX} addresses are not counted as \
             strangers'",
            search.left_out
        ));
    }
    let costs = super::costs(log.past.guessed, requests);
    let context = SwarmReportContext { cpus: proxy.cpus, costs, guessed: log.past.guessed };
    let lines = merge.accounts.iter().map(|account| account.lines).sum();
    let report = SwarmReport::new(&search, context);
    Ok((SwarmReport { logs: log.merge.accounts, warnings, ..report }, lines))
}

/// The step, in seconds since 1970.
fn second_of(step: u64) -> u64 {
    step * STEP_SECONDS
}

/// The CPU time that `cpus` provide in `seconds`.
fn room(cpus: f64, seconds: u64) -> Nanos {
    Nanos((cpus * seconds as f64 * SECOND as f64) as u64)
}

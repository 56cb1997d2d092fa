//! The report of a replay, ready to be shown: as text ([`text`]), as JSON, or as a page ([`html`]).
//!
//! The fields are those of the JSON; docs/guide/replay.md explains them. Durations are in seconds,
//! times in seconds since 1970. [`SCHEMA`] increases when a field changes its meaning or is
//! removed.

mod chart;
pub mod html;
mod suggest;
pub mod text;

use super::people::{self, BehaviourSigns, ClientKind};
use super::reader::LogAccount;
use super::tally::minute::MinuteRequest;
use super::tally::visitor::{ClientTally, RequestResults};
use super::tally::{BucketTally, ReplayTally};
use evenkeel_core::units::{Nanos, Time};
use serde::Serialize;
use std::collections::HashMap;
use std::net::IpAddr;
use suggest::ShareSuggestion;

/// The version of the JSON format.
pub const SCHEMA: u32 = 1;

/// A client that waited for this long in total is listed, even if no single wait was noticeable.
const LISTED_WAIT_MIN: Nanos = Nanos::from_secs(10);

/// The whole report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayReport {
    /// The version of the format: `SCHEMA`.
    pub schema: u32,
    /// The version of this program.
    pub version: &'static str,
    /// The logs, and the lines in them that could not be read.
    pub logs: Vec<LogAccount>,
    /// The site against which the logs were played.
    pub site: ReplaySite,
    /// Warnings about facts that limit the value of the report.
    pub warnings: Vec<String>,
    /// The sums over all requests.
    pub all: RequestTotals,
    /// Clients grouped by what they look like.
    pub kinds: Vec<KindRow>,
    /// Clients that would have been refused or would have waited noticeably (a second at once, or
    /// ten seconds in total); the most affected first.
    pub clients: Vec<ClientReport>,
    /// The number of such clients that are not listed.
    pub clients_left_out: usize,
    /// The clients that needed most CPU time, whatever their results.
    pub heaviest: Vec<ClientReport>,
    /// Groups of many addresses that behave as one.
    pub swarms: Vec<SwarmRow>,
    /// The decisions of each limit.
    pub limits: Vec<LimitRow>,
    /// The busiest minute.
    pub busiest: BusiestMinute,
    /// Suggested shares for this site.
    pub suggestion: ShareSuggestion,
    /// The numbers over time.
    pub series: SeriesReport,
}

/// The site against which the logs were played.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReplaySite {
    /// The configuration file; `null`: the default limits.
    pub config: Option<String>,
    /// The processors to share out.
    pub cpus: f64,
    /// The action for a client in debt.
    pub action: &'static str,
    /// The source of the costs: `measured` by the log, `estimated`, or `mixed`.
    pub costs: &'static str,
    /// The number of requests with a guessed cost.
    pub guessed: u64,
}

/// The sums over all requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RequestTotals {
    /// The arrival of the first request.
    pub from: f64,
    /// The arrival of the last request.
    pub until: f64,
    pub requests: u64,
    /// The CPU time that they needed.
    pub cpu_seconds: f64,
    pub clients: u64,
    /// Requests that no limit held up or refused.
    pub passed: u64,
    pub fate: ResultsRow,
    /// The maximum number of requests that ran at once with the limits.
    pub running_max: usize,
    /// The maximum number of requests in the queue at once.
    pub waiting_max: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ResultsRow {
    pub refused: u32,
    /// Requests with a held answer.
    pub held: u32,
    /// Requests that were delayed before they ran.
    pub delayed: u32,
    /// Requests that waited in the queue.
    pub queued: u32,
    /// Requests that waited for a second or longer.
    pub noticed: u32,
    pub waited_seconds: f64,
    /// The longest wait of a request.
    pub longest_seconds: f64,
    /// The time of the first request that was refused or waited for a second; `null`: none.
    pub first: Option<f64>,
    /// The time of the last such request; `null`: none.
    pub last: Option<f64>,
    /// The number of minutes with such a request.
    pub minutes: u32,
}

/// A group of clients that look alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindRow {
    /// What the clients look like.
    pub kind: ClientKind,
    pub clients: u64,
    /// The number of them that were refused or waited for a second at least once.
    pub affected: u64,
    /// The number of their requests.
    pub requests: u64,
    /// The CPU time that these needed.
    pub cpu_seconds: f64,
    /// The results of these requests.
    pub fate: ResultsRow,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClientReport {
    pub address: IpAddr,
    pub agent: String,
    /// What the client looks like.
    pub kind: ClientKind,
    /// The signs for this classification.
    pub why: Vec<&'static str>,
    pub requests: u32,
    /// The number of its requests without those for files that belong to pages.
    pub pages: u32,
    /// The CPU time that its requests needed.
    pub cpu_seconds: f64,
    pub fate: ResultsRow,
}

/// Many addresses that behave as one client.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SwarmRow {
    /// The network or the agent that they have in common.
    pub name: String,
    pub addresses: usize,
    /// The `User-Agent` of most of them.
    pub agent: String,
    /// The number of their requests.
    pub requests: u64,
    /// The CPU time that these needed.
    pub cpu_seconds: f64,
    /// The results of these requests.
    pub fate: ResultsRow,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitRow {
    pub name: String,
    pub action: &'static str,
    /// Shadow mode: the limit decides, but does not act.
    pub shadow: bool,
    /// The number of buckets that made a decision.
    pub buckets: u64,
    /// The number of requests that it would have held up or refused if it were not in shadow mode.
    pub would: u64,
    /// The buckets with most decisions.
    pub first: Vec<BucketRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BucketRow {
    /// The name of the bucket, made of the values that the limit counts by.
    pub key: String,
    /// The results of the requests on which it decided.
    pub fate: ResultsRow,
    /// The number of requests that it would have held up or refused if its limit were not in shadow
    /// mode.
    pub would: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BusiestMinute {
    pub at: f64,
    /// The number of requests that arrived.
    pub requests: u64,
    /// The CPU time that these needed.
    pub cpu_seconds: f64,
    /// The fraction of all available CPU time; 1 means all of it.
    pub load: f64,
    /// The maximum number of requests that ran at once without limits.
    pub running_max: usize,
    /// The results of clients that look like people.
    pub people: LimitComparison,
    /// The results of all other clients.
    pub others: LimitComparison,
}

/// A comparison of requests without and with limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LimitComparison {
    pub requests: usize,
    /// The durations without limits, as in the log.
    pub without: LatencySummary,
    /// The durations with the limits.
    pub with: LatencySummary,
    /// The number of requests that would have been refused.
    pub refused: usize,
}

/// The time from request to answer, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
    pub max: f64,
}

/// Numbers over time, in slots of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SeriesReport {
    /// The beginning of the first slot.
    pub begins: u64,
    /// The length of a slot in seconds.
    pub seconds: u64,
    /// For each slot: requests, CPU-seconds, CPU-seconds of requests that passed without a
    /// noticeable wait, requests that waited for a second, requests refused.
    pub slots: Vec<(u64, f64, f64, u64, u64)>,
}

impl From<&RequestResults> for ResultsRow {
    fn from(fate: &RequestResults) -> ResultsRow {
        let at = |time: Time| (time != Time::ZERO).then(|| seconds(time));
        ResultsRow {
            refused: fate.refused,
            held: fate.held,
            delayed: fate.delayed,
            queued: fate.queued,
            noticed: fate.noticed,
            waited_seconds: short(fate.waited),
            longest_seconds: short(fate.longest),
            first: at(fate.first),
            last: at(fate.last),
            minutes: fate.minutes,
        }
    }
}

/// A time in seconds since 1970.
fn seconds(time: Time) -> f64 {
    (time.0 / 1_000_000) as f64 / 1_000.0
}

/// A duration in seconds, rounded to a tenth of a millisecond.
fn short(length: Nanos) -> f64 {
    (length.as_secs_f64() * 1e4).round() / 1e4
}

/// The input of a report, apart from the tally.
pub struct ReportContext {
    /// The results of reading the logs.
    pub accounts: Vec<LogAccount>,
    /// The site against which the logs were played.
    pub site: ReplaySite,
    /// Warnings about facts that limit the value of the report.
    pub warnings: Vec<String>,
    /// The maximum number of requests that ran at once, and that were in the queue at once.
    pub peak: (usize, usize),
    /// The maximum number of clients in a list.
    pub rows: usize,
}

impl ReplayReport {
    /// Makes the report: classifies the clients and adds up their results.
    pub fn new(tally: &ReplayTally, about: ReportContext) -> ReplayReport {
        let signs = BehaviourSigns::of(tally);
        let judged = |visitor: &ClientTally| signs.judge(visitor, tally.agents.name(visitor.agent));
        let kinds: HashMap<IpAddr, ClientKind> =
            tally.visitors.iter().map(|(at, visitor)| (*at, judged(visitor).kind)).collect();
        let (clients, clients_left_out) = affected(tally, signs, about.rows);
        ReplayReport {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            logs: about.accounts,
            warnings: about.warnings,
            all: sum(tally, about.peak),
            kinds: kind_rows(tally, &kinds),
            clients,
            clients_left_out,
            heaviest: heaviest(tally, signs, about.rows),
            swarms: swarm_rows(tally, &kinds),
            limits: limit_rows(tally, about.rows),
            busiest: busiest(tally, &kinds, about.site.cpus),
            suggestion: ShareSuggestion::of(tally, &kinds),
            series: series(tally),
            site: about.site,
        }
    }

    /// The report as JSON, with a newline at its end.
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        format!("{text}\n")
    }
}

fn sum(tally: &ReplayTally, peak: (usize, usize)) -> RequestTotals {
    let totals = &tally.totals;
    RequestTotals {
        from: seconds(totals.first),
        until: seconds(totals.last),
        requests: totals.requests,
        cpu_seconds: short(totals.needed),
        clients: tally.visitors.count() as u64 + tally.visitors.gone,
        passed: totals.passed,
        fate: ResultsRow::from(&totals.fate),
        running_max: peak.0,
        waiting_max: peak.1,
    }
}

fn kind_rows(tally: &ReplayTally, kinds: &HashMap<IpAddr, ClientKind>) -> Vec<KindRow> {
    let rows = [ClientKind::People, ClientKind::Unclear, ClientKind::Robot].map(|kind| {
        let of_kind = tally.visitors.iter().filter(|(at, _)| kinds.get(at) == Some(&kind));
        let visitors: Vec<&ClientTally> = of_kind.map(|(_, visitor)| visitor).collect();
        let mut fate = RequestResults::default();
        visitors.iter().for_each(|visitor| fate.join(&visitor.fate));
        let needed: u64 = visitors.iter().map(|visitor| visitor.needed.0).sum();
        KindRow {
            kind,
            clients: visitors.len() as u64,
            affected: visitors.iter().filter(|visitor| visitor.fate.felt() > 0).count() as u64,
            requests: visitors.iter().map(|visitor| u64::from(visitor.requests)).sum(),
            cpu_seconds: short(Nanos(needed)),
            fate: ResultsRow::from(&fate),
        }
    });
    rows.into()
}

fn client(
    tally: &ReplayTally,
    signs: BehaviourSigns,
    address: IpAddr,
    visitor: &ClientTally,
) -> ClientReport {
    let agent = tally.agents.name(visitor.agent);
    let judgement = signs.judge(visitor, agent);
    ClientReport {
        address,
        agent: evenkeel_core::classify::readable(agent.as_bytes()),
        kind: judgement.kind,
        why: judgement.why,
        requests: visitor.requests,
        pages: visitor.pages,
        cpu_seconds: short(visitor.needed),
        fate: ResultsRow::from(&visitor.fate),
    }
}

/// All clients to which `weigh` gives a weight above zero, heaviest first, each with its weight.
fn ranked(tally: &ReplayTally, weigh: impl Fn(&ClientTally) -> u64) -> Vec<(u64, IpAddr)> {
    let weighed = tally.visitors.iter().map(|(at, visitor)| (weigh(visitor), *at));
    let mut all: Vec<_> = weighed.filter(|(weight, _)| *weight > 0).collect();
    all.sort_unstable_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.cmp(y)));
    all
}

fn rows_of(
    tally: &ReplayTally,
    signs: BehaviourSigns,
    ranked: &[(u64, IpAddr)],
) -> Vec<ClientReport> {
    let known: HashMap<&IpAddr, &ClientTally> = tally.visitors.iter().collect();
    let rows = ranked.iter().filter_map(|(_, at)| Some((*at, *known.get(at)?)));
    rows.map(|(at, visitor)| client(tally, signs, at, visitor)).collect()
}

fn affected(tally: &ReplayTally, signs: BehaviourSigns, rows: usize) -> (Vec<ClientReport>, usize) {
    let all = ranked(tally, |visitor| {
        let (felt, waited) = (u64::from(visitor.fate.felt()), visitor.fate.waited);
        let much = if felt > 0 || waited >= LISTED_WAIT_MIN { waited.0 / 1_000_000 } else { 0 };
        felt * 1_000 + much
    });
    let shown = all.len().min(rows);
    (rows_of(tally, signs, &all[..shown]), all.len() - shown)
}

fn heaviest(tally: &ReplayTally, signs: BehaviourSigns, rows: usize) -> Vec<ClientReport> {
    let all = ranked(tally, |visitor| visitor.needed.0);
    rows_of(tally, signs, &all[..all.len().min(rows)])
}

fn swarm_rows(tally: &ReplayTally, kinds: &HashMap<IpAddr, ClientKind>) -> Vec<SwarmRow> {
    let known: HashMap<&IpAddr, &ClientTally> = tally.visitors.iter().collect();
    let row = |swarm: people::Swarm| {
        let members = || swarm.members.iter().filter_map(|at| known.get(at));
        let mut agents: HashMap<u32, usize> = HashMap::new();
        members().for_each(|visitor| *agents.entry(visitor.agent).or_default() += 1);
        let agent = agents.into_iter().max_by_key(|(agent, count)| (*count, *agent));
        let mut fate = RequestResults::default();
        members().for_each(|visitor| fate.join(&visitor.fate));
        SwarmRow {
            addresses: swarm.members.len(),
            agent: agent.map_or("", |(agent, _)| tally.agents.name(agent)).to_owned(),
            requests: members().map(|visitor| u64::from(visitor.requests)).sum(),
            cpu_seconds: short(Nanos(members().map(|visitor| visitor.needed.0).sum())),
            fate: ResultsRow::from(&fate),
            name: swarm.name,
        }
    };
    people::swarms(tally, kinds).into_iter().map(row).collect()
}

fn limit_rows(tally: &ReplayTally, rows: usize) -> Vec<LimitRow> {
    let row = |(limit, decided): (&super::tally::TalliedLimit, &super::tally::LimitDecisions)| {
        let weight = |bucket: &BucketTally| bucket.fate.felt().saturating_add(bucket.would);
        let mut buckets: Vec<_> =
            decided.iter().map(|(_, bucket)| bucket).filter(|one| weight(one) > 0).collect();
        buckets
            .sort_unstable_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.name.cmp(&b.name)));
        let first = buckets.iter().take(rows).map(|bucket| BucketRow {
            key: bucket.name.clone(),
            fate: ResultsRow::from(&bucket.fate),
            would: bucket.would,
        });
        LimitRow {
            name: limit.name.to_string(),
            action: limit.action,
            shadow: limit.shadow,
            first: first.collect(),
            buckets: buckets.len() as u64,
            would: buckets.iter().map(|bucket| u64::from(bucket.would)).sum(),
        }
    };
    tally.limits.iter().zip(&tally.decided).map(row).collect()
}

fn busiest(tally: &ReplayTally, kinds: &HashMap<IpAddr, ClientKind>, cpus: f64) -> BusiestMinute {
    let minute = tally.minutes.busiest();
    let is_people = |kept: &&MinuteRequest| kinds.get(&kept.client) == Some(&ClientKind::People);
    let (people, others): (Vec<&MinuteRequest>, Vec<&MinuteRequest>) =
        minute.kept.iter().partition(is_people);
    BusiestMinute {
        at: (minute.number * 60) as f64,
        requests: minute.requests,
        cpu_seconds: short(minute.needed),
        load: short(Nanos((minute.needed.0 as f64 / 60.0 / cpus.max(0.001)) as u64)),
        running_max: minute.beside,
        people: sides(&people),
        others: sides(&others),
    }
}

fn sides(kept: &[&MinuteRequest]) -> LimitComparison {
    LimitComparison {
        requests: kept.len(),
        without: latency(kept.iter().map(|one| one.without).collect()),
        with: latency(kept.iter().filter_map(|one| one.with).collect()),
        refused: kept.iter().filter(|one| one.with.is_none()).count(),
    }
}

fn latency(mut lengths: Vec<Nanos>) -> LatencySummary {
    lengths.sort_unstable();
    let at = |part: f64| {
        let rank = (part * lengths.len() as f64) as usize;
        let rank = rank.min(lengths.len().saturating_sub(1));
        short(lengths.get(rank).copied().unwrap_or_default())
    };
    LatencySummary { p50: at(0.5), p95: at(0.95), max: at(1.0) }
}

fn series(tally: &ReplayTally) -> SeriesReport {
    let slots = tally.series.slots.iter().map(|slot| {
        (slot.requests, short(slot.needed), short(slot.passed), slot.waited, slot.refused)
    });
    let (begins, seconds) = (tally.series.begins, tally.series.seconds);
    SeriesReport { begins, seconds, slots: slots.collect() }
}

//! What a replay says when all is over, ready to be shown: as text ([`text`]), as JSON, as a page
//! ([`html`]).
//!
//! The fields are the JSON's; docs/guide/replay.md has what they mean. Lengths are in seconds,
//! times in seconds since 1970. [`SCHEMA`] goes up when a field changes its meaning or goes away.

mod chart;
pub mod html;
pub mod suggest;
pub mod text;

use super::people::{self, Kind, Signs};
use super::reader::Account;
use super::tally::minute::Kept;
use super::tally::visitor::{Fate, Visitor};
use super::tally::{Bucket, Tally};
use evenkeel_core::units::{Nanos, Time};
use serde::Serialize;
use std::collections::HashMap;
use std::net::IpAddr;
use suggest::Suggestion;

/// The version of the JSON.
pub const SCHEMA: u32 = 1;

/// Who waits for so long altogether is told of, even if no single request waited noticeably.
const MUCH: Nanos = Nanos::from_secs(10);

/// Everything that is said.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The version of this program.
    pub version: &'static str,
    /// The logs, and what could not be read of them.
    pub logs: Vec<Log>,
    /// What was played against.
    pub site: Site,
    /// What must be known to believe the rest.
    pub warnings: Vec<String>,
    /// All requests.
    pub all: Sum,
    /// Clients by what they look like.
    pub kinds: Vec<KindRow>,
    /// Who would have been refused or have waited noticeably, a second at once or ten seconds in
    /// all; those first who would have felt it most.
    pub clients: Vec<Client>,
    /// How many more clients there are of whom that is true.
    pub clients_left_out: usize,
    /// Who needed most, whatever became of them.
    pub heaviest: Vec<Client>,
    /// Many addresses that behave as one.
    pub swarms: Vec<SwarmRow>,
    /// What each limit decided.
    pub limits: Vec<LimitRow>,
    /// The busiest minute.
    pub busiest: Busiest,
    /// Shares for this site.
    pub suggestion: Suggestion,
    /// Figures over time.
    pub series: Series,
}

/// One log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Log {
    /// As it was named.
    pub name: String,
    /// What it was recognised as.
    pub format: Option<&'static str>,
    /// Lines that are no comments.
    pub lines: u64,
    /// Requests that were played.
    pub requests: u64,
    /// Lines that could not be read.
    pub unread: u64,
    /// The number and the beginning of the first of them.
    pub example: Option<(u64, String)>,
    /// Requests that a cache had answered; they are not played.
    pub cached: u64,
    /// Why it could not be read to its end.
    pub fault: Option<String>,
}

/// What requests were played against.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Site {
    /// The configuration's file; `null`: the default limits.
    pub config: Option<String>,
    /// Processors to share out.
    pub cpus: f64,
    /// What happens to a client in debt.
    pub action: &'static str,
    /// How costs are known: `measured` by the log, `estimated`, or `mixed`.
    pub costs: &'static str,
    /// Requests whose cost had to be guessed.
    pub guessed: u64,
}

/// All requests together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sum {
    /// When the first came.
    pub from: f64,
    /// When the last came.
    pub until: f64,
    /// How many.
    pub requests: u64,
    /// CPU time that they needed.
    pub cpu_seconds: f64,
    /// Clients.
    pub clients: u64,
    /// Requests that no limit looked at twice.
    pub passed: u64,
    /// What became of the others.
    pub fate: FateRow,
    /// The most that ran at once with the limits.
    pub running_max: usize,
    /// The most that waited for room at once.
    pub waiting_max: usize,
}

/// What became of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FateRow {
    /// Refused.
    pub refused: u32,
    /// Answers held.
    pub held: u32,
    /// Delayed before they ran.
    pub delayed: u32,
    /// Waited for room.
    pub queued: u32,
    /// Waited for a second or longer.
    pub noticed: u32,
    /// All waits together.
    pub waited_seconds: f64,
    /// The longest.
    pub longest_seconds: f64,
    /// The first that was refused or waited for a second; `null`: none.
    pub first: Option<f64>,
    /// The last.
    pub last: Option<f64>,
    /// In how many minutes that was.
    pub minutes: u32,
}

/// Clients that look alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindRow {
    /// What they look like.
    pub kind: Kind,
    /// How many.
    pub clients: u64,
    /// How many of them were refused or waited for a second at least once.
    pub affected: u64,
    /// Their requests.
    pub requests: u64,
    /// What these needed.
    pub cpu_seconds: f64,
    /// What became of them.
    pub fate: FateRow,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Client {
    /// Its address.
    pub address: IpAddr,
    /// What it calls itself.
    pub agent: String,
    /// What it looks like.
    pub kind: Kind,
    /// Why.
    pub why: Vec<&'static str>,
    /// All it asked for.
    pub requests: u32,
    /// What was no file beside a page.
    pub pages: u32,
    /// CPU time.
    pub cpu_seconds: f64,
    /// What became of it.
    pub fate: FateRow,
}

/// Many addresses that behave as one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SwarmRow {
    /// What they have in common.
    pub name: String,
    /// How many.
    pub addresses: usize,
    /// What most of them call themselves.
    pub agent: String,
    /// Their requests.
    pub requests: u64,
    /// What these needed.
    pub cpu_seconds: f64,
    /// What became of them.
    pub fate: FateRow,
}

/// What a limit decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitRow {
    /// Its name.
    pub name: String,
    /// What it does.
    pub action: &'static str,
    /// Whether it only decides, and keeps nobody.
    pub shadow: bool,
    /// How many buckets decided something.
    pub buckets: u64,
    /// How many requests it would have kept or refused, were it not in shadow.
    pub would: u64,
    /// Those that decided most.
    pub first: Vec<BucketRow>,
}

/// What a bucket decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BucketRow {
    /// What it counts by.
    pub key: String,
    /// What became of requests because of it.
    pub fate: FateRow,
    /// How many requests it would have kept or refused, were its limit not in shadow.
    pub would: u32,
}

/// The busiest minute.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Busiest {
    /// When it begins.
    pub at: f64,
    /// Requests that came.
    pub requests: u64,
    /// What these needed.
    pub cpu_seconds: f64,
    /// Of what there was, 1 is all.
    pub load: f64,
    /// The most that ran at once, as it was.
    pub running_max: usize,
    /// How it went for those who look like people.
    pub people: Sides,
    /// How it went for all others.
    pub others: Sides,
}

/// How requests went without limits, and with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Sides {
    /// How many.
    pub requests: usize,
    /// As it was.
    pub without: Latency,
    /// With the limits.
    pub with: Latency,
    /// How many would have been refused.
    pub refused: usize,
}

/// From request to answer, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Half of all are faster.
    pub p50: f64,
    /// Nineteen in twenty are.
    pub p95: f64,
    /// The slowest.
    pub max: f64,
}

/// Figures over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Series {
    /// When the first slot begins.
    pub begins: u64,
    /// How many seconds a slot has.
    pub seconds: u64,
    /// Of each: requests, CPU-seconds, CPU-seconds of those that nothing kept, requests that waited
    /// for a second, requests refused.
    pub slots: Vec<(u64, f64, f64, u64, u64)>,
}

impl From<&Fate> for FateRow {
    fn from(fate: &Fate) -> FateRow {
        let at = |time: Time| (time != Time::ZERO).then(|| seconds(time));
        FateRow {
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

/// A time, in seconds since 1970.
fn seconds(time: Time) -> f64 {
    (time.0 / 1_000_000) as f64 / 1_000.0
}

/// A length in seconds, to a tenth of a millisecond.
fn short(length: Nanos) -> f64 {
    (length.as_secs_f64() * 1e4).round() / 1e4
}

/// What a report is made of besides the tally.
pub struct Circumstances {
    /// The logs.
    pub accounts: Vec<Account>,
    /// What was played against.
    pub site: Site,
    /// What must be known to believe the rest.
    pub warnings: Vec<String>,
    /// The most that ran, and that waited for room, at once.
    pub peak: (usize, usize),
    /// Clients that are listed.
    pub rows: usize,
    /// What the door does by default.
    pub action: evenkeel_core::limit::Action,
}

impl Report {
    /// Judges and sums up.
    #[must_use]
    pub fn new(tally: &Tally, about: Circumstances) -> Report {
        let signs = Signs::of(tally);
        let judged = |visitor: &Visitor| signs.judge(visitor, tally.agents.name(visitor.agent));
        let kinds: HashMap<IpAddr, Kind> =
            tally.visitors.iter().map(|(at, visitor)| (*at, judged(visitor).kind)).collect();
        let (clients, clients_left_out) = affected(tally, signs, about.rows);
        let action = about.action;
        Report {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            logs: about.accounts.into_iter().map(Log::from).collect(),
            warnings: about.warnings,
            all: sum(tally, about.peak),
            kinds: kind_rows(tally, &kinds),
            clients,
            clients_left_out,
            heaviest: heaviest(tally, signs, about.rows),
            swarms: swarm_rows(tally, &kinds),
            limits: limit_rows(tally, action, about.rows),
            busiest: busiest(tally, &kinds, about.site.cpus),
            suggestion: Suggestion::of(tally, &kinds),
            series: series(tally),
            site: about.site,
        }
    }

    /// As JSON, with a newline at its end.
    #[must_use]
    pub fn json(&self) -> String {
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        format!("{text}\n")
    }
}

impl From<Account> for Log {
    fn from(account: Account) -> Log {
        let Account { name, format, lines, requests, unread, example, cached, fault, .. } = account;
        Log { name, format, lines, requests, unread, example, cached, fault }
    }
}

fn sum(tally: &Tally, peak: (usize, usize)) -> Sum {
    let totals = &tally.totals;
    Sum {
        from: seconds(totals.first),
        until: seconds(totals.last),
        requests: totals.requests,
        cpu_seconds: short(totals.needed),
        clients: tally.visitors.count() as u64 + tally.visitors.gone,
        passed: totals.passed,
        fate: FateRow::from(&totals.fate),
        running_max: peak.0,
        waiting_max: peak.1,
    }
}

fn kind_rows(tally: &Tally, kinds: &HashMap<IpAddr, Kind>) -> Vec<KindRow> {
    let rows = [Kind::People, Kind::Unclear, Kind::Robot].map(|kind| {
        let of_kind = tally.visitors.iter().filter(|(at, _)| kinds.get(at) == Some(&kind));
        let visitors: Vec<&Visitor> = of_kind.map(|(_, visitor)| visitor).collect();
        let mut fate = Fate::default();
        visitors.iter().for_each(|visitor| fate.join(&visitor.fate));
        let needed: u64 = visitors.iter().map(|visitor| visitor.needed.0).sum();
        KindRow {
            kind,
            clients: visitors.len() as u64,
            affected: visitors.iter().filter(|visitor| visitor.fate.felt() > 0).count() as u64,
            requests: visitors.iter().map(|visitor| u64::from(visitor.requests)).sum(),
            cpu_seconds: short(Nanos(needed)),
            fate: FateRow::from(&fate),
        }
    });
    rows.into()
}

fn client(tally: &Tally, signs: Signs, address: IpAddr, visitor: &Visitor) -> Client {
    let agent = tally.agents.name(visitor.agent);
    let judgement = signs.judge(visitor, agent);
    Client {
        address,
        agent: evenkeel_core::classify::readable(agent.as_bytes()),
        kind: judgement.kind,
        why: judgement.why,
        requests: visitor.requests,
        pages: visitor.pages,
        cpu_seconds: short(visitor.needed),
        fate: FateRow::from(&visitor.fate),
    }
}

/// The first `rows` of those that `weigh` gives any weight, the heaviest first, and how many there
/// are.
fn ranked(tally: &Tally, weigh: impl Fn(&Visitor) -> u64) -> Vec<(u64, IpAddr)> {
    let weighed = tally.visitors.iter().map(|(at, visitor)| (weigh(visitor), *at));
    let mut all: Vec<_> = weighed.filter(|(weight, _)| *weight > 0).collect();
    all.sort_unstable_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.cmp(y)));
    all
}

fn rows_of(tally: &Tally, signs: Signs, ranked: &[(u64, IpAddr)]) -> Vec<Client> {
    let known: HashMap<&IpAddr, &Visitor> = tally.visitors.iter().collect();
    let rows = ranked.iter().filter_map(|(_, at)| Some((*at, *known.get(at)?)));
    rows.map(|(at, visitor)| client(tally, signs, at, visitor)).collect()
}

fn affected(tally: &Tally, signs: Signs, rows: usize) -> (Vec<Client>, usize) {
    let all = ranked(tally, |visitor| {
        let (felt, waited) = (u64::from(visitor.fate.felt()), visitor.fate.waited);
        let much = if felt > 0 || waited >= MUCH { waited.0 / 1_000_000 } else { 0 };
        felt * 1_000 + much
    });
    let shown = all.len().min(rows);
    (rows_of(tally, signs, &all[..shown]), all.len() - shown)
}

fn heaviest(tally: &Tally, signs: Signs, rows: usize) -> Vec<Client> {
    let all = ranked(tally, |visitor| visitor.needed.0);
    rows_of(tally, signs, &all[..all.len().min(rows)])
}

fn swarm_rows(tally: &Tally, kinds: &HashMap<IpAddr, Kind>) -> Vec<SwarmRow> {
    let known: HashMap<&IpAddr, &Visitor> = tally.visitors.iter().collect();
    let row = |swarm: people::Swarm| {
        let members = || swarm.members.iter().filter_map(|at| known.get(at));
        let mut agents: HashMap<u32, usize> = HashMap::new();
        members().for_each(|visitor| *agents.entry(visitor.agent).or_default() += 1);
        let agent = agents.into_iter().max_by_key(|(agent, count)| (*count, *agent));
        let mut fate = Fate::default();
        members().for_each(|visitor| fate.join(&visitor.fate));
        SwarmRow {
            addresses: swarm.members.len(),
            agent: agent.map_or("", |(agent, _)| tally.agents.name(agent)).to_owned(),
            requests: members().map(|visitor| u64::from(visitor.requests)).sum(),
            cpu_seconds: short(Nanos(members().map(|visitor| visitor.needed.0).sum())),
            fate: FateRow::from(&fate),
            name: swarm.name,
        }
    };
    people::swarms(tally, kinds).into_iter().map(row).collect()
}

fn limit_rows(tally: &Tally, door: evenkeel_core::limit::Action, rows: usize) -> Vec<LimitRow> {
    let row = |(limit, decided): (&evenkeel_core::limit::Limit, &super::tally::Decided)| {
        let weight = |bucket: &Bucket| bucket.fate.felt().saturating_add(bucket.would);
        let mut buckets: Vec<_> =
            decided.iter().map(|(_, bucket)| bucket).filter(|one| weight(one) > 0).collect();
        buckets
            .sort_unstable_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.name.cmp(&b.name)));
        let first = buckets.iter().take(rows).map(|bucket| BucketRow {
            key: bucket.name.clone(),
            fate: FateRow::from(&bucket.fate),
            would: bucket.would,
        });
        LimitRow {
            name: limit.name.to_string(),
            action: limit.action(door).name(),
            shadow: limit.shadow,
            first: first.collect(),
            buckets: buckets.len() as u64,
            would: buckets.iter().map(|bucket| u64::from(bucket.would)).sum(),
        }
    };
    tally.limits.iter().zip(&tally.decided).map(row).collect()
}

fn busiest(tally: &Tally, kinds: &HashMap<IpAddr, Kind>, cpus: f64) -> Busiest {
    let minute = tally.minutes.busiest();
    let is_people = |kept: &&Kept| kinds.get(&kept.client) == Some(&Kind::People);
    let (people, others): (Vec<&Kept>, Vec<&Kept>) = minute.kept.iter().partition(is_people);
    Busiest {
        at: (minute.number * 60) as f64,
        requests: minute.requests,
        cpu_seconds: short(minute.needed),
        load: short(Nanos((minute.needed.0 as f64 / 60.0 / cpus.max(0.001)) as u64)),
        running_max: minute.beside,
        people: sides(&people),
        others: sides(&others),
    }
}

fn sides(kept: &[&Kept]) -> Sides {
    Sides {
        requests: kept.len(),
        without: latency(kept.iter().map(|one| one.without).collect()),
        with: latency(kept.iter().filter_map(|one| one.with).collect()),
        refused: kept.iter().filter(|one| one.with.is_none()).count(),
    }
}

fn latency(mut lengths: Vec<Nanos>) -> Latency {
    lengths.sort_unstable();
    let at = |part: f64| {
        let rank = (part * lengths.len() as f64) as usize;
        let rank = rank.min(lengths.len().saturating_sub(1));
        short(lengths.get(rank).copied().unwrap_or_default())
    };
    Latency { p50: at(0.5), p95: at(0.95), max: at(1.0) }
}

fn series(tally: &Tally) -> Series {
    let slots = tally.series.slots.iter().map(|slot| {
        (slot.requests, short(slot.needed), short(slot.passed), slot.waited, slot.refused)
    });
    let (begins, seconds) = (tally.series.begins, tally.series.seconds);
    Series { begins, seconds, slots: slots.collect() }
}

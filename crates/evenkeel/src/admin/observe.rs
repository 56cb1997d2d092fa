//! Values read from the engines on request: metrics that are not counted along the way, and the
//! busiest clients.
//!
//! This file stores and changes nothing. The output formats: `telemetry::prometheus`,
//! `telemetry::snapshot`.

use super::sources::{AdminSources, DoorEngine, ReadinessStage};
use evenkeel_core::key::KeyHash;
use evenkeel_core::limit::{LimitAction, LimitUnit};
use evenkeel_core::queue::WorkUnit;
use evenkeel_core::queue::shared::{RequestCounts, SharedQueueReport};
use evenkeel_core::units::{Nanos, SECOND, Time};
use evenkeel_engine::view::BackendLoad;
use evenkeel_engine::view::client_times::{ClientTimes, TierTimes};
use evenkeel_engine::{
    BackendReport, BurningReport, HeavyClient, OpenRequest, RequestStage, VisitorStats,
};
use evenkeel_identity::robots::RobotReport;
use evenkeel_telemetry::counts::peers::{PeerStatus, PeersStatus};
use evenkeel_telemetry::metrics::{
    BUSY, CAPACITY, CLIENTS_HELD, DECISIONS, ENGINE_CACHE, ENGINE_REQUESTS, ENGINE_ROOM, ENGINE_UP,
    IN_WAITING_ROOM, KEYS_DROPPED, KEYS_MAX, KEYS_USED, Metric, PRESSURE_STARTED, QUEUE_INSTANCES,
    QUEUE_OWNER, QUEUE_SLOTS_USED, QUEUE_TAKEOVERS, QUEUE_WAITING, SLOTS, SLOTS_USED, SLOTS_USEFUL,
    STRANGERS_COST, STRANGERS_WAITING, TABLE_BYTES, UNPAID, UP, WAITING, WAITING_AGE,
    WAITING_PAGES, WORKING, WORKING_AGE,
};
use evenkeel_telemetry::prometheus::ObservedMetric;
use evenkeel_telemetry::snapshot::{
    self, ClientAbout, ClientRow, ClientTimesLoad, EngineLoadRow, LimitTable, LoadSnapshot,
    LoadUnit, OpenRequestRow, QueueInstanceRow, RobotSnapshot, SharedQueueLoad, TierTimesRow,
    TopQuery, TopSnapshot, UNIT_CPU, UNIT_HITS, UNIT_MONEY, UNIT_TOKENS,
};
use std::collections::HashMap;

/// Formats a client's hash as it is shown and sent.
pub fn id(hash: KeyHash) -> String {
    format!("{:016x}", hash.bits())
}

/// Parses a hash in that format.
pub fn hash(id: &str) -> Option<KeyHash> {
    let bits = u64::from_str_radix(id, 16).ok()?;
    (id.len() == 16 && bits > 0 && bits <= KeyHash::MASK).then(|| KeyHash::from_bits(bits))
}

/// Returns all metrics that are not counted but read on request.
pub fn metrics(sources: &AdminSources, stage: ReadinessStage) -> Vec<ObservedMetric> {
    let up = if stage == ReadinessStage::Ready { 1.0 } else { 0.0 };
    let mut all = vec![ObservedMetric { metric: &UP, labels: Vec::new(), value: up }];
    all.extend(observed(&sources.engines, sources.watch.held_above()));
    all
}

/// Returns the metrics read from the engines. Clients that wait for longer than `held_above` count
/// as held.
pub fn observed(engines: &[DoorEngine], held_above: Nanos) -> Vec<ObservedMetric> {
    let mut all = Vec::new();
    for DoorEngine { door, engine } in engines {
        let mut push = |metric: &'static Metric, labels: &[&str], value: f64| {
            let labels = labels.iter().map(ToString::to_string).collect();
            all.push(ObservedMetric { metric, labels, value });
        };
        if let Some(work) = engine.work() {
            push(&WORKING, &[door], f64::from(work.working));
            push(&BUSY, &[door], work.busy.as_units());
            push(&UNPAID, &[door], work.unpaid.as_units());
            push(&CAPACITY, &[door], work.cpus);
            let age =
                |request: Option<&OpenRequest>| request.map_or(0.0, |one| one.age.as_secs_f64());
            push(&WORKING_AGE, &[door], age(work.open.running.first()));
            push(&WAITING_AGE, &[door], age(work.open.waiting.as_ref()));
            if let Some(crowd) = work.crowd {
                push(&WAITING, &[door], crowd.waiting as f64);
                push(&SLOTS, &[door], crowd.concurrency as f64);
                push(&SLOTS_USED, &[door], crowd.running as f64);
                if let Some(useful) = crowd.taken_in {
                    push(&SLOTS_USEFUL, &[door], useful as f64);
                }
            }
            if let Some(report) = &work.shared {
                push_shared_queue(report, |metric, value| push(metric, &[door], value));
            }
            work.reports.iter().for_each(|one| push_report(one, &mut push));
            if let Some(visitors) = work.visitors {
                push_visitors(&visitors, |metric, more, value| {
                    push(metric, &[&[*door], more].concat(), value);
                });
            }
        }
        let limiter = engine.held();
        for (index, limit) in limiter.limits().iter().enumerate() {
            if let Some(held) = engine.clients_held(index, held_above) {
                push(&CLIENTS_HELD, &[door, &limit.name], held as f64);
            }
        }
        for (limit, table) in limiter.limits().iter().zip(limiter.tables()) {
            let labels = [*door, &limit.name];
            push(&KEYS_MAX, &labels, table.keys_max() as f64);
            push(&KEYS_USED, &labels, table.used() as f64);
            push(&KEYS_DROPPED, &labels, table.dropped() as f64);
            push(&TABLE_BYTES, &labels, table.bytes() as f64);
        }
    }
    all
}

/// Passes the metrics of a queue that instances share to `push`.
fn push_shared_queue(report: &SharedQueueReport, mut push: impl FnMut(&'static Metric, f64)) {
    push(&QUEUE_OWNER, f64::from(u8::from(report.is_owner())));
    push(&QUEUE_INSTANCES, report.instances() as f64);
    push(&QUEUE_WAITING, report.all.waiting.into());
    push(&QUEUE_SLOTS_USED, report.all.running.into());
    push(&QUEUE_TAKEOVERS, report.takeovers as f64);
}

/// Passes the report of a backend about its own queue to `push`, with the labels.
fn push_report(one: &BackendReport, mut push: impl FnMut(&'static Metric, &[&str], f64)) {
    let backend = &*one.backend.place;
    push(&ENGINE_UP, &[backend], f64::from(u8::from(one.report.is_some())));
    if let Some(report) = &one.report {
        push(&ENGINE_REQUESTS, &[backend, "running"], report.running as f64);
        push(&ENGINE_REQUESTS, &[backend, "waiting"], report.waiting as f64);
        if let Some(used) = report.cache_used {
            push(&ENGINE_CACHE, &[backend], used);
        }
    }
    if let Some(room) = one.room {
        push(&ENGINE_ROOM, &[backend], room as f64);
    }
}

/// Passes the metrics of visitors to `push`, with their labels after the door.
fn push_visitors(visitors: &VisitorStats, mut push: impl FnMut(&'static Metric, &[&str], f64)) {
    push(&PRESSURE_STARTED, &[], visitors.pressure_since.map_or(0.0, epoch_secs));
    push(&STRANGERS_WAITING, &[], visitors.strangers_waiting as f64);
    push(&STRANGERS_COST, &[], visitors.strangers_cost.as_units());
    push(&IN_WAITING_ROOM, &["new"], f64::from(visitors.waiting_room.new));
    push(&IN_WAITING_ROOM, &["returned"], f64::from(visitors.waiting_room.returned));
    push(&WAITING_PAGES, &[], visitors.pages as f64);
}

/// A point in time in seconds since the Unix epoch.
fn epoch_secs(at: Time) -> f64 {
    at.0 as f64 / SECOND as f64
}

/// Returns the busiest clients that `query` asks for.
pub fn snapshot(sources: &AdminSources, query: &TopQuery) -> TopSnapshot {
    let now = sources.clock.now();
    let not_enforced = not_enforced(sources);
    let status = sources.watch.peers.read();
    let mut snapshot = TopSnapshot {
        now: epoch_secs(now),
        load: Vec::new(),
        known: Vec::new(),
        limits: Vec::new(),
        peers: status.as_ref().map(peers),
        store: sources.watch.store.read().map(|report| snapshot::StoreSummary {
            good: report.good,
            failed: report.failed,
            owed: report.owed,
        }),
        master: sources.watch.master.get().map(|counts| counts.status(now)),
        gatekeepers: sources.watch.gatekeepers.lock().iter().map(|one| one.status(now)).collect(),
        robots: robots(&sources.engines, now),
        refused_config: sources.watch.refused_config(now),
    };
    for DoorEngine { door, engine } in &sources.engines {
        let work = engine.work();
        snapshot.load.extend(
            work.map(|work| load(door, &work, &engine.client_times(), status.as_ref(), now)),
        );
        for (name, rows) in engine.lists() {
            snapshot.known.push(name.to_owned());
            if query.limit.as_ref().is_none_or(|limit| *limit == name) {
                let rows = rows.into_iter().take(query.rows).map(|standing| row(standing, now));
                let action = LimitAction::Reject;
                let rows = rows.collect();
                snapshot.limits.push(table(door, name, LimitUnit::Hits, action, rows));
            }
        }
        let limiter = engine.held();
        for (index, limit) in limiter.limits().iter().enumerate() {
            snapshot.known.push(limit.name.to_string());
            if query.limit.as_ref().is_none_or(|name| **name == *limit.name) {
                let mut rows = engine.heaviest(index, query.rows);
                engine.describe(&mut rows);
                let rows = rows.into_iter().map(|standing| row(standing, now)).collect();
                let action = limit.action(limiter.policy().action);
                let mut table = table(door, &limit.name, limit.unit, action, rows);
                table.shadow = engine.shadows(index);
                table.would = not_enforced.get(&table.name).copied().unwrap_or_default();
                snapshot.limits.push(table);
            }
        }
    }
    snapshot
}

/// Returns the number of decisions of each limit that were counted but not enforced, by the name of
/// the limit.
fn not_enforced(sources: &AdminSources) -> HashMap<String, u64> {
    let mut counts = HashMap::new();
    sources.watch.registry().visit(&DECISIONS, |labels, count| {
        if let [_, limit, shadow] = labels
            && shadow == "true"
        {
            *counts.entry(limit.clone()).or_default() += count;
        }
    });
    counts
}

/// What is known of the robots of all doors.
pub fn robots(engines: &[DoorEngine], now: Time) -> Vec<RobotSnapshot> {
    let robot = |report: RobotReport| {
        let [by_signature, by_address, by_host] = report.proven;
        let age = |made: u64| (now.0 / SECOND).saturating_sub(made) as f64;
        let last = report.last_impostor;
        RobotSnapshot {
            name: report.name,
            by_signature,
            by_address,
            by_host,
            impostors: report.impostors,
            last_impostor: last.map(|impostor| impostor.client.to_string()),
            last_impostor_ago: last.map(|impostor| now.since(impostor.came).as_secs_f64()),
            networks: report.networks,
            lists_age: report.lists_made.map(age),
            keys: report.keys,
            awaits_keys: report.awaits_keys,
        }
    };
    engines.iter().flat_map(|door| door.engine.robots()).map(robot).collect()
}

fn peers(report: &PeersStatus) -> snapshot::PeersSummary {
    let behind = report.peers.iter().filter(|peer| peer.live).map(|peer| peer.behind_seconds);
    let behind = behind.fold(0.0, f64::max);
    let apart = |peer: &PeerStatus| {
        let why = peer.queue_apart?.to_owned();
        Some(snapshot::ApartPeer { peer: peer.name.clone(), why })
    };
    let apart = report.peers.iter().filter_map(apart).collect();
    snapshot::PeersSummary { live: report.live, known: report.peers.len() + 1, behind, apart }
}

/// The load of a door. `peers` has the names of instances.
pub fn load(
    door: &str,
    work: &BackendLoad,
    times: &ClientTimes,
    peers: Option<&PeersStatus>,
    now: Time,
) -> LoadSnapshot {
    let crowd = work.crowd.as_ref().map(|crowd| snapshot::QueueLoad {
        waiting: crowd.waiting,
        running: crowd.running,
        concurrency: crowd.concurrency,
    });
    let swarm = work.visitors.as_ref().and_then(|visitors| swarm(visitors, &work.burning, now));
    LoadSnapshot {
        door: door.to_owned(),
        working: work.working,
        work_unit: unit(work),
        cpus: work.cpus,
        measures_rate: work.measures_rate,
        work_rate: work.rate,
        busy_seconds: work.busy.as_units(),
        crowd,
        shared_queue: work.shared.as_ref().map(|report| shared_queue(report, peers, now)),
        swarm,
        client_times: ClientTimesLoad {
            credit: tier_times(&times.credit),
            debt: tier_times(&times.debt),
        },
        engines: work.reports.iter().filter_map(engine_row).collect(),
        running: work.open.running.iter().map(open_request).collect(),
        oldest_waiting: work.open.waiting.as_ref().map(open_request),
    }
}

/// The statistics over clients; `None` without clients.
fn tier_times(times: &TierTimes) -> Option<TierTimesRow> {
    let seconds = Nanos::as_secs_f64;
    Some(TierTimesRow {
        clients: times.clients(),
        median: times.within(0.5).map(seconds)?,
        p95: times.within(0.95).map(seconds)?,
        longest: times.longest().map(seconds)?,
        slowest: times.slowest().map(str::to_owned),
    })
}

/// The unit of the load of a door.
pub fn unit(work: &BackendLoad) -> LoadUnit {
    match work.unit {
        _ if work.is_slots => LoadUnit::Slots,
        WorkUnit::CpuTime => LoadUnit::Cpu,
        WorkUnit::Tokens => LoadUnit::Tokens,
    }
}

fn shared_queue(
    report: &SharedQueueReport,
    peers: Option<&PeersStatus>,
    now: Time,
) -> SharedQueueLoad {
    let name =
        |node: u64| peers.map_or_else(|| format!("{node:016x}"), |peers| peers.name_of(node));
    let row = |node, counts: RequestCounts, kept| QueueInstanceRow {
        name: name(node),
        here: node == report.own.node,
        owns: node == report.owner,
        silent: false,
        apart: false,
        waiting: counts.waiting.into(),
        running: counts.running.into(),
        kept,
    };
    let own = row(report.own.node, report.counts, report.kept);
    let others = report.others.iter().map(|one| QueueInstanceRow {
        silent: one.is_silent,
        apart: one.is_apart,
        ..row(one.id.node, one.counts, one.kept)
    });
    SharedQueueLoad {
        owner: name(report.owner),
        owns: report.is_owner(),
        seconds: now.since(report.since).as_secs_f64(),
        term: report.term,
        takeovers: report.takeovers,
        slots: report.slots,
        waiting: report.all.waiting.into(),
        running: report.all.running.into(),
        instances: std::iter::once(own).chain(others).collect(),
    }
}

/// The report of a backend about its own queue; `None` if there is none.
fn engine_row(one: &BackendReport) -> Option<EngineLoadRow> {
    let report = one.report.as_ref()?;
    Some(EngineLoadRow {
        backend: one.backend.place.clone(),
        running: report.running,
        waiting: report.waiting,
        cache_used: report.cache_used,
        room: one.room,
    })
}

fn open_request(request: &OpenRequest) -> OpenRequestRow {
    OpenRequestRow {
        client: request.client.to_canonical().to_string(),
        route: request.route.clone(),
        age: request.age.as_secs_f64(),
        stalled: request.stage == RequestStage::Stalled,
    }
}

fn burning_row(burning: &BurningReport, now: Time) -> snapshot::BurningGroupRow {
    let percent = |part: f64| (part * 1e3).round() / 10.0;
    snapshot::BurningGroupRow {
        id: id(burning.key()),
        name: burning.name.clone(),
        when: burning.when.clone(),
        percent_of_strangers: percent(burning.cost_part),
        percent_of_clients: percent(burning.clients_part),
        seconds: now.since(burning.since).as_secs_f64(),
    }
}

/// What is shown while there is pressure.
fn swarm(
    visitors: &VisitorStats,
    burning: &[BurningReport],
    now: Time,
) -> Option<snapshot::SwarmLoad> {
    let since = visitors.pressure_since?;
    Some(snapshot::SwarmLoad {
        since: epoch_secs(since),
        seconds: now.since(since).as_secs_f64(),
        strangers: visitors.strangers_waiting,
        strangers_cost: visitors.pressure_cost.as_units(),
        visitors: visitors.visitors_waiting,
        waiting_room_new: visitors.waiting_room.new,
        waiting_room_returned: visitors.waiting_room.returned,
        newcomer_wait: visitors.newcomer_wait.map(Nanos::as_secs_f64),
        groups: burning.iter().map(|one| burning_row(one, now)).collect(),
    })
}

pub fn table(
    door: &str,
    name: &str,
    unit: LimitUnit,
    action: LimitAction,
    rows: Vec<ClientRow>,
) -> LimitTable {
    let unit = match unit {
        LimitUnit::Cpu => UNIT_CPU,
        LimitUnit::Hits => UNIT_HITS,
        LimitUnit::Tokens => UNIT_TOKENS,
        LimitUnit::Money => UNIT_MONEY,
    };
    LimitTable {
        door: door.to_owned(),
        name: name.to_owned(),
        unit: unit.to_owned(),
        action: action.name().to_owned(),
        shadow: false,
        would: 0,
        rows,
    }
}

pub fn row(standing: HeavyClient, now: Time) -> ClientRow {
    let HeavyClient { row, level, wait, about } = standing;
    let [route, agent] = about.usual;
    let [asn, country] = about.network;
    ClientRow {
        id: id(row.hash),
        key: if row.name.is_empty() { "?".to_owned() } else { row.name },
        level: level.map(|level| level as f64 / SECOND as f64),
        wait: wait.as_secs_f64(),
        cpu_per_second: row.cost_per_second,
        requests_per_second: row.requests_per_second,
        wait_average: row.wait.as_secs_f64(),
        last_seen: now.since(row.last_seen).as_secs_f64(),
        cpu_total: row.total.as_units(),
        about: ClientAbout {
            first_seen: now.since(row.first_seen).as_secs_f64(),
            answered: row.answered.map(Nanos::as_secs_f64),
            route,
            agent,
            group: about.group,
            asn,
            country,
        },
    }
}

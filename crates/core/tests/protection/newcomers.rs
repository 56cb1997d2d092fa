//! Swarms that have a new address for each request, on one processor: no client of theirs has been
//! served before, and none comes twice. Six regulars load a page a second, and a new person comes
//! every two seconds.

use super::*;

pub(super) const SWARM_FROM: u64 = 10;
pub(super) const LENGTH: u64 = 130;
pub(super) const REGULARS: usize = 6;

pub(super) fn page() -> RandomDuration {
    RandomDuration::Between(millis(25), millis(30))
}

/// A person who asks for the next page a second after the last one.
pub(super) fn regular(n: u8) -> SimClient {
    let think = RandomDuration::Fixed(Nanos::from_secs(1));
    let arrivals = Arrivals::Closed { parallel: 1, think };
    let mut one = SimClient::new(address(100 + n, 1, 1), arrivals, page());
    (one.path, one.from) = ("/page".into(), millis(150 * u64::from(n)));
    one
}

/// One page of a new person every two seconds.
fn visitors() -> SimClient {
    let arrivals = Arrivals::Open { gap: RandomDuration::Fixed(Nanos::from_secs(2)) };
    let visitors = SimClient::new(address(1, 1, 1), arrivals, page());
    SimClient { path: "/page".into(), ever_new: true, ..visitors }
}

pub(super) fn swarm(arrivals: Arrivals, times_dearer: u64) -> SimClient {
    let RandomDuration::Between(least, most) = page() else { unreachable!() };
    let demand =
        RandomDuration::Between(Nanos(least.0 * times_dearer), Nanos(most.0 * times_dearer));
    let mut swarm = SimClient::new(address(2, 2, 2), arrivals, demand);
    swarm.path = if times_dearer == 1 { "/page".into() } else { "/search".into() };
    (swarm.ever_new, swarm.from) = (true, Nanos::from_secs(SWARM_FROM));
    swarm
}

pub(super) fn connections(count: u32) -> Arrivals {
    Arrivals::Closed { parallel: count, think: RandomDuration::ZERO }
}

/// The regulars, the new people, and the swarm. Without a queue, the requests wait for one of eight
/// workers in order of arrival.
fn crowded(swarm: SimClient, with_queue: bool) -> SimOutcome {
    let clients = (0..REGULARS as u8).map(regular).chain([visitors(), swarm]).collect();
    let queue = QueueSettings { concurrency: 2, reserve: 2, ..queue() };
    let mut limits = limits(false);
    limits.iter_mut().for_each(|limit| limit.keys_max = 100_000);
    Sim::new(SimScene {
        backend: SimBackend::new(1.0, 8, SimScheduling::Shared),
        clock: CpuClock::Shared { cpus: 1.0 },
        limits: if with_queue { limits } else { vec![] },
        queue: with_queue.then_some(queue),
        length: Nanos::from_secs(LENGTH),
        ..scene(clients)
    })
    .run()
}

/// The requests of some clients that were sent during the swarm.
struct During {
    answered: usize,
    refused: usize,
    /// The part of all that was refused on arrival.
    at_once: f64,
    /// In seconds.
    p50: f64,
    p95: f64,
}

fn during(outcome: &SimOutcome, clients: std::ops::Range<usize>) -> During {
    let sent = Nanos::from_secs(SWARM_FROM)..Nanos::from_secs(LENGTH);
    let records = outcome.clients[clients].iter().flatten();
    let records: Vec<_> = records.filter(|one| sent.contains(&one.sent)).collect();
    let seconds = |one: &SimRecord| one.ended.minus(one.sent).as_secs_f64();
    let (answered, refused): (Vec<&SimRecord>, Vec<&SimRecord>) =
        records.iter().partition(|one| one.fate == SimRequestEnd::Answered);
    let mut waits: Vec<f64> = answered.into_iter().map(seconds).collect();
    waits.sort_unstable_by(f64::total_cmp);
    let at = |part: f64| waits.get((waits.len() as f64 * part) as usize).copied();
    let at_once = refused.iter().filter(|one| seconds(one) < 1e-3).count();
    During {
        answered: waits.len(),
        refused: refused.len(),
        at_once: at_once as f64 / records.len() as f64,
        p50: at(0.5).unwrap_or(f64::INFINITY),
        p95: at(0.95).unwrap_or(f64::INFINITY),
    }
}

/// Returns the requests of the regulars, the new people and the swarm.
fn print(name: &str, outcome: &SimOutcome) -> [During; 3] {
    let parts = [0..REGULARS, REGULARS..REGULARS + 1, REGULARS + 1..REGULARS + 2];
    let all = parts.map(|clients| during(outcome, clients));
    for (who, During { answered, refused, at_once, p50, p95 }) in
        ["regulars", "new people", "swarm"].into_iter().zip(&all)
    {
        println!(
            "{name:32} {who:10} p50 {p50:6.2} p95 {p95:6.2} s, {answered} answered, \
             {refused} refused, {at_once:.3} at once"
        );
    }
    all
}

/// Where the swarm asks for the same pages, people wait about as long as they would first come,
/// first served, and never twice as long. Where its pages are five times dearer, most pages of
/// people do not wait at all.
#[test]
fn ever_new_addresses() {
    for (times_dearer, count) in [(1, 64), (1, 256), (1, 1_000), (5, 64), (5, 256), (5, 1_000)] {
        let name = format!("{count} connections, x{times_dearer}");
        let scene = |with_queue| crowded(swarm(connections(count), times_dearer), with_queue);
        let plain = print(&format!("{name}, no queue"), &scene(false));
        let queued = print(&format!("{name}, queue"), &scene(true));
        for (plain, queued) in plain.iter().zip(&queued).take(2) {
            let part = if times_dearer == 1 { 1.2 } else { 0.1 };
            assert!(queued.p50 <= part * plain.p50, "{name}: p50 {} s", queued.p50);
            let times = if times_dearer == 1 { 2.0 } else { 1.0 };
            assert!(queued.p95 <= times * plain.p95, "{name}: p95 {} s", queued.p95);
            // A wait of 28 s, as in order of arrival, is for some longer than `wait_max`.
            let most = if (times_dearer, count) == (1, 1_000) { queued.answered } else { 0 };
            assert!(queued.refused <= most, "{name}: {} refused", queued.refused);
        }
    }
}

/// The swarm asks for unknown pages, for each of them once.
#[test]
fn ever_new_addresses_and_paths() {
    for count in [64, 256] {
        let name = format!("{count} connections, new paths");
        let mut swarm = swarm(connections(count), 1);
        (swarm.path, swarm.new_paths) = ("/pages/any".into(), true);
        let plain = print(&format!("{name}, no queue"), &crowded(swarm.clone(), false));
        let queued = print(&format!("{name}, queue"), &crowded(swarm, true));
        for (plain, queued) in plain.iter().zip(&queued).take(2) {
            assert!(queued.p95 <= 2.2 * plain.p95, "{name}: p95 {} s", queued.p95);
            assert_eq!(queued.refused, 0, "{name}");
        }
    }
}

/// A thousand requests a second keep the queue full, and all clients have one request in it. No
/// client is refused on arrival more often than others.
#[test]
fn a_flood_of_ever_new_addresses() {
    let gap = RandomDuration::Exponential(millis(1));
    let outcome = crowded(swarm(Arrivals::Open { gap }, 1), true);
    let [regulars, visitors, swarm] = print("1000 requests a second", &outcome);
    assert!(regulars.at_once <= swarm.at_once + 0.05, "{}", regulars.at_once);
    assert!(visitors.at_once <= swarm.at_once + 0.05, "{}", visitors.at_once);
}

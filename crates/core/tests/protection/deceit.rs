//! Requests that seem to cost something else than they do: routes that were taught as light and
//! turn heavy, a flood of unknown routes on a site of light pages, and light requests that wait
//! inside a backend. All backends wait rather than compute.

use super::*;
use evenkeel_core::sim::SIM_START;

const SECONDS: u64 = 75;
/// By then the swarm has been there for ten seconds.
const SETTLED: Nanos = Nanos::from_secs(25);

/// The regulars: a page of 5 ms every half second.
fn regulars(count: u8) -> Vec<SimClient> {
    let person = |n: u8| SimClient {
        path: "/page".into(),
        demand: RandomDuration::Fixed(millis(5)),
        from: millis(37 * u64::from(n)),
        ..human(address(100, n, 1))
    };
    (0..count).map(person).collect()
}

/// Crawlers in `count` networks with one connection each.
fn crawlers(count: u8, ms: u64, from: u64) -> impl Iterator<Item = SimClient> {
    (0..count).map(move |n| SimClient {
        demand: RandomDuration::Fixed(millis(ms)),
        from: Nanos::from_secs(from),
        ..crawler(address(20 + n, 2, 2), 1)
    })
}

/// Asks for a new path each time, the same ones as all such clients.
fn on_new_paths(at: IpAddr, parallel: u32, ms: u64, from: Nanos, until: Nanos) -> SimClient {
    SimClient {
        path: "/invented/path".into(),
        new_paths: true,
        demand: RandomDuration::Fixed(millis(ms)),
        from,
        until,
        ..crawler(at, parallel)
    }
}

/// Some hundred paths that are asked for once and take 2 ms, and from the 14th second on once more,
/// by a new client each time, and take 1.5 s: six at once.
fn liars() -> [SimClient; 2] {
    let teach = on_new_paths(address(240, 1, 1), 1, 2, millis(5_000), millis(6_200));
    let lie = on_new_paths(address(240, 2, 1), 6, 1_500, millis(14_000), Nanos(u64::MAX));
    let think = RandomDuration::Fixed(millis(1));
    [teach, SimClient { ever_new: true, arrivals: Arrivals::Closed { parallel: 6, think }, ..lie }]
}

/// A backend whose requests wait rather than compute.
fn waiting(workers: usize, clients: Vec<SimClient>, settings: QueueSettings) -> SimScene {
    SimScene {
        backend: SimBackend::new(workers as f64, workers, SimScheduling::Shared),
        queue: Some(settings),
        length: Nanos::from_secs(SECONDS),
        ..scene(clients)
    }
}

/// What people saw from the 25th second on, in milliseconds, and how many were refused at any time;
/// the mean limit; and the number of requests that the backend is believed to accept at the end.
struct Seen {
    p50: f64,
    p95: f64,
    refused: usize,
    limit: f64,
    accepted: Option<usize>,
}

/// Runs a scene of which the first `humans` clients are people. `auto`: the concurrency is found,
/// also by the use of the processors, which are idle.
fn observe(name: &str, humans: usize, auto: bool, scene: SimScene) -> Seen {
    let sim = Sim::new(scene);
    let mut sim = if auto { sim.with_auto_concurrency(CORES) } else { sim };
    let (mut limits, mut now) = (vec![], SIM_START);
    while now < SIM_START.plus(Nanos::from_secs(SECONDS)) {
        now = now.plus(millis(100));
        sim.handle_timeout(now);
        sim.handle_processor_use(0.05);
        limits.extend((now >= SIM_START.plus(SETTLED)).then(|| sim.concurrency().unwrap_or(0)));
    }
    let limit = limits.iter().sum::<usize>() as f64 / limits.len() as f64;
    let accepted = sim.accepted_max();
    let outcome = sim.run();
    let people: Vec<_> = outcome.clients[..humans].iter().flatten().collect();
    let refused = people.iter().filter(|one| one.fate != SimRequestEnd::Answered).count();
    let settled = people.iter().filter(|one| one.sent >= SETTLED);
    let mut took: Vec<f64> =
        settled.map(|one| one.ended.minus(one.sent).as_secs_f64() * 1e3).collect();
    took.sort_by(f64::total_cmp);
    let (p50, p95) = (took[took.len() / 2], took[took.len() * 95 / 100]);
    println!(
        "{name:40} p50 {p50:7.1} p95 {p95:7.1} worst {:7.1} ms, {refused} refused, limit \
         {limit:.1}, accepts {accepted:?}",
        took[took.len() - 1]
    );
    Seen { p50, p95, refused, limit, accepted }
}

fn settings(concurrency: usize, workers: Option<usize>) -> QueueSettings {
    QueueSettings { concurrency, workers, ..queue() }
}

/// Fifty crawlers, and paths that were light and take 1.5 s. They do not make the backend seem
/// full, and people still find a slot.
#[test]
fn deceit_by_routes_that_turn_heavy() {
    for (slots, workers, known, name) in [
        (0, 64, None, "auto"),
        (8, 64, None, "8 slots"),
        (2, 8, None, "2 slots"),
        (2, 8, Some(8), "2 slots, 8 known workers"),
    ] {
        for people in [1, 4] {
            let clients = regulars(people).into_iter().chain(crawlers(50, 600, 10)).chain(liars());
            let scene = waiting(workers, clients.collect(), settings(slots.max(1), known));
            let name = format!("liars, {name}, {people} people");
            let seen = observe(&name, people.into(), slots == 0, scene);
            assert_eq!((seen.accepted, seen.refused), (None, 0), "{name}");
            // Six slots are all that there are for six liars, so people wait for one to end.
            let (p50, p95) = if slots == 2 { (1_000.0, 6_000.0) } else { (6.0, 200.0) };
            assert!(seen.p50 <= p50 && seen.p95 <= p95, "{name}: {} {}", seen.p50, seen.p95);
        }
    }
}

/// Connections that ask for an unknown page of 300 ms each time, on a site of pages of 5 ms.
#[test]
fn deceit_by_unknown_routes_on_a_light_site() {
    for count in [12, 100] {
        let warm = (0..8_u8).map(|n| SimClient {
            path: "/page".into(),
            demand: RandomDuration::Fixed(millis(5)),
            until: Nanos::from_secs(5),
            ..crawler(address(101, n, 1), 1)
        });
        let from = Nanos::from_secs(10);
        let flood = on_new_paths(address(2, 2, 2), count, 300, from, Nanos(u64::MAX));
        let flood = SimClient { ever_new: true, ..flood };
        let clients = regulars(5).into_iter().chain(warm).chain([flood]).collect();
        let scene = waiting(8, clients, settings(2, Some(8)));
        let seen = observe(&format!("{count} unknown routes at once"), 5, false, scene);
        assert!(seen.p95 <= 10.0 && seen.refused == 0, "{count}: {}", seen.p95);
    }
}

/// Fifty crawlers before two workers. What light pages wait inside the backend is no cost of
/// theirs, and the queue finds out how many requests the backend accepts.
#[test]
fn deceit_by_a_wait_inside_the_backend() {
    for workers in [None, Some(2)] {
        let clients = regulars(4).into_iter().chain(crawlers(50, 300, 10)).collect();
        let scene = waiting(2, clients, settings(2, workers));
        let seen = observe(&format!("two workers, configured: {workers:?}"), 4, true, scene);
        assert!(seen.p95 <= 310.0 && seen.refused == 0, "{workers:?}: {}", seen.p95);
        assert!(seen.limit <= 3.1, "{workers:?}: {}", seen.limit);
    }
}

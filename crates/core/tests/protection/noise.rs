//! People and crawlers on one processor that other programs disturb, and routes that are light for
//! people and heavy for crawlers: the forecasts of both, and how long a person waits.
//! `cargo test --test protection noise -- --nocapture` prints the results.

use super::*;
use evenkeel_core::sim::SIM_START;
use evenkeel_core::sim::outcome::SimRequestEnd;
use evenkeel_core::sim::random::SimRandom;

const SECONDS: u64 = 120;
/// By then the costs of all clients of the scenes are known.
const SETTLED_SECONDS: u64 = 60;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=4;

/// The part of the processor that other programs leave.
#[derive(Clone, Copy, Debug)]
enum Noise {
    Nothing,
    /// From 0.3 to 1.0 of it, changing at this interval in milliseconds.
    Others(u64),
    /// All of it, but it stands still for 0.1 to 1 s every 20 s in the mean.
    Stalls,
    /// All of it, but it stands still for 12 ms every 40 ms in the mean.
    Slices,
}

impl Noise {
    /// The part that is left, and for how long.
    fn draw(self, still: bool, chance: &mut SimRandom) -> (f64, Nanos) {
        let between = |least, most| RandomDuration::Between(millis(least), millis(most));
        let about = |ms| RandomDuration::Exponential(millis(ms));
        match (self, still) {
            (Noise::Nothing, _) => (1.0, Nanos::from_secs(SECONDS)),
            (Noise::Others(ms), _) => (0.3 + 0.7 * chance.unit(), millis(ms)),
            (Noise::Stalls, true) => (0.0, chance.length(between(100, 1_000))),
            (Noise::Stalls, false) => (1.0, chance.length(about(20_000))),
            (Noise::Slices, true) => (0.0, millis(12)),
            (Noise::Slices, false) => (1.0, chance.length(about(28))),
        }
    }
}

/// The mean of all seeds: latencies in milliseconds, and the part of the requests that were
/// expected to cost more than an eighth of a heavy one.
struct Observed {
    p50: f64,
    p95: f64,
    misjudged: f64,
}

fn observe(
    known: KnownClients,
    name: &str,
    noise: Noise,
    (people, others): (Vec<SimClient>, Vec<SimClient>),
    heavy_ms: u64,
) -> Observed {
    let mut mean = Observed { p50: 0.0, p95: 0.0, misjudged: 0.0 };
    let count = SEEDS.count() as f64;
    for seed in SEEDS {
        let outcome =
            run_disturbed(known, noise, people.iter().chain(&others).cloned().collect(), seed);
        let settled = |client: usize| outcome.clients[client].iter().filter(is_settled);
        let sent: Vec<_> = (0..people.len()).flat_map(settled).collect();
        assert!(sent.iter().all(|one| one.fate == SimRequestEnd::Answered), "{name}: refused");
        let mut took: Vec<f64> =
            sent.iter().map(|one| one.ended.minus(one.sent).as_secs_f64() * 1e3).collect();
        took.sort_by(f64::total_cmp);
        let misjudged = sent.iter().filter(|one| one.estimate.0 > millis(heavy_ms).0 / 8);
        mean.p50 += took[took.len() / 2] / count;
        mean.p95 += took[took.len() * 95 / 100] / count;
        mean.misjudged += misjudged.count() as f64 / sent.len() as f64 / count;
    }
    let Observed { p50, p95, misjudged } = mean;
    println!("{name:28} {noise:?}: p50 {p50:.1} p95 {p95:.1} ms, {misjudged:.3} misjudged");
    mean
}

fn is_settled(one: &&evenkeel_core::sim::outcome::SimRecord) -> bool {
    one.sent >= Nanos::from_secs(SETTLED_SECONDS)
}

/// One processor, eight workers, default limits.
fn run_disturbed(
    known: KnownClients,
    noise: Noise,
    clients: Vec<SimClient>,
    seed: u64,
) -> SimOutcome {
    let burst = Nanos::from_secs(30);
    let limits = [("ip", 0.1), ("net24", 0.25), ("net16", 0.5)].into_iter().zip(limits(false));
    let limits = limits.map(|((_, share), limit)| {
        let rate = CpuShare::new(share).and_then(|share| share.of(1.0)).expect("a rate");
        let bucket = DebtBucket::new(rate, Cost::cpu(burst)).capped(Cost::cpu(burst));
        Limit { algorithm: Algorithm::Debt(bucket), ..limit }
    });
    let mut sim = Sim::new(SimScene {
        backend: SimBackend::new(1.0, 8, SimScheduling::Shared),
        limits: limits.collect(),
        clock: CpuClock::Shared { cpus: 1.0 },
        queue: Some(QueueSettings {
            concurrency: 1,
            reserve: 2,
            cpus_milli: 1_000,
            known,
            ..queue()
        }),
        length: Nanos::from_secs(SECONDS),
        seed,
        ..scene(clients)
    });
    let (mut chance, mut now, mut still) = (SimRandom::new(seed, 77), SIM_START, false);
    while now < SIM_START.plus(Nanos::from_secs(SECONDS)) {
        let (left, length) = noise.draw(still, &mut chance);
        still = !still;
        sim.set_cores(left);
        now = now.plus(length);
        sim.handle_timeout(now);
    }
    sim.set_cores(1.0);
    sim.run()
}

fn people(count: u8, path: &str, ms: u64) -> Vec<SimClient> {
    let person = |n| SimClient {
        path: path.into(),
        demand: RandomDuration::Fixed(millis(ms)),
        ..human(address(200 + n, n, 1))
    };
    (0..count).map(person).collect()
}

/// A crawler in `count` networks, with `parallel` connections in each.
fn networks(count: u8, parallel: u32, path: &str, ms: u64) -> Vec<SimClient> {
    let one = |n| SimClient {
        path: path.into(),
        demand: RandomDuration::Fixed(millis(ms)),
        ..crawler(address(20 + n, 2, 2), parallel)
    };
    (0..count).map(one).collect()
}

/// Fifty networks that each send `light` requests of 2 ms for every one of 300 ms.
fn masked(path: &str, light: u64) -> Vec<SimClient> {
    let sender = |n: u8, ms, think| SimClient {
        path: path.into(),
        demand: RandomDuration::Fixed(millis(ms)),
        arrivals: Arrivals::Closed {
            parallel: 1,
            think: RandomDuration::Exponential(millis(think)),
        },
        ..crawler(address(20 + n, 2, 2), 1)
    };
    (0..50_u8).flat_map(|n| [sender(n, 2, 15_000 / light), sender(n, 300, 15_000)]).collect()
}

/// A search costs people 5 ms and a crawler 300 ms. The crawler comes first, or later.
#[test]
fn noise_and_a_search_that_is_heavy_for_crawlers() {
    // At a start the costs of each client are unknown, so people wait for their turn, as first
    // come, first served, until their own costs are learned. With 50 crawlers that takes a minute,
    // and under noise what they asked for in that time is still being served in the second one.
    for (networks_count, parallel, from, (noisy_p50, noisy_p95)) in [
        (1, 32, 0, (25.0, 60.0)),
        (8, 4, 0, (25.0, 60.0)),
        (8, 4, 15, (25.0, 60.0)),
        (50, 1, 0, (2_000.0, 8_000.0)),
        (50, 1, 15, (25.0, 4_000.0)),
    ] {
        let clients = || {
            let mut crawlers = networks(networks_count, parallel, "/search?q=", 300);
            crawlers.iter_mut().for_each(|one| one.from = Nanos::from_secs(from));
            (people(8, "/search?q=", 5), crawlers)
        };
        let name = format!("search, {networks_count} networks, from {from} s");
        let calm = observe(known(), &name, Noise::Nothing, clients(), 300);
        assert!(calm.p95 <= 18.0 && calm.misjudged <= 0.01, "{name}");
        for noise in [Noise::Others(200), Noise::Slices] {
            let noisy_one = observe(known(), &name, noise, clients(), 300);
            assert!(noisy_one.p50 <= noisy_p50 && noisy_one.p95 <= noisy_p95, "{name}");
        }
    }
}

/// A swarm makes the people's own route heavy, and hides it among light requests.
#[test]
fn noise_and_a_swarm_on_the_route_of_people() {
    for (noise, bound) in [(Noise::Nothing, 8.0), (Noise::Others(200), 20.0), (Noise::Slices, 25.0)]
    {
        let clients = (people(8, "/light", 2), masked("/light", 3));
        let seen = observe(known(), "swarm on their route", noise, clients, 300);
        assert!(seen.p95 <= bound && seen.misjudged <= 0.02);
    }
}

/// A client that sends light requests to be taken for light gains nothing by it.
#[test]
fn noise_and_a_swarm_that_masks_heavy_requests() {
    for (noise, bound) in [(Noise::Nothing, 8.0), (Noise::Others(200), 20.0), (Noise::Slices, 25.0)]
    {
        for light in [3, 8] {
            let clients = (people(8, "/light", 2), masked("/other", light));
            let seen = observe(known(), "masked swarm", noise, clients, 300);
            assert!(seen.p95 <= bound && seen.misjudged <= 0.01, "{light}");
        }
    }
}

/// Pages of 2 ms, beside pages of 100 ms now and then: a disturbed machine does not make them
/// heavy.
#[test]
fn noise_does_not_make_light_requests_heavy() {
    let burst = |n: u64| SimClient {
        from: Nanos::from_secs(12 + 18 * n),
        until: Nanos::from_secs(17 + 18 * n),
        ..crawler(address(2, 2, 2), 32)
    };
    for noise in [Noise::Stalls, Noise::Slices, Noise::Others(50), Noise::Others(5_000)] {
        let clients = (people(4, "/light", 2), (0..6).map(burst).collect());
        let seen = observe(known(), "people, crawler in bursts", noise, clients, 100);
        assert!(seen.misjudged <= 0.02 && seen.p50 <= 6.0 && seen.p95 <= 60.0);
    }
}

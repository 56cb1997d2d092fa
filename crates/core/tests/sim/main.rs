//! The rules on a virtual clock: real limiter, real meter, simulated clients and backend.
//! `SIM_SEED=7 cargo test --test sim` runs one seed; a failing test prints its seed.

mod cluster;
mod network_faults;
mod overshoot;

use evenkeel_core::bucket::{Algorithm, debt::DebtBucket};
use evenkeel_core::classify::{self, LimitKeys};
use evenkeel_core::condition::Condition;
use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
use evenkeel_core::limiter::{Limiter, LimiterPolicy};
use evenkeel_core::meter::CpuClock;
use evenkeel_core::sim::backend::{SimBackend, SimScheduling};
use evenkeel_core::sim::client::{Arrivals, SimClient};
use evenkeel_core::sim::outcome::{SimMetrics, SimOutcome, SimRequestEnd};
use evenkeel_core::sim::random::{RandomDuration, SimRandom};
use evenkeel_core::sim::{SIM_START, Sim, SimScene};
use evenkeel_core::units::{Cost, Nanos, Rate, SECOND, Time, Weight};
use std::net::IpAddr;

const SEED_BYTES: evenkeel_core::key::KeySeed = evenkeel_core::key::KeySeed([7; 16]);

fn seconds(n: f64) -> Nanos {
    Nanos::from_secs_f64(n)
}

fn millis(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

/// Runs a test for each seed, or only for the seed in `SIM_SEED`.
fn for_seeds(test: impl Fn(u64)) {
    let named = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok());
    let count = std::env::var("SIM_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(5);
    let seeds = named.map_or(1..=count, |seed| seed..=seed);
    for seed in seeds {
        let _shown_if_it_fails = Shown(seed);
        test(seed);
    }
}

struct Shown(u64);

impl Drop for Shown {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with SIM_SEED={}", self.0);
        }
    }
}

fn ip(v4: u8, v6: u8) -> KeyPart {
    KeyPart::Ip { v4, v6 }
}

/// A limit of `rate` CPU-seconds per second.
fn cpu_limit(name: &str, by: KeyPart, rate: f64, burst: f64) -> Limit {
    let rate = Rate::per(Cost::cpu(seconds(rate)), seconds(1.0)).expect("a rate");
    Limit {
        name: name.into(),
        by: vec![by],
        when: Condition::default(),
        unit: LimitUnit::Cpu,
        algorithm: Algorithm::Debt(DebtBucket::new(rate, Cost::cpu(seconds(burst)))),
        action: None,
        weight: Weight::ONE,
        keys_max: 1_000,
        shadow: false,
    }
}

fn rate_limit(name: &str, by: KeyPart, rate: &str, burst: u64) -> Limit {
    let rate: Rate = rate.parse().expect("a rate");
    let algorithm = Algorithm::Debt(DebtBucket::new(rate, Cost::hits(burst)));
    Limit { unit: LimitUnit::Hits, algorithm, ..cpu_limit(name, by, 1.0, 1.0) }
}

fn tempomat(rate: f64) -> Vec<Limit> {
    vec![
        cpu_limit("Slash32", ip(32, 64), rate, 30.0),
        cpu_limit("Slash24", ip(24, 48), rate, 30.0),
        cpu_limit("Slash16", ip(16, 32), rate, 30.0),
        cpu_limit("UserAgent", KeyPart::UserAgent, rate, 120.0),
    ]
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn looping(from: &str, parallel: u32, think: RandomDuration, demand: Nanos) -> SimClient {
    let arrivals = Arrivals::Closed { parallel, think };
    SimClient::new(address(from), arrivals, RandomDuration::Fixed(demand))
}

fn scene(limits: Vec<Limit>, clients: Vec<SimClient>, cores: f64, seed: u64) -> SimScene {
    SimScene {
        backend: SimBackend::new(cores, 256, SimScheduling::Shared),
        clients,
        limits,
        policy: LimiterPolicy { action: LimitAction::Hold, max_delay: seconds(120.0) },
        queue: None,
        clock: CpuClock::Shared { cpus: cores },
        abort_linger: seconds(5.0),
        length: seconds(600.0),
        seed,
    }
}

/// Metrics from `from` seconds to the end of ten minutes.
fn late(outcome: &SimOutcome, client: usize, from: f64) -> SimMetrics {
    outcome.figures(client, seconds(from), seconds(600.0))
}

fn level(limiter: &Limiter, limit: usize, client: &SimClient, now: Time) -> f64 {
    let hash = classify::hash(&limiter.limits()[limit], &SEED_BYTES, client);
    limiter.standing_of(limit, hash, now).level.expect("a level") as f64 / SECOND as f64
}

fn near(got: f64, expected: f64, tolerance: f64, what: &str) {
    assert!((got - expected).abs() <= tolerance, "{what}: {got}, not {expected}");
}

/// T6, and the table in Tempomat's description: one request a second whatever the parallelism.
#[test]
fn one_two_and_three_in_parallel_wait_for_zero_one_and_two_seconds() {
    for_seeds(|seed| {
        for parallel in 1..=3 {
            let client = looping("192.0.2.1", parallel, RandomDuration::ZERO, millis(1_000));
            let limits = vec![cpu_limit("ip", ip(32, 64), 1.0, 30.0)];
            let scene =
                SimScene { clock: CpuClock::Wall, ..scene(limits, vec![client], 8.0, seed) };
            let figures = late(&Sim::new(scene).run(), 0, 300.0);
            near(figures.rate, 1.0, 0.011, "requests a second");
            let wait = f64::from(parallel - 1);
            near(figures.mean_wait.as_secs_f64(), wait, 0.001, "mean wait");
            near(figures.latency(50.0).as_secs_f64(), wait + 1.0, 0.001, "median");
            assert_eq!(figures.refused, 0);
        }
    });
}

/// T7 in the column "ours": twenty requests at once at level 0 end two seconds apart.
#[test]
fn t7_twenty_at_once_are_released_one_by_one() {
    let once = SimClient {
        until: seconds(0.5),
        ..looping("192.0.2.1", 20, RandomDuration::ZERO, millis(1_000))
    };
    let limits = vec![cpu_limit("ip", ip(32, 64), 0.5, 0.0)];
    let scene = SimScene { clock: CpuClock::Wall, ..scene(limits, vec![once], 20.0, 1) };
    let outcome = Sim::new(scene).run();
    let ended: Vec<u64> = outcome.clients[0].iter().map(|one| one.ended.second()).collect();
    assert_eq!(ended, (1..=20).map(|k| 2 * k).collect::<Vec<u64>>());
}

trait Second {
    fn second(self) -> u64;
}

impl Second for Nanos {
    fn second(self) -> u64 {
        self.0 / SECOND
    }
}

#[test]
fn two_clients_on_one_cpu_get_the_same_whatever_their_parallelism() {
    for_seeds(|seed| {
        for (many, few) in [(2, 1), (32, 4)] {
            let demand = RandomDuration::Exponential(millis(50));
            let mut clients = vec![
                looping("192.0.2.1", many, RandomDuration::ZERO, millis(0)),
                looping("198.51.100.1", few, RandomDuration::ZERO, millis(0)),
            ];
            clients.iter_mut().for_each(|client| client.demand = demand);
            let limits = vec![cpu_limit("ip", ip(32, 64), 0.5, 30.0)];
            let outcome = Sim::new(scene(limits, clients, 1.0, seed)).run();
            let [a, b] = [late(&outcome, 0, 200.0), late(&outcome, 1, 200.0)];
            near(a.cpu / b.cpu, 1.0, 0.1, "shares");
            assert!(a.cpu + b.cpu > 0.9, "the processor idles: {} {}", a.cpu, b.cpu);
        }
    });
}

/// Many clients that send `load` times the capacity of two processors; some of them disconnect
/// early.
fn crowd(load: f64) -> Vec<SimClient> {
    let clients = 20;
    let demand = millis(100);
    let gap = demand.0 as f64 * f64::from(clients) / (2.0 * load);
    let client = |n: u32| SimClient {
        patience: n.is_multiple_of(3).then(|| millis(u64::from(n) * 40)),
        ..SimClient::new(
            address(&format!("10.{n}.0.1")),
            Arrivals::Open { gap: RandomDuration::Exponential(Nanos(gap as u64)) },
            RandomDuration::Exponential(demand),
        )
    };
    (0..clients).map(client).collect()
}

/// Conservation of cost, with clients that disconnect while the backend works for them.
#[test]
fn all_charges_are_the_processor_time_at_a_tenth_at_full_and_at_four_times_the_load() {
    for_seeds(|seed| {
        for load in [0.1, 1.0, 4.0] {
            let forever = vec![cpu_limit("all", KeyPart::All, 0.001, 1e5)];
            let scene =
                SimScene { length: seconds(60.0), ..scene(forever, crowd(load), 2.0, seed) };
            let sim = Sim::new(scene);
            let keys = sim.limiter().keys(&crowd(load)[0]);
            charge(sim.limiter(), &keys, seconds(10.0), SIM_START);
            let outcome = sim.run();
            let aborted =
                |one: &&evenkeel_core::sim::outcome::SimRecord| one.fate == SimRequestEnd::Aborted;
            let aborts = outcome.clients.iter().flatten().filter(aborted).count();
            assert!(aborts > 0, "no aborts at {load}");
            let between = |a: Cost, b: Cost| a.0.abs_diff(b.0);
            assert!(between(outcome.charged, outcome.metered) <= 1_000, "charged");
            assert!(between(outcome.metered, outcome.used) <= 1_000_000, "metered");
            let records = outcome.clients.iter().flatten();
            let sum = records.map(|one| one.charged).fold(Cost::ZERO, Cost::plus);
            assert_eq!(sum, outcome.charged);
            // The missing amount in the bucket is the sum of charges minus the refill since the
            // start.
            let missing = 1e5 - level(&outcome.limiter, 0, &crowd(load)[0], outcome.end);
            let refilled = outcome.end.since(SIM_START).as_secs_f64() * 0.001;
            let expected = 10.0 + outcome.charged.as_units() - refilled;
            near(missing, expected, 1e-6, "missing in the bucket");
        }
    });
}

fn charge(limiter: &Limiter, keys: &LimitKeys, cost: Nanos, now: Time) {
    let (_, ticket) = limiter.ask(keys, Cost::ZERO, now);
    limiter.settle(&ticket, Cost::cpu(cost), now);
}

/// A simulation with Tempomat's limits, in which the client `owing` has a debt from the start.
fn in_debt(clients: Vec<SimClient>, owing: usize, debt: f64) -> Sim {
    let scene = SimScene { clock: CpuClock::Wall, ..scene(tempomat(0.5), clients, 8.0, 1) };
    let sim = Sim::new(SimScene { length: seconds(4.0), ..scene });
    let owing = &sim_clients()[owing];
    charge(sim.limiter(), &sim.limiter().keys(owing), seconds(debt), SIM_START);
    sim
}

fn sim_clients() -> Vec<SimClient> {
    let client = |from: &str, agent: &str| SimClient {
        agent: agent.into(),
        until: seconds(0.1),
        ..looping(from, 1, RandomDuration::ZERO, millis(1_000))
    };
    vec![
        client("1.2.3.4", "crawler"),
        client("5.6.7.8", "human"),
        client("1.2.3.5", "human"),
        client("1.2.4.5", "human"),
        client("9.9.9.9", "crawler"),
    ]
}

fn wait_of(outcome: &SimOutcome, client: usize) -> f64 {
    outcome.clients[client][0].waited.as_secs_f64()
}

#[test]
fn t8_whoever_shares_nothing_with_a_client_in_debt_is_not_held() {
    let outcome = in_debt(sim_clients()[..2].to_vec(), 0, 31.0).run();
    near(wait_of(&outcome, 0), 3.0, 1e-6, "in debt");
    near(wait_of(&outcome, 1), 0.0, 0.0, "another");
}

/// T9 and T10: each class is charged in full, the longest wait counts, and networks add up.
#[test]
fn t9_t10_neighbours_share_their_networks_and_all_classes_are_charged() {
    let neighbour = sim_clients()[2].clone();
    let sim = in_debt(vec![neighbour.clone()], 0, 25.0);
    let outcome = sim.run();
    near(wait_of(&outcome, 0), 0.0, 0.0, "in credit everywhere");
    // Both charges count from the start; one second at the backend has refilled half a unit.
    let levels = [29.0 + 0.5, 4.0 + 0.5, 4.0 + 0.5, 119.0 + 0.5];
    for (limit, expected) in levels.into_iter().enumerate() {
        near(level(&outcome.limiter, limit, &neighbour, outcome.end), expected, 1e-6, "level");
    }
    let outcome = in_debt(vec![neighbour, sim_clients()[3].clone()], 0, 31.0).run();
    // One unit of debt, plus one for each response in order of arrival, at half a unit a second.
    // One second of the wait is spent at the backend.
    near(wait_of(&outcome, 0), 3.0, 1e-6, "its /24 and its /16 owe");
    near(wait_of(&outcome, 1), 5.0, 1e-6, "its /16 owes");
}

#[test]
fn t11_a_crawler_with_many_addresses_is_held_by_its_name_after_120_seconds() {
    let crawler = sim_clients()[4].clone();
    for (spent, held) in [(118.9, false), (121.0, true)] {
        let sim = in_debt(vec![crawler.clone()], 4, 0.0);
        // Cost caused from another address under the same user agent.
        let elsewhere = SimClient { address: address("77.1.1.1"), ..crawler.clone() };
        charge(sim.limiter(), &sim.limiter().keys(&elsewhere), seconds(spent), SIM_START);
        assert_eq!(wait_of(&sim.run(), 0) > 0.0, held, "after {spent}");
    }
}

/// Compares the generic cell rate algorithm with a naive token bucket in whole nano-tokens.
#[test]
fn a_rate_limit_refuses_exactly_and_a_refusal_charges_nothing() {
    for_seeds(|seed| {
        let mut client = looping("192.0.2.1", 1, RandomDuration::ZERO, millis(1));
        client.arrivals = Arrivals::Open { gap: RandomDuration::Exponential(millis(100)) };
        let limits = vec![
            rate_limit("second", ip(32, 64), "5/s", 5),
            rate_limit("hour", ip(16, 32), "1 per 3600s", 1_000_000),
            cpu_limit("cpu", KeyPart::All, 1e-6, 1e4),
        ];
        let outcome = Sim::new(scene(limits, vec![client.clone()], 4.0, seed)).run();
        let mut records = outcome.clients[0].clone();
        records.sort_by_key(|one| one.sent);
        let (mut tokens, mut last) = (5 * SECOND, Nanos::ZERO);
        let mut admitted = 0;
        for record in &records {
            tokens = (tokens + 5 * record.sent.minus(last).0).min(5 * SECOND);
            last = record.sent;
            let expected =
                if tokens >= SECOND { SimRequestEnd::Answered } else { SimRequestEnd::Refused };
            assert_eq!(record.fate, expected, "at {}", record.sent);
            if expected == SimRequestEnd::Answered {
                tokens -= SECOND;
                admitted += 1;
            }
        }
        assert!(admitted > 2_900 && records.len() > admitted + 1_000);
        let hour = 1e6 - level(&outcome.limiter, 1, &client, outcome.end);
        near(
            hour,
            admitted as f64 - outcome.end.since(SIM_START).as_secs_f64() / 3_600.0,
            0.01,
            "hour",
        );
        let cpu = 1e4 - level(&outcome.limiter, 2, &client, outcome.end);
        near(cpu, admitted as f64 * 0.001, 0.001, "cpu");
    });
}

/// A human who reads for half a second to a second and a half between pages of 2 ms.
fn human() -> SimClient {
    let think = RandomDuration::Between(millis(500), millis(1_500));
    SimClient { agent: "human".into(), ..looping("198.51.100.7", 1, think, millis(2)) }
}

fn default_limits(cpus: f64) -> Vec<Limit> {
    vec![
        cpu_limit("ip", ip(32, 64), 0.10 * cpus, 30.0),
        cpu_limit("net24", ip(24, 48), 0.25 * cpus, 30.0),
        cpu_limit("net16", ip(16, 32), 0.50 * cpus, 30.0),
    ]
}

/// A share of several processors: debt builds up, although each response alone would be paid for
/// when it ends.
#[test]
fn many_at_once_are_charged_although_each_alone_would_be_refilled_by_its_end() {
    for_seeds(|seed| {
        let client = looping("192.0.2.1", 16, RandomDuration::ZERO, millis(200));
        let limits = vec![cpu_limit("ip", ip(32, 64), 4.0, 30.0)];
        let outcome = Sim::new(scene(limits, vec![client], 16.0, seed)).run();
        near(late(&outcome, 0, 100.0).cpu, 4.0, 0.05, "CPU");
    });
}

/// A crawler with 32 connections on pages of 100 ms, and two processors.
#[test]
fn a_crawler_is_kept_to_its_share_and_a_person_does_not_notice_it() {
    for_seeds(|seed| {
        let crawler = looping("203.0.113.9", 32, RandomDuration::ZERO, millis(100));
        let run = |limits, clients| Sim::new(scene(limits, clients, 2.0, seed)).run();
        let calm = late(&run(default_limits(2.0), vec![human()]), 0, 120.0);
        let bare = late(&run(vec![], vec![human(), crawler.clone()]), 0, 120.0);
        let outcome = run(default_limits(2.0), vec![human(), crawler]);
        let kept = late(&outcome, 0, 120.0);
        let crawls = late(&outcome, 1, 120.0);
        let p95 = |figures: &SimMetrics| figures.latency(95.0).as_secs_f64() * 1e3;
        println!(
            "person's p95: calm {:.1} ms, unprotected {:.1} ms, protected {:.1} ms; crawler \
             {:.3} CPU-s/s, mean wait {}",
            p95(&calm),
            p95(&bare),
            p95(&kept),
            crawls.cpu,
            crawls.mean_wait
        );
        assert_eq!(kept.refused + kept.aborted, 0);
        assert!(p95(&kept) < 1.5 * p95(&calm), "{} ms", p95(&kept));
        assert!(p95(&bare) > 10.0 * p95(&calm), "{} ms", p95(&bare));
        near(crawls.cpu, 0.2, 0.01, "the crawler's share");
    });
}

#[test]
fn the_other_actions_keep_a_crawler_to_its_share_too() {
    for_seeds(|seed| {
        for action in [LimitAction::Delay, LimitAction::Reject] {
            let crawler = looping("203.0.113.9", 32, RandomDuration::ZERO, millis(100));
            let policy = LimiterPolicy { action, max_delay: seconds(30.0) };
            let clients = vec![human(), crawler];
            let scene = SimScene { policy, ..scene(default_limits(2.0), clients, 2.0, seed) };
            let outcome = Sim::new(scene).run();
            let crawls = late(&outcome, 1, 120.0);
            assert!(crawls.cpu < 0.25, "{} by {}", crawls.cpu, action.name());
            assert_eq!(late(&outcome, 0, 120.0).refused, 0);
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let scene = SimScene { length: seconds(30.0), ..scene(vec![], crowd(1.0), 2.0, seed) };
        Sim::new(scene).run().clients
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert_ne!(SimRandom::new(1, 0).bits(), SimRandom::new(2, 0).bits());
}

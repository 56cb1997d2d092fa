//! The acceptance criteria of the fair queue, on a virtual clock: a human beside crawlers of all
//! kinds, two processors shared equally, and default settings.
//! `cargo test --test protection -- --nocapture` prints the results.

mod deceit;
mod newcomers;
mod noise;
mod standing;
mod starts;
mod swarms;

use evenkeel_core::bucket::{Algorithm, debt::DebtBucket};
use evenkeel_core::condition::patterns::PathPatterns;
use evenkeel_core::condition::{Clause, Condition};
use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
use evenkeel_core::limiter::LimiterPolicy;
use evenkeel_core::meter::CpuClock;
use evenkeel_core::queue::standing::KnownClients;
use evenkeel_core::queue::{QueueSettings, WorkUnit};
use evenkeel_core::sim::backend::{SimBackend, SimScheduling};
use evenkeel_core::sim::client::{Arrivals, SimClient};
use evenkeel_core::sim::outcome::{SimMetrics, SimOutcome, SimRecord, SimRequestEnd};
use evenkeel_core::sim::random::RandomDuration;
use evenkeel_core::sim::{Sim, SimScene};
use evenkeel_core::units::{Cost, CpuShare, Nanos, Weight};
use std::net::{IpAddr, Ipv4Addr};

const CORES: f64 = 2.0;
const SCENE_SECONDS: u64 = 180;

fn millis(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

fn limit(name: &str, by: KeyPart, share: f64, burst: u64) -> Limit {
    let rate = CpuShare::new(share).and_then(|share| share.of(CORES)).expect("a rate");
    Limit {
        name: name.into(),
        by: vec![by],
        when: Condition::default(),
        unit: LimitUnit::Cpu,
        algorithm: Algorithm::Debt(DebtBucket::new(rate, Cost::cpu(Nanos::from_secs(burst)))),
        action: None,
        weight: Weight::ONE,
        keys_max: 10_000,
        shadow: false,
    }
}

/// The default limits, and with `agents` also one by user agent.
fn limits(agents: bool) -> Vec<Limit> {
    let ip = |v4, v6| KeyPart::Ip { v4, v6 };
    let mut limits = vec![
        limit("ip", ip(32, 64), 0.1, 30),
        limit("net24", ip(24, 48), 0.25, 30),
        limit("net16", ip(16, 32), 0.5, 30),
    ];
    limits.extend(agents.then(|| limit("agent", KeyPart::UserAgent, 0.1, 120)));
    limits
}

fn address(network: u8, subnet: u8, host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, network, subnet, host))
}

/// A human with two milliseconds of work about every half second.
fn human(at: IpAddr) -> SimClient {
    let gap = RandomDuration::Between(millis(400), millis(600));
    let mut human = SimClient::new(at, Arrivals::Open { gap }, RandomDuration::Fixed(millis(2)));
    (human.path, human.agent) = ("/light".into(), "browser".into());
    human
}

fn crawler(at: IpAddr, parallel: u32) -> SimClient {
    let arrivals = Arrivals::Closed { parallel, think: RandomDuration::ZERO };
    let mut crawler = SimClient::new(at, arrivals, RandomDuration::Fixed(millis(100)));
    (crawler.path, crawler.agent) = ("/heavy".into(), "crawler".into());
    crawler
}

/// The scenes are run twice: see `tests/protection_plain`.
fn known() -> KnownClients {
    match env!("CARGO_CRATE_NAME") {
        "protection_plain" => KnownClients::Off,
        _ => KnownClients::Auto { clients_max: 100_000 },
    }
}

fn queue() -> QueueSettings {
    QueueSettings {
        concurrency: 2,
        reserve: 4,
        len_max: 4_096,
        wait_max: Nanos::from_secs(30),
        known: known(),
        cpus_milli: (1e3 * CORES) as u64,
        unit: WorkUnit::CpuTime,
        workers: None,
    }
}

fn scene(clients: Vec<SimClient>) -> SimScene {
    SimScene {
        backend: SimBackend::new(CORES, 8, SimScheduling::Shared),
        clients,
        limits: limits(false),
        policy: LimiterPolicy { action: LimitAction::Queue, max_delay: Nanos::from_secs(30) },
        queue: Some(queue()),
        clock: CpuClock::Shared { cpus: CORES },
        abort_linger: Nanos::from_secs(5),
        length: Nanos::from_secs(SCENE_SECONDS),
        seed: 1,
    }
}

/// A swarm of 72 000 addresses with five requests an hour each, a third of them heavy, from the
/// fifth minute on; a hundred people who arrived before, and a hundred who arrive during the
/// attack.
fn swarm(known: KnownClients) -> SimScene {
    let person = |n: u8, from: u64| {
        let mut one = human(address(200, n, 1));
        one.arrivals =
            Arrivals::Open { gap: RandomDuration::Between(millis(1_000), millis(3_000)) };
        one.from = Nanos::from_secs(from);
        one
    };
    let people = (0..100).map(|n| person(n, 0));
    let visitors = (0..100_u8).map(|n| person(100 + n, 300 + u64::from(n)));
    let swarm = (0..72_000_u32).map(|n| {
        let at = address((n / 600) as u8, (n % 200) as u8, (n / 200 % 250) as u8);
        let mut one = if n % 3 == 0 { crawler(at, 1) } else { human(at) };
        one.arrivals = Arrivals::Open { gap: RandomDuration::Exponential(Nanos::from_secs(720)) };
        one.from = Nanos::from_secs(300);
        one
    });
    let mut limits = limits(false);
    limits.iter_mut().for_each(|limit| limit.keys_max = 100_000);
    let clients = people.chain(visitors).chain(swarm).collect();
    let queue = Some(QueueSettings { known, ..queue() });
    SimScene { limits, queue, length: Nanos::from_secs(500), ..scene(clients) }
}

/// Runs a scene whose first `humans` clients are human, and prints a line of results.
fn run(name: &str, humans: usize, scene: SimScene) -> SceneRun {
    report(name, SceneRun { outcome: Sim::new(scene).run(), humans })
}

fn report(name: &str, ran: SceneRun) -> SceneRun {
    let all = ran.humans();
    let ms = |percent| all.latency(percent).as_secs_f64() * 1e3;
    println!(
        "{name:34} human p50 {:6.1} p95 {:6.1} worst {:6.1} ms, refused {}; others {:.3} CPU-s/s",
        ms(50.0),
        ms(95.0),
        ms(100.0),
        all.refused,
        ran.others(),
    );
    ran
}

struct SceneRun {
    outcome: SimOutcome,
    humans: usize,
}

impl SceneRun {
    /// Metrics of all humans over the whole time, including the crawler's burst.
    fn humans(&self) -> SimMetrics {
        self.figures(0..self.humans)
    }

    /// Metrics of some clients together.
    fn figures(&self, clients: impl Iterator<Item = usize>) -> SimMetrics {
        let mut records: Vec<_> =
            clients.flat_map(|client| self.outcome.clients[client].clone()).collect();
        records.sort_unstable_by_key(|record| record.ended);
        let limiter = evenkeel_core::limiter::Limiter::new(
            LimiterPolicy { action: LimitAction::Queue, max_delay: Nanos::ZERO },
            vec![],
            evenkeel_core::key::KeySeed([7; 16]),
        );
        let outcome = SimOutcome {
            clients: vec![records],
            charged: Cost::ZERO,
            metered: Cost::ZERO,
            used: Cost::ZERO,
            end: self.outcome.end,
            limiter,
        };
        outcome.figures(0, Nanos::ZERO, Nanos(u64::MAX))
    }

    fn cpu(&self, client: usize) -> f64 {
        self.outcome.figures(client, Nanos::from_secs(1), Nanos::from_secs(SCENE_SECONDS)).cpu
    }

    /// CPU-seconds per second of all clients that are not human.
    fn others(&self) -> f64 {
        (self.humans..self.outcome.clients.len()).map(|client| self.cpu(client)).sum()
    }

    /// Checks the criteria: the humans' latency is within three times that of the calm run, no
    /// human is refused, and the other clients get 98 % of the remaining capacity (all that the
    /// humans do not use).
    fn holds(&self, calm: &SceneRun) {
        let (busy, quiet) = (self.humans(), calm.humans());
        assert!(busy.latency(95.0).0 <= 3 * quiet.latency(95.0).0, "{}", busy.latency(95.0));
        assert_eq!((busy.refused, busy.aborted), (0, 0));
        assert_eq!(busy.answered, quiet.answered);
        let left = CORES - (0..self.humans).map(|human| calm.cpu(human)).sum::<f64>();
        assert!(self.others() >= 0.98 * left, "{} of {left}", self.others());
    }
}

fn calm() -> SceneRun {
    run("nobody else", 1, scene(vec![human(address(1, 1, 1))]))
}

/// A human, and crawlers at these addresses, each with its number of connections.
fn beside(crawlers: impl IntoIterator<Item = (IpAddr, u32)>) -> Vec<SimClient> {
    let crawlers = crawlers.into_iter().map(|(at, parallel)| crawler(at, parallel));
    std::iter::once(human(address(1, 1, 1))).chain(crawlers).collect()
}

#[test]
fn without_a_queue_the_human_waits_behind_all() {
    let clients = beside([(address(2, 2, 2), 32)]);
    let open = SimScene { queue: None, limits: vec![], ..scene(clients) };
    let open = SimScene { backend: SimBackend::new(CORES, 2, SimScheduling::Shared), ..open };
    let ran = run("no throttle, 2 workers", 1, open);
    assert!(ran.humans().latency(50.0) > millis(1_400));
}

#[test]
fn one_crawler_with_32_connections() {
    let ran = run("crawler", 1, scene(beside([(address(2, 2, 2), 32)])));
    ran.holds(&calm());
    assert!(ran.humans().latency(95.0) <= millis(3));
}

#[test]
fn a_crawler_in_eight_networks() {
    let crawlers = (0..8).map(|n| (address(20 + n, 2, 2), 4));
    run("crawler in 8 networks", 1, scene(beside(crawlers))).holds(&calm());
}

#[test]
fn a_crawler_with_fifty_addresses_of_a_network() {
    let crawlers = (0..50).map(|n| (address(2, 2, n), 1));
    run("crawler with 50 addresses of a /24", 1, scene(beside(crawlers))).holds(&calm());
}

/// The human has the same user agent as one of the crawlers.
#[test]
fn a_crawler_with_five_user_agents() {
    let mut clients = beside((0..5).map(|_| (address(2, 2, 2), 7)));
    for (n, client) in clients.iter_mut().enumerate() {
        client.agent = format!("browser {}", n % 5);
    }
    let limits = limits(true);
    run("crawler with 5 user agents", 1, SimScene { limits, ..scene(clients) }).holds(&calm());
}

#[test]
fn a_backend_of_two_workers() {
    let backend = || SimBackend::new(CORES, 2, SimScheduling::Shared);
    let clients = beside([(address(2, 2, 2), 32)]);
    let ran = run("crawler, 2 workers", 1, SimScene { backend: backend(), ..scene(clients) });
    assert!(ran.humans().latency(100.0) <= millis(102), "never longer than one heavy request");
    assert_eq!(ran.humans().refused, 0);
    assert!(ran.others() >= 0.98 * (CORES - 0.004));
}

/// The queue finds the concurrency of the backend while it is under attack from the start.
#[test]
fn nothing_is_known_of_the_backend() {
    for workers in [2, 8, 64] {
        let clients = beside([(address(2, 2, 2), 32)]);
        let backend = SimBackend::new(CORES, workers, SimScheduling::Shared);
        let sim = Sim::new(SimScene { backend, ..scene(clients) }).with_auto_concurrency(CORES);
        let ran = report(
            &format!("crawler, auto, {workers} workers"),
            SceneRun { outcome: sim.run(), humans: 1 },
        );
        let later = ran.outcome.figures(0, millis(30_000), Nanos(u64::MAX));
        println!("{:34} after half a minute p95 {}", "", later.latency(95.0));
        // While the concurrency is being found, more than two requests may be in flight to two
        // workers. Then one of them waits inside the backend, where the queue cannot give it its
        // turn.
        let worst = if workers == 2 { millis(250) } else { millis(6) };
        let usual = if workers == 2 { millis(110) } else { millis(6) };
        assert!(ran.humans().latency(95.0) <= worst, "{}", ran.humans().latency(95.0));
        assert!(later.latency(95.0) <= usual, "{}", later.latency(95.0));
        assert_eq!((ran.humans().refused, ran.humans().aborted), (0, 0));
        assert!(ran.others() >= 0.98 * (CORES - 0.004), "{}", ran.others());
    }
}

/// One processor and a backend of few workers. At the start the capacity of the backend and the
/// costs of all routes are unknown. The crawlers come first, from one address or fifty.
#[test]
fn a_small_backend_of_which_nothing_is_known() {
    for workers in [2, 3, 4] {
        for swarm in [false, true] {
            let (addresses, parallel) = if swarm { (50, 1) } else { (1, 32) };
            let mut clients = beside((0..addresses).map(|n| (address(2, 2, n), parallel)));
            clients[0].from = millis(1_500);
            let alone = SimScene {
                backend: SimBackend::new(1.0, workers, SimScheduling::Shared),
                clock: CpuClock::Shared { cpus: 1.0 },
                queue: Some(QueueSettings {
                    concurrency: 1,
                    reserve: 2,
                    cpus_milli: 1_000,
                    ..queue()
                }),
                ..scene(clients)
            };
            let sim = Sim::new(alone).with_auto_concurrency(1.0);
            let name = format!("{addresses} crawlers, auto, {workers} workers, 1 CPU");
            let ran = report(&name, SceneRun { outcome: sim.run(), humans: 1 });
            // The queue sometimes probes whether more requests at once would be better. With more
            // than one heavy request at two workers, a light one waits for the end of either.
            let first = ran.outcome.figures(0, millis(1_500), millis(12_500));
            assert!(first.latency(85.0) <= millis(6), "{}", first.latency(85.0));
            let (most, all) = (ran.humans().latency(95.0), ran.humans().latency(100.0));
            assert!(most <= millis(6) && all <= millis(210), "{most} and {all}");
            let later = ran.outcome.figures(0, millis(15_000), millis(60_000));
            assert!(later.latency(95.0) <= millis(6), "{}", later.latency(95.0));
            assert_eq!((ran.humans().refused, ran.humans().aborted), (0, 0));
            assert!(ran.others() >= 0.98 * (1.0 - 0.004), "{}", ran.others());
        }
    }
}

#[test]
fn two_crawlers_with_32_and_4_connections() {
    let clients = beside([(address(2, 2, 2), 32), (address(3, 3, 3), 4)]);
    let ran = run("two crawlers", 1, scene(clients));
    ran.holds(&calm());
    let (many, few) = (ran.cpu(1), ran.cpu(2));
    println!("{:34} {many:.3} and {few:.3} CPU-s/s", "");
    assert!((many / few - 1.0).abs() < 0.1, "{many} and {few}");
}

/// A class with four times the weight gets four times the CPU while both classes have enough work,
/// in credit as well as in debt. It gets all CPU while the other class is idle.
#[test]
fn a_class_with_four_times_the_weight() {
    for (share, burst) in [(1.0, 80_000), (0.001, 1)] {
        let mut clients = vec![crawler(address(2, 2, 2), 8), crawler(address(3, 3, 3), 8)];
        clients[1].path = "/members".into();
        clients[0].until = Nanos::from_secs(SCENE_SECONDS / 2);
        let members =
            Condition::from(Clause::Path(PathPatterns::new(["/members"]).expect("a path")));
        let class = limit("members", KeyPart::All, 1.0, 80_000);
        let class = Limit { when: members, weight: Weight::new(4_000), ..class };
        let limits = vec![limit("ip", KeyPart::Ip { v4: 32, v6: 64 }, share, burst), class];
        let ran =
            SceneRun { outcome: Sim::new(SimScene { limits, ..scene(clients) }).run(), humans: 0 };
        let cpu = |client, from, until| {
            ran.outcome.figures(client, Nanos::from_secs(from), Nanos::from_secs(until)).cpu
        };
        let (one, four) = (cpu(0, 5, SCENE_SECONDS / 2), cpu(1, 5, SCENE_SECONDS / 2));
        println!("{:34} {one:.3} and {four:.3} CPU-s/s", "weights of 1 and 4");
        assert!((four / one - 4.0).abs() < 0.2, "{one} and {four}");
        let alone = cpu(1, SCENE_SECONDS / 2 + 5, SCENE_SECONDS);
        assert!(alone >= 0.98 * CORES, "{alone}");
    }
}

/// A human in the network of a crawler with 49 addresses waits for none of the crawler's requests
/// once their cost is known. The 392 requests of the first moment have an unknown cost, and take
/// twenty seconds to process.
#[test]
fn a_human_in_the_crawlers_network() {
    let mut clients = beside((0..49).map(|n| (address(2, 2, n), 8)));
    clients[0].address = address(2, 2, 200);
    let ran = run("human in the crawler's /24", 1, scene(clients));
    let later = ran.outcome.figures(0, millis(30_000), Nanos(u64::MAX));
    println!("{:34} after half a minute p95 {}", "", later.latency(95.0));
    assert!(ran.humans().latency(50.0) <= Nanos(3 * millis(2).0));
    assert!(later.latency(95.0) <= Nanos(3 * millis(2).0), "{}", later.latency(95.0));
    assert!(later.latency(100.0) <= millis(102), "never longer than one heavy request");
    assert_eq!(ran.humans().refused, 0);
    assert!(ran.others() >= 0.98 * (CORES - 0.004), "{}", ran.others());
}

/// 200 humans, of which some have the crawler's user agent.
#[test]
fn two_hundred_humans_and_a_shared_user_agent() {
    let people = || {
        (0..200_u8).map(|n| {
            let mut one = human(address(30 + n % 100, n, 1));
            one.agent = if n % 10 < 3 { "crawler".into() } else { format!("browser {n}") };
            one.from = millis(u64::from(n) * 7);
            one
        })
    };
    let calm =
        run("200 humans", 200, SimScene { limits: limits(true), ..scene(people().collect()) });
    let clients = people().chain([crawler(address(2, 2, 2), 32)]).collect();
    let shared = SimScene { limits: limits(true), ..scene(clients) };
    let ran = run("200 humans, a crawler's agent", 200, shared);
    let own = |ran: &SceneRun| ran.figures((0..200).filter(|n| n % 10 >= 3)).latency(95.0);
    let borrowed = ran.figures((0..200).filter(|n| n % 10 < 3)).latency(95.0);
    println!("{:34} own agent p95 {}, the crawler's {borrowed}", "", own(&ran));
    let bound = Nanos(3 * calm.humans().latency(95.0).0);
    assert!(ran.humans().latency(95.0) <= bound, "{}", ran.humans().latency(95.0));
    assert!(own(&ran).0 <= 3 * own(&calm).0, "{}", own(&ran));
    assert_eq!(ran.humans().refused, 0);
    assert!(ran.others() >= 0.98 * (CORES - 0.8), "{}", ran.others());
}

/// The swarm does not slow down people, whether they are established or new, and whether new
/// clients share one turn or each has its own.
#[test]
fn a_swarm_of_72_000_addresses() {
    let clients_max = 100_000;
    let always = KnownClients::Always { clients_max };
    for known in [KnownClients::Off, KnownClients::Auto { clients_max }, always] {
        let ran = SceneRun { outcome: Sim::new(swarm(known)).run(), humans: 200 };
        let (people, visitors) = (ran.figures(0..100), ran.figures(100..200));
        for (who, all) in [("known", &people), ("new", &visitors)] {
            let (p95, worst) = (all.latency(95.0), all.latency(100.0));
            let (answered, refused) = (all.answered, all.refused);
            println!(
                "swarm, known {known:?}, {who:5} p95 {p95} worst {worst}, \
                 {answered} answered, {refused} refused"
            );
        }
        assert_eq!((people.refused, visitors.refused), (0, 0));
        let bound = Nanos(3 * millis(2).0);
        assert!(people.latency(95.0) <= bound && visitors.latency(95.0) <= bound);
    }
}

//! Swarms on one processor: with many workers and with few; pages with equal or different costs; a
//! human who shares a user agent or a network with the swarm.

use super::*;

/// A human who sends five requests a second.
fn often(address: IpAddr, agent: &str) -> SimClient {
    let mut one = human(address);
    one.arrivals = Arrivals::Open { gap: RandomDuration::Between(millis(180), millis(220)) };
    one.agent = agent.into();
    one
}

/// A separate path for each client, without digits in its name.
fn page(n: u8) -> String {
    format!("/{}{}", char::from(b'a' + n / 25), char::from(b'a' + n % 25))
}

/// A disguise of the crawler, with the human beside it.
struct Disguise {
    name: &'static str,
    human: SimClient,
    crawlers: Vec<SimClient>,
    agents: bool,
}

fn net(n: u8) -> IpAddr {
    address(20 + n, 2, 2)
}

fn near(n: u8) -> IpAddr {
    address(2, 2, n)
}

/// One address of a swarm. Its pages cost 40 to 334 ms, and the cost of each page is constant.
fn uneven(n: u8, at: IpAddr) -> SimClient {
    let demand = RandomDuration::Fixed(millis(40 + 6 * u64::from(n)));
    SimClient { path: page(n), demand, ..crawler(at, 1) }
}

/// A client with a page of varying cost.
fn noisy(at: IpAddr) -> SimClient {
    SimClient { demand: RandomDuration::Between(millis(50), millis(150)), ..crawler(at, 1) }
}

fn agent(n: u8) -> SimClient {
    SimClient { agent: format!("agent {}", n % 5), ..crawler(net(n), 1) }
}

fn disguises() -> Vec<Disguise> {
    let me = || often(address(1, 1, 1), "browser");
    let plain = |name, crawlers| Disguise { name, human: me(), crawlers, agents: false };
    let fifty = |one: &dyn Fn(u8) -> SimClient| (0..50).map(one).collect::<Vec<SimClient>>();
    let masked = often(address(1, 1, 1), "agent 0");
    let neighbour = || often(near(200), "browser");
    vec![
        plain("one address", vec![crawler(near(2), 32)]),
        plain("8 networks", (0..8).map(|n| crawler(net(n), 4)).collect()),
        plain("50 addresses of a /24", fifty(&|n| crawler(near(n), 1))),
        plain("the same, all unlike", fifty(&|n| uneven(n, near(n)))),
        plain("50 networks, all unlike", fifty(&|n| uneven(n, net(n)))),
        plain("50 addresses, never alike", fifty(&|n| noisy(near(n)))),
        Disguise { agents: true, ..plain("5 agents", fifty(&agent)) },
        Disguise { agents: true, human: masked, ..plain("and the human's", fifty(&agent)) },
        Disguise { human: neighbour(), ..plain("neighbour", vec![crawler(near(2), 32)]) },
        Disguise {
            human: neighbour(),
            ..plain("neighbour of 50", fifty(&|n| crawler(near(n), 1)))
        },
    ]
}

fn on_one_processor(disguise: &Disguise, workers: usize, concurrency: usize) -> SceneRun {
    let mut limits = limits(disguise.agents);
    for limit in &mut limits {
        let (share, burst) = match &*limit.name {
            "ip" => (0.1, 30),
            "net24" => (0.25, 30),
            "net16" => (0.5, 30),
            _ => (0.1, 120),
        };
        let rate = CpuShare::new(share).and_then(|share| share.of(1.0)).expect("a rate");
        let burst = Cost::cpu(Nanos::from_secs(burst));
        limit.algorithm = Algorithm::Debt(DebtBucket::new(rate, burst).capped(burst));
    }
    let clients = std::iter::once(&disguise.human).chain(&disguise.crawlers).cloned().collect();
    let scene = SimScene {
        backend: SimBackend::new(1.0, workers, SimScheduling::Shared),
        limits,
        clock: CpuClock::Shared { cpus: 1.0 },
        queue: Some(QueueSettings { concurrency, reserve: 2, cpus_milli: 1_000, ..queue() }),
        ..scene(clients)
    };
    SceneRun { outcome: Sim::new(scene).run(), humans: 1 }
}

/// The human's 95th percentile in milliseconds, from the second `from` on. By then all requests
/// with an unknown cost at the start have been processed.
fn p95(ran: &SceneRun, from: u64) -> f64 {
    let later = ran.outcome.figures(0, Nanos::from_secs(from), Nanos(u64::MAX));
    later.latency(95.0).as_secs_f64() * 1e3
}

/// `bound` is the upper bound of the human's 95th percentile in milliseconds; without a swarm it is
/// 2.
fn hold(workers: usize, concurrency: usize, bound: f64) {
    for disguise in disguises() {
        let ran = on_one_processor(&disguise, workers, concurrency);
        let (later, cpu) = (p95(&ran, 12), ran.others());
        let name = disguise.name;
        println!("{workers} workers, {concurrency} slots, {name:26} p95 {later:5.1} ms, {cpu:.3}");
        assert!(later <= bound, "{name}: {later}");
        assert_eq!((ran.humans().refused, ran.humans().aborted), (0, 0), "{name}");
        assert!(cpu >= 0.98 * (1.0 - 0.01), "{name}: {cpu}");
    }
}

/// With two slots on one processor, light requests run at a third of their speed at best, and
/// cheaper pages of a swarm may use one of the reserved slots.
#[test]
fn swarms_before_eight_workers() {
    hold(8, 1, 6.0);
    hold(8, 2, 8.0);
}

/// The backend accepts two requests, and both slots are for all clients. No slot is left for light
/// requests, which wait for one of two heavy requests to end. At half speed this takes 200 ms, or
/// 668 ms for the most expensive of the different pages. A shorter wait needs one slot less: the
/// queue cannot interrupt running requests.
#[test]
fn swarms_before_two_workers() {
    hold(2, 2, 330.0);
}

/// The first seconds after a start without learned costs. The human's first page waits and the
/// later ones do not, although thirty of the crawler's requests that were estimated as light still
/// wait.
#[test]
fn the_first_seconds() {
    let disguises = disguises();
    for disguise in [&disguises[0], &disguises[1], &disguises[8]] {
        let ran = on_one_processor(disguise, 8, 2);
        let early = ran.outcome.figures(0, Nanos::from_secs(1), Nanos::from_secs(10));
        println!("the first seconds, {:26} p95 {}", disguise.name, early.latency(95.0));
        assert!(early.latency(95.0) <= millis(7), "{}", early.latency(95.0));
    }
}

/// The queue also finds the number of requests that the backend accepts. With two workers on one
/// processor this is one heavy and one light request.
#[test]
fn two_workers_of_which_nothing_is_known() {
    let disguises = disguises();
    let disguise = &disguises[0];
    let clients = std::iter::once(&disguise.human).chain(&disguise.crawlers).cloned().collect();
    let sim = Sim::new(SimScene {
        backend: SimBackend::new(1.0, 2, SimScheduling::Shared),
        clock: CpuClock::Shared { cpus: 1.0 },
        queue: Some(QueueSettings { reserve: 2, cpus_milli: 1_000, ..queue() }),
        ..scene(clients)
    });
    let ran = SceneRun { outcome: sim.with_auto_concurrency(1.0).run(), humans: 1 };
    let settled = ran.outcome.figures(0, Nanos::from_secs(12), Nanos::from_secs(60));
    println!("auto, two workers, {} p95 {}", disguise.name, settled.latency(95.0));
    assert!(settled.latency(95.0) <= millis(6), "{}", settled.latency(95.0));
}

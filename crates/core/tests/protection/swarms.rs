//! Swarms on one processor: with workers to spare, and with hardly any; pages that all cost the
//! same, or each something else; a human who shares an agent or a network with them.

use super::*;

/// The human asks five times a second.
fn often(address: IpAddr, agent: &str) -> Client {
    let mut one = human(address);
    one.arrivals = Arrivals::Open { gap: Length::Between(millis(180), millis(220)) };
    one.agent = agent.into();
    one
}

/// A page of its own for each, with a name that is no number.
fn page(n: u8) -> String {
    format!("/{}{}", char::from(b'a' + n / 25), char::from(b'a' + n % 25))
}

/// A disguise of the crawler, and who the human is then.
struct Disguise {
    name: &'static str,
    human: Client,
    crawlers: Vec<Client>,
    agents: bool,
}

fn net(n: u8) -> IpAddr {
    address(20 + n, 2, 2)
}

fn near(n: u8) -> IpAddr {
    address(2, 2, n)
}

/// One address of a swarm whose pages cost 40 to 334 ms, each always the same.
fn uneven(n: u8, at: IpAddr) -> Client {
    let demand = Length::Fixed(millis(40 + 6 * u64::from(n)));
    Client { path: page(n), demand, ..crawler(at, 1) }
}

/// One whose page costs something else each time.
fn noisy(at: IpAddr) -> Client {
    Client { demand: Length::Between(millis(50), millis(150)), ..crawler(at, 1) }
}

fn agent(n: u8) -> Client {
    Client { agent: format!("agent {}", n % 5), ..crawler(net(n), 1) }
}

fn disguises() -> Vec<Disguise> {
    let me = || often(address(1, 1, 1), "browser");
    let plain = |name, crawlers| Disguise { name, human: me(), crawlers, agents: false };
    let fifty = |one: &dyn Fn(u8) -> Client| (0..50).map(one).collect::<Vec<Client>>();
    let masked = often(address(1, 1, 1), "agent 0");
    let neighbour = often(near(200), "browser");
    vec![
        plain("one address", vec![crawler(near(2), 32)]),
        plain("8 networks", (0..8).map(|n| crawler(net(n), 4)).collect()),
        plain("50 addresses of a /24", fifty(&|n| crawler(near(n), 1))),
        plain("the same, all unlike", fifty(&|n| uneven(n, near(n)))),
        plain("50 networks, all unlike", fifty(&|n| uneven(n, net(n)))),
        plain("50 addresses, never alike", fifty(&|n| noisy(near(n)))),
        Disguise { agents: true, ..plain("5 agents", fifty(&agent)) },
        Disguise { agents: true, human: masked, ..plain("and the human's", fifty(&agent)) },
        Disguise { human: neighbour, ..plain("neighbour", vec![crawler(near(2), 32)]) },
    ]
}

fn on_one_processor(disguise: &Disguise, workers: usize, concurrency: usize) -> Ran {
    let mut limits = limits(disguise.agents);
    for limit in &mut limits {
        let (share, burst) = match &*limit.name {
            "ip" => (0.1, 30),
            "net24" => (0.25, 30),
            "net16" => (0.5, 30),
            _ => (0.1, 120),
        };
        let rate = Share::new(share).and_then(|share| share.of(1.0)).expect("a rate");
        let burst = Cost::cpu(Nanos::from_secs(burst));
        limit.algorithm = Algorithm::Debt(Debt::new(rate, burst).capped(burst));
    }
    let clients = std::iter::once(&disguise.human).chain(&disguise.crawlers).cloned().collect();
    let scene = Scene {
        backend: Backend::new(1.0, workers, Order::Shared),
        limits,
        clock: Clock::Shared { cpus: 1.0 },
        queue: Some(Settings { concurrency, reserve: 2, ..queue() }),
        ..scene(clients)
    };
    Ran { outcome: Sim::new(scene).run(), humans: 1 }
}

/// The human's 95th percentile from then on, when all that was guessed at first has been worked
/// off, in milliseconds.
fn p95(ran: &Ran, from: u64) -> f64 {
    let later = ran.outcome.figures(0, Nanos::from_secs(from), Nanos(u64::MAX));
    later.latency(95.0).as_secs_f64() * 1e3
}

/// `bound`: for the human's 95th percentile, in milliseconds; calm it is 2.
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

/// Two at once on one processor, so what is light runs at a third of its speed at best; and a
/// swarm's smaller pages may have one of the reserved slots.
#[test]
fn swarms_before_eight_workers() {
    hold(8, 1, 6.0);
    hold(8, 2, 8.0);
}

/// The backend takes in two, and both slots are for whoever comes: it has nothing left for those
/// that are light, who wait for one of two heavy requests to end. At half speed that is 200 ms, or
/// 668 for the largest of those that are all unlike. Less is possible only with a slot less: the
/// queue cannot send away what runs.
#[test]
fn swarms_before_two_workers() {
    hold(2, 2, 330.0);
}

/// The first seconds after a start, of which nothing was known: the human's first page waits, what
/// comes then does not, though thirty requests of the crawler still wait that were thought light.
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

/// How many it takes in is found out, too. Before two workers on one processor that is one heavy
/// request and a light one.
#[test]
fn two_workers_of_which_nothing_is_known() {
    let disguises = disguises();
    let disguise = &disguises[0];
    let clients = std::iter::once(&disguise.human).chain(&disguise.crawlers).cloned().collect();
    let sim = Sim::new(Scene {
        backend: Backend::new(1.0, 2, Order::Shared),
        clock: Clock::Shared { cpus: 1.0 },
        queue: Some(Settings { reserve: 2, ..queue() }),
        ..scene(clients)
    });
    let ran = Ran { outcome: sim.with_found_concurrency(1.0).run(), humans: 1 };
    let settled = ran.outcome.figures(0, Nanos::from_secs(12), Nanos::from_secs(60));
    println!("auto, two workers, {} p95 {}", disguise.name, settled.latency(95.0));
    assert!(settled.latency(95.0) <= millis(6), "{}", settled.latency(95.0));
}

//! A million addresses with one request each, before the default limits: what the clients that were
//! here owe, and that they were here, is not forgotten, and the memory stays in its bounds.
//!
//! All requests come at the same moment, so no debt is paid while they come. Memory is that of the
//! process, so there is one test in this file.

use evenkeel_config::settings::ProxySettings;
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::key::KeySeed;
use evenkeel_core::units::Time;
use evenkeel_engine::view::EngineView;
use evenkeel_engine::{AskOutcome, Engine, EngineLane, QueueAdmission};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// In credit and in debt: the burst is 30 s.
const REGULARS: u8 = 200;
/// The upper bound for the tables of the default limits, the names and all else.
const BYTES_MAX: u64 = 100_000_000;

struct Visitor(IpAddr);

impl RequestAttributes for Visitor {
    fn address(&self) -> IpAddr {
        self.0
    }

    fn method(&self) -> &'static str {
        "GET"
    }

    fn path(&self) -> &'static str {
        "/"
    }

    fn vhost(&self) -> &'static str {
        ""
    }

    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

/// Each in a network of its own.
fn regular(n: u8) -> Visitor {
    Visitor(IpAddr::from([10, n, 0, 1]))
}

/// Spread over all networks but those of the regulars; every fourth has IPv6. No two are equal.
fn stranger(n: u32) -> Visitor {
    let mixed = n.wrapping_mul(0x9e37_79b1);
    match mixed.to_be_bytes() {
        [a, b, c, d] if n.is_multiple_of(4) => {
            let network = [0x2001_u16, u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]), 1];
            let [p, q, r, s] = network;
            Visitor(IpAddr::V6(Ipv6Addr::new(p, q, r, s, 0, 0, 0, 1)))
        }
        [10, b, c, d] => Visitor(IpAddr::from([11, b, c, d])),
        bytes => Visitor(IpAddr::from(bytes)),
    }
}

/// The proxy section of an empty configuration, with room for `keys` keys in each limit.
fn engine(keys: usize) -> Arc<Engine> {
    let text = format!(
        "state: {{keys_max: {keys}}}\nproxy: {{cost: 'header:x-cost', queue: {{known: auto}}}}"
    );
    let config = evenkeel_config::parse("t.yaml", text.as_bytes(), 4.0).expect("good");
    let proxy: ProxySettings = config.settings.proxy.expect("open");
    let clock = Clock::start();
    let watch = Arc::new(Watch::new(clock.now()));
    Engine::new(&proxy, 2, KeySeed([7; 16]), clock, watch)
}

fn serve(lane: &EngineLane, visitor: &Visitor, cost: &str) {
    let AskOutcome::Pass(mut charge) = lane.ask(visitor) else { panic!("nothing is refused") };
    assert!(matches!(charge.enter(), QueueAdmission::Room), "the backend is idle");
    charge.work();
    charge.head(Some(cost.as_bytes()));
}

/// The level of a regular under each limit.
fn levels(engine: &Engine, n: u8, now: Time) -> Vec<Option<i64>> {
    let limiter = engine.held();
    let keys = limiter.keys(&regular(n));
    let standing = keys.as_slice().iter();
    standing.map(|key| limiter.standing_of(key.limit.into(), key.hash, now).level).collect()
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

/// Lets `strangers` come. Returns the growth of the process in bytes.
fn survive(keys: usize, strangers: u32) -> u64 {
    let before = resident();
    let engine = engine(keys);
    let now = engine.clock().now();
    let lanes = [engine.lane(0), engine.lane(1)];
    lanes.iter().for_each(|lane| lane.stand_at(now));
    for n in 0..REGULARS {
        // From the cost of a stranger's page up to a debt.
        serve(&lanes[0], &regular(n), &format!("{}ms", 30 + u32::from(n) * 300));
        serve(&lanes[0], &regular(n), "1ms");
    }
    let was: Vec<_> = (0..REGULARS).map(|n| levels(&engine, n, now)).collect();
    std::thread::scope(|scope| {
        for (first, lane) in (0..).zip(&lanes) {
            let each = (first..strangers).step_by(lanes.len());
            scope.spawn(|| each.for_each(|n| serve(lane, &stranger(n), "30ms")));
        }
    });
    for (n, was) in (0..REGULARS).zip(was) {
        assert!(was.iter().all(Option::is_some));
        assert_eq!(levels(&engine, n, now), was, "regular {n} with room for {keys} keys");
    }
    let mut regulars = 0;
    let history = engine.client_history().expect("clients are remembered");
    // The low bits are the number of requests.
    history.for_each(now, |_, state| regulars += u8::from(state[1] & 0xf_ffff == 2));
    assert_eq!(regulars, REGULARS, "of those that were served twice");
    resident().saturating_sub(before)
}

#[test]
fn a_million_strangers_make_no_regular_forgotten_and_take_little_memory() {
    // The least and the greatest default.
    let least = survive(65_536, 200_000);
    let most = survive(1_048_576, 1_000_000);
    println!("the process grew by {least} and {most} bytes");
    assert!(least < BYTES_MAX && most < BYTES_MAX, "{least} and {most} bytes");
}

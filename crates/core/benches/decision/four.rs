//! The whole decision: four limits with a million keys each, asked and settled.

use super::super::{Dice, quickest};
use super::peers::Clock;
use core::net::{IpAddr, Ipv6Addr};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::condition::Condition;
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
use evenkeel_core::limiter::{Limiter, LimiterPolicy};
use evenkeel_core::units::{Cost, Nanos, Rate, Time, Weight};
use std::hint::black_box;
use std::time::Instant;

const KEYS: u64 = 1_000_000;
const ROUNDS: usize = 15;
const REQUESTS: u64 = 100_000;
const NAMES: [&str; 3] = ["x-b", "x-c", "x-d"];

/// A request with four keys of 16 bytes.
pub struct Request {
    address: Ipv6Addr,
    headers: [[u8; 16]; 3],
}

impl Request {
    pub fn address(key: u64) -> Request {
        Request::of(&[key, 0, 0, 0])
    }

    fn of(keys: &[u64; 4]) -> Request {
        let bytes = |key: u64| (u128::from(key) << 64 | 0x2001_0db8).to_be_bytes();
        let headers = [bytes(keys[1]), bytes(keys[2]), bytes(keys[3])];
        Request { address: Ipv6Addr::from(bytes(keys[0])), headers }
    }
}

impl RequestAttributes for Request {
    fn address(&self) -> IpAddr {
        IpAddr::V6(self.address)
    }
    fn method(&self) -> &str {
        "GET"
    }
    fn path(&self) -> &str {
        "/"
    }
    fn vhost(&self) -> &str {
        ""
    }
    fn header(&self, name: &str) -> Option<&[u8]> {
        NAMES.iter().position(|known| *known == name).map(|at| &self.headers[at][..])
    }
}

fn limiter() -> Limiter {
    let parts = NAMES.iter().map(|name| KeyPart::Header((*name).into()));
    let parts = std::iter::once(KeyPart::Ip { v4: 32, v6: 128 }).chain(parts);
    let limits = parts.map(|part| limit(part, KEYS as usize));
    let policy = LimiterPolicy { action: LimitAction::Hold, max_delay: Nanos::from_secs(30) };
    Limiter::new(policy, limits.collect(), KeySeed([7; 16]))
}

/// A limit of CPU time, 0.1 s a second, with buckets for `keys_max` keys.
pub fn limit(part: KeyPart, keys_max: usize) -> Limit {
    Limit {
        name: format!("{part:?}").into(),
        by: vec![part],
        when: Condition::default(),
        unit: LimitUnit::Cpu,
        algorithm: Algorithm::Debt(DebtBucket::new(
            Rate::per(Cost(100_000_000), Nanos::from_secs(1)).expect("a rate"),
            Cost(3_000_000_000),
        )),
        action: Some(LimitAction::Hold),
        weight: Weight::ONE,
        keys_max,
        shadow: false,
    }
}

/// Makes the keys, reads the clock, asks with an estimate, and settles with the true cost.
fn request(limiter: &Limiter, clock: &Clock, dice: &mut Dice, settle: bool) {
    let request = Request::of(&std::array::from_fn(|_| dice.below(KEYS)));
    let keys = limiter.keys(&request);
    let now = Time(clock.now());
    let (verdict, ticket) = limiter.ask(&keys, Cost(1_000_000), now);
    black_box(verdict);
    if settle {
        limiter.settle(&ticket, Cost(1_200_000), now);
    }
    black_box(&ticket);
}

pub fn measure() {
    let (limiter, clock) = (limiter(), Clock::start());
    let mut dice = Dice::new(3);
    (0..3 * KEYS).for_each(|_| request(&limiter, &clock, &mut dice, true));
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        for (kind, times) in times.iter_mut().enumerate() {
            let started = Instant::now();
            for _ in 0..REQUESTS {
                if kind == 0 {
                    let request = Request::of(&std::array::from_fn(|_| dice.below(KEYS)));
                    black_box(limiter.keys(&request));
                    black_box(clock.now());
                } else {
                    request(&limiter, &clock, &mut dice, kind == 2);
                }
            }
            times.push(started.elapsed().as_nanos() as f64 / REQUESTS as f64);
        }
    }
    let [keys, ask, both] = times.map(quickest);
    println!("\nfour limits, a million keys each, ns per request, one thread");
    println!("keys and clock alone {keys:.0}, with ask {ask:.0}, with ask and settle {both:.0}");
}

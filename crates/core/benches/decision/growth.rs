//! How the cost of a decision grows: with the clients of one limit, and with the limits that apply.

use super::super::{Dice, quickest};
use super::four::limit;
use super::peers::Clock;
use core::net::{IpAddr, Ipv6Addr};
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::{KeyPart, LIMITS_MAX, LimitAction};
use evenkeel_core::limiter::{Limiter, LimiterPolicy};
use evenkeel_core::units::{Cost, Nanos, Time};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 9;
const REQUESTS: u64 = 100_000;
const CLIENTS: [usize; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const LIMITS: [usize; 4] = [1, 4, 16, LIMITS_MAX];

/// A request whose headers all have the same value.
struct Request([u8; 16]);

impl RequestAttributes for Request {
    fn address(&self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from(self.0))
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
    fn header(&self, _: &str) -> Option<&[u8]> {
        Some(&self.0)
    }
}

struct Contestant {
    limiter: Limiter,
    clients: u64,
    times: Vec<f64>,
}

impl Contestant {
    /// A limiter that knows each client.
    fn new(limits: usize, clients: usize, clock: &Clock) -> Contestant {
        let parts = (0..limits).map(|n| KeyPart::Header(format!("x-{n}").into()));
        let limits = parts.map(|part| limit(part, clients)).collect();
        let policy = LimiterPolicy { action: LimitAction::Hold, max_delay: Nanos::from_secs(30) };
        let limiter = Limiter::new(policy, limits, KeySeed([7; 16]));
        let contestant = Contestant { limiter, clients: clients as u64, times: Vec::new() };
        (0..contestant.clients).for_each(|client| contestant.request(client, clock));
        contestant
    }

    fn request(&self, client: u64, clock: &Clock) {
        let request = Request((u128::from(client) << 64 | 0x2001_0db8).to_be_bytes());
        let keys = self.limiter.keys(&request);
        let now = Time(clock.now());
        let (verdict, ticket) = self.limiter.ask(&keys, Cost(1_000_000), now);
        black_box(verdict);
        self.limiter.settle(&ticket, Cost(1_200_000), now);
    }

    fn round(&mut self, dice: &mut Dice, clock: &Clock) {
        let started = Instant::now();
        for _ in 0..REQUESTS {
            self.request(dice.below(self.clients), clock);
        }
        self.times.push(started.elapsed().as_nanos() as f64 / REQUESTS as f64);
    }
}

pub fn measure() {
    let clock = Clock::start();
    let with_clients = CLIENTS.map(|clients| Contestant::new(1, clients, &clock));
    row("clients of one limit", &CLIENTS, with_clients, &clock);
    let with_limits = LIMITS.map(|limits| Contestant::new(limits, 100_000, &clock));
    row("limits with 100 000 clients each", &LIMITS, with_limits, &clock);
}

fn row<const N: usize>(
    what: &str,
    sizes: &[usize; N],
    mut contestants: [Contestant; N],
    clock: &Clock,
) {
    let mut dice = Dice::new(3);
    for _ in 0..ROUNDS {
        contestants.iter_mut().for_each(|contestant| contestant.round(&mut dice, clock));
    }
    println!("\n{what}, ns per request with its settlement, one thread");
    for (size, contestant) in sizes.iter().zip(contestants) {
        println!("{size:>12} {:>8.0}", quickest(contestant.times));
    }
}

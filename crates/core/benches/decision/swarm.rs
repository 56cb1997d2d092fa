//! The cost of counting a stranger's request under pressure, and of finding whether it burns.

use super::super::quickest;
use evenkeel_core::key::KeyHash;
use evenkeel_core::swarm::{Properties, SwarmFinder};
use evenkeel_core::units::{Cost, Nanos, Time};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: u64 = 15;
const REQUESTS: u64 = 20_000;
const START: Time = Time(1_700_000_000_000_000_000);

/// A stranger of a swarm that shares four properties and differs in the other four.
fn stranger(number: u64) -> Properties {
    core::array::from_fn(|kind| {
        let of = if kind < 4 { 0 } else { number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8 };
        Some(KeyHash::from_bits((kind as u64 + 1) << 56 | of))
    })
}

pub fn measure() {
    println!("\na request of a stranger under pressure, ns");
    for per_second in [100, 1_000, 100_000] {
        let mut finder = SwarmFinder::default();
        let times = (0..ROUNDS).map(|round| {
            let started = Instant::now();
            for number in round * REQUESTS..(round + 1) * REQUESTS {
                let now = START.plus(Nanos(1_000_000_000 / per_second * number));
                let (client, cost) = (KeyHash::from_bits(number), Cost(1_000_000));
                black_box(finder.handle_request(false, client, &stranger(number), cost, now));
            }
            started.elapsed().as_nanos() as f64 / REQUESTS as f64
        });
        println!("{per_second:>8} a second{:>8.0}", quickest(times.collect()));
    }
}

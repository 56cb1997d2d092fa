//! The cost that a gatekeeper adds to a request: hash the identifier, look it up, decide.
//!
//! `cargo bench -p evenkeel-core --bench orders`. Rounds are interleaved; the fastest is shown,
//! because other work on the machine only adds time.

#![allow(missing_docs)]

use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::KeyPart;
use evenkeel_core::limiter::orders::GatekeeperOrders;
use evenkeel_core::units::{Nanos, Time};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 15;
const DECISIONS: usize = 500_000;
const NOW: Time = Time(1_790_000_000_000_000_000);

fn main() {
    let cases = [(100, 1_000), (60_000, 65_536), (0, 65_536), (900_000, 1_000_000)];
    let cases = cases.map(|(held, keys_max)| {
        let max_delay = Nanos::from_secs(5);
        let orders = GatekeeperOrders::new(
            "d".into(),
            vec![KeyPart::Tag],
            keys_max,
            max_delay,
            KeySeed([7; 16]),
        );
        for n in 0..held {
            orders.learn(orders.hash(&identifier(n)), NOW.plus(Nanos::from_secs(3)), NOW);
        }
        (held, keys_max, orders)
    });
    let mut quickest = [f64::MAX; 4];
    for _ in 0..ROUNDS {
        for ((held, _, orders), quickest) in cases.iter().zip(&mut quickest) {
            let start = Instant::now();
            let mut n = 1;
            for _ in 0..DECISIONS {
                // A random entry, in an order that the processor cannot predict.
                n = (n * 1_103_515_245 + 12_345) & 0x7fff_ffff;
                let name = identifier(n % (*held).max(1_000));
                let hash = orders.hash(black_box(&name));
                black_box(orders.decide(hash, black_box(NOW)));
            }
            let each = start.elapsed().as_nanos() as f64 / DECISIONS as f64;
            *quickest = quickest.min(each);
        }
    }
    println!("{:>12} {:>12} {:>14}", "held", "room for", "ns / decision");
    for ((held, keys_max, ..), ns) in cases.iter().zip(quickest) {
        println!("{held:>12} {keys_max:>12} {ns:>14.1}");
    }
}

/// As long as an address in text form.
fn identifier(n: usize) -> [u8; 12] {
    let mut name = *b"10.0.0.0/000";
    name[4..].copy_from_slice(&(n as u64).to_le_bytes());
    name
}

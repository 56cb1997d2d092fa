//! The cost of a decision: this table beside other ways to keep the same counts, and the whole
//! limiter.
//!
//! `cargo bench -p evenkeel-core --bench decision`. Every row makes a 16-byte key, reads the clock,
//! hashes if necessary, and decides by the same formula (1000 a second, burst 100). Rounds are
//! interleaved. The fastest round is shown, because other work on the machine only adds time; its
//! ratio to the first row is in brackets. A value is the time that one thread needs for one
//! decision. `-- loss` shows the share of live keys that a full table evicts by chance, `-- paths`
//! the cost of reading a request's path, `-- patterns` that of comparing a user agent with lists,
//! `-- swarm` that of finding what a swarm has in common, and `-- growth` how the cost grows with
//! the clients and limits. Memory is the growth of the process, with each contestant in its own
//! process. docs/performance.md has results.

#![allow(missing_docs)]

mod decision {
    pub mod four;
    pub mod growth;
    pub mod paths;
    pub mod patterns;
    pub mod peers;
    pub mod swarm;
}

use decision::peers::{Contestant, NAMES, contestant};
use evenkeel_core::key::KeyHash;
use evenkeel_core::table::BucketTable;
use std::hint::black_box;
use std::process::Command;
use std::thread;
use std::time::Instant;

const ROUNDS: usize = 15;
const DECISIONS: u64 = 500_000;
/// Number of keys and threads of each column.
const COLUMNS: [(u64, u64); 5] = [(1, 2), (10_000, 1), (10_000, 2), (1_000_000, 1), (1_000_000, 2)];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bytes", name, keys] => print_bytes(name, keys.parse().expect("a number of keys")),
        ["loss", ..] => loss(),
        ["four", ..] => decision::four::measure(),
        ["growth", ..] => decision::growth::measure(),
        ["paths", ..] => decision::paths::measure(),
        ["patterns", ..] => decision::patterns::measure(),
        ["swarm", ..] => decision::swarm::measure(),
        _ => {
            speed();
            bytes();
            loss();
            decision::four::measure();
            decision::growth::measure();
            decision::paths::measure();
            decision::patterns::measure();
            decision::swarm::measure();
        }
    }
}

/// A cheap pseudo-random sequence that no table can predict (xorshift).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.roll()) * u128::from(bound)) >> 64) as u64
    }
}

fn speed() {
    println!("ns per decision         {}", header());
    let mut rows: Vec<Vec<f64>> = vec![Vec::new(); NAMES.len()];
    for (keys, threads) in COLUMNS {
        let contestants: Vec<_> = NAMES.iter().map(|name| contestant(name, keys)).collect();
        for contestant in &contestants {
            (0..keys).for_each(|key| _ = black_box(contestant.decide(key)));
        }
        let mut times = vec![Vec::new(); NAMES.len()];
        for _ in 0..ROUNDS {
            for (contestant, times) in contestants.iter().zip(&mut times) {
                times.push(round(contestant.as_ref(), keys, threads));
            }
        }
        for (rows, times) in rows.iter_mut().zip(times) {
            rows.push(quickest(times));
        }
    }
    for (name, row) in NAMES.iter().zip(&rows) {
        let cells = row.iter().zip(&rows[0]).map(|(ns, floor)| {
            let ratio = ns / floor;
            format!("{ns:>9.0} ({ratio:>4.1}x)")
        });
        println!("{name:<22}{}", cells.collect::<String>());
    }
}

fn header() -> String {
    COLUMNS
        .iter()
        .map(|(keys, threads)| format!("{:>16}", format!("{keys}, {threads} t")))
        .collect()
}

fn round(contestant: &dyn Contestant, keys: u64, threads: u64) -> f64 {
    let started = Instant::now();
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut dice = Dice::new(thread + 1);
                for _ in 0..DECISIONS {
                    black_box(contestant.decide(dice.below(keys)));
                }
            });
        }
    });
    started.elapsed().as_nanos() as f64 / DECISIONS as f64
}

pub fn quickest(times: Vec<f64>) -> f64 {
    times.into_iter().fold(f64::INFINITY, f64::min)
}

fn bytes() {
    println!("\nbytes per key                  1 M      10 M");
    for name in NAMES {
        let of = |keys: &str| {
            let program = std::env::current_exe().expect("this program has a path");
            let child = Command::new(program).args(["bytes", name, keys]).output();
            String::from_utf8_lossy(&child.expect("it runs").stdout).trim().to_owned()
        };
        println!("{name:<22}{:>12}{:>10}", of("1000000"), of("10000000"));
    }
}

fn print_bytes(name: &str, keys: u64) {
    let before = resident();
    let contestant = contestant(name, keys);
    (0..keys).for_each(|key| _ = black_box(contestant.decide(key)));
    println!("{:.1}", (resident() - before) as f64 / keys as f64);
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

fn loss() {
    println!("\nlive keys, of keys_max      forgotten by chance   bytes per live key");
    for percent in [50, 75, 90, 100] {
        let table = BucketTable::new(1_000_000, 1);
        let live = 10_000 * percent;
        let mut dice = Dice::new(7);
        for n in 0..live {
            table.take(KeyHash::from_bits(dice.roll())).put(&[n + 1], |state| state[0]);
        }
        let lost = table.dropped() as f64 / live as f64 * 100.0;
        let size = table.bytes() as f64 / live as f64;
        println!("{percent:>20} % {lost:>20.2} % {size:>20.1}");
    }
}

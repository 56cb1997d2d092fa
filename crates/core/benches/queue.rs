//! The cost of the fair queue for a request: arrival, dispatch and end, with all calls that a door
//! makes in between.
//!
//! `cargo bench -p evenkeel-core --bench queue`. 64 requests are in flight. In each step one
//! request arrives, one is dispatched, and the oldest ends. `idle`: no request waits. `busy`: as
//! many requests wait as are in flight. `-- growth` shows how the cost grows with the number of
//! requests that wait, each of another client. The fastest of some rounds is shown, because other
//! work on the machine only adds time. docs/performance.md has results.

#![allow(missing_docs)]

use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::meter::estimate::RouteHash;
use evenkeel_core::queue::concurrency::ConcurrencySearch;
use evenkeel_core::queue::standing::{KnownClients, Visit};
use evenkeel_core::queue::{
    Arrival, DebtFlow, Queue, QueuePlace, QueueSettings, RequestId, WorkUnit,
};
use evenkeel_core::units::{Cost, Nanos, Time, Weight};
use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 15;
const STEPS: u64 = 200_000;
const IN_FLIGHT: usize = 64;
/// Number of clients that send the requests.
const CLIENTS: [u64; 3] = [1, 64, 100_000];

/// Numbers of waiting requests.
const WAITING: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];

fn main() {
    if std::env::args().any(|argument| argument == "growth") {
        return growth();
    }
    println!("ns per request     {}", CLIENTS.map(|n| format!("{n:>10}")).concat());
    for (name, concurrency, debt) in [
        ("idle, credit", 4 * IN_FLIGHT, false),
        ("idle, debt", 4 * IN_FLIGHT, true),
        ("busy, credit", IN_FLIGHT, false),
        ("busy, debt", IN_FLIGHT, true),
    ] {
        let cells = CLIENTS.map(|clients| format!("{:>10.0}", row(concurrency, debt, clients)));
        println!("{name:<19}{}", cells.concat());
    }
    println!("\nns per request to find the concurrency {:>10.1}", finding());
}

/// The cost of `concurrency: auto` for 40 routes of 1 to 100 ms, including the evaluation of its
/// windows.
fn finding() -> f64 {
    let routes: Vec<RouteHash> = (0..40)
        .map(|n| RouteHash::of(&KeySeed([1; 16]), "GET", &format!("/{}", "x".repeat(n))))
        .collect();
    let rounds = (0..ROUNDS).map(|_| {
        let mut auto = ConcurrencySearch::new(2.0);
        let started = Instant::now();
        for n in 0..STEPS {
            let drawn = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let elapsed = Nanos(1_000_000 + drawn % 99_000_000);
            auto.handle_done(routes[n as usize % 40], elapsed, Cost::ZERO, true, Time(n * 100_000));
        }
        black_box(auto.concurrency());
        started.elapsed().as_nanos() as f64 / STEPS as f64
    });
    rounds.fold(f64::INFINITY, f64::min)
}

fn row(concurrency: usize, debt: bool, clients: u64) -> f64 {
    let waiting = if concurrency > IN_FLIGHT { 0 } else { IN_FLIGHT };
    let rounds = (0..ROUNDS).map(|_| Line::new(concurrency, debt, clients, waiting).round());
    rounds.fold(f64::INFINITY, f64::min)
}

/// The cost with more and more waiting requests, of ten times as many clients.
fn growth() {
    println!("ns per request, waiting {}", WAITING.map(|n| format!("{n:>9}")).concat());
    for (name, debt) in [("in credit", false), ("in debt", true)] {
        let cells = WAITING.map(|waiting| {
            let line = || Line::new(IN_FLIGHT, debt, 10 * waiting as u64, waiting);
            let quickest = (0..ROUNDS).map(|_| line().round()).fold(f64::INFINITY, f64::min);
            format!("{quickest:>9.0}")
        });
        println!("{name:<24}{}", cells.concat());
    }
}

/// A queue with requests in it, and the source of the next ones.
struct Line {
    queue: Queue,
    running: VecDeque<RequestId>,
    debt: bool,
    clients: u64,
    came: u64,
}

impl Line {
    fn new(concurrency: usize, debt: bool, clients: u64, waiting: usize) -> Line {
        let wait_max = Nanos::from_secs(30);
        let settings = QueueSettings {
            concurrency,
            reserve: 2,
            len_max: 4_096.max(2 * waiting),
            wait_max,
            known: KnownClients::Auto { clients_max: 262_144 },
            cpus_milli: 2_000,
            unit: WorkUnit::CpuTime,
            workers: None,
        };
        let mut line =
            Line { queue: Queue::new(settings), running: VecDeque::new(), debt, clients, came: 0 };
        (0..IN_FLIGHT + waiting).for_each(|_| line.arrive());
        line
    }

    fn now(&self) -> Time {
        Time(self.came * 10_000)
    }

    fn arrive(&mut self) {
        self.came += 1;
        let client = self.came.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let client =
            KeyHash::from_bits((client % self.clients).wrapping_mul(0x5851_f42d_4c95_7f2d));
        let bucket = DebtFlow { limit: 0, hash: client };
        let arrival = Arrival {
            client,
            place: if self.debt { QueuePlace::Debt(bucket) } else { QueuePlace::Credit },
            estimate: Cost(1_000_000 + self.came % 1_000),
            is_guess: false,
            route: None,
            own: None,
            weight: Weight::ONE,
            visit: Visit::Unknown,
            accepts_waiting_page: false,
            burns: false,
        };
        self.queue.handle_arrival(arrival, self.now());
        self.dispatch();
    }

    fn dispatch(&mut self) {
        while let Some(id) = self.queue.poll_dispatch(self.now()) {
            self.running.push_back(id);
        }
        black_box(self.queue.poll_refused());
        self.queue.handle_timeout(self.now());
    }

    fn round(mut self) -> f64 {
        let started = Instant::now();
        for _ in 0..STEPS {
            self.arrive();
            if let Some(oldest) = self.running.pop_front() {
                self.queue.handle_done(oldest, Cost(1_000_500), self.now());
                self.dispatch();
            }
        }
        started.elapsed().as_nanos() as f64 / STEPS as f64
    }
}

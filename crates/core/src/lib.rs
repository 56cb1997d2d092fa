//! Decides what each client of a server is charged, and which requests have to wait.
//!
//! The core does no IO, reads no clock and starts no thread: time is an argument. State that
//! threads share is in atomics. The only lock is a spin lock for each set of the [`table`], which
//! is held for some nanoseconds and across nothing that blocks. So everything here can be
//! simulated, and an embedder gets nothing that it did not ask for. Start with the two examples
//! below. Then read [`limiter`] for the decision, [`bucket`] for the arithmetic, [`table`] for the
//! storage of the counts, [`queue`] for the order of requests, [`replica`] for instances that count
//! together. ARCHITECTURE.md follows one request through the program.

#![no_std]
//!
//! # Start here: a limiter
//!
//! A [`limiter::Limiter`] has the accounts of all clients under a list of limits. `ask` decides
//! whether a request may run, `charge` updates its account when the response begins, and `settle`
//! closes the account. Here each address gets a tenth of a CPU and may save up a second. The
//! response of a client in debt is held back until the debt is paid.
//!
//! ```
//! use core::net::{IpAddr, Ipv4Addr};
//! use evenkeel_core::bucket::{Algorithm, debt::DebtBucket};
//! use evenkeel_core::classify::RequestAttributes;
//! use evenkeel_core::key::KeySeed;
//! use evenkeel_core::condition::Condition;
//! use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
//! use evenkeel_core::limiter::{Limiter, LimiterPolicy, Verdict};
//! use evenkeel_core::units::{Cost, Nanos, Rate, Time, Weight};
//!
//! /// What the limits may see of a request.
//! struct Request;
//!
//! impl RequestAttributes for Request {
//!     fn address(&self) -> IpAddr {
//!         IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))
//!     }
//!     fn method(&self) -> &str {
//!         "GET"
//!     }
//!     fn path(&self) -> &str {
//!         "/search"
//!     }
//!     fn vhost(&self) -> &str {
//!         "example.org"
//!     }
//!     fn header(&self, _name: &str) -> Option<&[u8]> {
//!         None
//!     }
//! }
//!
//! fn cpu(millis: u64) -> Cost {
//!     Cost::cpu(Nanos::from_millis(millis))
//! }
//!
//! let rate = Rate::per(cpu(100), Nanos::from_secs(1)).expect("above zero");
//! let limit = Limit {
//!     name: "cpu".into(),
//!     by: vec![KeyPart::Ip { v4: 32, v6: 64 }],
//!     when: Condition::default(),
//!     unit: LimitUnit::Cpu,
//!     algorithm: Algorithm::Debt(DebtBucket::new(rate, cpu(1_000))),
//!     action: None,
//!     weight: Weight::ONE,
//!     keys_max: 10_000,
//!     shadow: false,
//! };
//! let policy = LimiterPolicy { action: LimitAction::Hold, max_delay: Nanos::from_secs(30) };
//! let seed = KeySeed([7; 16]); // A program uses random bytes.
//! let limiter = Limiter::new(policy, vec![limit.checked().expect("a valid limit")], seed);
//!
//! // The time comes from the caller's clock.
//! let start = Time(1_700_000_000_000_000_000);
//! let keys = limiter.keys(&Request);
//! let (verdict, mut ticket) = limiter.ask(&keys, Cost::ZERO, start);
//! assert_eq!(verdict, Verdict::Allow);
//!
//! // At the head of the response it has cost 1.5 s: a debt of 0.5 s, paid in 5 s.
//! let head = start.plus(Nanos::from_millis(1_500));
//! let held = limiter.charge(&mut ticket, cpu(1_500), head).expect("a client in debt");
//! assert_eq!(held.wait, Nanos::from_secs(5));
//!
//! // In all it cost 1.6 s. After 6 s the client owes nothing.
//! limiter.settle(&ticket, cpu(1_600), head.plus(Nanos::from_millis(100)));
//! let address = keys.as_slice()[0].hash;
//! let standing = |after| limiter.standing_of(0, address, start.plus(Nanos::from_secs(after)));
//! assert_eq!(standing(2).level, Some(-400_000_000)); // in nanoseconds of CPU time
//! assert_eq!(standing(6).wait, Nanos::ZERO);
//! ```
//!
//! # Start here: a queue
//!
//! A [`queue::Queue`] says which request goes to the backend next. Here the backend works on one
//! request at a time. A crawler has sent three requests when a reader sends one. The reader waits
//! for one of them, not for three.
//!
//! ```
//! use evenkeel_core::key::KeyHash;
//! use evenkeel_core::queue::standing::{KnownClients, Visit};
//! use evenkeel_core::queue::{Arrival, Queue, QueuePlace, QueueSettings, WorkUnit};
//! use evenkeel_core::units::{Cost, Nanos, Time, Weight};
//!
//! let mut queue = Queue::new(QueueSettings {
//!     concurrency: 1,
//!     reserve: 0,
//!     len_max: 1_000,
//!     wait_max: Nanos::from_secs(30),
//!     known: KnownClients::Off,
//!     cpus_milli: 1_000,
//!     unit: WorkUnit::CpuTime,
//!     workers: None,
//! });
//! let now = Time(1_700_000_000_000_000_000);
//! let cost = Cost::cpu(Nanos::from_millis(200));
//! let request = |client| Arrival {
//!     client: KeyHash::from_bits(client),
//!     place: QueuePlace::Credit,
//!     estimate: cost,
//!     is_guess: false,
//!     route: None,
//!     own: None,
//!     weight: Weight::ONE,
//!     visit: Visit::Unknown,
//!     accepts_waiting_page: false,
//!     burns: false,
//! };
//! let crawler = [1, 1, 1].map(|client| queue.handle_arrival(request(client), now));
//! let reader = queue.handle_arrival(request(2), now);
//!
//! let mut served = Vec::new();
//! while let Some(id) = queue.poll_dispatch(now) {
//!     served.push(id);
//!     // The backend works on it, and its slot is free again.
//!     queue.handle_done(id, cost, now);
//! }
//! assert_eq!(served, [crawler[0], reader, crawler[1], crawler[2]]);
//! assert_eq!(queue.poll_refused(), None);
//! ```
//!
//! # Start here: instances that count together
//!
//! A [`replica::Replica`] is a state machine without a transport: the caller carries its frames.
//! Here two instances have one link. The second one also charges every charge of the first. Who
//! joins asks for the state of the other's buckets first; here there are none.
//!
//! ```
//! use evenkeel_core::key::KeyHash;
//! use evenkeel_core::replica::{
//!     Replica, ReplicaEvent, ReplicaSettings, ReplicaUpdate, ReplicatedLimit,
//! };
//! use evenkeel_core::units::{Cost, Nanos, Time};
//!
//! let limit = ReplicatedLimit {
//!     fingerprint: 1,
//!     name: "logins".into(),
//!     numbers: "5/m".into(),
//!     unit: 1,
//!     per_second: Cost::ZERO,
//! };
//! let start = Time(1_700_000_000_000_000_000);
//! let instance = |node, name: &str| {
//!     let settings = ReplicaSettings {
//!         node,
//!         life: 1,
//!         name: name.into(),
//!         period: Nanos::from_millis(100),
//!         frame_max: 16_384,
//!         reliable: true,
//!         cpus_milli: 1_000,
//!         nodes_max: 8,
//!     };
//!     Replica::new(settings, vec![limit.clone()], start)
//! };
//! let (mut first, mut second) = (instance(1, "first"), instance(2, "second"));
//! first.handle_up(0, start);
//! second.handle_up(0, start);
//!
//! let mut charged = Vec::new();
//! for tenth in 0..8 {
//!     let now = start.plus(Nanos::from_millis(100 * tenth));
//!     if tenth == 4 {
//!         first.charge(0, 0, KeyHash::from_bits(7), Cost::hits(3), now);
//!     }
//!     for replica in [&mut first, &mut second] {
//!         while let Some(event) = replica.poll_event() {
//!             if let ReplicaEvent::Wanted { node } = event {
//!                 replica.give_state(node, [], now);
//!             }
//!         }
//!         replica.handle_timeout(now);
//!     }
//!     while let Some((link, frame)) = first.poll_transmit() {
//!         let update = &mut |update: ReplicaUpdate<'_>| {
//!             if let ReplicaUpdate::Charge { key, amount, .. } = update {
//!                 charged.push((key.bits(), amount));
//!             }
//!         };
//!         second.handle_frame(link, &frame, now, update).expect("a valid frame");
//!     }
//!     while let Some((link, frame)) = second.poll_transmit() {
//!         first.handle_frame(link, &frame, now, &mut |_| ()).expect("a valid frame");
//!     }
//! }
//! assert_eq!(charged, [(7, Cost::hits(3))]);
//! assert_eq!(first.live_instances(start.plus(Nanos::from_millis(500))), 2);
//! ```

extern crate alloc;
#[cfg(any(test, loom))]
extern crate std;

pub mod bucket;
pub mod classify;
pub mod condition;
pub mod fact;
pub mod key;
pub mod limit;
pub mod limiter;
pub mod meter;
mod percent;
pub mod queue;
pub mod replica;
// Serves the tests of this workspace and is no part of the interface.
#[doc(hidden)]
pub mod sim;
pub mod swarm;
pub mod table;
pub mod top;
pub mod units;

pub use table::windows;

/// Compiles and runs the code of README.md with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct CoreReadme;

//! The interface of engines to other instances: the charges that an engine reports, those of other
//! instances that it applies, and the clients that instances report to each other.
//!
//! Each lane notes its charges in its books, under a lock that it holds anyway, and the driver
//! collects them several times a second. No charges are noted until instances count together. A
//! charge from another instance is applied to the same bucket whatever its level: the request was
//! admitted elsewhere, so there is no decision left to make. The collector and the transport:
//! `evenkeel_peers::driver`.

pub mod queue;

use super::view::EngineView;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::classify::LimitKey;
use evenkeel_core::key::{KeyHash, KeyHasher, KeySeed};
use evenkeel_core::limit::{Limit, LimitUnit};
use evenkeel_core::limiter::Limiter;
use evenkeel_core::queue::{DebtFlow, SharedClient};
use evenkeel_core::replica::ReplicatedLimit;
use evenkeel_core::top::{TopClient, TopClients};
use evenkeel_core::units::{Cost, Nanos, SECOND, Time};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
pub use queue::SharedAdmission;
use std::collections::HashMap;
use std::fmt::Write;

/// The number of keys that a lane notes between two collections, at 64 bytes each. Charges of
/// further keys are counted by this instance alone.
const SPENT_MAX: usize = 1 << 18;

/// An engine that counts together with other instances. Limits are identified by their
/// fingerprints.
pub trait Replicated: Send + Sync {
    /// Begins to note charges.
    fn start_sharing(&self);

    /// The limits that other instances may have too.
    fn shared(&self) -> Vec<ReplicatedLimit>;

    /// Passes to `each` the charges since the last call: the limit's fingerprint, the context of
    /// the counter (zero for buckets), the key and the amount. Returns the number of charges that
    /// were dropped for lack of room.
    fn spent(&self, each: &mut dyn FnMut(u64, u128, KeyHash, Cost)) -> u64;

    /// Applies a charge that another instance made `age` ago.
    fn apply_delta(&self, fingerprint: u64, context: u128, key: KeyHash, amount: Cost, age: Nanos);

    /// Applies charges from before this instance joined. The lists of heavy clients do not count
    /// them.
    fn apply_deficit(&self, fingerprint: u64, key: KeyHash, amount: Cost) {
        let _ = (fingerprint, key, amount);
    }

    /// Takes over the name that another instance has for a key.
    fn apply_name(&self, fingerprint: u64, key: KeyHash, name: &str) {
        let _ = (fingerprint, key, name);
    }

    /// The deficits of the buckets, at most `max` for each limit.
    fn short(&self, max: usize) -> Vec<(u64, KeyHash, Cost)> {
        let _ = max;
        Vec::new()
    }

    /// The deficit of a bucket; `None` if its limit has no level.
    fn missing(&self, fingerprint: u64, key: KeyHash) -> Option<Cost> {
        let _ = (fingerprint, key);
        None
    }

    /// Passes to `each` clients that the queue remembers, each with the fingerprint of the table
    /// of clients: those served here since the last call or, with `all`, those to report to an
    /// instance that joins.
    fn clients(&self, all: bool, each: &mut dyn FnMut(u64, KeyHash, SharedClient)) {
        let _ = (all, each);
    }

    /// Adds records of clients that another instance has served: the fingerprint of the table of
    /// clients, the key and the record.
    fn apply_clients(&self, records: &[(u64, KeyHash, u64)]) {
        let _ = records;
    }

    /// The heaviest clients with names, at most `max`.
    fn heaviest(&self, max: usize) -> Vec<NamedClient> {
        let _ = max;
        Vec::new()
    }

    /// The queue that instances may share, with its fingerprint: instances share queues with the
    /// same one. `None` for an engine without a queue.
    fn shared_queue(&self) -> Option<(u64, &dyn SharedAdmission)> {
        None
    }

    /// Ends the sharing of the queue, because a reload has changed this instance. Until the queue
    /// is shared again, it gets no event of other instances.
    fn end_sharing(&self) {}

    /// The number of CPUs that this instance's limits share out; `None` for an engine without CPU
    /// limits.
    fn cpus(&self) -> Option<f64> {
        None
    }

    /// Sets the number of CPUs that all instances have together.
    fn set_total_cpus(&self, cpus: f64) {
        let _ = cpus;
    }
}

/// The charges of a lane that have not been collected yet.
#[derive(Default)]
pub struct PendingDeltas {
    charged: HashMap<(u64, u128, KeyHash), Cost, foldhash::fast::RandomState>,
    dropped: u64,
}

impl PendingDeltas {
    /// Notes a charge, or counts it as dropped if there is no room for its key.
    pub fn add(&mut self, fingerprint: u64, context: u128, key: KeyHash, amount: Cost) {
        if amount == Cost::ZERO {
            return;
        }
        if let Some(known) = self.charged.get_mut(&(fingerprint, context, key)) {
            *known = known.plus(amount);
        } else if self.charged.len() < SPENT_MAX {
            self.charged.insert((fingerprint, context, key), amount);
        } else {
            self.dropped += 1;
        }
    }

    /// Takes all charges out and leaves the lane an empty map.
    pub fn take(&mut self) -> PendingDeltas {
        // The new map gets the same capacity, because it will probably grow to the same size.
        let room = self.charged.len().min(SPENT_MAX);
        let empty = HashMap::with_capacity_and_hasher(room, foldhash::fast::RandomState::default());
        let charged = std::mem::replace(&mut self.charged, empty);
        PendingDeltas { charged, dropped: std::mem::take(&mut self.dropped) }
    }

    /// Passes all charges to `each`. Returns the number of dropped charges.
    pub fn show(&self, each: &mut dyn FnMut(u64, u128, KeyHash, Cost)) -> u64 {
        for ((mark, context, key), amount) in &self.charged {
            each(*mark, *context, *key, *amount);
        }
        self.dropped
    }
}

/// The fingerprints of an engine's limits, in the order of the limits, and of its table of clients.
#[derive(Debug, Default)]
pub struct LimitIds {
    limits: Vec<u64>,
    clients: u64,
}

impl LimitIds {
    /// The fingerprints of `limits` at the door named `door`.
    pub fn new(door: &str, limits: &[Limit]) -> LimitIds {
        LimitIds {
            limits: limits.iter().map(|limit| fingerprint(door, limit)).collect(),
            clients: clients_fingerprint(door, limits),
        }
    }

    /// The fingerprint of the table of clients that the queue remembers.
    pub fn clients(&self) -> u64 {
        self.clients
    }

    /// The fingerprint of the limit at `index`; zero, which no limit has, if there is no such
    /// limit.
    pub fn of(&self, index: usize) -> u64 {
        self.limits.get(index).copied().unwrap_or(0)
    }

    /// The bucket as all instances know it that share the queue: the lowest 16 bits of its limit's
    /// fingerprint stand for the limit.
    pub fn flow(&self, key: LimitKey) -> DebtFlow {
        DebtFlow { limit: self.of(key.limit.into()) as u16, hash: key.hash }
    }

    /// The index of the limit with this fingerprint.
    pub fn place(&self, fingerprint: u64) -> Option<usize> {
        self.limits.iter().position(|mark| *mark == fingerprint)
    }

    /// The descriptions of the limits for other instances. Shares are given as parts of `cpus`.
    pub fn shared(&self, limits: &[Limit], cpus: f64) -> Vec<ReplicatedLimit> {
        let shared = |(limit, mark): (&Limit, &u64)| ReplicatedLimit {
            fingerprint: *mark,
            name: limit.name.clone(),
            numbers: numbers(limit, cpus).into(),
            unit: if whole_hits(limit) { SECOND } else { 1 },
            per_second: limit.algorithm.per_second().unwrap_or_default(),
        };
        limits.iter().zip(&self.limits).map(shared).collect()
    }

    /// The deficits of the buckets, at most `max` for each limit.
    pub fn short(&self, limiter: &Limiter, max: usize, now: Time) -> Vec<(u64, KeyHash, Cost)> {
        let marks = self.limits.iter().enumerate();
        let short = marks.flat_map(|(index, mark)| {
            let short = limiter.short(index, max, now).into_iter();
            short.map(|(key, missing)| (*mark, key, missing))
        });
        short.collect()
    }
}

/// Whether amounts are whole hits. They are times for the limit of keys that bring their own
/// numbers.
fn whole_hits(limit: &Limit) -> bool {
    let timed = matches!(&limit.algorithm, Algorithm::Debt(debt) if debt.burst() == Cost::ZERO);
    limit.unit == LimitUnit::Hits && !timed
}

/// A hash of all properties that must be the same on two instances for a limit to be counted
/// together. Rates and bursts are not among them: instances that differ in these count together,
/// and each decides by its own.
fn fingerprint(door: &str, limit: &Limit) -> u64 {
    let mut hasher = KeyHasher::new(&KeySeed([0; 16]));
    hasher.part(door.as_bytes());
    hasher.part(limit.name.as_bytes());
    hasher.part(format!("{:?}", limit.by).as_bytes());
    let kind = match limit.algorithm {
        Algorithm::Debt(_) | Algorithm::Quota(_) | Algorithm::Grid(_) => b'b',
        Algorithm::Sliding(_) => b's',
        Algorithm::Fixed(_) => b'f',
        Algorithm::History(_) => b'h',
    };
    hasher.part(&[kind, limit.unit as u8]);
    hasher.finish().bits()
}

/// A hash of what the keys of the clients are that a queue remembers: a client has the key by which
/// the first limit counts it.
fn clients_fingerprint(door: &str, limits: &[Limit]) -> u64 {
    let mut hasher = KeyHasher::new(&KeySeed([0; 16]));
    hasher.part(door.as_bytes());
    hasher.part(b"clients");
    hasher.part(format!("{:?}", limits.first().map(|limit| &limit.by)).as_bytes());
    hasher.finish().bits()
}

/// The rate and burst of a limit as text, for display.
fn numbers(limit: &Limit, cpus: f64) -> String {
    let mut text = String::new();
    let per_second = limit.algorithm.per_second().unwrap_or_default().as_units();
    let rate = match limit.unit {
        LimitUnit::Hits => format!("{per_second:.6}/s"),
        LimitUnit::Tokens => format!("{:.3} tokens/s", 1e3 * per_second),
        LimitUnit::Money => format!("{:.6} money/s", per_second),
        LimitUnit::Cpu => {
            format!("{:.3}% of the cpus", 100.0 * per_second / cpus.max(f64::EPSILON))
        }
    };
    let _ = match &limit.algorithm {
        Algorithm::Debt(debt) => write!(text, "{rate}, burst {}", debt.burst().as_units()),
        Algorithm::Quota(quota) => {
            write!(text, "{rate}, burst {}", quota.bucket().burst().as_units())
        }
        Algorithm::Grid(grid) => write!(text, "{rate} on the grid, burst {}", grid.burst()),
        Algorithm::Sliding(window) => {
            write!(text, "{} in {}", window.max().as_units(), window.window())
        }
        Algorithm::Fixed(_) | Algorithm::History(_) => write!(text, "{:?}", limit.algorithm),
    };
    text
}

/// The heaviest clients of other instances, by the limit's fingerprint, under the names that those
/// instances report.
#[derive(Default)]
pub struct RemoteTops(Mutex<HashMap<u64, TopClients>>);

impl RemoteTops {
    /// Adds a charge of another instance. `capacity` is the size of a new list.
    pub fn add(&self, fingerprint: u64, key: KeyHash, amount: Cost, capacity: usize, now: Time) {
        self.of(fingerprint, capacity).count(key, 0, amount, now, String::new);
    }

    /// Sets the name of a key that other instances have charged, perhaps before this one joined.
    /// `capacity` is the size of a new list.
    pub fn name(&self, fingerprint: u64, key: KeyHash, name: &str, capacity: usize, now: Time) {
        let mut top = self.of(fingerprint, capacity);
        // The names of clients that are gone are repeated as well.
        if top.name(key).is_none() {
            top.count(key, 0, Cost::ZERO, now, || name.to_owned());
        }
    }

    fn of(&self, fingerprint: u64, capacity: usize) -> MappedMutexGuard<'_, TopClients> {
        MutexGuard::map(self.0.lock(), |tops| {
            tops.entry(fingerprint).or_insert_with(|| TopClients::new(capacity))
        })
    }

    /// The rows of one limit's list.
    pub fn rows(&self, fingerprint: u64, now: Time) -> Vec<TopClient> {
        self.0.lock().get(&fingerprint).map(|top| top.rows(now)).unwrap_or_default()
    }

    /// Drops the lists of limits that no longer exist.
    pub fn keep(&self, marks: &LimitIds) {
        self.0.lock().retain(|mark, _| marks.place(*mark).is_some());
    }
}

/// A heavy client with its name, as reported to other instances.
pub struct NamedClient {
    /// The cost per second.
    pub cost: f64,
    /// The fingerprint of the limit.
    pub fingerprint: u64,
    /// The hash of the client's key.
    pub key: KeyHash,
    /// The readable name of the key.
    pub name: String,
}

/// The `max` heaviest named clients over all limits of an engine.
pub fn heaviest(engine: &impl EngineView, marks: &LimitIds, max: usize) -> Vec<NamedClient> {
    let all = marks.limits.iter().enumerate().flat_map(|(index, mark)| {
        let rows = engine.top(index).into_iter().take(max).map(|standing| standing.row);
        rows.filter(|row| !row.name.is_empty()).map(|row| NamedClient {
            cost: row.cost_per_second,
            fingerprint: *mark,
            key: row.hash,
            name: row.name,
        })
    });
    let mut all: Vec<_> = all.collect();
    all.sort_by(|a, b| b.cost.total_cmp(&a.cost));
    all.truncate(max);
    all
}

//! What an engine tells of its charges, and takes of those of other instances.
//!
//! Each lane notes what it charges beside its other books, under a lock that it holds anyway; from
//! there it is collected some times a second. Nothing is noted until somebody wants it. What comes
//! from others is charged to the same buckets, whatever their level: it was let in elsewhere, so
//! it is no decision of this instance. Who collects and who carries: `crate::peers::driver`.

use super::counted::Counted;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::key::{KeyHash, KeyHasher, Seed};
use evenkeel_core::limit::{Limit, Unit};
use evenkeel_core::limiter::Limiter;
use evenkeel_core::replica::Shared;
use evenkeel_core::top::{Row, Top};
use evenkeel_core::units::{Cost, Nanos, SECOND, Time};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Write;

/// Keys that a lane notes until they are collected; what further ones are charged is counted here
/// alone. 64 bytes each.
const SPENT_MAX: usize = 1 << 18;

/// An engine as others count together with it. Limits are known by their fingerprints.
pub trait Together: Send + Sync {
    /// From here on what is charged is noted.
    fn share(&self);

    /// The limits that others may have too.
    fn shared(&self) -> Vec<Shared>;

    /// What was charged since this was last asked: the limit's fingerprint, what it says of itself
    /// beside (zero for buckets), the key. Returns how many charges found no room.
    fn spent(&self, each: &mut dyn FnMut(u64, u128, KeyHash, Cost)) -> u64;

    /// Others have charged this, so long ago.
    fn hear(&self, fingerprint: u64, context: u128, key: KeyHash, amount: Cost, age: Nanos);

    /// Elsewhere a bucket is short of so much.
    fn hear_short(&self, fingerprint: u64, key: KeyHash, missing: Cost);

    /// What a key is called elsewhere.
    fn hear_name(&self, fingerprint: u64, key: KeyHash, name: &str);

    /// What the buckets of each limit are short of, at most so many of each.
    fn short(&self, max: usize) -> Vec<(u64, KeyHash, Cost)>;

    /// Its heaviest clients, at most so many.
    fn heaviest(&self, max: usize) -> Vec<Named>;

    /// CPUs that it has to share out, where it shares out any.
    fn cpus(&self) -> Option<f64>;

    /// All instances together have so many.
    fn share_of(&self, cpus: f64);
}

/// What a lane has charged and nobody has collected.
#[derive(Default)]
pub struct Spent {
    charged: HashMap<(u64, u128, KeyHash), Cost, foldhash::fast::RandomState>,
    dropped: u64,
}

impl Spent {
    /// Notes a charge.
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

    /// Takes everything out; the lane goes on with an empty book.
    pub fn take(&mut self) -> Spent {
        // Of the size that it had: it will be filled as far again.
        let room = self.charged.len().min(SPENT_MAX);
        let empty = HashMap::with_capacity_and_hasher(room, foldhash::fast::RandomState::default());
        let charged = std::mem::replace(&mut self.charged, empty);
        Spent { charged, dropped: std::mem::take(&mut self.dropped) }
    }

    /// Shows everything; returns how many charges found no room.
    pub fn show(&self, each: &mut dyn FnMut(u64, u128, KeyHash, Cost)) -> u64 {
        for ((mark, context, key), amount) in &self.charged {
            each(*mark, *context, *key, *amount);
        }
        self.dropped
    }
}

/// The limits of an engine as others know them.
#[derive(Debug, Default)]
pub struct Marks(Vec<u64>);

impl Marks {
    /// Those of `limits` behind `door`.
    pub fn new(door: &str, limits: &[Limit]) -> Marks {
        Marks(limits.iter().map(|limit| fingerprint(door, limit)).collect())
    }

    /// That of the limit at `index`; nobody else's if there is none.
    pub fn of(&self, index: usize) -> u64 {
        self.0.get(index).copied().unwrap_or(0)
    }

    /// Where the limit is that has it.
    pub fn place(&self, fingerprint: u64) -> Option<usize> {
        self.0.iter().position(|mark| *mark == fingerprint)
    }

    /// The limits as others are told them. `cpus` is what shares are of.
    pub fn shared(&self, limits: &[Limit], cpus: f64) -> Vec<Shared> {
        let shared = |(limit, mark): (&Limit, &u64)| Shared {
            fingerprint: *mark,
            name: limit.name.clone(),
            numbers: numbers(limit, cpus).into(),
            unit: if whole_hits(limit) { SECOND } else { 1 },
            per_second: limit.algorithm.per_second().unwrap_or_default(),
        };
        limits.iter().zip(&self.0).map(shared).collect()
    }

    /// What the buckets of each limit are short of.
    pub fn short(&self, limiter: &Limiter, max: usize, now: Time) -> Vec<(u64, KeyHash, Cost)> {
        let marks = self.0.iter().enumerate();
        let short = marks.flat_map(|(index, mark)| {
            let short = limiter.short(index, max, now).into_iter();
            short.map(|(key, missing)| (*mark, key, missing))
        });
        short.collect()
    }
}

/// Whether amounts are whole hits: those of keys that bring their own numbers are times.
fn whole_hits(limit: &Limit) -> bool {
    let timed = matches!(&limit.algorithm, Algorithm::Debt(debt) if debt.burst() == Cost::ZERO);
    limit.unit == Unit::Hits && !timed
}

/// Stands for everything that two instances must have alike to count under one limit. Numbers are
/// not among it: who has others counts the same, and decides differently.
fn fingerprint(door: &str, limit: &Limit) -> u64 {
    let mut hasher = KeyHasher::new(&Seed([0; 16]));
    hasher.part(door.as_bytes());
    hasher.part(limit.name.as_bytes());
    hasher.part(format!("{:?}", limit.by).as_bytes());
    let kind = match limit.algorithm {
        Algorithm::Debt(_) | Algorithm::Grid(_) => b'b',
        Algorithm::Sliding(_) => b's',
        Algorithm::Fixed(_) => b'f',
        Algorithm::History(_) => b'h',
    };
    hasher.part(&[kind, limit.unit as u8]);
    hasher.finish().bits()
}

/// The numbers of a limit, for people.
fn numbers(limit: &Limit, cpus: f64) -> String {
    let mut text = String::new();
    let per_second = limit.algorithm.per_second().unwrap_or_default().as_units();
    let rate = match limit.unit {
        Unit::Hits => format!("{per_second:.6}/s"),
        Unit::Cpu => format!("{:.3}% of the cpus", 100.0 * per_second / cpus.max(f64::EPSILON)),
    };
    let _ = match &limit.algorithm {
        Algorithm::Debt(debt) => write!(text, "{rate}, burst {}", debt.burst().as_units()),
        Algorithm::Grid(grid) => write!(text, "{rate} on the grid, burst {}", grid.burst()),
        Algorithm::Sliding(window) => {
            write!(text, "{} in {}", window.max().as_units(), window.window())
        }
        Algorithm::Fixed(_) | Algorithm::History(_) => write!(text, "{:?}", limit.algorithm),
    };
    text
}

/// The heaviest clients of other instances, by limit: what they have told, under the names that
/// they have told.
#[derive(Default)]
pub struct Elsewhere(Mutex<HashMap<u64, Top>>);

impl Elsewhere {
    /// Others have charged this.
    pub fn add(&self, fingerprint: u64, key: KeyHash, amount: Cost, capacity: usize, now: Time) {
        let mut tops = self.0.lock();
        let top = tops.entry(fingerprint).or_insert_with(|| Top::new(capacity));
        top.count(key, 0, amount, now, String::new);
    }

    /// A key that they have charged is called so.
    pub fn name(&self, fingerprint: u64, key: KeyHash, name: &str, now: Time) {
        if let Some(top) = self.0.lock().get_mut(&fingerprint) {
            top.count(key, 0, Cost::ZERO, now, || name.to_owned());
        }
    }

    /// The list of one limit.
    pub fn rows(&self, fingerprint: u64, now: Time) -> Vec<Row> {
        self.0.lock().get(&fingerprint).map(|top| top.rows(now)).unwrap_or_default()
    }

    /// Forgets limits that are not there any more.
    pub fn keep(&self, marks: &Marks) {
        self.0.lock().retain(|mark, _| marks.place(*mark).is_some());
    }
}

/// A heavy client, for others to know its name.
pub struct Named {
    /// What it costs, per second.
    pub cost: f64,
    /// Under which limit.
    pub fingerprint: u64,
    /// Its key.
    pub key: KeyHash,
    /// Its name.
    pub name: String,
}

/// The heaviest clients of all limits of an engine, as far as they have names.
pub fn heaviest(engine: &dyn Counted, marks: &Marks, max: usize) -> Vec<Named> {
    let all = marks.0.iter().enumerate().flat_map(|(index, mark)| {
        let rows = engine.top(index).into_iter().take(max).map(|standing| standing.row);
        rows.filter(|row| !row.name.is_empty()).map(|row| Named {
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

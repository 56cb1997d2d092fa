//! The contestants: ways to keep one time per key, all with the same decision formula.

use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::condition::Condition;
use evenkeel_core::key::{KeyHash, KeyHasher, KeySeed};
use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
use evenkeel_core::limiter::{Limiter, LimiterPolicy, Verdict};
use evenkeel_core::table::BucketTable;
use evenkeel_core::units::{Cost, Nanos, Rate, Time, Weight};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// The names in the order of the rows; the first is the lower bound.
pub const NAMES: [&str; 6] = [
    "array by index",
    "table",
    "limiter, one limit",
    "open addressing",
    "64 locked maps",
    "governor",
];

const PER_SECOND: u32 = 1000;
const BURST: u32 = 100;

pub trait Contestant: Sync {
    fn decide(&self, key: u64) -> bool;
}

pub fn contestant(name: &str, keys: u64) -> Box<dyn Contestant> {
    let slots = keys as usize;
    match name {
        "array by index" => Box::new(Array { clock: Clock::start(), times: zeros(slots) }),
        "table" => Box::new(Sets { clock: Clock::start(), table: BucketTable::new(slots, 1) }),
        "limiter, one limit" => Box::new(One::new(slots)),
        "open addressing" => Box::new(Open::new(slots)),
        "64 locked maps" => Box::new(Maps::new()),
        _ => {
            let count = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
            let quota = Quota::per_second(count(PER_SECOND)).allow_burst(count(BURST));
            Box::new(Governor(RateLimiter::keyed(quota)))
        }
    }
}

/// A key of 16 bytes, as an address in memory form.
pub fn bytes(key: u64) -> [u8; 16] {
    (u128::from(key) << 64 | 0x2001_0db8).to_le_bytes()
}

pub fn hash(key: u64) -> KeyHash {
    let mut hasher = KeyHasher::new(&KeySeed([7; 16]));
    hasher.part(&bytes(key));
    hasher.finish()
}

/// Time since the start plus an hour, so that no new bucket looks used.
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now(&self) -> u64 {
        3_600_000_000_000 + self.0.elapsed().as_nanos() as u64
    }
}

/// The state after an admitted request; `None` if the request is refused.
fn admit(full_at: u64, now: u64) -> Option<u64> {
    let step = 1_000_000_000 / u64::from(PER_SECOND);
    let next = full_at.max(now) + step;
    (next <= now + step * u64::from(BURST)).then_some(next)
}

fn zeros(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

struct Array {
    clock: Clock,
    times: Vec<AtomicU64>,
}

impl Contestant for Array {
    fn decide(&self, key: u64) -> bool {
        let now = self.clock.now();
        self.times[key as usize].fetch_update(Relaxed, Relaxed, |time| admit(time, now)).is_ok()
    }
}

/// Evenkeel's table as the limiter uses it: a read that may refuse, then the update.
struct Sets {
    clock: Clock,
    table: BucketTable,
}

impl Contestant for Sets {
    fn decide(&self, key: u64) -> bool {
        let (hash, now) = (hash(key), self.clock.now());
        if self.table.peek(hash).is_some_and(|time| admit(time, now).is_none()) {
            return false;
        }
        let mut entry = self.table.take(hash);
        let next = admit(entry.get(0), now);
        if let Some(next) = next {
            entry.put(&[next], |state| state[0].saturating_sub(now));
        }
        next.is_some()
    }
}

/// The whole limiter with a single limit.
struct One {
    clock: Clock,
    limiter: Limiter,
}

impl One {
    fn new(keys_max: usize) -> One {
        let rate =
            Rate::per(Cost::hits(u64::from(PER_SECOND)), Nanos::from_secs(1)).expect("a rate");
        let limit = Limit {
            name: "one".into(),
            by: vec![KeyPart::Ip { v4: 32, v6: 128 }],
            when: Condition::default(),
            unit: LimitUnit::Hits,
            algorithm: Algorithm::Debt(DebtBucket::new(rate, Cost::hits(u64::from(BURST)))),
            action: None,
            weight: Weight::ONE,
            keys_max,
            shadow: false,
        };
        let policy = LimiterPolicy { action: LimitAction::Reject, max_delay: Nanos::from_secs(30) };
        let limiter = Limiter::new(policy, vec![limit], KeySeed([7; 16]));
        One { clock: Clock::start(), limiter }
    }
}

impl Contestant for One {
    fn decide(&self, key: u64) -> bool {
        let keys = self.limiter.keys(&super::four::Request::address(key));
        let now = Time(self.clock.now());
        let (verdict, _ticket) = self.limiter.ask(&keys, Cost::ZERO, now);
        verdict == Verdict::Allow
    }
}

/// The reference design: hash and time in neighbouring words, linear probing, compare-and-swap,
/// without any removal. The number of slots is a power of two.
struct Open {
    clock: Clock,
    words: Vec<AtomicU64>,
}

impl Open {
    fn new(keys: usize) -> Open {
        let slots = (keys * 4 / 3 + 1).next_power_of_two();
        Open { clock: Clock::start(), words: zeros(2 * slots) }
    }
}

impl Contestant for Open {
    fn decide(&self, key: u64) -> bool {
        let (hash, now) = (hash(key).bits(), self.clock.now());
        let mask = self.words.len() - 1;
        let mut at = (hash as usize * 2) & mask;
        loop {
            let owner = self.words[at].load(Relaxed);
            let taken = || self.words[at].compare_exchange(0, hash, Relaxed, Relaxed);
            if owner == hash || (owner == 0 && taken().map_or_else(|o| o == hash, |_| true)) {
                let time = &self.words[at + 1];
                return time.fetch_update(Relaxed, Relaxed, |time| admit(time, now)).is_ok();
            }
            at = (at + 2) & mask;
        }
    }
}

type Shard = Mutex<HashMap<[u8; 16], u64>>;

/// The standard library's map (hashbrown) in 64 shards.
struct Maps {
    clock: Clock,
    shards: Vec<Shard>,
}

impl Maps {
    fn new() -> Maps {
        Maps { clock: Clock::start(), shards: (0..64).map(|_| Mutex::default()).collect() }
    }
}

impl Contestant for Maps {
    fn decide(&self, key: u64) -> bool {
        let now = self.clock.now();
        // Adjacent keys go to adjacent shards: cheaper than a second hash, and equally uniform.
        let mut map = self.shards[key as usize % 64].lock().expect("nobody panics");
        let time = map.entry(bytes(key)).or_default();
        let next = admit(*time, now);
        *time = next.unwrap_or(*time);
        next.is_some()
    }
}

struct Governor(DefaultKeyedRateLimiter<[u8; 16]>);

impl Contestant for Governor {
    fn decide(&self, key: u64) -> bool {
        self.0.check_key(&bytes(key)).is_ok()
    }
}

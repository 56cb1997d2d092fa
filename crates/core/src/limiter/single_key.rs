//! Decisions on a single key, for doors that are asked about a tag instead of a request.
//!
//! A hit is known when it arrives, so there is no open account. Several limits at once, and costs
//! that are known later: `limiter`.

use super::Limiter;
use crate::bucket::Algorithm;
use crate::classify::LimitKey;
use crate::units::{Cost, Nanos, Time};

impl Limiter {
    /// Decides on `hits` under one key, and charges them if they pass. Returns the time until they
    /// would pass; zero: they were charged.
    pub fn hit(&self, key: LimitKey, hits: u64, now: Time) -> Nanos {
        self.hit_by(&self.limits[usize::from(key.limit)].algorithm, key, hits, now)
    }

    /// Makes the processor load the bucket of a key from memory, for a `hit` that follows soon.
    pub fn prefetch(&self, key: LimitKey) {
        self.tables[usize::from(key.limit)].prefetch(key.hash);
    }

    /// Like `hit`, with other parameters than those of the key's limit; the table stores one word a
    /// key, and so must `algorithm`. Returns the time until the hits would pass; zero: they were
    /// charged. Refused hits are charged nothing, and in most cases no set is taken for them.
    pub fn hit_by(&self, algorithm: &Algorithm, key: LimitKey, hits: u64, now: Time) -> Nanos {
        let table = &self.tables[usize::from(key.limit)];
        let cost = Cost::hits(hits);
        if let Some(state) = table.peek(key.hash) {
            let wait = algorithm.wait(&[state], cost, now);
            if wait > Nanos::ZERO {
                return wait;
            }
        }
        let mut entry = table.take(key.hash);
        let wait = entry.with(|state| algorithm.wait(state, cost, now));
        if wait == Nanos::ZERO {
            let worth = |state: &[u64]| algorithm.worth(state, now);
            entry.change(|state| algorithm.charge(state, cost, now, now), worth);
        }
        wait
    }

    /// Records a hit at the time `at` that has been served already, whatever the level. Returns how
    /// long the next hit must wait. `at` is later than `now` if the hit is delayed until then.
    pub fn record(&self, key: LimitKey, at: Time, now: Time) -> Nanos {
        let algorithm = &self.limits[usize::from(key.limit)].algorithm;
        let mut entry = self.tables[usize::from(key.limit)].take(key.hash);
        let recorded = |state: &mut [u64]| {
            algorithm.charge(state, Cost::hits(1), at, now);
            algorithm.wait(state, Cost::ZERO, now)
        };
        entry.change(recorded, |state| algorithm.worth(state, now))
    }
}

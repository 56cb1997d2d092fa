//! One key alone: what doors ask that are asked about a tag, or told of one, and not of a request.
//!
//! There is no open account here: a hit is known when it comes. Several limits at once, and costs
//! that are known later: `limiter`.

use super::Limiter;
use crate::bucket::Algorithm;
use crate::classify::Key;
use crate::units::{Cost, Nanos, Time};

impl Limiter {
    /// Decides on `hits` under one key alone, and charges them if they pass: what a door asks that
    /// is asked about a tag and not about a request.
    pub fn hit(&self, key: Key, hits: u64, now: Time) -> Nanos {
        self.hit_by(&self.limits[usize::from(key.limit)].algorithm, key, hits, now)
    }

    /// Has the processor fetch a key's bucket from memory, for a `hit` that follows soon.
    pub fn touch(&self, key: Key) {
        self.tables[usize::from(key.limit)].touch(key.hash);
    }

    /// The same as `hit`, by other numbers than those of the key's limit; its table keeps one word
    /// a key, as `algorithm` must. Says how long until the hits would pass; zero: they were
    /// charged. Who is refused is charged nothing, and mostly without a set being taken.
    pub fn hit_by(&self, algorithm: &Algorithm, key: Key, hits: u64, now: Time) -> Nanos {
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

    /// Records a hit of the time `at` that has been served already, whatever the level, and says
    /// how long the next one is to wait. `at` lies ahead of `now` if the hit is delayed until then.
    pub fn record(&self, key: Key, at: Time, now: Time) -> Nanos {
        let algorithm = &self.limits[usize::from(key.limit)].algorithm;
        let mut entry = self.tables[usize::from(key.limit)].take(key.hash);
        let recorded = |state: &mut [u64]| {
            algorithm.charge(state, Cost::hits(1), at, now);
            algorithm.wait(state, Cost::ZERO, now)
        };
        entry.change(recorded, |state| algorithm.worth(state, now))
    }
}

//! What becomes of buckets beside deciding: charges that come from other instances, what an
//! instance tells of its buckets, and debts that somebody forgives.
//!
//! Nothing is decided here: what others have let in is charged whatever the level, and may bring a
//! bucket into debt. Who tells and who is told: `replica`; who carries between them: the engine, or
//! `sim`.

use super::Limiter;
use crate::key::KeyHash;
use crate::units::{Cost, Time};
use alloc::vec::Vec;

impl Limiter {
    /// Charges what another instance has let in, as of `at`, when it told: what has flowed in
    /// since then is the client's.
    pub fn absorb(&self, index: usize, hash: KeyHash, amount: Cost, at: Time, now: Time) {
        let (Some(limit), Some(table)) = (self.limits.get(index), self.tables.get(index)) else {
            return;
        };
        let worth = |state: &[u64]| limit.algorithm.worth(state, now);
        table.take(hash).change(|state| limit.algorithm.charge(state, amount, at, now), worth);
    }

    /// Another instance says that a bucket is short of `missing`: so it is, if it is not short of
    /// more. Nothing where a state is not such a number.
    pub fn absorb_state(&self, index: usize, hash: KeyHash, missing: Cost, now: Time) {
        let (Some(limit), Some(table)) = (self.limits.get(index), self.tables.get(index)) else {
            return;
        };
        let algorithm = &limit.algorithm;
        let Some(short) = algorithm.short_of(missing, now) else { return };
        let raise = |state: &mut [u64]| {
            if algorithm.missing(state, now).is_some_and(|here| here < missing) {
                state[0] = state[0].max(short);
            }
        };
        table.take(hash).change(raise, |state| algorithm.worth(state, now));
    }

    /// Forgives whatever the bucket `hash` of the limit at `index` owes: it is as if it had never
    /// been charged. Requests that run are settled all the same when they end. False if there is no
    /// such limit.
    pub fn forgive(&self, index: usize, hash: KeyHash) -> bool {
        let Some(table) = self.tables.get(index) else { return false };
        table.take(hash).change(|state| state.fill(0), |_| 0);
        true
    }

    /// What every bucket of the limit at `index` is short of, the weightiest `max` of them first.
    #[must_use]
    pub fn short(&self, index: usize, max: usize, now: Time) -> Vec<(KeyHash, Cost)> {
        let mut short = Vec::new();
        let (Some(limit), Some(table)) = (self.limits.get(index), self.tables.get(index)) else {
            return short;
        };
        table.for_each(|hash, state| {
            let missing = limit.algorithm.missing(state, now).unwrap_or(Cost::ZERO);
            if missing > Cost::ZERO {
                short.push((hash, missing));
            }
        });
        short.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        short.truncate(max);
        short
    }
}

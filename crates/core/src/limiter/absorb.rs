//! Changes to buckets without a decision: charges from other instances, the deficits that this
//! instance reports, waits that a master orders, and debts that an operator forgives.
//!
//! Remote charges are applied whatever the level, because the requests were admitted elsewhere;
//! they may bring a bucket into debt. The protocol between instances: `replica`; the transport: the
//! engine, or `sim`.

use super::Limiter;
use crate::key::KeyHash;
use crate::units::{Cost, Time};
use alloc::vec::Vec;

impl Limiter {
    /// Charges what another instance has admitted, as of the time `at` when it was sent. The refill
    /// since then stays with the client.
    pub fn absorb(&self, index: usize, hash: KeyHash, amount: Cost, at: Time, now: Time) {
        let (Some(limit), Some(table)) = (self.limits.get(index), self.tables.get(index)) else {
            return;
        };
        let worth = |state: &[u64]| limit.algorithm.worth(state, now);
        table.take(hash).change(|state| limit.algorithm.charge(state, amount, at, now), worth);
    }

    /// Raises the deficit of a bucket to `missing`, as a master orders it, if it is less here. Does
    /// nothing if the algorithm has no level.
    pub fn raise_deficit(&self, index: usize, hash: KeyHash, missing: Cost, now: Time) {
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

    /// Clears the bucket `hash` of the limit at `index`, as if it had never been charged: it is
    /// full again. A bucket raised only to a level of zero would be in debt again with the next
    /// request. The costs of requests that still run are charged as usual when they end. False if
    /// there is no such limit.
    pub fn forgive(&self, index: usize, hash: KeyHash) -> bool {
        let Some(table) = self.tables.get(index) else { return false };
        table.take(hash).change(|state| state.fill(0), |_| 0);
        true
    }

    /// The deficit of a bucket; `None` if there is no such limit, or if it has no level.
    #[must_use]
    pub fn missing(&self, index: usize, hash: KeyHash, now: Time) -> Option<Cost> {
        let (limit, table) = (self.limits.get(index)?, self.tables.get(index)?);
        table.take(hash).with(|state| limit.algorithm.missing(state, now))
    }

    /// The deficits of the buckets of the limit at `index`, the largest `max` of them, largest
    /// first.
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

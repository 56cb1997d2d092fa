//! Decisions that use bucket states from a store, which counts for several instances.
//!
//! The clock of the store differs from the local one, so it reports how long until a bucket is
//! full, not when. A report is never below the truth, except for charges that are still on the way
//! to the store. So a report only moves local buckets forward, never back, and the local buckets
//! can decide alone when the store is unreachable. The requests to the store itself are not made
//! here.

use super::Limiter;
pub use super::verdict::StoreBucketState;
use super::verdict::{LongestWaits, Reason};
use crate::bucket::Algorithm;
use crate::classify::LimitKey;
use crate::limit::{Limit, LimitAction, LimitUnit};
use crate::units::{Cost, Nanos, Time};

impl Limiter {
    /// The charge that a limit asks the store for when a request arrives: one hit, or nothing yet.
    #[must_use]
    pub fn initial_charge(limit: &Limit) -> Cost {
        if limit.unit == LimitUnit::Hits { Cost::hits(1) } else { Cost::ZERO }
    }

    /// The longest wait under a limit with which a request is still admitted; `None`: any wait. A
    /// limit in shadow mode admits any wait, or the store would charge no other limit.
    #[must_use]
    pub fn admitted_wait_max(&self, limit: &Limit) -> Option<Nanos> {
        match limit.action(self.policy.action) {
            _ if limit.shadow => None,
            LimitAction::Reject => Some(Nanos::ZERO),
            LimitAction::Delay | LimitAction::Hold => Some(self.policy.max_delay),
            LimitAction::Queue => None,
        }
    }

    /// Adds the wait for one limit to `standing` by the report of a store. Returns false, and adds
    /// none, if the local bucket decides: there is no report, or the limit does not follow it.
    #[inline]
    pub(super) fn weigh_report(
        &self,
        standing: &mut LongestWaits,
        key: &LimitKey,
        word: Option<&Option<StoreBucketState>>,
    ) -> bool {
        // Without a store there is no report, and this is all that it costs a request.
        let Some(Some(word)) = word else { return false };
        self.weigh_by(standing, *key, word)
    }

    fn weigh_by(
        &self,
        standing: &mut LongestWaits,
        key: LimitKey,
        word: &StoreBucketState,
    ) -> bool {
        let Some(reason) = self.reason(key, word) else { return false };
        if reason.wait > Nanos::ZERO {
            self.note_wait(standing, reason);
        }
        true
    }

    /// How far the bucket of `key` was moved if the store has charged the request for it already.
    #[inline]
    pub(super) fn charged_remotely(
        &self,
        key: LimitKey,
        word: Option<&Option<StoreBucketState>>,
    ) -> Option<Nanos> {
        let Some(Some(word)) = word else { return None };
        (word.charged && self.in_hits(key)).then(|| word.after.minus(word.before))
    }

    fn in_hits(&self, key: LimitKey) -> bool {
        self.limits[usize::from(key.limit)].unit == LimitUnit::Hits
    }

    /// The wait of a client under a limit in hits, from a store's report; `None`: the local bucket
    /// decides.
    fn reason(&self, key: LimitKey, word: &StoreBucketState) -> Option<Reason> {
        let limit = &self.limits[usize::from(key.limit)];
        let Algorithm::Debt(debt) = &limit.algorithm else { return None };
        let full_at = word.clock.plus(word.before);
        let wait = debt.wait(full_at, Self::initial_charge(limit), word.clock);
        let level = Some(debt.level(full_at, word.clock));
        self.in_hits(key).then_some(Reason { key, level, wait })
    }

    /// Time until the bucket of `key` is full, or free, according to the local state.
    #[must_use]
    pub fn ahead(&self, key: LimitKey, now: Time) -> Nanos {
        let index = usize::from(key.limit);
        let (Some(limit), Some(table)) = (self.limits.get(index), self.tables.get(index)) else {
            return Nanos::ZERO;
        };
        table.take(key.hash).with(|state| limit.algorithm.ahead(state, now))
    }

    /// Makes the bucket of `key` full, or free, no earlier than `ahead` from now.
    pub fn raise(&self, key: LimitKey, ahead: Nanos, now: Time) {
        let index = usize::from(key.limit);
        let (Some(limit), Some(table)) = (self.limits.get(index), self.tables.get(index)) else {
            return;
        };
        if ahead == Nanos::ZERO {
            return;
        }
        let worth = |state: &[u64]| limit.algorithm.worth(state, now);
        table.take(key.hash).change(|state| limit.algorithm.raise(state, ahead, now), worth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::debt::DebtBucket;
    use crate::bucket::sliding::SlidingWindow;
    use crate::classify::LimitKeys;
    use crate::condition::Condition;
    use crate::key::{KeyHash, KeySeed};
    use crate::limit::KeyPart;
    use crate::limiter::{LimiterPolicy, Verdict};
    use crate::sim::random::SimRandom;
    use crate::units::{ExactRate, Weight};
    use alloc::vec;
    use alloc::vec::Vec;

    fn limit(name: &str, unit: LimitUnit, action: Option<LimitAction>, burst: u64) -> Limit {
        let rate = ExactRate::ONE_PER_SECOND.rate();
        let algorithm = match (name, SlidingWindow::new(Nanos::from_secs(2), Cost::hits(3))) {
            ("window", Ok(sliding)) => Algorithm::Sliding(sliding),
            _ => Algorithm::Debt(DebtBucket::new(rate, Cost::hits(burst))),
        };
        Limit {
            name: name.into(),
            by: vec![KeyPart::All],
            when: Condition::default(),
            unit,
            algorithm,
            action,
            weight: Weight::ONE,
            keys_max: 100,
            shadow: false,
        }
    }

    fn limits() -> Vec<Limit> {
        vec![
            limit("rate", LimitUnit::Hits, None, 3),
            limit("slow", LimitUnit::Hits, Some(LimitAction::Delay), 2),
            limit("hold", LimitUnit::Hits, Some(LimitAction::Hold), 2),
            limit("cpu", LimitUnit::Cpu, Some(LimitAction::Reject), 2),
            limit("late", LimitUnit::Cpu, Some(LimitAction::Delay), 1),
            limit("window", LimitUnit::Cpu, Some(LimitAction::Reject), 0),
            limit("queue", LimitUnit::Cpu, Some(LimitAction::Queue), 1),
        ]
    }

    fn limiter() -> Limiter {
        let policy = LimiterPolicy { action: LimitAction::Reject, max_delay: Nanos::from_secs(4) };
        Limiter::new(policy, limits(), KeySeed([5; 16]))
    }

    fn give_back(limiter: &Limiter, key: LimitKey, moved: Nanos, now: Time) {
        if moved > Nanos::ZERO {
            let index = usize::from(key.limit);
            let worth = |state: &[u64]| limiter.limits()[index].algorithm.worth(state, now);
            let back = |state: &mut [u64]| state[0] = state[0].saturating_sub(moved.0);
            limiter.tables()[index].take(key.hash).change(back, worth);
        }
    }

    /// `raise` never moves a bucket back, and a limit in CPU time is decided by the local state,
    /// whatever the store reports.
    #[test]
    fn what_others_have_used_is_owed_here() {
        let (told, now) = (limiter(), Time(1_000_000_000_000_000_000));
        let key = LimitKey { limit: 3, hash: KeyHash::from_bits(1) };
        let mut keys = LimitKeys::default();
        keys.push(key);
        told.raise(key, Nanos::from_secs(3), now);
        told.raise(key, Nanos::from_secs(1), now);
        assert_eq!(told.ahead(key, now), Nanos::from_secs(3));
        let second = Nanos::from_secs(1);
        let word =
            StoreBucketState { before: second, after: second, charged: false, clock: Time(5) };
        for words in [&[Some(word)][..], &[None], &[]] {
            let (verdict, _) = told.ask_with_remote(&keys, words, Cost::ZERO, now);
            let Verdict::Deny { retry_after, .. } = verdict else { panic!("{verdict:?}") };
            assert_eq!(retry_after, second);
        }
        // This works for a history and for the block of a window too, and a debt ends with time.
        let window = LimitKey { limit: 5, ..key };
        told.raise(window, second, now);
        assert_eq!(told.standing_of(5, window.hash, now).wait, second);
        assert_eq!(told.ahead(key, now.plus(Nanos::from_secs(9))), Nanos::ZERO);
    }

    /// `store` stands for a store with a clock hours ahead, `told` for an instance that asks it,
    /// and `told` must decide as `alone` does. The store decides by the limits it can: it does not
    /// know what runs.
    #[test]
    fn who_is_told_decides_as_one_who_counts_everything() {
        let mut random = SimRandom::new(11, 0);
        let mut below = |bound: u64| random.bits() % bound;
        let (alone, store, told) = (limiter(), limiter(), limiter());
        let (mut now, apart) = (Time(1_000_000_000_000_000_000), Nanos::from_secs(10_000));
        let (mut verdicts, mut open) = ([0; 3], Vec::new());
        for _ in 0..20_000 {
            now = now.plus(Nanos(below(700_000_000)));
            let clock = now.plus(apart);
            let mut keys = LimitKeys::default();
            for limit in 0..7 {
                if below(3) > 0 {
                    keys.push(LimitKey { limit, hash: KeyHash::from_bits(1 + below(2)) });
                }
            }
            let estimate = Cost(below(400_000_000));
            let (verdict, ticket) = alone.ask(&keys, estimate, now);
            let ahead = |key: &LimitKey| store.ahead(*key, clock);
            let before: Vec<Nanos> = keys.as_slice().iter().map(ahead).collect();
            let refused = keys.as_slice().iter().zip(&before).any(|(key, before)| {
                let limit = &store.limits()[usize::from(key.limit)];
                let state = [clock.plus(*before).0; 2];
                let wait = limit.algorithm.wait(&state, Limiter::initial_charge(limit), clock);
                store.admitted_wait_max(limit).is_some_and(|patience| wait > patience)
            });
            let words: Vec<Option<StoreBucketState>> = keys
                .as_slice()
                .iter()
                .zip(before)
                .map(|(key, before)| {
                    let asked = Limiter::initial_charge(&store.limits()[usize::from(key.limit)]);
                    if !refused && asked > Cost::ZERO {
                        store.absorb(usize::from(key.limit), key.hash, asked, clock, clock);
                    }
                    let after = store.ahead(*key, clock);
                    told.raise(*key, after, now);
                    Some(StoreBucketState { before, after, charged: !refused, clock })
                })
                .collect();
            let (there, other) = told.ask_with_remote(&keys, &words, estimate, now);
            if matches!(verdict, Verdict::Deny { .. }) && !refused {
                // The store has charged a request that is refused because of what runs here.
                for (key, word) in keys.as_slice().iter().zip(words.iter().flatten()) {
                    let moved = word.after.minus(word.before);
                    give_back(&store, *key, moved, clock);
                    give_back(&told, *key, moved, now);
                }
            }
            assert_eq!(there, verdict, "at {now:?}");
            verdicts[match verdict {
                Verdict::Allow => 0,
                Verdict::Delay(_) => 1,
                Verdict::Deny { .. } => 2,
            }] += 1;
            if !matches!(verdict, Verdict::Deny { .. }) {
                assert_eq!(ticket.starts_at(), other.starts_at());
                open.push((ticket, other));
            }
            // Some requests end; the store does not learn their costs here.
            while open.len() > below(4) as usize {
                let (ticket, other) = open.swap_remove(below(open.len() as u64) as usize);
                let cost = Cost(below(600_000_000));
                alone.settle(&ticket, cost, now);
                told.settle(&other, cost, now);
            }
        }
        assert!(verdicts.iter().all(|count| *count > 500), "{verdicts:?}");
    }
}

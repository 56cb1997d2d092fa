//! What somebody else says of buckets who counts for several instances: a store.
//!
//! Its clock is not ours, so it says how long until a bucket is full, not when. What it says is
//! never less than the truth but for what is under way to it, so buckets here are only put off by
//! it; then they decide as well as any when it is away.

use super::{Limiter, Reason, Standing, Ticket, Verdict, admitted};
use crate::bucket::Algorithm;
use crate::classify::{Key, Keys};
use crate::limit::{Action, LIMITS_MAX, Limit, Unit};
use crate::table::Entry;
use crate::units::{Cost, Nanos, Time};

/// What a store says of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// How long until the bucket is full, or where it has no level, free: before this question,
    pub before: Nanos,
    /// and after it.
    pub after: Nanos,
    /// Whether it was charged what was asked for.
    pub charged: bool,
    /// The store's clock at that moment.
    pub clock: Time,
}

impl Limiter {
    /// What a limit asks a store to charge when a request comes: a hit, or nothing yet.
    #[must_use]
    pub fn asks(limit: &Limit) -> Cost {
        if limit.unit == Unit::Hits { Cost::hits(1) } else { Cost::ZERO }
    }

    /// The longest wait under a limit with which a request is let in; `None`: whatever the wait.
    #[must_use]
    pub fn patience(&self, limit: &Limit) -> Option<Nanos> {
        match limit.action(self.policy.action) {
            Action::Reject => Some(Nanos::ZERO),
            Action::Delay | Action::Hold => Some(self.policy.max_delay),
            Action::Queue => None,
        }
    }

    /// As [`Limiter::ask`], where a store has been asked first: `words` are what it says of the
    /// keys, in their order, and nothing of those that it did not answer for. Hits that it has
    /// charged are not charged again, and limits in hits stand as it says. Of limits in CPU time
    /// more is known here: what runs just now.
    #[must_use]
    pub fn ask_told(
        &self,
        keys: &Keys,
        words: &[Option<Word>],
        estimate: Cost,
        now: Time,
    ) -> (Verdict, Ticket) {
        let mut ticket = Ticket::new(keys, estimate, now);
        let keys = keys.as_slice();
        let word = |place: usize| words.get(place).copied().flatten();
        let mut sets: [Option<Entry<'_>>; LIMITS_MAX] = [const { None }; LIMITS_MAX];
        let mut standing = Standing::default();
        for (place, (set, key)) in sets.iter_mut().zip(keys).enumerate() {
            let entry = self.tables[usize::from(key.limit)].take(key.hash);
            match word(place).and_then(|word| self.reason(*key, &word)) {
                _ if !self.has_a_say(key) => {}
                Some(reason) if reason.wait > Nanos::ZERO => {
                    let limit = &self.limits[usize::from(key.limit)];
                    standing.add(limit.action(self.policy.action), reason);
                }
                Some(_) => {}
                None => entry.with(|state| self.weigh(&mut standing, key, state, now)),
            }
            *set = Some(entry);
        }
        if let Some(deny) = self.refusal(&standing) {
            return (deny, ticket);
        }
        let verdict = admitted(&standing, &mut ticket, now);
        for (place, (key, set)) in keys.iter().zip(&mut sets).enumerate() {
            match (word(place), set) {
                (Some(word), _) if word.charged && self.in_hits(*key) => {
                    ticket.moved.as_mut_slice()[place] = word.after.minus(word.before);
                }
                (_, Some(entry)) => self.charge_one(*key, &mut ticket, place, entry, now),
                (_, None) => {}
            }
        }
        (verdict, ticket)
    }

    fn in_hits(&self, key: Key) -> bool {
        self.limits[usize::from(key.limit)].unit == Unit::Hits
    }

    /// How a client stands under a limit in hits, as a store says; `None`: that is up to us.
    fn reason(&self, key: Key, word: &Word) -> Option<Reason> {
        let limit = &self.limits[usize::from(key.limit)];
        let Algorithm::Debt(debt) = &limit.algorithm else { return None };
        let full_at = word.clock.plus(word.before);
        let wait = debt.wait(full_at, Self::asks(limit), word.clock);
        let level = Some(debt.level(full_at, word.clock));
        self.in_hits(key).then_some(Reason { key, level, wait })
    }

    /// How long until the bucket of `key` is full, or free, as far as is known here.
    #[must_use]
    pub fn ahead(&self, key: Key, now: Time) -> Nanos {
        let index = usize::from(key.limit);
        let (Some(limit), Some(table)) = (self.limits.get(index), self.tables.get(index)) else {
            return Nanos::ZERO;
        };
        table.take(key.hash).with(|state| limit.algorithm.ahead(state, now))
    }

    /// The bucket of `key` is full, or free, no earlier than `ahead` from now.
    pub fn raise(&self, key: Key, ahead: Nanos, now: Time) {
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

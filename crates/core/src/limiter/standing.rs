//! Reads the state of buckets: how long until clients are within their limits, and how large their
//! debts are.
//!
//! Reading charges nothing. The decision on requests: `limiter`.

use super::verdict::{Reason, longer};
use super::{Limiter, Ticket};
use crate::bucket::Algorithm;
use crate::classify::{LimitKey, LimitKeys};
use crate::key::KeyHash;
use crate::limit::{Limit, LimitAction};
use crate::units::{Cost, Nanos, Time};

impl Limiter {
    /// How long an admitted request would have to wait until it owes nothing under limits with this
    /// action; at most `max_delay`. `shadow`: of limits in shadow mode, otherwise of all others.
    #[must_use]
    pub fn debt(
        &self,
        ticket: &Ticket,
        action: LimitAction,
        shadow: bool,
        now: Time,
    ) -> Option<Reason> {
        let mut longest = None;
        for key in ticket.keys.as_slice() {
            let limit = &self.limits[usize::from(key.limit)];
            let applies = limit.shadow == shadow && limit.action(self.policy.action) == action;
            let standing = self.standing_without_own(ticket, *key, now);
            if applies && standing.wait > Nanos::ZERO {
                longest = longer(longest, Some(standing));
            }
        }
        longest.map(|reason| Reason { wait: reason.wait.min(self.policy.max_delay), ..reason })
    }

    /// The state of a bucket of an admitted request now, without what the request itself was
    /// charged: a request does not wait for its own cost.
    #[must_use]
    pub fn standing_without_own(&self, ticket: &Ticket, key: LimitKey, now: Time) -> Reason {
        let mut charged = ticket.keys.as_slice().iter().zip(ticket.moved.as_slice());
        let own = charged.find_map(|(of, moved)| (*of == key).then_some(*moved));
        let own = own.unwrap_or_default();
        let index = usize::from(key.limit);
        let Reason { mut level, wait, .. } = self.standing_of(index, key.hash, now);
        if let (Some(level), Some(limit)) = (&mut level, self.limits.get(index))
            && let Algorithm::Debt(debt) = &limit.algorithm
        {
            *level = debt.with_back(*level, own);
        }
        Reason { key, level, wait: wait.minus(own) }
    }

    /// Whether the client of a request is in debt now, without what the request itself was charged.
    /// Takes no set, like [`Limiter::furthest_in_debt`].
    #[must_use]
    pub fn owes(&self, ticket: &Ticket, now: Time) -> bool {
        ticket.keys.as_slice().iter().zip(ticket.moved.as_slice()).any(|(key, own)| {
            let index = usize::from(key.limit);
            let limit = &self.limits[index];
            let (Algorithm::Debt(debt), false) = (&limit.algorithm, limit.shadow) else {
                return false;
            };
            let full_at = self.tables[index].peek(key.hash);
            full_at.is_some_and(|at| debt.wait(Time(at), Cost::ZERO, now) > *own)
        })
    }

    /// The wait, from the start of a request, that the bucket of its key at `place` demands. If the
    /// limit decides before the request runs, without what the request itself was charged. Zero if
    /// the limit has no debt bucket, or the bucket is absent. Takes no set, like
    /// [`Limiter::furthest_in_debt`].
    #[must_use]
    pub fn overdue(&self, ticket: &Ticket, place: usize) -> Nanos {
        let (Some(key), Some(own)) =
            (ticket.keys.as_slice().get(place), ticket.moved.as_slice().get(place))
        else {
            return Nanos::ZERO;
        };
        let index = usize::from(key.limit);
        let (Algorithm::Debt(debt), Some(full_at)) =
            (&self.limits[index].algorithm, self.tables[index].peek(key.hash))
        else {
            return Nanos::ZERO;
        };
        let wait = debt.wait(Time(full_at), Cost::ZERO, ticket.at);
        if self.holds(&self.limits[index]) { wait } else { wait.minus(*own) }
    }

    /// The quota that others have used up since an admitted request was asked about, before it
    /// began to run: what they have cost is more than was reserved for them. `None` if something
    /// is left of all of them.
    #[must_use]
    pub fn used_up(&self, ticket: &Ticket, now: Time) -> Option<Reason> {
        let places = ticket.keys.as_slice().iter().enumerate();
        let waits = places.filter_map(|(place, key)| {
            let index = usize::from(key.limit);
            let limit = &self.limits[index];
            let Algorithm::Quota(quota) = &limit.algorithm else { return None };
            if limit.shadow || !ticket.is_counted(place) {
                return None;
            }
            self.tables[index].take(key.hash).with(|state| {
                let (level, wait) = (Some(quota.level(state, now)), quota.wait_for_use(state, now));
                (wait > Nanos::ZERO).then_some(Reason { key: *key, level, wait })
            })
        });
        waits.max_by_key(|reason| reason.wait)
    }

    /// The bucket of a request that is furthest in debt, as a multiple of its burst; `None`: the
    /// client is in credit. Must be called before `ask`, which charges the request itself. Takes no
    /// set: a bucket that is being moved at this moment counts as in credit.
    #[must_use]
    pub fn furthest_in_debt(&self, keys: &LimitKeys, now: Time) -> Option<LimitKey> {
        self.furthest(keys, now, |limit| !limit.shadow)
    }

    /// The same among limits in shadow mode that would make the request wait in the queue.
    #[must_use]
    pub fn furthest_in_shadow_debt(&self, keys: &LimitKeys, now: Time) -> Option<LimitKey> {
        let queues = |limit: &Limit| limit.action(self.policy.action) == LimitAction::Queue;
        self.furthest(keys, now, |limit| limit.shadow && queues(limit))
    }

    fn furthest(
        &self,
        keys: &LimitKeys,
        now: Time,
        of: impl Fn(&Limit) -> bool,
    ) -> Option<LimitKey> {
        let late = keys.as_slice().iter().filter_map(|key| {
            let index = usize::from(key.limit);
            let limit = &self.limits[index];
            let Algorithm::Debt(debt) = &limit.algorithm else { return None };
            if !of(limit) {
                return None;
            }
            let lateness = debt.lateness(Time(self.tables[index].peek(key.hash)?), now);
            (lateness > 0.0).then_some((lateness, *key))
        });
        late.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, key)| key)
    }

    /// Whether the bucket `hash` of the limit at `index` is in debt now. Takes no set, like
    /// [`Limiter::furthest_in_debt`].
    #[must_use]
    pub fn is_in_debt(&self, index: usize, hash: KeyHash, now: Time) -> bool {
        let (Some(limit), Some(table)) = (self.limits.get(index), self.tables.get(index)) else {
            return false;
        };
        let Algorithm::Debt(debt) = &limit.algorithm else { return false };
        let full_at = table.peek(hash).map_or(Time::ZERO, Time);
        debt.wait(full_at, Cost::ZERO, now) > Nanos::ZERO
    }

    /// The state of bucket `hash` of the limit at `index` now. An absent bucket owes nothing.
    #[must_use]
    pub fn standing_of(&self, index: usize, hash: KeyHash, now: Time) -> Reason {
        let key = LimitKey { limit: index as u8, hash };
        let (Some(limit), Some(table)) = (self.limits.get(index), self.tables.get(index)) else {
            return Reason { key, level: None, wait: Nanos::ZERO };
        };
        table.take(hash).with(|state| {
            let wait = limit.algorithm.wait(state, Cost::ZERO, now);
            Reason { key, level: limit.algorithm.level(state, now), wait }
        })
    }
}

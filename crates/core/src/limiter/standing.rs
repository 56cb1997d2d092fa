//! How clients stand: how long until they are within their limits, and how far they are beyond.
//!
//! Nothing is charged by asking. What a request is let in by: `limiter`.

use super::{Limiter, Reason, Shadowed, Ticket, longer};
use crate::bucket::Algorithm;
use crate::classify::{Key, Keys};
use crate::key::KeyHash;
use crate::limit::{Action, Limit};
use crate::units::{Cost, Nanos, Time};

/// The longest wait that a request has of each kind.
#[derive(Default)]
pub(super) struct Standing {
    pub refusing: Option<Reason>,
    pub delaying: Option<Reason>,
    pub holding: Option<Reason>,
    pub shadowed: Option<Shadowed>,
}

impl Standing {
    pub fn add(&mut self, action: Action, reason: Reason) {
        let place = match action {
            Action::Reject => &mut self.refusing,
            Action::Delay => &mut self.delaying,
            Action::Hold => &mut self.holding,
            // It is let in; where it waits is up to `latest`.
            Action::Queue => return,
        };
        *place = longer(*place, Some(reason));
    }
}

impl Limiter {
    /// How long a request that was let in would have to wait until it owes nothing under limits
    /// with this action; at most `max_delay`. Of limits in shadow, or of all others.
    #[must_use]
    pub fn debt(&self, ticket: &Ticket, action: Action, shadow: bool, now: Time) -> Option<Reason> {
        let mut longest = None;
        for key in ticket.keys.as_slice() {
            let limit = &self.limits[usize::from(key.limit)];
            let applies = limit.shadow == shadow && limit.action(self.policy.action) == action;
            let standing = self.standing_beside(ticket, *key, now);
            if applies && standing.wait > Nanos::ZERO {
                longest = longer(longest, Some(standing));
            }
        }
        longest.map(|reason| Reason { wait: reason.wait.min(self.policy.max_delay), ..reason })
    }

    /// How a bucket of a request that was let in stands now, without what the request itself has
    /// been charged: that is no reason for it to wait.
    #[must_use]
    pub fn standing_beside(&self, ticket: &Ticket, key: Key, now: Time) -> Reason {
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

    /// Whether a request's client is in debt now, without what the request itself has been charged.
    /// Takes no set, like [`Limiter::latest`].
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

    /// For how long, from the start of a request, the bucket of its key at `place` asks it to wait.
    /// Where that is decided before the request runs, it is without what the request itself has
    /// been charged. Zero where a limit refuses instead. Takes no set, like [`Limiter::latest`].
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

    /// Of a request's buckets the one furthest in debt, by its own burst; `None`: it is in credit.
    /// To be asked before `ask`, which charges the request itself. Takes no set: a bucket that is
    /// being moved just now counts as in credit.
    #[must_use]
    pub fn latest(&self, keys: &Keys, now: Time) -> Option<Key> {
        self.furthest(keys, now, |limit| !limit.shadow)
    }

    /// The same among those that would have it wait in the queue if they were not in shadow.
    #[must_use]
    pub fn latest_in_shadow(&self, keys: &Keys, now: Time) -> Option<Key> {
        let queues = |limit: &Limit| limit.action(self.policy.action) == Action::Queue;
        self.furthest(keys, now, |limit| limit.shadow && queues(limit))
    }

    fn furthest(&self, keys: &Keys, now: Time, of: impl Fn(&Limit) -> bool) -> Option<Key> {
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

    /// How the bucket `hash` of the limit at `index` stands now; nothing owed if there is none.
    #[must_use]
    pub fn standing_of(&self, index: usize, hash: KeyHash, now: Time) -> Reason {
        let key = Key { limit: index as u8, hash };
        let (Some(limit), Some(table)) = (self.limits.get(index), self.tables.get(index)) else {
            return Reason { key, level: None, wait: Nanos::ZERO };
        };
        table.take(hash).with(|state| {
            let wait = limit.algorithm.wait(state, Cost::ZERO, now);
            Reason { key, level: limit.algorithm.level(state, now), wait }
        })
    }
}

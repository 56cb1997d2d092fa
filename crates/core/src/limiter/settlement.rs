//! Charges running requests as their cost becomes known, and closes their accounts.
//!
//! The charge at admission: `limiter`.

use super::verdict::{BlockStarted, Reason, ShadowEffect, longer};
use super::{Limiter, Ticket};
use crate::bucket::Algorithm;
use crate::limit::{Limit, LimitAction, LimitUnit, UnitCosts};
use crate::units::{Cost, Nanos, Time};

impl Limiter {
    /// Raises the charge of a running request to its `cost` so far. Returns for how long the head
    /// of the response must be held, counted from the start of the request, and why.
    pub fn charge(
        &self,
        ticket: &mut Ticket,
        cost: impl Into<UnitCosts>,
        now: Time,
    ) -> Option<Reason> {
        let (cost, charged) = (cost.into(), ticket.charged);
        ticket.charged = charged.max(cost);
        let (mut longest, mut shadowed) = (ticket.hold, None);
        for (place, key) in ticket.keys.as_slice().iter().enumerate() {
            let limit = &self.limits[usize::from(key.limit)];
            let Algorithm::Debt(debt) = &limit.algorithm else { continue };
            if limit.unit == LimitUnit::Hits || !self.holds(limit) || !ticket.is_counted(place) {
                continue;
            }
            let more = cost.of(limit.unit).minus(charged.of(limit.unit));
            let mut entry = self.tables[usize::from(key.limit)].take(key.hash);
            let mut state = [entry.get(0)];
            let before = Time(state[0]);
            let moved = limit.algorithm.charge(&mut state, more, ticket.at, now);
            let all = &mut ticket.moved.as_mut_slice()[place];
            *all = all.plus(moved);
            entry.put(&state, worth_to(limit, ticket, now));
            let wait = debt.wait(Time(state[0]), Cost::ZERO, ticket.at);
            if wait > Nanos::ZERO {
                let level = Some(debt.level(before, ticket.at));
                let reason = Reason { key: *key, level, wait };
                let of = if limit.shadow { &mut shadowed } else { &mut longest };
                *of = longer(*of, Some(reason));
            }
        }
        let bounded =
            |reason: Reason| Reason { wait: reason.wait.min(self.policy.max_delay), ..reason };
        if let Some(reason) = shadowed {
            ticket.shadowed =
                Some(ShadowEffect { action: LimitAction::Hold, reason: bounded(reason) });
        }
        longest.map(bounded)
    }

    /// Charges the cost so far of a running request under limits that take an estimate: what
    /// exceeds the estimate, and what replaces a part of a reservation.
    pub fn charge_so_far(&self, ticket: &mut Ticket, cost: UnitCosts, now: Time) {
        let before = ticket.so_far;
        ticket.so_far = before.max(cost);
        for (place, key) in ticket.keys.as_slice().iter().enumerate() {
            let limit = &self.limits[usize::from(key.limit)];
            if limit.unit == LimitUnit::Hits || self.holds(limit) || !ticket.is_counted(place) {
                continue;
            }
            let [estimate, before, cost] =
                [ticket.estimate, before, cost].map(|costs| costs.of(limit.unit));
            let change = |state: &mut [u64]| match &limit.algorithm {
                Algorithm::Debt(_) => {
                    let more = cost.minus(estimate.max(before));
                    limit.algorithm.hold(state, more, now, now)
                }
                Algorithm::Quota(quota) => {
                    quota.release(state, estimate.minus(before).minus(estimate.minus(cost)));
                    limit.algorithm.charge(state, cost.minus(before), now, now)
                }
                _ => Nanos::ZERO,
            };
            let mut entry = self.tables[usize::from(key.limit)].take(key.hash);
            let moved = entry.change(change, worth_to(limit, ticket, now));
            let all = &mut ticket.moved.as_mut_slice()[place];
            *all = all.plus(moved);
        }
    }

    /// Closes the account with the actual cost.
    pub fn settle(&self, ticket: &Ticket, cost: impl Into<UnitCosts>, now: Time) {
        self.settle_and(ticket, cost, now, |_| ());
    }

    /// Like `settle`, and calls `tell` for each block that this starts. The set of the bucket is
    /// held during the call, so `tell` must not use the limiter.
    pub fn settle_and(
        &self,
        ticket: &Ticket,
        cost: impl Into<UnitCosts>,
        now: Time,
        mut tell: impl FnMut(BlockStarted),
    ) {
        let costs = cost.into();
        for (place, key) in ticket.keys.as_slice().iter().enumerate() {
            let limit = &self.limits[usize::from(key.limit)];
            if limit.unit == LimitUnit::Hits || !ticket.is_counted(place) {
                continue;
            }
            let cost = costs.of(limit.unit);
            let [estimate, charged] =
                [ticket.estimate, ticket.so_far].map(|costs| costs.of(limit.unit));
            let so_far = match &limit.algorithm {
                _ if self.holds(limit) => ticket.charged.of(limit.unit),
                Algorithm::Debt(debt) => {
                    debt.held(estimate.max(charged), ticket.moved.as_slice()[place])
                }
                Algorithm::Quota(_) => charged,
                _ => estimate,
            };
            let (more, over) = (cost.minus(so_far), so_far.minus(cost));
            let debt = matches!(limit.algorithm, Algorithm::Debt(_));
            if debt && more == Cost::ZERO && over == Cost::ZERO {
                // The full cost is charged already.
                continue;
            }
            let cost = if debt { more } else { cost };
            let mut entry = self.tables[usize::from(key.limit)].take(key.hash);
            let settled = |state: &mut [u64]| match &limit.algorithm {
                Algorithm::Sliding(sliding) => {
                    if sliding.record(state, cost, now) {
                        tell(BlockStarted { key: *key, sum: sliding.sum(state, now) });
                    }
                }
                Algorithm::Debt(debt) if over > Cost::ZERO => {
                    let moved = ticket.moved.as_slice()[place];
                    state[0] = debt.refund(Time(state[0]), over, moved, ticket.asked, now).0;
                }
                Algorithm::Quota(quota) => {
                    quota.release(state, estimate.minus(charged));
                    quota.charge(state, more, now);
                }
                algorithm => {
                    algorithm.charge(state, cost, ticket.at, now);
                }
            };
            entry.change(settled, worth_to(limit, ticket, now));
        }
    }
}

/// The worth of a bucket after a charge for `ticket`. A debt bucket that is full by now was not
/// full when the request started, and other requests that started with it are still to be charged.
/// If the bucket were forgotten, a client with many parallel requests would get the refill for each
/// of them.
fn worth_to(limit: &Limit, ticket: &Ticket, now: Time) -> impl Fn(&[u64]) -> u64 {
    let since = match limit.algorithm {
        Algorithm::Debt(_) => ticket.at.min(now),
        _ => now,
    };
    move |words| limit.algorithm.worth(words, since)
}

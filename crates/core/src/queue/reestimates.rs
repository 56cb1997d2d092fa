//! When waiting requests get the current estimates of their routes (`routes`).
//!
//! A request gets the current estimate when its turn seems to have come, because it may cost more
//! by now. If it costs less by now, its turn does not seem to come: later requests, which arrived
//! with the lower estimate, go first. So when an estimate has fallen, a round begins, in which
//! each waiting request gets the current estimate, the oldest first. Each arrival and each
//! dispatch takes the round one request further, so it is never behind the requests that are
//! dispatched.

use super::Queue;
use super::place::Place;
use super::request::RequestId;
use crate::key::KeyHash;
use crate::units::Time;
use core::mem;

impl Queue {
    /// The request that is next by the current estimates, if there is a slot for it.
    pub(super) fn next_reestimated(&mut self, now: Time) -> Option<(RequestId, KeyHash, Place)> {
        loop {
            let (client, place) = self.next(now)?;
            let id = self.first_of(client)?;
            if !self.reestimate(id)? {
                return Some((id, client, place));
            }
        }
    }

    /// Gives the next request of the round the current estimate. If an estimate has fallen, a new
    /// round begins after the present one.
    pub(super) fn reestimate_in_round(&mut self) {
        let mut next = self.waiting.next_in_round();
        if next.is_none() && self.routes.take_fall() {
            self.waiting.start_round();
            next = self.waiting.next_in_round();
        }
        if let Some(id) = next {
            self.reestimate(id);
        }
    }

    /// Gives a waiting request the current estimate, and the place among the others that it then
    /// has. Returns whether the estimate has changed; `None` if the request does not wait.
    fn reestimate(&mut self, id: RequestId) -> Option<bool> {
        let waiting = self.waiting.get_mut(id)?;
        let Some((known, is_guess)) = self.routes.newer_estimate(waiting) else {
            return Some(false);
        };
        waiting.is_guess = is_guess;
        let (client, before) = (waiting.client, mem::replace(&mut waiting.estimate, known));
        self.count(client, |crowd| crowd.minus(before).plus(known));
        self.refresh(client);
        Some(true)
    }
}

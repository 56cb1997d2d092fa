//! Limits in shadow mode: they decide and count like any other, but have no effect on requests.
//!
//! The effect that they would have had is noted on the ticket of the request, for logs and metrics.
//! A limit in shadow mode does not count requests that it would have refused. Otherwise it would
//! soon refuse everything, unlike the same limit when it is enforced.

use super::Limiter;
use super::standing::LongestWaits;
use crate::classify::LimitKey;
use crate::limit::{LimitAction, LimitUnit};
use crate::limiter::Reason;
use crate::table::TableEntry;
use crate::units::{Cost, Nanos, Time};

/// The effect that a limit in shadow mode would have had on a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShadowEffect {
    /// `Reject`, `Delay` or `Hold`.
    pub action: LimitAction,
    /// The limit, and the state of the client's bucket there.
    pub reason: Reason,
}

impl Limiter {
    /// The effect that a limit in shadow mode would have before the request runs. `None` if it
    /// would hold the response, because the cost is unknown at this time, or queue the request. A
    /// wait that is too long is a refusal.
    pub(super) fn shadowed(&self, shadowed: ShadowEffect) -> Option<ShadowEffect> {
        let too_long = shadowed.reason.wait > self.policy.max_delay;
        match shadowed.action {
            LimitAction::Reject => Some(shadowed),
            _ if too_long => Some(ShadowEffect { action: LimitAction::Reject, ..shadowed }),
            LimitAction::Delay => Some(shadowed),
            LimitAction::Hold | LimitAction::Queue => None,
        }
    }

    /// Whether a limit in shadow mode would refuse the request, and so does not count it.
    pub(super) fn would_refuse(&self, key: &LimitKey, entry: &TableEntry<'_>, now: Time) -> bool {
        let limit = &self.limits[usize::from(key.limit)];
        let needed = if limit.unit == LimitUnit::Hits { Cost::hits(1) } else { Cost::ZERO };
        limit.shadow
            && limit.action(self.policy.action) == LimitAction::Reject
            && entry.with(|state| limit.algorithm.wait(state, needed, now)) > Nanos::ZERO
    }
}

impl LongestWaits {
    /// Notes what a limit in shadow mode would do. Refusals take precedence, then longer waits.
    pub(super) fn note(&mut self, shadowed: ShadowEffect) {
        let rank = |one: &ShadowEffect| (one.action == LimitAction::Reject, one.reason.wait);
        if self.shadowed.is_none_or(|noted| rank(&shadowed) > rank(&noted)) {
            self.shadowed = Some(shadowed);
        }
    }
}

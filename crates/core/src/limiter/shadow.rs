//! Limits in shadow: they decide and count like any other, and what they say keeps nobody.
//!
//! What they would have done is noted on the request's ticket, for whoever tells people. What a
//! limit would have refused it does not count: else it would soon refuse everything, and show
//! another picture than when it is enforced.

use super::Limiter;
use super::standing::Standing;
use crate::classify::Key;
use crate::limit::{Action, Unit};
use crate::limiter::Reason;
use crate::table::Entry;
use crate::units::{Cost, Nanos, Time};

/// What a limit in shadow would have done to a request, had it a say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shadowed {
    /// `Reject`, `Delay` or `Hold`.
    pub action: Action,
    /// Which limit, and how the client stood there.
    pub reason: Reason,
}

impl Limiter {
    /// What a limit in shadow says of a request before it runs: nothing where it would hold the
    /// answer, whose cost nobody knows yet; a wait that is too long is a refusal.
    pub(super) fn shadowed(&self, shadowed: Shadowed) -> Option<Shadowed> {
        let too_long = shadowed.reason.wait > self.policy.max_delay;
        match shadowed.action {
            Action::Reject => Some(shadowed),
            _ if too_long => Some(Shadowed { action: Action::Reject, ..shadowed }),
            Action::Delay => Some(shadowed),
            Action::Hold | Action::Queue => None,
        }
    }

    /// Whether a limit in shadow would refuse, and so count nothing.
    pub(super) fn would_refuse(&self, key: &Key, entry: &Entry<'_>, now: Time) -> bool {
        let limit = &self.limits[usize::from(key.limit)];
        let needed = if limit.unit == Unit::Hits { Cost::hits(1) } else { Cost::ZERO };
        limit.shadow
            && limit.action(self.policy.action) == Action::Reject
            && entry.with(|state| limit.algorithm.wait(state, needed, now)) > Nanos::ZERO
    }
}

impl Standing {
    /// Notes what a limit in shadow would do: a refusal before a wait, of equals the longest.
    pub(super) fn note(&mut self, shadowed: Shadowed) {
        let rank = |one: &Shadowed| (one.action == Action::Reject, one.reason.wait);
        if self.shadowed.is_none_or(|noted| rank(&shadowed) > rank(&noted)) {
            self.shadowed = Some(shadowed);
        }
    }
}

//! The input and the answers of the limiter: the verdict and its reason, the effect of limits
//! in shadow mode, the report of a store, and the longest waits.
//!
//! The decision itself: `limiter`.

use crate::classify::LimitKey;
use crate::limit::LimitAction;
use crate::units::{Cost, Nanos, Time};

/// The limit that decided, and the state of the client's bucket there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// The limit and the bucket.
    pub key: LimitKey,
    /// The remaining credit before this request, in nano-units of cost; negative for a debt. `None`
    /// if the algorithm has no level.
    pub level: Option<i64>,
    /// Time until the client is within the limit again.
    pub wait: Nanos,
}

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The request may run now.
    Allow,
    /// The request may run after `Reason::wait`.
    Delay(Reason),
    /// The request may not run. It makes sense to repeat it after `retry_after`.
    Deny {
        /// The limit that refuses it.
        reason: Reason,
        /// Time until the same request would be admitted.
        retry_after: Nanos,
    },
}

/// A block that the cost of a request has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockStarted {
    /// The limit and the bucket that is blocked.
    pub key: LimitKey,
    /// The cost charged within the window.
    pub sum: Cost,
}

/// The effect that a limit in shadow mode would have had on a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShadowEffect {
    /// `Reject`, `Delay` or `Hold`.
    pub action: LimitAction,
    /// The limit, and the state of the client's bucket there.
    pub reason: Reason,
}

/// The state of one bucket as the store reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreBucketState {
    /// Time until the bucket is full, before this request. Without a level: until it is free.
    pub before: Nanos,
    /// The same after this request.
    pub after: Nanos,
    /// Whether the store has charged the request.
    pub charged: bool,
    /// The clock of the store at that moment.
    pub clock: Time,
}

/// The longest wait of each kind that the limits demand for a request.
#[derive(Default)]
pub(super) struct LongestWaits {
    pub refusing: Option<Reason>,
    pub delaying: Option<Reason>,
    pub holding: Option<Reason>,
    pub shadowed: Option<ShadowEffect>,
}

impl LongestWaits {
    pub fn add(&mut self, action: LimitAction, reason: Reason) {
        let place = match action {
            LimitAction::Reject => &mut self.refusing,
            LimitAction::Delay => &mut self.delaying,
            LimitAction::Hold => &mut self.holding,
            // The request is admitted; its place in the queue depends on `furthest_in_debt`.
            LimitAction::Queue => return,
        };
        *place = longer(*place, Some(reason));
    }

    /// Notes what a limit in shadow mode would do. Refusals take precedence, then longer waits.
    pub fn note(&mut self, shadowed: ShadowEffect) {
        let rank = |one: &ShadowEffect| (one.action == LimitAction::Reject, one.reason.wait);
        if self.shadowed.is_none_or(|noted| rank(&shadowed) > rank(&noted)) {
            self.shadowed = Some(shadowed);
        }
    }
}

/// The longer of two waits; the first one if they are equal.
pub(super) fn longer(a: Option<Reason>, b: Option<Reason>) -> Option<Reason> {
    match (a, b) {
        (Some(x), Some(y)) if y.wait > x.wait => Some(y),
        (None, b) => b,
        (a, _) => a,
    }
}

//! The cost of a request while the backend does not have all of it yet.
//!
//! Most backends begin to work when they have the whole request, and must not be credited with the
//! time in which they wait for a slow client. Others work from the head on, and a client that never
//! sends the rest would get that work for free. So the time before the end of the request is
//! measured provisionally. It is forgotten whenever the client has sent [`PROGRESS_BYTES`] more. It
//! is charged if the answer comes before the end of the request, or if either side breaks off. In
//! these cases the charge is at least the usual cost of the route, because the backend may have
//! worked while bytes trickled in. The time just before the end counts up to the difference between
//! the usual cost of the route and the cost measured after the end.
//!
//! The clock: `evenkeel_core::meter`. The bodies: `proxy/src/body.rs`.

use crate::lane::LaneShared;
use evenkeel_core::meter::ProvisionalReading;
use evenkeel_core::units::Cost;

/// The number of bytes that a client has to send so that the time before counts as waiting for the
/// client. With a smaller value, a client that trickles a body hides the work behind it. With a
/// larger one, slow clients pay for time without work.
const PROGRESS_BYTES: usize = 1024;

/// How much of a request the backend has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Delivery {
    /// The backend has no part of the request, or all of it.
    #[default]
    Whole,
    /// The backend has a part of the request. Holds the provisional clock when the client had last
    /// sent enough, and the number of bytes sent since.
    Partial(ProvisionalReading, usize),
    /// The backend has the whole request, and may have done work of this cost before the end.
    Doubtful(Cost),
    /// The backend answered before it had the whole request, or its connection was closed before it
    /// had answered.
    Cut,
}

impl Delivery {
    /// Records that the backend has the head of the request, and the body follows.
    pub fn begin(&mut self, lane: &LaneShared) {
        if let Delivery::Whole = self {
            let clock = lane.engine.meter(lane.now()).enter_provisionally(lane.now());
            *self = Delivery::Partial(clock, 0);
        }
    }

    /// Records that `bytes` more bytes of the body were sent to the backend.
    pub fn note(&mut self, bytes: usize, lane: &LaneShared) {
        let Delivery::Partial(clock, passed) = self else { return };
        *passed = passed.saturating_add(bytes);
        if *passed >= PROGRESS_BYTES {
            *clock = lane.engine.meter(lane.now()).restart(lane.now());
            *passed = 0;
        }
    }

    /// Records that the backend has the whole request.
    pub fn finish(&mut self, lane: &LaneShared) {
        if let Some(cost) = self.leave(lane) {
            *self = Delivery::Doubtful(cost);
        }
    }

    /// Whether the backend has only a part of the request.
    pub fn is_partial(&self) -> bool {
        matches!(self, Delivery::Partial(..))
    }

    /// Records that the backend answers before it has the whole request, or that the exchange was
    /// broken off. Returns the cost of the provisional time, which is charged up to `most`; zero if
    /// there is none.
    pub fn cut(&mut self, most: Cost, lane: &LaneShared) -> Cost {
        let cost = self.leave(lane).map_or(Cost::ZERO, |cost| cost.min(most));
        if cost > Cost::ZERO {
            lane.engine.meter(lane.now()).confirm(cost);
        }
        *self = Delivery::Cut;
        cost
    }

    /// Ends the delivery. Returns by how much the cost of the request may be raised to the usual
    /// cost of its route; `None`: not at all.
    pub fn end(&mut self, lane: &LaneShared) -> Option<Cost> {
        match self {
            Delivery::Partial(..) => {
                self.leave(lane);
                *self = Delivery::Whole;
                None
            }
            Delivery::Whole => None,
            Delivery::Doubtful(doubt) => Some(*doubt),
            Delivery::Cut => Some(Cost(u64::MAX)),
        }
    }

    /// Ends the provisional time, and returns its cost.
    fn leave(&self, lane: &LaneShared) -> Option<Cost> {
        let Delivery::Partial(clock, _) = *self else { return None };
        Some(lane.engine.meter(lane.now()).leave_provisionally(clock, lane.now()))
    }
}

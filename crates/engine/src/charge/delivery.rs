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

use super::Charge;
use crate::turn::QueueSlot;
use evenkeel_core::meter::ProvisionalReading;
use evenkeel_core::queue::QueuePlace;
use evenkeel_core::units::{Cost, Nanos, Time};

/// The number of bytes that a client has to send so that the time before counts as waiting for the
/// client. With a smaller value, a client that trickles a body hides the work behind it. With a
/// larger one, slow clients pay for time without work.
const PROGRESS_BYTES: usize = 1024;

/// How much of a request the backend has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Delivery {
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

impl Charge {
    /// Records that the backend has the head of the request, and the body follows.
    pub fn begin_delivery(&mut self) {
        if let (Delivery::Whole, false) = (self.delivery, self.left) {
            let now = self.lane.0.now();
            let clock = self.lane.0.engine.meter.lock().enter_provisionally(now);
            self.delivery = Delivery::Partial(clock, 0);
        }
    }

    /// Records that `bytes` more bytes of the body were sent to the backend.
    pub fn note_delivered(&mut self, bytes: usize) {
        let Delivery::Partial(clock, passed) = &mut self.delivery else { return };
        *passed = passed.saturating_add(bytes);
        if *passed >= PROGRESS_BYTES {
            let now = self.lane.0.now();
            *clock = self.lane.0.engine.meter.lock().restart(now);
            *passed = 0;
        }
    }

    /// Records that the backend has the whole request.
    pub fn finish_delivery(&mut self) {
        let now = self.lane.0.now();
        if let Some(cost) = self.leave_provisionally(now) {
            self.delivery = Delivery::Doubtful(cost);
        }
    }

    /// Records that the backend answers. If it does not have the whole request yet, the provisional
    /// time is charged.
    pub(super) fn answer_delivery(&mut self, now: Time) {
        if let Some(cost) = self.leave_provisionally(now) {
            self.confirm(cost);
            self.cost = self.cost.plus(cost);
            self.delivery = Delivery::Cut;
        }
    }

    /// Records that the exchange was broken off. The backend may have worked in the meantime, but
    /// the client may equally have lost its connection, so at most `most` is charged.
    pub(super) fn cut_delivery(&mut self, most: Nanos) {
        if let Some(cost) = self.leave_provisionally(self.lane.0.now()) {
            let cost = cost.min(Cost::cpu(most));
            self.confirm(cost);
            self.cost = self.cost.plus(cost);
        }
        self.delivery = Delivery::Cut;
    }

    /// Records that there is no answer. If the backend has a part of the request, the exchange is
    /// cut.
    pub fn abandon(&mut self, most: Nanos) {
        if let Delivery::Partial(..) = self.delivery {
            self.cut(most);
        }
    }

    /// Raises the cost of a finished request to the usual cost of its route, within the bound of
    /// its delivery. Locks the estimates and then the meter, one after the other.
    pub(super) fn settle_delivery(&mut self, now: Time) {
        if self.leave_provisionally(now).is_some() {
            self.delivery = Delivery::Whole;
        }
        let most = match self.delivery {
            Delivery::Whole | Delivery::Partial(..) => return,
            Delivery::Doubtful(doubt) => self.cost.plus(doubt),
            Delivery::Cut => Cost(u64::MAX),
        };
        let Some(route) = self.route else { return };
        let usual = self.lane.0.engine.estimates.lock().of(route).min(most);
        if usual > self.cost {
            self.confirm(usual.minus(self.cost));
            self.cost = usual;
            self.whole = false;
        }
    }

    fn leave_provisionally(&mut self, now: Time) -> Option<Cost> {
        let Delivery::Partial(clock, _) = self.delivery else { return None };
        Some(self.lane.0.engine.meter.lock().leave_provisionally(clock, now))
    }

    fn confirm(&self, cost: Cost) {
        self.lane.0.engine.meter.lock().confirm(cost);
    }

    /// Gives the slot away while the backend waits for the rest of the request. A client in credit
    /// that is uploading (`flows`) may always do so: the backend does no work for it, or the client
    /// is soon in debt. Otherwise the number of stalled requests is limited to the number of slots.
    /// Further ones keep their slots until another client waits. Returns whether the request has no
    /// slot now.
    pub fn stall(&mut self, flows: bool) -> bool {
        let (holds, arrival) = match self.slot {
            QueueSlot::Free | QueueSlot::Exempt => return true,
            QueueSlot::Beside => {
                self.give_way();
                return true;
            }
            QueueSlot::Held(_, arrival, _) => (true, arrival),
            QueueSlot::Outside(arrival) => (false, arrival),
        };
        let free = flows && arrival.place == QueuePlace::Credit;
        if !free && !self.stalled {
            self.stalled = self.lane.0.engine.gate.stall(arrival.client);
        }
        if holds && (free || self.stalled) {
            self.give_way();
        }
        !holds || free || self.stalled
    }

    /// Whether the request waits for a slot in the queue, or holds one of the queue's slots.
    #[must_use]
    pub fn queues(&self) -> bool {
        matches!(self.slot, QueueSlot::Held(..) | QueueSlot::Outside(_))
    }

    /// Ends the stall, if the request is counted as stalled.
    pub(crate) fn end_stall(&mut self) {
        if std::mem::take(&mut self.stalled) {
            self.lane.0.engine.gate.end_stall();
        }
    }
}

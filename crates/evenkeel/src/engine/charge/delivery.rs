//! What a request costs while the backend does not have all of it yet.
//!
//! Most backends work when they have the whole request, and time in which they wait for a slow
//! client is not theirs to be paid for. Some work from the head on, and a client that never sends
//! the rest would have the work done for nothing. So that time is measured provisionally. It is
//! forgotten whenever the client has sent [`PROGRESS_BYTES`] more, and charged if the answer comes
//! before the end of the request, or one of both sides breaks off. In these cases at least the cost
//! of other requests on the route is charged: the backend may have worked while bytes trickled in.
//! The time just before the end counts as far as such a request usually costs more than what was
//! measured after it.
//!
//! The clock: `evenkeel_core::meter`. The bodies themselves: `doors/proxy/body.rs`.

use super::Charge;
use crate::engine::turn::Slot;
use evenkeel_core::meter::Provisional;
use evenkeel_core::queue::Place;
use evenkeel_core::units::{Cost, Nanos, Time};

/// How much a client has to send for the backend to have waited for it until then, in bytes. Fewer:
/// trickling a body hides the work behind it. More: slow clients pay for work that was none.
const PROGRESS_BYTES: usize = 1024;

/// How far a request has come on its way to the backend.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) enum Delivery {
    /// The backend has nothing of it, or the whole.
    #[default]
    Whole,
    /// The backend has a part of it: what the provisional clock showed when the client had last
    /// sent enough, and how many bytes have come since.
    Partial(Provisional, usize),
    /// The backend has the whole, and may have worked for so much before.
    Doubtful(Cost),
    /// The backend answered before it had the whole, or its connection was closed before it had
    /// answered.
    Cut,
}

impl Charge {
    /// The backend has the head of the request, and the rest is on its way.
    pub fn delivery_begins(&mut self) {
        if let (Delivery::Whole, false) = (self.delivery, self.left) {
            let now = self.lane.0.now();
            let clock = self.lane.0.engine.meter.lock().enter_provisionally(now);
            self.delivery = Delivery::Partial(clock, 0);
        }
    }

    /// The backend is passed so many bytes more of it.
    pub fn delivers(&mut self, bytes: usize) {
        let Delivery::Partial(clock, passed) = &mut self.delivery else { return };
        *passed = passed.saturating_add(bytes);
        if *passed >= PROGRESS_BYTES {
            let now = self.lane.0.now();
            *clock = self.lane.0.engine.meter.lock().restart(now);
            *passed = 0;
        }
    }

    /// The backend has the whole.
    pub fn delivered(&mut self) {
        let now = self.lane.0.now();
        if let Some(cost) = self.leave_provisionally(now) {
            self.delivery = Delivery::Doubtful(cost);
        }
    }

    /// The backend answers. If it does not have the whole yet, it has worked all the same.
    pub(super) fn delivery_is_answered(&mut self, now: Time) {
        if let Some(cost) = self.leave_provisionally(now) {
            self.confirm(cost);
            self.cost = self.cost.plus(cost);
            self.delivery = Delivery::Cut;
        }
    }

    /// The exchange was broken off. The backend may have worked meanwhile, of which at most `most`
    /// is charged: the client may just as well have lost its connection.
    pub(super) fn delivery_is_cut(&mut self, most: Nanos) {
        if let Some(cost) = self.leave_provisionally(self.lane.0.now()) {
            let cost = cost.min(Cost::cpu(most));
            self.confirm(cost);
            self.cost = self.cost.plus(cost);
        }
        self.delivery = Delivery::Cut;
    }

    /// There is no answer: what the backend has a part of is cut.
    pub fn abandon(&mut self, most: Nanos) {
        if let Delivery::Partial(..) = self.delivery {
            self.cut(most);
        }
    }

    /// The request is over: brings its cost up to what is in doubt.
    pub(super) fn delivery_is_settled(&mut self, now: Time) {
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

    /// The backend waits for the rest of the request, and others may have its slot. If it belongs
    /// to a client in credit that is uploading (`flows`), they always may: the backend does nothing
    /// for it, or its client is soon in debt. Otherwise as many requests may wait so as there are
    /// slots, and further ones keep theirs until another client waits. Returns whether it has none.
    pub fn stall(&mut self, flows: bool) -> bool {
        let (holds, arrival) = match self.slot {
            Slot::Free | Slot::Exempt => return true,
            Slot::Beside => {
                self.give_way();
                return true;
            }
            Slot::Held(_, arrival, _) => (true, arrival),
            Slot::Outside(arrival) => (false, arrival),
        };
        let free = flows && arrival.place == Place::Credit;
        if !free && !self.stalled {
            self.stalled = self.lane.0.engine.gate.stall(arrival.client);
        }
        if holds && (free || self.stalled) {
            self.give_way();
        }
        !holds || free || self.stalled
    }

    /// Whether it is among those that wait for a slot, or have one that others wait for.
    #[must_use]
    pub fn queues(&self) -> bool {
        matches!(self.slot, Slot::Held(..) | Slot::Outside(_))
    }

    /// It does not wait any more.
    pub(in crate::engine) fn goes_on(&mut self) {
        if std::mem::take(&mut self.stalled) {
            self.lane.0.engine.gate.goes_on();
        }
    }
}

//! The passage of a request through the queue: it asks for a slot, waits, and gives the slot back.
//!
//! The slot itself: `slot`. The queue: `admission`.

use super::Charge;
use super::slot::SlotEntry;
use crate::admission::{AdmittedSlot, NoSlot};
use crate::lane::EngineLane;
use crate::open_requests::RequestStage;
use crate::outcome::DecisionDetails;
use crate::rules::{RequestRefusal, refusal};
use evenkeel_core::classify::LimitKey;
use evenkeel_core::limit::RefusalKind;
use evenkeel_core::limiter::Reason;
use evenkeel_core::queue::standing::{Visit, VisitPass};
use evenkeel_core::queue::{Arrival, QueuePlace, RequestId};
use evenkeel_core::units::{Nanos, Time};
use evenkeel_telemetry::decision::QueueRefusal;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The answer to [`Charge::enter`].
pub enum QueueAdmission {
    /// The request may run now.
    Room,
    /// The request has to wait for this turn.
    Waits(QueueTurn),
    /// The queue is full, or the visitor is sent to the waiting room.
    Refused(RequestRefusal),
}

/// The place of a waiting request in the queue. Dropping it leaves the queue.
pub struct QueueTurn {
    lane: EngineLane,
    place: Option<TurnPlace>,
    since: Time,
}

/// The state of a request in the queue.
#[derive(Clone, Copy)]
enum TurnPlace {
    Waits(RequestId),
    Slot(AdmittedSlot),
}

/// The result of waiting. If it holds a slot and is dropped before [`Charge::accept_turn`], the
/// slot is given back.
pub struct TurnResult {
    turn: QueueTurn,
    how: Result<AdmittedSlot, NoSlot>,
    waited: Nanos,
}

impl Future for QueueTurn {
    type Output = TurnResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TurnResult> {
        let Some(TurnPlace::Waits(id)) = self.place else { return Poll::Pending };
        let shared = &self.lane.0;
        match shared.engine.gate.poll(id, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(how) => {
                let waited = shared.now().since(self.since);
                self.place = None;
                let place = how.ok().map(TurnPlace::Slot);
                let turn = QueueTurn { lane: self.lane.clone(), place, since: self.since };
                Poll::Ready(TurnResult { turn, how, waited })
            }
        }
    }
}

impl Drop for QueueTurn {
    fn drop(&mut self) {
        let (shared, place) = (&self.lane.0, self.place.take());
        match place {
            Some(TurnPlace::Waits(id) | TurnPlace::Slot(AdmittedSlot::Queue(id))) => {
                shared.engine.gate.cancel(id, shared.now());
            }
            Some(TurnPlace::Slot(AdmittedSlot::Beside)) => {
                shared.engine.gate.leave_beside(shared.now());
            }
            None => {}
        }
    }
}

impl Charge {
    /// Asks the queue for a slot. Does nothing for a request that has a slot or needs none.
    pub fn enter(&mut self) -> QueueAdmission {
        self.leave_gate();
        match self.slot.ask(&self.lane.0) {
            SlotEntry::Room => {
                self.show(RequestStage::Working);
                QueueAdmission::Room
            }
            SlotEntry::Waits(id, since) => {
                self.show(RequestStage::Waiting);
                let place = Some(TurnPlace::Waits(id));
                QueueAdmission::Waits(QueueTurn { lane: self.lane.clone(), place, since })
            }
            SlotEntry::NoSlot(arrival, why) => {
                QueueAdmission::Refused(self.turned_away(arrival, why, Nanos::ZERO))
            }
        }
    }

    /// Accepts the result of waiting, and with it the slot.
    ///
    /// # Errors
    /// The request waited for too long, later arrivals pushed it out of the queue, the visitor is
    /// sent to the waiting room, or others used up its quota during the wait.
    pub fn accept_turn(&mut self, mut turned: TurnResult) -> Result<(), RequestRefusal> {
        let Some(arrival) = self.slot.outside() else { return Ok(()) };
        self.report.waited = self.report.waited.plus(turned.waited);
        match turned.how {
            Ok(slot) => {
                if let Some(refusal) = self.used_up() {
                    return Err(refusal);
                }
                turned.turn.place = None;
                self.slot.take(slot, arrival, &self.lane.0);
                self.show(RequestStage::Working);
                self.queued("queue", arrival, turned.waited, None);
                Ok(())
            }
            Err(why) => Err(self.turned_away(arrival, why, turned.waited)),
        }
    }

    /// Refuses a request that has waited if its quota is used up: outputs without a bound may have
    /// become longer than was reserved for them. Without this, all that wait would still run.
    fn used_up(&mut self) -> Option<RequestRefusal> {
        let limiter = &self.request.rules.limiter;
        let now = self.lane.0.now();
        let reason = self.slot.is_first().then(|| limiter.used_up(&self.ticket, now)).flatten()?;
        self.report("reject", false, reason, DecisionDetails::default());
        Some(refusal(&self.request.rules, reason, reason.wait))
    }

    /// Sets what is known of the visitor, and whether it may be sent to the waiting room. No effect
    /// on a request that has asked for a slot already.
    pub fn set_visit(&mut self, visit: Visit, accepts_waiting_page: bool) {
        self.slot.set_visit(visit, accepts_waiting_page);
    }

    /// The pass that the visitor of a request with a ticket gets with the response.
    pub fn new_pass(&self) -> Option<VisitPass> {
        self.slot.new_pass(&self.lane.0)
    }

    /// Gives the slot back while the backend can do nothing for this request until the client acts.
    /// [`Charge::enter`] asks for another slot.
    pub fn give_way(&mut self) {
        self.slot.give_way(self.measured().0.work, &self.lane.0);
        self.show(RequestStage::Stalled);
    }

    /// Gives the slot away while the backend waits for the rest of the request. A client in credit
    /// that is uploading (`flows`) may always do so: the backend does no work for it, or the client
    /// is soon in debt. Otherwise the number of stalled requests is limited to the number of slots.
    /// Further ones keep their slots until another client waits. Returns whether the request has no
    /// slot now.
    pub fn stall(&mut self, flows: bool) -> bool {
        let gave_way = self.slot.stall(flows, self.measured().0.work, &self.lane.0);
        self.show(RequestStage::Stalled);
        gave_way
    }

    /// Shows what the request is doing in the list of open requests.
    fn show(&self, stage: RequestStage) {
        self.request.open.set(Some(stage), self.lane.0.now());
    }

    /// Whether the request waits for a slot in the queue, or holds one of the queue's slots.
    pub fn queues(&self) -> bool {
        self.slot.queues()
    }

    /// Counts and logs that a request had to wait, or was refused by the queue (`refused`).
    fn queued(
        &mut self,
        verdict: &'static str,
        arrival: Arrival,
        wait: Nanos,
        refused: Option<QueueRefusal>,
    ) {
        let key = self.bucket(arrival);
        let now = self.lane.0.now();
        let limiter = &self.request.rules.limiter;
        let reason = Reason { wait, ..limiter.standing_without_own(&self.ticket, key, now) };
        // A request that is in the queue does wait, even if the limit that names it is in shadow.
        let details = DecisionDetails { refused, ..DecisionDetails::default() };
        self.report(verdict, false, reason, details);
    }

    /// Counts and logs that the request gets no slot, after `waited`.
    fn turned_away(&mut self, arrival: Arrival, why: NoSlot, waited: Nanos) -> RequestRefusal {
        let (retry_after, cause, waiting_room) = match why {
            NoSlot::Refused(refused) => (refused.retry_after, refused.cause.name(), None),
            NoSlot::WaitingRoom(entry) => (entry.come_back_after, "waiting_page", Some(entry)),
        };
        let refusal = QueueRefusal { cause, waited };
        self.queued("reject", arrival, retry_after, Some(refusal));
        let index = usize::from(self.bucket(arrival).limit);
        let limit = self.request.rules.limiter.limits().get(index);
        RequestRefusal {
            limit: limit.map_or_else(|| "queue".to_owned(), |limit| limit.name.to_string()),
            retry_after_secs: retry_after.retry_after_secs(),
            kind: RefusalKind::Busy,
            waiting_room,
        }
    }

    /// The bucket that the log names for a place in the queue: the one in debt, else the first of
    /// the client's enforced limits. If there is none, the key has no limit (`u8::MAX`).
    fn bucket(&self, arrival: Arrival) -> LimitKey {
        let nobody = LimitKey { limit: u8::MAX, hash: arrival.client };
        match arrival.place {
            QueuePlace::Debt(flow) => {
                let marks = &self.request.rules.marks;
                let is_it = |key: &&LimitKey| marks.flow(**key) == flow;
                self.ticket.keys().as_slice().iter().find(is_it).copied().unwrap_or(nobody)
            }
            QueuePlace::Credit => {
                let limits = self.request.rules.limiter.limits();
                let has_a_say = |key: &&LimitKey| {
                    limits.get(usize::from(key.limit)).is_some_and(|limit| !limit.shadow)
                };
                self.ticket.keys().as_slice().iter().find(has_a_say).copied().unwrap_or(nobody)
            }
        }
    }
}

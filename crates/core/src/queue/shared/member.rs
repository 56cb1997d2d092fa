//! How an instance that does not own the queue handles the answers of the owner, and when it leaves
//! an owner that does not answer.
//!
//! An answer counts only as far as it fits the own request: its times are bounded, and a visitor
//! keeps the ticket or pass that it came with. The owner must refuse a request at `wait_max`. So if
//! one has heard nothing for longer, the owner is at fault. Then the instance owns a queue of its
//! own, and its requests wait there. Which owners are not followed: `trust`.

use super::{BEAT_INTERVAL, GrantedVisit, Membership, OwnRequest, QueueMessage, Role, SharedQueue};
use crate::queue::admission::AdmissionOutcome;
use crate::queue::standing::{TICKET_AGE_MAX, Visit, VisitPass, VisitTicket, WaitingRoomEntry};
use crate::queue::waiting_room::{COME_BACK_MAX, COME_BACK_MIN};
use crate::queue::{Arrival, RETRY_AFTER_MAX, RefusedRequest, RequestId};
use crate::units::{Cost, Nanos, Time};

/// An owner has this much more time than `wait_max` to answer. Shorter: an owner on a busy machine
/// is left. Longer: clients wait for longer at an owner that does not answer.
const ANSWER_GRACE: Nanos = Nanos::from_secs(1);
/// An instance leaves its owner if a request has waited for this many times that long at owners
/// that this instance has followed one after the other.
const WAITS_MAX: u64 = 4;
/// An instance leaves an owner that has answered no request for this many times that long, while
/// requests waited. Clients may give up before `wait_max`.
const SILENT_WAITS_MAX: u64 = 2;

impl SharedQueue {
    /// Asks the owner for a slot.
    pub(super) fn ask(&mut self, id: RequestId, arrival: Arrival, now: Time) {
        let Role::Member(member) = &self.role else { return };
        self.waiting.insert(id, OwnRequest { arrival, asked: now, since: Some(now) });
        self.out.push_back((member.owner, QueueMessage::Ask { id, arrival }));
    }

    /// As a member: the number of kept slots without a request.
    pub(super) fn free_kept(&self) -> usize {
        let Role::Member(member) = &self.role else { return 0 };
        member.kept.saturating_sub(self.own_beside_queue())
    }

    /// As a member: the number of requests that run on kept slots.
    pub(super) fn own_beside_queue(&self) -> usize {
        self.admission.queue().in_flight() + self.beside.len() + self.exempt
    }

    /// As a member: returns the slots that are kept without a request, unless they may be kept.
    pub(super) fn return_kept(&mut self) {
        let free = self.free_kept();
        let Role::Member(member) = &mut self.role else { return };
        if free > 0 && !member.may_keep {
            member.kept -= free;
            self.out.push_back((member.owner, QueueMessage::Return { slots: free as u32 }));
        }
    }

    /// A message from the owner.
    pub(super) fn handle_owner(&mut self, from: u64, message: QueueMessage, now: Time) {
        let Role::Member(member) = &mut self.role else { return };
        if member.owner != from {
            return;
        }
        let (id, outcome) = match message {
            QueueMessage::Keep(may_keep) => {
                member.may_keep = may_keep;
                return self.return_kept();
            }
            QueueMessage::Grant { id, .. } => (id, AdmissionOutcome::Slot(id)),
            QueueMessage::Refuse(refused) => (refused.id, AdmissionOutcome::Refused(refused)),
            QueueMessage::WaitingRoom(entry) => (entry.id, AdmissionOutcome::WaitingRoom(entry)),
            _ => return,
        };
        let Some(own) = self.waiting.get(&id).copied() else {
            if let QueueMessage::Grant { id, .. } = message {
                // The request is gone, or had its slot before it asked again.
                self.out.push_back((from, unused(id)));
            }
            return;
        };
        if let (Some(_), AdmissionOutcome::Slot(_)) = (self.settles, outcome) {
            // The owner may have given the slot to another request by now. This one asks again when
            // this instance joins again.
            return self.out.push_back((from, unused(id)));
        }
        let outcome = match outcome {
            AdmissionOutcome::WaitingRoom(_) if !own.arrival.accepts_waiting_page => {
                return self.leave_owner(now);
            }
            AdmissionOutcome::WaitingRoom(entry) => {
                AdmissionOutcome::WaitingRoom(believed_entry(&own, entry, now))
            }
            AdmissionOutcome::Refused(refused) => {
                let retry_after = refused.retry_after.min(RETRY_AFTER_MAX);
                AdmissionOutcome::Refused(RefusedRequest { retry_after, ..refused })
            }
            AdmissionOutcome::Slot(_) => outcome,
        };
        member.unanswered = Nanos::ZERO;
        self.waiting.remove(&id);
        if let QueueMessage::Grant { visit, .. } = message {
            self.granted.insert(id, believed_visit(&own.arrival, visit, now));
        }
        self.outcomes.push_back(outcome);
    }

    /// A request of this instance has cost this much so far ([`Admission::handle_progress`]).
    ///
    /// [`Admission::handle_progress`]: crate::queue::admission::Admission::handle_progress
    pub fn handle_progress(&mut self, id: RequestId, cost: Cost) {
        match &self.role {
            Role::Member(member) if self.granted.contains_key(&id) => {
                self.out.push_back((member.owner, QueueMessage::Progress { id, cost }));
            }
            _ => self.admission.handle_progress(id, cost),
        }
    }

    /// Notes the time for which the owner has answered no request. To be called in each interval
    /// of beats.
    pub(super) fn note_unanswered(&mut self) {
        if let Role::Member(member) = &mut self.role
            && !self.waiting.is_empty()
        {
            member.unanswered = member.unanswered.plus(BEAT_INTERVAL);
        }
    }

    /// As a member: whether the owner has not answered in time.
    pub(super) fn is_unanswered(&self, now: Time) -> bool {
        let (Role::Member(Membership { unanswered, .. }), Some((_, oldest))) =
            (&self.role, self.waiting.first_key_value())
        else {
            return false;
        };
        let most = self.admission.queue().settings().wait_max.plus(ANSWER_GRACE);
        let times = |count: u64| Nanos(most.0.saturating_mul(count));
        now.since(oldest.asked) >= most
            || now.since(oldest.since.unwrap_or(now)) >= times(WAITS_MAX)
            || *unanswered >= times(SILENT_WAITS_MAX)
    }
}

/// Gives a slot back that was not used.
fn unused(id: RequestId) -> QueueMessage {
    QueueMessage::Done { id, cost: Cost::ZERO, worked: None, keeps: false }
}

/// The owner's answer about a visitor, as far as it can be true for the request of the visitor.
fn believed_visit(arrival: &Arrival, visit: GrantedVisit, now: Time) -> GrantedVisit {
    let (id, first_came) = match arrival.visit {
        Visit::Unknown => return GrantedVisit::default(),
        Visit::Ticket(VisitTicket { id, first_came }) => (id, Some(first_came)),
        Visit::Pass(VisitPass { id, .. }) => (id, None),
    };
    let near = |time: Time| time.clamp(now.minus(TICKET_AGE_MAX), now.plus(TICKET_AGE_MAX));
    GrantedVisit {
        pass: visit.pass.map(|pass| VisitPass { id, stamp: near(pass.stamp) }),
        newcomer_since: visit.newcomer_since.and(first_came),
    }
}

/// The same for a visitor that is sent to the waiting room.
fn believed_entry(own: &OwnRequest, entry: WaitingRoomEntry, now: Time) -> WaitingRoomEntry {
    let needs_ticket = entry.needs_ticket || own.arrival.visit == Visit::Unknown;
    let first = if needs_ticket { own.asked.min(now) } else { now.minus(RETRY_AFTER_MAX) };
    let come_back_after = entry.come_back_after.clamp(COME_BACK_MIN, COME_BACK_MAX);
    WaitingRoomEntry {
        needs_ticket,
        first_came: entry.first_came.clamp(first, now),
        come_back_after,
        expected_wait: entry.expected_wait.clamp(come_back_after, RETRY_AFTER_MAX),
        ..entry
    }
}

//! What the owner of the queue does with the requests of other instances.
//!
//! They wait and run in its [`Admission`](crate::queue::admission::Admission) as its own do. Slots
//! that others keep count there as those of exempt requests. Who owns the queue: `succession`.

use super::{CALM_AFTER, Instance, QueueMessage, Role, SILENT_MAX, SharedQueue};
use crate::queue::admission::SlotPart;
use crate::queue::concurrency::CONCURRENCY_MAX;
use crate::queue::{CancelOutcome, RequestId};
use crate::units::{Cost, Time};

impl SharedQueue {
    /// As the owner: calls kept slots back while requests wait, and allows to keep them when none
    /// has waited for some time.
    pub(super) fn call_back(&mut self, now: Time) {
        if !matches!(self.role, Role::Owner) {
            return;
        }
        let waits = self.admission.queue().waiting() > 0;
        if waits {
            self.busy = now;
        }
        let may_keep = !waits && now.since(self.busy) >= CALM_AFTER;
        for (node, instance) in &mut self.instances {
            if instance.has_joined && instance.may_keep != may_keep && (waits || may_keep) {
                instance.may_keep = may_keep;
                self.out.push_back((*node, QueueMessage::Keep(may_keep)));
            }
        }
    }

    /// A message to the owner.
    pub(super) fn handle_member(&mut self, from: u64, message: QueueMessage, now: Time) {
        if let QueueMessage::Join { .. } = message {
            // It begins anew.
            self.part_from(from, now);
        }
        let Some(instance) = self.instances.get_mut(&from) else { return };
        match message {
            QueueMessage::Join { running } => {
                instance.has_joined = true;
                instance.kept = (running as usize).min(CONCURRENCY_MAX);
                (0..instance.kept).for_each(|_| self.admission.handle_exempt_arrival());
            }
            QueueMessage::Ask { id, arrival } if instance.has_joined => {
                let own = self.admission.next_id();
                self.admission.handle_arrival_as(own, arrival, now);
                self.foreign.insert(own, (from, id));
                if let Some(before) = instance.requests.insert(id, own) {
                    self.end_foreign(before, now);
                }
            }
            QueueMessage::Cancel { id } => {
                let Some(own) = instance.requests.remove(&id) else { return };
                self.end_foreign(own, now);
            }
            QueueMessage::Done { id, cost, worked, keeps } => {
                let Some(own) = instance.requests.remove(&id) else { return };
                self.foreign.remove(&own);
                if self.admission.handle_cancel(own) != CancelOutcome::Running {
                    return;
                }
                self.foreign_running -= 1;
                self.admission.handle_done(own, cost, worked, now);
                if keeps {
                    instance.kept += 1;
                    self.admission.handle_exempt_arrival();
                }
            }
            QueueMessage::Take { slots } => {
                let slots = (slots as usize).min(CONCURRENCY_MAX.saturating_sub(instance.kept));
                instance.kept += slots;
                (0..slots).for_each(|_| self.admission.handle_exempt_arrival());
            }
            QueueMessage::Return { slots } => {
                let slots = (slots as usize).min(instance.kept);
                instance.kept -= slots;
                (0..slots).for_each(|_| self.admission.handle_exempt_done());
            }
            QueueMessage::Estimate { route, cost } => self.admission.handle_estimate(route, cost),
            _ => {}
        }
    }

    /// As the owner: frees what an instance has here. It takes part again when it joins again.
    pub(super) fn part_from(&mut self, node: u64, now: Time) {
        let Some(instance) = self.instances.get_mut(&node) else { return };
        let requests = core::mem::take(&mut instance.requests);
        let kept = core::mem::take(&mut instance.kept);
        (instance.has_joined, instance.may_keep) = (false, false);
        requests.into_values().for_each(|own| self.end_foreign(own, now));
        (0..kept).for_each(|_| self.admission.handle_exempt_done());
    }

    pub(super) fn end_foreign(&mut self, own: RequestId, now: Time) {
        self.foreign.remove(&own);
        if self.admission.handle_cancel(own) == CancelOutcome::Running {
            self.foreign_running -= 1;
            self.admission.handle_done(own, Cost::ZERO, None, now);
        }
    }

    /// As the owner: leaves the part of instances that are silent, but may be there, free.
    pub(super) fn limit_part(&mut self, now: Time) {
        if !matches!(self.role, Role::Owner) {
            return;
        }
        let is_there = |one: &Instance| one.is_linked && now.since(one.heard) < SILENT_MAX;
        let there = 1 + self.instances.values().filter(|one| is_there(one)).count();
        let all = 1 + self.instances.len();
        if there == all {
            self.whole = self.admission.concurrency();
            self.admission.set_part(SlotPart::Whole, now);
        } else {
            let part = (self.whole * there / all).max(1);
            self.admission.set_part(SlotPart::Least(part), now);
        }
    }
}

//! The requests of other instances at the owner of the queue.
//!
//! They wait and run in its [`Admission`](crate::queue::admission::Admission) as its own do. Slots
//! that others keep count there as those of exempt requests. The choice of the owner: `succession`.

use super::{CALM_AFTER, Instance, JOIN_GRACE, LEASE, QueueMessage, Role, SILENT_MAX, SharedQueue};
use crate::meter::estimate::{OwnRoute, RouteHash};
use crate::queue::admission::SlotPart;
use crate::queue::concurrency::CONCURRENCY_MAX;
use crate::queue::{
    Arrival, CancelOutcome, QueueSettings, RefusalCause, RefusedRequest, RequestId, WorkUnit,
    pressure,
};
use crate::units::{Cost, Nanos, Time, Weight};
use alloc::vec::Vec;

/// The number of requests of another instance that may run here, if no more may run at all. With
/// `len_max` it bounds what one can leave here that never says that a request has ended. When that
/// instance is gone, each of them costs time for all others.
const RUNNING_MAX: usize = 4_096;
/// A request of another instance is expected to cost no more than 10 s, in thousandths; the rest
/// counts when it has ended. Lower: requests that cost more go before their turn. Higher: a false
/// estimate takes the turn of a client for longer.
const ESTIMATE_MAX_MILLI: u64 = 10_000_000;
/// The greatest cost of a request of another instance, in terms of what all processors can do in
/// the time that it had its slot. There may be more processors than configured.
const COST_RATIO_MAX: u64 = 4;

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
        // An only slot that is kept would be given out a second time, as the queue always has one.
        let is_only = self.admission.concurrency() == 1;
        let may_keep = !waits && !is_only && now.since(self.busy) >= CALM_AFTER;
        for (node, instance) in &mut self.instances {
            if instance.has_joined && instance.may_keep != may_keep {
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
                self.admission.handle_exempt_arrivals(instance.kept);
            }
            _ if !instance.has_joined => {}
            QueueMessage::Ask { id, arrival } => self.handle_ask(from, id, arrival, now),
            QueueMessage::Cancel { id } => {
                let Some(own) = instance.requests.remove(&id) else { return };
                self.end_foreign(own, now);
            }
            QueueMessage::Progress { id, cost } => {
                let unit = self.admission.queue().settings().unit;
                let own = instance.requests.get(&id).filter(|_| unit == WorkUnit::Tokens);
                own.into_iter().for_each(|own| self.admission.handle_progress(*own, cost));
            }
            QueueMessage::Done { id, cost, worked, keeps } => {
                let Some(own) = instance.requests.remove(&id) else { return };
                let may_keep = keeps && instance.kept < CONCURRENCY_MAX;
                if self.handle_foreign_done((from, own), cost, worked, now)
                    && may_keep
                    && let Some(instance) = self.instances.get_mut(&from)
                {
                    instance.kept += 1;
                    if !instance.may_keep {
                        // It may not have heard that yet.
                        self.out.push_back((from, QueueMessage::Keep(false)));
                    }
                    self.admission.handle_exempt_arrivals(1);
                }
            }
            QueueMessage::Take { slots } => {
                let slots = (slots as usize).min(CONCURRENCY_MAX.saturating_sub(instance.kept));
                instance.kept += slots;
                self.admission.handle_exempt_arrivals(slots);
            }
            QueueMessage::Return { slots } => {
                let slots = (slots as usize).min(instance.kept);
                instance.kept -= slots;
                self.admission.handle_exempt_ends(slots);
            }
            // The cost of unknown routes is what this instance has learned.
            QueueMessage::Estimate { route, cost } if route != RouteHash::UNKNOWN => {
                self.admission.handle_estimate(route.seen_by(from), cost);
            }
            _ => {}
        }
    }

    /// A request of another instance asks for a slot.
    fn handle_ask(&mut self, from: u64, id: RequestId, arrival: Arrival, now: Time) {
        let Some(instance) = self.instances.get_mut(&from) else { return };
        let QueueSettings { concurrency, len_max, .. } = self.admission.queue().settings();
        let most = len_max.saturating_add(RUNNING_MAX.max(concurrency));
        if instance.requests.len() >= most {
            let (retry_after, cause) = (Nanos::from_secs(1), RefusalCause::LenMax);
            let refused = RefusedRequest { id, retry_after, cause };
            return self.out.push_back((from, QueueMessage::Refuse(refused)));
        }
        let own = self.admission.next_id();
        self.foreign.insert(own, (from, id));
        let before = instance.requests.insert(id, own);
        let route = arrival.route.map(|route| route.seen_by(from));
        let used = arrival.own.map(|own| OwnRoute { hash: own.hash.seen_by(from), ..own });
        // The cost of a request with a small weight counts many times.
        let part = u64::from(arrival.weight.min(Weight::ONE).thousandths());
        let estimate = arrival.estimate.min(Cost(ESTIMATE_MAX_MILLI * part));
        let arrival = Arrival { route, own: used, estimate, ..arrival };
        self.admission.handle_arrival_as(own, arrival, now);
        if let Some(before) = before {
            self.end_foreign(before, now);
        }
    }

    /// A request of another instance has ended. It did not run before it got its slot here. Returns
    /// whether it had one.
    fn handle_foreign_done(
        &mut self,
        (from, own): (u64, RequestId),
        cost: Cost,
        worked: Option<(RouteHash, Nanos)>,
        now: Time,
    ) -> bool {
        self.foreign.remove(&own);
        let ran = self.admission.queue().ran_for(own, now);
        if self.admission.handle_cancel(own) != CancelOutcome::Running {
            return false;
        }
        self.foreign_running -= 1;
        let QueueSettings { cpus_milli, unit, .. } = self.admission.queue().settings();
        let cost = match unit {
            WorkUnit::CpuTime => {
                let most = pressure::cost_in(ran, cpus_milli);
                cost.min(Cost(most.0.saturating_mul(COST_RATIO_MAX)))
            }
            WorkUnit::Tokens => cost,
        };
        // The slot was in use from the grant on. The search adds slots to make up for the time that
        // messages take, because the time of a request includes it.
        let worked = worked.map(|(route, _)| (route.seen_by(from), ran));
        self.admission.handle_done(own, cost, worked, now);
        true
    }

    /// As the owner: frees what an instance has here. It takes part again when it joins again.
    /// Returns the number of slots that it had.
    pub(super) fn part_from(&mut self, node: u64, now: Time) -> usize {
        let Some(instance) = self.instances.get_mut(&node) else { return 0 };
        let requests = core::mem::take(&mut instance.requests);
        let kept = core::mem::take(&mut instance.kept);
        instance.apart = if instance.has_joined { now } else { instance.apart };
        (instance.has_joined, instance.may_keep) = (false, false);
        let gone: Vec<RequestId> = requests.into_values().collect();
        for own in &gone {
            self.foreign.remove(own);
        }
        let running = self.admission.handle_gone(&gone, now);
        self.foreign_running -= running;
        self.admission.handle_exempt_ends(kept);
        running + kept
    }

    pub(super) fn end_foreign(&mut self, own: RequestId, now: Time) {
        self.foreign.remove(&own);
        if self.admission.handle_cancel(own) == CancelOutcome::Running {
            self.foreign_running -= 1;
            self.admission.handle_done(own, Cost::ZERO, None, now);
        }
    }

    /// As the owner: leaves the part of instances free that take no part here, because they are
    /// silent or have another owner, but may send requests.
    pub(super) fn limit_part(&mut self, now: Time) {
        if !matches!(self.role, Role::Owner) {
            return;
        }
        let is_there = |one: &Instance| {
            let takes_part = one.has_joined || now.since(one.apart) < JOIN_GRACE;
            one.is_linked && now.since(one.heard) < SILENT_MAX && takes_part
        };
        let others = self.instances.values();
        let (here, away): (Vec<_>, Vec<_>) = others.partition(|one| is_there(one));
        let may_send = |one: &&&Instance| now.since(one.apart) < LEASE;
        let away = away.iter().filter(may_send).count();
        let (there, all) = match self.settles {
            Some(_) => (1, 1 + self.instances.len()),
            None => (1 + here.len(), 1 + here.len() + away),
        };
        if there == all && self.settles.is_none() {
            self.whole = self.admission.concurrency();
            self.admission.set_part(SlotPart::Whole, now);
        } else {
            // Both parts of a network that is cut have one slot more than there are at most.
            let part = (self.whole * there).div_ceil(all);
            self.admission.set_part(SlotPart::Least(part), now);
        }
    }
}

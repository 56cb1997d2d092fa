//! Which instance owns the queue, and how another takes it over.
//!
//! The owner and the others tell each other that they are there. Each owner has a term, which is
//! later than those of the owners before it, as far as it has heard of them.

use super::{
    InstanceBeat, InstanceId, LEASE, Membership, OTHERS_SILENT_MAX, QueueMessage, REJOIN_AFTER,
    Role, SILENT_MAX, SharedQueue,
};
use crate::queue::admission::SlotPart;
use crate::units::{Nanos, Time};
use alloc::vec::Vec;

impl SharedQueue {
    pub(super) fn handle_beat(&mut self, from: u64, beat: InstanceBeat, now: Time) {
        let Some(id) = self.instances.get(&from).map(|instance| instance.id) else { return };
        if !beat.is_owner {
            // If it owned the queue, this instance will hear of the next owner.
            return;
        }
        let follows = match &mut self.role {
            Role::Member(member) if member.owner == from => {
                member.slots = beat.slots;
                let began = beat.pressure.map(|length| now.minus(length));
                // The same pressure began at the same time, however long messages take.
                member.pressure_since = began.map(|began| member.pressure_since.unwrap_or(began));
                self.term = self.term.max(beat.term);
                // The owner has forgotten this instance, because it was silent.
                !beat.has_joined && now.since(member.since) >= REJOIN_AFTER
            }
            _ => self.goes_before((beat.term, id)),
        };
        if follows {
            self.follow(from, beat, now);
        }
    }

    /// Whether an owner goes before the present one: a later term, or the older instance.
    pub(super) fn goes_before(&self, (term, id): (u64, InstanceId)) -> bool {
        let present = match &self.role {
            Role::Owner => self.own,
            Role::Member(member) => self.instances.get(&member.owner).map(|one| one.id),
        };
        term > self.term || (term == self.term && present.is_none_or(|present| id < present))
    }

    /// Takes part in the queue of another owner. All own requests that wait ask there.
    pub(super) fn follow(&mut self, owner: u64, beat: InstanceBeat, now: Time) {
        let was_owner = matches!(self.role, Role::Owner);
        if was_owner {
            let nodes: Vec<u64> = self.instances.keys().copied().collect();
            nodes.iter().for_each(|node| self.part_from(*node, now));
            for id in self.waiting.keys() {
                self.admission.handle_cancel(*id);
            }
            (0..self.beside.len() + self.exempt).for_each(|_| self.admission.handle_exempt_done());
        }
        self.beside.append(&mut self.granted);
        let running = self.own_beside_queue();
        self.term = beat.term;
        self.owner_heard = now;
        let slots = beat.slots;
        let member =
            Membership { owner, kept: running, slots, since: now, ..Membership::default() };
        self.role = Role::Member(member);
        self.admission.set_part(SlotPart::Given, now);
        self.out.push_back((owner, QueueMessage::Join { running: running as u32 }));
        for (id, arrival) in &self.waiting {
            self.out.push_back((owner, QueueMessage::Ask { id: *id, arrival: *arrival }));
        }
    }

    /// Owns the queue from now on.
    pub(super) fn take_over(&mut self, now: Time) {
        let Role::Member(member) = core::mem::replace(&mut self.role, Role::Owner) else { return };
        self.term += 1;
        self.beside.append(&mut self.granted);
        let beside = self.beside.len() + self.exempt;
        (0..beside).for_each(|_| self.admission.handle_exempt_arrival());
        // From now on they tell this instance more often that they are there.
        let others = self.instances.values_mut().filter(|other| other.id.node != member.owner);
        others.for_each(|other| other.heard = now);
        self.whole = member.slots as usize;
        self.admission.set_part(SlotPart::Whole, now);
        self.admission.search_from(self.whole, now);
        self.limit_part(now);
        for (id, arrival) in core::mem::take(&mut self.waiting) {
            self.admission.handle_arrival_as(id, arrival, now);
            self.waiting.insert(id, arrival);
        }
        (self.busy, self.beat_at) = (now, now);
    }

    /// The time without the owner after which this instance takes the queue over: the oldest first.
    pub(super) fn takeover_after(&self, now: Time) -> Nanos {
        let owner = self.owner();
        let older = self.instances.values().filter(|other| {
            let is_there = other.is_linked && now.since(other.heard) < OTHERS_SILENT_MAX;
            Some(other.id.node) != owner && is_there && Some(other.id) < self.own
        });
        Nanos(SILENT_MAX.0.saturating_mul(1 + older.count() as u64))
    }

    /// Frees what silent instances have here, and forgets those that have been silent for long.
    pub(super) fn forget_silent(&mut self, now: Time) {
        let silent: Vec<(u64, Nanos)> = self
            .instances
            .iter()
            .map(|(node, other)| (*node, now.since(other.heard)))
            .filter(|(_, silent)| *silent >= SILENT_MAX)
            .collect();
        for (node, length) in silent {
            self.part_from(node, now);
            if length >= LEASE {
                self.instances.remove(&node);
            }
        }
        self.limit_part(now);
    }

    pub(super) fn beat_to(&mut self, node: u64, now: Time) {
        let is_owner = matches!(self.role, Role::Owner);
        let slots = u32::try_from(self.slots().max(1)).unwrap_or(u32::MAX);
        let has_joined = self.instances.get(&node).is_some_and(|one| one.has_joined);
        let pressure = self.pressure_since().map(|since| now.since(since));
        let beat = InstanceBeat { term: self.term, is_owner, slots, has_joined, pressure };
        self.out.push_back((node, QueueMessage::Beat(beat)));
    }
}

//! Which instance owns the queue, and how another takes it over.
//!
//! The owner and the others announce themselves to each other. Each owner has a term, which is
//! later than those of the owners before it, as far as it has heard of them.

use super::{
    BEAT_INTERVAL, Instance, InstanceBeat, InstanceId, JOIN_GRACE, LATE_MIN, LEASE, Membership,
    OTHERS_SILENT_MAX, PRESSURE_TOLD_EVERY, QueueMessage, RequestCounts, Role, SILENT_MAX,
    SLOTS_DOUBLE_IN, SharedQueue, TERM_MAX,
};
use crate::queue::admission::SlotPart;
use crate::units::{Nanos, Time};
use alloc::vec::Vec;

impl SharedQueue {
    pub(super) fn handle_beat(&mut self, from: u64, beat: InstanceBeat, now: Time) {
        let Some(instance) = self.instances.get_mut(&from) else { return };
        instance.counts = beat.own;
        let id = instance.id;
        if !beat.is_owner {
            // If it owned the queue, this instance will hear of the next owner.
            return;
        }
        let is_owner = self.owner() == Some(from);
        if beat.term > TERM_MAX {
            // Its term would be the last.
            match is_owner {
                true => self.leave_owner(now),
                false => self.owners.leave(id, now),
            }
            return;
        }
        let follows = match &mut self.role {
            Role::Member(member) if is_owner => {
                (member.slots, member.all) = (beat.slots, beat.all);
                member.handle_pressure(beat.pressure, now);
                member.believe(now);
                self.term = self.term.max(beat.term);
                // The owner has forgotten this instance, because it was silent.
                !beat.has_joined && now.since(member.since) >= member.rejoins_after
            }
            _ => self.goes_before((beat.term, id)) && self.owners.try_follow(id, now),
        };
        if follows {
            self.follow(id, beat, now);
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
    pub(super) fn follow(&mut self, id: InstanceId, beat: InstanceBeat, now: Time) {
        let was_owner = matches!(self.role, Role::Owner);
        if was_owner {
            let nodes: Vec<u64> = self.instances.keys().copied().collect();
            for node in nodes {
                self.part_from(node, now);
            }
            for id in self.waiting.keys() {
                self.admission.handle_cancel(*id);
            }
            self.admission.handle_exempt_ends(self.beside.len() + self.exempt);
        }
        self.beside.append(&mut self.granted);
        let running = self.own_beside_queue();
        (self.term, self.settles) = (beat.term, None);
        if self.owner() != Some(id.node) {
            self.owner_since = now;
        }
        self.owner_heard = now;
        let owner = id.node;
        let known = match core::mem::replace(&mut self.role, Role::Owner) {
            Role::Member(member) if member.owner == owner => member,
            _ => {
                let believed = self.admission.concurrency();
                Membership { believed, raised: now, ..Membership::default() }
            }
        };
        let member = Membership {
            owner,
            may_keep: false,
            kept: running,
            slots: beat.slots,
            all: beat.all,
            since: now,
            rejoins_after: self.owners.join(id, now),
            ..known
        };
        self.role = Role::Member(member);
        self.admission.set_part(SlotPart::Given, now);
        self.out.push_back((owner, QueueMessage::Join { running: running as u32 }));
        for (id, own) in &mut self.waiting {
            (own.asked, own.since) = (now, own.since.or(Some(now)));
            self.out.push_back((owner, QueueMessage::Ask { id: *id, arrival: own.arrival }));
        }
    }

    /// As a member: joins the owner again at once. Does nothing as the owner.
    pub(super) fn join_again(&mut self, now: Time) {
        let Role::Member(member) = &self.role else { return };
        let Some(id) = self.instances.get(&member.owner).map(|owner| owner.id) else { return };
        let beat = InstanceBeat {
            term: self.term,
            is_owner: true,
            slots: member.slots,
            has_joined: false,
            own: RequestCounts::default(),
            all: member.all,
            pressure: None,
        };
        self.follow(id, beat, now);
    }

    /// Owns the queue from now on, because its owner has ended or is silent.
    pub(super) fn take_over(&mut self, now: Time) {
        self.own_queue(false, now);
    }

    /// Prepares for other instances, which may share the queue from [`SharedQueue::start`] on.
    /// `is_new`: this instance has just started, so until then it uses one slot.
    pub fn prepare(&mut self, is_new: bool, now: Time) {
        self.is_prepared = true;
        if is_new && self.own.is_none() {
            self.settles = Some(Time(u64::MAX));
            self.limit_part(now);
        }
    }

    /// Ends the preparation, because no other instances will share the queue.
    pub fn cancel_preparation(&mut self, now: Time) {
        self.is_prepared = false;
        if self.own.is_none() {
            self.settles = None;
            self.limit_part(now);
        }
    }

    /// Whether the queue can be shared: an owner can be asked for all requests that wait here.
    /// Those that came before [`SharedQueue::prepare`] must have had their turn.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.own.is_some() || self.admission.queue().waiting() <= self.waiting.len()
    }

    /// Ends the sharing of the queue. The slots of other instances become free, and this instance
    /// uses all slots.
    pub fn end_sharing(&mut self, now: Time) {
        let nodes: Vec<u64> = self.instances.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.forget(node, now));
        self.settles = None;
        self.take_over(now);
        // No instance reads these messages now, and later they are out of date.
        self.out.clear();
        self.limit_part(now);
    }

    /// Owns a queue from now on, because its owner does not answer or claims what cannot be.
    pub(super) fn leave_owner(&mut self, now: Time) {
        let owner = self.owner().and_then(|owner| self.instances.get(&owner));
        if let Some(left) = owner.map(|one| one.id) {
            self.owners.leave(left, now);
        }
        self.own_queue(true, now);
    }

    /// Owns a queue from now on. `leaves`: the last owner may still have one. The number of slots
    /// that it has found is then no place to search from.
    fn own_queue(&mut self, leaves: bool, now: Time) {
        let Role::Member(member) = core::mem::replace(&mut self.role, Role::Owner) else { return };
        self.term = self.term.saturating_add(1).min(TERM_MAX);
        self.takeovers += 1;
        self.owner_since = now;
        self.beside.append(&mut self.granted);
        self.admission.handle_exempt_arrivals(self.beside.len() + self.exempt);
        for other in self.instances.values_mut() {
            if other.id.node == member.owner {
                other.apart = if leaves { now.minus(JOIN_GRACE) } else { now };
            } else {
                // From now on they send messages to this instance more often.
                (other.apart, other.heard) = (now, now);
            }
        }
        self.admission.set_part(SlotPart::Whole, now);
        let (least, most) = self.admission.concurrency_bounds();
        self.whole = (member.slots as usize).clamp(least, most);
        if !leaves {
            self.admission.search_from(member.believed.clamp(least, most), now);
        }
        self.limit_part(now);
        for (id, mut own) in core::mem::take(&mut self.waiting) {
            self.admission.handle_arrival_as(id, own.arrival, now);
            own.since = None;
            self.waiting.insert(id, own);
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

    /// If this instance itself was stopped for a while, the others may have sent messages that it
    /// has not read yet.
    pub(super) fn excuse_silence(&mut self, now: Time) {
        let late = now.since(self.beat_at);
        if late < LATE_MIN || self.instances.is_empty() {
            return;
        }
        for instance in self.instances.values_mut() {
            instance.heard = instance.heard.plus(late).min(now);
        }
        self.owner_heard = self.owner_heard.plus(late).min(now);
        self.beat_at = now;
        // They may have given this one up in that time.
        if late.plus(BEAT_INTERVAL) >= SILENT_MAX {
            self.settles = Some(now.plus(SILENT_MAX));
        }
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
        // One that does not join again has another owner.
        let is_apart =
            |one: &&Instance| !one.has_joined && one.kept > 0 && now.since(one.apart) >= JOIN_GRACE;
        let apart: Vec<u64> =
            self.instances.values().filter(is_apart).map(|one| one.id.node).collect();
        for node in apart {
            self.part_from(node, now);
        }
        self.limit_part(now);
    }

    pub(super) fn beat_to(&mut self, node: u64, now: Time) {
        let is_owner = matches!(self.role, Role::Owner);
        let slots = u32::try_from(self.slots().max(1)).unwrap_or(u32::MAX);
        let has_joined = self.instances.get(&node).is_some_and(|one| one.has_joined);
        let pressure = self.pressure_since().map(|since| now.since(since));
        let (own, all) = (self.counts(), self.counts_of_all());
        let term = self.term;
        let beat = InstanceBeat { term, is_owner, slots, has_joined, pressure, own, all };
        self.out.push_back((node, QueueMessage::Beat(beat)));
    }
}

impl Membership {
    /// Considers the number of slots that the owner claims to have found.
    fn believe(&mut self, now: Time) {
        let told = self.slots as usize;
        if told <= self.believed {
            self.believed = told;
        } else if now.since(self.raised) >= SLOTS_DOUBLE_IN {
            (self.believed, self.raised) = (told.min(2 * self.believed.max(1)), now);
        }
    }

    /// Notes for how long there has been pressure, as the owner says.
    fn handle_pressure(&mut self, length: Option<Nanos>, now: Time) {
        let began = length.map(|length| now.minus(length));
        let is_change = began.is_some() != self.pressure_since.is_some();
        if !is_change || now.since(self.pressure_told) < PRESSURE_TOLD_EVERY {
            // The same pressure began at the same time, however long messages take.
            return;
        }
        (self.pressure_since, self.pressure_told) = (began, now);
    }
}

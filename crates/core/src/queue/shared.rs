//! One queue for several instances before one backend, as each of them sees it.
//!
//! One instance *owns* the queue: it has the [`Admission`], and with it the order of all requests
//! and the search for the number of slots. The others ask it for a slot for each request. While no
//! request waits, an instance keeps the slot of a request that has ended for its next one, which
//! then needs no message; as soon as one waits, the owner calls kept slots back. So a client has
//! one turn and the backend one limit, wherever requests arrive.
//!
//! The oldest instance owns the queue. If the owner ends or is silent, the oldest of the others
//! takes the queue over, and all requests that wait ask there. An instance that is cut off from all
//! others owns a queue of its own. One that the owner does not hear of may still send requests to
//! the backend, so its part of the slots stays free for [`LEASE`]; of two owners that meet, the one
//! with the later term stays. No request is refused for any of this.
//!
//! This is a state machine without IO and without a clock: `handle_*` takes events, `poll_*`
//! returns results and messages. Why an owner: docs/adr/0011.

mod message;
#[cfg(test)]
mod tests;

use super::admission::{Admission, AdmissionOutcome, SlotPart};
use super::standing::WaitingRoomEntry;
use super::{Arrival, CancelOutcome, RefusedRequest, RequestId};
use crate::meter::estimate::RouteHash;
use crate::units::{Cost, Nanos, Time};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
pub use message::{InstanceBeat, InstanceId, QueueMessage};

/// The interval at which the owner and the others tell each other that they are there.
pub const BEAT_INTERVAL: Nanos = Nanos::from_millis(100);
/// The number of such intervals after which those others tell each other.
const OTHERS_BEAT_EVERY: u64 = 10;
/// If the owner has heard nothing of an instance for this time, what that has here is free. If an
/// instance has heard nothing of the owner, it takes the queue over. Shorter: a busy one loses its
/// place. Longer: requests wait for one that has died.
pub const SILENT_MAX: Nanos = Nanos::from_millis(500);
/// The same between two instances that do not own the queue.
const OTHERS_SILENT_MAX: Nanos = Nanos::from_millis(2_500);
/// An instance that the owner has forgotten takes part anew, but not before this time.
const REJOIN_AFTER: Nanos = Nanos::from_millis(300);
/// The time for which an instance that is silent has its part of the slots. Shorter: two parts of a
/// network that is cut send more than the backend can do. Longer: slots of an instance that hangs
/// stay free.
pub const LEASE: Nanos = Nanos::from_secs(60);
/// The time without a waiting request after which instances may keep slots again. Shorter: slots
/// are called back as soon as they are kept. Longer: requests ask without need.
const CALM_AFTER: Nanos = Nanos::from_millis(200);

/// Another instance.
#[derive(Debug)]
struct Instance {
    id: InstanceId,
    heard: Time,
    /// Whether there is a connection.
    is_linked: bool,
    /// What follows holds while this instance owns the queue, and the other takes part.
    has_joined: bool,
    /// The requests of the other that wait or run here.
    requests: BTreeMap<RequestId, RequestId>,
    /// The slots that the other keeps.
    kept: usize,
    may_keep: bool,
}

/// The part of an instance that does not own the queue.
#[derive(Debug, Default)]
struct Membership {
    owner: u64,
    may_keep: bool,
    /// The slots that this instance keeps, with or without a request. As many run here at most
    /// without having asked.
    kept: usize,
    /// The number of slots of the whole queue.
    slots: u32,
    /// When this instance asked to take part.
    since: Time,
}

#[derive(Debug)]
enum Role {
    Owner,
    Member(Membership),
}

/// One queue for several instances, as one of them sees it. Alone, it is an [`Admission`].
pub struct SharedQueue {
    own: InstanceId,
    admission: Admission,
    role: Role,
    term: u64,
    instances: BTreeMap<u64, Instance>,
    /// The requests of other instances in `admission`.
    foreign: BTreeMap<RequestId, (u64, RequestId)>,
    /// The own requests that wait, here or at the owner.
    waiting: BTreeMap<RequestId, Arrival>,
    /// The own requests that got their slots from another owner and run.
    granted: BTreeSet<RequestId>,
    /// Those of them that run on although this instance has another owner now, or is the owner.
    beside: BTreeSet<RequestId>,
    outcomes: VecDeque<AdmissionOutcome>,
    out: VecDeque<(u64, QueueMessage)>,
    beat_at: Time,
    beats: u64,
    owner_heard: Time,
    /// When a request last waited.
    busy: Time,
    /// The number of slots when the last instance fell silent.
    whole: usize,
}

impl SharedQueue {
    /// The queue of the instance `own`, which knows no other yet and owns it.
    #[must_use]
    pub fn new(own: InstanceId, admission: Admission, now: Time) -> SharedQueue {
        SharedQueue {
            own,
            admission,
            role: Role::Owner,
            term: 0,
            instances: BTreeMap::new(),
            foreign: BTreeMap::new(),
            waiting: BTreeMap::new(),
            granted: BTreeSet::new(),
            beside: BTreeSet::new(),
            outcomes: VecDeque::new(),
            out: VecDeque::new(),
            beat_at: now,
            beats: 0,
            owner_heard: now,
            busy: now,
            whole: 1,
        }
    }

    /// The queue of this instance. It has all requests only if this instance owns the queue.
    #[must_use]
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// The instance that owns the queue.
    #[must_use]
    pub fn owner(&self) -> u64 {
        match &self.role {
            Role::Owner => self.own.node,
            Role::Member(member) => member.owner,
        }
    }

    /// The number of slots of the whole queue, as far as is known.
    #[must_use]
    pub fn slots(&self) -> usize {
        match &self.role {
            Role::Owner => self.admission.concurrency(),
            Role::Member(member) => member.slots as usize,
        }
    }

    /// A request of this instance asks for a slot. Call [`SharedQueue::poll`] and
    /// [`SharedQueue::poll_message`] afterwards, here and below.
    pub fn handle_arrival(&mut self, arrival: Arrival, now: Time) -> RequestId {
        let id = self.admission.next_id();
        let free = self.free_kept();
        match &self.role {
            Role::Owner => {
                self.waiting.insert(id, arrival);
                self.admission.handle_arrival_as(id, arrival, now);
            }
            Role::Member(_) if free > 0 => self.admission.handle_arrival_as(id, arrival, now),
            Role::Member(member) => {
                self.waiting.insert(id, arrival);
                self.out.push_back((member.owner, QueueMessage::Ask { id, arrival }));
            }
        }
        id
    }

    /// The client of a request that waits is gone. Returns whether the request runs; then its end
    /// is to be given to [`SharedQueue::handle_done`].
    pub fn handle_cancel(&mut self, id: RequestId) -> CancelOutcome {
        if self.granted.contains(&id) || self.beside.contains(&id) {
            return CancelOutcome::Running;
        }
        let was_waiting = self.waiting.remove(&id).is_some();
        match &self.role {
            Role::Member(member) if was_waiting => {
                self.out.push_back((member.owner, QueueMessage::Cancel { id }));
                CancelOutcome::Waiting
            }
            _ => self.admission.handle_cancel(id),
        }
    }

    /// A request of this instance has ended ([`Admission::handle_done`]).
    pub fn handle_done(
        &mut self,
        id: RequestId,
        cost: Cost,
        worked: Option<(RouteHash, Nanos)>,
        now: Time,
    ) -> bool {
        match &mut self.role {
            Role::Owner if self.beside.remove(&id) => {
                self.admission.handle_exempt_done();
                true
            }
            Role::Owner => self.admission.handle_done(id, cost, worked, now),
            Role::Member(member) if self.granted.remove(&id) => {
                let keeps = member.may_keep;
                member.kept += usize::from(keeps);
                let done = QueueMessage::Done { id, cost, worked, keeps };
                self.out.push_back((member.owner, done));
                true
            }
            Role::Member(_) => {
                if !self.beside.remove(&id) {
                    self.admission.handle_done(id, cost, worked, now);
                }
                self.return_kept();
                true
            }
        }
    }

    /// Sets the expected cost of a route ([`Admission::handle_estimate`]).
    pub fn handle_estimate(&mut self, route: RouteHash, cost: Cost) {
        self.admission.handle_estimate(route, cost);
        if let Role::Member(member) = &self.role {
            self.out.push_back((member.owner, QueueMessage::Estimate { route, cost }));
        }
    }

    /// There is a connection to another instance.
    pub fn handle_link(&mut self, id: InstanceId, now: Time) {
        let instance = Instance {
            id,
            heard: now,
            is_linked: true,
            has_joined: false,
            requests: BTreeMap::new(),
            kept: 0,
            may_keep: false,
        };
        if let Some(mut before) = self.instances.insert(id.node, instance) {
            self.dismiss(&mut before, now);
        }
        self.beat_to(id.node);
        self.limit_part(now);
    }

    /// The connection to another instance has ended. `is_gone`: the other has closed it, so it has
    /// ended; otherwise it may still be there.
    pub fn handle_link_end(&mut self, node: u64, is_gone: bool, now: Time) {
        let Some(instance) = self.instances.get_mut(&node) else { return };
        instance.is_linked = false;
        if is_gone {
            self.forget(node, now);
        }
        if self.owner() == node {
            self.owner_heard = now.minus(SILENT_MAX);
        }
        self.limit_part(now);
        self.handle_timeout(now);
    }

    /// A message of another instance.
    pub fn handle_message(&mut self, from: u64, message: QueueMessage, now: Time) {
        let Some(instance) = self.instances.get_mut(&from) else { return };
        instance.heard = now;
        let gives_up = matches!(message, QueueMessage::Beat(InstanceBeat { is_owner: false, .. }));
        if self.owner() == from && !gives_up {
            self.owner_heard = now;
        }
        match message {
            QueueMessage::Beat(beat) => self.handle_beat(from, beat, now),
            QueueMessage::Keep(_)
            | QueueMessage::Grant { .. }
            | QueueMessage::Refuse(_)
            | QueueMessage::WaitingRoom(_) => self.handle_owner(from, message),
            _ if matches!(self.role, Role::Owner) => self.handle_member(from, message, now),
            _ => {}
        }
    }

    /// Says that this instance is there, notices who is not, and refuses requests that have waited
    /// for too long.
    pub fn handle_timeout(&mut self, now: Time) {
        if now >= self.beat_at {
            self.beat_at = now.plus(BEAT_INTERVAL);
            self.beats += 1;
            let (owns, owner) = (matches!(self.role, Role::Owner), self.owner());
            let is_due = owns || self.beats.is_multiple_of(OTHERS_BEAT_EVERY);
            let nodes: Vec<u64> = self.instances.keys().copied().collect();
            let due = nodes.into_iter().filter(|node| is_due || *node == owner);
            due.for_each(|node| self.beat_to(node));
            self.forget_silent(now);
        }
        let silent = now.since(self.owner_heard);
        if matches!(self.role, Role::Member(_)) && silent >= self.takeover_after(now) {
            self.take_over(now);
        }
        self.admission.handle_timeout(now);
    }

    /// The time of the next [`SharedQueue::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let beat = (!self.instances.is_empty()).then_some(self.beat_at);
        self.admission.poll_timeout().into_iter().chain(beat).min()
    }

    /// The next result for a request of this instance ([`Admission::poll`]).
    pub fn poll(&mut self, now: Time) -> Option<AdmissionOutcome> {
        if let Some(outcome) = self.outcomes.pop_front() {
            return Some(outcome);
        }
        while let Some(outcome) = self.admission.poll(now) {
            let id = outcome.id();
            let Some((node, theirs)) = self.foreign.get(&id).copied() else {
                self.waiting.remove(&id);
                return Some(outcome);
            };
            let message = match outcome {
                AdmissionOutcome::Slot(_) => QueueMessage::Grant { id: theirs },
                AdmissionOutcome::Refused(refused) => {
                    QueueMessage::Refuse(RefusedRequest { id: theirs, ..refused })
                }
                AdmissionOutcome::WaitingRoom(entry) => {
                    QueueMessage::WaitingRoom(WaitingRoomEntry { id: theirs, ..entry })
                }
            };
            if !matches!(outcome, AdmissionOutcome::Slot(_)) {
                self.foreign.remove(&id);
                if let Some(instance) = self.instances.get_mut(&node) {
                    instance.requests.remove(&theirs);
                }
            }
            self.out.push_back((node, message));
        }
        self.call_back(now);
        None
    }

    /// The next message, and the instance that it is for.
    pub fn poll_message(&mut self) -> Option<(u64, QueueMessage)> {
        self.out.pop_front()
    }

    /// As a member: the number of kept slots without a request.
    fn free_kept(&self) -> usize {
        let Role::Member(member) = &self.role else { return 0 };
        member.kept.saturating_sub(self.admission.queue().in_flight() + self.beside.len())
    }

    /// As a member: returns the slots that are kept without a request, unless they may be kept.
    fn return_kept(&mut self) {
        let free = self.free_kept();
        let Role::Member(member) = &mut self.role else { return };
        if free > 0 && !member.may_keep {
            member.kept -= free;
            self.out.push_back((member.owner, QueueMessage::Return { slots: free as u32 }));
        }
    }

    /// As the owner: calls kept slots back while requests wait, and allows to keep them when none
    /// has waited for some time.
    fn call_back(&mut self, now: Time) {
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
    fn handle_member(&mut self, from: u64, message: QueueMessage, now: Time) {
        let Some(instance) = self.instances.get_mut(&from) else { return };
        match message {
            QueueMessage::Join { running } => {
                // It begins anew.
                let mut before = core::mem::replace(
                    instance,
                    Instance {
                        requests: BTreeMap::new(),
                        kept: running as usize,
                        has_joined: true,
                        may_keep: false,
                        ..*instance
                    },
                );
                self.dismiss(&mut before, now);
                (0..running).for_each(|_| self.admission.handle_exempt_arrival());
            }
            QueueMessage::Ask { id, arrival } if instance.has_joined => {
                let own = self.admission.next_id();
                self.admission.handle_arrival_as(own, arrival, now);
                instance.requests.insert(id, own);
                self.foreign.insert(own, (from, id));
            }
            QueueMessage::Cancel { id } => {
                let Some(own) = instance.requests.remove(&id) else { return };
                self.end_foreign(own, now);
            }
            QueueMessage::Done { id, cost, worked, keeps } => {
                let Some(own) = instance.requests.remove(&id) else { return };
                self.foreign.remove(&own);
                self.admission.handle_done(own, cost, worked, now);
                if keeps {
                    instance.kept += 1;
                    self.admission.handle_exempt_arrival();
                }
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

    /// A message from the owner.
    fn handle_owner(&mut self, from: u64, message: QueueMessage) {
        let Role::Member(member) = &mut self.role else { return };
        if member.owner != from {
            return;
        }
        match message {
            QueueMessage::Keep(may_keep) => {
                member.may_keep = may_keep;
                self.return_kept();
            }
            QueueMessage::Grant { id } if self.waiting.remove(&id).is_some() => {
                self.granted.insert(id);
                self.outcomes.push_back(AdmissionOutcome::Slot(id));
            }
            QueueMessage::Grant { id } => {
                // The request is gone, or had its slot before it asked again.
                let (cost, worked) = (Cost::ZERO, None);
                let done = QueueMessage::Done { id, cost, worked, keeps: false };
                self.out.push_back((from, done));
            }
            QueueMessage::Refuse(refused) if self.waiting.remove(&refused.id).is_some() => {
                self.outcomes.push_back(AdmissionOutcome::Refused(refused));
            }
            QueueMessage::WaitingRoom(entry) if self.waiting.remove(&entry.id).is_some() => {
                self.outcomes.push_back(AdmissionOutcome::WaitingRoom(entry));
            }
            _ => {}
        }
    }

    fn handle_beat(&mut self, from: u64, beat: InstanceBeat, now: Time) {
        let Some(id) = self.instances.get(&from).map(|instance| instance.id) else { return };
        if !beat.is_owner {
            // If it owned the queue, this instance will hear of the next owner.
            return;
        }
        let follows = match &mut self.role {
            Role::Member(member) if member.owner == from => {
                member.slots = beat.slots;
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
    fn goes_before(&self, (term, id): (u64, InstanceId)) -> bool {
        let present = match &self.role {
            Role::Owner => Some(self.own),
            Role::Member(member) => self.instances.get(&member.owner).map(|one| one.id),
        };
        term > self.term || (term == self.term && present.is_none_or(|present| id < present))
    }

    /// Takes part in the queue of another owner. All own requests that wait ask there.
    fn follow(&mut self, owner: u64, beat: InstanceBeat, now: Time) {
        let was_owner = matches!(self.role, Role::Owner);
        if was_owner {
            let nodes: Vec<u64> = self.instances.keys().copied().collect();
            nodes.iter().for_each(|node| self.part_from(*node, now));
            for id in self.waiting.keys() {
                self.admission.handle_cancel(*id);
            }
            self.beside.iter().for_each(|_| self.admission.handle_exempt_done());
        }
        self.beside.append(&mut self.granted);
        let running = self.admission.queue().in_flight() + self.beside.len();
        self.term = beat.term;
        self.owner_heard = now;
        let slots = beat.slots;
        let member = Membership { owner, may_keep: false, kept: running, slots, since: now };
        self.role = Role::Member(member);
        self.admission.set_part(SlotPart::Given, now);
        self.out.push_back((owner, QueueMessage::Join { running: running as u32 }));
        for (id, arrival) in &self.waiting {
            self.out.push_back((owner, QueueMessage::Ask { id: *id, arrival: *arrival }));
        }
    }

    /// Owns the queue from now on.
    fn take_over(&mut self, now: Time) {
        let Role::Member(member) = core::mem::replace(&mut self.role, Role::Owner) else { return };
        self.term += 1;
        self.beside.append(&mut self.granted);
        self.beside.iter().for_each(|_| self.admission.handle_exempt_arrival());
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
    fn takeover_after(&self, now: Time) -> Nanos {
        let owner = self.owner();
        let older = self.instances.values().filter(|other| {
            let is_there = other.is_linked && now.since(other.heard) < OTHERS_SILENT_MAX;
            other.id.node != owner && is_there && other.id < self.own
        });
        Nanos(SILENT_MAX.0.saturating_mul(1 + older.count() as u64))
    }

    /// Frees what silent instances have here, and forgets those that have been silent for long.
    fn forget_silent(&mut self, now: Time) {
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

    fn forget(&mut self, node: u64, now: Time) {
        self.part_from(node, now);
        self.instances.remove(&node);
    }

    /// As the owner: frees what an instance has here. It joins again when it is back.
    fn part_from(&mut self, node: u64, now: Time) {
        let Some(instance) = self.instances.get_mut(&node) else { return };
        let before =
            Instance { requests: BTreeMap::new(), kept: 0, has_joined: false, ..*instance };
        let mut before = core::mem::replace(instance, before);
        self.dismiss(&mut before, now);
    }

    /// As the owner: frees what an instance had here.
    fn dismiss(&mut self, instance: &mut Instance, now: Time) {
        for own in core::mem::take(&mut instance.requests).into_values() {
            self.end_foreign(own, now);
        }
        if matches!(self.role, Role::Owner) {
            (0..instance.kept).for_each(|_| self.admission.handle_exempt_done());
        }
        instance.kept = 0;
    }

    fn end_foreign(&mut self, own: RequestId, now: Time) {
        self.foreign.remove(&own);
        if self.admission.handle_cancel(own) == CancelOutcome::Running {
            self.admission.handle_done(own, Cost::ZERO, None, now);
        }
    }

    /// As the owner: leaves the part of instances that are silent, but may be there, free.
    fn limit_part(&mut self, now: Time) {
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

    fn beat_to(&mut self, node: u64) {
        let is_owner = matches!(self.role, Role::Owner);
        let slots = u32::try_from(self.slots().max(1)).unwrap_or(u32::MAX);
        let has_joined = self.instances.get(&node).is_some_and(|one| one.has_joined);
        let beat = InstanceBeat { term: self.term, is_owner, slots, has_joined };
        self.out.push_back((node, QueueMessage::Beat(beat)));
    }
}

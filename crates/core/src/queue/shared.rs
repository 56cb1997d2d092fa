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
//! with the later term stays. An owner that does not answer is left. No request is refused for any
//! of this.
//!
//! This is a state machine without IO and without a clock: `handle_*` takes events, `poll_*`
//! returns results and messages. Why an owner: docs/adr/0011.

mod member;
mod message;
mod owner;
mod report;
mod succession;
#[cfg(test)]
mod tests;
mod trust;

use super::admission::{Admission, AdmissionOutcome};
use super::concurrency::ConcurrencySearch;
use super::standing::WaitingRoomEntry;
use super::{Arrival, CancelOutcome, ClientHistory, QueueSettings, RefusedRequest, RequestId};
use crate::key::KeyHash;
use crate::meter::estimate::RouteHash;
use crate::units::{Cost, Nanos, Time};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
pub use message::{GrantedVisit, InstanceBeat, InstanceId, QueueMessage, RequestCounts};
pub use report::{OtherInstance, SharedQueueReport};
use trust::OwnerRecords;

/// The greatest term. Each owner adds one, so no real term comes near. An owner that takes over
/// from one with this term has it as well; then the older one of them stays.
pub const TERM_MAX: u64 = 1 << 63;
/// The interval of the messages by which the owner and the others announce that they are running.
pub const BEAT_INTERVAL: Nanos = Nanos::from_millis(100);
/// The number of such intervals between these messages among the others.
const OTHERS_BEAT_EVERY: u64 = 10;
/// If the owner has heard nothing of an instance for this time, what that has here is free. If an
/// instance has heard nothing of the owner, it takes the queue over. Shorter: a busy one loses its
/// place. Longer: requests wait for one that has died.
pub const SILENT_MAX: Nanos = Nanos::from_millis(500);
/// The same between two instances that do not own the queue.
const OTHERS_SILENT_MAX: Nanos = Nanos::from_millis(2_500);
/// If what is due each [`BEAT_INTERVAL`] is late by this time, this instance was stopped. Shorter:
/// a busy one notices later that another is silent. Longer: one that was stopped for less believes
/// that all others are silent.
const LATE_MIN: Nanos = Nanos::from_millis(200);
/// An instance that the owner has forgotten takes part anew, but not before this time. It doubles
/// each time.
const REJOIN_AFTER: Nanos = Nanos::from_millis(300);
/// The time for which an instance that is silent has its part of the slots. Shorter: two parts of a
/// network that is cut send more than the backend can do. Longer: slots of an instance that hangs
/// stay free.
pub const LEASE: Nanos = Nanos::from_secs(60);
/// The owner says at most once in this time that pressure begins or ends. It lasts for longer.
const PRESSURE_TOLD_EVERY: Nanos = Nanos::from_secs(1);
/// The number of slots that another owner claims to have found is believed if it grows no faster
/// than by a factor of two in this time. Shorter: a false one overloads the backend. Longer: a
/// search begins anew after the end of its owner.
const SLOTS_DOUBLE_IN: Nanos = Nanos::from_secs(5);
/// The time in which an instance joins the queue of a new owner. Shorter: slots of one on a busy
/// machine are free for a moment. Longer: more requests than slots if it has another owner.
const JOIN_GRACE: Nanos = Nanos::from_secs(1);
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
    /// Its requests, as it last said.
    counts: RequestCounts,
    /// The next fields hold while this instance owns the queue, and the other takes part.
    has_joined: bool,
    /// The requests of the other that wait or run here.
    requests: BTreeMap<RequestId, RequestId>,
    /// The slots that the other keeps.
    kept: usize,
    may_keep: bool,
    /// Since when it takes no part here, if it does not.
    apart: Time,
}

/// A request of this instance that waits.
#[derive(Clone, Copy, Debug)]
struct OwnRequest {
    arrival: Arrival,
    /// When it asked the present owner.
    asked: Time,
    /// Since when it has asked owners, if it waits at one.
    since: Option<Time>,
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
    /// The number of them that a search may begin from, and when that was last raised.
    believed: usize,
    raised: Time,
    /// The requests of all instances, as the owner last said.
    all: RequestCounts,
    /// Since when there is pressure, if there is.
    pressure_since: Option<Time>,
    /// When the owner last said that pressure has begun or ended.
    pressure_told: Time,
    /// When this instance asked to take part, and how long after that it may ask again.
    since: Time,
    rejoins_after: Nanos,
    /// The time since the owner last answered a request, in which requests waited.
    unanswered: Nanos,
}

#[derive(Debug)]
enum Role {
    Owner,
    Member(Membership),
}

/// One queue for several instances, as one of them sees it. Alone, it is an [`Admission`].
pub struct SharedQueue {
    /// `None`: no other instance shares the queue.
    own: Option<InstanceId>,
    /// Whether other instances may soon share it.
    is_prepared: bool,
    admission: Admission,
    role: Role,
    term: u64,
    instances: BTreeMap<u64, Instance>,
    /// The requests of other instances in `admission`.
    foreign: BTreeMap<RequestId, (u64, RequestId)>,
    /// The number of those of them that are with the backend.
    foreign_running: usize,
    /// The own requests that wait, here or at the owner.
    waiting: BTreeMap<RequestId, OwnRequest>,
    /// The own requests that got their slots from another owner and run.
    granted: BTreeMap<RequestId, GrantedVisit>,
    /// Those of them that run on although this instance has another owner now, or is the owner.
    beside: BTreeMap<RequestId, GrantedVisit>,
    /// The exempt requests of this instance, which never wait.
    exempt: usize,
    outcomes: VecDeque<AdmissionOutcome>,
    out: VecDeque<(u64, QueueMessage)>,
    beat_at: Time,
    beats: u64,
    owner_heard: Time,
    /// Since when this instance has the present owner, which may be itself.
    owner_since: Time,
    /// The number of times that this instance has taken the queue over.
    takeovers: u64,
    /// When a request last waited.
    busy: Time,
    /// The number of slots when the last instance fell silent.
    whole: usize,
    /// Until when this instance finds out who owns the queue: after its start, and after it was
    /// stopped for so long that the others may have given it up. If it has heard of no other owner
    /// by then, there is none.
    settles: Option<Time>,
    /// The owners that this instance has followed.
    owners: OwnerRecords,
}

impl SharedQueue {
    /// The queue of an instance that shares it with no other, until [`SharedQueue::start`].
    #[must_use]
    pub fn new(admission: Admission) -> SharedQueue {
        let now = Time::ZERO;
        SharedQueue {
            own: None,
            is_prepared: false,
            admission,
            role: Role::Owner,
            term: 0,
            instances: BTreeMap::new(),
            foreign: BTreeMap::new(),
            foreign_running: 0,
            waiting: BTreeMap::new(),
            granted: BTreeMap::new(),
            beside: BTreeMap::new(),
            exempt: 0,
            outcomes: VecDeque::new(),
            out: VecDeque::new(),
            beat_at: now,
            beats: 0,
            owner_heard: now,
            owner_since: now,
            takeovers: 0,
            busy: now,
            whole: 1,
            settles: None,
            owners: OwnerRecords::default(),
        }
    }

    /// Begins to share the queue as the instance `own`, which knows no other yet and owns it.
    pub fn start(&mut self, own: InstanceId, now: Time) {
        self.own = Some(own);
        (self.beat_at, self.owner_heard, self.owner_since, self.busy) = (now, now, now, now);
        self.settles = Some(now.plus(SILENT_MAX));
        self.limit_part(now);
    }

    /// Replaces the limits ([`Admission::set_settings`]).
    pub fn set_settings(
        &mut self,
        settings: QueueSettings,
        search: Option<ConcurrencySearch>,
        now: Time,
    ) {
        self.admission.set_settings(settings, search, now);
    }

    /// Considers how long requests have been with the backend ([`Admission::handle_ages`]).
    pub fn handle_ages(&mut self, now: Time) {
        self.admission.handle_ages(now);
    }

    /// The processors of the backend were in use for this part of the time since the last call
    /// ([`Admission::handle_processor_use`]). An instance that does not own the queue has no use
    /// for it.
    pub fn handle_processor_use(&mut self, part: f64, now: Time) {
        if matches!(self.role, Role::Owner) {
            self.admission.handle_processor_use(part, now);
        }
    }

    /// Sets an upper bound of the concurrency ([`Admission::set_bound`]). It applies while this
    /// instance owns the queue.
    pub fn set_bound(&mut self, bound: Option<usize>, now: Time) {
        self.admission.set_bound(bound, now);
    }

    /// The queue of this instance. It has all requests only if this instance owns the queue.
    #[must_use]
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// The instance that owns the queue; `None` if no other instance shares it.
    #[must_use]
    pub fn owner(&self) -> Option<u64> {
        match &self.role {
            Role::Owner => self.own.map(|own| own.node),
            Role::Member(member) => Some(member.owner),
        }
    }

    /// Whether this instance owns the queue, alone or for others.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        matches!(self.role, Role::Owner)
    }

    /// The number of requests of this instance that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        match self.own {
            Some(_) => self.waiting.len(),
            None => self.admission.queue().waiting(),
        }
    }

    /// The number of requests of this instance with a slot that are not exempt.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        let here = self.admission.queue().in_flight() - self.foreign_running;
        here + self.granted.len() + self.beside.len()
    }

    /// The number of requests of this instance with a slot, exempt ones included.
    #[must_use]
    pub fn running(&self) -> usize {
        self.in_flight() + self.exempt
    }

    /// The requests of this instance.
    #[must_use]
    pub fn counts(&self) -> RequestCounts {
        RequestCounts::new(self.waiting(), self.running())
    }

    /// The requests of all instances that share the queue, as they last said.
    #[must_use]
    pub fn counts_of_all(&self) -> RequestCounts {
        match &self.role {
            Role::Owner => {
                let running = self.running() + self.running_elsewhere();
                RequestCounts::new(self.admission.queue().waiting(), running)
            }
            Role::Member(member) => member.all,
        }
    }

    /// The number of requests of other instances that are with the backend, as far as is known. At
    /// most the number of slots: a false one would make the requests of this instance cheap, so
    /// that a heavy client stays in credit.
    #[must_use]
    pub fn running_elsewhere(&self) -> usize {
        let running = match &self.role {
            Role::Owner => {
                // A slot that is kept may have no request.
                let kept = |one: &Instance| one.kept.min(one.counts.running as usize);
                self.foreign_running + self.instances.values().map(kept).sum::<usize>()
            }
            Role::Member(member) => (member.all.running as usize).saturating_sub(self.running()),
        };
        running.min(self.slots())
    }

    /// Since when there is pressure, if there is ([`standing`](super::standing)).
    #[must_use]
    pub fn pressure_since(&self) -> Option<Time> {
        match &self.role {
            Role::Owner => self.admission.queue().pressure_since(),
            Role::Member(member) => member.pressure_since,
        }
    }

    /// What is known of the visitor of a request of this instance that has a slot.
    #[must_use]
    pub fn visit(&self, id: RequestId) -> GrantedVisit {
        let granted = self.granted.get(&id).or_else(|| self.beside.get(&id));
        granted.copied().unwrap_or_else(|| self.visit_of(id))
    }

    /// Whether requests of clients other than `client` wait, as far as is known.
    #[must_use]
    pub fn others_wait(&self, client: KeyHash) -> bool {
        let others = self.waiting.values().any(|own| own.arrival.client != client);
        others || self.admission.queue().others_wait(client)
    }

    /// The clients that this instance remembers; `None` if clients are not distinguished.
    #[must_use]
    pub fn client_history(&self) -> Option<ClientHistory> {
        self.admission.queue().client_history()
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
                if self.own.is_some() || self.is_prepared {
                    let own = OwnRequest { arrival, asked: now, since: None };
                    self.waiting.insert(id, own);
                }
                self.admission.handle_arrival_as(id, arrival, now);
            }
            Role::Member(_) if free > 0 => self.admission.handle_arrival_as(id, arrival, now),
            Role::Member(_) => self.ask(id, arrival, now),
        }
        id
    }

    /// The client of a request that waits is gone. Returns whether the request runs; then its end
    /// is to be given to [`SharedQueue::handle_done`].
    pub fn handle_cancel(&mut self, id: RequestId) -> CancelOutcome {
        if self.granted.contains_key(&id) || self.beside.contains_key(&id) {
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
            Role::Owner if self.beside.remove(&id).is_some() => {
                self.admission.handle_exempt_ends(1);
                true
            }
            Role::Owner => self.admission.handle_done(id, cost, worked, now),
            Role::Member(member) if self.granted.remove(&id).is_some() => {
                let keeps = member.may_keep;
                member.kept += usize::from(keeps);
                let done = QueueMessage::Done { id, cost, worked, keeps };
                self.out.push_back((member.owner, done));
                true
            }
            Role::Member(_) => {
                if self.beside.remove(&id).is_none() {
                    self.admission.handle_done(id, cost, worked, now);
                }
                self.return_kept();
                true
            }
        }
    }

    /// An exempt request, which never waits, takes a slot.
    pub fn handle_exempt_arrival(&mut self) {
        let is_free = self.free_kept() > 0;
        self.exempt += 1;
        match &mut self.role {
            Role::Owner => self.admission.handle_exempt_arrivals(1),
            Role::Member(_) if is_free => {}
            Role::Member(member) => {
                member.kept += 1;
                self.out.push_back((member.owner, QueueMessage::Take { slots: 1 }));
            }
        }
    }

    /// An exempt request gives its slot back.
    pub fn handle_exempt_done(&mut self) {
        if self.exempt == 0 {
            return;
        }
        self.exempt -= 1;
        match self.role {
            Role::Owner => self.admission.handle_exempt_ends(1),
            Role::Member(_) => self.return_kept(),
        }
    }

    /// Sets the expected cost of a route ([`Admission::handle_estimate`]).
    pub fn handle_estimate(&mut self, route: RouteHash, cost: Cost) {
        self.admission.handle_estimate(route, cost);
        // Estimates matter for requests that wait. Later ones bring theirs.
        if let Role::Member(member) = &self.role
            && !self.waiting.is_empty()
        {
            self.out.push_back((member.owner, QueueMessage::Estimate { route, cost }));
        }
    }

    /// There is a connection to another instance.
    pub fn handle_link(&mut self, id: InstanceId, now: Time) {
        if self.own.is_some_and(|own| own.node == id.node) {
            return;
        }
        self.excuse_silence(now);
        if self.instances.is_empty() {
            // Without other instances no message was due.
            self.beat_at = self.beat_at.max(now);
        }
        let is_known = self.instances.get(&id.node).is_some_and(|known| known.id == id);
        let held = self.part_from(id.node, now);
        // If the connection takes the place of another one, its requests run on until it joins.
        let kept = if is_known { held } else { 0 };
        self.admission.handle_exempt_arrivals(kept);
        let instance = Instance {
            id,
            heard: now,
            is_linked: true,
            counts: RequestCounts::default(),
            has_joined: false,
            requests: BTreeMap::new(),
            kept,
            may_keep: false,
            apart: now,
        };
        self.instances.insert(id.node, instance);
        // Messages may have been lost on the last connection.
        if self.owner() == Some(id.node) {
            self.join_again(now);
        }
        self.beat_to(id.node, now);
        self.limit_part(now);
    }

    /// The connection to another instance has ended. `is_gone`: the other has closed it, so it has
    /// ended; otherwise it may still run.
    pub fn handle_link_end(&mut self, node: u64, is_gone: bool, now: Time) {
        self.excuse_silence(now);
        let Some(instance) = self.instances.get_mut(&node) else { return };
        instance.is_linked = false;
        instance.apart = if instance.has_joined { now } else { instance.apart };
        // If this instance was stopped, the others have closed their connections, but still run.
        if is_gone && self.settles.is_none() {
            self.forget(node, now);
        }
        if self.owner() == Some(node) {
            self.owner_heard = now.minus(SILENT_MAX);
        }
        self.limit_part(now);
        self.handle_timeout(now);
    }

    /// A message of another instance.
    pub fn handle_message(&mut self, from: u64, message: QueueMessage, now: Time) {
        self.excuse_silence(now);
        let Some(instance) = self.instances.get_mut(&from) else { return };
        instance.heard = now;
        let gives_up = matches!(message, QueueMessage::Beat(InstanceBeat { is_owner: false, .. }));
        if self.owner() == Some(from) && !gives_up {
            self.owner_heard = now;
        }
        match message {
            QueueMessage::Beat(beat) => self.handle_beat(from, beat, now),
            QueueMessage::Keep(_)
            | QueueMessage::Grant { .. }
            | QueueMessage::Refuse(_)
            | QueueMessage::WaitingRoom(_) => self.handle_owner(from, message, now),
            _ if matches!(self.role, Role::Owner) => self.handle_member(from, message, now),
            _ => {}
        }
    }

    /// Announces this instance, notices which others have ended, and refuses requests that have
    /// waited for too long.
    pub fn handle_timeout(&mut self, now: Time) {
        self.excuse_silence(now);
        if self.settles.is_some_and(|at| now >= at) {
            self.settles = None;
            self.limit_part(now);
            self.join_again(now);
        }
        if now >= self.beat_at {
            self.beat_at = now.plus(BEAT_INTERVAL);
            self.beats += 1;
            let (owns, owner) = (matches!(self.role, Role::Owner), self.owner());
            let is_due = owns || self.beats.is_multiple_of(OTHERS_BEAT_EVERY);
            let nodes: Vec<u64> = self.instances.keys().copied().collect();
            let due = nodes.into_iter().filter(|node| is_due || Some(*node) == owner);
            due.for_each(|node| self.beat_to(node, now));
            self.forget_silent(now);
            self.note_unanswered();
        }
        let silent = now.since(self.owner_heard);
        if matches!(self.role, Role::Member(_)) && silent >= self.takeover_after(now) {
            self.take_over(now);
        } else if self.is_unanswered(now) {
            self.leave_owner(now);
        }
        self.admission.handle_timeout(now);
    }

    /// The time of the next [`SharedQueue::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.admission.poll_timeout().into_iter().chain(self.poll_beat()).min()
    }

    /// When this instance next announces itself to others.
    #[must_use]
    pub fn poll_beat(&self) -> Option<Time> {
        (!self.instances.is_empty() || self.settles.is_some()).then_some(self.beat_at)
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
                AdmissionOutcome::Slot(_) => {
                    QueueMessage::Grant { id: theirs, visit: self.visit_of(id) }
                }
                AdmissionOutcome::Refused(refused) => {
                    QueueMessage::Refuse(RefusedRequest { id: theirs, ..refused })
                }
                AdmissionOutcome::WaitingRoom(entry) => {
                    QueueMessage::WaitingRoom(WaitingRoomEntry { id: theirs, ..entry })
                }
            };
            if let AdmissionOutcome::Slot(_) = outcome {
                self.foreign_running += 1;
            } else {
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

    /// Whether there are messages.
    #[must_use]
    pub fn has_messages(&self) -> bool {
        !self.out.is_empty()
    }

    /// The next message, and the instance that it is for.
    pub fn poll_message(&mut self) -> Option<(u64, QueueMessage)> {
        self.out.pop_front()
    }

    /// What is known of the visitor of a request that has a slot of this queue.
    fn visit_of(&self, id: RequestId) -> GrantedVisit {
        let queue = self.admission.queue();
        GrantedVisit { pass: queue.pass_of(id), newcomer_since: queue.newcomer_since(id) }
    }

    fn forget(&mut self, node: u64, now: Time) {
        self.part_from(node, now);
        self.instances.remove(&node);
    }
}

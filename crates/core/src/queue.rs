//! The fair admission queue in front of a backend: a request waits only if there is no free slot,
//! and slots are shared out by what requests cost.
//!
//! At most `concurrency` requests are with the backend. Waiting requests belong to one of two
//! tiers: clients in credit come first, and clients in debt share the rest, at least a tenth of the
//! cost. In both, flows take turns by start-time fair queueing (`turns`), so the number of
//! connections makes no difference. `reserve` further slots are for light requests of clients that
//! have nothing with the backend: a new client that uses little finds a slot at once, even while
//! all clients are in credit. `capacity_probe` finds out whether the backend accepts that many.
//!
//! The requests of one client wait in FIFO order, in the place of the first of them. Each is served
//! from the place that it was given on arrival. So their order does not change when the client's
//! account does, and no request moves others along to a better place.
//!
//! This is a state machine without locks and without a clock. It reads no bucket (the door asks the
//! limiter for a request's [`QueuePlace`]), and it does not measure costs. Why: docs/adr/0005.

pub mod admission;
mod backlog;
mod brief_slots;
mod capacity_probe;
pub mod concurrency;
mod fifo;
mod guesses;
mod known_clients;
mod lines;
mod place;
mod prehashed;
mod pressure;
mod reestimates;
mod request;
mod routes;
mod settings;
mod share;
pub mod shared;
mod slots;
pub mod standing;
mod tiers;
mod turns;
mod visits;
mod waiting_room;
pub mod work_rate;

use crate::key::KeyHash;
use crate::meter::estimate::RouteHash;
use crate::units::{Cost, Nanos, Time};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use backlog::{Backlog, Flow, FlowBacklogs, TierPace};
pub use brief_slots::BriefSlots;
use capacity_probe::{CapacityProbe, RequestRun};
use fifo::{FifoEnds, RequestFifo};
use hashbrown::hash_map::Entry;
use known_clients::Known;
pub use known_clients::{ClientHistory, ReturningClient, SharedClient};
use place::Place;
use prehashed::Map;
pub use request::{
    Arrival, CancelOutcome, DebtFlow, QueuePlace, RefusalCause, RefusedRequest, RequestId,
};
use routes::WaitingRoutes;
pub use settings::{QueueSettings, WorkUnit};
use share::{QueuedShare, WaitingRequest};
use tiers::Tiers;
use turns::HeadRequest;
use visits::VisitCounts;
use waiting_room::WaitingRoom;

/// A running request that has cost more than this many times its estimate counts as heavy. Lower:
/// what a client sends between heavy requests, in order to pass for light, is light beside these.
/// Higher: routes that were light and turn heavy hold slots in which light requests could run.
const OVERRUN_RATIO_MIN: u64 = 16;
/// The longest `retry_after` that a refused request is given.
const RETRY_AFTER_MAX: Nanos = Nanos::from_secs(3_600);

/// A client with requests that wait or run. `place` is the place of its first waiting request, or
/// the last such place if none waits.
#[derive(Clone, Copy, Debug)]
struct QueueClient {
    place: Place,
    line: FifoEnds,
    crowd: Backlog,
    running: usize,
}

impl QueueClient {
    fn new(place: Place) -> QueueClient {
        QueueClient { place, line: FifoEnds::default(), crowd: Backlog::default(), running: 0 }
    }

    /// Whether the client has no request that waits or runs.
    fn is_gone(&self) -> bool {
        self.crowd.count == 0 && self.running == 0
    }
}

/// The admission queue of one backend.
///
/// Invariants: a request is in exactly one of `ready`, `waiting` and `running`, until it is done,
/// is refused, or is cancelled while it waits. `ready` is used only while `waiting` is empty and a
/// slot is free. `clients` has an entry for exactly those clients that have a request in `waiting`
/// or `running`.
pub struct Queue {
    settings: QueueSettings,
    /// The clients that were served, if they are distinguished from strangers.
    known: Option<Known>,
    last: u64,
    /// The only request that has not been sent to the backend, if a slot is free for it. It is in
    /// no list and no order, because it needs none. Most requests pass this way.
    ready: Option<(RequestId, WaitingRequest)>,
    waiting: RequestFifo,
    running: Map<RequestId, QueuedShare>,
    clients: Map<KeyHash, QueueClient>,
    /// The current estimates for the routes of the waiting requests.
    routes: WaitingRoutes,
    tiers: Tiers,
    crowds: FlowBacklogs,
    waiting_room: WaitingRoom,
    visits: VisitCounts,
    depth: CapacityProbe,
    brief: BriefSlots,
    /// The number of running requests with an additional slot ([`Queue::handle_ages`]), and of
    /// those in reserved slots.
    staying: usize,
    beside: usize,
    /// The number of requests sent to the backend.
    sent: u64,
    /// What a request that had been with the backend from the start would have cost, as far as the
    /// requests that have ended show: while one runs, all others in flight cost as much.
    clock: Cost,
    credit_pace: TierPace,
    lines_pace: TierPace,
    debt_pace: TierPace,
    refused: VecDeque<RefusedRequest>,
}

impl Queue {
    /// An empty queue.
    #[must_use]
    pub fn new(settings: QueueSettings) -> Queue {
        Queue {
            settings: settings.bounded(),
            known: Known::new(&settings),
            last: 0,
            ready: None,
            waiting: RequestFifo::default(),
            running: Map::default(),
            clients: Map::default(),
            routes: WaitingRoutes::default(),
            tiers: Tiers::new(),
            crowds: FlowBacklogs::default(),
            waiting_room: WaitingRoom::default(),
            visits: VisitCounts::default(),
            depth: CapacityProbe::new(),
            brief: BriefSlots::default(),
            staying: 0,
            beside: 0,
            sent: 0,
            clock: Cost::ZERO,
            credit_pace: TierPace::default(),
            lines_pace: TierPace::default(),
            debt_pace: TierPace::default(),
            refused: VecDeque::new(),
        }
    }

    /// The limits in force.
    #[must_use]
    pub fn settings(&self) -> QueueSettings {
        self.settings
    }

    /// Replaces the limits. Waiting requests stay in the queue, unless they have already waited
    /// longer than the new `wait_max`. A changed `known` forgets all clients.
    pub fn set_settings(&mut self, settings: QueueSettings) {
        self.enqueue_ready();
        if settings.known != self.settings.known {
            self.known = Known::new(&settings);
        }
        self.known.iter_mut().for_each(|known| known.set_settings(&settings));
        self.settings = settings.bounded();
    }

    /// Changes the number of requests that are sent to the backend at once, at least 1 and at most
    /// [`QueueSettings::workers`]. Requests that run are not affected.
    pub fn set_concurrency(&mut self, concurrency: usize) {
        self.enqueue_ready();
        self.settings = QueueSettings { concurrency, ..self.settings }.bounded();
    }

    /// The number of requests that the backend accepts at once, if measurements have shown it: more
    /// would wait inside the backend.
    #[must_use]
    pub fn accepted_max(&self) -> Option<usize> {
        self.depth.most().filter(|_| self.settings.workers.is_none())
    }

    /// The number of requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len() + usize::from(self.ready.is_some())
    }

    /// The number of waiting requests that would probably be sent before one of `client` that came
    /// now, if all cost the same. Takes time in proportion to the number of flows that wait.
    #[must_use]
    pub fn ahead(&self, client: KeyHash, place: QueuePlace) -> usize {
        self.crowds.ahead(Flow::of(client, place.into())) + usize::from(self.ready.is_some())
    }

    /// Whether requests of clients other than `client` wait.
    #[must_use]
    pub fn others_wait(&self, client: KeyHash) -> bool {
        let own = self.clients.get(&client).map_or(0, |client| client.crowd.count);
        self.waiting.len() > own
    }

    /// The number of requests that are with the backend.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// The number of requests with the backend that have an additional slot
    /// ([`Queue::handle_ages`]).
    #[must_use]
    pub fn staying(&self) -> usize {
        self.staying
    }

    /// Whether the request is with the backend and has an additional slot.
    #[must_use]
    pub fn stays(&self, id: RequestId) -> bool {
        self.running.get(&id).is_some_and(|share| share.stays)
    }

    /// For how long the request has been with the backend; zero if it is not.
    fn ran_for(&self, id: RequestId, now: Time) -> Nanos {
        self.running.get(&id).map_or(Nanos::ZERO, |share| now.since(share.sent))
    }

    /// The number of clients, flows and routes that are remembered, for tests of its bound.
    #[doc(hidden)]
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.clients.len() + self.tiers.len() + self.routes.len()
    }

    /// Adds a request. It waits until `poll_dispatch` or `poll_refused` returns it: call both
    /// afterwards.
    pub fn handle_arrival(&mut self, arrival: Arrival, now: Time) -> RequestId {
        let id = self.next_id();
        self.handle_arrival_as(id, arrival, now);
        id
    }

    /// An id for [`Queue::handle_arrival_as`].
    pub fn next_id(&mut self) -> RequestId {
        self.last += 1;
        RequestId(self.last)
    }

    /// Adds a request under an id of [`Queue::next_id`], which no request has.
    pub fn handle_arrival_as(&mut self, id: RequestId, arrival: Arrival, now: Time) {
        self.enqueue_ready();
        self.note_work(now);
        let waiting = WaitingRequest::new(&arrival, self.standing_of(&arrival, now), now);
        if self.waiting.is_empty() && self.has_slot(&waiting) {
            self.ready = Some((id, waiting));
        } else {
            self.enqueue(id, waiting);
            self.reestimate_in_round();
            self.note_work(now);
        }
    }

    /// Sets the expected cost of requests on `route`, or of all on unknown routes
    /// ([`RouteHash::UNKNOWN`]). A waiting request gets the new estimate when its turn comes. If
    /// it is lower, all that wait get it, the oldest first, one with each arrival and dispatch. A
    /// running request gets it only if it is higher than its own by more than a quarter.
    pub fn handle_estimate(&mut self, route: RouteHash, estimate: Cost) {
        self.routes.learn(route, estimate);
        if self.waiting.is_empty() {
            return;
        }
        let dearer = |share: &&mut QueuedShare| {
            share.follows(route) && routes::is_far(estimate, share.estimate)
        };
        for share in self.running.values_mut().filter(dearer) {
            self.tiers.raise(share, estimate);
        }
    }

    /// Raises the expected cost of a running request to what it has cost so far. Without this, a
    /// client whose requests cost far more than expected gets more than its share until they end.
    pub fn handle_progress(&mut self, id: RequestId, cost: Cost) {
        if let Some(share) = self.running.get_mut(&id).filter(|share| cost > share.estimate) {
            self.tiers.raise(share, cost);
        }
    }

    /// Considers how long requests have been with the backend. To be called a few times a second
    /// while requests wait. A request that has been there for several times its estimate counts as
    /// large as its age, so that requests that are light beside it use the reserved slots. If
    /// `stays` holds for its route and age, it gets an additional slot until it ends: requests that
    /// hang must not hold the slots of all others.
    pub fn handle_ages(&mut self, now: Time, stays: impl Fn(Option<RouteHash>, Nanos) -> bool) {
        let is_time = self.settings.unit == WorkUnit::CpuTime;
        for share in self.running.values_mut() {
            let age = now.since(share.sent);
            // A light request may wait inside the backend, which makes it no larger.
            let may_wait = share.is_light || share.beside || !is_time;
            if !may_wait && capacity_probe::seems_to_wait(share.estimate, Cost(age.0)) {
                self.tiers.raise(share, Cost(age.0));
            }
            if !share.stays && stays(share.route, age) {
                share.stays = true;
                self.staying += 1;
            }
        }
    }

    /// Notes the running requests that have cost many times their estimates already, so that they
    /// count as heavy among the requests in service.
    fn note_overruns(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        for share in self.running.values_mut() {
            let so_far = self.clock.minus(share.clock);
            if so_far.0 / OVERRUN_RATIO_MIN > share.estimate.0 {
                share.overrun = so_far;
                self.tiers.note_overrun(share);
            }
        }
    }

    /// Ends a request that was with the backend and has cost `cost`: its slot is free. Returns
    /// whether `cost` says something about other requests on the route; it does not if the request
    /// probably waited inside the backend.
    pub fn handle_done(&mut self, id: RequestId, cost: Cost, now: Time) -> bool {
        let Some(share) = self.running.remove(&id) else { return false };
        self.end(&share, cost, now)
    }

    /// Ends requests that cost nothing more, because the instance is gone that has sent them.
    /// Returns the number of those that were with the backend. With all of them taken out first,
    /// each costs time for every one that stays.
    fn handle_gone(&mut self, ids: &[RequestId], now: Time) -> usize {
        let ran: Vec<_> = ids.iter().filter_map(|id| self.running.remove(id)).collect();
        let count = ran.len();
        ran.iter().for_each(|share| _ = self.end(share, Cost::ZERO, now));
        for id in ids {
            self.handle_cancel(*id);
        }
        count
    }

    fn end(&mut self, share: &QueuedShare, cost: Cost, now: Time) -> bool {
        let QueuedShare { count, estimate, .. } = *share;
        self.clock = self.clock.max(share.clock.plus(cost));
        self.staying -= usize::from(share.stays);
        self.beside -= usize::from(share.beside);
        if share.is_stranger {
            self.tiers.note_stranger_end();
        }
        // A guess that was too low says nothing of the backend, and known workers say it all.
        let is_time = self.settings.unit == WorkUnit::CpuTime;
        let says_nothing =
            !share.is_light || share.is_guess || self.settings.workers.is_some() || !is_time;
        let ran = RequestRun { estimate, cost, sent: share.sent, ended: now };
        let before = |other: &&QueuedShare| other.order < share.order;
        let stayed = || self.running.values().filter(before).count() + 1;
        let telling = says_nothing || self.depth.handle_done(count, ran, stayed);
        if !share.is_light || (telling && ran.is_late()) {
            self.depth.handle_heavy_done(ran);
        }
        if self.brief.count > 0 {
            // A wait inside the backend is too short to notice. A late request only shows that the
            // machine stood still.
            self.depth.forget_room();
        }
        self.note_cost(share, cost);
        let cost = if telling { cost } else { estimate };
        self.tiers.settle(share, cost, self.running.values());
        self.note_overruns();
        if let Entry::Occupied(mut client) = self.clients.entry(share.client) {
            client.get_mut().running = client.get().running.saturating_sub(1);
            if client.get().is_gone() {
                client.remove();
            }
        }
        if matches!(share.place, Place::Line(_)) {
            self.refresh(share.client);
        }
        telling
    }

    /// Cancels a request, for instance because the client has disconnected. A waiting request is
    /// removed at once; a running one keeps its slot.
    pub fn handle_cancel(&mut self, id: RequestId) -> CancelOutcome {
        self.enqueue_ready();
        if self.running.contains_key(&id) {
            return CancelOutcome::Running;
        }
        // The client's next request does not take over the place of the cancelled one.
        if let Some(client) = self.waiting.get(id).map(|waiting| waiting.client)
            && self.first_of(client) == Some(id)
            && let Some(place) = self.clients.get(&client).map(|known| known.place)
        {
            self.tiers.set_head(client, place, None);
        }
        match self.remove(id) {
            Some(_) => CancelOutcome::Waiting,
            None => CancelOutcome::Unknown,
        }
    }

    /// Refuses the requests that have waited for too long, and sends those to the waiting room that
    /// are due there.
    pub fn handle_timeout(&mut self, now: Time) {
        while self.oldest_due().is_some_and(|due| due <= now) {
            self.enqueue_ready();
            let Some((id, _)) = self.waiting.first() else { break };
            self.refuse(id, RefusalCause::WaitMax);
        }
        self.note_work(now);
        self.fill_waiting_room(now);
    }

    /// The time of the next [`Queue::handle_timeout`]: when the oldest waiting request will have
    /// waited for too long, or a request is due in the waiting room.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let due = self.waiting_room.poll_timeout(self.lines_are_long());
        self.oldest_due().into_iter().chain(due).min()
    }

    /// When the oldest waiting request will have waited for too long.
    fn oldest_due(&self) -> Option<Time> {
        let ready = || self.ready.as_ref().map(|(_, ready)| ready);
        let oldest = self.waiting.first().map(|(_, oldest)| oldest).or_else(ready)?;
        Some(oldest.since.plus(self.settings.wait_max))
    }

    /// The next request to send to the backend, if there is a slot for one. Call it after each
    /// arrival and whenever a slot becomes free, until it returns `None`.
    pub fn poll_dispatch(&mut self, now: Time) -> Option<RequestId> {
        if let Some((id, ready)) = self.ready.take() {
            self.pass(id, &ready, now);
            return Some(id);
        }
        if self.waiting.is_empty() {
            return None;
        }
        self.leave_reserved();
        let (id, client, place) = self.next_reestimated(now)?;
        let known = self.clients.get_mut(&client)?;
        let waiting = self.waiting.leave(id, &mut known.line)?;
        known.running += 1;
        self.waiting_room.leave(id, &waiting);
        self.visits.leave(waiting.place);
        self.routes.leave(&waiting);
        let mut share = QueuedShare::new(&waiting);
        self.note_dispatch(&mut share, now);
        self.count(client, |crowd| crowd.minus(share.estimate));
        self.reconsider(client);
        let next = self.head(client);
        let here = next.filter(|(_, next)| *next == place);
        self.tiers.serve(&mut share, here.map(|(head, _)| head));
        if next.is_some() && here.is_none() {
            self.refresh(client);
        }
        self.running.insert(id, share);
        let others = self.tiers.waiting(place) > 0;
        self.pace(place).serve(share.estimate, others, now);
        self.reestimate_in_round();
        self.note_work(now);
        Some(id)
    }

    /// The next request to refuse, if there is one.
    pub fn poll_refused(&mut self) -> Option<RefusedRequest> {
        self.refused.pop_front()
    }

    /// Sends a request to the backend at once: no request waits, and a slot is free.
    fn pass(&mut self, id: RequestId, ready: &WaitingRequest, now: Time) {
        let mut share = QueuedShare::new(ready);
        let QueuedShare { client, place, .. } = share;
        let known = self.clients.entry(client).or_insert(QueueClient::new(place));
        known.place = place;
        known.running += 1;
        self.note_dispatch(&mut share, now);
        self.tiers.pass(&mut share);
        self.running.insert(id, share);
        self.pace(place).pause();
    }

    /// Notes in a request that goes to the backend the number of requests in flight, itself
    /// included, and whether it uses a reserved slot; and counts it for its client.
    fn note_dispatch(&mut self, share: &mut QueuedShare, now: Time) {
        (share.count, share.sent) = (self.running.len() + 1, now);
        share.is_light = self.tiers.is_light(share);
        self.sent += 1;
        share.order = self.sent;
        share.clock = self.clock;
        share.beside = self.in_slots() >= self.slots();
        self.beside += usize::from(share.beside);
        if share.is_light || share.beside {
            self.depth.handle_dispatch(share.count, now);
        }
        self.note_turn(share, now);
    }

    /// Moves the request in `ready` to the waiting ones. To be called before any other change.
    fn enqueue_ready(&mut self) {
        if let Some((id, ready)) = self.ready.take() {
            self.enqueue(id, ready);
        }
    }

    /// Puts a request into the queue, and refuses requests if the queue is then too long.
    fn enqueue(&mut self, id: RequestId, waiting: WaitingRequest) {
        let WaitingRequest { client, place, estimate, .. } = waiting;
        self.routes.join(&waiting);
        let known = self.clients.entry(client).or_insert(QueueClient::new(place));
        self.waiting_room.join(id, &waiting);
        self.visits.join(place);
        self.waiting.join(id, waiting, &mut known.line);
        let is_first = known.line.first() == Some(id);
        self.count(client, |crowd| crowd.plus(estimate));
        if is_first {
            self.refresh(client);
        }
        while self.waiting.len() > self.settings.len_max.saturating_add(self.dispatchable_count()) {
            let Some(newest) = self.newest_of_largest() else { break };
            self.turn_away(newest);
        }
    }

    /// Changes the backlog of a client after its line has changed, and keeps the totals of its flow
    /// in step.
    fn count(&mut self, client: KeyHash, change: impl FnOnce(Backlog) -> Backlog) {
        let Some(known) = self.clients.get_mut(&client) else { return };
        let before = known.crowd;
        known.crowd = Backlog { newest: known.line.last(), ..change(before) };
        self.crowds.change(Flow::of(client, known.place), client, before, known.crowd);
    }

    /// Updates the tiers after the first waiting request of the client has changed, and moves the
    /// client's backlog if its place has changed.
    fn refresh(&mut self, client: KeyHash) {
        self.reconsider(client);
        let head = self.head(client);
        let Some(known) = self.clients.get_mut(&client) else { return };
        let (before, crowd) = (known.place, known.crowd);
        let place = head.map_or(before, |(_, place)| place);
        if before != place {
            known.place = place;
            self.tiers.set_head(client, before, None);
            self.crowds.change(Flow::of(client, before), client, crowd, Backlog::default());
            self.crowds.change(Flow::of(client, place), client, Backlog::default(), crowd);
        }
        self.tiers.set_head(client, place, head.map(|(head, _)| head));
    }

    /// Forgets a client that has no request here.
    fn dismiss(&mut self, client: KeyHash) {
        if self.clients.get(&client).is_some_and(QueueClient::is_gone) {
            self.clients.remove(&client);
        }
    }

    /// The client's oldest waiting request.
    fn first_of(&self, client: KeyHash) -> Option<RequestId> {
        self.clients.get(&client)?.line.first()
    }

    /// The client's oldest waiting request as `turns` needs it, and its place.
    fn head(&self, client: KeyHash) -> Option<(HeadRequest, Place)> {
        let id = self.first_of(client)?;
        let waiting = self.waiting.get(id)?;
        Some((waiting.head(id), waiting.place))
    }

    fn newest_of_largest(&self) -> Option<RequestId> {
        let client = self.crowds.largest()?;
        self.clients.get(&client)?.line.last()
    }

    /// Removes a waiting request from the queue.
    fn remove(&mut self, id: RequestId) -> Option<WaitingRequest> {
        let client = self.waiting.get(id)?.client;
        let line = &mut self.clients.get_mut(&client)?.line;
        let gone = self.waiting.leave(id, line)?;
        self.waiting_room.leave(id, &gone);
        self.visits.leave(gone.place);
        self.routes.leave(&gone);
        self.count(client, |crowd| crowd.minus(gone.estimate));
        self.refresh(client);
        self.dismiss(client);
        Some(gone)
    }

    fn refuse(&mut self, id: RequestId, cause: RefusalCause) {
        let Some(waiting) = self.waiting.get(id) else { return };
        let client = waiting.client;
        let place = self.clients.get(&client).map_or(Place::Credit, |known| known.place);
        let retry_after = self.drain_time(client, place);
        self.remove(id);
        self.refused.push_back(RefusedRequest { id, retry_after, cause });
    }

    /// The time until the waiting requests of a client's flow will have been served, if all flows
    /// that wait in its tier get equal shares. Those that are not served until `wait_max` are gone.
    fn drain_time(&mut self, client: KeyHash, place: Place) -> Nanos {
        let cost = self.crowds.cost(Flow::of(client, place));
        let flows = match place {
            Place::Line(_) => 1,
            Place::Credit | Place::Debt(_) => self.tiers.waiting(place).max(1) as u64,
        };
        let slots = self.settings.concurrency;
        let all = Cost(cost.0.saturating_mul(flows));
        self.pace(place).time_for(all, slots).min(self.settings.wait_max).min(RETRY_AFTER_MAX)
    }

    fn pace(&mut self, place: Place) -> &mut TierPace {
        match place {
            Place::Credit => &mut self.credit_pace,
            Place::Line(_) => &mut self.lines_pace,
            Place::Debt(_) => &mut self.debt_pace,
        }
    }
}

//! A discrete-event simulation of clients and a backend, with the real limits between them.
//!
//! Clients, network and backend are simulated. [`Limiter`], [`Meter`] and the [`queue`] (if the
//! scene has one) are the code that serves real requests. The simulation calls them as a door does:
//! ask, wait for capacity, let the backend work, charge, hold the response, settle. So limits can
//! be tested before they meet users. The same [`SimScene`] always gives the same [`SimOutcome`], on
//! every machine. An hour of traffic takes seconds.
//!
//! Not simulated: processing time outside the backend, and resources other than CPU time. Every
//! request is kept as a record, so memory grows with their number.

pub mod backend;
pub mod client;
pub mod cluster;
pub mod outcome;
pub mod random;
mod sim_queue;
mod visitor;

use crate::key::KeySeed;
use crate::limit::Limit;
use crate::limiter::{Limiter, LimiterPolicy, Ticket, Verdict};
use crate::meter::{CpuClock, Meter, Reading};
use crate::queue;
use crate::queue::admission::AdmissionOutcome;
use crate::queue::standing::{Visit, VisitPass, WaitingRoomEntry};
use crate::units::{Cost, Nanos, SECOND, Time};
use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec::Vec;
use backend::{FinishedJob, SimBackend};
use client::{Arrivals, SimClient};
use core::cmp::Reverse;
use core::net::Ipv4Addr;
use outcome::{SimOutcome, SimRecord, SimRequestEnd};
use random::SimRandom;
use sim_queue::{SimCompletion, SimQueue, SimQueueRequest};
use visitor::SimVisitor;

/// The start time of every simulation.
pub const SIM_START: Time = Time(1_700_000_000 * SECOND);
/// The seed for the hashes of keys and routes.
const SEED: KeySeed = KeySeed([7; 16]);
/// The minimum pause after a refusal or a waiting page. Without it, a closed loop that is refused
/// at once would never let the simulated time advance.
const BACKOFF_MIN: Nanos = Nanos::from_millis(1);

/// The complete input of a simulation.
pub struct SimScene {
    /// The simulated backend.
    pub backend: SimBackend,
    /// The simulated clients.
    pub clients: Vec<SimClient>,
    /// The limits between the clients and the backend.
    pub limits: Vec<Limit>,
    /// The action for a client over a limit, and the maximum delay.
    pub policy: LimiterPolicy,
    /// The settings of the admission queue. `None`: requests go to the backend as they arrive, and
    /// no estimated cost is charged in advance.
    pub queue: Option<queue::QueueSettings>,
    /// The clock that measures the cost.
    pub clock: CpuClock,
    /// Time for which the backend continues to work after the client disconnects; then the request
    /// is stopped. The proxy's default is 5 s.
    pub abort_linger: Nanos,
    /// Time for which clients send requests. Requests in progress at its end still run to
    /// completion.
    pub length: Nanos,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// A running simulation.
pub struct Sim {
    clients: Vec<SimClient>,
    chance: Vec<SimRandom>,
    /// The number of requests that each client has sent.
    sent: Vec<u64>,
    limiter: Limiter,
    gate: Option<SimQueue>,
    meter: Meter,
    backend: SimBackend,
    abort_linger: Nanos,
    length: Nanos,
    now: Time,
    agenda: BinaryHeap<Reverse<SimAgendaItem>>,
    planned: u64,
    flights: BTreeMap<u64, SimRequest>,
    /// The visitors that will ask for a page, with their clients.
    visitors: BTreeMap<u64, (usize, SimVisitor)>,
    /// What is known of a client with a fixed address.
    visits: Vec<Visit>,
    records: Vec<Vec<SimRecord>>,
    charged: Cost,
}

/// A planned event. Of events at the same time, the one planned first comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SimAgendaItem {
    at: Time,
    order: u64,
    event: SimEvent,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum SimEvent {
    /// A client sends a request.
    Send(usize),
    /// A visitor comes back, or asks for the next page.
    Return(u64),
    /// A delayed request goes to the backend or into the queue.
    Start(u64),
    /// A held response goes to the client.
    Release(u64),
    /// The client loses patience and disconnects.
    Leave(u64),
    /// The backend stops working for a client that has disconnected.
    Stop(u64),
}

/// A request in progress.
struct SimRequest {
    client: usize,
    sent: Time,
    demand: Nanos,
    ticket: Ticket,
    /// The attributes that the queue needs.
    request: SimQueueRequest,
    stage: SimRequestStage,
    waited: Nanos,
    used: Nanos,
    visitor: Option<SimVisitor>,
    /// The pass that comes with the response.
    pass: Option<VisitPass>,
    /// Time at which the client disconnected, if it did.
    left: Option<Time>,
}

#[derive(Clone, Copy)]
enum SimRequestStage {
    /// The request waits before it reaches the queue or the backend.
    Delayed,
    /// The request has waited in the queue since this time.
    Queued(Time),
    /// The backend has worked on the request since this time.
    Working(Reading, Time),
    /// The backend is done, and the response may be held. Contains the cost.
    Held(Cost),
}

impl Sim {
    /// A simulation at its start; the first requests are planned.
    #[must_use]
    pub fn new(scene: SimScene) -> Sim {
        let count = scene.clients.len();
        let mut sim = Sim {
            chance: (0..count).map(|index| SimRandom::new(scene.seed, index as u64)).collect(),
            sent: alloc::vec![0; count],
            clients: scene.clients,
            limiter: Limiter::new(scene.policy, scene.limits, SEED),
            gate: scene.queue.map(SimQueue::new),
            meter: Meter::new(scene.clock),
            backend: scene.backend,
            abort_linger: scene.abort_linger,
            length: scene.length,
            now: SIM_START,
            agenda: BinaryHeap::new(),
            planned: 0,
            flights: BTreeMap::new(),
            visitors: BTreeMap::new(),
            visits: (0..count).map(|_| Visit::Unknown).collect(),
            records: (0..count).map(|_| Vec::new()).collect(),
            charged: Cost::ZERO,
        };
        (0..count).for_each(|client| sim.open(client));
        sim
    }

    /// Replaces the fixed concurrency of the scene's queue by the automatic one of the proxy, for a
    /// backend with `cpus` processors.
    #[must_use]
    pub fn with_auto_concurrency(mut self, cpus: f64) -> Sim {
        if let Some(gate) = &mut self.gate {
            gate.use_auto_concurrency(cpus);
        }
        self
    }

    /// Leaves the backend `cores` processors from the current time on: other programs use the rest.
    /// The clock of costs does not know of it.
    pub fn set_cores(&mut self, cores: f64) {
        self.backend.set_cores(cores, self.now);
    }

    /// Tells the automatic concurrency which part of the processors' time is used.
    pub fn handle_processor_use(&mut self, part: f64) {
        if let Some(gate) = &mut self.gate {
            gate.handle_processor_use(part, self.now);
        }
    }

    /// The number of requests that the queue sends to the backend at once; `None`: no queue.
    #[must_use]
    pub fn concurrency(&self) -> Option<usize> {
        self.gate.as_ref().map(SimQueue::concurrency)
    }

    /// The number of requests that the backend is believed to accept at once; `None`: not known.
    #[must_use]
    pub fn accepted_max(&self) -> Option<usize> {
        self.gate.as_ref()?.accepted_max()
    }

    /// The limiter, for tests that read a bucket or charge it in advance.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// The current simulated time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Time of the next event; `None` if the simulation has ended.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let due = self.agenda.peek().map(|Reverse(due)| due.at);
        let too_long = self.gate.as_ref().and_then(SimQueue::poll_timeout);
        [due, self.backend.poll_timeout(), too_long].into_iter().flatten().min()
    }

    /// Advances the time to `now` and handles all events up to it.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(next) = self.poll_timeout().filter(|next| *next <= now) {
            self.now = self.now.max(next);
            self.backend.handle_timeout(self.now);
            while let Some(finished) = self.backend.poll_finished() {
                self.handle_finished(finished);
            }
            if self.agenda.peek().is_some_and(|Reverse(due)| due.at <= next)
                && let Some(Reverse(due)) = self.agenda.pop()
            {
                self.handle_event(due.event);
            }
            self.pass_gate();
        }
        self.now = self.now.max(now);
    }

    /// Runs the simulation to its end.
    #[must_use]
    pub fn run(mut self) -> SimOutcome {
        while let Some(next) = self.poll_timeout() {
            self.handle_timeout(next);
        }
        SimOutcome {
            clients: self.records,
            charged: self.charged,
            metered: self.meter.total(self.now),
            used: self.backend.used(),
            end: self.now,
            limiter: self.limiter,
        }
    }

    /// Plans the first requests of a client.
    fn open(&mut self, client: usize) {
        let from = self.clients[client].from;
        match self.clients[client].arrivals {
            Arrivals::Closed { parallel, .. } => {
                (0..parallel).for_each(|_| self.plan_request(client, from));
            }
            Arrivals::Open { gap } => {
                let gap = self.chance[client].length(gap);
                self.plan_request(client, from.plus(gap));
            }
        }
    }

    /// Plans a request `delay` from now, unless the client has stopped by then.
    fn plan_request(&mut self, client: usize, delay: Nanos) {
        let at = self.now.plus(delay);
        if at.since(SIM_START) < self.clients[client].until.min(self.length) {
            self.plan(at, SimEvent::Send(client));
        }
    }

    fn plan(&mut self, at: Time, event: SimEvent) {
        self.planned += 1;
        self.agenda.push(Reverse(SimAgendaItem { at, order: self.planned, event }));
    }

    fn handle_event(&mut self, event: SimEvent) {
        match event {
            SimEvent::Send(client) => self.handle_send(client),
            SimEvent::Return(visitor) => self.handle_return(visitor),
            SimEvent::Start(id) => self.enqueue(id),
            SimEvent::Release(id) => self.release(id),
            SimEvent::Leave(id) => self.handle_leave(id),
            SimEvent::Stop(id) => self.handle_stop(id),
        }
    }

    fn handle_send(&mut self, client: usize) {
        if let Arrivals::Open { gap } = self.clients[client].arrivals {
            let gap = self.chance[client].length(gap);
            self.plan_request(client, gap);
        }
        self.rename(client);
        let SimClient { browser, address, ever_new, .. } = self.clients[client];
        let chance = &mut self.chance[client];
        let visitor = browser.map(|browser| {
            let visitor = SimVisitor::new(&browser, address, chance, self.now);
            let visit = if ever_new { Visit::Unknown } else { self.visits[client] };
            SimVisitor { visit, ..visitor }
        });
        self.ask(client, visitor);
    }

    /// A visitor comes back from the waiting room, or asks for its next page.
    fn handle_return(&mut self, id: u64) {
        let Some((client, visitor)) = self.visitors.remove(&id) else { return };
        self.clients[client].address = visitor.address;
        self.ask(client, Some(visitor));
    }

    fn ask(&mut self, client: usize, visitor: Option<SimVisitor>) {
        let keys = self.limiter.keys(&self.clients[client]);
        let (asks, gate) = (&self.clients[client], self.gate.as_ref());
        let mut request = SimQueueRequest::of(asks, &keys, &self.limiter, gate, self.now);
        if let Some(visitor) = visitor {
            (request.visit, request.accepts_waiting_page) = (visitor.visit, true);
        }
        let (verdict, ticket) = self.limiter.ask(&keys, request.estimate, self.now);
        match verdict {
            Verdict::Deny { .. } => self.handle_refusal(client, visitor, self.now),
            Verdict::Allow | Verdict::Delay(_) => self.admit(client, visitor, ticket, request),
        }
    }

    /// Gives a client what is new with each of its requests.
    fn rename(&mut self, client: usize) {
        let asks = &mut self.clients[client];
        let number = self.sent[client];
        self.sent[client] += 1;
        if asks.ever_new {
            asks.address = Ipv4Addr::from_bits(self.chance[client].bits() as u32).into();
        }
        if asks.new_paths {
            let name = (0..8).map(|place| char::from(b'g' + (number >> (4 * place) & 15) as u8));
            let folder = asks.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            asks.path = [folder, "/"].concat();
            asks.path.extend(name);
        }
    }

    fn admit(
        &mut self,
        client: usize,
        visitor: Option<SimVisitor>,
        ticket: Ticket,
        request: SimQueueRequest,
    ) {
        self.planned += 1;
        let id = self.planned;
        if let Some(patience) = self.clients[client].patience {
            let asked = visitor.map_or(self.now, |visitor| visitor.asked);
            self.plan(asked.plus(patience).max(self.now), SimEvent::Leave(id));
        }
        let start = ticket.starts_at();
        let flight = SimRequest {
            client,
            visitor,
            sent: visitor.map_or(self.now, |visitor| visitor.asked),
            demand: self.chance[client].length(self.clients[client].demand),
            waited: start.since(self.now),
            ticket,
            request,
            stage: SimRequestStage::Delayed,
            used: Nanos::ZERO,
            pass: None,
            left: None,
        };
        self.flights.insert(id, flight);
        if start > self.now {
            self.plan(start, SimEvent::Start(id));
        } else {
            self.enqueue(id);
        }
    }

    fn handle_refusal(&mut self, client: usize, visitor: Option<SimVisitor>, sent: Time) {
        self.record_unserved(client, visitor, sent, SimRequestEnd::Refused);
        if visitor.is_some_and(|visitor| visitor.is_beside) {
            return;
        }
        self.plan_next_after_refusal(client);
    }

    /// Answers a request with a waiting page. Its visitor comes back later, or never.
    fn handle_waiting_page(&mut self, flight: &SimRequest, entry: &WaitingRoomEntry) {
        let (client, Some(mut visitor)) = (flight.client, flight.visitor) else { return };
        let SimClient { ever_new, patience, browser, .. } = self.clients[client];
        self.planned += 1;
        let is_shared = browser.is_some_and(|browser| browser.share_ticket);
        let ticket = if is_shared { client as u64 + 1 } else { self.planned };
        let at = self.now.plus(visitor.wait(entry, ticket, &mut self.chance[client]));
        let gives_up = patience.is_some_and(|patience| at.since(visitor.asked) >= patience);
        let is_beside = visitor.is_beside;
        if !visitor.keeps || gives_up || at.since(SIM_START) >= self.length {
            self.record_unserved(client, Some(visitor), flight.sent, SimRequestEnd::SentAway);
        } else {
            visitor.is_beside |= ever_new;
            self.plan_return(client, visitor, at);
            if !ever_new {
                return;
            }
        }
        if !is_beside {
            self.plan_next_after_refusal(client);
        }
    }

    fn plan_return(&mut self, client: usize, visitor: SimVisitor, at: Time) {
        self.planned += 1;
        self.visitors.insert(self.planned, (client, visitor));
        self.plan(at, SimEvent::Return(self.planned));
    }

    /// Notes a request that the backend has not seen.
    fn record_unserved(
        &mut self,
        client: usize,
        visitor: Option<SimVisitor>,
        sent: Time,
        fate: SimRequestEnd,
    ) {
        self.records[client].push(SimRecord {
            sent: sent.since(SIM_START),
            ended: self.now.since(SIM_START),
            waited: self.now.since(sent),
            used: Nanos::ZERO,
            estimate: Cost::ZERO,
            charged: Cost::ZERO,
            fate,
            page: visitor.map_or(0, |visitor| visitor.page),
        });
    }

    /// Sends the request to the queue or, without a queue, to the backend.
    fn enqueue(&mut self, id: u64) {
        let Some(gate) = &mut self.gate else { return self.start(id) };
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.stage = SimRequestStage::Queued(self.now);
        gate.handle_arrival(id, &flight.request, self.now);
    }

    /// Sends requests that leave the queue to the backend, and refuses those that the queue
    /// refuses.
    fn pass_gate(&mut self) {
        let Some(gate) = &mut self.gate else { return };
        gate.handle_timeout(self.now);
        while let Some((id, outcome)) = self.gate.as_mut().and_then(|gate| gate.poll(self.now)) {
            if let AdmissionOutcome::Slot(_) = outcome {
                self.start(id);
                continue;
            }
            let Some(flight) = self.flights.remove(&id) else { continue };
            self.limiter.settle(&flight.ticket, Cost::ZERO, self.now);
            match outcome {
                AdmissionOutcome::WaitingRoom(entry) => self.handle_waiting_page(&flight, &entry),
                _ => self.handle_refusal(flight.client, flight.visitor, flight.sent),
            }
        }
    }

    /// Sends the request to the backend.
    fn start(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        if let SimRequestStage::Queued(since) = flight.stage {
            flight.waited = flight.waited.plus(self.now.since(since));
        }
        flight.stage = SimRequestStage::Working(self.meter.enter(self.now), self.now);
        self.backend.handle_request(id, flight.demand, self.now);
    }

    fn handle_finished(&mut self, finished: FinishedJob) {
        if let Some(flight) = self.flights.get_mut(&finished.id) {
            flight.used = finished.used;
            self.charge(finished.id);
        }
    }

    /// Charges a request that the backend has finished, and holds its response if necessary.
    fn charge(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let SimRequestStage::Working(reading, since) = flight.stage else { return };
        let cost = self.meter.leave(reading, self.now);
        flight.stage = SimRequestStage::Held(cost);
        if let Some(gate) = &mut self.gate {
            flight.pass = gate.pass_of(id);
            let done = SimCompletion { cost, elapsed: self.now.since(since) };
            gate.handle_done(id, &flight.request, done, self.now);
        }
        let reason = self.limiter.charge(&mut flight.ticket, cost, self.now);
        let until = reason.map(|reason| flight.ticket.starts_at().plus(reason.wait));
        match until.filter(|until| *until > self.now && flight.left.is_none()) {
            Some(until) => {
                flight.waited = flight.waited.plus(until.since(self.now));
                self.plan(until, SimEvent::Release(id));
            }
            None => self.release(id),
        }
    }

    /// Handles a client that disconnects. If the backend works on the request, it continues for a
    /// while.
    fn handle_leave(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.left = Some(self.now);
        let (client, visitor) = (flight.client, flight.visitor);
        match flight.stage {
            SimRequestStage::Working(..) => {
                self.plan(self.now.plus(self.abort_linger), SimEvent::Stop(id))
            }
            SimRequestStage::Delayed | SimRequestStage::Held(_) | SimRequestStage::Queued(_) => {
                self.release(id)
            }
        }
        if let Some(gate) = &mut self.gate {
            gate.handle_cancel(id);
        }
        if !visitor.is_some_and(|visitor| visitor.is_beside) {
            self.plan_next_in_loop(client);
        }
    }

    fn handle_stop(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        if let Some(used) = self.backend.handle_cancel(id, self.now) {
            flight.used = used;
            self.charge(id);
        }
    }

    /// Ends the request and settles its account.
    fn release(&mut self, id: u64) {
        let Some(flight) = self.flights.remove(&id) else { return };
        let cost = if let SimRequestStage::Held(cost) = flight.stage { cost } else { Cost::ZERO };
        self.limiter.settle(&flight.ticket, cost, self.now);
        self.charged = self.charged.plus(cost);
        self.records[flight.client].push(SimRecord {
            sent: flight.sent.since(SIM_START),
            ended: flight.left.unwrap_or(self.now).since(SIM_START),
            waited: flight.waited,
            used: flight.used,
            estimate: flight.request.estimate,
            charged: cost,
            fate: if flight.left.is_some() {
                SimRequestEnd::Aborted
            } else {
                SimRequestEnd::Answered
            },
            page: flight.visitor.map_or(0, |visitor| visitor.page),
        });
        if flight.left.is_none() {
            self.plan_next_page(&flight);
            if !flight.visitor.is_some_and(|visitor| visitor.is_beside) {
                self.plan_next_in_loop(flight.client);
            }
        }
    }

    /// Plans the next page of a visitor that was served.
    fn plan_next_page(&mut self, flight: &SimRequest) {
        let SimClient { browser, ever_new, .. } = self.clients[flight.client];
        let (Some(mut visitor), Some(browser)) = (flight.visitor, browser) else { return };
        let has_next = visitor.turn_page(&browser, flight.pass);
        if !ever_new {
            self.visits[flight.client] = visitor.visit;
        } else if has_next {
            let at = self.now.plus(self.chance[flight.client].length(browser.think));
            (visitor.asked, visitor.is_beside) = (at, true);
            if at.since(SIM_START) < self.length {
                self.plan_return(flight.client, visitor, at);
            }
        }
    }

    /// Plans the next request of a closed loop that was refused, or got a waiting page.
    fn plan_next_after_refusal(&mut self, client: usize) {
        if let Arrivals::Closed { .. } = self.clients[client].arrivals {
            let backoff = self.clients[client].backoff.max(BACKOFF_MIN);
            self.plan_request(client, backoff);
        }
    }

    /// Plans the next request of a connection in a closed loop.
    fn plan_next_in_loop(&mut self, client: usize) {
        if let Arrivals::Closed { think, .. } = self.clients[client].arrivals {
            let think = self.chance[client].length(think);
            self.plan_request(client, think);
        }
    }
}

//! A discrete-event simulation of clients and a backend, with the real limits between them.
//!
//! Clients, network and backend are simulated. [`Limiter`], [`Meter`] and the [`queue`] (if the
//! scene has one) are the code that serves real requests. The simulation calls them as a door does:
//! ask, wait for capacity, let the backend work, charge, hold the response, settle. So limits can
//! be tested before they meet users. The same [`Scene`] always gives the same [`Outcome`], on every
//! machine. An hour of traffic takes seconds.
//!
//! Not simulated: processing time outside the backend, and resources other than CPU time. Every
//! request is kept as a record, so memory grows with their number.

pub mod backend;
pub mod client;
pub mod cluster;
mod gate;
pub mod outcome;
pub mod random;

use crate::key::Seed;
use crate::limit::Limit;
use crate::limiter::{Limiter, Policy, Ticket, Verdict};
use crate::meter::{Clock, Meter, Reading};
use crate::queue;
use crate::units::{Cost, Nanos, SECOND, Time};
use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec::Vec;
use backend::{Backend, Finished};
use client::{Arrivals, Client};
use core::cmp::Reverse;
use gate::{Done, Gate, Request};
use outcome::{Fate, Outcome, Record};
use random::Random;

/// The start time of every simulation.
pub const START: Time = Time(1_700_000_000 * SECOND);
/// The seed for the hashes of keys and routes.
const SEED: Seed = Seed([7; 16]);
/// The minimum pause after a refusal. Without it, a closed loop that is refused at once would never
/// let the simulated time advance.
const BACKOFF_MIN: Nanos = Nanos::from_millis(1);

/// The complete input of a simulation.
pub struct Scene {
    /// The simulated backend.
    pub backend: Backend,
    /// The simulated clients.
    pub clients: Vec<Client>,
    /// The limits between the clients and the backend.
    pub limits: Vec<Limit>,
    /// The action for a client over a limit, and the maximum delay.
    pub policy: Policy,
    /// The settings of the admission queue. `None`: requests go to the backend as they arrive, and
    /// no estimated cost is charged in advance.
    pub queue: Option<queue::Settings>,
    /// The clock that measures the cost.
    pub clock: Clock,
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
    clients: Vec<Client>,
    chance: Vec<Random>,
    limiter: Limiter,
    gate: Option<Gate>,
    meter: Meter,
    backend: Backend,
    abort_linger: Nanos,
    length: Nanos,
    now: Time,
    agenda: BinaryHeap<Reverse<Due>>,
    planned: u64,
    flights: BTreeMap<u64, Flight>,
    records: Vec<Vec<Record>>,
    charged: Cost,
}

/// A planned event. Of events at the same time, the one planned first comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Time,
    order: u64,
    event: Event,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client sends a request.
    Send(usize),
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
struct Flight {
    client: usize,
    sent: Time,
    demand: Nanos,
    ticket: Ticket,
    /// The attributes that the queue needs.
    request: Request,
    stage: Stage,
    waited: Nanos,
    used: Nanos,
    /// Time at which the client disconnected, if it did.
    left: Option<Time>,
}

#[derive(Clone, Copy)]
enum Stage {
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
    pub fn new(scene: Scene) -> Sim {
        let count = scene.clients.len();
        let mut sim = Sim {
            chance: (0..count).map(|index| Random::new(scene.seed, index as u64)).collect(),
            clients: scene.clients,
            limiter: Limiter::new(scene.policy, scene.limits, SEED),
            gate: scene.queue.map(Gate::new),
            meter: Meter::new(scene.clock),
            backend: scene.backend,
            abort_linger: scene.abort_linger,
            length: scene.length,
            now: START,
            agenda: BinaryHeap::new(),
            planned: 0,
            flights: BTreeMap::new(),
            records: (0..count).map(|_| Vec::new()).collect(),
            charged: Cost::ZERO,
        };
        (0..count).for_each(|client| sim.open(client));
        sim
    }

    /// Replaces the fixed concurrency of the scene's queue by the automatic one of the proxy, for a
    /// backend with `cpus` processors.
    #[must_use]
    pub fn with_found_concurrency(mut self, cpus: f64) -> Sim {
        if let Some(gate) = &mut self.gate {
            gate.find_concurrency(cpus);
        }
        self
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
        let too_long = self.gate.as_ref().and_then(Gate::poll_timeout);
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
    pub fn run(mut self) -> Outcome {
        while let Some(next) = self.poll_timeout() {
            self.handle_timeout(next);
        }
        Outcome {
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
        if at.since(START) < self.clients[client].until.min(self.length) {
            self.plan(at, Event::Send(client));
        }
    }

    fn plan(&mut self, at: Time, event: Event) {
        self.planned += 1;
        self.agenda.push(Reverse(Due { at, order: self.planned, event }));
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Send(client) => self.handle_send(client),
            Event::Start(id) => self.enqueue(id),
            Event::Release(id) => self.release(id),
            Event::Leave(id) => self.handle_leave(id),
            Event::Stop(id) => self.handle_stop(id),
        }
    }

    fn handle_send(&mut self, client: usize) {
        if let Arrivals::Open { gap } = self.clients[client].arrivals {
            let gap = self.chance[client].length(gap);
            self.plan_request(client, gap);
        }
        let keys = self.limiter.keys(&self.clients[client]);
        let (asks, gate) = (&self.clients[client], self.gate.as_ref());
        let request = Request::of(asks, &keys, &self.limiter, gate, self.now);
        let (verdict, ticket) = self.limiter.ask(&keys, request.estimate, self.now);
        match verdict {
            Verdict::Deny { .. } => self.handle_refusal(client, self.now),
            Verdict::Allow | Verdict::Delay(_) => self.admit(client, ticket, request),
        }
    }

    fn admit(&mut self, client: usize, ticket: Ticket, request: Request) {
        self.planned += 1;
        let id = self.planned;
        if let Some(patience) = self.clients[client].patience {
            self.plan(self.now.plus(patience), Event::Leave(id));
        }
        let start = ticket.starts_at();
        let flight = Flight {
            client,
            sent: self.now,
            demand: self.chance[client].length(self.clients[client].demand),
            waited: start.since(self.now),
            ticket,
            request,
            stage: Stage::Delayed,
            used: Nanos::ZERO,
            left: None,
        };
        self.flights.insert(id, flight);
        if start > self.now {
            self.plan(start, Event::Start(id));
        } else {
            self.enqueue(id);
        }
    }

    fn handle_refusal(&mut self, client: usize, sent: Time) {
        self.records[client].push(Record {
            sent: sent.since(START),
            ended: self.now.since(START),
            waited: self.now.since(sent),
            used: Nanos::ZERO,
            charged: Cost::ZERO,
            fate: Fate::Refused,
        });
        if let Arrivals::Closed { .. } = self.clients[client].arrivals {
            let backoff = self.clients[client].backoff.max(BACKOFF_MIN);
            self.plan_request(client, backoff);
        }
    }

    /// Sends the request to the queue or, without a queue, to the backend.
    fn enqueue(&mut self, id: u64) {
        let Some(gate) = &mut self.gate else { return self.start(id) };
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.stage = Stage::Queued(self.now);
        gate.handle_arrival(id, &flight.request, self.now);
    }

    /// Sends requests that leave the queue to the backend, and refuses those that the queue
    /// refuses.
    fn pass_gate(&mut self) {
        let Some(gate) = &mut self.gate else { return };
        gate.handle_timeout(self.now);
        while let Some(id) = self.gate.as_mut().and_then(|gate| gate.poll_dispatch(self.now)) {
            self.start(id);
        }
        while let Some(id) = self.gate.as_mut().and_then(Gate::poll_refused) {
            let Some(flight) = self.flights.remove(&id) else { continue };
            self.limiter.settle(&flight.ticket, Cost::ZERO, self.now);
            self.handle_refusal(flight.client, flight.sent);
        }
    }

    /// Sends the request to the backend.
    fn start(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        if let Stage::Queued(since) = flight.stage {
            flight.waited = flight.waited.plus(self.now.since(since));
        }
        flight.stage = Stage::Working(self.meter.enter(self.now), self.now);
        self.backend.handle_request(id, flight.demand, self.now);
    }

    fn handle_finished(&mut self, finished: Finished) {
        if let Some(flight) = self.flights.get_mut(&finished.id) {
            flight.used = finished.used;
            self.charge(finished.id);
        }
    }

    /// Charges a request that the backend has finished, and holds its response if necessary.
    fn charge(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let Stage::Working(reading, since) = flight.stage else { return };
        let cost = self.meter.leave(reading, self.now);
        flight.stage = Stage::Held(cost);
        if let Some(gate) = &mut self.gate {
            let done = Done { cost, elapsed: self.now.since(since) };
            gate.handle_done(id, &flight.request, done, self.now);
        }
        let reason = self.limiter.charge(&mut flight.ticket, cost, self.now);
        let until = reason.map(|reason| flight.ticket.starts_at().plus(reason.wait));
        match until.filter(|until| *until > self.now && flight.left.is_none()) {
            Some(until) => {
                flight.waited = flight.waited.plus(until.since(self.now));
                self.plan(until, Event::Release(id));
            }
            None => self.release(id),
        }
    }

    /// Handles a client that disconnects. If the backend works on the request, it continues for a
    /// while.
    fn handle_leave(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.left = Some(self.now);
        let client = flight.client;
        match flight.stage {
            Stage::Working(..) => self.plan(self.now.plus(self.abort_linger), Event::Stop(id)),
            Stage::Delayed | Stage::Held(_) | Stage::Queued(_) => self.release(id),
        }
        if let Some(gate) = &mut self.gate {
            gate.handle_cancel(id);
        }
        self.next_of_loop(client);
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
        let cost = if let Stage::Held(cost) = flight.stage { cost } else { Cost::ZERO };
        self.limiter.settle(&flight.ticket, cost, self.now);
        self.charged = self.charged.plus(cost);
        self.records[flight.client].push(Record {
            sent: flight.sent.since(START),
            ended: flight.left.unwrap_or(self.now).since(START),
            waited: flight.waited,
            used: flight.used,
            charged: cost,
            fate: if flight.left.is_some() { Fate::Aborted } else { Fate::Answered },
        });
        if flight.left.is_none() {
            self.next_of_loop(flight.client);
        }
    }

    /// Plans the next request of a connection in a closed loop.
    fn next_of_loop(&mut self, client: usize) {
        if let Arrivals::Closed { think, .. } = self.clients[client].arrivals {
            let think = self.chance[client].length(think);
            self.plan_request(client, think);
        }
    }
}

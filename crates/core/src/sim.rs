//! A discrete-event simulation of clients before a backend, with the limits between them.
//!
//! Clients, network and backend are simulated; [`Limiter`], [`Meter`] and the [`queue`] (if the
//! scene has one) are those that serve real requests, driven in the way a door drives them: ask,
//! wait for room, let the backend work, charge, hold the answer, settle. So limits can be tried
//! out before they meet users. The same [`Scene`] always ends in the same [`Outcome`], on every
//! machine; an hour of traffic takes seconds.
//!
//! Not simulated: the time that anything but the backend takes, and what a backend spends on a
//! request beyond CPU time. Every request is kept as a record: memory grows with their number.

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

/// When every simulation starts.
pub const START: Time = Time(1_700_000_000 * SECOND);
/// What keys and routes are hashed with.
const SEED: Seed = Seed([7; 16]);
/// The shortest rest after a refusal: a loop that is refused in no time must not stand still.
const BACKOFF_MIN: Nanos = Nanos::from_millis(1);

/// Everything that a simulation depends on.
pub struct Scene {
    /// Who does the work.
    pub backend: Backend,
    /// Who asks.
    pub clients: Vec<Client>,
    /// What they are limited by.
    pub limits: Vec<Limit>,
    /// What happens to those over a limit, and for how long at most.
    pub policy: Policy,
    /// The queue before the backend; `None`: requests go there as they come, and nothing is
    /// charged before it is known.
    pub queue: Option<queue::Settings>,
    /// How cost is measured.
    pub clock: Clock,
    /// For how long the backend works on for a client that went away; then it is stopped. The
    /// proxy's default: 5 s.
    pub abort_linger: Nanos,
    /// For how long clients ask. What runs then is brought to its end.
    pub length: Nanos,
    /// What chance depends on.
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

/// What is due when; of events due together, the first one planned comes first.
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
    /// A delayed request goes to the backend.
    Start(u64),
    /// A held answer goes to the client.
    Release(u64),
    /// The client's patience ends.
    Leave(u64),
    /// The backend is told that its answer is not wanted.
    Stop(u64),
}

/// A request under way.
struct Flight {
    client: usize,
    sent: Time,
    demand: Nanos,
    ticket: Ticket,
    /// What the queue needs to know of it.
    request: Request,
    stage: Stage,
    waited: Nanos,
    used: Nanos,
    /// Until when the client was there, if it went away.
    left: Option<Time>,
}

#[derive(Clone, Copy)]
enum Stage {
    /// It waits before the backend sees it.
    Delayed,
    /// It waits for room, since when.
    Queued(Time),
    /// The backend works on it, since when.
    Working(Reading, Time),
    /// Its answer waits.
    Held(Cost),
}

impl Sim {
    /// Everybody is ready, nobody has asked.
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

    /// How many requests the backend works on at once is not what the scene says, but found out
    /// as the proxy does it, for a backend of `cpus` processors.
    #[must_use]
    pub fn with_found_concurrency(mut self, cpus: f64) -> Sim {
        if let Some(gate) = &mut self.gate {
            gate.find_concurrency(cpus);
        }
        self
    }

    /// The limits, for whoever wants to look at a bucket, or to charge it beforehand.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// What time it is.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// When something happens next; `None`: all is over.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let due = self.agenda.peek().map(|Reverse(due)| due.at);
        let too_long = self.gate.as_ref().and_then(Gate::poll_timeout);
        [due, self.backend.poll_timeout(), too_long].into_iter().flatten().min()
    }

    /// Time goes on to `now`; all that is due by then happens.
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

    /// Runs to the end.
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

    /// The request goes to the backend, or into the queue before it.
    fn enqueue(&mut self, id: u64) {
        let Some(gate) = &mut self.gate else { return self.start(id) };
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.stage = Stage::Queued(self.now);
        gate.handle_arrival(id, &flight.request, self.now);
    }

    /// What the queue lets pass goes to the backend, what it refuses back to its client.
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

    /// The backend gets the request.
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

    /// The backend is done: the request is charged, its answer held if need be.
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

    /// The client's patience is at its end. What the backend works on, it works on for a while.
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

    /// The request is over; its account is closed.
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

    /// A connection of a closed loop is free again.
    fn next_of_loop(&mut self, client: usize) {
        if let Arrivals::Closed { think, .. } = self.clients[client].arrivals {
            let think = self.chance[client].length(think);
            self.plan_request(client, think);
        }
    }
}

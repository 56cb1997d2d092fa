//! Plays recorded requests against a real engine, on their own clock.
//!
//! The engine is that of the proxy: the limits, keys, learned costs, meter and queue that would
//! have stood in front of the site. This file calls it as the proxy does: ask, wait, ask for a
//! slot, work, head of the answer, hold, settle. Time is simulated: the processors of the site
//! ([`processors`]), and the CPU time that each request needs, derived from the log ([`baseline`]).
//!
//! Two things are not simulated: a client that waits would request its next page later, and a
//! client may disconnect.

pub mod baseline;
pub mod processors;

use baseline::{RUNNING_MAX, RecordedRequest};
use evenkeel_config::settings::{ProxySettings, hosts::HostSettings};
use evenkeel_core::key::KeySeed;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::{
    AskOutcome, Charge, Engine, EngineLane, PlaybackNote, QueueAdmission, QueueTurn,
};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use processors::Processors;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// The interval of the search for requests that have waited too long, as in the proxy.
const EXPIRE_INTERVAL: Nanos = Nanos::from_millis(250);
/// The seed of the key hashes is fixed, so that results are the same each time.
const SEED: KeySeed = KeySeed([0x74; 16]);

/// The result of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayOutcome {
    /// The position of the request in the order of arrival, from 0.
    pub number: u64,
    /// The request, and how it went without limits.
    pub was: RecordedRequest,
    /// The decisions on it in their order, including those of limits in shadow mode; empty if it
    /// passed at once and no limit objected.
    pub notes: Vec<PlaybackNote>,
    /// Whether the request was refused.
    pub refused: bool,
    /// The total time for which the request was delayed, queued and held.
    pub waited: Nanos,
    /// The time at which its answer ended, or at which it was refused.
    pub ended: Time,
}

impl ReplayOutcome {
    /// The decision with the most effect: a refusal, or else the last decision. Limits in shadow
    /// mode are ignored.
    pub fn decisive(&self) -> Option<&PlaybackNote> {
        self.notes.iter().rfind(|note| !note.shadow)
    }

    /// The time from the arrival of the request to its answer.
    pub fn took(&self) -> Nanos {
        self.ended.since(self.was.entry.start)
    }
}

/// The engine and all requests in progress.
pub struct ReplaySimulation {
    engine: Arc<Engine>,
    lane: EngineLane,
    processors: Processors,
    flights: HashMap<u64, ReplayedRequest, RandomState>,
    agenda: BinaryHeap<Reverse<(Time, u64, ReplayEvent)>>,
    planned: u64,
    numbered: u64,
    now: Time,
    /// The number of requests in the queue; the next field is the time of the next search for
    /// requests that have waited too long.
    turns: usize,
    expire: Time,
    rung: Arc<Mutex<Vec<u64>>>,
    over: Vec<ReplayOutcome>,
    /// The maximum number of requests that ran at once, and that were in the queue at once.
    pub peak: (usize, usize),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReplayEvent {
    /// The delay of a request is over.
    Enter(u64),
    /// A held answer is sent.
    Release(u64),
}

struct ReplayedRequest {
    was: RecordedRequest,
    charge: Charge,
    turn: Option<QueueTurn>,
    notes: Vec<PlaybackNote>,
    waited: Nanos,
    /// The time at which the request entered the queue.
    since: Time,
}

/// A waker that records the id of a request when its turn comes.
struct TurnWaker {
    id: u64,
    rung: Arc<Mutex<Vec<u64>>>,
}

impl Wake for TurnWaker {
    fn wake(self: Arc<TurnWaker>) {
        self.rung.lock().push(self.id);
    }
}

impl ReplaySimulation {
    /// Makes an engine with the limits of this proxy. Host names of clients are not looked up. If
    /// the whole door is in shadow mode, it is played as if it were not, to show the effect of the
    /// limits. A single limit in shadow mode stops no request, as in front of the site.
    pub fn new(proxy: &ProxySettings) -> ReplaySimulation {
        let shadow = false;
        // The heaviest clients are determined elsewhere.
        let names_max = 1;
        let hosts = HostSettings::default();
        let proxy = ProxySettings { shadow, names_max, hosts, ..proxy.clone() };
        let clock = Clock::start();
        let watch = Arc::new(Watch::new(Time::ZERO));
        let engine = Engine::new(&proxy, 1, SEED, clock, watch);
        ReplaySimulation {
            lane: engine.playback(),
            engine,
            processors: Processors::new(proxy.cpus),
            flights: HashMap::default(),
            agenda: BinaryHeap::new(),
            planned: 0,
            numbered: 0,
            now: Time::ZERO,
            turns: 0,
            expire: Time::ZERO,
            rung: Arc::default(),
            over: Vec::new(),
            peak: (0, 0),
        }
    }

    /// The engine that decides.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The results of requests since the last call.
    pub fn outcomes(&mut self) -> std::vec::Drain<'_, ReplayOutcome> {
        self.over.drain(..)
    }

    /// Plays the arrival of a request. Invariant: the calls are in the order of arrival.
    pub fn push(&mut self, was: RecordedRequest) {
        self.run_until(Some(was.entry.start));
        self.at(was.entry.start);
        let number = self.numbered;
        self.numbered += 1;
        match self.lane.ask(&was.entry) {
            AskOutcome::Refused(_) => {
                let notes = self.notes();
                self.over.push(ReplayOutcome {
                    number,
                    notes,
                    refused: true,
                    waited: Nanos::ZERO,
                    ended: self.now,
                    was,
                });
            }
            AskOutcome::Pass(charge) => self.admit(number, was, charge),
        }
        self.ring();
    }

    /// Plays all requests in progress to their ends; no further request arrives.
    pub fn finish(&mut self) {
        self.run_until(None);
    }

    fn notes(&self) -> Vec<PlaybackNote> {
        let mut notes = Vec::new();
        self.lane.notes(&mut notes);
        notes
    }

    fn at(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.lane.stand_at(self.now);
    }

    fn plan(&mut self, at: Time, event: ReplayEvent) {
        self.planned += 1;
        self.agenda.push(Reverse((at, self.planned, event)));
    }

    /// Plays all events that are due by `until`; without `until`, all events.
    fn run_until(&mut self, until: Option<Time>) {
        while let Some(next) = self.next().filter(|next| until.is_none_or(|until| *next <= until)) {
            self.at(next);
            while let Some(over) = self.processors.poll_over(self.now) {
                self.worked(over.id);
                self.ring();
            }
            while self.agenda.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
                match self.agenda.pop() {
                    Some(Reverse((_, _, ReplayEvent::Enter(id)))) => self.enter(id),
                    Some(Reverse((_, _, ReplayEvent::Release(id)))) => self.end(id, false),
                    None => {}
                }
                self.ring();
            }
            if self.turns > 0 && self.expire <= self.now {
                self.lane.expire();
                self.expire = self.now.plus(EXPIRE_INTERVAL);
                self.ring();
            }
        }
    }

    fn next(&self) -> Option<Time> {
        let planned = self.agenda.peek().map(|Reverse((at, ..))| *at);
        let expire = (self.turns > 0).then_some(self.expire);
        [planned, self.processors.poll_timeout(), expire].into_iter().flatten().min()
    }

    fn admit(&mut self, id: u64, was: RecordedRequest, charge: Charge) {
        let notes = self.notes();
        let until = charge.delay_until().filter(|until| *until > self.now);
        let waited = until.map_or(Nanos::ZERO, |until| until.since(self.now));
        let flight = ReplayedRequest { was, charge, turn: None, notes, waited, since: self.now };
        self.flights.insert(id, flight);
        match until {
            Some(until) => self.plan(until, ReplayEvent::Enter(id)),
            None => self.enter(id),
        }
    }

    /// The request asks for a slot at the backend.
    fn enter(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        match flight.charge.enter() {
            QueueAdmission::Room => self.work(id),
            QueueAdmission::Refused(_) => self.end(id, true),
            QueueAdmission::Waits(turn) => {
                (flight.turn, flight.since) = (Some(turn), self.now);
                if self.turns == 0 {
                    self.expire = self.now.plus(EXPIRE_INTERVAL);
                }
                self.turns += 1;
                self.peak.1 = self.peak.1.max(self.turns);
                self.poll_turn(id);
            }
        }
    }

    /// Continues the requests that were woken because their turn came.
    fn ring(&mut self) {
        loop {
            let rung = std::mem::take(&mut *self.rung.lock());
            if rung.is_empty() {
                return;
            }
            rung.into_iter().for_each(|id| self.poll_turn(id));
        }
    }

    /// Checks whether the turn of a request has come.
    fn poll_turn(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let Some(turn) = &mut flight.turn else { return };
        let waker = Waker::from(Arc::new(TurnWaker { id, rung: Arc::clone(&self.rung) }));
        let Poll::Ready(turned) = Pin::new(turn).poll(&mut Context::from_waker(&waker)) else {
            return;
        };
        flight.turn = None;
        flight.waited = flight.waited.plus(self.now.since(flight.since));
        self.turns -= 1;
        let turned = flight.charge.accept_turn(turned);
        self.lane.notes(&mut flight.notes);
        match turned {
            Ok(()) => self.work(id),
            Err(_) => self.end(id, true),
        }
    }

    /// The backend starts to work on the request.
    fn work(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.charge.work();
        // With more running requests the simulation is no longer realistic; the caller counts them.
        let room = self.processors.running() < RUNNING_MAX;
        let needed = if room { flight.was.needed } else { Nanos::ZERO };
        self.processors.begin(id, needed, self.now);
        self.peak.0 = self.peak.0.max(self.processors.running());
    }

    /// The backend has finished the request.
    fn worked(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let stated = flight.was.entry.cost.as_deref().map(str::as_bytes);
        let stated = stated.filter(|_| flight.charge.cost_header().is_some());
        let until = flight.charge.head(stated).filter(|until| *until > self.now);
        self.lane.notes(&mut flight.notes);
        match until {
            Some(until) => {
                flight.waited = flight.waited.plus(until.since(self.now));
                self.plan(until, ReplayEvent::Release(id));
            }
            None => self.end(id, false),
        }
    }

    /// Ends the request and records its result.
    fn end(&mut self, number: u64, refused: bool) {
        let Some(flight) = self.flights.remove(&number) else { return };
        let ReplayedRequest { was, charge, mut notes, waited, .. } = flight;
        drop(charge);
        self.lane.notes(&mut notes);
        self.over.push(ReplayOutcome { number, was, notes, refused, waited, ended: self.now });
    }
}

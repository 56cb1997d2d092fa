//! The handle by which one thread asks the engine of requests: its lane, and its clock, which can
//! be stopped.
//!
//! A lane for recorded requests has a clock of its own, and its decisions are noted instead of
//! logged. Everything else works as for live requests, so the decisions are those that would have
//! been made at the time; `lab::replay` uses it. How a request is decided on: `ask`.

use crate::backends::SharedBackends;
use crate::engine::{Engine, RequestLists};
use crate::rules::EngineRules;
use crate::shards::LaneState;
use evenkeel_core::limiter::Reason;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_runtime::clock::FrozenClock;
use parking_lot::Mutex;
use std::sync::Arc;

/// The engine handle of one thread.
#[derive(Clone)]
pub struct EngineLane(pub(crate) Arc<LaneShared>);

/// State that a lane shares with its open accounts.
pub(crate) struct LaneShared {
    pub(crate) engine: Arc<Engine>,
    pub(crate) books: Arc<Mutex<LaneState<EngineRules, RequestLists>>>,
    pub(crate) stopped: FrozenClock,
    /// The decisions of a playback, which are noted here instead of logged.
    pub(crate) notes: PlaybackNotes,
    /// Whether requests ask for slots of the queue. The queue remembers no clients of those that do
    /// not, so that none of them can be distinguished from a stranger.
    pub(crate) takes_slots: bool,
}

impl LaneShared {
    pub(crate) fn now(&self) -> Time {
        self.stopped.now(&self.engine.shards.clock)
    }
}

impl EngineLane {
    /// Runs `step` with this lane's time stopped: the clock is read once, when it is first needed,
    /// for all asks and charges within. Only for work that never waits.
    pub fn at_once<R>(&self, step: impl FnOnce() -> R) -> R {
        self.0.stopped.stop();
        let result = step();
        self.0.stopped.go();
        result
    }

    /// The backends, as all threads share them.
    pub fn backends(&self) -> &SharedBackends {
        self.0.engine.backends()
    }

    /// Whether requests are waiting for a slot, or for the backend: none has ended for `hang`,
    /// although some run.
    pub fn is_crowded(&self, hang: Nanos) -> bool {
        self.0.engine.gate.is_crowded(hang, self.0.now())
    }

    /// Refuses requests that have waited for a slot for too long, measures what the backend can do,
    /// and adapts shares to that. Call it a few times a second.
    pub fn expire(&self) {
        let (engine, now) = (&self.0.engine, self.0.now());
        engine.gate.expire(now);
        engine.gate.note_total(engine.watch.tiers.progress(), now);
        engine.follow_work_rate();
    }

    /// Whether the backend works on fewer requests than it can run at once. Locks the meter and
    /// then the gate, one after the other.
    pub fn has_room(&self) -> bool {
        let engine = &self.0.engine;
        let working =
            engine.meter(self.0.now()).working() as usize + engine.gate.running_elsewhere();
        working < engine.gate.stats().concurrency
    }

    /// Sets the time of this lane to `now`, whatever the clock says.
    pub fn stand_at(&self, now: Time) {
        self.0.stopped.freeze_at(now);
    }

    /// Moves the decisions since the last call into `into`. There are none if the lane logs them.
    pub fn notes(&self, into: &mut Vec<PlaybackNote>) {
        if let Some(notes) = &self.0.notes {
            into.append(&mut notes.lock());
        }
    }
}

impl Engine {
    /// Returns the handle of thread `index`.
    pub fn lane(self: &Arc<Engine>, index: usize) -> EngineLane {
        self.handle(index, None, true)
    }

    /// Returns the handle of thread `index` of a door with requests that never ask for a slot
    /// ([`Charge::enter`](crate::Charge::enter)). They are no strangers, whatever they are like.
    pub fn lane_without_slots(self: &Arc<Engine>, index: usize) -> EngineLane {
        self.handle(index, None, false)
    }

    /// A handle for a replay. [`EngineLane::stand_at`] sets the time, and decisions are noted
    /// ([`EngineLane::notes`]) instead of counted and logged.
    pub fn playback(self: &Arc<Engine>) -> EngineLane {
        self.handle(0, Some(Mutex::default()), true)
    }

    fn handle(
        self: &Arc<Engine>,
        index: usize,
        notes: PlaybackNotes,
        takes_slots: bool,
    ) -> EngineLane {
        let (engine, books) = (Arc::clone(self), self.shards.lane(index));
        let stopped = FrozenClock::default();
        EngineLane(Arc::new(LaneShared { engine, books, stopped, notes, takes_slots }))
    }
}

type PlaybackNotes = Option<Mutex<Vec<PlaybackNote>>>;

/// A decision that delayed, held, queued or refused a request, or would have in shadow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlaybackNote {
    /// `hold`, `delay`, `queue`, `reject` or `deny`.
    pub verdict: &'static str,
    /// The limit, the bucket and its level, and how long the request waits or the client must stay
    /// away. The rules that deny requests are numbered after the limits, and their buckets are the
    /// addresses of clients.
    pub reason: Reason,
    /// Whether the decision was in shadow and had no effect.
    pub shadow: bool,
}

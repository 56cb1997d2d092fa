//! A lane for recorded requests: it has a clock of its own, and its decisions are noted instead of
//! logged.
//!
//! Everything else works as for live requests, so the decisions are those that would have been made
//! at the time. The caller is `lab::replay`.

use crate::{Engine, EngineLane, LaneShared};
use evenkeel_core::limiter::Reason;
use evenkeel_core::units::Time;
use evenkeel_runtime::clock::FrozenClock;
use parking_lot::Mutex;
use std::sync::Arc;

/// A decision that delayed, held, queued or refused a request, or would have in shadow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlaybackNote {
    /// `hold`, `delay`, `queue` or `reject`.
    pub verdict: &'static str,
    /// The limit, the bucket and its level, and how long the request waits or the client must stay
    /// away.
    pub reason: Reason,
    /// Whether the decision was in shadow and had no effect.
    pub shadow: bool,
}

impl Engine {
    /// A handle for a replay. [`EngineLane::stand_at`] sets the time, and decisions are noted
    /// ([`EngineLane::notes`]) instead of counted and logged.
    #[must_use]
    pub fn playback(self: &Arc<Engine>) -> EngineLane {
        let (engine, books) = (Arc::clone(self), Arc::clone(&self.lanes[0]));
        let notes = Some(Mutex::default());
        EngineLane(Arc::new(LaneShared { engine, books, stopped: FrozenClock::default(), notes }))
    }
}

impl EngineLane {
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

//! A lane for requests that were served long ago: on their own clock, their decisions noted.
//!
//! Everything else is as for requests of the present, so what is decided here is what would have
//! been decided then. Who plays them: `cli::replay`.

use crate::clock::Stopped;
use crate::engine::{Desk, Engine, Lane};
use evenkeel_core::limiter::Reason;
use evenkeel_core::units::Time;
use parking_lot::Mutex;
use std::sync::Arc;

/// A decision that kept a request waiting or refused it, or in shadow would have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Note {
    /// `hold`, `delay`, `queue` or `reject`.
    pub verdict: &'static str,
    /// Which limit and bucket, how it stood, and how long the request waits or is to stay away.
    pub reason: Reason,
    /// Whether that was only decided, and kept nobody.
    pub shadow: bool,
}

impl Engine {
    /// A handle for whoever plays back what has been: time is what [`Lane::stand_at`] says, and
    /// decisions are noted ([`Lane::notes`]) instead of counted and logged.
    #[must_use]
    pub fn playback(self: &Arc<Engine>) -> Lane {
        let (engine, books) = (Arc::clone(self), Arc::clone(&self.lanes[0]));
        let notes = Some(Mutex::default());
        Lane(Arc::new(Desk { engine, books, stopped: Stopped::default(), notes }))
    }
}

impl Lane {
    /// From now on it is `now` here, whatever the clock says.
    pub fn stand_at(&self, now: Time) {
        self.0.stopped.stand_at(now);
    }

    /// Adds to `into` what was decided since this was last asked; nothing where it is logged.
    pub fn notes(&self, into: &mut Vec<Note>) {
        if let Some(notes) = &self.0.notes {
            into.append(&mut notes.lock());
        }
    }
}

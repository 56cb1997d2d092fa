//! Figures over time, in at most [`SLOTS`] slots: when there are more, slots become twice as long.
//!
//! So a minute and a year take the same memory, and each has as fine a picture as it has room for.

use crate::cli::replay::play::Outcome;
use crate::cli::replay::play::was::Was;
use crate::cli::replay::tally::visitor::NOTICED;
use evenkeel_core::units::{Nanos, SECOND, Time};

/// The most slots.
pub const SLOTS: usize = 1_440;
/// The shortest.
const SHORTEST: u64 = 10;
/// A log that is longer than this is cut off: some 400 years.
const LENGTH_MAX: u64 = (SHORTEST * SLOTS as u64) << 20;

/// What happened within one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slot {
    /// Requests that came.
    pub requests: u64,
    /// CPU time that they needed.
    pub needed: Nanos,
    /// CPU time of those that passed without a wait that people notice.
    pub passed: Nanos,
    /// Requests that waited noticeably.
    pub waited: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// All of them.
#[derive(Clone, Debug)]
pub struct Series {
    /// The second at which the first slot begins.
    pub begins: u64,
    /// How many seconds a slot has.
    pub seconds: u64,
    /// The slots, without a gap.
    pub slots: Vec<Slot>,
}

impl Default for Series {
    /// Nothing yet.
    fn default() -> Series {
        Series { begins: 0, seconds: SHORTEST, slots: Vec::new() }
    }
}

impl Series {
    /// A request came.
    pub fn arrive(&mut self, was: &Was) {
        if let Some(slot) = self.slot(was.entry.start) {
            slot.requests += 1;
            slot.needed = slot.needed.plus(was.needed);
        }
    }

    /// And this became of it.
    pub fn over(&mut self, outcome: &Outcome) {
        if let Some(slot) = self.slot(outcome.was.entry.start) {
            let noticed = outcome.waited >= NOTICED;
            slot.refused += u64::from(outcome.refused);
            slot.waited += u64::from(noticed && !outcome.refused);
            if !noticed && !outcome.refused {
                slot.passed = slot.passed.plus(outcome.was.needed);
            }
        }
    }

    fn slot(&mut self, at: Time) -> Option<&mut Slot> {
        let second = at.0 / SECOND;
        if self.slots.is_empty() {
            self.begins = second - second % SHORTEST;
        }
        let after = second.saturating_sub(self.begins);
        if after >= LENGTH_MAX {
            return None;
        }
        while after / self.seconds >= SLOTS as u64 {
            self.double();
        }
        let place = (after / self.seconds) as usize;
        if place >= self.slots.len() {
            self.slots.resize(place + 1, Slot::default());
        }
        self.slots.get_mut(place)
    }

    fn double(&mut self) {
        self.seconds *= 2;
        let pairs = self.slots.chunks(2).map(|pair| {
            pair.iter().fold(Slot::default(), |sum, one| Slot {
                requests: sum.requests + one.requests,
                needed: sum.needed.plus(one.needed),
                passed: sum.passed.plus(one.passed),
                waited: sum.waited + one.waited,
                refused: sum.refused + one.refused,
            })
        });
        self.slots = pairs.collect();
    }
}

//! Numbers over time in at most [`SLOTS`] slots: when more are needed, slots become twice as long.
//!
//! So a minute and a year take the same memory, and each has the finest resolution that fits.

use crate::replay::play::Outcome;
use crate::replay::play::was::Was;
use crate::replay::tally::visitor::NOTICED;
use evenkeel_core::units::{Nanos, SECOND, Time};

/// The maximum number of slots.
pub const SLOTS: usize = 1_440;
/// The shortest length of a slot, in seconds.
const SHORTEST: u64 = 10;
/// The maximum length of a log in seconds, some 400 years; the rest is cut off.
const LENGTH_MAX: u64 = (SHORTEST * SLOTS as u64) << 20;

/// The sums of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slot {
    /// Requests that arrived.
    pub requests: u64,
    /// The CPU time that they needed.
    pub needed: Nanos,
    /// The CPU time of the requests that passed without a noticeable wait.
    pub passed: Nanos,
    /// Requests that waited noticeably.
    pub waited: u64,
    /// Requests that were refused.
    pub refused: u64,
}

/// All slots of a replay.
#[derive(Clone, Debug)]
pub struct Series {
    /// The second at which the first slot begins.
    pub begins: u64,
    /// The length of a slot in seconds.
    pub seconds: u64,
    /// The slots, without a gap.
    pub slots: Vec<Slot>,
}

impl Default for Series {
    /// Makes a series without slots.
    fn default() -> Series {
        Series { begins: 0, seconds: SHORTEST, slots: Vec::new() }
    }
}

impl Series {
    /// Counts the arrival of a request.
    pub fn arrive(&mut self, was: &Was) {
        if let Some(slot) = self.slot(was.entry.start) {
            slot.requests += 1;
            slot.needed = slot.needed.plus(was.needed);
        }
    }

    /// Counts the result of a request.
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

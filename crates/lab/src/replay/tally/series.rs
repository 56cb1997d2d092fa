//! Numbers over time in at most [`SLOTS_MAX`] slots: when more are needed, slots become twice as
//! long.
//!
//! So a minute and a year take the same memory, and each has the finest resolution that fits.

use crate::replay::play::ReplayOutcome;
use crate::replay::play::baseline::RecordedRequest;
use crate::replay::tally::visitor::NOTICED_WAIT_MIN;
use evenkeel_core::units::{Nanos, SECOND, Time};

pub const SLOTS_MAX: usize = 1_440;
/// The shortest length of a slot, in seconds.
const SLOT_SECONDS_MIN: u64 = 10;
/// The maximum length of a log in seconds, some 400 years; the rest is cut off.
const LOG_SECONDS_MAX: u64 = (SLOT_SECONDS_MIN * SLOTS_MAX as u64) << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SeriesSlot {
    pub requests: u64,
    /// The CPU time that they needed.
    pub needed: Nanos,
    /// The CPU time of the requests that passed without a noticeable wait.
    pub passed: Nanos,
    /// Requests that waited noticeably.
    pub waited: u64,
    pub refused: u64,
}

#[derive(Clone, Debug)]
pub struct TimeSeries {
    /// The second at which the first slot begins.
    pub begins: u64,
    /// The length of a slot in seconds.
    pub seconds: u64,
    /// The slots, without a gap.
    pub slots: Vec<SeriesSlot>,
}

impl Default for TimeSeries {
    /// Makes a series without slots.
    fn default() -> TimeSeries {
        TimeSeries { begins: 0, seconds: SLOT_SECONDS_MIN, slots: Vec::new() }
    }
}

impl TimeSeries {
    /// Counts the arrival of a request.
    pub fn arrive(&mut self, was: &RecordedRequest) {
        if let Some(slot) = self.slot(was.entry.start) {
            slot.requests += 1;
            slot.needed = slot.needed.plus(was.needed);
        }
    }

    /// Counts the result of a request.
    pub fn over(&mut self, outcome: &ReplayOutcome) {
        if let Some(slot) = self.slot(outcome.was.entry.start) {
            let noticed = outcome.waited >= NOTICED_WAIT_MIN;
            slot.refused += u64::from(outcome.refused);
            slot.waited += u64::from(noticed && !outcome.refused);
            if !noticed && !outcome.refused {
                slot.passed = slot.passed.plus(outcome.was.needed);
            }
        }
    }

    fn slot(&mut self, at: Time) -> Option<&mut SeriesSlot> {
        let second = at.0 / SECOND;
        if self.slots.is_empty() {
            self.begins = second - second % SLOT_SECONDS_MIN;
        }
        let after = second.saturating_sub(self.begins);
        if after >= LOG_SECONDS_MAX {
            return None;
        }
        while after / self.seconds >= SLOTS_MAX as u64 {
            self.double();
        }
        let place = (after / self.seconds) as usize;
        if place >= self.slots.len() {
            self.slots.resize(place + 1, SeriesSlot::default());
        }
        self.slots.get_mut(place)
    }

    fn double(&mut self) {
        self.seconds *= 2;
        let pairs = self.slots.chunks(2).map(|pair| {
            pair.iter().fold(SeriesSlot::default(), |sum, one| SeriesSlot {
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

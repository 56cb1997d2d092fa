//! Limits log lines under a flood: a few lines each second are written, the rest are counted, and
//! one line a second says how many were left out.
//!
//! This file reads no clock and writes nothing; the caller (`Watch`) owns the lines.

use evenkeel_core::units::{Nanos, Time};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The maximum number of lines of one kind that are written in one second.
pub const LINES_PER_SECOND: u32 = 10;

/// What the caller should do about one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineAdvice {
    /// Whether to write the line.
    pub write: bool,
    /// The number of lines left out before, which the caller logs first; zero: nothing to log.
    pub left_out: u64,
}

/// Limits the lines of one kind.
#[derive(Debug, Default)]
pub struct LineSampler(Mutex<SampledSecond>);

#[derive(Debug, Default)]
struct SampledSecond {
    /// The number of the second, counted from the epoch.
    number: u64,
    written: u32,
    left_out: u64,
}

impl LineSampler {
    /// Asks whether one line may be written at `now`, and counts it.
    pub fn ask(&self, now: Time) -> LineAdvice {
        let mut second = self.0.lock();
        let left_out = second.turn(now);
        let write = second.written < LINES_PER_SECOND;
        if write {
            second.written += 1;
        } else {
            second.left_out += 1;
        }
        LineAdvice { write, left_out }
    }

    /// Leaves out `count` lines without asking. Returns the same as [`LineSampler::flush`].
    pub fn skip(&self, count: u64, now: Time) -> u64 {
        let mut second = self.0.lock();
        let before = second.turn(now);
        second.left_out += count;
        before
    }

    /// The number of lines left out in past seconds that was not returned before. A caller that
    /// asks each second also learns about the end of a flood.
    pub fn flush(&self, now: Time) -> u64 {
        self.0.lock().turn(now)
    }
}

impl SampledSecond {
    /// Starts a new second if `now` is in a later one. Returns the lines left out before it.
    fn turn(&mut self, now: Time) -> u64 {
        if now.second() <= self.number {
            return 0;
        }
        self.number = now.second();
        self.written = 0;
        std::mem::take(&mut self.left_out)
    }
}

/// The pause between two lines about the same lasting state.
const WARNING_PAUSE: Nanos = Nanos::from_secs(60);

/// Limits a line to one a minute while its reason lasts.
#[derive(Debug, Default)]
pub struct WarningThrottle(AtomicU64);

impl WarningThrottle {
    /// Whether the line may be written at `now`. A `true` starts the next pause.
    pub fn ask(&self, now: Time) -> bool {
        let next = |next| (now.0 >= next).then(|| now.plus(WARNING_PAUSE).0);
        self.0.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO.plus(Nanos::from_secs(1_000)).plus(Nanos::from_millis(millis))
    }

    #[test]
    fn a_flood_becomes_ten_lines_a_second_and_one_that_counts_the_rest() {
        let sampler = LineSampler::default();
        let (mut written, mut told, mut notes) = (0, 0, 0);
        for n in 0..30_000 {
            let advice = sampler.ask(at(n / 10));
            written += u64::from(advice.write);
            told += advice.left_out;
            notes += u64::from(advice.left_out > 0);
        }
        assert_eq!((written, notes), (30, 2));
        assert_eq!(told, 2 * (10_000 - 10));
        assert_eq!(sampler.flush(at(2_999)), 0, "that second is not over yet");
        assert_eq!(sampler.flush(at(3_000)), 10_000 - 10);
        assert_eq!(sampler.flush(at(9_000)), 0, "told once");
    }

    #[test]
    fn a_trickle_is_written_whole() {
        let sampler = LineSampler::default();
        for n in 0..100 {
            let advice = sampler.ask(at(n * 100));
            assert_eq!(advice, LineAdvice { write: true, left_out: 0 });
        }
    }

    #[test]
    fn a_state_that_lasts_is_told_once_a_minute() {
        let seldom = WarningThrottle::default();
        let told: Vec<u64> = (0..180).filter(|n| seldom.ask(at(n * 1_000))).collect();
        assert_eq!(told, [0, 60, 120]);
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_starts_no_second() {
        let sampler = LineSampler::default();
        let written = (0..50).filter(|n| sampler.ask(at(5_000 - n)).write).count();
        assert_eq!(written, 10);
    }
}

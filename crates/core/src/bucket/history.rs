//! The history: the times of the last `burst` requests, and a delay when all of them are recent.
//!
//! This is Smockron's rule. Each request drops the times older than `burst * interval`. If `burst`
//! times remain, no request passes until `interval` after the newest of them, or after now if the
//! newest is past. So exactly `burst` requests are free, requests admitted beyond that are not paid
//! back later, and a client that sends nothing for `burst * interval` starts afresh.
//!
//! A delayed request is recorded at the time to which it is delayed. Two requests at the same time
//! count twice. Times in the future are kept until they are old, however long no request arrives.
//! See `limiter` for the treatment of a client that would wait too long.

use super::error::AlgorithmError;
use crate::units::{Nanos, Time};

/// The largest burst, in requests: the state holds all their times.
pub const BURST_MAX: usize = WORDS_MAX - 1;
/// The largest state, in 64-bit words.
pub(super) const WORDS_MAX: usize = 256;

/// The parameters of a history. Its state is the time until which requests are delayed, then
/// `burst` request times in no particular order; zero marks an unused entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHistory {
    burst: usize,
    interval: Nanos,
    /// Time for which a request is remembered: burst * interval.
    window: Nanos,
}

impl RequestHistory {
    /// A history in which `burst` requests (from 1 to [`BURST_MAX`]) are free; after them one
    /// request passes every `interval`.
    ///
    /// # Errors
    /// [`AlgorithmError::Burst`] or [`AlgorithmError::Interval`].
    pub fn new(burst: usize, interval: Nanos) -> Result<RequestHistory, AlgorithmError> {
        if burst == 0 || burst > BURST_MAX {
            return Err(AlgorithmError::Burst);
        }
        let window = interval.0.checked_mul(burst as u64).filter(|window| *window > 0);
        let window = window.map(Nanos).ok_or(AlgorithmError::Interval)?;
        Ok(RequestHistory { burst, interval, window })
    }

    /// Number of free requests.
    #[must_use]
    pub fn burst(&self) -> usize {
        self.burst
    }

    /// The time between two requests of a client that is delayed.
    #[must_use]
    pub fn interval(&self) -> Nanos {
        self.interval
    }

    /// Time for which a request is remembered.
    #[must_use]
    pub fn window(&self) -> Nanos {
        self.window
    }

    /// Number of 64-bit words in the state of a bucket.
    #[must_use]
    pub fn words(&self) -> usize {
        1 + self.burst
    }

    /// Time for which requests are still delayed; zero if they are not.
    #[must_use]
    pub fn wait(&self, state: &[u64], now: Time) -> Nanos {
        Time(state[0]).since(now)
    }

    /// Records a request at the time `at`, which is after `now` if the request is delayed.
    pub fn record(&self, state: &mut [u64], at: Time, now: Time) {
        let (until, times) = state.split_at_mut(1);
        times.iter_mut().filter(|time| !self.recent(**time, now)).for_each(|time| *time = 0);
        let at = at.0.max(1);
        let oldest = times.iter_mut().min();
        if let Some(oldest) = oldest.filter(|oldest| **oldest < at && self.recent(at, now)) {
            *oldest = at;
        }
        let newest = times.iter().copied().max().unwrap_or_default();
        if times.iter().all(|time| *time > 0) {
            until[0] = until[0].max(Time(newest).max(now).plus(self.interval).0);
        }
    }

    /// Adds the requests that `other` remembers, and takes over its delay if that is longer.
    pub fn absorb(&self, state: &mut [u64], other: &[u64], now: Time) {
        let times = other[1..].iter().filter(|time| **time > 0);
        times.for_each(|time| self.record(state, Time(*time), now));
        state[0] = state[0].max(other[0]);
    }

    /// The amount that would be forgiven if this bucket were evicted: the time for which each
    /// request is still remembered, and the delay.
    #[must_use]
    pub fn worth(&self, state: &[u64], now: Time) -> u64 {
        let recent = state[1..].iter().filter(|time| **time > 0 && self.recent(**time, now));
        // The nanosecond in which a request is exactly `window` old still counts.
        let left = recent.map(|time| Time(*time).plus(self.window).since(now).plus(Nanos(1)));
        left.fold(self.wait(state, now), Nanos::plus).0
    }

    /// Whether a request at this time still counts.
    fn recent(&self, time: u64, now: Time) -> bool {
        now.since(Time(time)) <= self.window
    }
}

//! The history: the times of the last `burst` requests, and a delay when all of them are recent.
//!
//! This is Smockron's rule. After each request, times older than `burst * interval` are dropped;
//! if `burst` are left, nobody passes until `interval` after the newest of them (or after now, if
//! it is past). So exactly `burst` requests are free, what was let in beyond that is not paid
//! back, and a client that stays away for `burst * interval` begins anew.
//!
//! A request that is delayed is recorded at the time it is delayed to. Two requests at the same
//! time count twice. Times that lie ahead are kept until they are old, however long nobody asks.
//! What is done with a client that would wait too long: `limiter`.

use super::{Fault, STATE_WORDS_MAX};
use crate::units::{Nanos, Time};

/// The largest burst, in requests: the state must hold all their times.
pub const BURST_MAX: usize = STATE_WORDS_MAX - 1;

/// The numbers of a history. State: the time until which requests are delayed, then `burst` times
/// in no order; zero where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    burst: usize,
    interval: Nanos,
    /// How long a request is remembered: burst * interval.
    window: Nanos,
}

impl History {
    /// `burst` requests (from 1 to [`BURST_MAX`]) are free, then one passes every `interval`.
    ///
    /// # Errors
    /// [`Fault::Burst`] or [`Fault::Interval`].
    pub fn new(burst: usize, interval: Nanos) -> Result<History, Fault> {
        if burst == 0 || burst > BURST_MAX {
            return Err(Fault::Burst);
        }
        let window = interval.0.checked_mul(burst as u64).filter(|window| *window > 0);
        let window = window.map(Nanos).ok_or(Fault::Interval)?;
        Ok(History { burst, interval, window })
    }

    /// How many requests are free.
    #[must_use]
    pub fn burst(&self) -> usize {
        self.burst
    }

    /// The time between two requests of a client that is delayed.
    #[must_use]
    pub fn interval(&self) -> Nanos {
        self.interval
    }

    /// How long a request is remembered.
    #[must_use]
    pub fn window(&self) -> Nanos {
        self.window
    }

    /// How many words of state it needs.
    #[must_use]
    pub fn words(&self) -> usize {
        1 + self.burst
    }

    /// How long requests are still delayed; zero: not at all.
    #[must_use]
    pub fn wait(&self, state: &[u64], now: Time) -> Nanos {
        Time(state[0]).since(now)
    }

    /// Records a request of the time `at`, which lies ahead of `now` if it is delayed.
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

    /// Takes over the requests that `other` remembers, and its delay if that is longer.
    pub fn absorb(&self, state: &mut [u64], other: &[u64], now: Time) {
        let times = other[1..].iter().filter(|time| **time > 0);
        times.for_each(|time| self.record(state, Time(*time), now));
        state[0] = state[0].max(other[0]);
    }

    /// What would be forgiven if this were forgotten: how long each request is still remembered,
    /// and the delay.
    #[must_use]
    pub fn worth(&self, state: &[u64], now: Time) -> u64 {
        let recent = state[1..].iter().filter(|time| **time > 0 && self.recent(**time, now));
        // The nanosecond in which a request is exactly `window` old still counts.
        let left = recent.map(|time| Time(*time).plus(self.window).since(now).plus(Nanos(1)));
        left.fold(self.wait(state, now), Nanos::plus).0
    }

    /// Whether a request of this time still counts.
    fn recent(&self, time: u64, now: Time) -> bool {
        now.since(Time(time)) <= self.window
    }
}

//! The only reader of clocks.
//!
//! Time is Unix time at start plus monotonic time since: it never goes back, and a wall clock that
//! is set anew moves no bucket. What runs on a schedule (timeouts, holds) uses the runtime's
//! timers; what is counted uses this.

use evenkeel_core::units::{Nanos, Time};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock that never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    unix_at_start: u64,
}

impl Clock {
    /// Starts at the system's present time.
    #[must_use]
    pub fn start() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { started: Instant::now(), unix_at_start: nanos(unix) }
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(self.unix_at_start.saturating_add(nanos(self.started.elapsed())))
    }

    /// The runtime's instant for a moment of this clock, for its timers.
    #[must_use]
    pub fn instant(&self, at: Time) -> tokio::time::Instant {
        let since = Duration::from_nanos(at.0.saturating_sub(self.unix_at_start));
        tokio::time::Instant::from_std(self.started) + since
    }

    /// The runtime's instant `length` from now, for a timer that nothing is counted by.
    #[must_use]
    pub fn deadline(length: Duration) -> tokio::time::Instant {
        tokio::time::Instant::now() + length
    }

    /// How far the system's clock has been moved since the start: positive if it was set ahead.
    #[must_use]
    pub fn step(&self) -> i64 {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        signed(nanos(unix)).saturating_sub(signed(self.now().0))
    }
}

/// Whether time stands still for one thread, and at which moment. Reading the clock is cheap, but
/// a request would read it six times within a few microseconds.
#[derive(Debug, Default)]
pub struct Stopped(AtomicU64);

/// Time goes on.
const GOING: u64 = 0;
/// It is to stand still at the moment that is read next.
const STOPPING: u64 = 1;

impl Stopped {
    /// From now on all readings are the same.
    pub fn stop(&self) {
        self.0.store(STOPPING, Relaxed);
    }

    /// From now on it is `at`. (The first two nanoseconds of 1970 cannot be told.)
    pub fn stand_at(&self, at: Time) {
        self.0.store(at.0.max(STOPPING + 1), Relaxed);
    }

    /// Time goes on.
    pub fn go(&self) {
        self.0.store(GOING, Relaxed);
    }

    /// The present, or the moment at which time stands still.
    #[must_use]
    pub fn now(&self, clock: &Clock) -> Time {
        match self.0.load(Relaxed) {
            GOING => clock.now(),
            STOPPING => {
                let now = clock.now();
                self.0.store(now.0, Relaxed);
                now
            }
            at => Time(at),
        }
    }
}

/// The CPU time that the calling thread has used.
#[must_use]
pub fn thread_cpu() -> Nanos {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Nanos(nanos(Duration::try_from(used).unwrap_or_default()))
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

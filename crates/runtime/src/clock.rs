//! The only module that reads clocks.
//!
//! Time is the Unix time at start plus the monotonic time since then. It never goes back, and a
//! change of the wall clock does not affect any bucket. Schedules (timeouts, holds) use the timers
//! of the runtime; everything that is counted uses this clock.

use evenkeel_core::units::{Nanos, Time};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock that never goes back. All copies show the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    unix_at_start: u64,
}

impl Clock {
    /// Starts a clock at the current time of the system.
    #[must_use]
    pub fn start() -> Clock {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock { started: Instant::now(), unix_at_start: nanos(unix) }
    }

    /// The current time.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(self.unix_at_start.saturating_add(nanos(self.started.elapsed())))
    }

    /// Converts a time of this clock into an instant for the runtime's timers.
    #[must_use]
    pub fn instant(&self, at: Time) -> tokio::time::Instant {
        let since = Duration::from_nanos(at.0.saturating_sub(self.unix_at_start));
        tokio::time::Instant::from_std(self.started) + since
    }

    /// The instant `length` from now, for a timer that does not affect any count.
    #[must_use]
    pub fn deadline(length: Duration) -> tokio::time::Instant {
        tokio::time::Instant::now() + length
    }

    /// Nanoseconds by which the wall clock was changed since the start; positive if it was set
    /// forward.
    #[must_use]
    pub fn step(&self) -> i64 {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        signed(nanos(unix)).saturating_sub(signed(self.now().0))
    }
}

/// The frozen time of one thread. Reading a clock is cheap, but a request would read it six times
/// within a few microseconds.
#[derive(Debug, Default)]
pub struct FrozenClock(AtomicU64);

/// Time is not frozen. The cell holds one of these two values or the frozen time in nanoseconds.
const STATE_RUNNING: u64 = 0;
/// Time freezes at the next reading.
const STATE_FREEZING: u64 = 1;

impl FrozenClock {
    /// Freezes time: from the next reading on, all readings are equal.
    pub fn stop(&self) {
        self.0.store(STATE_FREEZING, Relaxed);
    }

    /// Freezes time at `at`. (The first two nanoseconds of 1970 are used for the states.)
    pub fn freeze_at(&self, at: Time) {
        self.0.store(at.0.max(STATE_FREEZING + 1), Relaxed);
    }

    /// Ends the freeze.
    pub fn go(&self) {
        self.0.store(STATE_RUNNING, Relaxed);
    }

    /// The current time, or the frozen one.
    #[must_use]
    pub fn now(&self, clock: &Clock) -> Time {
        match self.0.load(Relaxed) {
            STATE_RUNNING => clock.now(),
            STATE_FREEZING => {
                let now = clock.now();
                self.0.store(now.0, Relaxed);
                now
            }
            at => Time(at),
        }
    }
}

/// CPU time that the calling thread has used.
#[must_use]
pub fn thread_cpu() -> Nanos {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Nanos(nanos(Duration::try_from(used).unwrap_or_default()))
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

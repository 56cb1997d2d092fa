//! Waits without a timer of the runtime: a note of when a wait began, which the sweep of the thread
//! compares with a time limit.
//!
//! A wait costs two stores. Times are the thread's coarse milliseconds, so a time limit is enforced
//! late by at most one sweep. What is done when a wait is too long: `sweep.rs` and `link.rs`.

use std::cell::Cell;
use std::task::Poll;
use std::time::Duration;

/// The time since when a task has been waiting: the thread's coarse milliseconds plus one, or zero
/// if no task waits. (An `Option` would take twice the memory.)
#[derive(Default)]
pub(super) struct WaitTimer(Cell<u64>);

impl WaitTimer {
    /// Starts the wait, unless it has already started.
    pub(super) fn begin(&self, now: u64) {
        if !self.waits() {
            self.0.set(now.saturating_add(1));
        }
    }

    pub(super) fn end(&self) {
        self.0.set(0);
    }

    /// Starts the wait if `poll` is pending, else ends it. Returns `poll`.
    pub(super) fn track<T>(&self, poll: Poll<T>, now: u64) -> Poll<T> {
        match poll {
            Poll::Pending => self.begin(now),
            Poll::Ready(_) => self.end(),
        }
        poll
    }

    /// Returns the time waited so far, in milliseconds.
    pub(super) fn elapsed(&self, now: u64) -> u32 {
        let elapsed = if self.waits() { now.saturating_sub(self.0.get() - 1) } else { 0 };
        u32::try_from(elapsed).unwrap_or(u32::MAX)
    }

    pub(super) fn waits(&self) -> bool {
        self.0.get() > 0
    }

    /// Whether a task has waited for longer than `limit`, which is no limit if it is zero. `slack`:
    /// the maximum age of a stored time, in milliseconds.
    pub(super) fn exceeds(&self, limit: Duration, now: u64, slack: u64) -> bool {
        self.waits() && exceeds(self.0.get() - 1, limit, now, slack)
    }
}

/// Whether `limit` has passed since `since`. A limit of zero means no limit.
pub(super) fn exceeds(since: u64, limit: Duration, now: u64, slack: u64) -> bool {
    let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    limit > 0 && now.saturating_sub(since) > limit.saturating_add(slack)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_measured_from_its_first_begin_to_its_end() {
        let (timer, limit) = (WaitTimer::default(), Duration::from_millis(10));
        assert!(!timer.waits() && !timer.exceeds(limit, 1_000, 0));
        timer.begin(0);
        timer.begin(5);
        assert_eq!((timer.waits(), timer.elapsed(8)), (true, 8));
        assert!(!timer.exceeds(limit, 10, 0) && timer.exceeds(limit, 11, 0));
        assert!(!timer.exceeds(limit, 11, 1), "a stored time may be old");
        assert!(!timer.exceeds(Duration::ZERO, 1_000, 0), "zero is no limit");
        timer.end();
        assert_eq!((timer.waits(), timer.elapsed(20)), (false, 0));
        assert!(timer.track(Poll::<()>::Pending, 20).is_pending() && timer.waits());
        assert!(timer.track(Poll::Ready(()), 21).is_ready() && !timer.waits());
    }
}

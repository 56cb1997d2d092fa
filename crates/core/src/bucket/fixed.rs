//! The fixed window: a count that restarts at each multiple of the window length since the epoch.
//!
//! This is how Envoy's rate limit service counts. The state is one word, so one atomic exchange
//! replaces it: the number of the window in the upper half, the count in the lower half. Only hits
//! are counted (a fraction of a hit counts as a whole one), and the count keeps growing above the
//! limit.
//!
//! Window numbers are truncated to 32 bits: with windows of a second, a bucket that is not touched
//! for 136 years would look live. Windows follow the wall clock when it is set. The algorithm has
//! no units, headers or shadow modes: these belong to a door.

use super::error::AlgorithmError;
use crate::units::{Cost, Nanos, SECOND, Time};

/// The parameters of a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    limit: u32,
    seconds: u32,
}

impl FixedWindow {
    /// A limit of `limit` hits (0: none are ever allowed) in each window of `seconds`, which must
    /// be at least one.
    ///
    /// # Errors
    /// [`AlgorithmError::Window`] if `seconds` is zero.
    pub fn new(limit: u32, seconds: u32) -> Result<FixedWindow, AlgorithmError> {
        if seconds == 0 { Err(AlgorithmError::Window) } else { Ok(FixedWindow { limit, seconds }) }
    }

    /// The maximum number of hits in a window.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Length of a window.
    #[must_use]
    pub fn window(&self) -> Nanos {
        Nanos::from_secs(self.seconds.into())
    }

    /// Number of hits in the window that contains `now`.
    #[must_use]
    pub fn count(&self, state: u64, now: Time) -> u32 {
        if self.live(state, now) { count(state) } else { 0 }
    }

    /// Number of hits that are left in the window that contains `now`.
    #[must_use]
    pub fn remaining(&self, state: u64, now: Time) -> u32 {
        self.limit.saturating_sub(self.count(state, now))
    }

    /// Time until the next window in whole seconds: from 1 to the length of a window.
    #[must_use]
    pub fn reset_secs(&self, now: Time) -> u32 {
        // The remainder is below `seconds` and fits.
        self.seconds - (now.second() % u64::from(self.seconds)) as u32
    }

    /// Time until hits worth `cost` pass; zero if they pass now. Hits that exceed the limit of a
    /// whole window are sent to the next window as well.
    #[must_use]
    pub fn wait(&self, state: u64, cost: Cost, now: Time) -> Nanos {
        let after = u64::from(self.count(state, now)).saturating_add(cost.whole_hits());
        if after > u64::from(self.limit) { self.left(now) } else { Nanos::ZERO }
    }

    /// The state after hits worth `cost`, whether over the limit or not.
    #[must_use]
    pub fn charge(&self, state: u64, cost: Cost, now: Time) -> u64 {
        let live = self.live(state, now);
        let window = if live { window(state) } else { self.window_at(now) };
        let after = u64::from(self.count(state, now)).saturating_add(cost.whole_hits());
        u64::from(window) << 32 | after.min(u32::MAX.into())
    }

    /// The state with the hits of both buckets in the window that contains `now`.
    #[must_use]
    pub fn absorb(&self, state: u64, other: u64, now: Time) -> u64 {
        self.charge(state, Cost::hits(self.count(other, now).into()), now)
    }

    /// The amount that would be forgiven if this bucket were evicted: the count, or zero once the
    /// window has ended.
    #[must_use]
    pub fn worth(&self, state: u64, now: Time) -> u64 {
        self.count(state, now).into()
    }

    /// Whether the state counts at `now`. A state that is one window ahead counts too: a thread
    /// that read the clock just before the boundary, and writes just after another thread, must not
    /// undo the count of the other thread. A state further ahead was written before the clock was
    /// set back, and is void.
    fn live(&self, state: u64, now: Time) -> bool {
        window(state).wrapping_sub(self.window_at(now)) <= 1
    }

    /// The number of the window that contains `now`, truncated to 32 bits.
    fn window_at(&self, now: Time) -> u32 {
        (now.second() / u64::from(self.seconds)) as u32
    }

    /// Time until the end of the window that contains `now`.
    fn left(&self, now: Time) -> Nanos {
        let window = u64::from(self.seconds) * SECOND;
        Nanos(window - now.0 % window)
    }
}

/// The window number, in the upper half of a state.
const fn window(state: u64) -> u32 {
    (state >> 32) as u32
}

/// The count, in the lower half of a state.
const fn count(state: u64) -> u32 {
    state as u32
}

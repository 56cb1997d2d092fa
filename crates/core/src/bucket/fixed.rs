//! The fixed window: a count that starts anew at each multiple of its length since the epoch.
//!
//! This is how Envoy's rate limit service counts. The state is one word: the number of the window
//! in the upper half, the count in the lower; so it is swapped at once. Only hits are counted
//! (a part of a hit counts as a whole one), and the count goes on growing over the limit.
//!
//! Window numbers are cut to 32 bits: with windows of a second, a bucket that nobody touched for
//! 136 years would be mistaken for a live one. Windows follow the wall clock when it is set. The
//! algorithm knows nothing of units, headers or shadow modes: those are a door's.

use super::Fault;
use crate::units::{Cost, Nanos, SECOND, Time};

/// The numbers of a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    limit: u32,
    seconds: u32,
}

impl Fixed {
    /// At most `limit` hits (0: none ever) in each window of `seconds`, at least one.
    ///
    /// # Errors
    /// [`Fault::Window`].
    pub fn new(limit: u32, seconds: u32) -> Result<Fixed, Fault> {
        if seconds == 0 { Err(Fault::Window) } else { Ok(Fixed { limit, seconds }) }
    }

    /// The most hits in a window.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// How long a window is.
    #[must_use]
    pub fn window(&self) -> Nanos {
        Nanos::from_secs(self.seconds.into())
    }

    /// The hits in the window that `now` lies in.
    #[must_use]
    pub fn count(&self, state: u64, now: Time) -> u32 {
        if self.live(state, now) { count(state) } else { 0 }
    }

    /// The hits that are left in the window that `now` lies in.
    #[must_use]
    pub fn remaining(&self, state: u64, now: Time) -> u32 {
        self.limit.saturating_sub(self.count(state, now))
    }

    /// How long until the next window, in whole seconds: from 1 to the length of a window.
    #[must_use]
    pub fn reset_secs(&self, now: Time) -> u32 {
        // The remainder is below `seconds` and fits.
        self.seconds - (now.second() % u64::from(self.seconds)) as u32
    }

    /// How long until hits worth `cost` pass; zero: they pass now. Hits that no window has room
    /// for are sent to the next one all the same.
    #[must_use]
    pub fn wait(&self, state: u64, cost: Cost, now: Time) -> Nanos {
        let after = u64::from(self.count(state, now)).saturating_add(cost.whole_hits());
        if after > u64::from(self.limit) { self.left(now) } else { Nanos::ZERO }
    }

    /// The state after hits worth `cost`, over the limit or not.
    #[must_use]
    pub fn charge(&self, state: u64, cost: Cost, now: Time) -> u64 {
        let live = self.live(state, now);
        let window = if live { window(state) } else { self.window_at(now) };
        let after = u64::from(self.count(state, now)).saturating_add(cost.whole_hits());
        u64::from(window) << 32 | after.min(u32::MAX.into())
    }

    /// The state that has counted what both have.
    #[must_use]
    pub fn absorb(&self, state: u64, other: u64, now: Time) -> u64 {
        self.charge(state, Cost::hits(self.count(other, now).into()), now)
    }

    /// What would be forgiven if this were forgotten: the count, nothing once the window ended.
    #[must_use]
    pub fn worth(&self, state: u64, now: Time) -> u64 {
        self.count(state, now).into()
    }

    /// Whether the state counts at `now`. It does one window early too: who took the time just
    /// before the boundary and comes to write just after another must not undo the other's count.
    /// Further ahead it was written before the clock was set back, and is void.
    fn live(&self, state: u64, now: Time) -> bool {
        window(state).wrapping_sub(self.window_at(now)) <= 1
    }

    /// The number of the window that `now` lies in, cut to 32 bits.
    fn window_at(&self, now: Time) -> u32 {
        (now.second() / u64::from(self.seconds)) as u32
    }

    /// How long until the window that `now` lies in ends.
    fn left(&self, now: Time) -> Nanos {
        let window = u64::from(self.seconds) * SECOND;
        Nanos(window - now.0 % window)
    }
}

/// The upper half of a state.
const fn window(state: u64) -> u32 {
    (state >> 32) as u32
}

/// The lower half of a state.
const fn count(state: u64) -> u32 {
    state as u32
}

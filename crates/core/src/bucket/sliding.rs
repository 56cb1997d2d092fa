//! The sliding window: the sum of charges within the last `window`, and a block once it is `max`.
//!
//! The window is cut into parts: seconds for windows of up to a minute, sixtieths for longer ones.
//! A ring holds one sum for each part. The results are those of a full log with timestamps
//! truncated to whole parts, at a fixed size. Both ends of the window count: one of 15 seconds has
//! 16 parts.
//!
//! A block starts when a charge brings the sum to `max`. It lasts `window` and is never extended.
//! Charges during a block are recorded as well. So a client that returns in the same second in
//! which its block ends can be blocked again by charges from the second in which the block began.
//! Costs are counted exactly, unless the window rounds them. See `limiter` for what a block
//! refuses.

use super::error::AlgorithmError;
use crate::units::{Cost, Nanos, SECOND, Time};

/// The maximum number of parts of a window.
const PARTS_MAX: u64 = 60;
/// State words before the ring: the number of the newest part, and the end of the block.
const WORDS_BEFORE: usize = 2;
/// The largest state, in 64-bit words: both ends of the window have a part.
pub(super) const WORDS_MAX: usize = WORDS_BEFORE + PARTS_MAX as usize + 1;
/// The longest window: 30 days.
pub const WINDOW_MAX: Nanos = Nanos::from_secs(30 * 86_400);

const _: () =
    assert!(WINDOW_MAX.0 == 30 * 24 * 3_600 * SECOND, "AlgorithmError::Window names 30 days");

/// The parameters of a sliding window. Its state is the number of the newest part since the epoch,
/// the time at which the block ends (zero: no block), and the sum of each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    window: Nanos,
    max: Cost,
    /// Length of one part.
    part: Nanos,
    /// Number of parts that count, including both ends of the window.
    parts: u64,
    /// Costs are rounded to multiples of this; zero means no rounding.
    round: Cost,
}

impl SlidingWindow {
    /// A window that blocks a client for `window` if its charges within `window` reach `max`. The
    /// window must be whole seconds, from one second to [`WINDOW_MAX`].
    ///
    /// # Errors
    /// [`AlgorithmError::Window`] or [`AlgorithmError::Max`].
    pub fn new(window: Nanos, max: Cost) -> Result<SlidingWindow, AlgorithmError> {
        let whole = window > Nanos::ZERO && window.0.is_multiple_of(SECOND);
        if !whole || window > WINDOW_MAX {
            return Err(AlgorithmError::Window);
        }
        if max == Cost::ZERO {
            return Err(AlgorithmError::Max);
        }
        let cuts = (window.0 / SECOND).min(PARTS_MAX);
        Ok(SlidingWindow {
            window,
            max,
            part: Nanos(window.0.div_ceil(cuts)),
            parts: cuts + 1,
            round: Cost::ZERO,
        })
    }

    /// The same window, but each cost is rounded to the nearest multiple of `to` before it counts;
    /// a half is rounded up, and zero means no rounding. Too coarse: cheap requests cost nothing,
    /// however many there are.
    #[must_use]
    pub fn rounded(self, to: Cost) -> SlidingWindow {
        SlidingWindow { round: to, ..self }
    }

    /// Length of the window, which is also the length of a block.
    #[must_use]
    pub fn window(&self) -> Nanos {
        self.window
    }

    /// The sum that starts a block.
    #[must_use]
    pub fn max(&self) -> Cost {
        self.max
    }

    /// Costs are rounded to multiples of this; zero means no rounding.
    #[must_use]
    pub fn round(&self) -> Cost {
        self.round
    }

    /// Length of one part of the window.
    #[must_use]
    pub fn part(&self) -> Nanos {
        self.part
    }

    /// Number of parts that count, including both ends of the window.
    #[must_use]
    pub fn parts(&self) -> u64 {
        self.parts
    }

    /// Number of 64-bit words in the state of a bucket.
    #[must_use]
    pub fn words(&self) -> usize {
        WORDS_BEFORE + self.parts as usize
    }

    /// Remaining time of the block; zero if there is none. It is never more than the window. A
    /// block that would end later was written by a clock ahead of this one. A block that would end
    /// more than two windows from now was written by a wrong clock, and is ignored.
    #[must_use]
    pub fn wait(&self, state: &[u64], now: Time) -> Nanos {
        let left = Time(state[1]).since(now);
        if left > self.window.plus(self.window) { Nanos::ZERO } else { left.min(self.window) }
    }

    /// The sum of charges within the window that ends now.
    #[must_use]
    pub fn sum(&self, state: &[u64], now: Time) -> Cost {
        let newest = state[0];
        let sums = &state[WORDS_BEFORE..];
        let counting = self.counting(newest, self.part_at(newest, now));
        let each = (0..counting).map(|back| Cost(sums[self.place(newest - back)]));
        each.fold(Cost::ZERO, Cost::plus)
    }

    /// Records `cost` at `now`, also during a block. Returns whether this charge starts a block.
    pub fn record(&self, state: &mut [u64], cost: Cost, now: Time) -> bool {
        let part = self.part_at(state[0], now);
        self.advance(state, part);
        let sum = &mut state[WORDS_BEFORE + self.place(part)];
        *sum = sum.saturating_add(self.counted(cost).0);
        if self.wait(state, now) > Nanos::ZERO {
            return false;
        }
        let starts = self.sum(state, now) >= self.max;
        state[1] = if starts { now.plus(self.window).0 } else { 0 };
        starts
    }

    /// Adds the charges that `other` recorded with the same parameters, and takes over its block if
    /// that lasts longer.
    pub fn absorb(&self, state: &mut [u64], other: &[u64], now: Time) {
        let part = self.part_at(state[0], now).max(self.part_at(other[0], now));
        self.advance(state, part);
        for back in 0..self.counting(other[0], part) {
            let place = WORDS_BEFORE + self.place(other[0] - back);
            state[place] = state[place].saturating_add(other[place]);
        }
        if self.wait(other, now) > self.wait(state, now) {
            state[1] = other[1];
        }
    }

    /// The cost after rounding.
    fn counted(&self, cost: Cost) -> Cost {
        match self.round.0 {
            0 => cost,
            to => Cost((cost.0.saturating_add(to / 2) / to).saturating_mul(to)),
        }
    }

    /// The amount that would be forgiven if this bucket were evicted: the sum, and at least `max`
    /// during a block.
    #[must_use]
    pub fn worth(&self, state: &[u64], now: Time) -> u64 {
        let blocked = self.wait(state, now) > Nanos::ZERO;
        self.sum(state, now).max(if blocked { self.max } else { Cost::ZERO }).0
    }

    /// The part to which `now` belongs. It is never before the newest part, unless the newest part
    /// is more than a window ahead, which only a wrong clock can have written.
    fn part_at(&self, newest: u64, now: Time) -> u64 {
        let part = now.0 / self.part.0;
        if newest > part.saturating_add(self.parts) { part } else { part.max(newest) }
    }

    /// Number of parts, from `newest` back, that lie inside the window that ends with `part`.
    fn counting(&self, newest: u64, part: u64) -> u64 {
        let since_epoch = newest.saturating_add(1);
        let passed = part.checked_sub(newest);
        passed.map_or(0, |passed| self.parts.saturating_sub(passed).min(since_epoch))
    }

    /// Makes `part` the newest part, and clears it and the parts that were skipped.
    fn advance(&self, state: &mut [u64], part: u64) {
        let skipped = part.checked_sub(state[0]).filter(|skipped| *skipped < self.parts);
        let sums = &mut state[WORDS_BEFORE..];
        match skipped {
            Some(skipped) => {
                (0..skipped).for_each(|back| sums[self.place(part - back)] = 0);
            }
            None => sums.fill(0),
        }
        state[0] = part;
    }

    /// Index of the sum of a part in the ring.
    fn place(&self, part: u64) -> usize {
        (part % self.parts) as usize
    }
}

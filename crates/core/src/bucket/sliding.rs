//! The sliding window: what was charged within the last `window`, and a block once it is `max`.
//!
//! The window is cut into parts: seconds for windows of up to a minute, sixtieths for longer ones.
//! Each part has a sum in a ring, so the answers are those of a full log whose times are cut to
//! whole parts, at a fixed size. Both ends of the window count: one of 15 seconds has 16 seconds.
//!
//! A block starts when a charge brings the sum to `max`, lasts `window` and is never extended;
//! what is charged meanwhile is recorded all the same. So a client that comes back in the very
//! second in which its block ends can be blocked again by what it did in the second it began.
//! Costs count as they are, unless the window rounds them. Who is refused because of a block:
//! `limiter`.

use super::Fault;
use crate::units::{Cost, Nanos, SECOND, Time};

/// The most parts that a window is cut into.
const PARTS_MAX: u64 = 60;
/// The words before the ring: the newest part, the end of the block.
const WORDS_BEFORE: usize = 2;
/// The longest window: 30 days.
pub const WINDOW_MAX: Nanos = Nanos::from_secs(30 * 86_400);

const _: () = assert!(WORDS_BEFORE + (PARTS_MAX as usize) < super::STATE_WORDS_USUAL);

/// The numbers of a sliding window. State: the number of the newest part since the epoch, the
/// time at which the block ends (zero: none), the sum of each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sliding {
    window: Nanos,
    max: Cost,
    /// How long a part is.
    part: Nanos,
    /// How many parts count, both ends of the window included.
    parts: u64,
    /// What costs are rounded to; zero: they are not.
    round: Cost,
}

impl Sliding {
    /// Blocks for `window` (whole seconds, from one to [`WINDOW_MAX`]) whoever is charged `max`
    /// or more within it.
    ///
    /// # Errors
    /// [`Fault::Window`] or [`Fault::Max`].
    pub fn new(window: Nanos, max: Cost) -> Result<Sliding, Fault> {
        let whole = window > Nanos::ZERO && window.0.is_multiple_of(SECOND);
        if !whole || window > WINDOW_MAX {
            return Err(Fault::Window);
        }
        if max == Cost::ZERO {
            return Err(Fault::Max);
        }
        let cuts = (window.0 / SECOND).min(PARTS_MAX);
        Ok(Sliding {
            window,
            max,
            part: Nanos(window.0.div_ceil(cuts)),
            parts: cuts + 1,
            round: Cost::ZERO,
        })
    }

    /// The same, but each cost is rounded to the nearest multiple of `to` before it counts, a half
    /// upwards; zero: none is. Too coarse: what is cheap counts nothing, however often it comes.
    #[must_use]
    pub fn rounded(self, to: Cost) -> Sliding {
        Sliding { round: to, ..self }
    }

    /// How long the window is, and a block.
    #[must_use]
    pub fn window(&self) -> Nanos {
        self.window
    }

    /// The sum that starts a block.
    #[must_use]
    pub fn max(&self) -> Cost {
        self.max
    }

    /// What costs are rounded to; zero: they are not.
    #[must_use]
    pub fn round(&self) -> Cost {
        self.round
    }

    /// How long a part of the window is.
    #[must_use]
    pub fn part(&self) -> Nanos {
        self.part
    }

    /// How many parts count, both ends of the window included.
    #[must_use]
    pub fn parts(&self) -> u64 {
        self.parts
    }

    /// How many words of state it needs.
    #[must_use]
    pub fn words(&self) -> usize {
        WORDS_BEFORE + self.parts as usize
    }

    /// How much of a block is left; zero: none is in force. Never more than the window: a block
    /// that would end later was written by a clock ahead of this one, and one that would end much
    /// later by a wrong clock.
    #[must_use]
    pub fn wait(&self, state: &[u64], now: Time) -> Nanos {
        let left = Time(state[1]).since(now);
        if left > self.window.plus(self.window) { Nanos::ZERO } else { left.min(self.window) }
    }

    /// What was charged within the window that ends now.
    #[must_use]
    pub fn sum(&self, state: &[u64], now: Time) -> Cost {
        let newest = state[0];
        let sums = &state[WORDS_BEFORE..];
        let counting = self.counting(newest, self.part_at(newest, now));
        let each = (0..counting).map(|back| Cost(sums[self.place(newest - back)]));
        each.fold(Cost::ZERO, Cost::plus)
    }

    /// Records `cost` at `now`, blocked or not. True when this starts a block.
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

    /// Takes over what `other` recorded under the same numbers, and its block if that lasts longer.
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

    /// What a cost counts as.
    fn counted(&self, cost: Cost) -> Cost {
        match self.round.0 {
            0 => cost,
            to => Cost((cost.0.saturating_add(to / 2) / to).saturating_mul(to)),
        }
    }

    /// What would be forgiven if this were forgotten: the sum, and at least `max` while blocked.
    #[must_use]
    pub fn worth(&self, state: &[u64], now: Time) -> u64 {
        let blocked = self.wait(state, now) > Nanos::ZERO;
        self.sum(state, now).max(if blocked { self.max } else { Cost::ZERO }).0
    }

    /// The part that `now` counts as: never before the newest, unless that is more than a window
    /// ahead, which only a wrong clock can have written.
    fn part_at(&self, newest: u64, now: Time) -> u64 {
        let part = now.0 / self.part.0;
        if newest > part.saturating_add(self.parts) { part } else { part.max(newest) }
    }

    /// How many parts, from `newest` back, are in the window whose last part is `part`.
    fn counting(&self, newest: u64, part: u64) -> u64 {
        let since_epoch = newest.saturating_add(1);
        let passed = part.checked_sub(newest);
        passed.map_or(0, |passed| self.parts.saturating_sub(passed).min(since_epoch))
    }

    /// Makes `part` the newest, with nothing in it or in the parts that were skipped.
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

    /// Where the sum of a part is in the ring.
    fn place(&self, part: u64) -> usize {
        (part % self.parts) as usize
    }
}

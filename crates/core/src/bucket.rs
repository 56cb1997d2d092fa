//! The algorithms: pure functions over a small state, `now` an argument of each.
//!
//! The state of one bucket is a few 64-bit words that the table keeps; all zero means "never
//! seen", so a new bucket needs no making. The enum is closed on purpose: the compiler lists what
//! a new algorithm must touch. Sums, windows and their sources are explained in each file.

pub mod debt;
pub mod fixed;
pub mod grid;
pub mod history;
pub mod sliding;

use crate::units::{Cost, Nanos, SECOND, Time};
use core::fmt;
use debt::Debt;
use fixed::Fixed;
use grid::Grid;
use history::History;
use sliding::Sliding;

/// How a limit counts.
#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    /// Token bucket that may go into debt: `share`, and `rate` limits.
    Debt(Debt),
    /// Token bucket of whole hits that may go into debt, refilled on whole multiples of 1/rate:
    /// tags (`refill: grid`).
    Grid(Grid),
    /// Sum over a sliding window, with a block once it is reached: `window` limits.
    Sliding(Sliding),
    /// Count per window aligned to the epoch: Envoy's rate limits.
    Fixed(Fixed),
    /// The last timestamps: Smockron's rule.
    History(History),
}

impl Algorithm {
    /// How many 64-bit words of state one bucket has; at most [`STATE_WORDS_MAX`].
    #[must_use]
    pub fn words(&self) -> usize {
        match self {
            Algorithm::Debt(_) | Algorithm::Grid(_) | Algorithm::Fixed(_) => 1,
            Algorithm::Sliding(sliding) => sliding.words(),
            Algorithm::History(history) => history.words(),
        }
    }

    /// How long until a request that needs `cost` passes; zero: it passes now.
    #[must_use]
    pub fn wait(&self, state: &[u64], cost: Cost, now: Time) -> Nanos {
        match self {
            Algorithm::Debt(debt) => debt.wait(Time(state[0]), cost, now),
            Algorithm::Grid(grid) => grid.wait(Time(state[0]), cost.whole_hits(), now),
            Algorithm::Sliding(sliding) => sliding.wait(state, now),
            Algorithm::Fixed(fixed) => fixed.wait(state[0], cost, now),
            Algorithm::History(history) => history.wait(state, now),
        }
    }

    /// What a client that has to wait for `wait` is told to wait. A window tells its full length:
    /// who keeps to that is past what began the block too, and is not blocked for it again.
    #[must_use]
    pub fn retry_after(&self, wait: Nanos) -> Nanos {
        match self {
            Algorithm::Sliding(sliding) => sliding.window(),
            _ => wait,
        }
    }

    /// Charges `cost`, whatever the level, for a request that started at `at`. Says how far the
    /// bucket moved, which is what `settle` may take back.
    pub fn charge(&self, state: &mut [u64], cost: Cost, at: Time, now: Time) -> Nanos {
        match self {
            Algorithm::Debt(debt) => {
                let (after, moved) = debt.charge_capped(Time(state[0]), cost, at, now);
                state[0] = after.0;
                moved
            }
            Algorithm::Grid(grid) => {
                let before = Time(state[0]).max(at);
                state[0] = grid.charge(Time(state[0]), cost.whole_hits(), at).0;
                Time(state[0]).since(before)
            }
            Algorithm::Sliding(sliding) => {
                sliding.record(state, cost, now);
                Nanos::ZERO
            }
            Algorithm::Fixed(fixed) => {
                state[0] = fixed.charge(state[0], cost, now);
                Nanos::ZERO
            }
            Algorithm::History(history) => {
                history.record(state, at, now);
                Nanos::ZERO
            }
        }
    }

    /// Charges what a request is taken to cost before that is known.
    pub fn hold(&self, state: &mut [u64], cost: Cost, at: Time, now: Time) -> Nanos {
        match self {
            Algorithm::Debt(debt) => {
                let (after, moved) = debt.hold(Time(state[0]), cost, at, now);
                state[0] = after.0;
                moved
            }
            algorithm => algorithm.charge(state, cost, at, now),
        }
    }

    /// Takes over what `other`, a bucket of the same algorithm, has been charged: two keys turn out
    /// to be one client.
    pub fn absorb(&self, state: &mut [u64], other: &[u64], now: Time) {
        match self {
            Algorithm::Debt(debt) => {
                state[0] = debt.absorb(Time(state[0]), Time(other[0]), now).0;
            }
            Algorithm::Grid(grid) => {
                let missing = grid.missing(Time(other[0]), now);
                state[0] = grid.charge(Time(state[0]), missing, now).0;
            }
            Algorithm::Sliding(sliding) => sliding.absorb(state, other, now),
            Algorithm::Fixed(fixed) => state[0] = fixed.absorb(state[0], other[0], now),
            Algorithm::History(history) => history.absorb(state, other, now),
        }
    }

    /// What would be forgiven if this bucket were forgotten: the table drops the bucket with the
    /// least. Zero: nothing, it equals an absent one.
    #[must_use]
    pub fn worth(&self, state: &[u64], now: Time) -> u64 {
        match self {
            Algorithm::Debt(_) | Algorithm::Grid(_) => Time(state[0]).since(now).0,
            Algorithm::Sliding(sliding) => sliding.worth(state, now),
            Algorithm::Fixed(fixed) => fixed.worth(state[0], now),
            Algorithm::History(history) => history.worth(state, now),
        }
    }
}

impl Algorithm {
    /// Whether buckets that were counted under `old` mean something under this. Numbers may have
    /// changed where what is owed can be told in the new ones ([`Algorithm::carried`]).
    #[must_use]
    pub fn continues(&self, old: &Algorithm) -> bool {
        let owes = |one: &Algorithm| one.short_of(Cost::ZERO, Time::ZERO).is_some();
        self == old || (owes(self) && owes(old))
    }

    /// Turns the state of a bucket that was counted under `old` into what it is under this.
    pub fn carried(&self, old: &Algorithm, state: &mut [u64], now: Time) {
        let missing = old.missing(state, now);
        if let Some(owed) = missing.and_then(|missing| self.short_of(missing, now)) {
            state[0] = owed;
        }
    }

    /// What is left, in nano-units of cost, where the algorithm knows such a thing; below zero it
    /// is debt.
    #[must_use]
    pub fn level(&self, state: &[u64], now: Time) -> Option<i64> {
        match self {
            Algorithm::Debt(debt) => Some(debt.level(Time(state[0]), now)),
            Algorithm::Grid(grid) => {
                let hits = grid.level(Time(state[0]), now);
                Some(hits.saturating_mul(SECOND as i64))
            }
            _ => None,
        }
    }

    /// How much cost comes in until the bucket is full; `None` where a state is not that.
    #[must_use]
    pub fn missing(&self, state: &[u64], now: Time) -> Option<Cost> {
        match self {
            Algorithm::Debt(debt) => Some(debt.missing(Time(state[0]), now)),
            Algorithm::Grid(grid) => Some(Cost::hits(grid.missing(Time(state[0]), now))),
            _ => None,
        }
    }

    /// What it lets pass in a second, in the long run; `None` where that is not one number.
    #[must_use]
    pub fn per_second(&self) -> Option<Cost> {
        let units = match self {
            Algorithm::Debt(debt) => debt.rate().per_second(),
            Algorithm::Grid(grid) => grid.per_second(),
            Algorithm::Sliding(sliding) => {
                sliding.max().as_units() / sliding.window().as_secs_f64()
            }
            Algorithm::Fixed(_) | Algorithm::History(_) => return None,
        };
        Some(Cost((units * SECOND as f64) as u64))
    }

    /// How far ahead of now the bucket is full, or where it has no level, free again.
    #[must_use]
    pub fn ahead(&self, state: &[u64], now: Time) -> Nanos {
        self.ahead_word()
            .and_then(|word| state.get(word))
            .map_or(Nanos::ZERO, |at| Time(*at).since(now))
    }

    /// Puts that off until `ahead` from now, if it is nearer.
    pub fn raise(&self, state: &mut [u64], ahead: Nanos, now: Time) {
        if let Some(at) = self.ahead_word().and_then(|word| state.get_mut(word)) {
            *at = now.plus(ahead).0.max(*at);
        }
    }

    /// The word that such a time is.
    fn ahead_word(&self) -> Option<usize> {
        match self {
            Algorithm::Debt(_) | Algorithm::Grid(_) | Algorithm::History(_) => Some(0),
            Algorithm::Sliding(_) => Some(1),
            Algorithm::Fixed(_) => None,
        }
    }

    /// The state of a bucket that is short of `missing`; `None` where a state is not that.
    #[must_use]
    pub fn short_of(&self, missing: Cost, now: Time) -> Option<u64> {
        match self {
            Algorithm::Debt(debt) => Some(debt.short_of(missing, now).0),
            Algorithm::Grid(grid) => Some(grid.short_of(missing.whole_hits(), now).0),
            _ => None,
        }
    }
}

/// The widest state any algorithm may ask for.
pub const STATE_WORDS_MAX: usize = 256;
/// Most that have more than one word have at most so many; to copy them costs less.
pub const STATE_WORDS_USUAL: usize = 64;

/// What is wrong with the numbers of an algorithm. The configuration is at fault; nothing was
/// built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A window that is not of whole seconds, or too short or too long.
    Window,
    /// A window in which nothing may be charged.
    Max,
    /// A history of no requests, or of more than [`history::BURST_MAX`].
    Burst,
    /// No time between two requests, or centuries.
    Interval,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Window => "`window` must be whole seconds, from 1s to 30d",
            Fault::Max => "`max` must be above zero, or every client would be blocked at once",
            Fault::Burst => "`burst` of a history must be from 1 to 255 requests",
            Fault::Interval => "the rate of a history must leave from 1ns to centuries between",
        })
    }
}

impl core::error::Error for Fault {}

const _: () = assert!(history::BURST_MAX == 255, "Fault::Burst names the number");

//! The algorithms: pure functions over a small state, `now` an argument of each.
//!
//! The state of one bucket is a few 64-bit words that the table keeps; all zero means "never
//! seen", so a new bucket needs no making. The enum is closed on purpose: the compiler lists what
//! a new algorithm must touch. Sums, windows and their sources are explained in each file.

pub mod debt;
pub mod fixed;
pub mod history;
pub mod sliding;

use crate::units::{Cost, Nanos, Time};
use debt::Debt;
use fixed::Fixed;
use history::History;
use sliding::Sliding;

/// How a limit counts.
#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    /// Token bucket that may go into debt: `share`, and `rate` limits.
    Debt(Debt),
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
            Algorithm::Debt(_) | Algorithm::Fixed(_) => 1,
            Algorithm::Sliding(sliding) => sliding.words(),
            Algorithm::History(history) => history.words(),
        }
    }

    /// How long until a request that needs `cost` passes; zero: it passes now.
    #[must_use]
    pub fn wait(&self, state: &[u64], cost: Cost, now: Time) -> Nanos {
        match self {
            Algorithm::Debt(debt) => debt.wait(Time(state[0]), cost, now),
            Algorithm::Sliding(sliding) => sliding.wait(state, now),
            Algorithm::Fixed(fixed) => fixed.wait(state[0], cost, now),
            Algorithm::History(history) => history.wait(state, now),
        }
    }

    /// Charges `cost`, whatever the level, for a request that started at `at`. Says how far the
    /// bucket moved, which is what `settle` may take back.
    pub fn charge(&self, state: &mut [u64], cost: Cost, at: Time, now: Time) -> Nanos {
        match self {
            Algorithm::Debt(debt) => {
                let (after, moved) = debt.charge(Time(state[0]), cost, at);
                state[0] = after.0;
                moved
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
                history.record(state, at);
                Nanos::ZERO
            }
        }
    }

    /// What would be forgiven if this bucket were forgotten: the table drops the bucket with the
    /// least. Zero: nothing, it equals an absent one.
    #[must_use]
    pub fn worth(&self, state: &[u64], now: Time) -> u64 {
        match self {
            Algorithm::Debt(_) => Time(state[0]).since(now).0,
            Algorithm::Sliding(sliding) => sliding.worth(state, now),
            Algorithm::Fixed(fixed) => fixed.worth(state[0], now),
            Algorithm::History(history) => history.worth(state, now),
        }
    }
}

/// The widest state any algorithm may ask for.
pub const STATE_WORDS_MAX: usize = 64;

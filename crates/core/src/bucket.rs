//! The counting algorithms: pure functions over a small state, with `now` as an argument of each.
//!
//! The state of one bucket is a few 64-bit words that the table stores. All words zero means "never
//! seen", so a new bucket needs no initialization. The enum is closed on purpose: the compiler then
//! lists every place that a new algorithm must change. Each submodule explains its formulas, its
//! windows and their sources.

pub mod debt;
mod error;
pub mod fixed;
pub mod grid;
pub mod history;
pub mod quota;
pub mod sliding;

use crate::units::{Cost, Nanos, SECOND, Time};
use debt::DebtBucket;
pub use error::AlgorithmError;
use fixed::FixedWindow;
use grid::GridBucket;
use history::RequestHistory;
use quota::QuotaBucket;
use sliding::SlidingWindow;

/// The algorithm by which a limit counts, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    /// Token bucket that may go into debt. Used by `share` and `rate` limits.
    Debt(DebtBucket),
    /// Token bucket with reservations. Used by `tokens` and `money` limits.
    Quota(QuotaBucket),
    /// Token bucket of whole hits that may go into debt, refilled on whole multiples of 1/rate.
    /// Used by tags (`refill: grid`).
    Grid(GridBucket),
    /// Sum over a sliding window; a client that reaches the maximum is blocked. Used by `window`
    /// limits.
    Sliding(SlidingWindow),
    /// Count per window, with windows aligned to the epoch. Used by Envoy's rate limits.
    Fixed(FixedWindow),
    /// The timestamps of the last requests, by Smockron's rule.
    History(RequestHistory),
}

impl Algorithm {
    /// Number of 64-bit words in the state of one bucket; at most [`STATE_WORDS_MAX`].
    #[must_use]
    pub fn words(&self) -> usize {
        match self {
            Algorithm::Debt(_) | Algorithm::Grid(_) | Algorithm::Fixed(_) => 1,
            Algorithm::Quota(_) => quota::WORDS,
            Algorithm::Sliding(sliding) => sliding.words(),
            Algorithm::History(history) => history.words(),
        }
    }

    /// Time until a request that needs `cost` passes; zero if it passes now.
    #[must_use]
    pub fn wait(&self, state: &[u64], cost: Cost, now: Time) -> Nanos {
        match self {
            Algorithm::Debt(debt) => debt.wait(Time(state[0]), cost, now),
            Algorithm::Quota(quota) => quota.wait(state, cost, now),
            Algorithm::Grid(grid) => grid.wait(Time(state[0]), cost.whole_hits(), now),
            Algorithm::Sliding(sliding) => sliding.wait(state, now),
            Algorithm::Fixed(fixed) => fixed.wait(state[0], cost, now),
            Algorithm::History(history) => history.wait(state, now),
        }
    }

    /// The waiting time to announce to a client that has to wait for `wait`. A sliding window
    /// announces its full length: a client that waits this long is also past the charges that
    /// started the block, and is not blocked for them again.
    #[must_use]
    pub fn retry_after(&self, wait: Nanos) -> Nanos {
        match self {
            Algorithm::Sliding(sliding) => sliding.window(),
            _ => wait,
        }
    }

    /// Charges `cost` for a request that started at `at`, whatever the level of the bucket. Returns
    /// how far the bucket moved, which is the most that `settle` may take back; zero for the
    /// algorithms that give nothing back.
    pub fn charge(&self, state: &mut [u64], cost: Cost, at: Time, now: Time) -> Nanos {
        match self {
            Algorithm::Debt(debt) => {
                let (after, moved) = debt.charge_capped(Time(state[0]), cost, at, now);
                state[0] = after.0;
                moved
            }
            Algorithm::Quota(quota) => {
                quota.charge(state, cost, at);
                Nanos::ZERO
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

    /// Charges or reserves the estimated cost of a request before its actual cost is known.
    pub fn hold(&self, state: &mut [u64], cost: Cost, at: Time, now: Time) -> Nanos {
        match self {
            Algorithm::Debt(debt) => {
                let (after, moved) = debt.hold(Time(state[0]), cost, at, now);
                state[0] = after.0;
                moved
            }
            Algorithm::Quota(quota) => {
                quota.reserve(state, cost);
                Nanos::ZERO
            }
            algorithm => algorithm.charge(state, cost, at, now),
        }
    }

    /// Adds the charges of `other`, a bucket of the same algorithm, after two keys turned out to
    /// belong to one client.
    pub fn absorb(&self, state: &mut [u64], other: &[u64], now: Time) {
        match self {
            Algorithm::Debt(debt) => {
                state[0] = debt.absorb(Time(state[0]), Time(other[0]), now).0;
            }
            Algorithm::Quota(quota) => {
                state[0] = quota.bucket().absorb(Time(state[0]), Time(other[0]), now).0;
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

    /// The amount that would be forgiven if this bucket were evicted; the table evicts the bucket
    /// with the smallest amount. Zero means that the bucket equals an absent one. The unit depends
    /// on the algorithm, so only buckets of one algorithm can be compared.
    #[must_use]
    pub fn worth(&self, state: &[u64], now: Time) -> u64 {
        match self {
            Algorithm::Debt(_) | Algorithm::Grid(_) => Time(state[0]).since(now).0,
            Algorithm::Quota(quota) => quota.worth(state, now),
            Algorithm::Sliding(sliding) => sliding.worth(state, now),
            Algorithm::Fixed(fixed) => fixed.worth(state[0], now),
            Algorithm::History(history) => history.worth(state, now),
        }
    }
}

impl Algorithm {
    /// Whether buckets that were counted under `old` stay valid under this algorithm. The
    /// parameters may differ if the debt can be expressed in the new ones
    /// ([`Algorithm::convert_state`]).
    #[must_use]
    pub fn can_continue(&self, old: &Algorithm) -> bool {
        let owes = |one: &Algorithm| one.short_of(Cost::ZERO, Time::ZERO).is_some();
        self == old || (owes(self) && owes(old) && self.words() == old.words())
    }

    /// Converts the state of a bucket that was counted under `old` to this algorithm. Reservations
    /// stay behind: the requests that hold them settle under `old`.
    pub fn convert_state(&self, old: &Algorithm, state: &mut [u64], now: Time) {
        let missing = old.missing(state, now);
        if let Some(owed) = missing.and_then(|missing| self.short_of(missing, now)) {
            state.fill(0);
            state[0] = owed;
        }
    }

    /// The remaining credit in nano-units of cost, negative for a debt; `None` if the algorithm has
    /// no level.
    #[must_use]
    pub fn level(&self, state: &[u64], now: Time) -> Option<i64> {
        match self {
            Algorithm::Debt(debt) => Some(debt.level(Time(state[0]), now)),
            Algorithm::Quota(quota) => Some(quota.level(state, now)),
            Algorithm::Grid(grid) => {
                let hits = grid.level(Time(state[0]), now);
                Some(hits.saturating_mul(SECOND as i64))
            }
            _ => None,
        }
    }

    /// Cost to be refilled until the bucket is full; `None` if the algorithm has no level.
    #[must_use]
    pub fn missing(&self, state: &[u64], now: Time) -> Option<Cost> {
        match self {
            Algorithm::Debt(debt) => Some(debt.missing(Time(state[0]), now)),
            Algorithm::Quota(quota) => Some(quota.bucket().missing(Time(state[0]), now)),
            Algorithm::Grid(grid) => Some(Cost::hits(grid.missing(Time(state[0]), now))),
            _ => None,
        }
    }

    /// Cost per second that passes in the long run; `None` if a single number cannot describe it.
    #[must_use]
    pub fn per_second(&self) -> Option<Cost> {
        let units = match self {
            Algorithm::Debt(debt) => debt.rate().per_second(),
            Algorithm::Quota(quota) => quota.bucket().rate().per_second(),
            Algorithm::Grid(grid) => grid.per_second(),
            Algorithm::Sliding(sliding) => {
                sliding.max().as_units() / sliding.window().as_secs_f64()
            }
            Algorithm::Fixed(_) | Algorithm::History(_) => return None,
        };
        Some(Cost((units * SECOND as f64) as u64))
    }

    /// Time until the bucket is full or, for an algorithm without a level, until it no longer
    /// delays or blocks.
    #[must_use]
    pub fn ahead(&self, state: &[u64], now: Time) -> Nanos {
        self.ahead_word()
            .and_then(|word| state.get(word))
            .map_or(Nanos::ZERO, |at| Time(*at).since(now))
    }

    /// Moves that time to at least `ahead` from now. It never moves it back.
    pub fn raise(&self, state: &mut [u64], ahead: Nanos, now: Time) {
        if let Some(at) = self.ahead_word().and_then(|word| state.get_mut(word)) {
            *at = now.plus(ahead).0.max(*at);
        }
    }

    /// Index of the state word that holds the time for [`Algorithm::ahead`]; `None` if there is no
    /// such word.
    fn ahead_word(&self) -> Option<usize> {
        match self {
            Algorithm::Debt(_)
            | Algorithm::Quota(_)
            | Algorithm::Grid(_)
            | Algorithm::History(_) => Some(0),
            Algorithm::Sliding(_) => Some(1),
            Algorithm::Fixed(_) => None,
        }
    }

    /// The state of a bucket that is short of `missing`; `None` if the algorithm has no level.
    #[must_use]
    pub fn short_of(&self, missing: Cost, now: Time) -> Option<u64> {
        match self {
            Algorithm::Debt(debt) => Some(debt.short_of(missing, now).0),
            Algorithm::Quota(quota) => Some(quota.bucket().short_of(missing, now).0),
            Algorithm::Grid(grid) => Some(grid.short_of(missing.whole_hits(), now).0),
            _ => None,
        }
    }
}

/// The largest state of any algorithm, that of a history, in 64-bit words.
pub const STATE_WORDS_MAX: usize = history::WORDS_MAX;
/// Usual upper bound of a state that has more than one word, in 64-bit words. A state within it is
/// cheaper to copy.
pub(crate) const STATE_WORDS_USUAL: usize = 64;

const _: () = {
    assert!(history::BURST_MAX == 255, "AlgorithmError::Burst names the number");
    assert!(sliding::WORDS_MAX <= STATE_WORDS_USUAL);
};

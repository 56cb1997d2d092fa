//! Whole tokens on whole multiples of 1/rate: the refill rule of docs/spec/dthrottle.md.
//!
//! Time is cut into steps, counted from the epoch. Each step adds one token, up to the burst. The
//! number of steps until `t` is `floor(t * rate)`, calculated in integers, so that no rate drifts
//! against the clock. As in `debt`, the state is the time at which the bucket is full again; here
//! it is always the first nanosecond of a step:
//!
//! ```text
//! level(now) = burst - max(0, steps(full_at) - steps(now))
//! ```
//!
//! All machines have their steps at the same times, and a level is always a whole number. A cost
//! that is a fraction of a hit is charged as a whole hit. This module has no holds and refunds,
//! because the number of hits is known when a request arrives.

use crate::units::{ExactRate, Nanos, SECOND, Time};

/// The parameters of a bucket that is refilled on the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridBucket {
    /// Number of tokens that are added in each `period`; in lowest terms with it.
    tokens: u64,
    /// Period in nanoseconds. Invariant: `1 <= tokens <= period`, at most one token a nanosecond.
    period: u64,
    burst: u64,
}

impl GridBucket {
    /// A bucket that refills whole hits at `pace`, up to `burst` of them. A new bucket is full.
    ///
    /// A pace whose exact step is not a fraction of 64-bit numbers (such as a third of a billionth
    /// of a hit a day) is rounded to a whole number of nanoseconds a hit.
    #[must_use]
    pub fn new(pace: ExactRate, burst: u64) -> GridBucket {
        let (cost, period) = (pace.cost().0, u128::from(pace.period().0) * u128::from(SECOND));
        let common = common_divisor(period, cost.into());
        let whole = |n: u128| u64::try_from(n / common).ok();
        let exact = whole(cost.into()).zip(whole(period));
        let (tokens, period) =
            exact.filter(|(tokens, period)| tokens <= period).unwrap_or_else(|| {
                let step = period / u128::from(cost.max(1));
                (1, u64::try_from(step).unwrap_or(u64::MAX).max(1))
            });
        GridBucket { tokens, period, burst }
    }

    /// The parameters in the form that a snapshot stores: tokens, period, burst.
    #[must_use]
    pub const fn numbers(&self) -> [u64; 3] {
        [self.tokens, self.period, self.burst]
    }

    /// Restores a grid from the result of [`GridBucket::numbers`]; `None` if the numbers are
    /// invalid.
    #[must_use]
    pub fn from_numbers([tokens, period, burst]: [u64; 3]) -> Option<GridBucket> {
        (1..=period).contains(&tokens).then_some(GridBucket { tokens, period, burst })
    }

    /// Number of hits that are refilled each second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.tokens as f64 * SECOND as f64 / self.period as f64
    }

    /// The most credit that can be saved up, in hits.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// The remaining credit in hits; negative for a debt.
    #[must_use]
    pub fn level(&self, full_at: Time, now: Time) -> i64 {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        signed(self.burst).saturating_sub(signed(self.missing(full_at, now)))
    }

    /// Number of hits to be refilled until the bucket is full.
    #[must_use]
    pub fn missing(&self, full_at: Time, now: Time) -> u64 {
        if full_at <= now { 0 } else { self.steps(full_at).saturating_sub(self.steps(now)) }
    }

    /// The state of a bucket that is short of `missing` hits.
    #[must_use]
    pub fn short_of(&self, missing: u64, now: Time) -> Time {
        if missing == 0 { Time::ZERO } else { self.moment(self.steps(now).saturating_add(missing)) }
    }

    /// Time until the level stays at zero or above after `hits`; zero if it does so now.
    #[must_use]
    pub fn wait(&self, full_at: Time, hits: u64, now: Time) -> Nanos {
        let missing = self.missing(full_at, now).saturating_add(hits);
        if missing <= self.burst {
            return Nanos::ZERO;
        }
        self.moment(self.steps(now).saturating_add(missing - self.burst)).since(now)
    }

    /// The state after a charge of `hits` at `at`, whatever the level.
    #[must_use]
    pub fn charge(&self, full_at: Time, hits: u64, at: Time) -> Time {
        let full = self.steps(full_at.max(at));
        if hits == 0 { full_at } else { self.moment(full.saturating_add(hits)) }
    }

    /// Number of steps from the epoch to `at`.
    fn steps(&self, at: Time) -> u64 {
        let (whole, rest) = (at.0 / self.period, at.0 % self.period);
        if self.tokens == 1 {
            return whole;
        }
        // At most one token each nanosecond, so neither term can exceed `at`.
        whole * self.tokens + scaled(rest, self.tokens, self.period, false)
    }

    /// Time of the step with this number.
    fn moment(&self, step: u64) -> Time {
        if self.tokens == 1 {
            return Time(step.saturating_mul(self.period));
        }
        let (whole, rest) = (step / self.tokens, step % self.tokens);
        let rest = scaled(rest, self.period, self.tokens, true);
        Time(whole.saturating_mul(self.period).saturating_add(rest))
    }
}

/// `n * by / of`, rounded up or down. Requires `n < of`.
fn scaled(n: u64, by: u64, of: u64, up: bool) -> u64 {
    let add = if up { of - 1 } else { 0 };
    match n.checked_mul(by).and_then(|product| product.checked_add(add)) {
        Some(product) => product / of,
        // The result is at most `by`, so it fits.
        None => ((u128::from(n) * u128::from(by) + u128::from(add)) / u128::from(of)) as u64,
    }
}

fn common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_begins_at_its_moment_and_not_before() {
        for rate in ["1/s", "0.5/s", "3/s", "7000000/s", "5/m", "1 per 5s", "0.333333333/d"] {
            let grid = GridBucket::new(rate.parse().expect("a pace"), 10);
            let now = grid.steps(Time(1_700_000_000_123_456_789));
            for step in [0, 1, 2, 3, 1_000_003, now, now + 1, now + 2] {
                let moment = grid.moment(step);
                if moment == Time(u64::MAX) {
                    continue; // Beyond the end of time.
                }
                assert_eq!(grid.steps(moment), step, "{rate}, step {step}");
                let before = Time(moment.0.saturating_sub(1));
                assert_eq!(grid.steps(before), step.saturating_sub(1), "{rate}, step {step}");
            }
        }
    }

    #[test]
    fn the_grid_does_not_drift_against_whole_seconds() {
        let grid = GridBucket::new("3/s".parse().expect("a pace"), 10);
        let second = Time(1_700_000_000 * SECOND);
        assert_eq!(grid.moment(grid.steps(second)), second);
        assert_eq!(grid.steps(Time(second.0 + SECOND)) - grid.steps(second), 3);
    }
}

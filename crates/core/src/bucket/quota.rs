//! Token bucket with reservations, for costs that are known only when a request has ended.
//!
//! ```text
//! state = (full_at, reserved)
//! level = burst - rate * (full_at - now) - reserved
//! a request is admitted while level > 0, and then reserves the most that it may cost
//! ```
//!
//! The real cost of a request is charged when it is known, as of that time, and replaces the
//! reservation. So many requests at once exceed the quota by no more than the last one of them, and
//! an excess reservation is available again at once. (`debt` adds an estimate to its only word, and
//! time refills it. So the estimate of a long request cannot be taken back exactly.)
//!
//! Reservations belong to running requests of this process: they are neither stored nor sent to
//! other instances.

use super::debt::DebtBucket;
use crate::units::{Cost, Nanos, Time};

/// Number of words of a state.
pub const WORDS: usize = 2;

/// A token bucket with reservations, without the state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuotaBucket {
    bucket: DebtBucket,
}

impl QuotaBucket {
    /// A quota that is refilled as `bucket` is. Debts have no cap.
    #[must_use]
    pub const fn new(bucket: DebtBucket) -> QuotaBucket {
        QuotaBucket { bucket }
    }

    /// The bucket without reservations.
    #[must_use]
    pub const fn bucket(&self) -> &DebtBucket {
        &self.bucket
    }

    /// When the bucket would be full if all reservations were charged now.
    fn full_at(&self, state: &[u64], now: Time) -> Time {
        Time(state[0]).max(now).plus(self.bucket.rate().time_for(Cost(state[1])))
    }

    /// Time until something is left, if running requests cost what is reserved for them; zero if
    /// something is left now.
    #[must_use]
    pub fn wait(&self, state: &[u64], cost: Cost, now: Time) -> Nanos {
        self.bucket.wait(self.full_at(state, now), cost.max(Cost(1)), now)
    }

    /// Time until something is left of what was not used yet, whatever is reserved; zero if
    /// something is left now.
    #[must_use]
    pub fn wait_for_use(&self, state: &[u64], now: Time) -> Nanos {
        self.bucket.wait(Time(state[0]), Cost(1), now)
    }

    /// What is left in nano-units of cost; negative if more was charged and reserved than there is.
    #[must_use]
    pub fn level(&self, state: &[u64], now: Time) -> i64 {
        self.bucket.level(self.full_at(state, now), now)
    }

    /// Charges an actual cost.
    pub fn charge(&self, state: &mut [u64], cost: Cost, at: Time) {
        state[0] = self.bucket.charge(Time(state[0]), cost, at).0.0;
    }

    /// Reserves `cost` for a running request.
    pub fn reserve(&self, state: &mut [u64], cost: Cost) {
        state[1] = state[1].saturating_add(cost.0);
    }

    /// Takes back what is reserved for a request, at most all that is reserved.
    pub fn release(&self, state: &mut [u64], cost: Cost) {
        state[1] = state[1].saturating_sub(cost.0);
    }

    /// The amount that would be forgiven if this state were evicted.
    #[must_use]
    pub fn worth(&self, state: &[u64], now: Time) -> u64 {
        self.full_at(state, now).since(now).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Rate;

    const START: Time = Time(1_000_000_000_000);

    /// 60 tokens a minute.
    fn quota() -> QuotaBucket {
        let rate = Rate::per(Cost::tokens(60), Nanos::from_secs(60)).expect("a rate");
        QuotaBucket::new(DebtBucket::new(rate, Cost::tokens(60)))
    }

    fn left(state: &[u64], now: Time) -> f64 {
        quota().level(state, now) as f64 / Cost::tokens(1).0 as f64
    }

    #[test]
    fn what_was_reserved_too_much_is_there_again_however_long_it_took() {
        let (quota, mut state) = (quota(), [0, 0]);
        quota.charge(&mut state, Cost::tokens(50), START);
        quota.reserve(&mut state, Cost::tokens(10));
        assert!(quota.wait(&state, Cost::ZERO, START) > Nanos::ZERO, "nothing is left");
        let later = START.plus(Nanos::from_secs(20));
        assert!((left(&state, later) - 20.0).abs() < 1e-3, "refilled meanwhile");
        quota.release(&mut state, Cost::tokens(10));
        quota.charge(&mut state, Cost::tokens(1), later);
        assert!((left(&state, later) - 29.0).abs() < 1e-3, "{}", left(&state, later));
    }

    #[test]
    fn what_is_reserved_is_not_used() {
        let (quota, mut state) = (quota(), [0, 0]);
        quota.reserve(&mut state, Cost::tokens(100));
        quota.charge(&mut state, Cost::tokens(59), START);
        assert_eq!(quota.wait_for_use(&state, START), Nanos::ZERO);
        quota.charge(&mut state, Cost::tokens(2), START);
        assert!(quota.wait_for_use(&state, START) >= Nanos::from_secs(1));
    }

    #[test]
    fn a_full_bucket_with_a_reservation_is_not_worth_nothing() {
        let (quota, mut state) = (quota(), [0, 0]);
        assert_eq!(quota.worth(&state, START), 0);
        quota.reserve(&mut state, Cost::tokens(10));
        assert!(quota.worth(&state, START) > 0);
        quota.release(&mut state, Cost::tokens(11));
        assert_eq!(quota.worth(&state, START), 0, "more cannot be taken back than is reserved");
    }

    #[test]
    fn the_wait_ends_when_something_is_left() {
        let (quota, mut state) = (quota(), [0, 0]);
        quota.charge(&mut state, Cost::tokens(65), START);
        let wait = quota.wait(&state, Cost::ZERO, START);
        assert!((wait.as_secs_f64() - 5.0).abs() < 1e-3, "{wait:?}");
        assert_eq!(quota.wait(&state, Cost::ZERO, START.plus(wait)), Nanos::ZERO);
    }
}

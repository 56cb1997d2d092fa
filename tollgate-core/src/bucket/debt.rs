//! The debt bucket: a token bucket that may go below zero, kept as one number.
//!
//! The number is `full_at`, the time at which the bucket is full again if left alone (the
//! "theoretical arrival time" of the generic cell rate algorithm, ITU-T I.371, shifted by the
//! burst). Everything else follows from it:
//!
//! ```text
//! level(now) = burst - rate * max(0, full_at - now)
//! wait(now)  = max(0, full_at - now - burst / rate)
//! ```
//!
//! The clock of a bucket never moves back: a charge for a request that started earlier than
//! another one already charged grants no refill twice (facts/tempomat.md, T14). A bucket whose
//! `full_at` has passed equals one that never was, so forgetting it forgives nothing.

use crate::units::{Cost, Nanos, Rate, Time};

/// The numbers of a debt bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Debt {
    rate: Rate,
    burst: Cost,
    /// How long an empty bucket takes to fill: burst / rate.
    depth: Nanos,
}

impl Debt {
    /// Refills at `rate` up to `burst`. A new bucket is full.
    #[must_use]
    pub fn new(rate: Rate, burst: Cost) -> Debt {
        Debt { rate, burst, depth: rate.time_for(burst) }
    }

    /// Cost per time that comes back.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The most that can be saved up.
    #[must_use]
    pub fn burst(&self) -> Cost {
        self.burst
    }

    /// What is left, in nano-units of cost; below zero it is debt.
    #[must_use]
    pub fn level(&self, full_at: Time, now: Time) -> i64 {
        let missing = self.rate.cost_in(full_at.since(now));
        let signed = |cost: Cost| i64::try_from(cost.0).unwrap_or(i64::MAX);
        signed(self.burst).saturating_sub(signed(missing))
    }

    /// How long until the level would still be zero or more after a charge of `cost`.
    #[must_use]
    pub fn wait(&self, full_at: Time, cost: Cost, now: Time) -> Nanos {
        full_at.max(now).plus(self.rate.time_for(cost)).since(now.plus(self.depth))
    }

    /// How far in debt it is, as a multiple of its burst: what debts under different limits are
    /// compared by. Zero: not at all.
    #[must_use]
    pub fn lateness(&self, full_at: Time, now: Time) -> f64 {
        self.wait(full_at, Cost::ZERO, now).0 as f64 / self.depth.0.max(1) as f64
    }

    /// Charges `cost` for a request that started at `at`. Returns the state after it and how far
    /// it moved.
    #[must_use]
    pub fn charge(&self, full_at: Time, cost: Cost, at: Time) -> (Time, Nanos) {
        let before = full_at.max(at);
        let after = before.plus(self.rate.time_for(cost));
        (after, after.since(before))
    }

    /// Takes back what a hold charged too much: `over` of cost, of a hold made at `at` that moved
    /// the bucket by `moved`.
    ///
    /// Part of what a hold took may have been refilled since, and then lies within a burst that
    /// is full anyway; giving it back again would leave the bucket fuller than if the hold had
    /// never been. The gap that a hold opens between the bucket and one it never touched closes
    /// at most as fast as time passes, so at least `moved - (now - at)` of it is still open; no
    /// more than that is given back.
    #[must_use]
    pub fn refund(&self, full_at: Time, over: Cost, moved: Nanos, at: Time, now: Time) -> Time {
        let open = moved.minus(now.since(at));
        full_at.minus(self.rate.time_for(over).min(open))
    }

    /// The state that owes the same cost under these numbers as `full_at` does under `old`.
    #[must_use]
    pub fn converted(&self, old: &Debt, full_at: Time, now: Time) -> Time {
        let missing = old.rate.cost_in(full_at.since(now));
        if missing == Cost::ZERO { Time::ZERO } else { now.plus(self.rate.time_for(missing)) }
    }
}

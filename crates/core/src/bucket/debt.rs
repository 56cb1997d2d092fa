//! The debt bucket: a token bucket that may go below zero, stored as one number.
//!
//! The number is `full_at`, the time at which the bucket is full again if nothing more is charged
//! (the "theoretical arrival time" of the generic cell rate algorithm, ITU-T I.371, shifted by the
//! burst). Everything else follows from it:
//!
//! ```text
//! level(now) = burst - rate * max(0, full_at - now)
//! wait(now)  = max(0, full_at - now - burst / rate)
//! ```
//!
//! The clock of a bucket never moves back: if a request started earlier than another one that is
//! already charged, its charge does not grant the same refill twice (docs/spec/tempomat.md, T14). A
//! bucket that is past its `full_at` equals a new bucket, so evicting it forgives no debt.

use crate::units::{Cost, Nanos, Rate, Time};

/// The parameters of a debt bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DebtBucket {
    rate: Rate,
    burst: Cost,
    /// Time that an empty bucket takes to fill: burst / rate.
    depth: Nanos,
    /// Maximum distance between now and `full_at` that a charge may cause; `u64::MAX` if debts have
    /// no cap.
    reach: Nanos,
}

/// Assumed upper bound of the difference between the times that two threads pass in, as a divisor
/// of `reach`. In practice the bound is seconds, and the real difference is some microseconds.
const SKEW_DIVISOR: u64 = 64;

/// A hold keeps this part of `reach` (as a divisor) below the cap, so that there is room to charge
/// the actual cost. The part must be larger than that of [`SKEW_DIVISOR`].
const HOLD_MARGIN_DIVISOR: u64 = 32;

const _: () = assert!(HOLD_MARGIN_DIVISOR < SKEW_DIVISOR, "the part of a hold is the larger one");

/// Converts a cost to a level, which is signed.
fn signed(cost: Cost) -> i64 {
    i64::try_from(cost.0).unwrap_or(i64::MAX)
}

impl DebtBucket {
    /// A bucket that refills at `rate` up to `burst`. A new bucket is full.
    #[must_use]
    pub fn new(rate: Rate, burst: Cost) -> DebtBucket {
        DebtBucket { rate, burst, depth: rate.time_for(burst), reach: Nanos(u64::MAX) }
    }

    /// The same bucket with a cap on its debt. Charges beyond `debt_max` are forgiven, and a client
    /// that stops is in credit again after `debt_max / rate`. Too low: a heavy client is soon
    /// treated like any other. Too high: it is punished for longer than is of use to the other
    /// clients.
    #[must_use]
    pub fn capped(self, debt_max: Cost) -> DebtBucket {
        DebtBucket { reach: self.depth.plus(self.rate.time_for(debt_max)), ..self }
    }

    /// The same bucket at `factor` times the rate, with `factor` above zero. The burst and the cap
    /// on the debt, both in cost, stay the same.
    #[must_use]
    pub fn scaled(self, factor: f64) -> DebtBucket {
        let faster = |length: Nanos| Nanos((length.0 as f64 / factor) as u64);
        let Some(rate) = self.rate.scaled(factor) else { return self };
        let reach = match self.reach {
            Nanos(u64::MAX) => self.reach,
            reach => faster(reach),
        };
        DebtBucket { rate, burst: self.burst, depth: rate.time_for(self.burst), reach }
    }

    /// The same bucket with `factor` times the rate, the burst and the cap on the debt, with
    /// `factor` above zero.
    #[must_use]
    pub fn enlarged(self, factor: f64) -> DebtBucket {
        let Some(rate) = self.rate.scaled(factor) else { return self };
        let burst = Cost((self.burst.0 as f64 * factor) as u64);
        // These two are times, which do not scale.
        DebtBucket { rate, burst, depth: rate.time_for(burst), reach: self.reach }
    }

    /// The refill rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// The most credit that can be saved up.
    #[must_use]
    pub fn burst(&self) -> Cost {
        self.burst
    }

    /// Maximum distance between now and `full_at` that a charge may cause; `None` if debts have no
    /// cap.
    #[must_use]
    pub fn reach(&self) -> Option<Nanos> {
        (self.reach < Nanos(u64::MAX)).then_some(self.reach)
    }

    /// The remaining credit in nano-units of cost; negative for a debt.
    #[must_use]
    pub fn level(&self, full_at: Time, now: Time) -> i64 {
        let missing = self.rate.cost_in(full_at.since(now));
        signed(self.burst).saturating_sub(signed(missing))
    }

    /// The level without a charge that moved the bucket by `moved`; at most the burst.
    #[must_use]
    pub fn with_back(&self, level: i64, moved: Nanos) -> i64 {
        level.saturating_add(signed(self.rate.cost_in(moved))).min(signed(self.burst))
    }

    /// Time until the level stays at zero or above after a charge of `cost`.
    #[must_use]
    pub fn wait(&self, full_at: Time, cost: Cost, now: Time) -> Nanos {
        full_at.max(now).plus(self.rate.time_for(cost)).since(now.plus(self.depth))
    }

    /// The debt as a multiple of the burst, which makes debts under different limits comparable.
    /// Zero if the bucket is not in debt.
    #[must_use]
    pub fn lateness(&self, full_at: Time, now: Time) -> f64 {
        self.wait(full_at, Cost::ZERO, now).0 as f64 / self.depth.0.max(1) as f64
    }

    /// Charges `cost` for a request that started at `at`, without regard to the cap. Returns the
    /// new state and how far it moved.
    #[must_use]
    pub fn charge(&self, full_at: Time, cost: Cost, at: Time) -> (Time, Nanos) {
        let before = full_at.max(at);
        let after = before.plus(self.rate.time_for(cost));
        (after, after.since(before))
    }

    /// Like `charge`, but stops at the cap on debts. Without a cap the result is the same.
    #[must_use]
    pub fn charge_capped(&self, full_at: Time, cost: Cost, at: Time, now: Time) -> (Time, Nanos) {
        let before = full_at.max(at);
        let (after, _) = self.charge(full_at, cost, at);
        let after = after.min(now.plus(self.reach)).max(before);
        (after, after.since(before))
    }

    /// Like `charge_capped`, for a hold that may be taken back. It stops a little below the cap and
    /// leaves the rest to charges of actual cost. So a bucket is at its cap only if the cap may
    /// have forgiven a charge that is never taken back, and `refund` can detect that.
    #[must_use]
    pub fn hold(&self, full_at: Time, cost: Cost, at: Time, now: Time) -> (Time, Nanos) {
        let Some(reach) = self.reach() else { return self.charge(full_at, cost, at) };
        let before = full_at.max(at);
        let (after, _) = self.charge(full_at, cost, at);
        let most = now.plus(reach.minus(Nanos(reach.0 / HOLD_MARGIN_DIVISOR)));
        let after = after.min(most).max(before);
        (after, after.since(before))
    }

    /// The part of `cost` that a hold actually charged, given that it moved the bucket by `moved`.
    #[must_use]
    pub fn held(&self, cost: Cost, moved: Nanos) -> Cost {
        if self.rate.time_for(cost) <= moved {
            return cost;
        }
        let held = self.rate.cost_in(moved);
        if self.rate.time_for(held) > moved { held.minus(Cost(1)) } else { held }
    }

    /// Takes back the excess of a hold: `over` is the excess in cost, and the hold was made at `at`
    /// and moved the bucket by `moved`.
    ///
    /// Part of what the hold charged may have been refilled since. If the bucket is full anyway,
    /// that part lies within the burst, and giving it back would leave the bucket fuller than if
    /// the hold had never been made. The gap that a hold opens between this bucket and one without
    /// the hold closes at most as fast as time passes. So at least `moved - (now - at)` of the gap
    /// is still open, and the refund is limited to this amount.
    ///
    /// A cap on debts also closes the gap: without the hold, the cap would not have forgiven later
    /// charges. The cap forgave something at a time `t` (`at` or later) only if it left `full_at`
    /// at `t + reach`. No refund of a later hold has brought `full_at` below that since, and the
    /// refund of an earlier hold must not. So a bucket that stands at `at + reach` or beyond gets
    /// no refund.
    #[must_use]
    pub fn refund(&self, full_at: Time, over: Cost, moved: Nanos, at: Time, now: Time) -> Time {
        let reach = self.reach.minus(Nanos(self.reach.0 / SKEW_DIVISOR));
        if self.reach < Nanos(u64::MAX) && full_at >= at.plus(reach) {
            return full_at;
        }
        let open = moved.minus(now.since(at));
        full_at.minus(self.rate.time_for(over).min(open))
    }

    /// The state after the charges of both buckets since they were last full, limited by the cap on
    /// debts.
    #[must_use]
    pub fn absorb(&self, full_at: Time, other: Time, now: Time) -> Time {
        let before = full_at.max(now);
        before.plus(other.since(now)).min(now.plus(self.reach)).max(full_at)
    }

    /// Cost to be refilled until the bucket is full.
    #[must_use]
    pub fn missing(&self, full_at: Time, now: Time) -> Cost {
        self.rate.cost_in(full_at.since(now))
    }

    /// The state of a bucket that is short of `missing`.
    #[must_use]
    pub fn short_of(&self, missing: Cost, now: Time) -> Time {
        if missing == Cost::ZERO { Time::ZERO } else { now.plus(self.rate.time_for(missing)) }
    }
}

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
    /// How far from now `full_at` may get by a charge.
    reach: Nanos,
}

/// Two threads may bring times that differ by a moment. What part of `reach` that moment is, at
/// most: seconds in practice, where it is some microseconds.
const SKEW: u64 = 64;

/// What part of `reach` is left to what was really used. It has to be more than that of [`SKEW`].
const HOLDS_LEAVE: u64 = 32;

/// A cost as a level.
fn signed(cost: Cost) -> i64 {
    i64::try_from(cost.0).unwrap_or(i64::MAX)
}

impl Debt {
    /// Refills at `rate` up to `burst`. A new bucket is full.
    #[must_use]
    pub fn new(rate: Rate, burst: Cost) -> Debt {
        Debt { rate, burst, depth: rate.time_for(burst), reach: Nanos(u64::MAX) }
    }

    /// The same, but a debt stops at `debt_max`: what is charged beyond it is forgiven, and
    /// whoever stops is in credit again after `debt_max / rate`. Too low: a heavy client is soon
    /// as good as any other. Too high: it is punished for longer than anybody gains from.
    #[must_use]
    pub fn capped(self, debt_max: Cost) -> Debt {
        Debt { reach: self.depth.plus(self.rate.time_for(debt_max)), ..self }
    }

    /// The same with a rate that is `factor` times as high, above zero: as much is saved up, and
    /// a debt stops at the same.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Debt {
        let faster = |length: Nanos| Nanos((length.0 as f64 / factor) as u64);
        let Some(rate) = self.rate.scaled(factor) else { return self };
        let reach = match self.reach {
            Nanos(u64::MAX) => self.reach,
            reach => faster(reach),
        };
        Debt { rate, burst: self.burst, depth: rate.time_for(self.burst), reach }
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

    /// How far from now `full_at` may get by a charge; `None`: as far as charges bring it.
    #[must_use]
    pub fn reach(&self) -> Option<Nanos> {
        (self.reach < Nanos(u64::MAX)).then_some(self.reach)
    }

    /// What is left, in nano-units of cost; below zero it is debt.
    #[must_use]
    pub fn level(&self, full_at: Time, now: Time) -> i64 {
        let missing = self.rate.cost_in(full_at.since(now));
        signed(self.burst).saturating_sub(signed(missing))
    }

    /// The level if a charge that moved the bucket by `moved` had not been made.
    #[must_use]
    pub fn with_back(&self, level: i64, moved: Nanos) -> i64 {
        level.saturating_add(signed(self.rate.cost_in(moved))).min(signed(self.burst))
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

    /// `charge`, as far as the cap on debts allows; without a cap the same.
    #[must_use]
    pub fn charge_capped(&self, full_at: Time, cost: Cost, at: Time, now: Time) -> (Time, Nanos) {
        let before = full_at.max(at);
        let (after, _) = self.charge(full_at, cost, at);
        let after = after.min(now.plus(self.reach)).max(before);
        (after, after.since(before))
    }

    /// `charge_capped` for a hold, which may be taken back: it leaves a little below the cap to
    /// what was really used. So a bucket is at its cap only if the cap may have forgiven something
    /// that nobody takes back, and `refund` can tell.
    #[must_use]
    pub fn hold(&self, full_at: Time, cost: Cost, at: Time, now: Time) -> (Time, Nanos) {
        let Some(reach) = self.reach() else { return self.charge(full_at, cost, at) };
        let before = full_at.max(at);
        let (after, _) = self.charge(full_at, cost, at);
        let most = now.plus(reach.minus(Nanos(reach.0 / HOLDS_LEAVE)));
        let after = after.min(most).max(before);
        (after, after.since(before))
    }

    /// What of `cost` a hold has charged that moved the bucket by `moved`.
    #[must_use]
    pub fn held(&self, cost: Cost, moved: Nanos) -> Cost {
        if self.rate.time_for(cost) <= moved {
            return cost;
        }
        let held = self.rate.cost_in(moved);
        if self.rate.time_for(held) > moved { held.minus(Cost(1)) } else { held }
    }

    /// Takes back what a hold charged too much: `over` of cost, of a hold made at `at` that moved
    /// the bucket by `moved`.
    ///
    /// Part of what a hold took may have been refilled since, and then lies within a burst that
    /// is full anyway; giving it back again would leave the bucket fuller than if the hold had
    /// never been. The gap that a hold opens between the bucket and one it never touched closes
    /// at most as fast as time passes, so at least `moved - (now - at)` of it is still open; no
    /// more than that is given back.
    ///
    /// A cap on debts closes the gap too: what it forgave since, it would not have forgiven
    /// without the hold. It did so at some time `t` from `at` on only if it left `full_at` at
    /// `t + reach`; no refund of a later hold has brought it below that since, and one of an
    /// earlier hold must not. So a bucket that stands at `at + reach` or beyond gets nothing.
    #[must_use]
    pub fn refund(&self, full_at: Time, over: Cost, moved: Nanos, at: Time, now: Time) -> Time {
        let reach = self.reach.minus(Nanos(self.reach.0 / SKEW));
        if self.reach < Nanos(u64::MAX) && full_at >= at.plus(reach) {
            return full_at;
        }
        let open = moved.minus(now.since(at));
        full_at.minus(self.rate.time_for(over).min(open))
    }

    /// The state that has used what both have used since they were last full, as far as the cap on
    /// debts allows.
    #[must_use]
    pub fn absorb(&self, full_at: Time, other: Time, now: Time) -> Time {
        let before = full_at.max(now);
        before.plus(other.since(now)).min(now.plus(self.reach)).max(full_at)
    }

    /// How much comes in until the bucket is full.
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

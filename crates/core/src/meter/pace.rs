//! Finds the speed of the shared clock at which the sum of all charges is the CPU time really used.
//!
//! The CPU time of a cgroup is sampled only a few times a second, but a request must be charged
//! when it ends. So the clock runs at a recent pace: CPU time used for each second of the shared
//! clock. The error of that pace is known at the next sample, and is made up for until the one
//! after. So no error is older than two samples, or larger than the CPU time used between them.
//! Requests that run at the same moment are not distinguished: from outside the backend it is not
//! visible which of them compute and which of them wait.
//!
//! CPU time used while no request ran is charged to no client. All values have the meter's
//! fractional bits.

use super::{FRACTION_BITS, NANO_UNITS};

/// The highest speed relative to the shared clock. A backend may use more for a request than the
/// processors it is configured with, in threads that are not counted.
const PACE_MAX: u128 = 4 * NANO_UNITS;

/// The part of earlier samples that is kept at each sample: after four samples it is half.
const SAMPLE_KEPT_PART: (u128, u128) = (21, 25);

/// The pace, and the sums that it is computed from.
#[derive(Clone, Debug)]
pub(super) struct ClockPace {
    pace: u128,
    /// The time on the shared clock, and the charges, since the last sample.
    shared: u128,
    charged: u128,
    /// The faded sums of recent samples: CPU time used, and time on the shared clock.
    late: (u128, u128),
    /// CPU time used and not charged yet; negative if more was charged than used.
    owed: i128,
    /// CPU time used while no request ran to be charged for it.
    pub(super) unpaid: u128,
}

impl Default for ClockPace {
    fn default() -> ClockPace {
        ClockPace { pace: NANO_UNITS, shared: 0, charged: 0, late: (0, 0), owed: 0, unpaid: 0 }
    }
}

impl ClockPace {
    /// Begins again, except for `unpaid`.
    pub(super) fn forget(&mut self) {
        *self = ClockPace { unpaid: self.unpaid, ..ClockPace::default() };
    }

    /// The charge for an advance of the shared clock by `shared`.
    pub(super) fn spend(&mut self, shared: u128) -> u128 {
        let spent =
            (shared >> (FRACTION_BITS / 2)).saturating_mul(self.pace >> (FRACTION_BITS / 2));
        self.shared = self.shared.saturating_add(shared);
        self.charged = self.charged.saturating_add(spent);
        spent
    }

    /// Notes the CPU time that was used since the last sample.
    pub(super) fn sample(&mut self, used: u128) {
        let (shared, charged) =
            (core::mem::take(&mut self.shared), signed(core::mem::take(&mut self.charged)));
        if shared == 0 {
            // No request ran, so what is still owed can no longer be charged.
            let lost = used.saturating_add(self.owed.max(0).unsigned_abs());
            self.unpaid = self.unpaid.saturating_add(lost);
            self.owed = self.owed.min(0);
            return;
        }
        // More than can be charged in the time that requests ran was not used by them.
        let payable = used.min(shared.saturating_mul(PACE_MAX >> FRACTION_BITS));
        self.unpaid = self.unpaid.saturating_add(used - payable);
        self.owed = self.owed.saturating_add(signed(payable)).saturating_sub(charged);
        let keep = |of: u128| of / SAMPLE_KEPT_PART.1 * SAMPLE_KEPT_PART.0;
        self.late = (keep(self.late.0) + payable, keep(self.late.1) + shared);
        let usual = ratio(self.late.0, self.late.1);
        let mend = ratio(self.owed.unsigned_abs(), shared);
        let pace = if self.owed < 0 { usual.saturating_sub(mend) } else { usual + mend };
        self.pace = pace.min(PACE_MAX);
    }
}

fn signed(of: u128) -> i128 {
    i128::try_from(of).unwrap_or(i128::MAX)
}

/// `of` divided by `by`, with the meter's fractional bits; at most [`PACE_MAX`].
fn ratio(of: u128, by: u128) -> u128 {
    (of << FRACTION_BITS).checked_div(by).unwrap_or(NANO_UNITS).min(PACE_MAX)
}

//! How fast the shared clock must run for all charges together to be the CPU time that was used.
//!
//! What a cgroup used is known some times a second only, and a request must be charged when it
//! ends. So the clock runs at the pace of late: CPU time used for each second of the shared clock.
//! By how much that was wrong is known at the next look, and is made up for until the one after. An
//! error is never older than two looks, and never larger than what is used between them. Between
//! requests that run at the same moment it does not tell apart who computes and who waits: nobody
//! outside the backend can.
//!
//! CPU time used while no request ran has no payer. All figures have the meter's fraction.

use super::{FRACTION, ONE};

/// The fastest that the clock may run beside the shared one: a backend that uses more for a request
/// than the processors it is said to have, in threads that nobody counted.
const PACE_MAX: u128 = 4 * ONE;

/// Of what was seen before, so much counts at each look: half of it is forgotten after four.
const KEPT: (u128, u128) = (21, 25);

/// The pace, and what it is found by.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    pace: u128,
    /// The shared clock, and what was charged, since the last look.
    shared: u128,
    charged: u128,
    /// Of late: what was used, and what the shared clock showed.
    late: (u128, u128),
    /// What was used and not charged yet, or the other way round.
    owed: i128,
    /// What was used while nobody was there to pay.
    pub(super) unpaid: u128,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { pace: ONE, shared: 0, charged: 0, late: (0, 0), owed: 0, unpaid: 0 }
    }
}

impl Pace {
    /// Begins anew, but for what has been counted.
    pub(super) fn forget(&mut self) {
        *self = Pace { unpaid: self.unpaid, ..Pace::default() };
    }

    /// What is charged where the shared clock goes on by `shared`.
    pub(super) fn spend(&mut self, shared: u128) -> u128 {
        let spent = (shared >> (FRACTION / 2)).saturating_mul(self.pace >> (FRACTION / 2));
        self.shared = self.shared.saturating_add(shared);
        self.charged = self.charged.saturating_add(spent);
        spent
    }

    /// So much was used since the last look.
    pub(super) fn sample(&mut self, used: u128) {
        let (shared, charged) =
            (core::mem::take(&mut self.shared), signed(core::mem::take(&mut self.charged)));
        if shared == 0 {
            // Nobody ran. What is still owed has lost its payers.
            let lost = used.saturating_add(self.owed.max(0).unsigned_abs());
            self.unpaid = self.unpaid.saturating_add(lost);
            self.owed = self.owed.min(0);
            return;
        }
        // More than can be charged in the time that requests ran was not used by them.
        let payable = used.min(shared.saturating_mul(PACE_MAX >> FRACTION));
        self.unpaid = self.unpaid.saturating_add(used - payable);
        self.owed = self.owed.saturating_add(signed(payable)).saturating_sub(charged);
        let keep = |of: u128| of / KEPT.1 * KEPT.0;
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

/// `of` divided by `by`, with the meter's fraction.
fn ratio(of: u128, by: u128) -> u128 {
    (of << FRACTION).checked_div(by).unwrap_or(ONE).min(PACE_MAX)
}

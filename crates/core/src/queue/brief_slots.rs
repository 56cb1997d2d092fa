//! Slots for requests that are known to be brief.
//!
//! How many there are is found in `concurrency`, and who gets them is decided in `slots`.

use crate::units::Cost;

/// Slots that only requests of a small expected cost may use, besides the others, and of clients in
/// credit. Clients that were not here before have none of them under pressure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BriefSlots {
    /// The number of requests with the backend, those in other slots included. 0: there are none.
    pub count: usize,
    /// The largest expected cost.
    pub cost_max: Cost,
}

impl BriefSlots {
    /// Whether there is a slot for one more request, with `running` there. A guess is not believed.
    pub(super) fn admits(self, estimate: Cost, is_guess: bool, running: usize) -> bool {
        running < self.count && !is_guess && estimate <= self.cost_max
    }
}

//! The handles that waiting, and the backend's time, are counted with: apart for clients in credit
//! and for those in debt.
//!
//! Whether the throttle is right shows here: those in credit wait shortly, whatever the others do.
//! What each means: `watch::metrics`.

use crate::watch::metrics::{BACKEND_TIME, WAITS};
use crate::watch::registry::{Histogram, Registry};
use tollgate_core::units::Nanos;

/// How the client of a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Within its shares.
    Credit,
    /// Beyond one of them.
    Debt,
}

impl Tier {
    /// Of a client that is in debt by one of its limits, or by none.
    #[must_use]
    pub const fn of(indebted: bool) -> Tier {
        if indebted { Tier::Debt } else { Tier::Credit }
    }
}

/// Every [`Tier`], in its order, as it is written.
const NAMES: [&str; 2] = ["credit", "debt"];

/// Everything that is counted by tier.
#[derive(Debug)]
pub struct TierCounts {
    waits: [Histogram; NAMES.len()],
    backend: [Histogram; NAMES.len()],
}

impl TierCounts {
    /// The handles.
    #[must_use]
    pub fn new(registry: &Registry) -> TierCounts {
        TierCounts {
            waits: NAMES.map(|tier| registry.histogram(&WAITS, &[tier])),
            backend: NAMES.map(|tier| registry.histogram(&BACKEND_TIME, &[tier])),
        }
    }

    /// A request that waited for `waited` is over, and the backend worked for it for `worked`. Who
    /// did not wait, or never came to the backend, is not counted with those who did.
    pub fn record(&self, tier: Tier, waited: Nanos, worked: Nanos) {
        for (spread, length) in [(&self.waits, waited), (&self.backend, worked)] {
            if length > Nanos::ZERO {
                spread[tier as usize].record(length.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_counted_apart_and_who_did_not_wait_not_at_all() {
        let registry = Registry::default();
        let counts = TierCounts::new(&registry);
        let second = Nanos::from_secs(1);
        counts.record(Tier::of(false), Nanos::ZERO, second);
        counts.record(Tier::of(true), second, second);
        counts.record(Tier::of(true), second, Nanos::ZERO);
        let count =
            |metric, tier| -> u64 { registry.histogram(metric, &[tier]).counts().iter().sum() };
        assert_eq!((count(&WAITS, "credit"), count(&WAITS, "debt")), (0, 2));
        assert_eq!((count(&BACKEND_TIME, "credit"), count(&BACKEND_TIME, "debt")), (1, 1));
    }
}

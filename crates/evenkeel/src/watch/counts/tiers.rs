//! The handles that waiting, the backend's time and the time of whole requests are counted with:
//! apart for clients in credit and for those in debt.
//!
//! Whether the throttle is right shows here: those in credit wait shortly, whatever the others do.
//! Who is of which tier is the engine's word; what each figure means: `watch::metrics`.

use crate::watch::metrics::{BACKEND_TIME, REQUEST_TOOK, WAITS};
use crate::watch::registry::{Counter, Histogram, Registry};
use evenkeel_core::units::{Cost, Nanos};

/// How the client of a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Within all its limits.
    Credit,
    /// Over one of them, or held up by one; in shadow, as it would be.
    Debt,
}

impl Tier {
    /// Both, in the order in which they are counted.
    pub const ALL: [Tier; 2] = [Tier::Credit, Tier::Debt];

    /// Of a client that is in debt by one of its limits, or by none.
    #[must_use]
    pub const fn of(indebted: bool) -> Tier {
        if indebted { Tier::Debt } else { Tier::Credit }
    }

    /// As it is written in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Tier::Credit => "credit",
            Tier::Debt => "debt",
        }
    }
}

/// Everything that is counted by tier.
#[derive(Debug)]
pub struct TierCounts {
    waits: [Histogram; 2],
    backend: [Histogram; 2],
    took: [Histogram; 2],
    spent: [Counter; 2],
}

impl TierCounts {
    /// The handles.
    #[must_use]
    pub fn new(registry: &Registry) -> TierCounts {
        let each = |metric| Tier::ALL.map(|tier| registry.histogram(metric, &[tier.name()]));
        TierCounts {
            waits: each(&WAITS),
            backend: each(&BACKEND_TIME),
            took: each(&REQUEST_TOOK),
            spent: Default::default(),
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

    /// A request that cost `cost` has ended, `took` after it came; `None`: that says nothing.
    pub fn served(&self, tier: Tier, cost: Cost, took: Option<Nanos>) {
        self.spent[tier as usize].increment(cost.0);
        if let Some(took) = took {
            self.took[tier as usize].record(took.0);
        }
    }

    /// How long requests of this tier took.
    #[must_use]
    pub fn took(&self, tier: Tier) -> &Histogram {
        &self.took[tier as usize]
    }

    /// What they have cost so far, in nano-units.
    #[must_use]
    pub fn spent(&self, tier: Tier) -> u64 {
        self.spent[tier as usize].get()
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
        counts.served(Tier::Credit, Cost(3), Some(second));
        counts.served(Tier::Debt, Cost(5), None);
        let count =
            |metric, tier| -> u64 { registry.histogram(metric, &[tier]).counts().iter().sum() };
        assert_eq!((count(&WAITS, "credit"), count(&WAITS, "debt")), (0, 2));
        assert_eq!((count(&BACKEND_TIME, "credit"), count(&BACKEND_TIME, "debt")), (1, 1));
        assert_eq!((count(&REQUEST_TOOK, "credit"), count(&REQUEST_TOOK, "debt")), (1, 0));
        assert_eq!((counts.spent(Tier::Credit), counts.spent(Tier::Debt)), (3, 5));
    }
}

//! The handles for waiting times, the backend's time and the time of whole requests, separately for
//! clients in credit and clients in debt.
//!
//! These metrics show whether throttling works: clients in credit wait only shortly, whatever the
//! others do. The engine decides the tier of a client; `telemetry::metrics` has the meaning of each
//! metric.

use crate::metrics::{BACKEND_TIME, FIRST_BYTE, REQUEST_TOOK, WAITS};
use crate::registry::{Counter, Histogram, Registry};
use evenkeel_core::units::{Cost, Nanos};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// The standing of the client of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The client is within all its limits.
    Credit,
    /// The client is over one of its limits, or held up by one. In shadow mode, a client that would
    /// be.
    Debt,
}

impl Tier {
    /// Both tiers, in the order of the array index.
    pub const ALL: [Tier; 2] = [Tier::Credit, Tier::Debt];

    /// The tier of a client; `indebted` says whether it is in debt by one of its limits.
    pub const fn of(indebted: bool) -> Tier {
        if indebted { Tier::Debt } else { Tier::Credit }
    }

    /// The value of the label `tier` in metrics.
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
    first_byte: [Histogram; 2],
    spent: [Counter; 2],
    progress: AtomicI64,
    progress_shown: AtomicI64,
}

impl TierCounts {
    /// Makes the handles.
    pub fn new(registry: &Registry) -> TierCounts {
        let each = |metric| Tier::ALL.map(|tier| registry.histogram(metric, &[tier.name()]));
        TierCounts {
            waits: each(&WAITS),
            backend: each(&BACKEND_TIME),
            took: each(&REQUEST_TOOK),
            first_byte: each(&FIRST_BYTE),
            spent: Default::default(),
            progress: AtomicI64::default(),
            progress_shown: AtomicI64::default(),
        }
    }

    /// Records a request that is over. It waited for `waited`, and the backend worked for it for
    /// `worked`. A duration of zero is not recorded, so the histograms hold only requests that
    /// waited, or reached the backend.
    pub fn record(&self, tier: Tier, waited: Nanos, worked: Nanos) {
        for (spread, length) in [(&self.waits, waited), (&self.backend, worked)] {
            if length > Nanos::ZERO {
                spread[tier as usize].record(length.0);
            }
        }
    }

    /// Records a request that cost `cost` and ended `took` after it arrived; `None` means that the
    /// duration is not meaningful.
    pub fn record_served(&self, tier: Tier, cost: Cost, took: Option<Nanos>) {
        self.spent[tier as usize].increment(cost.0);
        if let Some(took) = took {
            self.took[tier as usize].record(took.0);
        }
    }

    /// Records that a request has cost `cost` by now, and `before` at the last record. The figure
    /// of a running request may be higher than its final cost.
    pub fn record_progress(&self, cost: Cost, before: Cost) {
        let (more, less) = (cost.minus(before), before.minus(cost));
        let signed = |cost: Cost| i64::try_from(cost.0).unwrap_or(i64::MAX);
        self.progress.fetch_add(signed(more).saturating_sub(signed(less)), Relaxed);
    }

    /// The cost of all requests so far, including the charges of running ones. It never falls: if a
    /// request has used less than was counted, it stands still until other requests make up for
    /// that.
    pub fn progress(&self) -> Cost {
        let now = self.progress.load(Relaxed);
        let shown = self.progress_shown.fetch_max(now, Relaxed).max(now);
        Cost(u64::try_from(shown).unwrap_or_default())
    }

    /// Records that the head of a language model's answer arrived `took` after the request.
    pub fn record_first_byte(&self, tier: Tier, took: Nanos) {
        self.first_byte[tier as usize].record(took.0);
    }

    /// The histogram of the times to the first byte of answers of models of this tier.
    pub fn first_byte(&self, tier: Tier) -> &Histogram {
        &self.first_byte[tier as usize]
    }

    /// The histogram of the durations of requests of this tier.
    pub fn took(&self, tier: Tier) -> &Histogram {
        &self.took[tier as usize]
    }

    /// The cost of all requests of this tier so far, in nano-units.
    pub fn spent(&self, tier: Tier) -> u64 {
        self.spent[tier as usize].get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_never_falls_and_is_right_in_the_end() {
        let counts = TierCounts::new(&Registry::default());
        counts.record_progress(Cost(10), Cost::ZERO);
        assert_eq!(counts.progress(), Cost(10));
        counts.record_progress(Cost(7), Cost(10));
        assert_eq!(counts.progress(), Cost(10));
        counts.record_progress(Cost(5), Cost::ZERO);
        assert_eq!(counts.progress(), Cost(12));
    }

    #[test]
    fn tiers_are_counted_apart_and_who_did_not_wait_not_at_all() {
        let registry = Registry::default();
        let counts = TierCounts::new(&registry);
        let second = Nanos::from_secs(1);
        counts.record(Tier::of(false), Nanos::ZERO, second);
        counts.record(Tier::of(true), second, second);
        counts.record(Tier::of(true), second, Nanos::ZERO);
        counts.record_served(Tier::Credit, Cost(3), Some(second));
        counts.record_served(Tier::Debt, Cost(5), None);
        counts.record_first_byte(Tier::Debt, second);
        let count =
            |metric, tier| -> u64 { registry.histogram(metric, &[tier]).counts().iter().sum() };
        assert_eq!((count(&WAITS, "credit"), count(&WAITS, "debt")), (0, 2));
        assert_eq!((count(&BACKEND_TIME, "credit"), count(&BACKEND_TIME, "debt")), (1, 1));
        assert_eq!((count(&REQUEST_TOOK, "credit"), count(&REQUEST_TOOK, "debt")), (1, 0));
        assert_eq!((count(&FIRST_BYTE, "credit"), count(&FIRST_BYTE, "debt")), (0, 1));
        assert_eq!((counts.spent(Tier::Credit), counts.spent(Tier::Debt)), (3, 5));
    }
}

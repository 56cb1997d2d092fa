//! The share of the processors with which a client manages: one bucket for each share that may be
//! suggested, charged with the CPU time that the client really needed.
//!
//! The arithmetic is that of the limits. `report/suggest` uses the results.

use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::units::{Cost, CpuShare, Nanos, Time};

/// The shares that are tried, in ascending order.
pub const SHARES_TRIED: [f64; 8] = [0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.35, 0.5];
/// The burst of each bucket: the default of limits.
pub const SUGGESTED_BURST: Nanos = Nanos::from_secs(30);

/// The state of one client or network under each share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShareNeeds {
    full_at: [Time; SHARES_TRIED.len()],
    /// One bit for each share under which it was in debt at some time.
    short: u8,
}

/// The parameters of the buckets for a machine.
#[derive(Clone, Debug)]
pub struct ShareBuckets(Vec<DebtBucket>);

impl ShareBuckets {
    /// Makes the buckets for shares of `cpus` processors.
    pub fn new(cpus: f64) -> ShareBuckets {
        let rate = |share: f64| CpuShare::new(share).and_then(|share| share.of(cpus));
        let rates = SHARES_TRIED.iter().filter_map(|share| rate(*share));
        ShareBuckets(rates.map(|rate| DebtBucket::new(rate, Cost::cpu(SUGGESTED_BURST))).collect())
    }
}

impl ShareNeeds {
    /// Charges a request that arrived at `at` and needed `needed`.
    pub fn add(&mut self, buckets: &ShareBuckets, needed: Nanos, at: Time) {
        for (place, (full_at, debt)) in self.full_at.iter_mut().zip(&buckets.0).enumerate() {
            *full_at = debt.charge(*full_at, Cost::cpu(needed), at).0;
            let short = debt.wait(*full_at, Cost::ZERO, at) > Nanos::ZERO;
            self.short |= u8::from(short) << place;
        }
    }

    /// Whether the share at index `place` was enough at all times.
    pub fn suffices(&self, place: usize) -> bool {
        self.short & (1 << place) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_decides_which_share_is_enough() {
        let buckets = ShareBuckets::new(2.0);
        let mut needs = ShareNeeds::default();
        let mut at = Time(1_000_000_000_000);
        // A tenth of a processor for an hour: 0.05 of two, minus the burst.
        for _ in 0..3_600 {
            needs.add(&buckets, Nanos::from_millis(150), at);
            at = at.plus(Nanos::from_secs(1));
        }
        let enough: Vec<bool> =
            (0..SHARES_TRIED.len()).map(|place| needs.suffices(place)).collect();
        assert_eq!(enough, [false, false, false, true, true, true, true, true]);
    }
}

//! The handles with which lookups of clients' host names are counted.
//!
//! `telemetry::metrics` has the meaning of each metric; `identity::lookup` does the lookups.

use crate::metrics::LOOKUPS;
use crate::registry::{Counter, Registry};

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupOutcome {
    /// The name has a meaning in the configuration and is confirmed.
    Confirmed,
    /// There is no name, or it has no meaning in the configuration.
    Other,
    /// The name has a meaning in the configuration, but does not resolve to the client's address.
    Forged,
}

/// Everything that is counted about clients' names.
#[derive(Debug)]
pub struct HostCounts {
    /// Clients that were not looked up because too many lookups are pending.
    pub left_out: Counter,
    outcomes: [Counter; 3],
    failed: Counter,
}

impl HostCounts {
    /// Makes the handles. Call it only if host names matter.
    pub fn new(registry: &Registry) -> HostCounts {
        HostCounts {
            left_out: registry.counter(&LOOKUPS, &["left_out"]),
            outcomes: ["confirmed", "other", "forged"].map(|o| registry.counter(&LOOKUPS, &[o])),
            failed: registry.counter(&LOOKUPS, &["failed"]),
        }
    }

    /// Counts a lookup; `None` means that no name server answered.
    pub fn record_lookup(&self, outcome: Option<LookupOutcome>) {
        outcome.map_or(&self.failed, |outcome| &self.outcomes[outcome as usize]).increment(1);
    }
}

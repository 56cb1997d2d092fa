//! The handles that lookups of clients' names are counted with.
//!
//! What each means: `watch::metrics`. Who looks up: `client::lookup`.

use crate::watch::metrics::LOOKUPS;
use crate::watch::registry::{Counter, Registry};

/// What came of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The name means something, and is confirmed.
    Confirmed,
    /// There is no name, or one that means nothing.
    Other,
    /// The name means something and does not lead back.
    Forged,
}

/// Everything that is counted about clients' names.
#[derive(Debug)]
pub struct HostCounts {
    /// Clients that were not looked up, because too many are to be.
    pub left_out: Counter,
    outcomes: [Counter; 3],
    failed: Counter,
}

impl HostCounts {
    /// The handles; made where names matter.
    #[must_use]
    pub fn new(registry: &Registry) -> HostCounts {
        HostCounts {
            left_out: registry.counter(&LOOKUPS, &["left_out"]),
            outcomes: ["confirmed", "other", "forged"].map(|o| registry.counter(&LOOKUPS, &[o])),
            failed: registry.counter(&LOOKUPS, &["failed"]),
        }
    }

    /// A client was looked up; `None`: no name server answered.
    pub fn looked_up(&self, outcome: Option<Outcome>) {
        outcome.map_or(&self.failed, |outcome| &self.outcomes[outcome as usize]).increment(1);
    }
}

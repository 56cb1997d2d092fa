//! The counters of what is pushed to other systems.
//!
//! Every destination has the same three. What is pushed, and when: `push`.

use evenkeel_telemetry::metrics::{PUSH_DROPPED, PUSH_FAILURES, PUSHED};
use evenkeel_telemetry::registry::{Counter, Registry};

/// The counters of one push destination.
#[derive(Clone, Debug)]
pub struct PushCounts {
    /// Lines that were sent.
    pub lines: Counter,
    /// Lines that will never be sent.
    pub dropped: Counter,
    /// Attempts that failed.
    pub failures: Counter,
}

impl PushCounts {
    /// Makes the counters for the destination `to`.
    #[must_use]
    pub fn new(registry: &Registry, to: &str) -> PushCounts {
        PushCounts {
            lines: registry.counter(&PUSHED, &[to]),
            dropped: registry.counter(&PUSH_DROPPED, &[to]),
            failures: registry.counter(&PUSH_FAILURES, &[to]),
        }
    }
}

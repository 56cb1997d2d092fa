//! The handles for the choice of backends by the prefixes of prompts.
//!
//! `models` chooses; `telemetry::metrics` has the meaning of each metric.

use crate::metrics::{BACKEND_AFFINITY, PREFIXES_FORGOTTEN};
use crate::registry::{Counter, Registry};

/// How the backend of a prompt was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AffinityResult {
    /// A backend that has served a prefix of the prompt.
    Hit,
    /// The least loaded backend: those that have served a prefix have too much to do.
    OverBound,
    /// The least loaded backend: no usable one has served a prefix.
    Unknown,
}

/// The label value of every [`AffinityResult`], in the order of the enum.
const AFFINITY_LABELS: [&str; 3] = ["hit", "over_bound", "unknown"];

/// What is counted of the choice by prefixes.
#[derive(Debug)]
pub struct AffinityCounts {
    results: [Counter; AFFINITY_LABELS.len()],
    forgotten: Counter,
}

impl AffinityCounts {
    /// Makes the handles.
    pub fn new(registry: &Registry) -> AffinityCounts {
        AffinityCounts {
            results: AFFINITY_LABELS.map(|result| registry.counter(&BACKEND_AFFINITY, &[result])),
            forgotten: registry.counter(&PREFIXES_FORGOTTEN, &[]),
        }
    }

    /// Counts a choice, and the prefixes that were forgotten for it.
    pub fn record(&self, result: AffinityResult, forgotten: u64) {
        self.results(result).increment(1);
        self.forgotten.increment(forgotten);
    }

    /// The number of prompts with this result.
    pub fn results(&self, result: AffinityResult) -> &Counter {
        &self.results[result as usize]
    }
}

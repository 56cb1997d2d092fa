//! What the engine has served: totals for each tenant, and their course over time.

use std::collections::HashMap;

/// The service that one tenant has received so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantTally {
    pub requests: u64,
    pub finished: u64,
    /// Requests whose clients disconnected before the end.
    pub aborted: u64,
    /// Computed tokens of prompts. A token that is computed again after a preemption counts once.
    pub prompt: u64,
    /// Tokens of prompts that were in the prefix cache.
    pub cached: u64,
    /// Generated tokens.
    pub output: u64,
}

/// Totals at one time, in seconds since the engine began.
pub struct Sample {
    pub at: f64,
    pub running: usize,
    pub waiting: usize,
    pub tenants: Vec<TenantTally>,
}

/// The tenants by number and name, and how busy the engine was.
#[derive(Default)]
pub struct Tally {
    pub tenants: Vec<TenantTally>,
    pub names: Vec<String>,
    numbers: HashMap<String, usize>,
    pub timeline: Vec<Sample>,
    /// Steps that began later than planned by more than a tenth of a second.
    pub late_steps: u64,
    pub preemptions: u64,
    /// The largest number of tokens in the KV cache at one time.
    pub kv_peak: u64,
}

/// The largest number of entries of the timeline: half an hour at 20 ms.
const SAMPLES_MAX: usize = 90_000;

impl Tally {
    /// The number of a tenant. Tenants beyond a thousand share the last one.
    pub fn tenant(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        if self.tenants.len() >= 1_000 {
            return 999;
        }
        let number = self.tenants.len();
        self.tenants.push(TenantTally::default());
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    pub fn sample(&mut self, at: f64, running: usize, waiting: usize) {
        if self.timeline.len() < SAMPLES_MAX {
            let tenants = self.tenants.clone();
            self.timeline.push(Sample { at, running, waiting, tenants });
        }
    }
}

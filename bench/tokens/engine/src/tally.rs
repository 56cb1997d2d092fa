//! The statistics of the engine: totals for each tenant, their course over time, and latencies.

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

/// A cumulative histogram of seconds.
#[derive(Default)]
pub struct Histogram {
    counts: [u64; BOUNDS.len()],
    pub count: u64,
    pub sum: f64,
}

/// Upper bounds of the histograms, in seconds.
const BOUNDS: [f64; 14] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 40.96];

impl Histogram {
    pub fn observe(&mut self, seconds: f64) {
        self.count += 1;
        self.sum += seconds;
        for (bound, count) in BOUNDS.iter().zip(&mut self.counts) {
            *count += u64::from(seconds <= *bound);
        }
    }

    /// Each bound, with the number of values up to it.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        BOUNDS.into_iter().zip(self.counts)
    }
}

/// The tenants by number and name, and the totals of all of them.
#[derive(Default)]
pub struct Tally {
    pub tenants: Vec<TenantTally>,
    pub names: Vec<String>,
    numbers: HashMap<String, usize>,
    pub timeline: Vec<Sample>,
    pub steps: u64,
    /// Steps that began later than planned by more than a tenth of a second.
    pub late_steps: u64,
    pub preemptions: u64,
    /// The largest number of tokens in the KV cache at one time.
    pub kv_peak: u64,
    pub first_token: Histogram,
    pub whole: Histogram,
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

    pub fn total(&self) -> TenantTally {
        let mut all = TenantTally::default();
        for one in &self.tenants {
            all.requests += one.requests;
            all.finished += one.finished;
            all.aborted += one.aborted;
            all.prompt += one.prompt;
            all.cached += one.cached;
            all.output += one.output;
        }
        all
    }

    pub fn sample(&mut self, at: f64, running: usize, waiting: usize) {
        if self.timeline.len() < SAMPLES_MAX {
            let tenants = self.tenants.clone();
            self.timeline.push(Sample { at, running, waiting, tenants });
        }
    }
}

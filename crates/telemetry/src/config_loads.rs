//! How often a part of the configuration was read, and why the last reading was refused.
//!
//! There are two: the configuration file, and the rules of the rate limit service. Both are read
//! again when they change; with faults they are refused, and what was in force before stays.

use crate::metrics::Metric;
use crate::registry::{Counter, Registry};
use crate::snapshot::RefusedConfig;
use evenkeel_core::units::{SECOND, Time};
use parking_lot::Mutex;

/// The readings of one part of the configuration. The default counts what no output shows.
#[derive(Debug, Default)]
pub struct ConfigLoads {
    accepted: Counter,
    failed: Counter,
    refused: Mutex<Option<Refusal>>,
}

/// A refusal since the last reading that was accepted.
#[derive(Debug)]
struct Refusal {
    /// The first fault, with its place.
    fault: String,
    faults: usize,
    since: Time,
}

impl ConfigLoads {
    pub(crate) fn new(registry: &Registry, metric: &'static Metric) -> ConfigLoads {
        ConfigLoads {
            accepted: registry.counter(metric, &["ok"]),
            failed: registry.counter(metric, &["failed"]),
            refused: Mutex::default(),
        }
    }

    /// The file was read and is in force.
    pub fn accept(&self) {
        self.accepted.increment(1);
        *self.refused.lock() = None;
    }

    /// The file was refused because of `faults`, of which the first is `fault`. It is shown until a
    /// reading is accepted.
    pub fn refuse(&self, fault: &str, faults: usize, now: Time) {
        self.failed.increment(1);
        let mut refused = self.refused.lock();
        let since = refused.as_ref().map_or(now, |refused| refused.since);
        *refused = Some(Refusal { fault: fault.to_owned(), faults, since });
    }

    /// The number of readings that were accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.get()
    }

    /// The number of readings that were refused.
    pub fn failed(&self) -> u64 {
        self.failed.get()
    }

    /// What is on disk, if it is refused.
    pub fn refused(&self, now: Time) -> Option<RefusedConfig> {
        let refused = self.refused.lock();
        let Refusal { fault, faults, since } = refused.as_ref()?;
        Some(RefusedConfig {
            fault: fault.clone(),
            faults: *faults,
            since: since.0 as f64 / SECOND as f64,
            seconds: now.since(*since).as_secs_f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_its_first_time_until_a_reading_is_accepted() {
        let (loads, at) = (ConfigLoads::default(), |seconds| Time(seconds * SECOND));
        assert_eq!(loads.refused(at(1)), None);
        loads.refuse("a.yaml:1:2: x", 1, at(2));
        loads.refuse("a.yaml:3:4: y", 2, at(5));
        let told = loads.refused(at(8)).expect("refused");
        let seen = (&*told.fault, told.faults, told.since, told.seconds);
        assert_eq!(seen, ("a.yaml:3:4: y", 2, 2.0, 6.0));
        loads.accept();
        assert_eq!(loads.refused(at(9)), None);
        assert_eq!((loads.accepted(), loads.failed()), (1, 2));
    }
}

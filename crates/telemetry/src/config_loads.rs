//! Counts the loads of a part of the configuration, and keeps the reason of the last refusal.
//!
//! There are two parts: the configuration file, and the rules of the rate limit service. Each is
//! loaded again when it changes. If it has faults it is refused, and the previous one stays in
//! force, if there is one.

use crate::metrics::Metric;
use crate::registry::{Counter, Registry};
use crate::snapshot::RefusedConfig;
use evenkeel_core::units::{SECOND, Time};
use parking_lot::Mutex;

/// The loads of one part of the configuration. The default is in no registry.
#[derive(Debug, Default)]
pub struct ConfigLoads {
    accepted: Counter,
    failed: Counter,
    refused: Mutex<Option<Refusal>>,
}

/// A refusal since the last successful load.
#[derive(Debug)]
struct Refusal {
    /// The first fault, with its place.
    fault: String,
    faults: usize,
    meanwhile: &'static str,
    since: Time,
}

impl ConfigLoads {
    /// What applies after most refusals.
    pub const PREVIOUS_IN_FORCE: &str = "the previous one is in force";

    pub(crate) fn new(registry: &Registry, metric: &'static Metric) -> ConfigLoads {
        ConfigLoads {
            accepted: registry.counter(metric, &["ok"]),
            failed: registry.counter(metric, &["failed"]),
            refused: Mutex::default(),
        }
    }

    /// Counts a successful load.
    pub fn accept(&self) {
        self.accepted.increment(1);
        *self.refused.lock() = None;
    }

    /// Counts a refusal because of `faults` faults; `fault` is the first. It is shown until a load
    /// succeeds, with what applies until then.
    pub fn refuse(&self, fault: &str, faults: usize, meanwhile: &'static str, now: Time) {
        self.failed.increment(1);
        let mut refused = self.refused.lock();
        let since = refused.as_ref().map_or(now, |refused| refused.since);
        *refused = Some(Refusal { fault: fault.to_owned(), faults, meanwhile, since });
    }

    /// The number of successful loads.
    pub fn accepted(&self) -> u64 {
        self.accepted.get()
    }

    /// The number of refusals.
    pub fn failed(&self) -> u64 {
        self.failed.get()
    }

    /// The refusal, if the last load was refused.
    pub fn refused(&self, now: Time) -> Option<RefusedConfig> {
        let refused = self.refused.lock();
        let Refusal { fault, faults, meanwhile, since } = refused.as_ref()?;
        Some(RefusedConfig {
            fault: fault.clone(),
            faults: *faults,
            meanwhile: (*meanwhile).to_owned(),
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
        loads.refuse("a.yaml:1:2: x", 1, "nothing is", at(2));
        loads.refuse("a.yaml:3:4: y", 2, ConfigLoads::PREVIOUS_IN_FORCE, at(5));
        let told = loads.refused(at(8)).expect("refused");
        let seen = (&*told.fault, told.faults, &*told.meanwhile, told.since, told.seconds);
        assert_eq!(seen, ("a.yaml:3:4: y", 2, "the previous one is in force", 2.0, 6.0));
        loads.accept();
        assert_eq!(loads.refused(at(9)), None);
        assert_eq!((loads.accepted(), loads.failed()), (1, 2));
    }
}

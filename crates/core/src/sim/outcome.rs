//! What came of a simulation: one record per request, and figures over a stretch of them.
//!
//! Nothing is averaged while the simulation runs: every figure is computed from the records.

use crate::limiter::Limiter;
use crate::units::{Cost, Nanos, Time};
use alloc::vec::Vec;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The client got its answer.
    Answered,
    /// It was told to come again.
    Refused,
    /// It went away before the answer came.
    Aborted,
}

/// One request. Times count from the start of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it was sent.
    pub sent: Nanos,
    /// When the client had its answer or went away.
    pub ended: Nanos,
    /// For how long it was held or delayed on purpose.
    pub waited: Nanos,
    /// The CPU time that the backend spent on it.
    pub used: Nanos,
    /// What it was charged.
    pub charged: Cost,
    /// How it ended.
    pub fate: Fate,
}

/// What came of a whole simulation.
pub struct Outcome {
    /// The requests of each client, as they ended, in the order of the scene's clients.
    pub clients: Vec<Vec<Record>>,
    /// All that was charged.
    pub charged: Cost,
    /// What the virtual clock says must have been charged: the integral of min(n, C).
    pub metered: Cost,
    /// All CPU time that the backend has spent.
    pub used: Cost,
    /// When the last request was over.
    pub end: Time,
    /// The limits as they stand then.
    pub limiter: Limiter,
}

/// Figures over some requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// How many got their answer.
    pub answered: usize,
    /// How many were refused.
    pub refused: usize,
    /// How many went away.
    pub aborted: usize,
    /// Answers per second.
    pub rate: f64,
    /// CPU-seconds per second spent on them.
    pub cpu: f64,
    /// The mean of what answered requests were held or delayed.
    pub mean_wait: Nanos,
    /// From request to answer, in ascending order.
    latencies: Vec<Nanos>,
}

impl Outcome {
    /// Figures of one client over the requests that ended from `from` until `until`, both since
    /// the start.
    #[must_use]
    pub fn figures(&self, client: usize, from: Nanos, until: Nanos) -> Figures {
        let records = self.clients.get(client).map(Vec::as_slice).unwrap_or_default();
        let records: Vec<&Record> =
            records.iter().filter(|one| (from..until).contains(&one.ended)).collect();
        Figures::of(&records, until.minus(from).as_secs_f64())
    }
}

impl Figures {
    fn of(records: &[&Record], seconds: f64) -> Figures {
        let count = |fate| records.iter().filter(|one| one.fate == fate).count();
        let answered = || records.iter().filter(|one| one.fate == Fate::Answered);
        let mut latencies: Vec<Nanos> = answered().map(|one| one.ended.minus(one.sent)).collect();
        latencies.sort_unstable();
        let waited: u64 = answered().map(|one| one.waited.0).sum();
        let used: f64 = records.iter().map(|one| one.used.as_secs_f64()).sum();
        Figures {
            answered: latencies.len(),
            refused: count(Fate::Refused),
            aborted: count(Fate::Aborted),
            rate: latencies.len() as f64 / seconds,
            cpu: used / seconds,
            mean_wait: Nanos(waited / latencies.len().max(1) as u64),
            latencies,
        }
    }

    /// The time within which `percent` of the answers came: 50 for the median; zero if none came.
    #[must_use]
    pub fn latency(&self, percent: f64) -> Nanos {
        let last = self.latencies.len().saturating_sub(1);
        let rank = (percent / 100.0 * self.latencies.len() as f64) as usize;
        self.latencies.get(rank.min(last)).copied().unwrap_or_default()
    }

    /// From request to answer, on average.
    #[must_use]
    pub fn mean_latency(&self) -> Nanos {
        let sum: u64 = self.latencies.iter().map(|one| one.0).sum();
        Nanos(sum / self.latencies.len().max(1) as u64)
    }
}

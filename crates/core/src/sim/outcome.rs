//! The result of a simulation: one record for each request, and metrics over a time range.
//!
//! No averages are kept while the simulation runs: all metrics are calculated from the records.

use crate::limiter::Limiter;
use crate::units::{Cost, Nanos, Time};
use alloc::vec::Vec;

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimRequestEnd {
    /// The client received its response.
    Answered,
    /// The request was refused.
    Refused,
    /// The client disconnected before the response.
    Aborted,
    /// The client got a waiting page, and did not come back.
    SentAway,
}

/// One request. All times are since the start of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimRecord {
    /// Time at which the client sent it. Before it was served it may have got waiting pages.
    pub sent: Nanos,
    /// Time at which the client received the response or refusal, or disconnected.
    pub ended: Nanos,
    /// Total time for which it was delayed, queued or held.
    pub waited: Nanos,
    /// CPU time that the backend spent on it.
    pub used: Nanos,
    /// Cost that was expected when it arrived; zero without a queue, or if it was refused.
    pub estimate: Cost,
    /// Cost that it was charged.
    pub charged: Cost,
    /// The end of the request.
    pub fate: SimRequestEnd,
    /// The number of the page of its visitor, from 1; 0 if the client is no browser.
    pub page: u32,
}

/// The result of a whole simulation.
pub struct SimOutcome {
    /// The requests of each client in the order of their ends; clients are in the order of the
    /// scene.
    pub clients: Vec<Vec<SimRecord>>,
    /// Total of all charges.
    pub charged: Cost,
    /// Total charge according to the virtual clock: the integral of min(n, C).
    pub metered: Cost,
    /// Total CPU time that the backend has spent.
    pub used: Cost,
    /// Time at which the last request ended.
    pub end: Time,
    /// The limiter in its final state.
    pub limiter: Limiter,
}

/// Metrics over a selection of requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimMetrics {
    /// Number of requests with a response.
    pub answered: usize,
    /// Number of refused requests.
    pub refused: usize,
    /// Number of requests that ended because the client disconnected.
    pub aborted: usize,
    /// Responses per second.
    pub rate: f64,
    /// CPU-seconds per second that the backend spent on these requests.
    pub cpu: f64,
    /// Mean time for which answered requests were delayed, queued or held.
    pub mean_wait: Nanos,
    /// Times from request to response, in ascending order.
    latencies: Vec<Nanos>,
}

impl SimOutcome {
    /// Metrics of one client over the requests that ended from `from` until `until`, both since the
    /// start of the simulation.
    #[must_use]
    pub fn figures(&self, client: usize, from: Nanos, until: Nanos) -> SimMetrics {
        let records = self.clients.get(client).map(Vec::as_slice).unwrap_or_default();
        let records: Vec<&SimRecord> =
            records.iter().filter(|one| (from..until).contains(&one.ended)).collect();
        SimMetrics::of(&records, until.minus(from).as_secs_f64())
    }
}

impl SimMetrics {
    fn of(records: &[&SimRecord], seconds: f64) -> SimMetrics {
        let count = |fate| records.iter().filter(|one| one.fate == fate).count();
        let answered = || records.iter().filter(|one| one.fate == SimRequestEnd::Answered);
        let mut latencies: Vec<Nanos> = answered().map(|one| one.ended.minus(one.sent)).collect();
        latencies.sort_unstable();
        let waited: u64 = answered().map(|one| one.waited.0).sum();
        let used: f64 = records.iter().map(|one| one.used.as_secs_f64()).sum();
        SimMetrics {
            answered: latencies.len(),
            refused: count(SimRequestEnd::Refused),
            aborted: count(SimRequestEnd::Aborted),
            rate: latencies.len() as f64 / seconds,
            cpu: used / seconds,
            mean_wait: Nanos(waited / latencies.len().max(1) as u64),
            latencies,
        }
    }

    /// Time within which `percent` of the responses arrived: 50 for the median; zero without
    /// responses.
    #[must_use]
    pub fn latency(&self, percent: f64) -> Nanos {
        let last = self.latencies.len().saturating_sub(1);
        let rank = (percent / 100.0 * self.latencies.len() as f64) as usize;
        self.latencies.get(rank.min(last)).copied().unwrap_or_default()
    }
}

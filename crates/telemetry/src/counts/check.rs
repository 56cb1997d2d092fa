//! The handles with which the check door counts.
//!
//! `telemetry::metrics` has the meaning of each metric; `ask/check` decides when each is counted.

use super::ConnectionCounts;
use crate::metrics::{
    BAD_REQUESTS, CHECK_CROWDED, CHECK_GONE, CHECK_OPEN, CHECK_REPORTS, CHECK_UNREPORTED,
    CHECK_WAITING, REQUESTS,
};
use crate::registry::{Counter, Gauge, Registry};

/// The result of a report to the check door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportResult {
    /// The report settled a pass.
    Settled,
    /// The pass of the report is settled already, or never existed.
    Unknown,
    /// The report gives no credible cost of the request.
    Faulty,
    /// The report is about a request for which the check door was never asked.
    Unasked,
}

/// The label value of every [`ReportResult`], in the order of the enum.
const REPORT_RESULT_LABELS: [&str; 4] = ["settled", "unknown", "faulty", "unasked"];

/// Everything that the check door counts.
#[derive(Debug)]
pub struct CheckCounts {
    /// Requests received: questions and reports.
    pub requests: Counter,
    /// Connections.
    pub connections: ConnectionCounts,
    /// Requests that were not valid HTTP.
    pub bad_requests: Counter,
    /// Questions that wait for a delayed answer now.
    pub waiting: Gauge,
    /// Questions whose front disconnected before the delayed answer.
    pub gone: Counter,
    /// Passes that wait for their report now.
    pub open: Gauge,
    /// Reports, by [`ReportResult`].
    pub reports: [Counter; REPORT_RESULT_LABELS.len()],
    /// Passes that were settled because no report came in time.
    pub unreported: Counter,
    /// Questions refused because too many were waiting.
    pub crowded_waiting: Counter,
    /// Passes that were settled early because too many were open.
    pub crowded_open: Counter,
}

impl CheckCounts {
    /// Makes the handles of the check door.
    pub fn new(registry: &Registry) -> CheckCounts {
        CheckCounts {
            requests: registry.counter(&REQUESTS, &["check"]),
            connections: ConnectionCounts::new(registry, "check"),
            bad_requests: registry.counter(&BAD_REQUESTS, &["check"]),
            waiting: registry.gauge(&CHECK_WAITING, &[]),
            gone: registry.counter(&CHECK_GONE, &[]),
            open: registry.gauge(&CHECK_OPEN, &[]),
            reports: REPORT_RESULT_LABELS.map(|result| registry.counter(&CHECK_REPORTS, &[result])),
            unreported: registry.counter(&CHECK_UNREPORTED, &[]),
            crowded_waiting: registry.counter(&CHECK_CROWDED, &["waiting"]),
            crowded_open: registry.counter(&CHECK_CROWDED, &["open"]),
        }
    }
}

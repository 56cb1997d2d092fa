//! The handles that the check door counts with.
//!
//! What each means: `watch::metrics`. What is counted when: `doors/check`.

use crate::watch::metrics::{
    ACCEPTED, BAD_REQUESTS, CHECK_CROWDED, CHECK_GONE, CHECK_OPEN, CHECK_REPORTS, CHECK_UNREPORTED,
    CHECK_WAITING, CONNECTIONS, REQUESTS, SHED,
};
use crate::watch::registry::{Counter, Gauge, Registry};

/// What became of a report to the check door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportResult {
    /// It settled a pass.
    Settled,
    /// Its pass is settled already, or never was.
    Unknown,
    /// It says nothing that can be believed of what the request took.
    Faulty,
    /// It is of a request that nobody asked about.
    Unasked,
}

/// Every [`ReportResult`], in its order.
const REPORT_RESULTS: [&str; 4] = ["settled", "unknown", "faulty", "unasked"];

/// Everything that the check door counts itself.
#[derive(Debug)]
pub struct CheckCounts {
    /// Requests that came in: questions and reports.
    pub requests: Counter,
    /// Connections open.
    pub connections: Gauge,
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections closed at once because as many as allowed were open.
    pub shed: Counter,
    /// What was no proper HTTP.
    pub bad_requests: Counter,
    /// Questions that are answered late, now.
    pub waiting: Gauge,
    /// Those whose front went away meanwhile.
    pub gone: Counter,
    /// Passes that wait for their report, now.
    pub open: Gauge,
    /// Reports, by [`ReportResult`].
    pub reports: [Counter; REPORT_RESULTS.len()],
    /// Passes that settled because nothing was told in time.
    pub unreported: Counter,
    /// Questions refused because too many waited.
    pub crowded_waiting: Counter,
    /// Passes that settled early because too many were open.
    pub crowded_open: Counter,
}

impl CheckCounts {
    /// Handles of the check door.
    #[must_use]
    pub fn new(registry: &Registry) -> CheckCounts {
        CheckCounts {
            requests: registry.counter(&REQUESTS, &["check"]),
            connections: registry.gauge(&CONNECTIONS, &["check"]),
            accepted: registry.counter(&ACCEPTED, &["check"]),
            shed: registry.counter(&SHED, &["check"]),
            bad_requests: registry.counter(&BAD_REQUESTS, &["check"]),
            waiting: registry.gauge(&CHECK_WAITING, &[]),
            gone: registry.counter(&CHECK_GONE, &[]),
            open: registry.gauge(&CHECK_OPEN, &[]),
            reports: REPORT_RESULTS.map(|result| registry.counter(&CHECK_REPORTS, &[result])),
            unreported: registry.counter(&CHECK_UNREPORTED, &[]),
            crowded_waiting: registry.counter(&CHECK_CROWDED, &["waiting"]),
            crowded_open: registry.counter(&CHECK_CROWDED, &["open"]),
        }
    }
}

//! The handles with which doors count.
//!
//! All handles are made at the start. So every series exists from the first scrape on, with the
//! value zero, and the path of a request searches no registry. The meaning of each metric is in
//! `metrics`.

pub mod affinity;
pub mod check;
pub mod gatekeeper;
pub mod heartbeats;
pub mod hosts;
pub mod master;
pub mod models;
pub mod peers;
pub mod robots;
pub mod store;
pub mod tiers;

use super::metrics::{
    ABORTED, ACCEPTED, ADMIN_REFUSED, BACKEND_CONNECTIONS, BACKEND_FAILURES, BAD_REQUESTS,
    CONNECTIONS, HEADS_REFUSED, REQUESTS, RESPONSES, RESTING, SHED, STATE_BYTES, STATE_KEYS,
    STATE_RESTORED, STATE_TOOK, STATE_WRITES, STATE_WRITTEN, TURNED_AWAY,
};
use super::registry::{Counter, Gauge, GaugeGuard, Registry};
use affinity::AffinityCounts;
use evenkeel_core::units::Time;
use std::time::Duration;

/// The ways in which the backend can fail a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendFault {
    /// The name of the backend could not be resolved.
    Resolve,
    /// The backend refused the connection.
    Connect,
    /// The TLS handshake failed, or the certificate of the backend is not trusted.
    Tls,
    /// The backend did not accept the connection in time.
    ConnectTimeout,
    /// The backend did not begin its answer in time.
    AnswerTimeout,
    /// The backend paused for too long within its answer, or stopped reading the request.
    Idle,
    /// The backend closed the connection before its answer was complete.
    Closed,
    /// The backend sent something that is not HTTP.
    Protocol,
}

/// The label value of every [`BackendFault`], in the order of the enum.
const BACKEND_FAULT_LABELS: [&str; 8] = [
    "resolve",
    "connect",
    "tls",
    "connect_timeout",
    "answer_timeout",
    "idle",
    "closed",
    "protocol",
];

impl BackendFault {
    /// The value of the label in metrics and of the field in logs.
    pub const fn name(self) -> &'static str {
        BACKEND_FAULT_LABELS[self as usize]
    }
}

/// Why the proxy closed a connection that it had accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionRefusal {
    /// The address of the client already has the maximum number of connections.
    Address,
    /// The TLS handshake failed.
    Tls,
    /// The client reset half of its HTTP/2 streams or more, beyond a minimum number.
    Resets,
    /// The connection did not begin with the PROXY protocol header that is required of it.
    Preface,
}

/// The label value of every [`ConnectionRefusal`], in the order of the enum.
const REFUSAL_LABELS: [&str; 4] = ["address", "tls", "resets", "preface"];

/// Which program made an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseOrigin {
    /// The backend made it.
    Backend,
    /// Evenkeel made it: a refusal or an error page.
    Evenkeel,
}

const STATUS_CLASSES: [&str; 6] = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// The connections of a door.
#[derive(Debug)]
pub struct ConnectionCounts {
    /// Connections open; hold a [`Gauge::hold`] for the lifetime of the connection.
    pub open: Gauge,
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections closed because the maximum number was open: the new one, the one that has been
    /// silent longest, or one with a request that still waits for bytes of its client.
    pub shed: Counter,
}

impl ConnectionCounts {
    /// Makes the handles of the door called `door`.
    pub fn new(registry: &Registry, door: &str) -> ConnectionCounts {
        ConnectionCounts {
            open: registry.gauge(&CONNECTIONS, &[door]),
            accepted: registry.counter(&ACCEPTED, &[door]),
            shed: registry.counter(&SHED, &[door]),
        }
    }

    /// Counts a connection as accepted, and as open until the result is dropped.
    #[must_use]
    pub fn accept(&self) -> GaugeGuard {
        self.accepted.increment(1);
        self.open.hold()
    }
}

/// Everything that the proxy counts.
#[derive(Debug)]
pub struct ProxyCounts {
    /// Requests received.
    pub requests: Counter,
    /// Connections of clients.
    pub connections: ConnectionCounts,
    /// Idle client connections that have released their buffers; hold a [`Gauge::hold`] for that
    /// time.
    pub resting: Gauge,
    /// Requests that were not valid HTTP, arrived too slowly or exceeded a bound.
    pub bad_requests: Counter,
    /// Connections to the backend; hold a [`Gauge::hold`] for the lifetime of the connection.
    pub backend_connections: Gauge,
    /// Requests whose client disconnected before the answer was complete.
    pub aborted: Counter,
    /// HTTP/2 streams refused because the heads of all streams used up the memory for them.
    pub heads_refused: Counter,
    /// The choice of backends by the prefixes of prompts.
    pub affinity: AffinityCounts,
    turned: [Counter; REFUSAL_LABELS.len()],
    responses: [[Counter; STATUS_CLASSES.len()]; 2],
    failures: [Counter; BACKEND_FAULT_LABELS.len()],
}

impl ProxyCounts {
    /// Makes the handles of the door called `door`.
    pub fn new(registry: &Registry, door: &str) -> ProxyCounts {
        let responses =
            |maker: &str| STATUS_CLASSES.map(|class| registry.counter(&RESPONSES, &[class, maker]));
        ProxyCounts {
            requests: registry.counter(&REQUESTS, &[door]),
            connections: ConnectionCounts::new(registry, door),
            resting: registry.gauge(&RESTING, &[door]),
            bad_requests: registry.counter(&BAD_REQUESTS, &[door]),
            backend_connections: registry.gauge(&BACKEND_CONNECTIONS, &[]),
            aborted: registry.counter(&ABORTED, &[]),
            heads_refused: registry.counter(&HEADS_REFUSED, &[]),
            affinity: AffinityCounts::new(registry),
            turned: REFUSAL_LABELS.map(|why| registry.counter(&TURNED_AWAY, &[door, why])),
            responses: [responses("backend"), responses("evenkeel")],
            failures: BACKEND_FAULT_LABELS.map(|kind| registry.counter(&BACKEND_FAILURES, &[kind])),
        }
    }

    /// The number of connections closed for the reason `why`.
    pub fn refused_connections(&self, why: ConnectionRefusal) -> &Counter {
        &self.turned[why as usize]
    }

    /// Counts an answer with this status.
    pub fn record_response(&self, status: u16, maker: ResponseOrigin) {
        let class = usize::from(status / 100);
        let class = if class < STATUS_CLASSES.len() { class } else { 0 };
        self.responses[maker as usize][class].increment(1);
    }

    /// Counts a request that the backend failed.
    pub fn failed(&self, fault: BackendFault) {
        self.failures(fault).increment(1);
    }

    /// The number of requests that the backend has failed so far, over all faults.
    pub fn failed_so_far(&self) -> u64 {
        self.failures.iter().map(Counter::get).sum()
    }

    /// The number of requests that the backend failed with this fault.
    pub fn failures(&self, fault: BackendFault) -> &Counter {
        &self.failures[fault as usize]
    }
}

/// Everything that the line door counts for one of its protocols.
#[derive(Debug)]
pub struct LineDoorCounts {
    /// Connections.
    pub connections: ConnectionCounts,
    requests: Counter,
    bad_requests: Counter,
}

impl LineDoorCounts {
    /// Makes the handles of the door called `door`.
    pub fn new(registry: &Registry, door: &str) -> LineDoorCounts {
        LineDoorCounts {
            connections: ConnectionCounts::new(registry, door),
            requests: registry.counter(&REQUESTS, &[door]),
            bad_requests: registry.counter(&BAD_REQUESTS, &[door]),
        }
    }

    /// Counts `requests` questions, of which `faults` were malformed.
    pub fn record_questions(&self, requests: u64, faults: u64) {
        self.requests.increment(requests);
        if faults > 0 {
            self.bad_requests.increment(faults);
        }
    }
}

/// Everything that the admin door counts.
#[derive(Debug)]
pub struct AdminCounts {
    /// Requests received.
    pub requests: Counter,
    /// Connections.
    pub connections: ConnectionCounts,
    /// Requests refused, by reason in the order of [`ADMIN_REFUSALS`].
    pub refused: [Counter; ADMIN_REFUSALS.len()],
}

/// The reasons for which the admin door refuses requests, as label values.
pub const ADMIN_REFUSALS: [&str; 6] = ["method", "body", "host_count", "host", "origin", "token"];

impl AdminCounts {
    /// Makes the handles of the admin door.
    pub fn new(registry: &Registry) -> AdminCounts {
        AdminCounts {
            requests: registry.counter(&REQUESTS, &["admin"]),
            connections: ConnectionCounts::new(registry, "admin"),
            refused: ADMIN_REFUSALS.map(|why| registry.counter(&ADMIN_REFUSED, &[why])),
        }
    }
}

/// Everything that is counted about snapshots of the state.
#[derive(Debug)]
pub struct StateCounts {
    /// Snapshots that could not be written.
    pub failed: Counter,
    ok: Counter,
    begun: Gauge,
    took: Gauge,
    keys: Gauge,
    bytes: Gauge,
    restored: Gauge,
}

impl StateCounts {
    /// Makes the handles. Call it only if there is a file to write to.
    pub fn new(registry: &Registry) -> StateCounts {
        StateCounts {
            failed: registry.counter(&STATE_WRITES, &["failed"]),
            ok: registry.counter(&STATE_WRITES, &["ok"]),
            begun: registry.gauge(&STATE_WRITTEN, &[]),
            took: registry.gauge(&STATE_TOOK, &[]),
            keys: registry.gauge(&STATE_KEYS, &[]),
            bytes: registry.gauge(&STATE_BYTES, &[]),
            restored: registry.gauge(&STATE_RESTORED, &[]),
        }
    }

    /// Records that a snapshot begun at `at` is complete on the disk.
    pub fn record_written(&self, at: Time, keys: u64, bytes: u64) {
        self.ok.increment(1);
        self.begun.set(signed(at.second()));
        self.keys.set(signed(keys));
        self.bytes.set(signed(bytes));
    }

    /// Records how long the last attempt to write took, whether it succeeded or failed.
    pub fn record_write_time(&self, length: Duration) {
        self.took.set(i64::try_from(length.as_millis()).unwrap_or(i64::MAX));
    }

    /// Records that `keys` keys were restored from a snapshot at the start.
    pub fn record_restored(&self, keys: u64) {
        self.restored.set(signed(keys));
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_failures_are_counted_where_they_belong() {
        let registry = Registry::default();
        let counts = ProxyCounts::new(&registry, "proxy");
        counts.record_response(204, ResponseOrigin::Backend);
        counts.record_response(503, ResponseOrigin::Evenkeel);
        counts.record_response(999, ResponseOrigin::Backend);
        counts.record_response(42, ResponseOrigin::Backend);
        use BackendFault::*;
        let faults = [Resolve, Connect, Tls, ConnectTimeout, AnswerTimeout, Idle, Closed, Protocol];
        for fault in faults {
            counts.failed(fault);
            assert_eq!(registry.counter(&BACKEND_FAILURES, &[fault.name()]).get(), 1);
        }
        assert_eq!(registry.counter(&RESPONSES, &["2xx", "backend"]).get(), 1);
        assert_eq!(registry.counter(&RESPONSES, &["5xx", "evenkeel"]).get(), 1);
        assert_eq!(registry.counter(&RESPONSES, &["other", "backend"]).get(), 2);
    }
}

//! The handles that doors count with.
//!
//! All are made at the start, so every series is there from the first scrape, at zero, and the
//! path of a request looks nothing up. What each means: `metrics`.

pub mod beats;
pub mod check;
pub mod gatekeeper;
pub mod hosts;
pub mod master;
pub mod peers;
pub mod store;
pub mod tiers;

use super::metrics::{
    ABORTED, ACCEPTED, ADMIN_REFUSED, BACKEND_CONNECTIONS, BACKEND_FAILURES, BAD_REQUESTS,
    CONNECTIONS, HEADS_REFUSED, REQUESTS, RESPONSES, RESTING, SHED, STATE_BYTES, STATE_KEYS,
    STATE_RESTORED, STATE_TOOK, STATE_WRITES, STATE_WRITTEN, TURNED_AWAY,
};
use super::registry::{Counter, Gauge, Registry};
use evenkeel_core::units::Time;
use std::time::Duration;

/// How the backend failed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendFault {
    /// Its name could not be resolved.
    Resolve,
    /// It refused the connection.
    Connect,
    /// TLS could not be agreed on, or its certificate is not believed.
    Tls,
    /// It did not take the connection in time.
    ConnectTimeout,
    /// It did not begin its answer in time.
    AnswerTimeout,
    /// It fell silent within its answer, or stopped taking the request.
    Idle,
    /// It closed the connection before its answer was complete.
    Closed,
    /// What it sent was not HTTP.
    Protocol,
}

/// Every [`BackendFault`], in its order.
const FAULTS: [BackendFault; 8] = [
    BackendFault::Resolve,
    BackendFault::Connect,
    BackendFault::Tls,
    BackendFault::ConnectTimeout,
    BackendFault::AnswerTimeout,
    BackendFault::Idle,
    BackendFault::Closed,
    BackendFault::Protocol,
];

impl BackendFault {
    /// As it is written in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            BackendFault::Resolve => "resolve",
            BackendFault::Connect => "connect",
            BackendFault::Tls => "tls",
            BackendFault::ConnectTimeout => "connect_timeout",
            BackendFault::AnswerTimeout => "answer_timeout",
            BackendFault::Idle => "idle",
            BackendFault::Closed => "closed",
            BackendFault::Protocol => "protocol",
        }
    }
}

/// Why a connection was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// Its address has as many as it may have.
    Address,
    /// TLS could not be agreed on.
    Tls,
    /// Its client took back most of what it asked for.
    Resets,
    /// It did not begin with a PROXY protocol header, as it must.
    Preface,
}

/// Every [`Turned`], in its order, as it is written.
const TURNED: [&str; 4] = ["address", "tls", "resets", "preface"];

/// Who made an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// The backend.
    Backend,
    /// Evenkeel itself: refusals and faults.
    Evenkeel,
}

const CLASSES: [&str; 6] = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Everything that the proxy counts itself.
#[derive(Debug)]
pub struct ProxyCounts {
    /// Requests that came in.
    pub requests: Counter,
    /// Client connections open; keep [`Gauge::hold`] as long as the connection.
    pub connections: Gauge,
    /// Those of them that have given back their buffers; keep [`Gauge::hold`] as long.
    pub resting: Gauge,
    /// Client connections accepted.
    pub accepted: Counter,
    /// Idle client connections closed to make room, because as many as allowed were open.
    pub shed: Counter,
    /// Requests that were not proper HTTP, came too slowly or were beyond a bound.
    pub bad_requests: Counter,
    /// Connections to the backend; keep [`Gauge::hold`] as long as the connection.
    pub backend_connections: Gauge,
    /// Requests whose client went away before the answer was complete.
    pub aborted: Counter,
    /// Streams of HTTP/2 whose head found no room.
    pub heads_refused: Counter,
    turned: [Counter; TURNED.len()],
    responses: [[Counter; CLASSES.len()]; 2],
    failures: [Counter; FAULTS.len()],
}

impl ProxyCounts {
    /// Handles of the door called `door`.
    #[must_use]
    pub fn new(registry: &Registry, door: &str) -> ProxyCounts {
        let responses =
            |maker: &str| CLASSES.map(|class| registry.counter(&RESPONSES, &[class, maker]));
        ProxyCounts {
            requests: registry.counter(&REQUESTS, &[door]),
            connections: registry.gauge(&CONNECTIONS, &[door]),
            resting: registry.gauge(&RESTING, &[door]),
            accepted: registry.counter(&ACCEPTED, &[door]),
            shed: registry.counter(&SHED, &[door]),
            bad_requests: registry.counter(&BAD_REQUESTS, &[door]),
            backend_connections: registry.gauge(&BACKEND_CONNECTIONS, &[]),
            aborted: registry.counter(&ABORTED, &[]),
            heads_refused: registry.counter(&HEADS_REFUSED, &[]),
            turned: TURNED.map(|why| registry.counter(&TURNED_AWAY, &[door, why])),
            responses: [responses("backend"), responses("evenkeel")],
            failures: FAULTS.map(|fault| registry.counter(&BACKEND_FAILURES, &[fault.name()])),
        }
    }

    /// Connections that were closed for it.
    #[must_use]
    pub fn turned(&self, why: Turned) -> &Counter {
        &self.turned[why as usize]
    }

    /// An answer with this status was sent.
    pub fn responded(&self, status: u16, maker: Maker) {
        let class = usize::from(status / 100);
        let class = if class < CLASSES.len() { class } else { 0 };
        self.responses[maker as usize][class].increment(1);
    }

    /// The backend failed a request.
    pub fn failed(&self, fault: BackendFault) {
        self.failures(fault).increment(1);
    }

    /// Requests that the backend failed so far, in whatever way.
    #[must_use]
    pub fn failed_so_far(&self) -> u64 {
        self.failures.iter().map(Counter::get).sum()
    }

    /// Requests that the backend failed in this way.
    #[must_use]
    pub fn failures(&self, fault: BackendFault) -> &Counter {
        &self.failures[fault as usize]
    }
}

/// Everything that a door of plain streams counts itself.
#[derive(Debug)]
pub struct StreamCounts {
    /// Connections open; keep [`Gauge::hold`] as long as the connection.
    pub connections: Gauge,
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections closed to make room: the longest silent.
    pub shed: Counter,
    requests: Counter,
    bad_requests: Counter,
}

impl StreamCounts {
    /// Handles of the door called `door`.
    #[must_use]
    pub fn new(registry: &Registry, door: &str) -> StreamCounts {
        StreamCounts {
            connections: registry.gauge(&CONNECTIONS, &[door]),
            accepted: registry.counter(&ACCEPTED, &[door]),
            shed: registry.counter(&SHED, &[door]),
            requests: registry.counter(&REQUESTS, &[door]),
            bad_requests: registry.counter(&BAD_REQUESTS, &[door]),
        }
    }

    /// So many questions came, and so many of them were not proper.
    pub fn asked(&self, requests: u64, faults: u64) {
        self.requests.increment(requests);
        if faults > 0 {
            self.bad_requests.increment(faults);
        }
    }
}

/// Everything that the admin door counts itself.
#[derive(Debug)]
pub struct AdminCounts {
    /// Requests that came in.
    pub requests: Counter,
    /// Connections open.
    pub connections: Gauge,
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections closed at once because as many as allowed were open.
    pub shed: Counter,
    /// Requests refused, by reason in the order of [`REFUSALS`].
    pub refused: [Counter; REFUSALS.len()],
}

/// Why the admin door refuses requests.
pub const REFUSALS: [&str; 6] = ["method", "body", "host_count", "host", "origin", "token"];

impl AdminCounts {
    /// Handles of the admin door.
    #[must_use]
    pub fn new(registry: &Registry) -> AdminCounts {
        AdminCounts {
            requests: registry.counter(&REQUESTS, &["admin"]),
            connections: registry.gauge(&CONNECTIONS, &["admin"]),
            accepted: registry.counter(&ACCEPTED, &["admin"]),
            shed: registry.counter(&SHED, &["admin"]),
            refused: REFUSALS.map(|why| registry.counter(&ADMIN_REFUSED, &[why])),
        }
    }
}

/// Everything that is counted about snapshots.
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
    /// The handles; made where there is a file to write to.
    #[must_use]
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

    /// A snapshot that was begun at `at` is on the disk.
    pub fn written(&self, at: Time, keys: u64, bytes: u64) {
        self.ok.increment(1);
        self.begun.set(signed(at.second()));
        self.keys.set(signed(keys));
        self.bytes.set(signed(bytes));
    }

    /// To write it, or to fail at it, took so long.
    pub fn took(&self, length: Duration) {
        self.took.set(i64::try_from(length.as_millis()).unwrap_or(i64::MAX));
    }

    /// So many keys were taken over at the start.
    pub fn restored(&self, keys: u64) {
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
        counts.responded(204, Maker::Backend);
        counts.responded(503, Maker::Evenkeel);
        counts.responded(999, Maker::Backend);
        counts.responded(42, Maker::Backend);
        for fault in FAULTS {
            counts.failed(fault);
            assert_eq!(registry.counter(&BACKEND_FAILURES, &[fault.name()]).get(), 1);
        }
        assert_eq!(registry.counter(&RESPONSES, &["2xx", "backend"]).get(), 1);
        assert_eq!(registry.counter(&RESPONSES, &["5xx", "evenkeel"]).get(), 1);
        assert_eq!(registry.counter(&RESPONSES, &["other", "backend"]).get(), 2);
    }
}

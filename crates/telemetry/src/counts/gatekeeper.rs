//! The handles with which a gatekeeper counts.
//!
//! `telemetry::metrics` has the meaning of each metric. `engine::domains::gatekeeper` counts
//! requests; `ask/zeromq/gatekeeper` counts messages to and from the master.
//! `telemetry::snapshot::zeromq` has the status that is made of them.

use crate::metrics::{
    GATEKEEPER_CONNECTED, GATEKEEPER_HELD, GATEKEEPER_IDENTIFIERS, GATEKEEPER_MESSAGES,
    GATEKEEPER_ORDERS, GATEKEEPER_REQUESTS,
};
use crate::registry::{Counter, Gauge, GaugeGuard, Registry};
use crate::snapshot::zeromq;
use evenkeel_core::units::Time;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a gatekeeper does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatekeeperVerdict {
    /// The request runs at once.
    Accepted,
    /// The request is held first and runs then.
    Delayed,
    /// The request is refused because it would have to wait for too long.
    Rejected,
    /// The request is refused because it would have to wait and no waiting place is free.
    Crowded,
}

/// The label value of every [`GatekeeperVerdict`], in the order of the enum.
const VERDICT_LABELS: [&str; 4] = ["accepted", "delayed", "rejected", "crowded"];

/// Everything that a gatekeeper counts.
#[derive(Debug)]
pub struct GatekeeperCounts {
    /// The connections to the master: the accounting socket, to which requests are reported, and
    /// the control socket, from which orders come.
    pub sockets: [MasterSocketCounts; 2],
    /// Requests that are held now.
    pub held: Gauge,
    /// Identifiers that have to wait now, as of the last second.
    pub identifiers: Gauge,
    /// Messages written to the master.
    pub sent: Counter,
    /// Messages dropped because the master was unreachable.
    pub away: Counter,
    /// Messages dropped because the queue to the master was full.
    pub full: Counter,
    /// Messages of the master that are not valid orders.
    pub faulty: Counter,
    taken: Counter,
    /// When the last order was accepted; zero if there was none.
    ordered: AtomicU64,
    requests: [Counter; VERDICT_LABELS.len()],
    domain: String,
}

/// One connection to the master, with its gauge and its status.
#[derive(Debug)]
pub struct MasterSocketCounts {
    connected: Gauge,
    standing: Mutex<MasterSocketStatus>,
    at: String,
}

/// The current status of a connection.
#[derive(Debug, Default)]
struct MasterSocketStatus {
    connected: bool,
    /// The time of the last change; `None` if no connection was tried yet.
    since: Option<Time>,
    why: String,
}

impl MasterSocketCounts {
    /// Marks the connection as established until the returned value is dropped.
    #[must_use]
    pub fn hold(&self, now: Time) -> GaugeGuard {
        *self.standing.lock() =
            MasterSocketStatus { connected: true, since: Some(now), why: String::new() };
        self.connected.hold()
    }

    /// Marks the connection as unreachable or unusable, for the reason `why`.
    pub fn mark_unreachable(&self, why: impl fmt::Display, now: Time) {
        let mut standing = self.standing.lock();
        let since = standing.since.filter(|_| !standing.connected).or(Some(now));
        *standing = MasterSocketStatus { connected: false, since, why: why.to_string() };
    }

    fn status(&self, now: Time) -> zeromq::SocketSnapshot {
        let standing = self.standing.lock();
        zeromq::SocketSnapshot {
            address: self.at.clone(),
            connected: standing.connected,
            seconds: standing.since.map(|since| now.since(since).as_secs_f64()),
            why: standing.why.clone(),
        }
    }
}

impl GatekeeperCounts {
    /// Makes the handles of the gatekeeper of `domain`. The addresses are those of the accounting
    /// and of the control socket of its master, in this order.
    pub fn new(registry: &Registry, domain: &str, [told, tells]: [String; 2]) -> GatekeeperCounts {
        let message = |result| registry.counter(&GATEKEEPER_MESSAGES, &[domain, result]);
        let socket = |(name, at)| MasterSocketCounts {
            connected: registry.gauge(&GATEKEEPER_CONNECTED, &[domain, name]),
            standing: Mutex::default(),
            at,
        };
        GatekeeperCounts {
            sockets: [("accounting", told), ("control", tells)].map(socket),
            held: registry.gauge(&GATEKEEPER_HELD, &[domain]),
            identifiers: registry.gauge(&GATEKEEPER_IDENTIFIERS, &[domain]),
            sent: message("sent"),
            away: message("away"),
            full: message("full"),
            taken: registry.counter(&GATEKEEPER_ORDERS, &[domain, "taken"]),
            faulty: registry.counter(&GATEKEEPER_ORDERS, &[domain, "faulty"]),
            requests: VERDICT_LABELS
                .map(|status| registry.counter(&GATEKEEPER_REQUESTS, &[domain, status])),
            ordered: AtomicU64::default(),
            domain: domain.to_owned(),
        }
    }

    /// Counts an order of the master that was accepted at `now`.
    pub fn record_order(&self, now: Time) {
        self.taken.increment(1);
        self.ordered.store(now.0, Relaxed);
    }

    /// The status of the gatekeeper at `now`.
    pub fn status(&self, now: Time) -> zeromq::GatekeeperSnapshot {
        let [accounting, control] = self.sockets.each_ref().map(|socket| socket.status(now));
        let ordered = Some(Time(self.ordered.load(Relaxed))).filter(|at| *at > Time::ZERO);
        zeromq::GatekeeperSnapshot {
            domain: self.domain.clone(),
            accounting,
            control,
            told: self.sent.get(),
            untold: self.away.get() + self.full.get(),
            orders: self.taken.get(),
            faulty: self.faulty.get(),
            ordered: ordered.map(|at| now.since(at).as_secs_f64()),
            clients: self.identifiers.get(),
            held: self.held.get(),
        }
    }

    /// Counts the decision on a request.
    pub fn record_verdict(&self, passed: GatekeeperVerdict) {
        self.requests[passed as usize].increment(1);
    }
}

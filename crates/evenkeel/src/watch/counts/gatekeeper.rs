//! The handles that a gatekeeper counts with.
//!
//! What each means: `watch::metrics`. What is counted when: `engine::domains::gatekeeper` for
//! requests, `doors/zeromq/gatekeeper` for what goes to and comes from the master. How it is shown
//! all at once: `watch::snapshot::zeromq`.

use crate::watch::metrics::{
    GATEKEEPER_CONNECTED, GATEKEEPER_HELD, GATEKEEPER_IDENTIFIERS, GATEKEEPER_MESSAGES,
    GATEKEEPER_ORDERS, GATEKEEPER_REQUESTS,
};
use crate::watch::registry::{Counter, Gauge, Held, Registry};
use crate::watch::snapshot::zeromq;
use evenkeel_core::units::Time;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a gatekeeper does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// It runs at once.
    Accepted,
    /// It is held, and runs then.
    Delayed,
    /// It would have to wait for too long.
    Rejected,
    /// It would have to wait, and as many wait as may.
    Crowded,
}

/// Every [`Passed`], in its order.
const PASSED: [&str; 4] = ["accepted", "delayed", "rejected", "crowded"];

/// Everything that a gatekeeper counts.
#[derive(Debug)]
pub struct GatekeeperCounts {
    /// The connections to the master: for what it is told, and for what it tells.
    pub sockets: [Socket; 2],
    /// Requests that are held now.
    pub held: Gauge,
    /// Identifiers that have to wait now.
    pub identifiers: Gauge,
    /// Messages to the master that were written,
    pub sent: Counter,
    /// dropped as it was away,
    pub away: Counter,
    /// or dropped as it read too slowly.
    pub full: Counter,
    /// What came from the master and is no order.
    pub faulty: Counter,
    taken: Counter,
    /// When the last order was taken in; zero: none was.
    ordered: AtomicU64,
    requests: [Counter; PASSED.len()],
    domain: String,
}

/// A connection to the master, as it comes and goes.
#[derive(Debug)]
pub struct Socket {
    connected: Gauge,
    standing: Mutex<Standing>,
    at: String,
}

/// How a connection stands.
#[derive(Debug, Default)]
struct Standing {
    connected: bool,
    /// Since when; `None`: it was not tried yet.
    since: Option<Time>,
    why: String,
}

impl Socket {
    /// It is there, until the answer is dropped.
    #[must_use]
    pub fn hold(&self, now: Time) -> Held {
        *self.standing.lock() = Standing { connected: true, since: Some(now), why: String::new() };
        self.connected.hold()
    }

    /// It is not there, or of no use.
    pub fn away(&self, why: impl fmt::Display, now: Time) {
        let mut standing = self.standing.lock();
        let since = standing.since.filter(|_| !standing.connected).or(Some(now));
        *standing = Standing { connected: false, since, why: why.to_string() };
    }

    fn seen(&self, now: Time) -> zeromq::Socket {
        let standing = self.standing.lock();
        zeromq::Socket {
            address: self.at.clone(),
            connected: standing.connected,
            seconds: standing.since.map(|since| now.since(since).as_secs_f64()),
            why: standing.why.clone(),
        }
    }
}

impl GatekeeperCounts {
    /// Handles of the gatekeeper of `domain`, whose master is told and tells at these addresses.
    #[must_use]
    pub fn new(registry: &Registry, domain: &str, [told, tells]: [String; 2]) -> GatekeeperCounts {
        let message = |result| registry.counter(&GATEKEEPER_MESSAGES, &[domain, result]);
        let socket = |(name, at)| Socket {
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
            requests: PASSED
                .map(|status| registry.counter(&GATEKEEPER_REQUESTS, &[domain, status])),
            ordered: AtomicU64::default(),
            domain: domain.to_owned(),
        }
    }

    /// An order of the master was taken in.
    pub fn ordered(&self, now: Time) {
        self.taken.increment(1);
        self.ordered.store(now.0, Relaxed);
    }

    /// How it stands.
    #[must_use]
    pub fn seen(&self, now: Time) -> zeromq::Gatekeeper {
        let [accounting, control] = self.sockets.each_ref().map(|socket| socket.seen(now));
        let ordered = Some(Time(self.ordered.load(Relaxed))).filter(|at| *at > Time::ZERO);
        zeromq::Gatekeeper {
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

    /// A request was decided on.
    pub fn passed(&self, passed: Passed) {
        self.requests[passed as usize].increment(1);
    }
}

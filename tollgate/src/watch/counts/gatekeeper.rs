//! The handles that a gatekeeper counts with.
//!
//! What each means: `watch::metrics`. What is counted when: `engine::domains::gatekeeper` for
//! requests, `doors/zeromq/gatekeeper` for what goes to and comes from the master.

use crate::watch::metrics::{
    GATEKEEPER_CONNECTED, GATEKEEPER_HELD, GATEKEEPER_IDENTIFIERS, GATEKEEPER_MESSAGES,
    GATEKEEPER_ORDERS, GATEKEEPER_REQUESTS,
};
use crate::watch::registry::{Counter, Gauge, Registry};

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
    /// Whether there is a connection to the master: for what it is told, and for what it tells.
    pub connected: [Gauge; 2],
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
    /// Orders of the master that were taken in,
    pub taken: Counter,
    /// and what came from it that is none.
    pub faulty: Counter,
    requests: [Counter; PASSED.len()],
}

impl GatekeeperCounts {
    /// Handles of the gatekeeper.
    #[must_use]
    pub fn new(registry: &Registry) -> GatekeeperCounts {
        let message = |result| registry.counter(&GATEKEEPER_MESSAGES, &[result]);
        GatekeeperCounts {
            connected: ["accounting", "control"]
                .map(|socket| registry.gauge(&GATEKEEPER_CONNECTED, &[socket])),
            held: registry.gauge(&GATEKEEPER_HELD, &[]),
            identifiers: registry.gauge(&GATEKEEPER_IDENTIFIERS, &[]),
            sent: message("sent"),
            away: message("away"),
            full: message("full"),
            taken: registry.counter(&GATEKEEPER_ORDERS, &["taken"]),
            faulty: registry.counter(&GATEKEEPER_ORDERS, &["faulty"]),
            requests: PASSED.map(|status| registry.counter(&GATEKEEPER_REQUESTS, &[status])),
        }
    }

    /// A request was decided on.
    pub fn passed(&self, passed: Passed) {
        self.requests[passed as usize].increment(1);
    }
}

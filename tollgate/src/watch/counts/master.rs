//! The handles that the master counts with.
//!
//! What each means: `watch::metrics`. What is counted when: `doors/zeromq`.

use crate::watch::metrics::{
    ACCEPTED, BAD_REQUESTS, CONNECTIONS, MASTER_DELAYED, MASTER_DROPPED, MASTER_MESSAGES,
    MASTER_ORDERS, MASTER_STRANGERS, SHED,
};
use crate::watch::registry::{Counter, Gauge, Histogram, Registry};
use std::fmt;
use std::net::SocketAddr;
use tollgate_core::units::Nanos;

/// What a gatekeeper told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A request that ran at once.
    Accepted,
    /// One that was delayed.
    Delayed,
    /// One that was refused, which changes nothing.
    Rejected,
    /// One of so long ago that it changes nothing.
    Stale,
    /// One of a domain that there is not.
    Unknown,
    /// Nothing that makes sense.
    Faulty,
}

/// Every [`Told`], in its order.
const TOLD: [&str; 6] = ["accepted", "delayed", "rejected", "stale", "unknown", "faulty"];

/// Everything that the master counts.
#[derive(Debug)]
pub struct MasterCounts {
    /// Connections open.
    pub connections: Gauge,
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections closed at once because as many as allowed were open.
    pub shed: Counter,
    /// Connections closed at once because they are of nobody who may connect.
    pub strangers: Counter,
    /// Orders that did not fit where they lie until they are sent.
    pub dropped: Counter,
    messages: [Counter; TOLD.len()],
    orders: Counter,
    delayed: Histogram,
    faults: Counter,
}

impl MasterCounts {
    /// Handles of the master.
    #[must_use]
    pub fn new(registry: &Registry) -> MasterCounts {
        MasterCounts {
            connections: registry.gauge(&CONNECTIONS, &["master"]),
            accepted: registry.counter(&ACCEPTED, &["master"]),
            shed: registry.counter(&SHED, &["master"]),
            strangers: registry.counter(&MASTER_STRANGERS, &[]),
            dropped: registry.counter(&MASTER_DROPPED, &[]),
            messages: TOLD.map(|told| registry.counter(&MASTER_MESSAGES, &[told])),
            orders: registry.counter(&MASTER_ORDERS, &[]),
            delayed: registry.histogram(&MASTER_DELAYED, &[]),
            faults: registry.counter(&BAD_REQUESTS, &["master"]),
        }
    }

    /// A message came in.
    pub fn told(&self, told: Told) {
        self.messages[told as usize].increment(1);
    }

    /// A gatekeeper delayed a request by this.
    pub fn delayed_by(&self, length: Nanos) {
        self.delayed.record(length.0);
    }

    /// Gatekeepers are told whom to hold; so many of them read too slowly to be.
    pub fn published(&self, dropped: u64) {
        self.orders.increment(1);
        if dropped > 0 {
            self.dropped.increment(dropped);
        }
    }

    /// A connection ended by more than its other end going away.
    pub fn faulty(&self, peer: &SocketAddr, why: impl fmt::Display) {
        self.faults.increment(1);
        tracing::debug!(target: "tollgate::master", %peer, %why, "a connection was closed");
    }
}

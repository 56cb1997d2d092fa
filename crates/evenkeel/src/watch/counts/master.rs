//! The handles that the master counts with.
//!
//! What each means: `watch::metrics`. What is counted when: `doors/zeromq`. Who has come is in
//! `gates`; how it is shown all at once: `watch::snapshot::zeromq`.

mod gates;

use crate::watch::metrics::{
    ACCEPTED, BAD_REQUESTS, CONNECTIONS, MASTER_DELAYED, MASTER_DROPPED, MASTER_MESSAGES,
    MASTER_ORDERS, MASTER_REFUSED, MASTER_STRANGERS, SHED,
};
use crate::watch::registry::{Counter, Gauge, Histogram, Registry};
use crate::watch::sampler::{Sampler, Seldom};
use crate::watch::snapshot::zeromq;
use evenkeel_core::classify::readable;
use evenkeel_core::units::{Nanos, Time};
use gates::Gates;
pub use gates::Way;
use parking_lot::Mutex;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Bytes of a domain that there is not, as many as are shown.
const DOMAIN_BYTES_MAX: usize = 255;

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

/// What a peer is disconnected for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A version of ZMTP that is not spoken here.
    Version,
    /// A security mechanism.
    Mechanism,
    /// A socket of the wrong type.
    Socket,
    /// It did not greet, or did not read, in time.
    Late,
    /// What it speaks is not ZMTP, or makes no sense.
    Other,
}

/// Every [`Refusal`], in its order.
const REFUSALS: [&str; 5] = ["version", "mechanism", "socket", "late", "other"];

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
    refusals: [Counter; REFUSALS.len()],
    /// Where it is told, and where it tells.
    at: [SocketAddr; 2],
    gates: Mutex<Gates>,
    /// The last domain that was told of and that there is not.
    unknown: Mutex<Option<Box<[u8]>>>,
    /// When that is told.
    stray: Seldom,
    /// The last peer that was disconnected, and why.
    refused: Mutex<Option<(IpAddr, String)>>,
    /// When that is told.
    refusal: Seldom,
    /// Which texts of messages are logged.
    notes: Sampler,
}

impl MasterCounts {
    /// Handles of the master that is told and tells at these addresses.
    #[must_use]
    pub fn new(registry: &Registry, at: [SocketAddr; 2]) -> MasterCounts {
        MasterCounts {
            connections: registry.gauge(&CONNECTIONS, &["master"]),
            accepted: registry.counter(&ACCEPTED, &["master"]),
            shed: registry.counter(&SHED, &["master"]),
            strangers: registry.counter(&MASTER_STRANGERS, &[]),
            dropped: registry.counter(&MASTER_DROPPED, &[]),
            messages: TOLD.map(|told| registry.counter(&MASTER_MESSAGES, &[told])),
            orders: registry.counter(&MASTER_ORDERS, &[]),
            delayed: registry.timer(&MASTER_DELAYED, &[]),
            refusals: REFUSALS.map(|why| registry.counter(&MASTER_REFUSED, &[why])),
            faults: registry.counter(&BAD_REQUESTS, &["master"]),
            at,
            gates: Mutex::default(),
            unknown: Mutex::default(),
            stray: Seldom::default(),
            refused: Mutex::default(),
            refusal: Seldom::default(),
            notes: Sampler::default(),
        }
    }

    /// A gatekeeper has connected.
    pub fn came(&self, address: IpAddr, way: Way, now: Time) {
        self.gates.lock().came(address.to_canonical(), way, now);
    }

    /// One of its connections has ended.
    pub fn went(&self, address: IpAddr, way: Way, now: Time) {
        self.gates.lock().went(address.to_canonical(), way, now);
    }

    /// So many messages came from one.
    pub fn heard(&self, address: IpAddr, messages: u64, now: Time) {
        if messages > 0 {
            self.gates.lock().heard(address.to_canonical(), messages, now);
        }
    }

    /// A message from `peer` was of a domain that there is not, at `now`. The log has one a minute.
    pub fn unknown(&self, domain: &[u8], peer: IpAddr, now: Time) {
        let domain = &domain[..domain.len().min(DOMAIN_BYTES_MAX)];
        if self.stray.ask(now) {
            tracing::warn!(
                target: "evenkeel::master",
                domain = readable(domain),
                peer = %peer.to_canonical(),
                "messages of a domain that `master` does not name change nothing"
            );
        }
        let mut last = self.unknown.lock();
        if last.as_deref() != Some(domain) {
            *last = Some(domain.into());
        }
    }

    /// How it stands.
    #[must_use]
    pub fn seen(&self, now: Time) -> zeromq::Master {
        let [accounting, control] = self.at.map(|at| format!("tcp://{at}"));
        let messages = |told: Told| self.messages[told as usize].get();
        let refused = self.refused.lock().clone();
        zeromq::Master {
            accounting,
            control,
            messages: messages(Told::Accepted) + messages(Told::Delayed) + messages(Told::Rejected),
            stale: messages(Told::Stale),
            faulty: messages(Told::Faulty),
            unknown: messages(Told::Unknown),
            unknown_domain: self.unknown.lock().as_deref().map(readable),
            orders: self.orders.get(),
            dropped: self.dropped.get(),
            strangers: self.strangers.get(),
            refused: self.refusals.iter().map(Counter::get).sum(),
            refused_last: refused.map(|(peer, why)| format!("{peer}: {why}")),
            gatekeepers: self.gates.lock().seen(now),
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

    /// A message came at `now` with a text, which `log` writes. Of a flood ten a second are.
    pub fn noted(&self, now: Time, log: impl FnOnce()) {
        let advice = self.notes.ask(now);
        if advice.left_out > 0 {
            let left_out = advice.left_out;
            tracing::info!(
                target: "evenkeel::master", left_out,
                "messages with a text were left out of the log"
            );
        }
        if advice.write {
            log();
        }
    }

    /// `peer` was disconnected at `now` for more than going away. The log has one a minute.
    pub fn refused(&self, peer: IpAddr, kind: Refusal, why: impl fmt::Display, now: Time) {
        self.faults.increment(1);
        self.refusals[kind as usize].increment(1);
        let (peer, why) = (peer.to_canonical(), why.to_string());
        if self.refusal.ask(now) {
            tracing::warn!(
                target: "evenkeel::master", %peer, %why,
                "a peer was disconnected: it does not speak as a gatekeeper does"
            );
        }
        *self.refused.lock() = Some((peer, why));
    }
}

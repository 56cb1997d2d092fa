//! The handles with which the master counts.
//!
//! `telemetry::metrics` has the meaning of each metric; `ask/zeromq` decides when each is counted.
//! `gatekeepers` keeps the list of gatekeepers. `telemetry::snapshot::zeromq` has the status that
//! is made of both.

mod gatekeepers;

use super::ConnectionCounts;
use crate::metrics::{
    BAD_REQUESTS, MASTER_DELAYED, MASTER_DROPPED, MASTER_MESSAGES, MASTER_ORDERS, MASTER_REFUSED,
    MASTER_STRANGERS,
};
use crate::registry::{Counter, Histogram, Registry};
use crate::sampler::{LineSampler, WarningThrottle};
use crate::snapshot::zeromq;
use evenkeel_core::classify::readable;
use evenkeel_core::units::{Nanos, Time};
pub use gatekeepers::GatekeeperDirection;
use gatekeepers::GatekeeperTable;
use parking_lot::Mutex;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The maximum number of bytes of an unknown domain name that is kept and shown.
const DOMAIN_BYTES_MAX: usize = 255;

/// The content of a message from a gatekeeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatekeeperMessageKind {
    /// A request that ran at once.
    Accepted,
    /// A request that was delayed.
    Delayed,
    /// A request that was refused; it changes no account.
    Rejected,
    /// A request that is too old to change an account.
    Stale,
    /// A request of a domain that is not configured.
    Unknown,
    /// A message that cannot be parsed.
    Faulty,
}

/// The label value of every [`GatekeeperMessageKind`], in the order of the enum.
const MESSAGE_LABELS: [&str; 6] = ["accepted", "delayed", "rejected", "stale", "unknown", "faulty"];

/// Why the master disconnected a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterDisconnectReason {
    /// The peer uses a version of ZMTP that Evenkeel does not support.
    Version,
    /// The peer asks for a security mechanism that Evenkeel does not support.
    Mechanism,
    /// The peer has a socket of the wrong type.
    Socket,
    /// The peer did not finish its greeting, or did not read, in time.
    Late,
    /// The peer does not speak ZMTP, or violates it.
    Other,
}

/// The label value of every [`MasterDisconnectReason`], in the order of the enum.
const DISCONNECT_LABELS: [&str; 5] = ["version", "mechanism", "socket", "late", "other"];

/// Everything that the master counts.
#[derive(Debug)]
pub struct MasterCounts {
    /// Connections.
    pub connections: ConnectionCounts,
    /// Connections closed at once because their address is not allowed to connect.
    pub strangers: Counter,
    /// Orders dropped because the send queue of a gatekeeper was full.
    pub dropped: Counter,
    messages: [Counter; MESSAGE_LABELS.len()],
    orders: Counter,
    delayed: Histogram,
    faults: Counter,
    refusals: [Counter; DISCONNECT_LABELS.len()],
    /// The addresses of the accounting and of the control socket.
    at: [SocketAddr; 2],
    gates: Mutex<GatekeeperTable>,
    /// The last domain named by a message that is not configured.
    unknown: Mutex<Option<Box<[u8]>>>,
    /// Limits the warning about unknown domains.
    stray: WarningThrottle,
    /// The last peer that was disconnected, and why.
    refused: Mutex<Option<(IpAddr, String)>>,
    /// Limits the warning about disconnected peers.
    refusal: WarningThrottle,
    /// Limits the log lines for texts of messages.
    notes: LineSampler,
}

impl MasterCounts {
    /// Makes the handles of the master. The addresses are those of its accounting and of its
    /// control socket, in this order.
    pub fn new(registry: &Registry, at: [SocketAddr; 2]) -> MasterCounts {
        MasterCounts {
            connections: ConnectionCounts::new(registry, "master"),
            strangers: registry.counter(&MASTER_STRANGERS, &[]),
            dropped: registry.counter(&MASTER_DROPPED, &[]),
            messages: MESSAGE_LABELS.map(|told| registry.counter(&MASTER_MESSAGES, &[told])),
            orders: registry.counter(&MASTER_ORDERS, &[]),
            delayed: registry.timer(&MASTER_DELAYED, &[]),
            refusals: DISCONNECT_LABELS.map(|why| registry.counter(&MASTER_REFUSED, &[why])),
            faults: registry.counter(&BAD_REQUESTS, &["master"]),
            at,
            gates: Mutex::default(),
            unknown: Mutex::default(),
            stray: WarningThrottle::default(),
            refused: Mutex::default(),
            refusal: WarningThrottle::default(),
            notes: LineSampler::default(),
        }
    }

    /// Records that a gatekeeper opened a connection.
    pub fn record_connect(&self, address: IpAddr, way: GatekeeperDirection, now: Time) {
        self.gates.lock().came(address.to_canonical(), way, now);
    }

    /// Records that a connection of a gatekeeper ended.
    pub fn record_disconnect(&self, address: IpAddr, way: GatekeeperDirection, now: Time) {
        self.gates.lock().went(address.to_canonical(), way, now);
    }

    /// Records `messages` messages from the gatekeeper at `address`.
    pub fn record_messages(&self, address: IpAddr, messages: u64, now: Time) {
        if messages > 0 {
            self.gates.lock().heard(address.to_canonical(), messages, now);
        }
    }

    /// Records a message from `peer` at `now` that names an unknown domain. Logs at most one a
    /// minute.
    pub fn record_unknown_domain(&self, domain: &[u8], peer: IpAddr, now: Time) {
        let domain = &domain[..domain.len().min(DOMAIN_BYTES_MAX)];
        if self.stray.ask(now) {
            tracing::warn!(
                target: "evenkeel::master",
                domain = readable(domain),
                peer = %peer.to_canonical(),
                "messages for a domain that `master` does not configure are ignored"
            );
        }
        let mut last = self.unknown.lock();
        if last.as_deref() != Some(domain) {
            *last = Some(domain.into());
        }
    }

    /// The status of the master at `now`.
    pub fn status(&self, now: Time) -> zeromq::MasterSnapshot {
        let [accounting, control] = self.at.map(|at| format!("tcp://{at}"));
        let messages = |told: GatekeeperMessageKind| self.messages[told as usize].get();
        let refused = self.refused.lock().clone();
        zeromq::MasterSnapshot {
            accounting,
            control,
            messages: messages(GatekeeperMessageKind::Accepted)
                + messages(GatekeeperMessageKind::Delayed)
                + messages(GatekeeperMessageKind::Rejected),
            stale: messages(GatekeeperMessageKind::Stale),
            faulty: messages(GatekeeperMessageKind::Faulty),
            unknown: messages(GatekeeperMessageKind::Unknown),
            unknown_domain: self.unknown.lock().as_deref().map(readable),
            orders: self.orders.get(),
            dropped: self.dropped.get(),
            strangers: self.strangers.get(),
            refused: self.refusals.iter().map(Counter::get).sum(),
            refused_last: refused.map(|(peer, why)| format!("{peer}: {why}")),
            gatekeepers: self.gates.lock().seen(now),
        }
    }

    /// Counts a message by its content.
    pub fn record_message(&self, told: GatekeeperMessageKind) {
        self.messages[told as usize].increment(1);
    }

    /// Records by how much a gatekeeper delayed a request.
    pub fn record_delay(&self, length: Nanos) {
        self.delayed.record(length.0);
    }

    /// Counts one order sent to the gatekeepers; `dropped` of them read too slowly to get it.
    pub fn record_order(&self, dropped: u64) {
        self.orders.increment(1);
        if dropped > 0 {
            self.dropped.increment(dropped);
        }
    }

    /// Handles a message received at `now` that has a text. `log` writes the text; under a flood it
    /// is called ten times a second at most.
    pub fn log_message_text(&self, now: Time, log: impl FnOnce()) {
        let advice = self.notes.ask(now);
        if advice.left_out > 0 {
            let left_out = advice.left_out;
            tracing::info!(
                target: "evenkeel::master", left_out,
                "messages with a text were omitted from the log"
            );
        }
        if advice.write {
            log();
        }
    }

    /// Counts that `peer` was disconnected at `now` for a violation, not for an ordinary
    /// disconnect. Logs at most one a minute.
    pub fn record_disconnect_error(
        &self,
        peer: IpAddr,
        kind: MasterDisconnectReason,
        why: impl fmt::Display,
        now: Time,
    ) {
        self.faults.increment(1);
        self.refusals[kind as usize].increment(1);
        let (peer, why) = (peer.to_canonical(), why.to_string());
        if self.refusal.ask(now) {
            tracing::warn!(
                target: "evenkeel::master", %peer, %why,
                "a peer was disconnected: it violates the gatekeeper protocol"
            );
        }
        *self.refused.lock() = Some((peer, why));
    }
}

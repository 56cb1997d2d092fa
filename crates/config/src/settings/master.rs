//! Settings of the `master` section: its sockets, its domains and their rules.
//!
//! The keys and their errors are in `config/section/master.rs`. How rules count:
//! `evenkeel_core::bucket`.

use evenkeel_core::limit::Limit;
use evenkeel_core::units::Nanos;
use ipnet::IpNet;
use std::net::SocketAddr;
use std::time::Duration;

/// The master of gatekeepers. Gatekeepers report their requests to it, and it publishes the
/// identifiers that have to wait and until when.
#[derive(Clone, Debug, PartialEq)]
pub struct MasterSettings {
    /// Address on which gatekeepers report requests. Default: 127.0.0.1:10004.
    pub accounting: SocketAddr,
    /// Address on which the master publishes its decisions. Default: the next port.
    pub control: SocketAddr,
    /// Networks that may connect. Empty: any host may connect. Default: empty.
    pub allow: Vec<IpNet>,
    /// Timestamps further in the future than this are reduced to it, 0 to 1 d. Too low: requests
    /// that a gatekeeper delays for longer count as if they came early. Too high: a gatekeeper with
    /// a wrong clock causes long holds. Default: 60 s.
    pub ahead_max: Nanos,
    /// Maximum number of connections of each kind, 1 to 65 536; further ones are closed at once and
    /// counted. Too low: gatekeepers without a connection decide nothing. Too high: open files.
    /// Default: 1024.
    pub connections: usize,
    /// Number of identifiers per domain that a newly connected gatekeeper is sent, 0 to 10 million.
    /// Too low: a new gatekeeper admits some requests that the others hold. Too high: memory.
    /// Default: 100 000.
    pub told_max: usize,
    /// Time for the last messages to be sent when the process stops, 0 to 1 d. Default: 5 s.
    pub drain: Duration,
    /// The domains, in the order of the file; at most 1000.
    pub domains: Vec<DomainSettings>,
}

impl MasterSettings {
    /// The warning for a master that accepts any host, with its fix.
    pub const OPEN_WARNING: &str = "the master listens beyond loopback, and whoever reaches it may \
        have any client held: name the gatekeepers' networks in `allow`";

    /// Whether the master listens beyond loopback and accepts connections from any network.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let beyond = |address: &SocketAddr| !address.ip().is_loopback();
        self.allow.is_empty() && [&self.accounting, &self.control].into_iter().any(beyond)
    }
}

/// A domain and its rules.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainSettings {
    /// The name that gatekeepers use for it, 1 to 255 bytes.
    pub name: String,
    /// The rules of the domain. The longest wait of all rules applies; without rules no request
    /// waits.
    pub rules: Vec<Limit>,
}

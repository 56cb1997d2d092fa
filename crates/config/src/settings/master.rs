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
    /// Address on which gatekeepers report requests.
    pub accounting: SocketAddr,
    /// Address on which the master publishes its decisions.
    pub control: SocketAddr,
    /// Networks that may connect. Empty: any host may connect.
    pub allow: Vec<IpNet>,
    /// Timestamps further in the future than this are reduced to it.
    pub ahead_max: Nanos,
    /// Maximum number of connections of each kind; further ones are closed at once and counted.
    pub connections: usize,
    /// Number of identifiers per domain that a newly connected gatekeeper is sent.
    pub told_max: usize,
    /// Time for the last messages to be sent when the process stops.
    pub drain: Duration,
    /// The domains, in the order of the file; at most 1000.
    pub domains: Vec<DomainSettings>,
}

impl MasterSettings {
    /// The warning for a master that accepts any host, with its fix.
    pub const OPEN_WARNING: &str = "the master listens beyond loopback, and any host that reaches \
                                    it can have clients held: name the networks of the \
                                    gatekeepers in `allow`";

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
    /// The name that gatekeepers use for it.
    pub name: String,
    /// The rules of the domain. The longest wait of all rules applies; without rules no request
    /// waits.
    pub rules: Vec<Limit>,
}

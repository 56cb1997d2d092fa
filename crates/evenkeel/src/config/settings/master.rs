//! What the `master` section says: which domains there are, and what their gatekeepers are told.
//!
//! How it is written and what can be wrong with it: `config/section/master.rs`. How rules count:
//! `evenkeel_core::bucket`.

use evenkeel_core::limit::Limit;
use evenkeel_core::units::Nanos;
use ipnet::IpNet;
use std::net::SocketAddr;
use std::time::Duration;

/// The master that gatekeepers tell of their requests, and that tells them whom to hold until when.
#[derive(Clone, Debug, PartialEq)]
pub struct Master {
    /// Where it is told. Default: 127.0.0.1:10004.
    pub accounting: SocketAddr,
    /// Where it tells. Default: the next port.
    pub control: SocketAddr,
    /// Who may connect; empty: everybody. Default: everybody.
    pub allow: Vec<IpNet>,
    /// Times that lie further ahead are taken for this. Too low: clients that a gatekeeper delays
    /// for long are counted as if they came early. Default: 60 s.
    pub ahead_max: Nanos,
    /// Connections of each kind at once; more are closed at once and counted. Default: 1024.
    pub connections: usize,
    /// Identifiers of each domain that newcomers are told of. Default: 100 000.
    pub told_max: usize,
    /// How long a last message may take to be sent. Default: 5 s.
    pub drain: Duration,
    /// In the order written.
    pub domains: Vec<Domain>,
}

impl Master {
    /// Why one that is open to everybody is a danger, and what to do.
    pub const OPEN: &str = "the master listens beyond loopback, and whoever reaches it may have \
                            any client held: name the gatekeepers' networks in `allow`";

    /// Whether whoever reaches this machine may say what runs.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let beyond = |address: &SocketAddr| !address.ip().is_loopback();
        self.allow.is_empty() && [&self.accounting, &self.control].into_iter().any(beyond)
    }
}

/// One domain.
#[derive(Clone, Debug, PartialEq)]
pub struct Domain {
    /// What gatekeepers call it.
    pub name: String,
    /// The longest wait under any of these counts.
    pub rules: Vec<Limit>,
}

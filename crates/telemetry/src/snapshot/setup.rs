//! The set-up of a running server: the answer of `/api/setup`, which `evenkeel doctor` and
//! `evenkeel upgrade` read.
//!
//! It has facts that only the process itself knows, and no judgement. Debts and load are in
//! `/api/top`, counts in `/metrics`.

use evenkeel_config::host::{HostFacts, StateFolder};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The facts about a running server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SetupSnapshot {
    /// The version of the program.
    pub version: String,
    /// The id of the process, as it sees it.
    pub pid: u32,
    /// Whether all listeners are open and it is not draining.
    pub ready: bool,
    /// The time of the snapshot, in seconds since the Unix epoch.
    pub now: f64,
    /// The time at which the process was started.
    pub started: f64,
    /// The time since which its configuration is in force.
    pub config_since: f64,
    /// Seconds by which the system clock was changed since the start; positive: set forward.
    pub clock_step: f64,
    /// The path of the configuration file; `null`: flags or environment variables.
    pub config_file: Option<String>,
    /// Keys of the configuration on disk that take effect only after a restart.
    pub restart_keys: Vec<String>,
    /// The path of the program.
    pub program: Option<String>,
    /// Whether another file is at that path now; `null`: there is none.
    pub program_replaced: Option<bool>,
    /// Why the last successor of this process failed; `null` if none has.
    pub not_replaced: Option<FailedReplacement>,
    /// The machine as the process sees it.
    pub host: HostFacts,
    /// The folder of the snapshot; `null` if debts are not saved.
    pub state: Option<StateFolder>,
    /// Connections since the start that found a queue of the kernel full; `null`: not known.
    pub listen_overflows: Option<u64>,
    /// What requests say about the addresses of their clients.
    pub clients: ClientAddressFacts,
    /// Requests since the configuration is in force.
    pub requests: RequestFacts,
}

/// Requests of the proxy since the configuration is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestFacts {
    /// All of them.
    pub all: u64,
    /// Those that the queue refused because they waited for `queue.wait_max`.
    pub late: u64,
    /// Those that the queue refused because it was full.
    pub crowded: u64,
}

/// A successor that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailedReplacement {
    /// The reason.
    pub why: String,
    /// Seconds since then.
    pub seconds: f64,
}

/// What requests say about the addresses of their clients, since the configuration is in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientAddressFacts {
    /// Requests of trusted proxies that name the client.
    pub trusted_with: u64,
    /// Requests of trusted proxies that do not.
    pub trusted_without: u64,
    /// Requests of other peers that name another client.
    pub other_with: u64,
    /// Requests of other peers that do not.
    pub other_without: u64,
    /// Requests of the last minute with traffic.
    pub recent: u64,
    /// Those of them from untrusted peers that name another client.
    pub recent_forwarding: u64,
    /// The headers in which they do.
    pub headers: Vec<String>,
    /// The addresses that sent most of them, with lower bounds of their number.
    pub peers: Vec<(IpAddr, u64)>,
}

//! The status of a master and of its gatekeepers, as `/api/top` returns it and `doctor` prints it.
//!
//! `telemetry::counts::master` and `telemetry::counts::gatekeeper` fill in the values.

use super::length::length;
use crate::printable::printable;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A gatekeeper of this process, and its connections to the master.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatekeeperSnapshot {
    /// The domain of the gatekeeper.
    pub domain: String,
    /// The connection on which requests are reported to the master.
    pub accounting: SocketSnapshot,
    /// The connection on which orders come from the master.
    pub control: SocketSnapshot,
    /// The number of requests reported to the master.
    pub told: u64,
    /// The number of requests never reported: the master was unreachable or read too slowly.
    pub untold: u64,
    /// The number of valid orders received.
    pub orders: u64,
    /// The number of messages received that are not valid orders.
    pub faulty: u64,
    /// Seconds since the last order; `null`: none has arrived.
    pub ordered: Option<f64>,
    /// The number of clients that have to wait now.
    pub clients: i64,
    /// The number of requests that are held now.
    pub held: i64,
}

/// A connection to a master, and its status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SocketSnapshot {
    /// The address of the socket of the master.
    pub address: String,
    /// Whether the connection is established and usable.
    pub connected: bool,
    /// Seconds since the last change of `connected`; `null`: no connection was tried yet.
    pub seconds: Option<f64>,
    /// Why there is no connection; empty if there is one.
    pub why: String,
}

/// A master, and the gatekeepers that connected to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MasterSnapshot {
    /// The address to which gatekeepers report requests.
    pub accounting: String,
    /// The address from which gatekeepers receive orders.
    pub control: String,
    /// The number of valid messages that were applied or needed no change.
    pub messages: u64,
    /// The number of messages about requests that are too old to change an account.
    pub stale: u64,
    /// The number of messages that cannot be parsed.
    pub faulty: u64,
    /// The number of messages of domains that are not configured.
    pub unknown: u64,
    /// The last domain named by a message that is not configured.
    pub unknown_domain: Option<String>,
    /// The number of orders sent.
    pub orders: u64,
    /// The number of copies of orders dropped because a gatekeeper reads too slowly.
    pub dropped: u64,
    /// The number of connections closed because their address is not allowed to connect.
    pub strangers: u64,
    /// The number of peers disconnected because they violated the protocol or were too late.
    #[serde(default)]
    pub refused: u64,
    /// The last of these peers: its address, and why.
    #[serde(default)]
    pub refused_last: Option<String>,
    /// The connected gatekeepers and some that have disconnected. They are listed by address
    /// because a gatekeeper uses another port for each of its connections.
    pub gatekeepers: Vec<GatekeeperPeerSnapshot>,
}

/// The gatekeepers at one address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatekeeperPeerSnapshot {
    /// The IP address.
    pub address: String,
    /// The number of connections on which requests are reported.
    pub telling: usize,
    /// The number of connections on which orders are received.
    pub listening: usize,
    /// The number of messages received from this address.
    pub messages: u64,
    /// Seconds since the last message; `null`: none has arrived.
    pub heard: Option<f64>,
    /// Seconds since the last connection was opened or, if none is open, since the last one ended.
    pub seconds: f64,
}

/// Text for people: whether the master is reachable, and how many messages went each way.
impl fmt::Display for GatekeeperSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GatekeeperSnapshot { told, untold, orders, faulty, clients, held, .. } = self;
        writeln!(f, "gatekeeper of {}:", printable(&self.domain))?;
        writeln!(f, "  accounting {}; {told} requests reported, {untold} not", self.accounting)?;
        write!(f, "  control    {}; {orders} orders accepted, {faulty} faulty", self.control)?;
        if let Some(ordered) = self.ordered {
            write!(f, ", the last {} ago", length(ordered))?;
        }
        write!(f, "\n  {clients} clients must wait now, {held} requests are held")
    }
}

impl fmt::Display for SocketSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.connected { "connected" } else { "unreachable" };
        write!(f, "{}: ", printable(&self.address))?;
        match self.seconds {
            Some(seconds) => write!(f, "{how} for {}", length(seconds))?,
            None => f.write_str("not tried yet")?,
        }
        if !self.why.is_empty() {
            write!(f, ", {}", printable(&self.why))?;
        }
        Ok(())
    }
}

/// Text for people: message counts, and a line for each address.
impl fmt::Display for MasterSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MasterSnapshot { accounting, control, messages, stale, faulty, unknown, .. } = self;
        writeln!(f, "master: accounting {accounting}, control {control}")?;
        writeln!(f, "  {messages} messages, {stale} too late, {faulty} faulty")?;
        writeln!(f, "  {} orders sent, {} missed by slow readers", self.orders, self.dropped)?;
        if let Some(domain) = &self.unknown_domain {
            let domain = printable(domain);
            writeln!(f, "  {unknown} messages of unknown domains, the last of \"{domain}\"")?;
        }
        if self.strangers > 0 {
            writeln!(f, "  {} connections from addresses outside of `allow`", self.strangers)?;
        }
        if let Some(last) = &self.refused_last {
            let (refused, last) = (self.refused, printable(last));
            writeln!(f, "  {refused} connections refused, the last of {last}")?;
        }
        if self.gatekeepers.is_empty() {
            return f.write_str("  no gatekeeper has connected yet");
        }
        write!(
            f,
            "{:>9} {:>9} {:>9} {:>8}  Gatekeeper",
            "Reporting", "Listening", "Messages", "Last[s]"
        )?;
        self.gatekeepers.iter().try_for_each(|gate| write!(f, "\n{gate}"))
    }
}

impl fmt::Display for GatekeeperPeerSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GatekeeperPeerSnapshot { address, telling, listening, messages, .. } = self;
        let heard = self.heard.map_or_else(|| "-".to_owned(), |heard| format!("{heard:.0}"));
        write!(f, "{telling:>9} {listening:>9} {messages:>9} {heard:>8}  {}", printable(address))?;
        match (telling, listening) {
            (0, 0) => write!(f, " (gone for {})", length(self.seconds)),
            (0, _) => f.write_str(" (sends no reports: can it reach accounting?)"),
            (_, 0) => f.write_str(" (receives no orders: can it reach control?)"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gatekeeper_says_what_is_wrong_with_its_master() {
        let socket = |port, seconds: Option<f64>, why: &str| SocketSnapshot {
            address: format!("tcp://m:{port}"),
            connected: why.is_empty() && seconds.is_some(),
            seconds,
            why: why.to_owned(),
        };
        let keeper = GatekeeperSnapshot {
            domain: "api\x1b".to_owned(),
            accounting: socket(10_004, Some(119.7), ""),
            control: socket(10_005, Some(7_100.0), "refused"),
            told: 12,
            untold: 3,
            orders: 2,
            faulty: 0,
            ordered: Some(7_200.0),
            clients: 1,
            held: 0,
        };
        let expected = "\
gatekeeper of api\\u001b:
  accounting tcp://m:10004: connected for 120 s; 12 requests reported, 3 not
  control    tcp://m:10005: unreachable for 118 min, refused; 2 orders accepted, \
            0 faulty, the last 2 h ago
  1 clients must wait now, 0 requests are held";
        assert_eq!(keeper.to_string(), expected);
        let fresh = socket(1, None, "").to_string();
        assert_eq!(fresh, "tcp://m:1: not tried yet");
    }

    #[test]
    fn a_master_says_who_came_and_who_cannot_be_told() {
        let gate = |address: &str, telling, listening, heard| GatekeeperPeerSnapshot {
            address: address.to_owned(),
            telling,
            listening,
            messages: 1_200,
            heard,
            seconds: 200_000.0,
        };
        let mut master = MasterSnapshot {
            accounting: "tcp://127.0.0.1:1".to_owned(),
            control: "tcp://127.0.0.1:2".to_owned(),
            messages: 3_600,
            stale: 1,
            faulty: 2,
            unknown: 0,
            unknown_domain: None,
            orders: 14,
            dropped: 0,
            strangers: 0,
            refused: 0,
            refused_last: None,
            gatekeepers: Vec::new(),
        };
        let expected = "\
master: accounting tcp://127.0.0.1:1, control tcp://127.0.0.1:2
  3600 messages, 1 too late, 2 faulty
  14 orders sent, 0 missed by slow readers
";
        assert_eq!(master.to_string(), format!("{expected}  no gatekeeper has connected yet"));
        (master.unknown, master.strangers) = (4, 5);
        master.unknown_domain = Some("ap\n".to_owned());
        (master.refused, master.refused_last) = (2, Some("::1: it does not\n".to_owned()));
        master.gatekeepers = vec![
            gate("10.0.0.5", 1, 2, Some(0.2)),
            gate("10.0.0.6", 1, 0, None),
            gate("10.0.0.7", 0, 1, None),
            gate("10.0.0.8", 0, 0, Some(200_000.0)),
        ];
        let rest = "  4 messages of unknown domains, the last of \"ap\\u000a\"
  5 connections from addresses outside of `allow`
  2 connections refused, the last of ::1: it does not\\u000a
Reporting Listening  Messages  Last[s]  Gatekeeper
        1         2      1200        0  10.0.0.5
        1         0      1200        -  10.0.0.6 (receives no orders: can it reach control?)
        0         1      1200        -  10.0.0.7 (sends no reports: can it reach accounting?)
        0         0      1200   200000  10.0.0.8 (gone for 2 d)";
        assert_eq!(master.to_string(), format!("{expected}{rest}"));
    }
}

//! How a master and its gatekeepers stand, from either end, as `/api/top` answers it and `doctor`
//! prints it.
//!
//! Who counts it: `watch::counts::master` and `watch::counts::gatekeeper`.

use crate::watch::printable::printable;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A gatekeeper, and the master that it asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gatekeeper {
    /// The domain that it keeps the gate of.
    pub domain: String,
    /// Where the master is told of requests.
    pub accounting: Socket,
    /// Where it says whom to hold.
    pub control: Socket,
    /// Requests that the master was told of,
    pub told: u64,
    /// and those that it will never be told of: it was away, or read too slowly.
    pub untold: u64,
    /// Orders that came and were understood,
    pub orders: u64,
    /// and those that were not.
    pub faulty: u64,
    /// Seconds since the last order; `null`: none has come.
    pub ordered: Option<f64>,
    /// Clients that have to wait now.
    pub clients: i64,
    /// Requests that are held now.
    pub held: i64,
}

/// A connection to a master.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Socket {
    /// Where to.
    pub address: String,
    /// Whether it is there, and of use.
    pub connected: bool,
    /// For how many seconds it has been so; `null`: it was not tried yet.
    pub seconds: Option<f64>,
    /// Why it is not there; empty where it is.
    pub why: String,
}

/// A master, and who has come to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Master {
    /// Where gatekeepers tell it of requests.
    pub accounting: String,
    /// Where it tells them whom to hold.
    pub control: String,
    /// Messages that were understood.
    pub messages: u64,
    /// Messages of requests so long ago that they changed nothing.
    pub stale: u64,
    /// Messages that made no sense.
    pub faulty: u64,
    /// Messages of domains that are not configured,
    pub unknown: u64,
    /// and the last of these domains.
    pub unknown_domain: Option<String>,
    /// Orders that were told,
    pub orders: u64,
    /// and how many did not reach somebody who reads too slowly.
    pub dropped: u64,
    /// Connections of those who may not connect.
    pub strangers: u64,
    /// Connections closed for what came over them, or did not,
    #[serde(default)]
    pub refused: u64,
    /// and the last of these: its address, and why.
    #[serde(default)]
    pub refused_last: Option<String>,
    /// Who is there, and some of those who were; by address, as a gatekeeper has a port for each
    /// of its connections.
    pub gatekeepers: Vec<Gate>,
}

/// The gatekeepers at one address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// The address.
    pub address: String,
    /// Connections on which it tells of requests.
    pub telling: usize,
    /// Connections on which it listens for orders.
    pub listening: usize,
    /// Messages that came from it.
    pub messages: u64,
    /// Seconds since the last; `null`: none has come.
    pub heard: Option<f64>,
    /// Seconds since its last connection was opened, or closed where it has none.
    pub seconds: f64,
}

/// For people: whether the master is there, and what has gone to and fro.
impl fmt::Display for Gatekeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gatekeeper { told, untold, orders, faulty, clients, held, .. } = self;
        writeln!(f, "gatekeeper of {}:", printable(&self.domain))?;
        writeln!(f, "  accounting {}; {told} requests told, {untold} not", self.accounting)?;
        write!(f, "  control    {}; {orders} orders taken, {faulty} not", self.control)?;
        if let Some(ordered) = self.ordered {
            write!(f, ", the last {} ago", length(ordered))?;
        }
        write!(f, "\n  now {clients} clients have to wait, {held} requests are held")
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.connected { "connected" } else { "away" };
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

/// For people: what came and went, and a line for each address.
impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Master { accounting, control, messages, stale, faulty, unknown, .. } = self;
        writeln!(f, "master: accounting {accounting}, control {control}")?;
        writeln!(f, "  {messages} messages, {stale} too late, {faulty} not understood")?;
        writeln!(f, "  {} orders told, {} missed by slow readers", self.orders, self.dropped)?;
        if let Some(domain) = &self.unknown_domain {
            let domain = printable(domain);
            writeln!(f, "  {unknown} messages of unknown domains, the last of \"{domain}\"")?;
        }
        if self.strangers > 0 {
            writeln!(f, "  {} connections of strangers: see `allow`", self.strangers)?;
        }
        if let Some(last) = &self.refused_last {
            let (refused, last) = (self.refused, printable(last));
            writeln!(f, "  {refused} connections refused, the last of {last}")?;
        }
        if self.gatekeepers.is_empty() {
            return f.write_str("  no gatekeeper has come yet");
        }
        write!(
            f,
            "{:>9} {:>9} {:>9} {:>8}  Gatekeeper",
            "Telling", "Listening", "Messages", "Last[s]"
        )?;
        self.gatekeepers.iter().try_for_each(|gate| write!(f, "\n{gate}"))
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gate { address, telling, listening, messages, .. } = self;
        let heard = self.heard.map_or_else(|| "-".to_owned(), |heard| format!("{heard:.0}"));
        write!(f, "{telling:>9} {listening:>9} {messages:>9} {heard:>8}  {}", printable(address))?;
        match (telling, listening) {
            (0, 0) => write!(f, " (gone for {})", length(self.seconds)),
            (0, _) => f.write_str(" (tells nothing: is accounting reached?)"),
            (_, 0) => f.write_str(" (hears no orders: is control reached?)"),
            _ => Ok(()),
        }
    }
}

/// So many seconds, as people say it.
fn length(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3_600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gatekeeper_says_what_is_wrong_with_its_master() {
        let socket = |port, seconds: Option<f64>, why: &str| Socket {
            address: format!("tcp://m:{port}"),
            connected: why.is_empty() && seconds.is_some(),
            seconds,
            why: why.to_owned(),
        };
        let keeper = Gatekeeper {
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
  accounting tcp://m:10004: connected for 120 s; 12 requests told, 3 not
  control    tcp://m:10005: away for 118 min, refused; 2 orders taken, 0 not, the last 2 h ago
  now 1 clients have to wait, 0 requests are held";
        assert_eq!(keeper.to_string(), expected);
        let fresh = socket(1, None, "").to_string();
        assert_eq!(fresh, "tcp://m:1: not tried yet");
    }

    #[test]
    fn a_master_says_who_came_and_who_cannot_be_told() {
        let gate = |address: &str, telling, listening, heard| Gate {
            address: address.to_owned(),
            telling,
            listening,
            messages: 1_200,
            heard,
            seconds: 200_000.0,
        };
        let mut master = Master {
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
  3600 messages, 1 too late, 2 not understood
  14 orders told, 0 missed by slow readers
";
        assert_eq!(master.to_string(), format!("{expected}  no gatekeeper has come yet"));
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
  5 connections of strangers: see `allow`
  2 connections refused, the last of ::1: it does not\\u000a
  Telling Listening  Messages  Last[s]  Gatekeeper
        1         2      1200        0  10.0.0.5
        1         0      1200        -  10.0.0.6 (hears no orders: is control reached?)
        0         1      1200        -  10.0.0.7 (tells nothing: is accounting reached?)
        0         0      1200   200000  10.0.0.8 (gone for 2 d)";
        assert_eq!(master.to_string(), format!("{expected}{rest}"));
    }
}

//! The `check` section: the access and the log phase of servers with their own front end.
//!
//! It has no limits of its own: those of `proxy` count for both doors together.

use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey};
use crate::reader::settings;
use crate::values::{DAY, Read};
use evenkeel_core::units::Nanos;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

settings! {
    /// The check door: a server asks it before each request, and reports the cost afterwards.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CheckSettings from read(check), TABLE = "check";

    /// Addresses to listen on, for `/check` and `/report`.
    pub listen: Vec<SocketAddr>, LISTEN: ListKey<SocketAddr> =
        ConfigKey::text("listen", address::listen)
            .list_with(|| vec![SocketAddr::from(([127, 0, 0, 1], 9971))]);
    /// Addresses that receive access logs: `udp://` and an address.
    pub syslog: Vec<SyslogAddress>, SYSLOG: ListKey<SyslogAddress> =
        ConfigKey::text("syslog", syslog).list_with(Vec::new).example("udp://127.0.0.1:5514");
    /// Time for the report of an admitted request to arrive. After that, the request is charged the
    /// average of its route.
    pub report_within: Duration, REPORT_WITHIN: DefaultedKey<Nanos> =
        ConfigKey::duration("report_within").within(Nanos::from_secs(1), DAY)
            .default(Nanos::from_secs(300)).low("long requests are charged a guess")
            .high("debts are known late where reports get lost");
    /// Number of admitted requests that wait for their report, about 500 bytes each. With more, the
    /// oldest is charged the average early.
    pub open_max: usize, OPEN_MAX: DefaultedKey<usize> = ConfigKey::whole("open_max")
        .within(1, REQUESTS_MAX).default(65_536).low("charges are guesses").high("memory");
    /// Number of questions that wait for their answer because the client has to wait. Each occupies
    /// a connection of the web server. With more, such clients are refused.
    pub waiting_max: usize, WAITING_MAX: DefaultedKey<usize> = ConfigKey::whole("waiting_max")
        .within(1, REQUESTS_MAX).default(1024).low("refusals instead of waits")
        .high("the front end runs out of connections");
    /// Which headers of clients the web server passes on. `all`: all of them, unchanged, as in the
    /// examples for nginx, Caddy and Traefik. `some`: only some. With `all`, conditions can use
    /// [`fetch`](fingerprints.md#fetch).
    pub has_all_headers: bool, HEADERS: DefaultedKey<bool> =
        ConfigKey::words("headers", &[("some", false), ("all", true)]).default(false);
}

/// A UDP address that receives datagrams, written `udp://127.0.0.1:5514`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyslogAddress(pub SocketAddr);

impl fmt::Display for SyslogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "udp://{}", self.0)
    }
}

/// Upper bound of `open_max` and `waiting_max`.
const REQUESTS_MAX: usize = 1_000_000;

fn syslog(text: &str) -> Read<SyslogAddress> {
    let address = text.strip_prefix("udp://").ok_or("write it as udp://127.0.0.1:5514")?;
    address::listen(address).map(SyslogAddress)
}

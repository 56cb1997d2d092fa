//! The keys of `check`: the access and the log phase of servers with their own front end.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable};
use crate::settings::SyslogAddress;
use crate::values::{DAY, Read};
use evenkeel_core::units::Nanos;
use std::net::SocketAddr;

/// The rows of the section.
pub static TABLE: SectionTable = SectionTable {
    path: "check",
    keys: &[&LISTEN, &SYSLOG, &REPORT_WITHIN, &OPEN_MAX, &WAITING_MAX],
};

/// Upper bound of `open_max` and `waiting_max`.
const REQUESTS_MAX: usize = 1_000_000;

pub(crate) static LISTEN: ListKey<SocketAddr> = ConfigKey::text(
    "listen",
    address::listen,
    "Addresses to listen on, for `/check` and `/report`.",
)
.list_with(|| vec![SocketAddr::from(([127, 0, 0, 1], 9971))]);

pub(crate) static SYSLOG: ListKey<SyslogAddress> = ConfigKey::text(
    "syslog",
    syslog,
    "Addresses that receive access logs: `udp://` and an address.",
)
.example("udp://127.0.0.1:5514")
.list_with(Vec::new);

pub(crate) static REPORT_WITHIN: DefaultedKey<Nanos> = ConfigKey::duration(
    "report_within",
    "Time for the report of an admitted request to arrive. After that the request is charged the \
     average of its route.",
)
.within(Nanos::from_secs(1), DAY)
.low("long requests are charged a guess")
.high("debts are known late where reports get lost")
.default(Nanos::from_secs(300));

pub(crate) static OPEN_MAX: DefaultedKey<usize> = ConfigKey::whole(
    "open_max",
    "Admitted requests that wait for their report, some 500 bytes each. Beyond it the oldest is \
     charged the average early.",
)
.within(1, REQUESTS_MAX)
.low("charges are guesses")
.high("memory")
.default(65_536);

pub(crate) static WAITING_MAX: DefaultedKey<usize> = ConfigKey::whole(
    "waiting_max",
    "Questions that are answered late because the client has to wait. Each occupies a connection \
     of the front end. Beyond it such clients are refused.",
)
.within(1, REQUESTS_MAX)
.low("refusals instead of waits")
.high("the front end runs out of connections")
.default(1024);

fn syslog(text: &str) -> Read<SyslogAddress> {
    let address = text.strip_prefix("udp://").ok_or("write it as udp://127.0.0.1:5514")?;
    address::listen(address).map(SyslogAddress)
}

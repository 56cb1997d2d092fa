//! The `check` section: the access and the log phase of servers with their own front end.
//!
//! It has no limits of its own: those of `proxy` count for both doors together. The settings are
//! described in `settings`.

use super::proxy::{count, duration};
use crate::address;
use crate::reader::{Read, SectionReader, within};
use crate::settings::{CheckSettings, SyslogAddress};
use evenkeel_core::units::Nanos;
use std::net::SocketAddr;
use std::time::Duration;

/// Reads the section.
pub fn read(check: &mut SectionReader<'_, '_>) -> CheckSettings {
    let range = Nanos::from_secs(1)..=Nanos::from_secs(86_400);
    let late = |text: &str| within(duration(text)?, range.clone());
    let number = |text: &str| within(count(text)?, 1..=1_000_000).map(|n| n as usize);
    CheckSettings {
        listen: check.list(
            "listen",
            vec![SocketAddr::from(([127, 0, 0, 1], 9971))],
            address::listen,
        ),
        syslog: check.list("syslog", Vec::new(), syslog),
        report_within: Duration::from_nanos(
            check.value("report_within", Nanos::from_secs(300), late).0,
        ),
        open_max: check.value("open_max", 65_536, number),
        waiting_max: check.value("waiting_max", 1024, number),
    }
}

fn syslog(text: &str) -> Read<SyslogAddress> {
    let address = text.strip_prefix("udp://").ok_or("write it as udp://127.0.0.1:5514")?;
    address::listen(address).map(SyslogAddress)
}

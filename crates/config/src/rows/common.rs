//! Parts of rows that several sections of `ratelimit` share.
//!
//! A long duration, `host:port` and `key:value`. Values that sections of all doors share are in
//! `values`.

use crate::keys::ConfigKey;
use crate::values::{Read, YEAR};
use evenkeel_core::units::Nanos;

/// A duration of 1 ms to 366 days.
pub(crate) const fn time(name: &'static str, doc: &'static str) -> ConfigKey<Nanos> {
    ConfigKey::duration(name, doc).within(Nanos::from_millis(1), YEAR)
}

/// Reads `host:port`.
pub(crate) fn host_port(text: &str) -> Read<String> {
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    match !host.is_empty() && port.parse::<u16>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("write host:port".to_owned()),
    }
}

/// Reads `key:value`.
pub(crate) fn tag(text: &str) -> Read<(String, String)> {
    let (key, value) = text.split_once(':').ok_or("write key:value")?;
    let plain = |c: char| !c.is_control() && !",|#\n".contains(c);
    match !key.is_empty() && text.chars().all(plain) {
        true => Ok((key.to_owned(), value.to_owned())),
        false => Err("a tag is key:value, without , | # and line ends".to_owned()),
    }
}

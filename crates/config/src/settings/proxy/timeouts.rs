//! The `proxy.timeouts` section: time limits of connections and requests.
//!
//! A connection applies them in `evenkeel_proxy::link`.

use crate::keys::{ConfigKey, DefaultedKey, section};
use crate::reader::SectionReader;
use crate::values::{DAY, std_time};
use evenkeel_core::units::Nanos;
use std::time::Duration;

/// Time limits of connections and requests. Too low: slow but honest peers are cut off. Too high:
/// dead peers keep their connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyTimeouts {
    /// From the first byte, or the start of the connection, until the head is complete.
    pub header: Duration,
    /// Until a connection to the backend is established.
    pub connect: Duration,
    /// Without a byte, on a connection between two requests or inside a body.
    pub idle: Duration,
    /// From the complete request until the backend begins its answer.
    pub backend: Duration,
    /// For running requests to end when the process stops.
    pub drain: Duration,
    /// How long an aborted request still costs.
    pub abort_linger: Duration,
    /// Without a byte in either direction on an upgraded connection.
    pub tunnel: Duration,
}

section! {
    TABLE = "proxy.timeouts";

    /// Time for the head of a request to arrive, from the start of the connection or from the first
    /// byte of the head. After that the answer is 408, or none if no byte arrived.
    HEADER: DefaultedKey<Nanos> = timeout("header", 10);
    /// Time to connect to the backend.
    CONNECT: DefaultedKey<Nanos> = timeout("connect", 3);
    /// Time without a byte between two requests, or inside a body, in either direction and on
    /// either side.
    IDLE: DefaultedKey<Nanos> = timeout("idle", 60);
    /// Time for the backend to begin its answer, from the moment when it has the whole request; an
    /// upload may take longer.
    BACKEND: DefaultedKey<Nanos> = timeout("backend", 300);
    /// Time for running requests to end when the process stops.
    DRAIN: DefaultedKey<Nanos> = timeout("drain", 30);
    /// Time without a byte, in both directions, on an upgraded connection.
    TUNNEL: DefaultedKey<Nanos> = timeout("tunnel", 3_600);
    /// Time for which a request is still charged after its client has disconnected. Too low:
    /// disconnecting early is cheap.
    ABORT_LINGER: DefaultedKey<Nanos> = timeout("abort_linger", 5);
}

/// Reads the section.
pub(crate) fn read(section: &mut SectionReader<'_, '_>) -> ProxyTimeouts {
    ProxyTimeouts {
        header: std_time(section.key(&HEADER)),
        connect: std_time(section.key(&CONNECT)),
        idle: std_time(section.key(&IDLE)),
        backend: std_time(section.key(&BACKEND)),
        drain: std_time(section.key(&DRAIN)),
        abort_linger: std_time(section.key(&ABORT_LINGER)),
        tunnel: std_time(section.key(&TUNNEL)),
    }
}

impl Default for ProxyTimeouts {
    fn default() -> ProxyTimeouts {
        SectionReader::defaults(&TABLE, read)
    }
}

/// A timeout of 1 ms to 1 d.
const fn timeout(name: &'static str, seconds: u64) -> DefaultedKey<Nanos> {
    ConfigKey::duration(name).within(Nanos::from_millis(1), DAY).default(Nanos::from_secs(seconds))
}

//! The `proxy.timeouts` section: time limits of connections and requests.
//!
//! A connection applies them in `evenkeel_proxy::link`.

use crate::keys::{ConfigKey, DefaultedKey, section};
use crate::reader::{SectionReader, settings};
use crate::values::DAY;
use evenkeel_core::units::Nanos;
use std::time::Duration;

settings! {
    /// Time limits of connections and requests. Too low: slow but honest peers are cut off. Too
    /// high: dead peers keep their connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ProxyTimeouts from read(section);

    /// Time for the head of a request to arrive, from the start of the connection or from the first
    /// byte of the head. After that the answer is 408, or none if no byte arrived.
    pub header: Duration, HEADER: DefaultedKey<Nanos> = timeout("header", 10);
    /// Time to connect to the backend.
    pub connect: Duration, CONNECT: DefaultedKey<Nanos> = timeout("connect", 3);
    /// Time without a byte between two requests, or inside a body, in either direction and on
    /// either side.
    pub idle: Duration, IDLE: DefaultedKey<Nanos> = timeout("idle", 60);
    /// Time for the backend to begin its answer, from the moment when it has the whole request; an
    /// upload may take longer.
    pub backend: Duration, BACKEND: DefaultedKey<Nanos> = timeout("backend", 300);
    /// Time for running requests to end when the process stops.
    pub drain: Duration, DRAIN: DefaultedKey<Nanos> = timeout("drain", 30);
    /// Time for which a request is still charged after its client has disconnected. Too low:
    /// disconnecting early is cheap.
    pub abort_linger: Duration, ABORT_LINGER: DefaultedKey<Nanos> = timeout("abort_linger", 5);
    /// Time without a byte, in both directions, on an upgraded connection.
    pub tunnel: Duration, TUNNEL: DefaultedKey<Nanos> = timeout("tunnel", 3_600);
}

section! { TABLE = "proxy.timeouts": HEADER, CONNECT, IDLE, BACKEND, DRAIN, TUNNEL, ABORT_LINGER; }

impl Default for ProxyTimeouts {
    fn default() -> ProxyTimeouts {
        SectionReader::defaults(&TABLE, read)
    }
}

/// A timeout of 1 ms to 1 d.
const fn timeout(name: &'static str, seconds: u64) -> DefaultedKey<Nanos> {
    ConfigKey::duration(name).within(Nanos::from_millis(1), DAY).default(Nanos::from_secs(seconds))
}

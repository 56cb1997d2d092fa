//! The keys of `proxy.timeouts`: time limits of connections and requests.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::keys::{ConfigKey, DefaultedKey, SectionTable};
use crate::values::DAY;
use evenkeel_core::units::Nanos;

/// The rows of the section.
pub static TABLE: SectionTable = SectionTable {
    path: "proxy.timeouts",
    keys: &[&HEADER, &CONNECT, &IDLE, &BACKEND, &DRAIN, &TUNNEL, &ABORT_LINGER],
};

/// A timeout of 1 ms to 1 d.
const fn timeout(name: &'static str, seconds: u64, doc: &'static str) -> DefaultedKey<Nanos> {
    ConfigKey::duration(name, doc)
        .within(Nanos::from_millis(1), DAY)
        .default(Nanos::from_secs(seconds))
}

pub(crate) static HEADER: DefaultedKey<Nanos> = timeout(
    "header",
    10,
    "Time for the head of a request to arrive, from the start of the connection or from the first \
     byte of the head. After that the answer is 408, or none if no byte arrived.",
);

pub(crate) static CONNECT: DefaultedKey<Nanos> =
    timeout("connect", 3, "Time to connect to the backend.");

pub(crate) static IDLE: DefaultedKey<Nanos> = timeout(
    "idle",
    60,
    "Time without a byte between two requests, or inside a body, in either direction and on \
     either side.",
);

pub(crate) static BACKEND: DefaultedKey<Nanos> = timeout(
    "backend",
    300,
    "Time for the backend to begin its answer, from the moment when it has the whole request; an \
     upload may take longer.",
);

pub(crate) static DRAIN: DefaultedKey<Nanos> =
    timeout("drain", 30, "Time for running requests to end when the process stops.");

pub(crate) static TUNNEL: DefaultedKey<Nanos> =
    timeout("tunnel", 3_600, "Time without a byte, in both directions, on an upgraded connection.");

pub(crate) static ABORT_LINGER: DefaultedKey<Nanos> = timeout(
    "abort_linger",
    5,
    "Time for which a request is still charged after its client has disconnected. Too low: \
     disconnecting early is cheap.",
);

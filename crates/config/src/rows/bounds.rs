//! The keys of `proxy.bounds`: upper bounds of connections, sizes and streams.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::keys::{ConfigKey, DefaultedKey, SectionTable, ValueSyntax};
use crate::values::{self, Read};

/// The rows of the section.
pub static TABLE: SectionTable = SectionTable {
    path: "proxy.bounds",
    keys: &[
        &CONNECTIONS,
        &CONNECTIONS_PER_ADDRESS,
        &HEADER_BYTES,
        &BODY_BYTES,
        &BODY_BUFFER,
        &REQUESTS_PER_CONNECTION,
        &STREAMS,
        &BACKEND_STREAMS,
    ],
};

/// Upper bound of both numbers of connections.
const CONNECTIONS_MAX: usize = 10_000_000;
/// Upper bound of `streams` and `backend_streams`.
const STREAMS_MAX: u32 = 10_000;

pub(crate) static CONNECTIONS: DefaultedKey<usize> = ConfigKey::whole(
    "connections",
    "Client connections at once; [beyond it](#connections-at-the-bound) idle ones are closed. Each \
     connection may take two open files.",
)
.within(0, CONNECTIONS_MAX)
.low("users wait, and idle connections are closed early")
.high("memory and open files run out")
.default(10_000);

pub(crate) static CONNECTIONS_PER_ADDRESS: DefaultedKey<usize> = ConfigKey::whole(
    "connections_per_address",
    "Client connections at once from one address; a /64 network counts as one IPv6 address. \
     Trusted proxies have no such bound; clients that they name by `proxy-protocol` have it. \
     Further connections are closed at once.",
)
.within(0, CONNECTIONS_MAX)
.low("people who share an address are shut out")
.high("one client has all connections")
.default(0);

pub(crate) static HEADER_BYTES: DefaultedKey<usize> = ConfigKey::new(
    "header_bytes",
    ValueSyntax::Size,
    header_bytes,
    "Size of the head of a request. The heads of all HTTP/2 streams together take at most 8 MiB \
     in each thread; a stream beyond that gets 503, unless it is the only one of its connection.",
)
.range_note("0, or 1k to 16m")
.low("large cookies are refused")
.high("memory for each connection")
.default(64 << 10);

pub(crate) static BODY_BYTES: DefaultedKey<u64> =
    ConfigKey::size("body_bytes", "Size of the body of a request.")
        .low("uploads are refused")
        .default(0);

pub(crate) static BODY_BUFFER: DefaultedKey<usize> = ConfigKey::size(
    "body_buffer",
    "Bodies up to this size are read completely before the backend gets the request, so that a \
     slow client occupies none of its workers. Larger bodies are streamed, and so is gRPC over \
     HTTP/2. All buffers together take at most 32 MiB in each thread; beyond that, bodies are \
     streamed. `0`: all bodies are streamed.",
)
.within(0, 16 << 20)
.low("slow uploads hold connections to the backend")
.high("memory")
.default(64 << 10);

pub(crate) static REQUESTS_PER_CONNECTION: DefaultedKey<u64> =
    ConfigKey::whole("requests_per_connection", "Requests on one client connection.")
        .low("clients reconnect often")
        .default(0);

pub(crate) static STREAMS: DefaultedKey<u32> = ConfigKey::whole(
    "streams",
    "HTTP/2 requests at once on one client connection. Further ones are refused, and the client \
     sends them again.",
)
.within(1, STREAMS_MAX)
.low("pages with many parts load slowly")
.high("one client causes that number of backend requests")
.default(100);

pub(crate) static BACKEND_STREAMS: DefaultedKey<u32> = ConfigKey::whole(
    "backend_streams",
    "HTTP/2 requests at once on one backend connection, and no more than the backend permits. \
     Further ones open another connection.",
)
.within(1, STREAMS_MAX)
.low("more connections")
.high(
    "a broken connection fails that number of requests; memory, 64 KiB for each client that reads \
     slowly",
)
.default(100);

fn header_bytes(text: &str) -> Read<usize> {
    match values::size(text)? {
        0 => Ok(0),
        bytes => values::within(bytes, 1024..=1 << 24),
    }
}

//! The `proxy.bounds` section: upper bounds of connections, sizes and streams.
//!
//! Zero is no bound, except where a row says otherwise.

use crate::keys::{ConfigKey, DefaultedKey, ValueSyntax};
use crate::reader::{SectionReader, settings};
use crate::values::{self, Read};

settings! {
    /// Upper bounds of connections, sizes and streams. Zero is no bound, except where noted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ProxyBounds from keys(section, body_buffer: usize), TABLE = "proxy.bounds";

    /// Client connections at once; [beyond it](#connections-at-the-bound) idle ones are closed.
    /// Each connection may take two open files.
    pub connections: usize, CONNECTIONS: DefaultedKey<usize> = ConfigKey::whole("connections")
        .within(0, CONNECTIONS_MAX).default(10_000)
        .low("users wait, and idle connections are closed early")
        .high("memory and open files run out");
    /// Client connections at once from one address; a /64 network counts as one IPv6 address.
    /// Trusted proxies have no such bound; clients that they name by `proxy-protocol` have it.
    /// Further connections are closed at once.
    pub connections_per_address: usize, CONNECTIONS_PER_ADDRESS: DefaultedKey<usize> =
        ConfigKey::whole("connections_per_address").within(0, CONNECTIONS_MAX).default(0)
            .low("people who share an address are shut out").high("one client has all connections");
    /// Size of the head of a request. The heads of all HTTP/2 streams together take at most 8 MiB
    /// in each thread; a stream beyond that gets 503, unless it is the only one of its connection.
    pub header_bytes: usize, HEADER_BYTES: DefaultedKey<usize> =
        ConfigKey::new("header_bytes", ValueSyntax::Size, header_bytes)
            .range_note("0, or 1k to 16m").default(64 << 10).low("large cookies are refused")
            .high("memory for each connection");
    /// Size of the body of a request.
    pub body_bytes: u64, BODY_BYTES: DefaultedKey<u64> =
        ConfigKey::size("body_bytes").default(0).low("uploads are refused");
    /// Bodies up to this size are read completely before the backend gets the request, so that a
    /// slow client occupies none of its workers. Larger bodies are streamed, and so is gRPC over
    /// HTTP/2. All buffers together take at most 32 MiB in each thread, or 16 times this if that is
    /// more; beyond that, bodies are streamed. `0`: all bodies are streamed. With language models,
    /// a body is not read beyond this size, so the model, the user or `max_tokens` may be unknown.
    pub body_buffer: usize, BODY_BUFFER: ConfigKey<usize> = ConfigKey::size("body_buffer")
        .within(0, 16 << 20).default_note("`65536`; `16777216` with `cost: tokens`")
        .low("slow uploads hold connections to the backend").high("memory").example("64k")
        => section.key_or(&BODY_BUFFER, body_buffer);
    /// Requests on one client connection.
    pub requests_per_connection: u64, REQUESTS_PER_CONNECTION: DefaultedKey<u64> =
        ConfigKey::whole("requests_per_connection").default(0).low("clients reconnect often");
    /// HTTP/2 requests at once on one client connection. Further ones are refused, and the client
    /// sends them again.
    pub streams: u32, STREAMS: DefaultedKey<u32> = ConfigKey::whole("streams")
        .within(1, STREAMS_MAX).default(100).low("pages with many parts load slowly")
        .high("one client causes that number of backend requests");
    /// HTTP/2 requests at once on one backend connection, and no more than the backend permits.
    /// Further ones open another connection.
    pub backend_streams: u32, BACKEND_STREAMS: DefaultedKey<u32> =
        ConfigKey::whole("backend_streams").within(1, STREAMS_MAX).default(100)
            .low("more connections")
            .high("a broken connection fails that number of requests; memory, 64 KiB for each \
                   client that reads slowly");
}

/// Upper bound of both numbers of connections.
const CONNECTIONS_MAX: usize = 10_000_000;
/// Upper bound of `streams` and `backend_streams`.
const STREAMS_MAX: u32 = 10_000;

/// The defaults of `body_buffer`: for small bodies, and with costs in tokens for any prompt.
const BODY_BUFFER_DEFAULT: usize = 64 << 10;
const PROMPT_BUFFER_DEFAULT: usize = 16 << 20;

impl Default for ProxyBounds {
    fn default() -> ProxyBounds {
        SectionReader::defaults(&TABLE, |section| read(section, false))
    }
}

/// Reads the section. `of_tokens`: costs are counted in tokens, so bodies have to be read.
pub(super) fn read(section: &mut SectionReader<'_, '_>, of_tokens: bool) -> ProxyBounds {
    keys(section, if of_tokens { PROMPT_BUFFER_DEFAULT } else { BODY_BUFFER_DEFAULT })
}

fn header_bytes(text: &str) -> Read<usize> {
    match values::size(text)? {
        0 => Ok(0),
        bytes => values::within(bytes, 1024..=1 << 24),
    }
}

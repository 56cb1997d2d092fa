//! Heads that expand from a few bytes: their total size is bounded, and each connection always has
//! room for one.

use super::frames::{END_HEADERS, END_STREAM, HEADERS, begun, fields, frame};
use crate::stage::{Stage, Wire};
use evenkeel_testing::wait::until;

/// The length in bytes of the cookie that each head repeats `COOKIES` times.
const COOKIE_BYTES: usize = 3_000;
const COOKIES: usize = 18;

/// The number of streams on each connection.
const STREAMS: u32 = 90;

/// A length with a prefix of seven bits, with the Huffman bit cleared (RFC 7541, 5.1).
fn length(of: usize) -> Vec<u8> {
    let rest = of.checked_sub(127).expect("longer than the prefix holds");
    vec![127, (rest % 128) as u8 | 128, (rest / 128) as u8]
}

/// The head of a request that repeats one cookie many times. With `first`, it adds the cookie to
/// the dynamic table; after that, each repetition takes one byte.
fn head(method: &str, path: &str, first: bool) -> Vec<u8> {
    let lines = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "a")];
    let mut bytes = fields(&lines);
    if first {
        bytes.extend([0x40, 6]);
        bytes.extend(b"cookie");
        bytes.extend(length(COOKIE_BYTES));
        bytes.extend([b'c'; COOKIE_BYTES]);
    }
    bytes.extend([0x80 | 62; COOKIES]);
    bytes
}

/// Opens streams without ever sending their bodies.
fn stalled(stage: &Stage) -> Wire {
    let mut wire = begun(stage);
    for stream in 0..STREAMS {
        let head = head("POST", "/stalled", stream == 0);
        wire.send(frame(HEADERS, END_HEADERS, 2 * stream + 1, &head));
    }
    wire
}

#[test]
fn heads_are_bounded_in_sum_and_each_connection_has_room_for_one() {
    let stage = Stage::open(|settings| {
        settings.bounds.body_buffer = 1 << 16;
        settings.bounds.header_bytes = 1 << 16;
    });
    let counts = &stage.watch.proxy;
    let mut connections = Vec::new();
    // At 50 kB each, these are more heads than all threads have room for.
    let threads = evenkeel_proxy::threads();
    let all = threads as u64 * (8 << 20) / (COOKIES * COOKIE_BYTES) as u64;
    while counts.requests.get() <= all + u64::from(STREAMS) {
        connections.push(stalled(&stage));
        let came = u64::from(STREAMS) * connections.len() as u64;
        until("they are read", || counts.requests.get() == came);
    }
    until("some are refused", || counts.heads_refused.get() > 0);
    let passed = counts.requests.get() - counts.heads_refused.get();
    let alone = connections.len() as u64;
    assert!(passed <= all + alone, "{passed} of {}, {all} have room", counts.requests.get());

    let mut visitor = begun(&stage);
    visitor.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &head("GET", "/visitor", true)));
    let mut backend = stage.backend_for("/visitor", None);
    backend.answer("ok");
    drop(connections);
    until("the room is given back", || counts.connections.open.get() == 1);
}

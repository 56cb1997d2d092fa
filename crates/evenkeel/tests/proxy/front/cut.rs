//! Bodies that an HTTP/2 client breaks off, with any reset code: the backend never takes the
//! received part for the whole body, and its connection carries no other client's request after it.

use super::frames::{
    DATA, END_HEADERS, Fate, HEADERS, PING, RST_STREAM, begun, fate, fields, frame,
};
use crate::stage::{Stage, Wire};
use evenkeel_testing::wait::until;

const NO_ERROR: u32 = 0;
const CANCEL: u32 = 8;

/// The length of a RST_STREAM frame, in bytes.
const RESET_BYTES: usize = 13;

/// The frames of a POST that states `length`, sends `sent` and is reset with `code`.
fn cut(length: Option<usize>, sent: &[u8], code: u32) -> Vec<u8> {
    let stated = length.map(|length| length.to_string());
    let mut lines =
        vec![(":method", "POST"), (":scheme", "http"), (":path", "/cut"), (":authority", "a")];
    lines.extend(stated.as_deref().map(|length| ("content-length", length)));
    let mut bytes = frame(HEADERS, END_HEADERS, 1, &fields(&lines));
    sent.chunks(16_000).for_each(|data| bytes.extend(frame(DATA, 0, 1, data)));
    bytes.extend(frame(RST_STREAM, 0, 1, &code.to_be_bytes()));
    bytes
}

/// The payload of the next frame of the kind `kind`.
fn next_of(wire: &mut Wire, kind: u8) -> Vec<u8> {
    loop {
        let header = wire.take(9);
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let payload = wire.take(length as usize);
        if header[3] == kind && header[4] == 1 {
            return payload;
        }
    }
}

/// Checks that the connection of the cut request ends, or carries no other request.
fn carries_nothing_else(mut backend: Wire) {
    let rest = backend.rest();
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.contains("GET "), "another request: {rest}");
    assert!(!rest.ends_with("0\r\n\r\n"), "an end that never came: {rest}");
}

#[test]
fn a_cut_body_that_is_passed_on_ends_the_backend_connection() {
    for code in [NO_ERROR, CANCEL] {
        for (length, sent) in [(Some(5_000), 10), (Some(60_300), 60_000), (None, 10)] {
            let stage = Stage::open(|_| {});
            let mut client = begun(&stage);
            let sent = vec![b'x'; sent];
            let bytes = cut(length, &sent, code);
            let (request, reset) = bytes.split_at(bytes.len() - RESET_BYTES);
            client.send(request);
            let mut backend = stage.backend();
            assert!(backend.head().starts_with("POST /cut "));
            // An answer before the end of the body, as servers send most errors.
            backend.answer("early");
            assert_eq!(fate(&mut client, 1), Fate::Answered);
            client.send(reset).send(frame(PING, 0, 0, &[0; 8]));
            assert_eq!(next_of(&mut client, PING), [0; 8], "the reset is read by now");
            let mut other = stage.client();
            other.get("/other");
            let mut fresh = None;
            until("the other request comes on a connection of its own", || {
                fresh = stage.backend_if_any();
                fresh.is_some()
            });
            let mut fresh = fresh.expect("it came");
            assert!(fresh.head().starts_with("GET /other "));
            fresh.answer("own");
            assert_eq!(other.message().text(), "own");
            carries_nothing_else(backend);
        }
    }
}

#[test]
fn a_body_that_is_cut_before_the_answer_ends_the_backend_connection_too() {
    for (length, sent) in [(Some(5_000), 10), (Some(60_300), 60_000), (None, 10)] {
        let stage = Stage::open(|_| {});
        let mut client = begun(&stage);
        let bytes = cut(length, &vec![b'x'; sent], NO_ERROR);
        let (request, reset) = bytes.split_at(bytes.len() - RESET_BYTES);
        client.send(request);
        let mut backend = stage.backend();
        backend.head();
        client.send(reset);
        carries_nothing_else(backend);
        let counts = &stage.watch.proxy;
        until("it is counted", || counts.aborted.get() + counts.bad_requests.get() == 1);
    }
}

#[test]
fn a_cut_body_that_is_kept_back_never_reaches_the_backend() {
    for length in [Some(5_000), None] {
        let stage = Stage::open(|settings| settings.bounds.body_buffer = 1 << 16);
        let mut client = begun(&stage);
        client.send(cut(length, b"ten bytes.", NO_ERROR));
        until("it is refused", || stage.watch.proxy.bad_requests.get() == 1);
        stage.backend_is_left_alone();
    }
}

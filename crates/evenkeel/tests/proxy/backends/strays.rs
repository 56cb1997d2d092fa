//! An HTTP/2 server that sends invalid answers, and clients that break off: an error on one stream
//! ends that stream. The others continue, and new requests use the same connection.

use super::frames::{Behind, head, streams};
use super::lengths::{broken, data};
use crate::front::frames::{END_HEADERS, END_STREAM, HEADERS, RST_STREAM, fields, frame};
use crate::front::http2::{Exchange, Http2, Part};
use crate::stage::Stage;
use evenkeel_telemetry::counts::BackendFault;
use http::{Request, StatusCode};
use std::time::Duration;

/// Answers for which the HTTP/2 library reports a stream error, by name.
fn strays(stream: u32) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let no_status = frame(HEADERS, END_HEADERS, stream, &fields(&[("x-a", "b")]));
    let reset = |code: u32| frame(RST_STREAM, 0, stream, &code.to_be_bytes());
    let mut strays = broken(stream);
    strays.extend([
        ("a head that is too long", vec![long_head(stream)]),
        ("a head without a status", vec![no_status]),
        ("a field of a connection", vec![head(stream, 0, &[("connection", "close")])]),
        ("trailers before a body's end", vec![head(stream, 0, &[]), head(stream, 0, &[])]),
        ("data after the end", vec![head(stream, END_STREAM, &[]), data(stream, "more", 0)]),
    ]);
    strays.extend((1..14).filter(|code| *code != 7).map(|code| ("a reset", vec![reset(code)])));
    strays
}

/// A head of some 80 kB, encoded in a few hundred bytes: the same field many times (RFC 7541,
/// 6.2.1, 6.1).
fn long_head(stream: u32) -> Vec<u8> {
    let mut lines = fields(&[(":status", "200")]);
    lines.extend([0x40, 1, b'x', 126]);
    lines.extend([b'y'; 126]);
    lines.extend([0xbe; 500]);
    frame(HEADERS, END_HEADERS, stream, &lines)
}

/// A client with one connection, so that one thread of the proxy handles all its requests.
fn client(stage: &Stage) -> Http2 {
    Http2::connect(stage.door.addresses()[0])
}

/// Whether the client got an error, or an incomplete answer.
fn has_failed(asked: &Exchange) -> bool {
    match asked.next() {
        Part::Head(head) if head.status == StatusCode::BAD_GATEWAY => true,
        Part::Head(_) => loop {
            match asked.next() {
                Part::Failed => return true,
                Part::End => return false,
                _ => {}
            }
        },
        _ => false,
    }
}

#[test]
fn an_answer_that_is_none_ends_its_own_stream() {
    let stage = Stage::open(streams);
    let client = client(&stage);
    let stays = client.get("/stays");
    let mut behind = Behind::accept(&stage, None);
    let first = behind.request();
    for case in 0..strays(1).len() {
        let asked = client.get("/asked");
        let (name, frames) = strays(behind.next_request()).swap_remove(case);
        behind.send(&frames);
        let ended = name == "data after the end";
        assert_eq!(has_failed(&asked), !ended, "{name}");
        // The next request uses the same connection.
        let next = client.get("/next");
        let stream = behind.next_request();
        behind.answer(stream, "next");
        assert_eq!(next.whole().1, "next", "{name}");
    }
    behind.answer(first, "here");
    assert_eq!(stays.whole().1, "here");
    stage.backend_is_left_alone();
}

#[test]
fn a_client_that_breaks_off_ends_its_own_stream() {
    let stage = Stage::open(|settings| {
        streams(settings);
        settings.bounds.body_bytes = 8;
    });
    let client = client(&stage);
    let stays = client.get("/stays");
    let mut behind = Behind::accept(&stage, None);
    let first = behind.request();
    // One request exceeds the body limit, and one is reset by its client, both after they began.
    let long = client.begin(Request::post("http://site.example/long"));
    long.give("as much");
    behind.next_request();
    long.give("and more");
    assert_eq!(long.head().status, StatusCode::PAYLOAD_TOO_LARGE);
    let gone = client.begin(Request::post("http://site.example/gone"));
    gone.give("as much");
    behind.next_request();
    gone.reset();
    let next = client.get("/next");
    let stream = behind.next_request();
    behind.answer(stream, "next");
    assert_eq!(next.whole().1, "next");
    behind.answer(first, "here");
    assert_eq!(stays.whole().1, "here");
    stage.backend_is_left_alone();
}

/// With four times as many errors, the HTTP/2 library would end the connection with all its
/// streams.
#[test]
fn who_errs_without_end_gets_another_connection_before_the_others_suffer() {
    let stage = Stage::open(streams);
    let client = client(&stage);
    let stays = client.get("/stays");
    let mut behind = Behind::accept(&stage, None);
    let first = behind.request();
    for _ in 0..256 {
        let asked = client.get("/asked");
        let stream = behind.next_request();
        behind.send(&[head(stream, END_STREAM, &[("content-length", "3")])]);
        assert_eq!(asked.head().status, StatusCode::BAD_GATEWAY);
    }
    let next = client.get("/next");
    let mut other = Behind::accept(&stage, None);
    let stream = other.request();
    other.answer(stream, "next");
    assert_eq!(next.whole().1, "next");
    behind.answer(first, "here");
    assert_eq!(stays.whole().1, "here");
    assert_eq!(stage.watch.proxy.failures(BackendFault::Protocol).get(), 256);
}

#[test]
fn an_answer_that_does_not_come_is_its_streams_affair_while_others_come() {
    let stage = Stage::open(|settings| {
        streams(settings);
        settings.timeouts.backend = Duration::from_secs(3);
    });
    let client = client(&stage);
    let late = client.get("/late");
    let mut behind = Behind::accept(&stage, None);
    behind.request();
    let quick = client.get("/quick");
    let stream = behind.request();
    behind.answer(stream, "quick");
    assert_eq!(quick.whole().1, "quick");
    assert_eq!(late.head().status, StatusCode::GATEWAY_TIMEOUT);
    let next = client.get("/next");
    let stream = behind.next_request();
    behind.answer(stream, "next");
    assert_eq!(next.whole().1, "next");
    stage.backend_is_left_alone();
}

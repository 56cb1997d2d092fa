//! HTTP/2 answers with a wrong length: the client gets an error while that is still possible, and
//! never takes the answer for complete.

use super::frames::{Behind, head, streams};
use crate::front::frames::{DATA, END_STREAM, frame};
use crate::front::http2::{Http2, Part};
use crate::stage::Stage;
use evenkeel_telemetry::counts::BackendFault;
use evenkeel_testing::wait::until;

/// A piece of a body.
pub fn data(stream: u32, text: &str, flags: u8) -> Vec<u8> {
    frame(DATA, flags, stream, text.as_bytes())
}

fn until_counted(stage: &Stage) {
    let failures = || stage.watch.proxy.failures(BackendFault::Protocol).get();
    until("it is counted", || failures() == 1);
}

/// Answers with an error that their first frames show, by name.
pub fn broken(stream: u32) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let three = [("content-length", "3")];
    let begun = head(stream, 0, &three);
    let two = head(stream, 0, &[three[0], ("content-length", "2")]);
    let none = head(stream, 0, &[("content-length", "x")]);
    vec![
        ("a length and no body", vec![head(stream, END_STREAM, &three)]),
        ("a longer piece", vec![begun.clone(), data(stream, "long", 0)]),
        ("a longer body", vec![begun.clone(), data(stream, "long", END_STREAM)]),
        ("a shorter body", vec![begun.clone(), data(stream, "it", END_STREAM)]),
        ("an empty body", vec![begun, data(stream, "", END_STREAM)]),
        ("two lengths", vec![two, data(stream, "it", END_STREAM)]),
        ("a length that is no number", vec![none, data(stream, "it", END_STREAM)]),
    ]
}

#[test]
fn what_contradicts_its_length_from_the_start_is_502() {
    for case in 0..broken(1).len() {
        let stage = Stage::open(streams);
        let mut client = stage.client();
        client.get("/");
        let mut behind = Behind::accept(&stage, None);
        let (name, frames) = broken(behind.request()).swap_remove(case);
        behind.send(&frames);
        assert_eq!(client.message().status(), 502, "{name}");
        until_counted(&stage);
        assert_eq!(stage.engine.load().0, 0, "{name}: its account is closed");
        // Both connections stay usable.
        client.get("/next");
        let stream = behind.next_request();
        behind.answer(stream, "next");
        assert_eq!(client.message().text(), "next", "{name}");
    }
}

#[test]
fn it_is_502_on_a_stream_too() {
    for case in 0..broken(1).len() {
        let stage = Stage::open(streams);
        let client = Http2::connect(stage.door.addresses()[0]);
        let asked = client.get("/");
        let mut behind = Behind::accept(&stage, None);
        let (name, frames) = broken(behind.request()).swap_remove(case);
        behind.send(&frames);
        assert_eq!(asked.head().status, 502, "{name}");
        until_counted(&stage);
    }
}

#[test]
fn what_contradicts_it_later_is_never_taken_for_whole() {
    for (name, before, after) in [("longer", "", "long"), ("shorter", "it", "")] {
        let stage = Stage::open(streams);
        let mut client = stage.client();
        client.get("/");
        let mut behind = Behind::accept(&stage, None);
        let stream = behind.request();
        behind.send(&[head(stream, 0, &[("content-length", "3")])]);
        if !before.is_empty() {
            behind.send(&[data(stream, before, 0)]);
        }
        assert!(client.head().starts_with("HTTP/1.1 200 "), "{name}");
        client.expect(before);
        behind.send(&[data(stream, after, END_STREAM)]);
        client.ends();
        until_counted(&stage);
    }
}

/// If no byte were passed on, the client would assume that the connection was closed before its
/// request arrived, and would send the request again.
#[test]
fn what_came_of_a_broken_answer_is_passed_on() {
    let frames = |stream| {
        let lines = [("content-length", "9")];
        [head(stream, 0, &lines), data(stream, "half", 0), data(stream, "more than it", 0)]
    };
    let stage = Stage::open(streams);
    let mut client = stage.client();
    client.get("/");
    let mut behind = Behind::accept(&stage, None);
    let stream = behind.request();
    behind.send(&frames(stream));
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    client.expect("half");
    client.ends();
    until_counted(&stage);
    let stage = Stage::open(streams);
    let client = Http2::connect(stage.door.addresses()[0]);
    let asked = client.get("/");
    let mut behind = Behind::accept(&stage, None);
    let stream = behind.request();
    behind.send(&frames(stream));
    assert_eq!(asked.head().status, 200);
    loop {
        match asked.next() {
            Part::Data(data) => assert_eq!(data, "half"),
            Part::Failed => break,
            other => panic!("{other:?} in place of an end before its time"),
        }
    }
}

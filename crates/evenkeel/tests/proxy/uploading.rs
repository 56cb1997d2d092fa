//! Request bodies that are read before the backend is contacted, and those that are not.

use crate::stage::{Stage, Wire};
use evenkeel_config::settings::{ConcurrencySetting, ProxySettings};
use evenkeel_core::limit::LimitAction;
use evenkeel_testing::wait::until;
use std::time::{Duration, Instant};

/// A proxy that buffers up to `bound` bytes of each body.
fn keeping(bound: usize, change: impl FnOnce(&mut ProxySettings)) -> Stage {
    Stage::open(|settings| {
        settings.action = LimitAction::Queue;
        settings.queue.concurrency = ConcurrencySetting::Fixed(1);
        settings.queue.reserve = 0;
        settings.bounds.body_buffer = bound;
        change(settings);
    })
}

/// A client that has sent half a request, which the proxy has read, and a connection to the backend
/// on which the request of another client was answered.
fn half(stage: &Stage, text: &str) -> (Wire, Wire) {
    let mut client = stage.client();
    client.send(text);
    until("the proxy has the head", || stage.watch.proxy.requests.get() == 1);
    // When another client gets its answer, the proxy has read the half before.
    let mut other = stage.client();
    other.get("/other");
    let mut backend = stage.backend();
    assert!(backend.message().head.starts_with("GET /other "), "the half came first");
    backend.answer("ok");
    other.message();
    stage.backend_is_left_alone();
    assert!(backend.is_silent());
    (client, backend)
}

#[test]
fn the_backend_hears_of_a_small_body_when_it_is_whole() {
    let stage = keeping(6, |_| {});
    let (mut client, backend) =
        half(&stage, "POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\none");
    client.send("two");
    let mut backend = stage.backend_for("/a", backend);
    backend.expect("onetwo");
    backend.answer("done");
    assert_eq!(client.message().text(), "done");
}

#[test]
fn chunks_are_kept_with_their_trailers() {
    let stage = keeping(6, |_| {});
    let head =
        "POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n";
    let (mut client, backend) = half(&stage, &format!("{head}3\r\none\r\n2\r\ntw\r\n"));
    client.send("0\r\nx-sum: 5\r\n\r\n");
    let mut backend = stage.backend_for("/a", backend);
    backend.expect("5\r\nonetw\r\n0\r\nx-sum: 5\r\n\r\n");
    backend.answer("done");
    assert_eq!(client.message().text(), "done");
}

#[test]
fn a_body_in_chunks_is_passed_on_when_it_is_longer_than_is_kept() {
    let stage = keeping(6, |_| {});
    let head = "POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let (mut client, backend) = half(&stage, &format!("{head}3\r\none\r\n"));
    client.send("3\r\ntwo\r\n");
    let mut backend = stage.backend_for("/a", backend);
    backend.expect("6\r\nonetwo\r\n");
    client.send("1\r\n!\r\n0\r\n\r\n");
    backend.expect("1\r\n!\r\n0\r\n\r\n");
    backend.answer("done");
    assert_eq!(client.message().text(), "done");
}

#[test]
fn an_empty_body_in_chunks_stays_one() {
    let stage = keeping(6, |_| {});
    let head = "POST /a HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let (mut client, backend) = half(&stage, head);
    client.send("0\r\n\r\n");
    let mut backend = stage.backend_for("/a", backend);
    backend.expect("0\r\n\r\n");
    backend.answer("done");
    assert_eq!(client.message().text(), "done");
}

#[test]
fn long_bodies_are_passed_on_at_once() {
    let stage = keeping(6, |_| {});
    let mut client = stage.client();
    client.send("POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 7\r\n\r\none");
    let mut backend = stage.backend();
    backend.head();
    backend.expect("one");
    client.send("two!");
    backend.expect("two!");
    backend.answer("ok");
    assert_eq!(client.message().text(), "ok");
}

/// HTTP/1.1 has no bidirectional calls, whatever content type a client sends.
#[test]
fn the_content_type_of_a_call_keeps_no_body_from_being_kept_back() {
    let stage = keeping(6, |_| {});
    let head = "POST /a HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc\r\n";
    let (mut client, backend) = half(&stage, &format!("{head}content-length: 6\r\n\r\none"));
    client.send("two");
    let mut backend = stage.backend_for("/a", backend);
    backend.expect("onetwo");
    backend.answer("done");
    assert_eq!(client.message().text(), "done");
}

/// A client that sends almost nothing for five seconds makes room for waiting ones.
#[test]
fn a_body_that_trickles_makes_room_for_another_connection() {
    let stage = keeping(1 << 16, |settings| {
        settings.bounds.connections = 2;
        settings.timeouts.header = Duration::from_millis(400);
    });
    let mut trickling: Vec<Wire> = (0..2).map(|_| stage.client()).collect();
    for client in &mut trickling {
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n");
    }
    until("the proxy has both", || stage.watch.proxy.requests.get() == 2);
    let mut visitor = stage.client();
    visitor.get("/");
    let mut backend = None;
    let (begun, mut sent) = (Instant::now(), 0);
    until("the visitor's request comes", || {
        // One byte now and then is not enough.
        if begun.elapsed() > sent * Duration::from_millis(100) {
            trickling.iter_mut().for_each(|client| _ = client.try_send(b"x"));
            sent += 1;
        }
        backend = stage.backend_if_any();
        backend.is_some()
    });
    let mut backend = backend.expect("it came");
    backend.message();
    backend.answer("ok");
    assert_eq!(visitor.message().text(), "ok");
    assert!(stage.watch.proxy.connections.shed.get() > 0);
}

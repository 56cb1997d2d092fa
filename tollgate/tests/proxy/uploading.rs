//! Requests' bodies that are read before the backend is asked, and those that are not.

use crate::stage::{Stage, Wire, until};
use std::time::Duration;
use tollgate::config::settings::{Concurrency, Proxy};
use tollgate_core::limit::Action;

/// A proxy that keeps up to `bound` bytes of each body.
fn keeping(bound: usize, change: impl FnOnce(&mut Proxy)) -> Stage {
    Stage::open(|settings| {
        settings.action = Action::Queue;
        settings.queue.concurrency = Concurrency::Fixed(1);
        settings.queue.reserve = 0;
        settings.bounds.body_buffer = bound;
        change(settings);
    })
}

/// A client that has sent half a request, which the proxy has, and a connection to the backend that
/// another one's was answered on.
fn half(stage: &Stage, text: &str) -> (Wire, Wire) {
    let mut client = stage.client();
    client.send(text);
    until("the proxy has the head", || stage.watch.proxy.requests.get() == 1);
    // Whatever another client has an answer to, the half was there before.
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
fn long_bodies_and_calls_by_turns_are_passed_on_at_once() {
    let stage = keeping(6, |_| {});
    let kinds = ["", "content-type: application/grpc+proto\r\n"];
    for (kind, length) in kinds.into_iter().zip([7, 6]) {
        let mut client = stage.client();
        let head = format!("POST /a HTTP/1.1\r\nhost: a\r\n{kind}content-length: {length}\r\n");
        client.send(format!("{head}connection: close\r\n\r\none"));
        let mut backend = stage.backend();
        backend.head();
        backend.expect("one");
        client.send("two!".get(..length - 3).unwrap_or(""));
        backend.expect("two");
        backend.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok");
        assert_eq!(client.message().text(), "ok");
    }
}

#[test]
fn a_body_that_does_not_come_breaks_off_or_is_too_long_leaves_the_backend_alone() {
    let length = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\none";
    let chunks = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let (bad, long) = (format!("{chunks}zz\r\n"), format!("{chunks}6\r\nonetwo\r\n"));
    for (text, status) in [(length, 408), (&bad[..], 400), (&long, 413)] {
        let stage = keeping(6, |settings| {
            settings.timeouts.idle = Duration::from_millis(100);
            settings.bounds.body_bytes = if status == 413 { 5 } else { 0 };
        });
        let mut client = stage.client();
        client.send(text);
        let answer = client.message();
        assert_eq!((answer.status(), answer.header("connection")), (status, Some("close")));
        stage.backend_is_left_alone();
        assert_eq!(stage.engine.crowd().map(|crowd| crowd.running), Some(0));
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_of_its_body_is_forgotten() {
    let stage = keeping(6, |_| {});
    let (client, _backend) =
        half(&stage, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\none");
    drop(client);
    until("nobody is there", || stage.watch.proxy.connections.get() == 0);
    stage.backend_is_left_alone();
}

//! Connections that switch from HTTP to another protocol after a request: WebSockets, and requests
//! that are refused as upgrades.

use crate::stage::{LONG, Stage};
use evenkeel_serve::service::Service as _;
use evenkeel_testing::wait::until;
use std::time::Duration;

const ASKED: &str = "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\n\
    upgrade: WebSocket\r\nsec-websocket-key: x\r\n\r\n";

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
    upgrade: websocket\r\nsec-websocket-accept: y\r\n\r\n";

#[test]
fn bytes_pass_both_ways_after_a_switch() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    // Bytes that follow the head immediately are not lost.
    client.send([ASKED, "early up"].concat());
    let mut backend = stage.backend();
    let head = backend.head();
    assert!(head.contains("connection: upgrade\r\n"), "{head}");
    assert!(head.contains("upgrade: WebSocket\r\n"), "{head}");
    assert!(head.contains("sec-websocket-key: x\r\n"), "{head}");
    assert!(head.contains("x-forwarded-for: 127.0.0.1\r\n"), "{head}");
    backend.send([SWITCHED, "early down"].concat());
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(head.to_lowercase().contains("upgrade: websocket\r\n"), "{head}");
    assert!(head.to_lowercase().contains("connection: upgrade\r\n"), "{head}");
    client.expect("early down");
    backend.expect("early up");
    assert_eq!(stage.engine.load().0, 0, "it is off the meter");
    for text in ["one", "GET / HTTP/1.1\r\n\r\n", "\0\u{1}"] {
        client.send(text);
        backend.expect(text);
        backend.send(text);
        client.expect(text);
    }
    assert_eq!(stage.watch.proxy.backend_connections.get(), 1);
    drop(backend);
    client.ends();
    until("it is closed", || stage.watch.proxy.backend_connections.get() == 0);
    until("it has no place", || stage.door.connections() == 0);
}

#[test]
fn megabytes_pass_and_a_side_may_end_first() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send(ASKED);
    let mut backend = stage.backend();
    backend.head();
    backend.send(SWITCHED);
    client.head();
    let size = 8 << 20;
    let mut up = client.again();
    let sender = std::thread::spawn(move || {
        assert_eq!(up.pour(size), size);
        up.shut();
    });
    assert_eq!(backend.take(size).len(), size);
    sender.join().expect("all is sent");
    backend.ends();
    backend.send("and an answer").shut();
    client.expect("and an answer");
    client.ends();
}

#[test]
fn what_is_no_websocket_is_not_switched() {
    for (name, lines) in [
        ("another protocol", "connection: upgrade\r\nupgrade: foo\r\n"),
        ("h2c", "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: x\r\n"),
        ("two protocols", "connection: upgrade\r\nupgrade: websocket, h2c\r\n"),
        ("two lines", "connection: upgrade\r\nupgrade: websocket\r\nupgrade: websocket\r\n"),
        ("connection says nothing of it", "upgrade: websocket\r\n"),
    ] {
        let stage = Stage::open(|_| {});
        let mut client = stage.client();
        client.send(format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}\r\n"));
        let mut backend = stage.backend();
        let request = backend.message();
        assert_eq!(request.header("upgrade"), None, "{name}");
        assert_eq!(request.header("connection"), None, "{name}");
        backend.send(SWITCHED);
        assert_eq!(client.message().status(), 502, "{name}: nobody asked for it");
    }
}

#[test]
fn a_request_with_a_body_is_not_switched() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send(
        "POST / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         content-length: 2\r\n\r\nab",
    );
    let mut backend = stage.backend();
    let request = backend.message();
    assert_eq!((request.header("upgrade"), request.text()), (None, "ab"));
}

#[test]
fn a_backend_may_decline() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send(ASKED);
    let mut backend = stage.backend();
    backend.head();
    backend.answer("no chat here");
    assert_eq!(client.message().text(), "no chat here");
    client.get("/next");
    backend.message();
    backend.answer("next");
    assert_eq!(client.message().text(), "next");
}

#[test]
fn a_silent_tunnel_ends() {
    let stage = Stage::open(|settings| settings.timeouts.tunnel = Duration::from_millis(100));
    let mut client = stage.client();
    client.send(ASKED);
    let mut backend = stage.backend();
    backend.head();
    backend.send(SWITCHED);
    client.head();
    client.ends();
    backend.ends();
}

#[test]
fn a_drain_waits_for_tunnels_and_then_cuts_them() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send(ASKED);
    let mut backend = stage.backend();
    backend.head();
    backend.send(SWITCHED);
    client.head();
    stage.door.threads().drain(LONG);
    client.send("still");
    backend.expect("still");
    stage.door.threads().drain(Duration::from_millis(50));
    client.ends();
    backend.ends();
}

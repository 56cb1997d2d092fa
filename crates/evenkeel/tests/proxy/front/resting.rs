//! Connections that are idle for a while: they take hardly any memory, and clients do not notice a
//! difference.

use super::tls::{Authority, connect, front, under};
use crate::stage::{LONG, Stage, Wire};
use evenkeel_serve::service::Service as _;
use evenkeel_testing::wait::until;
use std::io::{Read, Write};
use std::time::Duration;

/// Waits until `count` connections are parked.
fn until_resting(stage: &Stage, count: i64) {
    until("so many rest", || stage.watch.proxy.resting.get() == count);
}

/// A client with a parked connection after one request, and the backend that answered it.
fn resting(stage: &Stage) -> (Wire, Wire) {
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("ok");
    client.message();
    until_resting(stage, 1);
    (client, backend)
}

fn answer(stage: &Stage, client: &mut Wire, backend: Wire, path: &str) -> Wire {
    let mut backend = stage.backend_for(path, backend);
    backend.answer(path);
    assert_eq!(client.message().text(), path);
    backend
}

#[test]
fn it_goes_on_when_bytes_come() {
    let stage = Stage::open(|_| {});
    let (mut client, mut backend) = resting(&stage);
    for path in ["/1", "/2"] {
        client.get(path);
        backend = answer(&stage, &mut client, backend, path);
        until_resting(&stage, 1);
    }
    // A request that arrives in pieces.
    client.send("GET /pieces HTTP/1.1\r\nho");
    until_resting(&stage, 0);
    client.send("st: a\r\n\r\n");
    backend = answer(&stage, &mut client, backend, "/pieces");
    until_resting(&stage, 1);
    // If the beginning of a request arrived with the previous one, the rest is awaited as usual.
    client.send("GET /one HTTP/1.1\r\nhost: a\r\n\r\nGET /two HTTP/1.1\r\nhost: ");
    backend = answer(&stage, &mut client, backend, "/one");
    client.send("a\r\n\r\n");
    answer(&stage, &mut client, backend, "/two");
    until_resting(&stage, 1);
    client.shut();
    client.ends();
    until("it is closed", || stage.door.connections() == 0);
    assert_eq!(stage.watch.proxy.resting.get(), 0);
}

#[test]
fn a_longer_head_than_is_read_at_first_is_whole() {
    let stage = Stage::open(|_| {});
    let (mut client, mut backend) = resting(&stage);
    let long = "x".repeat(10_000);
    let head = format!("POST /long HTTP/1.1\r\nhost: a\r\nx: {long}\r\ncontent-length: 4\r\n");
    client.send(format!("{head}\r\nbody"));
    let asked = backend.message();
    assert_eq!((asked.header("x"), asked.text()), (Some(&*long), "body"));
    backend.answer("ok");
    assert_eq!(client.message().text(), "ok");
}

#[test]
fn it_is_closed_like_any_other() {
    // Closed by its timeout.
    let stage = Stage::open(|settings| settings.timeouts.idle = Duration::from_secs(4));
    let (mut client, _backend) = resting(&stage);
    client.ends();
    // Closed to make room.
    let stage = Stage::open(|settings| settings.bounds.connections = 1);
    let (mut client, backend) = resting(&stage);
    let mut other = stage.client();
    other.get("/other");
    client.ends();
    answer(&stage, &mut other, backend, "/other");
    assert_eq!(stage.watch.proxy.connections.shed.get(), 1);
    // Closed with the door.
    let stage = Stage::open(|_| {});
    let (mut client, _backend) = resting(&stage);
    stage.door.threads().drain(LONG);
    client.ends();
}

#[test]
fn what_is_no_request_is_told_so() {
    let stage = Stage::open(|_| {});
    let (mut client, _backend) = resting(&stage);
    client.send("nonsense\r\n\r\n");
    assert_eq!(client.message().status(), 400);
    let stage = Stage::open(|settings| settings.timeouts.header = Duration::from_secs(2));
    let (mut client, _backend) = resting(&stage);
    client.send("GET / HT");
    assert_eq!(client.message().status(), 408);
    client.ends();
}

#[test]
fn it_rests_under_tls() {
    let authority = Authority::new();
    let stage = Stage::open(under(front(vec![authority.sign("a.example")])));
    let client = authority.client(&["http/1.1"], None);
    let (mut stream, _) = connect(stage.door.addresses()[0], &client, "a.example").expect("tls");
    stream.sock.set_read_timeout(Some(LONG)).expect("a timeout");
    let mut backend = None;
    for path in ["/1", "/2"] {
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("taken");
        // The backend reads the head before it answers: an answer without a request would end the
        // connection.
        let mut wire = stage.backend_for(path, backend.take());
        wire.answer("under TLS");
        let mut answer = Vec::new();
        while !answer.ends_with(b"under TLS") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            answer.extend(byte);
        }
        backend = Some(wire);
        until_resting(&stage, 1);
    }
    stream.conn.send_close_notify();
    stream.flush().expect("taken");
    assert_eq!(stream.read(&mut [0]).expect("an end that is told"), 0);
}

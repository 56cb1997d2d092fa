//! A server that disappears with a request on a kept-alive connection. One attempt to reconnect
//! fails, and then other servers get the request, if it may be sent again at all.

use super::frames::Behind;
use super::http2::Server;
use super::{asked, nobody, server};
use crate::front::http2::{Exchange, Http2};
use crate::stage::{Stage, Wire};
use evenkeel_config::settings::{BackendAddress, BackendScheme};
use evenkeel_telemetry::counts::BackendFault;
use http::{Request, StatusCode};
use std::net::TcpListener;
use std::thread;

/// A server that answers its first request with `a`, and disappears at its second one.
pub fn goes() -> BackendAddress {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = BackendAddress::http(listener.local_addr().expect("an address").to_string());
    thread::spawn(move || {
        let mut wire = Wire::new(listener.accept().expect("a connection").0);
        wire.head();
        wire.answer("a");
        wire.head();
        drop(listener);
    });
    at
}

/// The way in which an HTTP/2 server disappears.
#[derive(Clone, Copy)]
pub enum Going {
    Silently,
    /// It announces with GOAWAY that it has not processed the request.
    Announced,
}

/// An HTTP/2 server that answers its first request with `a`, and disappears at its second one on
/// the same connection. If the second request is a POST, its body is read first.
pub fn goes_in_streams(going: Going) -> BackendAddress {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        let wire = Wire::new(listener.accept().expect("a connection").0);
        let mut behind = Behind::on(wire, None);
        let first = behind.request();
        behind.answer(first, "a");
        while !behind.next().ends() {}
        drop(listener);
        if let Going::Announced = going {
            behind.goes_away(first);
        }
    });
    BackendAddress { scheme: BackendScheme::H2c, place }
}

fn failures(stage: &Stage) -> (u64, u64) {
    let count = |fault| stage.watch.proxy.failures(fault).get();
    (count(BackendFault::Connect), count(BackendFault::Closed))
}

#[test]
fn what_does_no_harm_twice_goes_to_another() {
    let backends = vec![goes(), server("b")];
    let stage = Stage::open(|settings| settings.backends = backends);
    assert_eq!(asked(&stage, 3), ["a", "b", "b"]);
    assert_eq!(failures(&stage), (1, 0), "the server that is gone has failed");
    let backends = vec![goes(), nobody(), server("b")];
    let stage = Stage::open(|settings| settings.backends = backends);
    assert_eq!(asked(&stage, 4), ["a", "b", "b", "b"]);
}

#[test]
fn what_may_have_been_done_does_not() {
    let backends = vec![goes(), server("b")];
    let stage = Stage::open(|settings| settings.backends = backends);
    let mut client = stage.client();
    assert_eq!(client.get("/").message().text(), "a");
    assert_eq!(client.get("/").message().text(), "b");
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(client.message().status(), 502);
    assert_eq!(failures(&stage), (0, 1));
}

#[test]
fn who_has_been_tried_before_is_not_asked_again() {
    let backends = vec![goes(), nobody()];
    let stage = Stage::open(|settings| settings.backends = backends);
    let mut client = stage.client();
    assert_eq!(client.get("/").message().text(), "a");
    // The other server is next.
    assert_eq!(client.get("/").message().status(), 502);
    assert_eq!(failures(&stage), (2, 0), "each of them, once");
}

/// Sends a request, with a body if there is one, to a server that disappears with it. Returns the
/// status, the body of the answer, and the failure counts.
fn gone(going: Going, body: Option<&'static str>) -> (StatusCode, String, (u64, u64)) {
    let server = Server::open();
    let backends = vec![goes_in_streams(going), server.at.clone()];
    let stage = Stage::open(|settings| settings.backends = backends);
    let client = Http2::connect(stage.door.addresses()[0]);
    assert_eq!(client.get("/").whole().1, "a");
    // The other server returns the body that it gets.
    assert_eq!(client.get("/").whole().1, "");
    let asked = ask(&client, body);
    let (head, said) = asked.whole();
    let others = usize::from(head.status == StatusCode::OK);
    assert_eq!(server.asked().len(), 1 + others, "sent once");
    (head.status, said, failures(&stage))
}

fn ask(client: &Http2, body: Option<&'static str>) -> Exchange {
    let Some(body) = body else { return client.get("/") };
    let mut asked = client.begin(Request::post("http://site.example/p"));
    asked.give(body);
    asked.end();
    asked
}

#[test]
fn streams_go_to_another_on_the_same_conditions() {
    let (status, _, failures) = gone(Going::Silently, None);
    assert_eq!((status, failures), (StatusCode::OK, (1, 0)));
    let (status, _, failures) = gone(Going::Silently, Some("sent"));
    assert_eq!((status, failures), (StatusCode::BAD_GATEWAY, (0, 1)), "it may have been done");
    let (status, said, failures) = gone(Going::Announced, Some("sent"));
    assert_eq!((status, &*said, failures), (StatusCode::OK, "sent", (1, 0)));
}

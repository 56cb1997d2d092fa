//! Connections to HTTP/2 servers that end while idle, with an announcement, or at once. The next
//! request neither waits for such a connection nor is lost with it. Also: answers that are cut off.

use super::frames::{Behind, all_closed, streams};
use super::http2::Server;
use crate::front::http2::{Exchange, Http2, Part};
use crate::stage::Stage;
use evenkeel_config::settings::{BackendAddress, BackendScheme};
use evenkeel_telemetry::counts::BackendFault;
use evenkeel_testing::wait::until;
use http::{Request, StatusCode};
use std::net::TcpListener;
use std::thread;

/// HTTP/2's code of a reset without an error.
const NO_ERROR: u32 = 0;

/// A stage with an HTTP/2 backend, a client with one connection, the connection to the backend on
/// which its first request was answered, and the stream of that request.
fn answered_once() -> (Stage, Http2, Behind, u32) {
    let stage = Stage::open(streams);
    let client = Http2::connect(stage.door.addresses()[0]);
    let asked = client.get("/");
    let mut behind = Behind::accept(&stage, None);
    let stream = behind.request();
    behind.answer(stream, "first");
    assert_eq!(asked.whole().1, "first");
    (stage, client, behind, stream)
}

/// Checks that several requests at once, one of them with a body, all use one new connection.
fn the_next_ones_go_elsewhere(stage: &Stage, client: &Http2) -> Behind {
    let mut post = client.begin(Request::post("http://site.example/p"));
    post.give("sent");
    post.end();
    let gets: Vec<Exchange> = (0..9).map(|_| client.get("/")).collect();
    let mut behind = Behind::accept(stage, None);
    let mut answered = 0;
    while answered < 10 {
        let frame = behind.next();
        if frame.ends() {
            answered += 1;
            behind.answer(frame.stream, "next");
        }
    }
    assert_eq!(post.whole().1, "next");
    gets.iter().for_each(|get| assert_eq!(get.whole().1, "next"));
    stage.backend_is_left_alone();
    assert_eq!(stage.watch.proxy.failures(BackendFault::Closed).get(), 0);
    behind
}

#[test]
fn a_connection_that_was_closed_while_idle_is_not_waited_for() {
    let (stage, client, mut behind, _) = answered_once();
    for _ in 0..3 {
        drop(behind);
        all_closed(&stage);
        behind = the_next_ones_go_elsewhere(&stage, &client);
    }
    // The proxy has not noticed the end yet.
    drop(behind);
    let asked = client.get("/");
    let mut other = Behind::accept(&stage, None);
    let stream = other.request();
    other.answer(stream, "here");
    assert_eq!(asked.whole().1, "here");
}

#[test]
fn nor_is_one_whose_server_has_said_that_it_goes() {
    let (stage, client, mut behind, stream) = answered_once();
    // The server leaves closing the connection to the proxy.
    behind.goes_away(stream);
    assert!(behind.try_next().is_none(), "it is closed");
    let mut behind = the_next_ones_go_elsewhere(&stage, &client);
    // The server also closes the connection.
    behind.goes_away(19);
    drop(behind);
    all_closed(&stage);
    the_next_ones_go_elsewhere(&stage, &client);
}

#[test]
fn who_says_so_with_an_answer_or_before_it_is_heard_out() {
    let (stage, client, mut behind, _) = answered_once();
    let asked = client.get("/");
    let stream = behind.request();
    behind.head(stream).data(stream, "last", true).goes_away(stream);
    assert_eq!(asked.whole().1, "last");
    let mut behind = the_next_ones_go_elsewhere(&stage, &client);
    let asked = client.get("/");
    let stream = behind.request();
    behind.goes_away(stream);
    let other = the_next_ones_go_elsewhere(&stage, &client);
    behind.answer(stream, "late");
    assert_eq!(asked.whole().1, "late");
    drop(other);
}

/// A server that closes each connection as soon as it is accepted.
fn shuts() -> BackendAddress {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || listener.incoming().for_each(drop));
    BackendAddress { scheme: BackendScheme::H2c, place }
}

#[test]
fn who_closes_at_once_has_failed_at_once() {
    let stage = Stage::open(|settings| settings.backends = vec![shuts()]);
    let client = Http2::connect(stage.door.addresses()[0]);
    for _ in 0..5 {
        let asked: Vec<Exchange> = (0..10).map(|_| client.get("/")).collect();
        asked.iter().for_each(|asked| assert_eq!(asked.head().status, StatusCode::BAD_GATEWAY));
    }
    until("all is closed", || stage.watch.proxy.backend_connections.get() == 0);
    // Another server gets the requests instead.
    let server = Server::open();
    let both = vec![shuts(), server.at.clone()];
    let stage = Stage::open(|settings| settings.backends = both);
    let client = Http2::connect(stage.door.addresses()[0]);
    for _ in 0..5 {
        assert_eq!(client.get("/").whole().0.status, StatusCode::OK);
    }
}

#[test]
fn an_answer_that_is_cut_off_without_an_error_is_not_whole() {
    let (_stage, client, mut behind, _) = answered_once();
    let asked = client.get("/");
    let stream = behind.request();
    behind.head(stream).data(stream, "half", false);
    assert_eq!(asked.head().status, StatusCode::OK);
    assert!(matches!(asked.next(), Part::Data(_)));
    behind.reset(stream, NO_ERROR);
    assert!(matches!(asked.next(), Part::Failed));
    // After a complete answer, the reset only means that the rest of the request is not wanted.
    let asked = client.begin(Request::post("http://site.example/p"));
    asked.give("begun");
    let stream = behind.request();
    behind.answer(stream, "whole");
    behind.reset(stream, NO_ERROR);
    assert_eq!(asked.whole().1, "whole");
}

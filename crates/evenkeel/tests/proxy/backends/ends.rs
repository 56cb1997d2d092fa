//! How connections to servers of HTTP/2 end: idle, announced, at once; and that the next request
//! neither waits for what has ended nor is lost with it. Answers that are cut off.

use super::frames::{Behind, all_closed, streams};
use super::http2::Server;
use crate::front::http2::{Exchange, Http2, Part};
use crate::stage::{Stage, until};
use evenkeel::config::settings::{Backend, Scheme};
use evenkeel::watch::counts::BackendFault;
use http::{Request, StatusCode};
use std::net::TcpListener;
use std::thread;

/// What HTTP/2 calls a reset without a fault.
const NO_ERROR: u32 = 0;

/// A stage before streams, a client all of whose requests are one thread's, and the connection on
/// which its first request was answered, on this stream.
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

/// Several requests at once, one of them with a body, reach one more connection.
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
    // Nobody has noticed yet.
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
    // It leaves the closing to us.
    behind.goes_away(stream);
    assert!(behind.try_next().is_none(), "it is closed");
    let mut behind = the_next_ones_go_elsewhere(&stage, &client);
    // It closes too.
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

/// A server that closes each connection as soon as it is there.
fn shuts() -> Backend {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || listener.incoming().for_each(drop));
    Backend { scheme: Scheme::H2c, place }
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
    // Another server is asked instead.
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
    // After its end it only says that no more of the request is wanted.
    let asked = client.begin(Request::post("http://site.example/p"));
    asked.give("begun");
    let stream = behind.request();
    behind.answer(stream, "whole");
    behind.reset(stream, NO_ERROR);
    assert_eq!(asked.whole().1, "whole");
}

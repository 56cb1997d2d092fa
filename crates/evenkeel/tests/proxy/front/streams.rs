//! HTTP/2 without TLS: each stream is an exchange of its own, and the backend gets HTTP/1.1.

use super::http2::{Http2, Part};
use crate::stage::{LONG, Stage, cpu_limit, hit_limit};
use evenkeel_serve::service::Service as _;
use evenkeel_testing::wait::until;
use http::{HeaderMap, HeaderValue, Request};
use std::time::Duration;

#[test]
fn a_request_and_its_answer_pass() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    let request = Request::get("http://site.example:81/a?b=%20")
        .header("x-own", "1")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .header("te", "trailers");
    let exchange = client.bodyless(request);
    let mut backend = stage.backend();
    let request = backend.message();
    assert!(request.head.starts_with("GET /a?b=%20 HTTP/1.1\r\n"), "{}", request.head);
    assert_eq!(request.header("host"), Some("site.example:81"));
    assert_eq!(request.header("x-own"), Some("1"));
    assert_eq!(request.header("cookie"), Some("a=1; b=2"), "RFC 9113, 8.2.3");
    assert_eq!(request.header("te"), Some("trailers"));
    assert_eq!(request.header("connection"), Some("te"));
    assert_eq!(request.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(request.header("x-forwarded-proto"), Some("http"));
    assert_eq!(request.header("x-forwarded-host"), Some("site.example:81"));
    assert_eq!(request.header("content-length"), None);
    backend.send(
        "HTTP/1.1 404 Gone\r\ncontent-length: 2\r\nserver: own\r\nconnection: x-hop\r\n\
         x-hop: 1\r\nkeep-alive: 5\r\n\r\nno",
    );
    let (head, body) = exchange.whole();
    assert_eq!((head.status.as_u16(), body.as_str()), (404, "no"));
    assert_eq!(head.headers["server"], "own");
    for gone in ["connection", "x-hop", "keep-alive", "date"] {
        assert!(!head.headers.contains_key(gone), "{gone}");
    }
}

#[test]
fn streams_run_at_once_and_are_answered_in_any_order() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    let first = client.get("/1");
    let mut one = stage.backend();
    assert!(one.head().starts_with("GET /1 "));
    let second = client.get("/2");
    let mut two = stage.backend();
    assert!(two.head().starts_with("GET /2 "));
    two.answer("two");
    assert_eq!(second.whole().1, "two");
    one.answer("one");
    assert_eq!(first.whole().1, "one");
}

#[test]
fn bodies_and_trailers_stream_both_ways() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    let mut exchange = client.begin(Request::post("http://a/").header("te", "trailers"));
    exchange.give("one");
    let mut backend = stage.backend();
    let head = backend.head();
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    backend.expect("3\r\none\r\n");
    backend.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    assert_eq!(exchange.head().status, 200);
    assert!(matches!(exchange.next(), Part::Data(data) if data == "first"));
    exchange.give("two");
    backend.expect("3\r\ntwo\r\n");
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("7"));
    exchange.end_with(trailers);
    backend.expect("0\r\nx-sum: 7\r\n\r\n");
    backend.send("4\r\nlast\r\n0\r\ngrpc-status: 0\r\n\r\n");
    let (rest, trailers) = exchange.rest();
    assert_eq!(rest, "last");
    assert_eq!(trailers.expect("trailers")["grpc-status"], "0");
}

#[test]
fn a_stated_length_is_kept_and_answers_to_head_have_no_body() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    let mut exchange = client.begin(Request::put("http://a/").header("content-length", "3"));
    exchange.give("abc");
    exchange.end();
    let mut backend = stage.backend();
    let request = backend.message();
    assert_eq!(request.header("content-length"), Some("3"));
    assert_eq!((request.header("transfer-encoding"), request.text()), (None, "abc"));
    backend.answer("ok");
    assert_eq!(exchange.whole().1, "ok");
    let exchange = client.bodyless(Request::head("http://a/"));
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n");
    let (head, body) = exchange.whole();
    assert_eq!((&head.headers["content-length"], body.as_str()), (&HeaderValue::from(5), ""));
    let exchange = client.bodyless(Request::get("http://a/"));
    backend.message();
    backend.send("HTTP/1.1 304 Not Modified\r\netag: x\r\ncontent-length: 5\r\n\r\n");
    let (head, body) = exchange.whole();
    assert_eq!((head.status.as_u16(), body.as_str()), (304, ""));
}

#[test]
fn a_refusal_is_an_answer_also_to_head() {
    let stage = Stage::open(|settings| settings.limits = vec![hit_limit(1, 1)]);
    let client = Http2::connect(stage.door.addresses()[0]);
    let first = client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("ok");
    assert_eq!(first.whole().1, "ok");
    let (head, body) = client.get("/").whole();
    assert_eq!(head.status, 429);
    assert!(head.headers.contains_key("retry-after") && body.contains("hits"), "{body}");
    let (head, body) = client.bodyless(Request::head("http://a/")).whole();
    assert_eq!((head.status.as_u16(), body.as_str()), (429, ""));
    assert!(head.headers.contains_key("content-length"));
}

#[test]
fn heads_that_say_two_things_are_refused() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    for request in [
        Request::get("http://a/").header("host", "b"),
        Request::get("http://u@a/"),
        Request::trace("http://a/"),
    ] {
        let status = client.bodyless(request).head().status;
        assert!(status == 400 || status == 405, "{status}");
    }
    let same = client.bodyless(Request::get("http://a/").header("host", "A"));
    let mut backend = stage.backend();
    assert_eq!(backend.message().header("host"), Some("a"));
    backend.answer("ok");
    assert_eq!(same.head().status, 200);
}

#[test]
fn a_request_that_is_taken_back_is_charged() {
    let stage = Stage::open(|settings| {
        settings.limits = vec![cpu_limit(0.001, Duration::from_secs(10))];
        settings.timeouts.abort_linger = LONG;
    });
    let client = Http2::connect(stage.door.addresses()[0]);
    let taken_back = client.get("/slow");
    let mut backend = stage.backend();
    backend.message();
    taken_back.reset();
    until("it is seen", || stage.watch.proxy.aborted.get() == 1);
    assert_eq!(stage.engine.load().0, 1, "it runs on");
    backend.answer("nobody hears it");
    until("it is over", || stage.engine.load().0 == 0);
    // The backend connection is intact, and the client's connection stays open.
    let next = client.get("/next");
    backend.message();
    backend.answer("ok");
    assert_eq!(next.whole().1, "ok");
}

#[test]
fn a_connection_ends_after_as_many_requests_as_it_may_have() {
    let stage = Stage::open(|settings| settings.bounds.requests_per_connection = 2);
    let client = Http2::connect(stage.door.addresses()[0]);
    let first = client.get("/1");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("one");
    assert_eq!(first.whole().1, "one");
    let second = client.get("/2");
    backend.message();
    backend.answer("two");
    assert_eq!(second.whole().1, "two");
    client.ends();
}

#[test]
fn a_drain_lets_running_streams_end_and_then_the_connection() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    let exchange = client.get("/");
    let mut backend = stage.backend();
    backend.message();
    stage.door.threads().drain(LONG);
    until("nobody is taken in", || {
        std::net::TcpStream::connect(stage.door.addresses()[0]).is_err()
    });
    backend.answer("late");
    assert_eq!(exchange.whole().1, "late");
    client.ends();
}

#[test]
fn a_stream_that_nobody_reads_is_reset_and_its_slot_given_away() {
    let stage = Stage::open(|settings| {
        settings.timeouts.idle = Duration::from_millis(300);
    });
    let client = Http2::connect(stage.door.addresses()[0]);
    let exchange = client.get("/long");
    let mut backend = stage.backend();
    backend.message();
    let size = 64 << 20;
    backend.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n"));
    let poured = backend.pour(size);
    assert!(poured < size, "the client cannot have taken it");
    exchange.head();
    let failed = |part| matches!(part, Part::Failed);
    until("it fails", || failed(exchange.next()));
    until("it is closed", || stage.engine.load().0 == 0);
}

#[test]
fn http2_can_be_switched_off() {
    let stage = Stage::open(|settings| settings.http2 = false);
    let mut client = stage.client();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    client.ends();
    until("it is counted", || stage.watch.proxy.bad_requests.get() == 1);
}

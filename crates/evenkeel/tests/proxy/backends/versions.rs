//! Servers of both HTTP versions in one list: a request that is sent again is written in the
//! version of the next server, with its body if it has one, and is otherwise the same.

use super::gone::{Going, goes, goes_in_streams};
use super::http2::Server;
use super::{asked, server};
use crate::front::http2::{Exchange, Http2};
use crate::stage::{Stage, Wire};
use evenkeel_config::settings::{BackendAddress, BackendScheme};
use evenkeel_telemetry::counts::BackendFault;
use http::{HeaderMap, Request, StatusCode, Version};
use std::net::TcpListener;
use std::thread;

/// A stage with an HTTP/1.1 server that disappears at its second request, and an HTTP/2 server that
/// has answered one request.
fn before_streams() -> (Stage, Server, Wire) {
    let server = Server::open();
    let backends = vec![goes(), server.at.clone()];
    let stage = Stage::open(|settings| settings.backends = backends);
    let mut client = stage.client();
    assert_eq!(client.get("/").message().text(), "a");
    assert_eq!(client.get("/").message().text(), "");
    (stage, server, client)
}

#[test]
fn what_was_said_in_the_first_version_is_said_in_the_second() {
    let (stage, server, mut client) = before_streams();
    client.send(
        "GET /a?b=%20 HTTP/1.1\r\nhost: site.example:81\r\nx-twice: 1\r\nx-twice: 2: 3\r\n\
         x-empty:\r\ncookie: a=b\r\nte: trailers\r\nconnection: x-hop\r\nx-hop: 1\r\n\r\n",
    );
    assert_eq!(client.message().status(), 200);
    let asked = server.asked().remove(1);
    assert_eq!((&*asked.method, asked.version), ("GET", Version::HTTP_2));
    assert_eq!(asked.target, "http://site.example:81/a?b=%20");
    let all = |name: &str| {
        let lines = asked.headers.get_all(name).iter();
        lines.map(|value| value.to_str().expect("text")).collect::<Vec<_>>()
    };
    for (name, expected) in [
        ("host", &[][..]),
        ("connection", &[]),
        ("x-hop", &[]),
        ("x-twice", &["1", "2: 3"]),
        ("x-empty", &[""]),
        ("cookie", &["a=b"]),
        ("te", &["trailers"]),
        ("x-forwarded-for", &["127.0.0.1"]),
        ("x-forwarded-host", &["site.example:81"]),
        ("x-forwarded-proto", &["http"]),
    ] {
        assert_eq!(all(name), expected, "{name}");
    }
    assert_eq!(stage.watch.proxy.failures(BackendFault::Connect).get(), 1);
}

#[test]
fn what_may_have_been_done_is_not() {
    for request in [
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
        "PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab",
    ] {
        let (stage, server, mut client) = before_streams();
        client.send(request);
        assert_eq!(client.message().status(), 502, "{request}");
        assert_eq!(server.asked().len(), 1, "{request}");
        assert_eq!(stage.watch.proxy.failures(BackendFault::Closed).get(), 1);
    }
}

#[test]
fn it_goes_on_to_a_server_of_either_version() {
    let (first, second) = (Server::open(), Server::open());
    for backends in [
        vec![super::hangs_up(), first.at.clone()],
        vec![hangs_up_in_streams(), server("")],
        vec![super::hangs_up(), hangs_up_in_streams(), second.at.clone()],
        vec![hangs_up_in_streams(), super::hangs_up(), server("")],
        vec![super::hangs_up(), hangs_up_in_streams(), super::hangs_up(), server("")],
    ] {
        let stage = Stage::open(|settings| settings.backends = backends);
        assert_eq!(asked(&stage, 6), [""; 6]);
    }
}

/// An HTTP/2 server that closes the connection when a request arrives.
fn hangs_up_in_streams() -> BackendAddress {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let place = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            super::frames::Behind::on(Wire::new(stream), None).try_next();
        }
    });
    BackendAddress { scheme: BackendScheme::H2c, place }
}

/// A stage with an HTTP/2 server that disappears, and the stage's own HTTP/1.1 backend. Also
/// returns the client, the request with which the first server disappears, and a connection to the
/// second one.
fn gone(going: Going, ask: impl FnOnce(&Http2) -> Exchange) -> (Stage, Http2, Exchange, Wire) {
    let goes = goes_in_streams(going);
    let stage = Stage::open(|settings| settings.backends.insert(0, goes));
    let client = Http2::connect(stage.door.addresses()[0]);
    assert_eq!(client.get("/").whole().1, "a");
    let other = client.get("/");
    let mut wire = stage.backend();
    wire.head();
    wire.answer("b");
    assert_eq!(other.whole().1, "b");
    let asked = ask(&client);
    (stage, client, asked, wire)
}

#[test]
fn what_was_said_in_the_second_version_is_said_in_the_first() {
    let ask = |client: &Http2| {
        let request = Request::get("http://site.example:81/a?b=%20").header("te", "trailers");
        client.bodyless(request.header("x-twice", "1").header("x-twice", "2"))
    };
    let (_stage, _client, asked, mut wire) = gone(Going::Silently, ask);
    let expected = "GET /a?b=%20 HTTP/1.1\r\n";
    let head = wire.head();
    assert!(head.starts_with(expected), "{head}");
    for line in [
        "host: site.example:81",
        "te: trailers",
        "connection: te",
        "x-twice: 1",
        "x-twice: 2",
        "x-forwarded-for: 127.0.0.1",
        "x-forwarded-host: site.example:81",
        "x-forwarded-proto: http",
    ] {
        assert_eq!(head.lines().filter(|other| *other == line).count(), 1, "{line}: {head}");
    }
    assert_eq!(head.lines().count(), 10, "{head}");
    wire.answer("c");
    assert_eq!(asked.whole().1, "c");
}

#[test]
fn a_body_that_nobody_has_looked_at_goes_along() {
    // Bodies with a length, without one, and with trailers.
    for (length, trailers) in [(Some("4"), false), (None, false), (None, true)] {
        let ask = |client: &Http2| {
            let request = Request::post("http://site.example/p");
            let request = length.iter().fold(request, |r, l| r.header("content-length", *l));
            let mut asked = client.begin(request);
            asked.give("se");
            asked.give("nt");
            let mut last = HeaderMap::new();
            last.insert("x-last", "1".parse().expect("a value"));
            if trailers {
                asked.end_with(last)
            } else {
                asked.end()
            }
            asked
        };
        let (stage, _client, asked, mut wire) = gone(Going::Announced, ask);
        let head = wire.head();
        assert!(head.starts_with("POST /p HTTP/1.1\r\n"), "{head}");
        match length {
            Some(_) => {
                assert!(head.contains("content-length: 4\r\n"), "{head}");
                wire.expect("sent");
            }
            None => {
                assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
                assert_eq!(body_in_chunks(&mut wire), ("sent".to_owned(), trailers));
            }
        }
        wire.answer("taken");
        assert_eq!(asked.whole().1, "taken");
        assert_eq!(stage.watch.proxy.failures(BackendFault::Closed).get(), 0);
    }
}

/// A chunked body, and whether trailers follow it.
fn body_in_chunks(wire: &mut Wire) -> (String, bool) {
    let mut body = String::new();
    loop {
        let length = usize::from_str_radix(wire.line().trim(), 16).expect("a length");
        if length == 0 {
            let mut after = false;
            while !wire.line().trim().is_empty() {
                after = true;
            }
            return (body, after);
        }
        body.push_str(&String::from_utf8(wire.take(length)).expect("text"));
        wire.expect("\r\n");
    }
}

#[test]
fn a_body_that_may_have_been_looked_at_does_not() {
    let ask = |client: &Http2| {
        let mut asked = client.begin(Request::put("http://site.example/p"));
        asked.give("sent");
        asked.end();
        asked
    };
    let (stage, client, asked, mut wire) = gone(Going::Silently, ask);
    assert_eq!(asked.head().status, StatusCode::BAD_GATEWAY);
    // The other server gets the next request, not this one.
    let next = client.get("/next");
    assert!(wire.head().starts_with("GET /next "));
    wire.answer("next");
    assert_eq!(next.whole().1, "next");
    assert_eq!(stage.watch.proxy.failures(BackendFault::Closed).get(), 1);
}

#[test]
fn who_asks_for_another_protocol_meets_a_server_where_one_may_follow() {
    let server = Server::open();
    let at = server.at.clone();
    let stage = Stage::open(|settings| settings.backends.insert(0, at));
    for _ in 0..4 {
        let mut client = stage.client();
        client
            .send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
        let mut backend = stage.backend();
        assert!(backend.head().contains("upgrade: websocket\r\n"));
        let switched = "HTTP/1.1 101 S\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        backend.send(format!("{switched}hello"));
        assert!(client.head().starts_with("HTTP/1.1 101 "));
        client.expect("hello");
    }
    assert!(server.asked().is_empty());
}

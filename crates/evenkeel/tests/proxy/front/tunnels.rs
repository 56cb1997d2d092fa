//! WebSockets on an HTTP/2 stream (RFC 8441): the backend sees the same upgrade as with HTTP/1.1.

use super::frames::{self, frame};
use super::http2::{Exchange, Http2, Part};
use crate::stage::{LONG, Stage, Wire, hit_limit};
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use evenkeel_core::limit::LimitAction;
use evenkeel_serve::service::Service as _;
use evenkeel_testing::wait::until;
use http::{Method, Request};
use hyper::ext::Protocol;
use std::time::{Duration, Instant};

/// Requests a WebSocket.
fn ask(client: &Http2, path: &str) -> Exchange {
    client.begin(asked(path, "websocket"))
}

fn asked(path: &str, protocol: &'static str) -> http::request::Builder {
    Request::builder()
        .method(Method::CONNECT)
        .uri(format!("http://site.example{path}"))
        .extension(Protocol::from_static(protocol))
        .header("sec-websocket-version", "13")
        .header("sec-websocket-protocol", "chat")
}

/// The answer of a server that has read the key in `head`.
fn switched(head: &str) -> String {
    let key = head.lines().find_map(|line| line.strip_prefix("sec-websocket-key: "));
    let text = format!("{}258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key.expect("a key"));
    let accept = BASE64.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes()));
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {accept}\r\nsec-websocket-protocol: chat\r\n\r\n"
    )
}

/// An open tunnel, and its end at the backend.
fn open(stage: &Stage, client: &Http2) -> (Exchange, Wire) {
    let tunnel = ask(client, "/chat");
    let mut backend = stage.backend();
    let head = backend.head();
    backend.send(switched(&head));
    assert_eq!(tunnel.head().status, 200);
    (tunnel, backend)
}

fn hears(tunnel: &Exchange, expected: &str) {
    let mut heard = Vec::new();
    while heard.len() < expected.len() {
        match tunnel.next() {
            Part::Data(data) => heard.extend_from_slice(&data),
            other => panic!("{other:?} in place of bytes"),
        }
    }
    assert_eq!(String::from_utf8_lossy(&heard), expected);
}

#[test]
fn a_websocket_passes_on_a_stream() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    let tunnel = ask(&client, "/chat?a");
    let mut backend = stage.backend();
    let head = backend.head();
    assert!(head.starts_with("GET /chat?a HTTP/1.1\r\n"), "{head}");
    for line in [
        "host: site.example",
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "sec-websocket-protocol: chat",
        "x-forwarded-for: 127.0.0.1",
    ] {
        assert!(head.contains(&format!("{line}\r\n")), "{line}: {head}");
    }
    backend.send([&switched(&head)[..], "early down"].concat());
    let answer = tunnel.head();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["sec-websocket-protocol"], "chat");
    for name in ["connection", "upgrade", "sec-websocket-accept"] {
        assert!(!answer.headers.contains_key(name), "{name}");
    }
    hears(&tunnel, "early down");
    assert_eq!(stage.engine.load().0, 0, "it is off the meter");
    assert_eq!(stage.door.connections(), 2, "it counts as a connection");
    for text in ["one", "GET / HTTP/1.1\r\n\r\n", "\0\u{1}"] {
        tunnel.give(text);
        backend.expect(text);
        backend.send(text);
        hears(&tunnel, text);
    }
    // Other requests use the client's connection in the meantime.
    let page = client.get("/page");
    let mut other = stage.backend();
    other.message();
    other.answer("page");
    assert_eq!(page.whole().1, "page");
    drop(backend);
    assert!(matches!(tunnel.next(), Part::End | Part::Failed));
    drop(tunnel);
    until("it has no place", || stage.door.connections() == 1);
}

#[test]
fn each_has_a_key_of_its_own() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    let keys = [1, 2].map(|_| {
        let _tunnel = ask(&client, "/");
        let head = stage.backend().head();
        let key = head.lines().find_map(|line| line.strip_prefix("sec-websocket-key: "));
        BASE64.decode(key.expect("a key")).expect("base64")
    });
    assert_eq!((keys[0].len(), keys[1].len()), (16, 16));
    assert_ne!(keys[0], keys[1]);
}

#[test]
fn either_side_may_end_first() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    let (mut tunnel, mut backend) = open(&stage, &client);
    tunnel.give("last words");
    tunnel.end();
    backend.expect("last words");
    backend.ends();
    backend.send("and an answer").shut();
    hears(&tunnel, "and an answer");
    assert!(matches!(tunnel.next(), Part::End));
    let (mut tunnel, mut backend) = open(&stage, &client);
    backend.send("bye").shut();
    hears(&tunnel, "bye");
    assert!(matches!(tunnel.next(), Part::End));
    tunnel.give("heard");
    tunnel.end();
    backend.expect("heard");
    backend.ends();
    until("they have no place", || stage.door.connections() == 1);
}

#[test]
fn what_breaks_on_one_side_breaks_on_the_other() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    let (tunnel, mut backend) = open(&stage, &client);
    tunnel.reset();
    backend.ends();
    let (tunnel, mut backend) = open(&stage, &client);
    drop(client);
    backend.ends();
    drop(tunnel);
    until("there is no connection", || stage.door.connections() == 0);
    until("it is closed", || stage.watch.proxy.backend_connections.get() == 0);
}

#[test]
fn megabytes_pass() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    let (mut tunnel, mut backend) = open(&stage, &client);
    let piece: &'static str = "0123456789abcdef".repeat(4096).leak();
    // The number of pieces that the test client can buffer for a late reader.
    let count = 48;
    let mut down = backend.again();
    let poured = std::thread::spawn(move || down.pour(count * piece.len()));
    let mut up = backend.again();
    let taken = std::thread::spawn(move || up.take(count * piece.len()).len());
    let mut heard = 0;
    for _ in 0..count {
        tunnel.give(piece);
    }
    tunnel.end();
    while heard < count * piece.len() {
        let Part::Data(data) = tunnel.next() else { panic!("it broke after {heard}") };
        heard += data.len();
    }
    assert_eq!(taken.join().expect("all came"), count * piece.len());
    assert_eq!(poured.join().expect("all is sent"), count * piece.len());
    backend.ends();
}

#[test]
fn a_silent_one_ends() {
    let stage = Stage::open(|settings| settings.timeouts.tunnel = Duration::from_millis(100));
    let client = Http2::connect(stage.door.addresses()[0]);
    let (tunnel, mut backend) = open(&stage, &client);
    assert!(matches!(tunnel.next(), Part::End | Part::Failed));
    backend.ends();
    let page = client.get("/");
    let mut other = stage.backend();
    other.message();
    other.answer("page");
    assert_eq!(page.whole().1, "page", "the connection goes on");
}

#[test]
fn a_client_that_takes_nothing_is_let_go() {
    let stage = Stage::open(|settings| settings.timeouts.idle = Duration::from_millis(200));
    let mut wire = frames::begun(&stage);
    let head = frames::fields(&frames::connect("websocket"));
    wire.send(frame(frames::HEADERS, frames::END_HEADERS, 1, &head));
    let mut backend = stage.backend();
    let head = backend.head();
    backend.send(switched(&head));
    // More than the window and all buffers have room for.
    backend.pour(64 << 20);
    backend.ends();
}

#[test]
fn a_backend_may_decline() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    for (said, expected) in [
        ("403 Forbidden", 403),
        ("426 Upgrade Required", 426),
        // A successful status would mean that the tunnel is open.
        ("200 OK", 501),
        ("204 No Content", 501),
    ] {
        let tunnel = ask(&client, "/");
        let mut backend = stage.backend();
        backend.head();
        let body = if said.starts_with("204") { "" } else { "no chat" };
        let length = body.len();
        backend.send(format!("HTTP/1.1 {said}\r\ncontent-length: {length}\r\n\r\n{body}"));
        let (head, text) = tunnel.whole();
        assert_eq!((head.status.as_u16(), &text[..]), (expected, body), "{said}");
    }
    let tunnel = ask(&client, "/");
    let mut backend = stage.backend();
    let head = backend.head();
    backend.send(switched(&head).replace("accept: ", "accept: x"));
    assert_eq!(tunnel.head().status, 502, "it has not read the key");
    backend.ends();
}

#[test]
fn another_protocol_is_not_switched_to() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    assert_eq!(client.begin(asked("/", "h2c")).head().status, 501);
    stage.backend_is_left_alone();
    let stage = Stage::open(|settings| settings.upgrades = vec!["foo".to_owned()]);
    let client = Http2::connect(stage.door.addresses()[0]);
    let tunnel = client.begin(asked("/", "foo"));
    let mut backend = stage.backend();
    let head = backend.head();
    assert!(head.contains("upgrade: foo\r\n"), "{head}");
    assert!(!head.contains("sec-websocket-key"), "{head}");
    backend.send("HTTP/1.1 101 x\r\nconnection: upgrade\r\nupgrade: foo\r\n\r\nbar");
    assert_eq!(tunnel.head().status, 200);
    hears(&tunnel, "bar");
}

#[test]
fn where_nothing_is_switched_to_connect_is_not_offered() {
    let stage = Stage::open(|settings| settings.upgrades = Vec::new());
    let mut wire = frames::begun(&stage);
    let head = frames::fields(&frames::connect("websocket"));
    wire.send(frame(frames::HEADERS, frames::END_HEADERS, 1, &head));
    assert_ne!(frames::fate(&mut wire, 1), frames::Fate::Answered);
    stage.backend_is_left_alone();
}

#[test]
fn it_is_charged_like_any_request() {
    let stage = Stage::open(|settings| {
        settings.limits = vec![hit_limit(1, 1)];
        settings.action = LimitAction::Reject;
    });
    let client = Http2::connect(stage.door.addresses()[0]);
    let (_tunnel, _backend) = open(&stage, &client);
    assert_eq!(ask(&client, "/").head().status, 429);
}

#[test]
fn it_takes_the_room_of_a_connection() {
    for bounded in [
        |settings: &mut evenkeel_config::settings::ProxyBounds| settings.connections = 2,
        |settings: &mut evenkeel_config::settings::ProxyBounds| {
            settings.connections_per_address = 2
        },
    ] {
        let stage = Stage::open(|settings| bounded(&mut settings.bounds));
        let client = Http2::connect(stage.door.addresses()[0]);
        let (tunnel, mut backend) = open(&stage, &client);
        assert_eq!(ask(&client, "/").head().status, 503);
        assert_eq!(stage.watch.proxy.connections.open.get(), 2);
        tunnel.reset();
        backend.ends();
        until("it has no place", || stage.door.connections() == 1);
        open(&stage, &client);
    }
}

#[test]
fn those_that_are_opened_at_once_take_it_too() {
    let stage = Stage::open(|settings| settings.bounds.connections = 3);
    let client = Http2::connect(stage.door.addresses()[0]);
    let asked: Vec<Exchange> = (0..5).map(|_| ask(&client, "/")).collect();
    let mut backends = [stage.backend(), stage.backend()];
    for backend in &mut backends {
        let head = backend.head();
        backend.send(switched(&head));
    }
    let mut statuses: Vec<u16> = asked.iter().map(|one| one.head().status.as_u16()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 503, 503, 503]);
    assert_eq!(stage.door.connections(), 3);
}

#[test]
fn what_is_refused_gives_its_room_back_before_its_answer_ends() {
    let stage = Stage::open(|settings| settings.bounds.connections = 2);
    let client = Http2::connect(stage.door.addresses()[0]);
    let refused = ask(&client, "/");
    let mut backend = stage.backend();
    backend.head();
    backend.send("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nn");
    assert_eq!(refused.head().status, 403);
    until("its room is free", || stage.door.connections() == 1);
    let (_tunnel, _second) = open(&stage, &client);
    assert_eq!(stage.door.connections(), 2);
    backend.send("o");
    hears(&refused, "no");
}

#[test]
fn who_is_idle_makes_room() {
    let stage = Stage::open(|settings| settings.bounds.connections = 2);
    let mut idle = stage.client();
    idle.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("page");
    idle.message();
    drop(backend);
    let client = Http2::connect(stage.door.addresses()[0]);
    // It succeeds at once if both connections belong to the same thread, otherwise after the other
    // thread has checked for idle connections.
    let mut tunnel = ask(&client, "/");
    let (mut backend, mut asked) = (None, Instant::now());
    until("there is room", || {
        // Not as often as possible: many streams that are reset in vain count as a flood.
        if asked.elapsed() > Duration::from_millis(20) {
            match tunnel.try_next() {
                Some(Part::Head(head)) => {
                    assert_eq!(head.status, 503);
                    (tunnel, asked) = (ask(&client, "/"), Instant::now());
                }
                Some(other) => panic!("{other:?} in place of a head"),
                None => {}
            }
        }
        backend = stage.backend_if_any();
        backend.is_some()
    });
    let mut backend = backend.expect("a connection");
    let head = backend.head();
    backend.send(switched(&head));
    assert_eq!(tunnel.head().status, 200);
    idle.ends();
    until("there is room for two", || stage.door.connections() == 2);
}

#[test]
fn who_leaves_before_it_opens_is_charged_until_then() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    let tunnel = ask(&client, "/");
    let mut backend = stage.backend();
    let head = backend.head();
    tunnel.reset();
    until("it runs on", || stage.watch.proxy.aborted.get() == 1);
    assert_eq!(stage.engine.load().0, 1);
    backend.send(switched(&head));
    backend.ends();
    until("it is over", || stage.engine.load().0 == 0);
}

#[test]
fn a_drain_waits_for_them_and_then_cuts_them() {
    let stage = Stage::open(|_| {});
    let client = Http2::connect(stage.door.addresses()[0]);
    let (tunnel, mut backend) = open(&stage, &client);
    stage.door.threads().drain(LONG);
    tunnel.give("still");
    backend.expect("still");
    stage.door.threads().drain(Duration::from_millis(50));
    client.ends();
    backend.ends();
}

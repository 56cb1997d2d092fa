//! Ambiguous requests, which two servers could read in two ways, each by name: the proxy refuses
//! them or rewrites them into the one form that every backend reads alike. The backend never sees
//! the ambiguous form.

use crate::stage::{Message, Stage};

/// The result of one raw request.
enum Fate {
    /// The client got this status, and the backend got nothing.
    Refused(u16),
    /// The request as the backend received it.
    Passed(Message),
}

/// Sends `raw` and returns what arrives at the backend or at the client.
fn fate(raw: &str) -> Fate {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send(raw);
    // If the request passes, the client gets the backend's answer only. If it does not, the proxy
    // does not connect to the backend, and the client gets an answer at once.
    let backend = stage.backend_or_client(&mut client);
    match backend {
        Some(mut backend) => Fate::Passed(backend.message()),
        None => Fate::Refused(client.message().status()),
    }
}

fn refused(name: &str, raw: &str, status: u16) {
    match fate(raw) {
        Fate::Refused(got) => assert_eq!(got, status, "{name}"),
        Fate::Passed(seen) => panic!("{name} passed: {seen:?}"),
    }
}

fn passed(name: &str, raw: &str) -> Message {
    match fate(raw) {
        Fate::Passed(seen) => seen,
        Fate::Refused(status) => panic!("{name} was refused with {status}"),
    }
}

fn post(lines: &str) -> String {
    format!("POST / HTTP/1.1\r\nhost: a\r\n{lines}\r\n\r\n")
}

#[test]
fn ambiguous_heads_are_refused() {
    for (name, lines, status) in [
        ("two lengths that differ", "content-length: 3\r\ncontent-length: 4", 400),
        ("a list of lengths", "content-length: 3, 3", 400),
        ("a signed length", "content-length: +3", 400),
        ("a negative length", "content-length: -3", 400),
        ("a length in hexadecimal", "content-length: 0x3", 400),
        ("a length beyond 64 bits", "content-length: 99999999999999999999", 400),
        ("an empty length", "content-length:", 400),
        ("a space before the colon", "content-length : 3", 400),
        ("a tab before the colon", "transfer-encoding\t: chunked", 400),
        ("a folded line", "x-a: 1\r\n 2", 400),
        ("a folded coding", "transfer-encoding:\r\n chunked", 400),
        ("a line without a colon", "nonsense", 400),
        ("an empty name", ": x", 400),
        ("a coding that is not chunked", "transfer-encoding: identity", 400),
        ("chunked not last", "transfer-encoding: chunked, gzip", 400),
        ("an obscured chunked", "transfer-encoding: xchunked", 400),
        ("a coding before chunked", "transfer-encoding: gzip, chunked", 501),
        ("chunked twice", "transfer-encoding: chunked\r\ntransfer-encoding: chunked", 501),
        ("a null in a value", "x-a: \0", 400),
        ("a bare return in a value", "x-a: 1\r2", 400),
        ("two hosts", "host: b", 400),
    ] {
        refused(name, &post(lines), status);
    }
}

#[test]
fn ambiguous_targets_are_refused() {
    for (name, raw, status) in [
        ("connect", "CONNECT b:443 HTTP/1.1\r\nhost: b:443\r\n\r\n", 405),
        ("no host", "GET / HTTP/1.1\r\n\r\n", 400),
        ("a host with a path", "GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", 400),
        ("a host with a user", "GET / HTTP/1.1\r\nhost: u@a\r\n\r\n", 400),
        ("a target with a user", "GET http://u@a/ HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("another scheme", "GET ftp://a/ HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("a bare host as target", "GET a:80 HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("a space in the target", "GET /a b HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("a bad method", "G(T / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        ("no HTTP", "hello\r\n\r\n", 400),
        (
            "a length with HTTP/1.0 chunks",
            { "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" },
            400,
        ),
    ] {
        refused(name, raw, status);
    }
}

#[test]
fn a_length_beside_chunks_is_dropped_and_the_connection_ends() {
    for lines in [
        "content-length: 4\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 4",
    ] {
        let stage = Stage::open(|_| {});
        let mut client = stage.client();
        client
            .send(post(lines))
            .send("1\r\nx\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut backend = stage.backend();
        let seen = backend.message();
        assert_eq!(seen.header("content-length"), None);
        assert_eq!((seen.header("transfer-encoding"), seen.text()), (Some("chunked"), "x"));
        backend.answer("ok");
        let answer = client.message();
        assert_eq!((answer.status(), answer.header("connection")), (200, Some("close")));
        client.ends();
        assert!(backend.is_silent(), "what followed was taken for a request");
    }
}

#[test]
fn equal_lengths_become_one() {
    let raw = post("content-length: 2\r\ncontent-length: 2") + "ok";
    let seen = passed("equal lengths", &raw);
    assert_eq!((seen.header("content-length"), seen.text()), (Some("2"), "ok"));
}

#[test]
fn connection_cannot_take_away_what_frames_or_names() {
    let lines = "connection: content-length, host, x-forwarded-for\r\ncontent-length: 2";
    let seen = passed("connection: content-length", &(post(lines) + "ok"));
    assert_eq!(seen.header("content-length"), Some("2"));
    assert_eq!(seen.header("host"), Some("a"));
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
}

#[test]
fn an_absolute_target_becomes_a_path_and_its_host() {
    let seen = passed("absolute form", "GET http://b:8/x?y HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(seen.head.starts_with("GET /x?y HTTP/1.1\r\n"), "{}", seen.head);
    assert_eq!(seen.header("host"), Some("b:8"));
}

#[test]
fn asterisk_and_bare_newlines_pass_in_proper_form() {
    let seen = passed("options *", "OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(seen.head.starts_with("OPTIONS * HTTP/1.1\r\n"), "{}", seen.head);
    let seen = passed("bare newlines", "GET / HTTP/1.1\nhost: a\n\n");
    assert!(seen.head.starts_with("GET / HTTP/1.1\r\nhost: a\r\n"), "{}", seen.head);
}

#[test]
fn faulty_chunks_are_refused_and_never_completed() {
    for (name, chunks) in [
        ("not a number", "zz\r\nxx\r\n0\r\n\r\n"),
        ("a negative size", "-1\r\nx\r\n0\r\n\r\n"),
        ("a prefixed size", "0x1\r\nx\r\n0\r\n\r\n"),
        ("a size beyond 64 bits", "fffffffffffffffff\r\nx\r\n0\r\n\r\n"),
        ("no line end after the data", "1\r\nxy\r\n0\r\n\r\n"),
        ("a bare newline after the size", "1\nx\r\n0\r\n\r\n"),
        ("a newline in an extension", "1;a\nb\r\nx\r\n0\r\n\r\n"),
    ] {
        let stage = Stage::open(|_| {});
        let mut client = stage.client();
        client.send(post("transfer-encoding: chunked")).send(chunks);
        let mut backend = stage.backend();
        let seen = String::from_utf8_lossy(&backend.rest()).into_owned();
        assert!(!seen.ends_with("0\r\n\r\n"), "{name}: the backend saw an end: {seen}");
        let answer = client.message();
        assert_eq!((answer.status(), answer.header("connection")), (400, Some("close")), "{name}");
        client.ends();
    }
}

#[test]
fn heads_beyond_the_bound_are_refused() {
    let stage = Stage::open(|settings| settings.bounds.header_bytes = 9000);
    let mut client = stage.client();
    client.send(format!("GET / HTTP/1.1\r\nhost: a\r\nx-a: {}\r\n\r\n", "x".repeat(9000)));
    assert_eq!(client.message().status(), 431);
    client.ends();
    let mut client = stage.client();
    client.send(format!("GET / HTTP/1.1\r\nhost: a\r\nx-a: {}\r\n\r\n", "x".repeat(8000)));
    assert_eq!(stage.backend().message().all("x-a")[0].len(), 8000);
}

#[test]
fn bodies_beyond_the_bound_are_refused() {
    let stage = Stage::open(|settings| settings.bounds.body_bytes = 5);
    let mut client = stage.client();
    client.send(post("content-length: 6")).send("sixsix");
    assert_eq!(client.message().status(), 413);
    client.ends();
    let mut client = stage.client();
    client.send(post("content-length: 5")).send("fives");
    let mut backend = stage.backend();
    assert_eq!(backend.message().text(), "fives");
    backend.answer("ok");
    assert_eq!(client.message().status(), 200);
    client.send(post("transfer-encoding: chunked")).send("5\r\nfives\r\n1\r\nx\r\n0\r\n\r\n");
    assert_eq!(client.message().status(), 413);
    client.ends();
}

//! Answers in every form that a backend may send, and connections that must not be reused.

use crate::stage::{Stage, Wire};

/// Makes one request for `/before`, and returns the connection to the backend that it used.
fn used(stage: &Stage, client: &mut Wire) -> Wire {
    client.get("/before");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("before");
    assert_eq!(client.message().text(), "before");
    backend
}

/// Checks that the next request goes over a new connection.
fn a_fresh_one_is_taken(stage: &Stage, client: &mut Wire) {
    client.get("/fresh");
    let mut backend = stage.backend();
    assert!(backend.message().head.starts_with("GET /fresh "));
    backend.answer("fresh");
    assert_eq!(client.message().text(), "fresh");
}

#[test]
fn interim_answers_are_waited_out() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.");
    backend.send("1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let answer = client.message();
    assert_eq!((answer.status(), answer.text(), answer.header("link")), (200, "ok", None));
}

#[test]
fn an_answer_may_come_a_byte_at_a_time() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-a: b\r\n\r\nwhole",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-a: b\r\n\r\n\
         3;x=y\r\nwho\r\n2\r\nle\r\n0\r\n\r\n",
    ] {
        client.get("/");
        let mut backend = stage.backend();
        backend.message();
        for byte in answer.bytes() {
            backend.send([byte]);
        }
        let seen = client.message();
        assert_eq!((seen.status(), seen.text(), seen.header("x-a")), (200, "whole", Some("b")));
        backend.send("unasked");
    }
}

#[test]
fn faulty_chunks_in_an_answer_are_never_completed() {
    for chunks in ["zz\r\nxx\r\n", "1\nx\r\n", "1\r\nxy\r\n", "1\r\nx\r\n0\r\nno line\r\n\r\n"] {
        let stage = Stage::open(|_| {});
        let mut client = stage.client();
        client.get("/");
        let mut backend = stage.backend();
        backend.message();
        backend.send(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}"));
        let rest = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(!rest.ends_with("0\r\n\r\n"), "{chunks:?}: {rest}");
        backend.ends();
    }
}

#[test]
fn a_length_beside_chunks_does_not_pass_and_the_connection_is_given_up() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    let mut backend = used(&stage, &mut client);
    client.get("/");
    backend.message();
    backend.send(
        "HTTP/1.1 200 OK\r\ncontent-length: 99\r\ntransfer-encoding: chunked\r\n\r\n\
         2\r\nok\r\n0\r\n\r\n",
    );
    let answer = client.message();
    assert_eq!((answer.header("content-length"), answer.text()), (None, "ok"));
    a_fresh_one_is_taken(&stage, &mut client);
    backend.ends();
}

#[test]
fn equal_lengths_of_an_answer_become_one() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2, 2\r\n\r\nok");
    let answer = client.message();
    assert_eq!((answer.header("content-length"), answer.text()), (Some("2"), "ok"));
}

#[test]
fn no_content_has_no_length() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n");
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 204") && !head.contains("content-length"), "{head}");
}

#[test]
fn what_comes_unasked_is_nobodys_answer() {
    for (answer, body) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n", "ok"),
        ("HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil", ""),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP", "ok"),
    ] {
        let stage = Stage::open(|_| {});
        let mut client = stage.client();
        let mut backend = used(&stage, &mut client);
        client.get("/");
        backend.message();
        backend.send(answer);
        assert_eq!(client.message().text(), body);
        a_fresh_one_is_taken(&stage, &mut client);
    }
    // Bytes that arrive later are not passed on either, even just before the next request.
    for _ in 0..30 {
        let stage = Stage::open(|_| {});
        let mut client = stage.client();
        let mut backend = used(&stage, &mut client);
        backend.send("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil");
        a_fresh_one_is_taken(&stage, &mut client);
    }
}

#[test]
fn a_backend_that_wants_to_close_is_not_asked_again() {
    for head in ["1 200 OK\r\nconnection: close", "0 200 OK"] {
        let stage = Stage::open(|_| {});
        let mut client = stage.client();
        let mut backend = used(&stage, &mut client);
        client.get("/");
        backend.message();
        backend.send(format!("HTTP/1.{head}\r\ncontent-length: 2\r\n\r\nok"));
        assert_eq!(client.message().text(), "ok");
        a_fresh_one_is_taken(&stage, &mut client);
    }
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    let mut backend = used(&stage, &mut client);
    client.get("/");
    backend.message();
    backend.send("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok");
    assert_eq!(client.message().text(), "ok");
    client.get("/again");
    assert!(backend.message().head.starts_with("GET /again "));
}

#[test]
fn a_closed_connection_is_noticed_before_a_request_is_sent_on_it() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    drop(used(&stage, &mut client));
    // A POST, which must not be sent twice.
    client.send("POST /once HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx");
    let mut backend = stage.backend();
    assert_eq!(backend.message().text(), "x");
    backend.answer("done");
    assert_eq!(client.message().text(), "done");
}

#[test]
fn a_body_in_chunks_passes_whatever_the_method() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send("GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send("4\r\nbody\r\n0\r\n\r\n");
    let mut backend = stage.backend();
    let request = backend.message();
    assert_eq!(request.header("transfer-encoding"), Some("chunked"));
    assert_eq!(request.text(), "body");
    backend.answer("ok");
    assert_eq!(client.message().text(), "ok");
    client.get("/next");
    assert!(backend.message().head.starts_with("GET /next "));
}

#[test]
fn an_answer_before_the_end_of_a_request_leaves_the_connection_usable() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\none");
    let mut backend = stage.backend();
    backend.head();
    backend.expect("one");
    backend.answer("early");
    assert_eq!(client.message().text(), "early");
    // Another request does not use the connection in the meantime.
    let mut other = stage.client();
    a_fresh_one_is_taken(&stage, &mut other);
    client.send("two");
    backend.expect("two");
}

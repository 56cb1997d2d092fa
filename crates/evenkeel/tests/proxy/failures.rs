//! Backends that are dead, slow or send nonsense, and slow clients.

use crate::backends::nobody;
use crate::stage::Stage;
use evenkeel_testing::wait::until;
use std::time::Duration;

#[test]
fn a_dead_backend_is_502_and_the_connection_lives() {
    let stage = Stage::open(|settings| settings.backends = vec![nobody()]);
    let mut client = stage.client();
    for _ in 0..2 {
        client.get("/");
        let answer = client.message();
        assert_eq!((answer.status(), answer.header("connection")), (502, None));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
}

#[test]
fn a_backend_whose_name_has_no_address_is_502() {
    let stage = Stage::open(|settings| settings.backends[0].place = "nowhere.invalid:80".into());
    let mut client = stage.client();
    client.get("/");
    assert_eq!(client.message().status(), 502);
}

#[test]
fn a_silent_backend_is_504() {
    let stage = Stage::open(|settings| settings.timeouts.backend = Duration::from_millis(80));
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    assert_eq!(client.message().status(), 504);
    backend.ends();
    assert_eq!(stage.engine.load().0, 0);
}

#[test]
fn rubbish_from_the_backend_is_502() {
    for rubbish in [
        "rubbish\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-le",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nx",
        "",
    ] {
        let stage = Stage::open(|_| {});
        let mut client = stage.client();
        client.get("/");
        let mut backend = stage.backend();
        backend.message();
        backend.send(rubbish);
        drop(backend);
        assert_eq!(client.message().status(), 502, "{rubbish}");
    }
}

#[test]
fn an_answer_that_breaks_off_is_never_completed() {
    for head in ["content-length: 99", "transfer-encoding: chunked"] {
        let stage = Stage::open(|_| {});
        let mut client = stage.client();
        client.get("/");
        let mut backend = stage.backend();
        backend.message();
        backend.send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n4\r\nhalf\r\n"));
        client.head();
        drop(backend);
        let rest = client.rest();
        assert!(!rest.ends_with(b"0\r\n\r\n"), "{rest:?}");
    }
}

#[test]
fn a_backend_that_stops_within_its_answer_is_given_up() {
    let stage = Stage::open(|settings| settings.timeouts.idle = Duration::from_millis(80));
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf");
    client.head();
    client.expect("half");
    client.ends();
    backend.ends();
}

#[test]
fn an_upload_may_take_longer_than_the_backend_has_for_its_answer() {
    let stage = Stage::open(|settings| settings.timeouts.backend = Duration::from_millis(80));
    let mut client = stage.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4000\r\n\r\n");
    let mut backend = stage.backend();
    backend.head();
    let began = std::time::Instant::now();
    for _ in 0..3 {
        // Another request in the meantime takes as long as the backend timeout.
        let mut other = stage.client();
        other.get("/silent");
        let mut silent = stage.backend();
        assert_eq!(other.message().status(), 504);
        silent.rest();
        client.send([b'x'; 1000]);
        backend.take(1000);
    }
    assert!(began.elapsed() > 2 * stage.settings.timeouts.backend);
    client.send([b'x'; 1000]);
    backend.take(1000);
    // The backend has the whole request; its timeout starts now.
    assert_eq!(client.message().status(), 504);
    backend.ends();
}

#[test]
fn a_backend_that_takes_no_more_of_an_upload_is_504() {
    // Longer than a busy machine may delay the client's data.
    let stage = Stage::open(|settings| settings.timeouts.idle = Duration::from_secs(2));
    let mut client = stage.client();
    let mut answers = client.again();
    let size = 256 << 20;
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n");
    let writer = std::thread::spawn(move || client.send(head).pour(size));
    let mut backend = stage.backend();
    backend.head();
    assert_eq!(answers.message().status(), 504);
    assert!(writer.join().expect("it ends") < size, "all of it was taken");
    let failures = &evenkeel_telemetry::metrics::BACKEND_FAILURES;
    let failed = || stage.watch.registry().counter(failures, &["idle"]).get();
    until("it is counted", || failed() == 1);
}

#[test]
fn a_pooled_connection_that_was_closed_costs_the_client_nothing() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/1");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("one");
    client.message();
    // The backend reads the next request and closes without an answer: the request may be sent
    // again.
    client.get("/2");
    backend.message();
    drop(backend);
    let mut backend = stage.backend();
    assert!(backend.message().head.starts_with("GET /2 "));
    backend.answer("two");
    assert_eq!(client.message().text(), "two");
    // A POST may have an effect twice, so it is not sent again.
    client.send("POST /3 HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx");
    backend.message();
    drop(backend);
    assert_eq!(client.message().status(), 502);
    stage.backend_is_left_alone();
}

/// A backend may close an idle connection with a 408 that crosses with the next request.
#[test]
fn a_408_for_the_idle_connection_is_no_answer_to_the_next_request() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/1");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("one");
    client.message();
    client.get("/2");
    backend.message();
    let timeout = "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    backend.send(timeout);
    let mut backend = stage.backend();
    assert!(backend.message().head.starts_with("GET /2 "));
    // On a new connection it is the answer.
    backend.send(timeout);
    assert_eq!(client.message().status(), 408);
    client.get("/3");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("three");
    client.message();
    // A POST may have an effect twice, so its client decides.
    client.send("POST /4 HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx");
    backend.message();
    backend.send(timeout);
    assert_eq!(client.message().status(), 408);
    stage.backend_is_left_alone();
}

#[test]
fn a_fresh_connection_that_fails_is_not_tried_again() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    drop(backend);
    assert_eq!(client.message().status(), 502);
    stage.backend_is_left_alone();
}

#[test]
fn a_client_that_is_slow_with_its_head_is_let_go() {
    // Longer than a busy machine may delay the first bytes of a client.
    let stage = Stage::open(|settings| settings.timeouts.header = Duration::from_secs(2));
    let mut silent = stage.client();
    let mut slow = stage.client();
    slow.send("GET / HTTP/1.1\r\n");
    silent.ends();
    // A client that has begun a request gets an answer.
    let answer = slow.message();
    assert_eq!((answer.status(), answer.header("connection")), (408, Some("close")));
    slow.ends();
    // A client that does not disconnect after that is counted once more.
    drop((silent, slow));
    // Does the same between two requests.
    let mut slow = stage.client();
    slow.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("ok");
    slow.message();
    slow.send("GET / HTTP/1.1\r\nx");
    assert_eq!(slow.message().status(), 408);
    slow.ends();
    drop(slow);
    until("they are counted", || stage.watch.proxy.bad_requests.get() == 3);
}

#[test]
fn an_answer_that_ends_within_the_packet_of_its_head_is_502() {
    for (head, status) in [
        ("content-length: 99", 502),
        ("transfer-encoding: chunked", 502),
        ("transfer-encoding: chunked\r\nx: whole", 200),
        ("content-length: 4", 200),
    ] {
        let stage = Stage::open(|_| {});
        let mut client = stage.client();
        client.get("/");
        let mut backend = stage.backend();
        backend.message();
        let body = match head {
            "content-length: 4" => "half",
            _ if status == 200 => "4\r\nhalf\r\n0\r\n\r\n",
            _ => "4\r\nhalf\r\n",
        };
        // The answer leaves in one segment with the end of the connection.
        backend.cork();
        backend.send(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}"));
        backend.shut();
        assert_eq!(client.message().status(), status, "{head}");
    }
}

#[test]
fn a_client_that_stops_within_its_body_is_408() {
    let stage = Stage::open(|settings| settings.timeouts.idle = Duration::from_millis(80));
    let mut client = stage.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf");
    let mut backend = stage.backend();
    backend.head();
    let answer = client.message();
    assert_eq!((answer.status(), answer.header("connection")), (408, Some("close")));
    client.ends();
    backend.expect("half");
    backend.ends();
}

#[test]
fn an_idle_connection_is_closed() {
    let stage = Stage::open(|settings| settings.timeouts.idle = Duration::from_millis(80));
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("ok");
    client.message();
    client.ends();
}

#[test]
fn a_client_that_takes_nothing_is_let_go() {
    let stage = Stage::open(|settings| settings.timeouts.idle = Duration::from_millis(100));
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    let writer = std::thread::spawn(move || {
        let size = 256 << 20;
        backend.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n"));
        backend.pour(size)
    });
    client.head();
    let poured = writer.join().expect("it ends");
    assert!(poured < 256 << 20, "all of it was taken");
}

//! Requests and answers that pass the proxy, unchanged or changed as HTTP demands.

use crate::stage::Stage;

#[test]
fn a_request_and_its_answer_pass() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send("GET /a/../b?x=%20 HTTP/1.1\r\nHost: site.example:81\r\nX-Own: 1\r\n\r\n");
    let mut backend = stage.backend();
    let request = backend.message();
    assert!(request.head.starts_with("GET /a/../b?x=%20 HTTP/1.1\r\n"), "{}", request.head);
    assert_eq!(request.header("host"), Some("site.example:81"));
    assert_eq!(request.header("x-own"), Some("1"));
    assert_eq!(request.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(request.header("x-forwarded-proto"), Some("http"));
    assert_eq!(request.header("x-forwarded-host"), Some("site.example:81"));
    assert_eq!(request.header("via"), None);
    backend.send("HTTP/1.1 404 Gone Fishing\r\nContent-Length: 2\r\nServer: own\r\n\r\nno");
    let answer = client.message();
    assert_eq!((answer.status(), answer.text()), (404, "no"));
    assert_eq!(answer.header("server"), Some("own"));
    assert_eq!(answer.header("date"), None, "only the backend says when");
}

#[test]
fn connections_are_used_again_on_both_sides() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/1");
    let mut backend = stage.backend();
    for body in ["one", "two", "three"] {
        backend.message();
        backend.answer(body);
        assert_eq!(client.message().text(), body);
        client.get("/next");
    }
    backend.message();
    stage.backend_is_left_alone();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/1").get("/2").get("/3");
    let mut backend = stage.backend();
    for path in ["/1", "/2", "/3"] {
        let request = backend.message();
        assert!(request.head.starts_with(&format!("GET {path} ")), "{}", request.head);
        backend.answer(path);
    }
    for path in ["/1", "/2", "/3"] {
        assert_eq!(client.message().text(), path);
    }
}

#[test]
fn a_request_body_streams() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n");
    let mut backend = stage.backend();
    let head = backend.head();
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    backend.expect("3\r\none\r\n");
    client.send("3\r\ntwo\r\n");
    backend.expect("3\r\ntwo\r\n");
    client.send("0\r\n\r\n");
    backend.expect("0\r\n\r\n");
    backend.answer("done");
    assert_eq!(client.message().text(), "done");
}

#[test]
fn an_answer_streams() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n");
    client.head();
    client.expect("3\r\none\r\n");
    backend.send("3\r\ntwo\r\n");
    client.expect("3\r\ntwo\r\n");
    backend.send("0\r\n\r\n");
    client.expect("0\r\n\r\n");
}

#[test]
fn an_answer_may_come_before_the_request_is_through() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\none");
    let mut backend = stage.backend();
    backend.head();
    backend.expect("one");
    backend.send("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nyes");
    client.head();
    client.expect("yes");
    client.send("two");
    backend.expect("two");
    backend.send("yes");
    client.expect("yes");
}

#[test]
fn megabytes_pass_both_ways() {
    let stage = Stage::open(|_| {});
    let size = 8 << 20;
    let mut client = stage.client();
    let sender = std::thread::spawn(move || {
        client.send(format!("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n"));
        client.send(vec![b'x'; size]);
        client.message()
    });
    let mut backend = stage.backend();
    let request = backend.message();
    assert_eq!(request.body.len(), size);
    backend.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n"));
    backend.send(vec![b'y'; size]);
    let answer = sender.join().expect("the client is content");
    assert!(answer.body.len() == size && answer.body.iter().all(|byte| *byte == b'y'));
}

#[test]
fn trailers_pass_both_ways() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send(
        "POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntrailer: x-sum\r\n\
         transfer-encoding: chunked\r\n\r\n\
         1\r\na\r\n0\r\nx-sum: 1\r\nx-forwarded-for: 6.6.6.6\r\n\r\n",
    );
    let mut backend = stage.backend();
    let head = backend.head();
    assert!(head.contains("te: trailers"), "{head}");
    backend.expect("1\r\na\r\n0\r\nx-sum: 1\r\n\r\n");
    backend.send(
        "HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n\
         1\r\nb\r\n0\r\nx-sum: 2\r\n\r\n",
    );
    client.head();
    client.expect("1\r\nb\r\n0\r\nx-sum: 2\r\n\r\n");
}

#[test]
fn hop_by_hop_fields_end_at_the_proxy() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send(
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\n\
         keep-alive: 9\r\nproxy-connection: x\r\nte: gzip\r\nupgrade: websocket\r\n\r\n",
    );
    let mut backend = stage.backend();
    let request = backend.message();
    for name in ["connection", "x-hop", "keep-alive", "proxy-connection", "te", "upgrade"] {
        assert_eq!(request.header(name), None, "{name} passed");
    }
    backend.send(
        "HTTP/1.1 200 OK\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: 9\r\n\
         content-length: 0\r\n\r\n",
    );
    let answer = client.message();
    for name in ["x-hop", "keep-alive", "connection"] {
        assert_eq!(answer.header(name), None, "{name} passed");
    }
}

/// A `Connection` field that names `x-0` to `x-39`, and these fields.
fn many_names() -> String {
    let names: Vec<String> = (0..40).map(|name| format!("x-{name}")).collect();
    let fields: String = names.iter().map(|name| format!("{name}: 1\r\n")).collect();
    format!("connection: {}\r\n{fields}keep-alive: 9\r\n", names.join(", "))
}

#[test]
fn connection_may_name_any_number_of_fields_of_an_answer() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    let names = many_names();
    backend.send(format!("HTTP/1.1 200 OK\r\n{names}content-length: 2\r\n\r\nok"));
    let answer = client.message();
    assert_eq!((answer.status(), answer.text()), (200, "ok"));
    for name in ["connection", "x-0", "x-31", "x-32", "x-39", "keep-alive"] {
        assert_eq!(answer.header(name), None, "{name} passed");
    }
}

#[test]
fn connection_may_name_any_number_of_fields_of_trailers() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n");
    let names = many_names();
    client.send(format!("0\r\n{names}x-sum: 1\r\n\r\n"));
    let mut backend = stage.backend();
    backend.head();
    backend.expect("1\r\na\r\n0\r\nx-sum: 1\r\n\r\n");
}

#[test]
fn head_and_bodiless_answers_keep_their_fields() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n");
    let head = client.head();
    assert!(head.contains("content-length: 1234"), "{head}");
    for status in ["204 No Content", "304 Not Modified"] {
        client.get("/");
        backend.message();
        backend.send(format!("HTTP/1.1 {status}\r\netag: \"x\"\r\n\r\n"));
        let head = client.head();
        assert!(head.contains("etag: \"x\""), "{head}");
        assert!(!head.contains("content-length"), "{head}");
    }
}

#[test]
fn http_1_0_clients_are_served() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send("GET / HTTP/1.0\r\n\r\n");
    let mut backend = stage.backend();
    let request = backend.message();
    assert!(request.head.starts_with("GET / HTTP/1.1\r\n"), "{}", request.head);
    assert_eq!(request.header("host"), Some(stage.settings.backends[0].place.as_str()));
    backend.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n");
    let answer = String::from_utf8(client.rest()).expect("text");
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
}

#[test]
fn an_answer_that_ends_with_its_connection_is_chunked_on() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\n\r\nhello");
    drop(backend);
    assert_eq!(client.message().text(), "hello");
}

#[test]
fn the_proxy_itself_says_continue() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 100 "));
    client.send("ok");
    let mut backend = stage.backend();
    let request = backend.message();
    assert_eq!((request.header("expect"), request.text()), (None, "ok"));
    backend.send("HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n").answer("fine");
    assert_eq!(client.message().text(), "fine");
}

#[test]
fn the_chain_of_a_trusted_proxy_is_kept_and_a_strangers_is_not() {
    let stage = Stage::open(|settings| {
        settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    });
    let lines = "x-forwarded-for: 1.1.1.1\r\nx-forwarded-for: 2.2.2.2\r\nx-forwarded-proto: https";
    let request = format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}\r\nx_real_ip: 6.6.6.6\r\n\r\n");
    let mut client = stage.client();
    client.send(&request);
    let mut backend = stage.backend();
    let seen = backend.message();
    assert_eq!(seen.header("x-forwarded-for"), Some("1.1.1.1, 2.2.2.2, 127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("https"));

    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send(&request);
    let seen = stage.backend().message();
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("x_real_ip"), None);
}

//! Visitors over HTTP/2, WebSockets of strangers, and requests that get a plain refusal in place of
//! the page.

use super::{NAVIGATE, answer, ask, busy, cookie, next, stage, waits};
use crate::front::http2::Http2;
use crate::stage::{Stage, Wire};
use evenkeel_core::units::Nanos;
use http::Request;

/// A stage where requests wait for at most three seconds.
fn impatient() -> Stage {
    stage(|settings| settings.queue.wait_max = Nanos::from_secs(3))
}

/// A request for the page over HTTP/2.
fn navigation(client: &str) -> http::request::Builder {
    Request::get("http://site.example/page")
        .header("x-forwarded-for", client)
        .header("sec-fetch-mode", "navigate")
}

#[test]
fn a_visitor_over_http2_gets_the_page_and_then_its_turn() {
    let stage = stage(|_| {});
    let (mut backend, _first) = busy(&stage);
    let visitor = Http2::connect(stage.door.addresses()[0]);
    let (head, page) = visitor.bodyless(navigation("192.0.2.3")).whole();
    assert_eq!(head.status, 503);
    assert!(page.contains("<h1>Please wait</h1>"), "{page}");
    assert_eq!(head.headers["cache-control"], "no-store");
    assert_eq!(head.headers["refresh"], head.headers["retry-after"]);
    let set = head.headers["set-cookie"].to_str().expect("text");
    let ticket = set.split(';').next().expect("a cookie");
    // Browsers send each cookie in a field of its own (RFC 9113, 8.2.3).
    let back = navigation("192.0.2.3").header("cookie", "a=b").header("cookie", ticket);
    let back = visitor.bodyless(back.header("cookie", "c=d"));
    waits(&stage, 1);
    answer(&mut backend, "");
    let (mut backend, head) = next(&stage, backend);
    assert!(head.contains("cookie: a=b; c=d\r\n"), "{head}");
    answer(&mut backend, "");
    let (head, text) = back.whole();
    assert_eq!((head.status.as_u16(), text.as_str()), (200, "ok"));
    assert!(head.headers["set-cookie"].to_str().expect("text").starts_with("evenkeel="));
    assert_eq!(head.headers["cache-control"], "private");
}

const HANDSHAKE: &str = "connection: upgrade\r\nupgrade: websocket\r\n\
     sec-fetch-mode: websocket\r\nsec-websocket-key: x\r\n";

#[test]
fn a_websocket_of_a_stranger_waits_for_its_turn() {
    let stage = stage(|_| {});
    let (mut backend, _first) = busy(&stage);
    let (mut socket, mut visitor) = (stage.client(), stage.client());
    ask(&mut socket, "192.0.2.3", HANDSHAKE);
    waits(&stage, 1);
    // A visitor that comes later is sent away, and the WebSocket still waits.
    ask(&mut visitor, "192.0.2.4", NAVIGATE);
    assert_eq!(visitor.message().status(), 503);
    waits(&stage, 1);
    answer(&mut backend, "");
    let (mut backend, head) = next(&stage, backend);
    assert!(head.contains("upgrade: websocket\r\n"), "{head}");
    backend.send(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    );
    assert!(socket.head().starts_with("HTTP/1.1 101 "));
    socket.send("up");
    backend.expect("up");
}

#[test]
fn a_request_that_gets_no_page_is_refused_in_short() {
    let stage = impatient();
    let (_backend, _first) = busy(&stage);
    let html = "accept: text/html\r\n";
    let requests = [
        ("HEAD", html.to_owned()),
        ("POST", format!("{html}{NAVIGATE}content-length: 0\r\n")),
        ("POST", format!("{html}{NAVIGATE}content-length: 3\r\n\r\na=b")),
        ("GET", format!("{html}sec-fetch-mode: cors\r\n")),
        ("GET", "sec-fetch-mode: no-cors\r\nsec-fetch-dest: image\r\n".to_owned()),
        ("GET", "accept: application/atom+xml\r\n".to_owned()),
        ("GET", "user-agent: git/2.47.0\r\naccept: */*\r\n".to_owned()),
        ("GET", HANDSHAKE.to_owned()),
    ];
    let send = |(method, more): &(&str, String)| {
        let mut client = stage.client();
        let end = if more.ends_with("a=b") { "" } else { "\r\n" };
        client.send(format!("{method} /page HTTP/1.1\r\nhost: a\r\n{more}{end}"));
        client
    };
    let mut clients: Vec<Wire> = requests.iter().map(send).collect();
    for ((method, more), client) in requests.iter().zip(&mut clients) {
        let head = client.head();
        let refused = crate::stage::Message { head, body: Vec::new() };
        assert_eq!(refused.status(), 503, "{method} {more}");
        let seconds = refused.header("retry-after").expect("seconds");
        assert!(seconds.parse::<u64>().expect("a number") >= 1, "{method} {more}");
        assert_eq!(refused.header("cache-control"), Some("no-store"), "{method} {more}");
        for name in ["set-cookie", "refresh"] {
            assert_eq!(refused.header(name), None, "{method} {more}");
        }
    }
}

/// A browser sends its ticket with the request for the icon of the site too. The ticket is for the
/// page.
#[test]
fn only_a_page_uses_up_a_ticket() {
    let stage = stage(|_| {});
    let (mut backend, _first) = busy(&stage);
    let [mut visitor, mut icon, mut stranger] = [(); 3].map(|()| stage.client());
    ask(&mut visitor, "192.0.2.3", NAVIGATE);
    let page = visitor.message();
    let ticket = cookie(&page).expect("a ticket");
    let image = "sec-fetch-mode: no-cors\r\nsec-fetch-dest: image\r\n";
    ask(&mut icon, "192.0.2.3", &format!("cookie: {ticket}\r\n{image}x-name: icon\r\n"));
    waits(&stage, 1);
    ask(&mut stranger, "192.0.2.4", "x-name: stranger\r\n");
    waits(&stage, 2);
    ask(&mut visitor, "192.0.2.3", &format!("{NAVIGATE}cookie: {ticket}\r\nx-name: page\r\n"));
    waits(&stage, 3);
    let mut order = Vec::new();
    for _ in 0..3 {
        answer(&mut backend, "");
        let head;
        (backend, head) = next(&stage, backend);
        let name = head.lines().find_map(|line| line.strip_prefix("x-name: "));
        order.push(name.expect("a name").to_owned());
    }
    answer(&mut backend, "");
    assert_eq!(order, ["page", "icon", "stranger"]);
    assert!(visitor.message().header("set-cookie").is_some());
    assert_eq!(icon.message().header("set-cookie"), None);
}

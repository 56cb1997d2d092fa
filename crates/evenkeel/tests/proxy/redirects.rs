//! Requests without TLS are sent to `https://`, except those that would be sent back or must stay;
//! and the operator's pages for a backend that fails.

use crate::backends::nobody;
use crate::front::Authority;
use crate::front::tls;
use crate::stage::Stage;
use evenkeel_config::settings::{HttpsRedirect, ProxySettings};
use evenkeel_core::condition::patterns::PathPatterns;
use std::net::SocketAddr;
use std::time::Duration;

/// A listener without TLS and one with TLS, whose clients use `port`.
fn redirecting(authority: &Authority, port: u16) -> impl FnOnce(&mut ProxySettings) {
    let certificates = vec![authority.sign("a.example")];
    move |settings| {
        settings.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0)); 2];
        settings.tls = Some(tls::front(certificates));
        settings.tls.as_mut().expect("set").plain = 1;
        let except = PathPatterns::new(["/healthz"]).expect("a path");
        settings.redirect = Some(HttpsRedirect { port, except: Some(except) });
    }
}

/// Sends a request and returns where it is sent to; `None` if the backend gets it.
fn location(stage: &Stage, request: &str) -> Option<String> {
    let mut client = stage.client();
    client.send(request);
    if let Some(mut backend) = stage.backend_or_client(&mut client) {
        backend.head();
        backend.answer("served");
        assert_eq!(client.message().status(), 200);
        return None;
    }
    let answer = client.message();
    assert_eq!((answer.status(), &*answer.body), (308, &b""[..]), "{}", answer.head);
    Some(answer.header("location").expect("a place").to_owned())
}

#[test]
fn plain_requests_are_sent_to_https_and_others_stay() {
    let authority = Authority::new();
    let stage = Stage::open(redirecting(&authority, 443));
    let to = |request: &str| location(&stage, request);
    let get = |path: &str| to(&format!("GET {path} HTTP/1.1\r\nhost: a.example:80\r\n\r\n"));
    assert_eq!(get("/b/c?d=%20&e").as_deref(), Some("https://a.example/b/c?d=%20&e"));
    assert_eq!(get("//evil.example/").as_deref(), Some("https://a.example//evil.example/"));
    let post = to("POST /p HTTP/1.1\r\nhost: a.example\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(post.as_deref(), Some("https://a.example/p"));
    // A client cannot pretend to use TLS.
    let forged = to("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-proto: https\r\n\r\n");
    assert_eq!(forged.as_deref(), Some("https://a/"));
    for stays in ["/healthz", "/healthz/live", "/.well-known/acme-challenge/abc"] {
        assert_eq!(get(stays), None, "{stays}");
    }
    assert_eq!(to("GET / HTTP/1.0\r\n\r\n"), None, "no host is known");

    let client = authority.client(&["http/1.1"], None);
    let (mut stream, _) =
        tls::connect(stage.door.addresses()[1], &client, "a.example").expect("tls");
    std::io::Write::write_all(&mut stream, b"GET /s HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    assert!(stage.backend().head().starts_with("GET /s "));
}

#[test]
fn a_trusted_proxy_decides_and_another_port_is_named() {
    let authority = Authority::new();
    let redirecting = redirecting(&authority, 8443);
    let stage = Stage::open(|settings| {
        redirecting(settings);
        settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    });
    let with = |fields: &str| {
        location(&stage, &format!("GET / HTTP/1.1\r\nhost: a.example\r\n{fields}\r\n"))
    };
    let plain = with("x-forwarded-proto: http\r\nx-forwarded-for: 192.0.2.1\r\n");
    assert_eq!(plain.as_deref(), Some("https://a.example:8443/"));
    assert_eq!(with("x-forwarded-proto: https\r\nx-forwarded-for: 192.0.2.1\r\n"), None);
    // The health check of a balancer.
    assert_eq!(with(""), None);
}

#[test]
fn browsers_get_the_pages_for_a_backend_that_fails() {
    let html = "GET / HTTP/1.1\r\nhost: a\r\naccept: text/html\r\n\r\n";
    let stage = Stage::open(|settings| {
        settings.backends = vec![nobody()];
        settings.pages.bad_gateway = Some("<h1>Down</h1>".into());
    });
    let mut client = stage.client();
    client.send(html);
    let answer = client.message();
    assert_eq!((answer.status(), answer.text()), (502, "<h1>Down</h1>"));
    assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"));
    client.send("GET / HTTP/1.1\r\nhost: a\r\naccept: application/json\r\n\r\n");
    assert_eq!(client.message().text(), "{\"status\":502,\"error\":\"Bad Gateway\"}\n");
    client.get("/");
    assert_eq!(client.message().text(), "502 Bad Gateway\n");

    let stage = Stage::open(|settings| {
        settings.timeouts.backend = Duration::from_millis(80);
        settings.pages.too_late = Some("<h1>Late</h1>".into());
    });
    let mut client = stage.client();
    client.send(html);
    let mut backend = stage.backend();
    backend.message();
    let answer = client.message();
    assert_eq!((answer.status(), answer.text()), (504, "<h1>Late</h1>"));
}

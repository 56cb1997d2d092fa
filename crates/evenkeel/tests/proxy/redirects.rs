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
    assert_eq!(answer.header("cache-control"), Some("private, max-age=300"));
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
    // What only looks like a challenge.
    for rest in
        ["", "../x", "..", "a/../../x", "%2e%2e/x", "a%2f..%2f..%2fx", "a/b", "a.b", "a;/../x"]
    {
        let path = format!("/.well-known/acme-challenge/{rest}");
        assert_eq!(get(&path), Some(format!("https://a.example{path}")), "{path}");
    }
    for path in ["/healthz/../x", "/healthz/%2e%2e/x", "/healthz;/..%2fx", "/healthz%5c..%5cx"] {
        assert_eq!(get(path), Some(format!("https://a.example{path}")), "{path}");
    }
    assert_eq!(to("GET / HTTP/1.0\r\n\r\n"), None, "no host is known");

    let client = authority.client(&["http/1.1"], None);
    let (mut stream, _) =
        tls::connect(stage.door.addresses()[1], &client, "a.example").expect("tls");
    std::io::Write::write_all(&mut stream, b"GET /s HTTP/1.1\r\nhost: a\r\n\r\n").expect("sent");
    assert!(stage.backend().head().starts_with("GET /s "));
}

/// Whatever a client sends, `Location` has the host of the request, the port of the settings and
/// one line. A host that no server can have is refused, or leads nowhere.
#[test]
fn hostile_hosts_never_choose_where_the_redirect_leads() {
    let authority = Authority::new();
    let stage = Stage::open(redirecting(&authority, 443));
    let with = |host: &str| format!("GET /p HTTP/1.1\r\nhost: {host}\r\n\r\n");
    let longest = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "a".repeat(61));
    for (host, name) in [
        ("a.example", "a.example"),
        ("A.Example:80", "A.Example"),
        ("a.example.", "a.example."),
        ("a.example:", "a.example"),
        ("a.example:99999", "a.example"),
        ("a.example\t", "a.example"),
        ("[::1]", "[::1]"),
        ("[2001:db8::1]:8080", "[2001:db8::1]"),
        ("127.0.0.1:65535", "127.0.0.1"),
        ("a_b-c.example", "a_b-c.example"),
        (&longest, &longest),
    ] {
        assert_eq!(location(&stage, &with(host)), Some(format!("https://{name}/p")), "{host}");
    }
    for host in [
        "a.example@evil.example",
        "user:pass@evil.example",
        "a.example/evil",
        "a.example#evil",
        "a.example?evil",
        "a.example\\evil",
        "a.example evil.example",
        "a.example, evil.example",
        "a.example:80:80",
        "a.example:port",
        "[::1",
        "::1",
        "[::1]evil",
        "a.example%0d%0aset-cookie:x=1",
        "a.example\u{0}",
        "a.example\r\nhost: evil.example",
        "<script>",
        "\"a\"",
    ] {
        let mut client = stage.client();
        client.send(with(host));
        assert_eq!(client.message().status(), 400, "{host}");
    }
    let (long, longer) = (format!("a{longest}"), "a".repeat(30_000));
    for host in
        ["[evil.example]", "[v1.evil]", "[fe80::1%25eth0]", "%61.example", "\u{e4}.example", ".."]
            .into_iter()
            .chain([&*long, &*longer])
    {
        assert_eq!(location(&stage, &with(host)), None, "{host:.20}");
    }
}

/// The target of a request does no more harm than its host.
#[test]
fn hostile_targets_never_choose_where_the_redirect_leads() {
    let authority = Authority::new();
    let stage = Stage::open(redirecting(&authority, 443));
    let with = |target: &str, host: &str| format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n");
    for (target, place) in [
        ("/p%0d%0aset-cookie:%20x=1", "/p%0d%0aset-cookie:%20x=1"),
        ("/?to=%0d%0ax:y", "/?to=%0d%0ax:y"),
        ("//evil.example", "//evil.example"),
        ("/@evil.example", "/@evil.example"),
        ("http://a.example/p?q", "/p?q"),
        ("http://a.example", "/"),
    ] {
        let to = location(&stage, &with(target, "a.example"));
        assert_eq!(to, Some(format!("https://a.example{place}")), "{target}");
    }
    // The target of a request is its host, whatever `Host` says (RFC 9112, 3.2.2).
    let other = location(&stage, &with("http://b.example/p", "a.example"));
    assert_eq!(other.as_deref(), Some("https://b.example/p"));
    assert_eq!(location(&stage, "OPTIONS * HTTP/1.1\r\nhost: a.example\r\n\r\n"), None);
    for target in [
        "https://a.example/p",
        "http://user@a.example/p",
        "http://a.example@evil.example/p",
        "evil.example/p",
        "/p\rset-cookie:x",
        "/p\u{0}",
    ] {
        let mut client = stage.client();
        client.send(with(target, "a.example"));
        assert_eq!(client.message().status(), 400, "{target:?}");
    }
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

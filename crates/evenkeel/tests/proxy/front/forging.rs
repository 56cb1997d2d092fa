//! Forged headers about the client's identity: none of them affects the limits or reaches the
//! backend, in any HTTP version, place or spelling.

use super::http2::Http2;
use crate::stage::{Message, Stage, hit_limit};
use evenkeel_config::settings::{ClientAddress, ProxySettings, TrustedProxies};
use evenkeel_testing::wait::until;
use http::{HeaderMap, HeaderValue, Request};

const OWN: &str = "cf-connecting-ip";
/// Names that some backends read as the client's address or as `HTTP_PROXY`.
const NAMES: [&str; 14] = [
    "cf-connecting-ip",
    "cf_connecting_ip",
    "cf.connecting-ip",
    "cf-connecting~ip",
    "x-forwarded-for",
    "x_forwarded_for",
    "x-forwarded.for",
    "x-forwarded-proto",
    "x_forwarded_proto",
    "x-forwarded-host",
    "x-real-ip",
    "x_real_ip",
    "forwarded",
    "proxy",
];
const FORGED: &str = "6.6.6.6";

/// Trusts the clients of `network`.
fn believes(network: &str) -> impl Fn(&mut ProxySettings) {
    let network: TrustedProxies = network.parse().expect("a network");
    move |settings| {
        settings.trusted_proxies = vec![network.clone()];
        settings.client_address = ClientAddress::Header(OWN.to_owned());
    }
}

/// Sends a request over HTTP/1.1 and returns it as the backend received it.
fn plain(stage: &Stage, lines: &str) -> Message {
    let mut client = stage.client();
    client.send(format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}\r\n"));
    let mut backend = stage.backend();
    let request = backend.message();
    backend.answer("");
    assert_eq!(client.message().status(), 200);
    request
}

/// Sends a request over HTTP/2 and returns it as the backend received it.
fn stream(stage: &Stage, lines: &[(&str, &str)]) -> Message {
    let client = Http2::connect(stage.door.addresses()[0]);
    let request = Request::get("http://a/");
    let request =
        lines.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let exchange = client.bodyless(request);
    let mut backend = stage.backend();
    let message = backend.message();
    backend.answer("");
    assert_eq!(exchange.whole().0.status, 200);
    message
}

#[test]
fn no_spelling_of_the_clients_address_passes() {
    let stage = Stage::open(believes("10.0.0.0/8"));
    let lines: String = NAMES.iter().map(|name| format!("{name}: {FORGED}\r\n")).collect();
    let named: Vec<_> = NAMES.iter().map(|name| (*name, FORGED)).collect();
    for request in [plain(&stage, &lines), stream(&stage, &named)] {
        assert!(!request.head.contains(FORGED), "{}", request.head);
        assert_eq!(request.header("x-forwarded-for"), Some("127.0.0.1"));
    }
}

#[test]
fn what_a_trusted_peer_says_stays_whatever_connection_names() {
    let stage = Stage::open(believes("127.0.0.0/8"));
    let said = [
        ("cf-connecting-ip", "192.0.2.7"),
        ("x-forwarded-for", "192.0.2.7"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "b"),
        ("x-real-ip", "192.0.2.7"),
        ("forwarded", "for=192.0.2.7"),
    ];
    let forged = ["cf_connecting_ip", "cf-connecting.ip", "x_forwarded_for", "x_real_ip", "proxy"];
    let mut lines = String::new();
    for (name, value) in said {
        lines += &format!("{name}: {value}\r\nconnection: {name}\r\n");
    }
    forged.iter().for_each(|name| lines += &format!("{name}: {FORGED}\r\n"));
    let named: Vec<_> = said.into_iter().chain(forged.map(|name| (name, FORGED))).collect();
    for request in [plain(&stage, &lines), stream(&stage, &named)] {
        assert!(!request.head.contains(FORGED), "{}", request.head);
        for (name, value) in said {
            let passed = request.header(name).unwrap_or_else(|| panic!("{name} is gone"));
            assert!(passed.starts_with(value), "{name}: {passed}");
        }
    }
}

#[test]
fn trailers_say_nothing_that_a_head_must_say() {
    let forbidden = NAMES.into_iter().chain([
        "authorization",
        "content-type",
        "content_type",
        "cookie",
        "expect",
        "set-cookie",
        "www-authenticate",
    ]);
    let forbidden: Vec<&str> = forbidden.collect();
    let stage = Stage::open(believes("10.0.0.0/8"));
    let fields: String = forbidden.iter().map(|name| format!("{name}: {FORGED}\r\n")).collect();
    let mut client = stage.client();
    client.send(format!(
        "POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntransfer-encoding: chunked\r\n\r\n\
         1\r\na\r\n0\r\nx-sum: 1\r\n{fields}\r\n"
    ));
    let mut backend = stage.backend();
    backend.head();
    backend.expect("1\r\na\r\n0\r\nx-sum: 1\r\n\r\n");
    // The backend's own address header has no meaning in an answer.
    let answered = fields.lines().filter(|line| !line.starts_with("cf"));
    let answered: String = answered.map(|line| format!("{line}\r\n")).collect();
    backend.send(format!(
        "HTTP/1.1 200 OK\r\ntrailer: x-sum, {}\r\ntransfer-encoding: chunked\r\n\r\n\
         1\r\nb\r\n0\r\nx-sum: 2\r\n{answered}\r\n",
        forbidden.join(", ")
    ));
    client.head();
    client.expect("1\r\nb\r\n0\r\nx-sum: 2\r\n\r\n");

    let client = Http2::connect(stage.door.addresses()[0]);
    let mut exchange = client.begin(Request::post("http://a/").header("te", "trailers"));
    exchange.give("one");
    let mut again = stage.backend_for("/", backend);
    again.expect("3\r\none\r\n");
    let mut trailers = HeaderMap::new();
    for name in ["x-sum"].iter().chain(&forbidden) {
        trailers.insert(*name, HeaderValue::from_static(FORGED));
    }
    exchange.end_with(trailers);
    again.expect(format!("0\r\nx-sum: {FORGED}\r\n\r\n"));
    again.send(format!(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\ngrpc-status: 0\r\n{answered}\r\n"
    ));
    let (_, trailers) = {
        exchange.head();
        exchange.rest()
    };
    let trailers = trailers.expect("trailers");
    let names: Vec<_> = trailers.keys().map(http::HeaderName::as_str).collect();
    assert_eq!(names, ["grpc-status"]);
}

/// A client behind a trusted front proxy that appends the client's true address, to the same line
/// or as a new one. Each request names another victim.
#[test]
fn an_open_quotation_forges_no_address() {
    for (before, after) in [
        ("for=\"198.51.100.N\";x=\"", ", for=203.0.113.66"),
        ("for=\"198.51.100.N\";x=\"\\", ", for=\"203.0.113.66:80\""),
        ("for=\"198.51.100.N", ", for=203.0.113.66;proto=http"),
        ("for=198.51.100.N, x=\"", "\r\nforwarded: for=203.0.113.66"),
    ] {
        let stage = Stage::open(|settings| {
            settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
            settings.client_address = ClientAddress::Forwarded;
            settings.limits = vec![hit_limit(1, 3)];
        });
        let mut client = stage.client();
        let mut backend = None;
        let mut passed = 0;
        for victim in 1..=8 {
            let before = before.replace('N', &victim.to_string());
            client.send(format!("GET / HTTP/1.1\r\nhost: a\r\nforwarded: {before}{after}\r\n\r\n"));
            backend = match backend.take() {
                None => stage.backend_or_client(&mut client),
                some => some,
            };
            let far = backend.as_mut().expect("the first passes");
            until("an answer or a request", || !client.is_silent() || !far.is_silent());
            if client.is_silent() {
                passed += 1;
                let request = far.message();
                let handed = request.header("forwarded").expect("it is handed on").to_owned();
                assert!(!handed.contains("198.51.100") || !handed.contains('"'), "{handed}");
                far.answer("");
                assert_eq!(client.message().status(), 200);
            } else {
                assert_eq!(client.message().status(), 429);
            }
        }
        assert_eq!(passed, 3, "his own three: {before}{after}");
    }
}

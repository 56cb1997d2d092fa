//! HTTP/2 to the backend: the request and the answer on both sides, requests that share a
//! connection, requests that are sent again, and the effect of one stream's end on the others.

use super::frames::{Behind, all_closed, streams};
use super::http2::{BIG, Server};
use crate::front::Authority;
use crate::front::frames::{REFUSED_STREAM, RST_STREAM};
use crate::front::http2::{Exchange, Http2, Part};
use crate::stage::{Stage, Wire};
use evenkeel_config::settings::tls::ClientTls;
use evenkeel_config::settings::{BackendProtocol, BackendScheme, BackendTls};
use evenkeel_telemetry::counts::BackendFault;
use evenkeel_testing::wait::until;
use http::{HeaderMap, Request, StatusCode, Version};
use std::time::Duration;

/// The HTTP/2 error codes of resets.
const INTERNAL_ERROR: u32 = 2;
const CANCEL: u32 = 8;

const BAD_GATEWAY: StatusCode = StatusCode::BAD_GATEWAY;

/// A client with one connection, so that one thread of the proxy handles all its requests.
fn client(stage: &Stage) -> Http2 {
    Http2::connect(stage.door.addresses()[0])
}

fn before(server: &Server) -> Stage {
    let at = server.at.clone();
    Stage::open(|settings| settings.backends = vec![at])
}

fn post(client: &Http2, body: &'static str) -> Exchange {
    let mut exchange = client.begin(Request::post("http://site.example/p"));
    exchange.give(body);
    exchange.end();
    exchange
}

#[test]
fn a_request_and_its_answer_pass_as_they_are() {
    let server = Server::open();
    let stage = before(&server);
    let mut client = stage.client();
    client.send(
        "POST /a?b=%20 HTTP/1.1\r\nhost: site.example:81\r\nconnection: keep-alive, x-hop\r\n\
         x-hop: 1\r\nte: trailers\r\nx-forwarded-for: 192.0.2.1\r\ncookie: a=b\r\n\
         content-length: 5\r\n\r\nhello",
    );
    let answer = client.message();
    assert_eq!((answer.status(), answer.text(), answer.header("x-a")), (200, "hello", Some("b")));
    let asked = server.asked().remove(0);
    assert_eq!((&*asked.method, asked.version), ("POST", Version::HTTP_2));
    assert_eq!(asked.target.to_string(), "http://site.example:81/a?b=%20");
    let field = |name: &str| asked.headers.get(name).map(|value| value.to_str().expect("text"));
    for (name, expected) in [
        ("host", None),
        ("connection", None),
        ("x-hop", None),
        ("te", Some("trailers")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("x-forwarded-host", Some("site.example:81")),
        ("x-forwarded-proto", Some("http")),
        ("content-length", Some("5")),
        ("cookie", Some("a=b")),
    ] {
        assert_eq!(field(name), expected, "{name}");
    }
    client.send("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.message().status(), 200);
    client.send("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(Wire::head(&mut client).split(' ').nth(1), Some("200"));
    // A host that is not valid in a target URI.
    client.send("GET /h HTTP/1.1\r\nhost: a%zz\r\n\r\n");
    client.message();
    let asked = server.asked();
    assert_eq!(asked[1].target.path(), "*");
    assert_eq!(asked[3].target.path(), "/h");
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_call_talks_both_ways_and_its_trailers_pass() {
    let server = Server::open();
    let stage = before(&server);
    let client = client(&stage);
    let call = Request::post("http://site.example/s.S/M").header("te", "trailers");
    let mut call = client.begin(call.header("content-type", "application/grpc"));
    call.give("ping");
    assert_eq!(call.head().headers["x-a"], "b");
    // The backend answers the first message before the client sends the next one.
    assert!(matches!(call.next(), Part::Data(data) if data == "ping"));
    call.give("pong");
    assert!(matches!(call.next(), Part::Data(data) if data == "pong"));
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("a value"));
    call.end_with(trailers);
    let (rest, trailers) = call.rest();
    assert_eq!((&*rest, &trailers.expect("trailers")["grpc-status"].as_bytes()), ("", &&b"0"[..]));
    let asked = server.asked().remove(0);
    assert_eq!(asked.headers["te"], "trailers");
}

#[test]
fn requests_share_connections_as_far_as_both_sides_allow() {
    let stage = Stage::open(|settings| {
        streams(settings);
        settings.bounds.backend_streams = 2;
    });
    let client = client(&stage);
    let asked: Vec<Exchange> = (0..3).map(|_| client.get("/")).collect();
    let mut first = Behind::accept(&stage, None);
    let on_first = [first.request(), first.request()];
    let mut second = Behind::accept(&stage, Some(1));
    let on_second = second.request();
    for stream in on_first {
        first.answer(stream, "first");
    }
    second.answer(on_second, "second");
    let mut heard: Vec<String> = asked.iter().map(|asked| asked.whole().1).collect();
    heard.sort();
    assert_eq!(heard, ["first", "first", "second"]);
    // The connections are reused.
    let again = client.get("/");
    let stream = first.request();
    first.answer(stream, "again");
    assert_eq!(again.whole().1, "again");
    stage.backend_is_left_alone();
}

#[test]
fn the_backends_own_bound_is_kept() {
    let stage = Stage::open(streams);
    let client = client(&stage);
    let first = client.get("/");
    let mut one = Behind::accept(&stage, Some(1));
    let stream = one.request();
    one.answer(stream, "1");
    first.whole();
    // The proxy knows the settings of the connection by now.
    let (second, third) = (client.get("/"), client.get("/"));
    let stream = one.request();
    let mut two = Behind::accept(&stage, Some(1));
    let other = two.request();
    one.answer(stream, "2");
    two.answer(other, "2");
    assert_eq!((second.whole().1, third.whole().1), ("2".into(), "2".into()));
}

#[test]
fn it_is_kept_by_all_who_come_at_once_before_it_is_known() {
    let stage = Stage::open(streams);
    let client = client(&stage);
    let asked: Vec<Exchange> = (0..3).map(|_| client.get("/")).collect();
    let mut one = Behind::accept(&stage, Some(2));
    let on_one = [one.request(), one.request()];
    let mut two = Behind::accept(&stage, Some(2));
    let on_two = two.request();
    on_one.into_iter().for_each(|stream| one.answer(stream, "1"));
    two.answer(on_two, "2");
    let mut heard: Vec<String> = asked.iter().map(|asked| asked.whole().1).collect();
    heard.sort();
    assert_eq!(heard, ["1", "1", "2"]);
}

#[test]
fn what_the_backend_has_not_looked_at_is_sent_again_whatever_it_is() {
    let stage = Stage::open(streams);
    let client = client(&stage);
    // The server refuses the stream.
    let asked = post(&client, "twice");
    let mut behind = Behind::accept(&stage, None);
    let stream = behind.request();
    assert_eq!(behind.body(stream), "twice");
    behind.reset(stream, REFUSED_STREAM);
    let stream = behind.request();
    assert_eq!(behind.body(stream), "twice");
    behind.answer(stream, "at last");
    assert_eq!(asked.whole().1, "at last");
    // The server sends GOAWAY before it has processed the later stream. The earlier stream
    // continues.
    let (early, late) = (client.get("/early"), post(&client, "late"));
    let (early_on, late_on) = (behind.request(), behind.request());
    assert_eq!(behind.body(late_on), "late");
    behind.goes_away(early_on);
    let mut other = Behind::accept(&stage, None);
    let stream = other.request();
    assert_eq!(other.body(stream), "late");
    other.answer(stream, "late");
    behind.answer(early_on, "early");
    assert_eq!((early.whole().1, late.whole().1), ("early".into(), "late".into()));
    assert!(behind.try_next().is_none(), "it is closed when the last stream has ended");
    assert_eq!(stage.watch.proxy.failures(BackendFault::Closed).get(), 0);
}

#[test]
fn what_it_may_have_done_is_not() {
    let stage = Stage::open(streams);
    let client = client(&stage);
    let (get, sent) = (client.get("/"), post(&client, "once"));
    let mut behind = Behind::accept(&stage, None);
    let both = [behind.request(), behind.request()];
    assert_eq!(behind.body(both[1]), "once");
    both.iter().for_each(|stream| behind.reset(*stream, INTERNAL_ERROR));
    assert_eq!((get.head().status, sent.head().status), (BAD_GATEWAY, BAD_GATEWAY));
    // The connection breaks: only an idempotent request goes to the next connection.
    let (get, sent) = (client.get("/"), post(&client, "once"));
    let both = [behind.request(), behind.request()];
    assert_eq!(behind.body(both[1]), "once");
    drop(behind);
    let mut other = Behind::accept(&stage, None);
    let stream = other.request();
    other.answer(stream, "got");
    assert_eq!((get.whole().1, sent.head().status), ("got".into(), BAD_GATEWAY));
    // An answer that has begun is not requested again.
    let get = client.get("/");
    let stream = other.request();
    other.head(stream).data(stream, "half", false);
    assert_eq!(get.head().status, 200);
    assert!(matches!(get.next(), Part::Data(_)));
    other.reset(stream, INTERNAL_ERROR);
    assert!(matches!(get.next(), Part::Failed));
    stage.backend_is_left_alone();
    assert_eq!(stage.watch.proxy.failures(BackendFault::Closed).get(), 4);
}

/// A request that is alone on a new connection may be what ended it. If there are others, one of
/// those may be.
#[test]
fn a_new_connection_may_be_ended_by_another_request() {
    let stage = Stage::open(streams);
    let client = client(&stage);
    let get = client.get("/");
    let mut behind = Behind::accept(&stage, None);
    behind.request();
    drop(behind);
    assert_eq!(get.head().status, BAD_GATEWAY);
    let get = client.get("/");
    let mut behind = Behind::accept(&stage, None);
    behind.request();
    let sent = post(&client, "once");
    let stream = behind.request();
    assert_eq!(behind.body(stream), "once");
    drop(behind);
    let mut other = Behind::accept(&stage, None);
    let stream = other.request();
    other.answer(stream, "got");
    assert_eq!((get.whole().1, sent.head().status), ("got".into(), BAD_GATEWAY));
    assert_eq!(stage.watch.proxy.failures(BackendFault::Closed).get(), 2);
}

#[test]
fn a_client_that_reads_nothing_holds_up_nobody() {
    let server = Server::open();
    let stage = before(&server);
    let client = client(&stage);
    // The client reads none of these answers beyond its own flow control windows.
    let stuck: Vec<Exchange> = (0..20).map(|_| client.get("/big")).collect();
    stuck.iter().for_each(|stuck| assert_eq!(stuck.head().status, 200));
    let mut other = stage.client();
    for _ in 0..2 {
        let big = client.get("/big").whole().1.len();
        other.get("/big");
        assert_eq!((big, other.message().body.len()), (BIG, BIG));
    }
    drop(stuck);
}

#[test]
fn who_hangs_up_has_its_stream_ended_and_no_other() {
    let stage = Stage::open(|settings| {
        streams(settings);
        settings.timeouts.abort_linger = Duration::from_millis(50);
    });
    let client = client(&stage);
    let (gone, stays) = (client.get("/gone"), client.get("/stays"));
    let mut behind = Behind::accept(&stage, None);
    let (first, second) = (behind.request(), behind.request());
    gone.reset();
    let reset = behind.next();
    assert_eq!((reset.kind, reset.stream, reset.code()), (RST_STREAM, first, CANCEL));
    behind.answer(second, "here");
    assert_eq!(stays.whole().1, "here");
}

#[test]
fn a_connection_that_went_silent_gets_no_more_requests() {
    let stage = Stage::open(|settings| {
        streams(settings);
        settings.timeouts.backend = Duration::from_secs(2);
    });
    let client = client(&stage);
    let asked = client.get("/");
    let mut silent = Behind::accept(&stage, None);
    silent.request();
    assert_eq!(asked.head().status, 504);
    let asked = client.get("/");
    let mut other = Behind::accept(&stage, None);
    let stream = other.request();
    other.answer(stream, "here");
    assert_eq!(asked.whole().1, "here");
    assert!(matches!(silent.next().kind, RST_STREAM));
    assert!(silent.try_next().is_none(), "it is closed");
}

#[test]
fn a_body_that_the_backend_does_not_take_is_not_waited_for() {
    let stage = Stage::open(|settings| {
        streams(settings);
        // Longer than a busy machine may delay the client's data.
        settings.timeouts.idle = Duration::from_secs(2);
    });
    let mut client = stage.client();
    let length = 4 << 20;
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    let mut pouring = client.again();
    let poured = std::thread::spawn(move || pouring.send(head).pour(length));
    let mut behind = Behind::accept(&stage, None);
    behind.request();
    assert_eq!(client.message().status(), 504);
    drop(client);
    assert!(poured.join().expect("it ends") <= length);
    // No more than the initial window arrived.
    let mut came = 0;
    while let Some(frame) = behind.try_next().filter(|frame| frame.kind != RST_STREAM) {
        came += frame.payload.len();
    }
    assert_eq!(came, 65_535);
}

#[test]
fn what_is_spoken_under_tls_is_agreed_on() {
    let authority = Authority::new();
    let ca = authority.path("ca.pem");
    let open = |server: &Server, protocol| {
        let at = server.at.clone();
        let client = ClientTls {
            ca: Some(ca.clone()),
            identity: None,
            name: Some("app.example".to_owned()),
        };
        Stage::open(|settings| {
            settings.backends = vec![at];
            settings.backend_tls = BackendTls { client, protocol, ..BackendTls::default() };
        })
    };
    let both = ["h2", "http/1.1"];
    for (protocol, offers, spoken) in [
        (BackendProtocol::Auto, &both[..], Version::HTTP_2),
        (BackendProtocol::Auto, &both[1..], Version::HTTP_11),
        (BackendProtocol::Auto, &[], Version::HTTP_11),
        (BackendProtocol::Http1, &both, Version::HTTP_11),
        (BackendProtocol::Http2, &both, Version::HTTP_2),
    ] {
        let server = Server::open_tls(&authority, "app.example", offers);
        let stage = open(&server, protocol);
        let mut client = stage.client();
        for _ in 0..3 {
            assert_eq!(client.get("/").message().status(), 200);
        }
        let asked = server.asked();
        let versions: Vec<Version> = asked.iter().map(|asked| asked.version).collect();
        assert_eq!(versions, [spoken; 3], "{protocol} {offers:?}");
        let scheme = asked[0].target.scheme_str().map(str::to_owned);
        assert_eq!(scheme, (spoken == Version::HTTP_2).then(|| "https".to_owned()));
        assert_eq!(server.connections(), 1);
    }
    // A request to upgrade gets a connection of its own.
    let server = Server::open_tls(&authority, "app.example", &both);
    let stage = open(&server, BackendProtocol::Auto);
    let mut client = stage.client();
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
    client.send(format!("GET /ws HTTP/1.1\r\nhost: a\r\n{upgrade}\r\n"));
    client.message();
    client.get("/").message();
    let versions: Vec<Version> = server.asked().iter().map(|asked| asked.version).collect();
    assert_eq!(versions, [Version::HTTP_11, Version::HTTP_2]);
    assert_eq!(server.asked()[0].headers["upgrade"], "websocket");
    // A server that offers only the protocol that the settings rule out.
    let server = Server::open_tls(&authority, "app.example", &["http/1.1"]);
    let stage = open(&server, BackendProtocol::Http2);
    assert_eq!(stage.client().get("/").message().status(), 502);
    until("it is counted", || stage.watch.proxy.failures(BackendFault::Tls).get() == 1);
}

#[test]
fn a_socket_file_speaks_streams_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::open_file(&folder.path().join("app.sock"));
    assert_eq!(server.at.scheme, BackendScheme::UnixH2c);
    let stage = before(&server);
    assert_eq!(stage.client().get("/x").message().status(), 200);
    assert_eq!(server.asked()[0].target, "http://site.example/x");
}

#[test]
fn who_speaks_no_http2_has_failed() {
    let stage = Stage::open(streams);
    let mut client = stage.client();
    client.get("/");
    let mut behind = stage.backend();
    behind.expect("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    behind.send("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(client.message().status(), 502);
    until("it is counted", || stage.watch.proxy.failures(BackendFault::Protocol).get() == 1);
    drop(behind);
    all_closed(&stage);
}

#[test]
fn one_attempt_to_connect_is_everybodys() {
    let server = Server::open();
    let stage = before(&server);
    let client = client(&stage);
    let asked: Vec<Exchange> = (0..50).map(|_| client.get("/")).collect();
    asked.iter().for_each(|asked| assert_eq!(asked.whole().0.status, 200));
    assert_eq!(server.connections(), 1);
    // A failed attempt also counts for all requests that wait for it.
    let nobody = super::nobody();
    let stage = Stage::open(|settings| {
        settings.backends = vec![nobody];
        settings.backends[0].scheme = BackendScheme::H2c;
    });
    let client = Http2::connect(stage.door.addresses()[0]);
    let asked: Vec<Exchange> = (0..50).map(|_| client.get("/")).collect();
    asked.iter().for_each(|asked| assert_eq!(asked.head().status, BAD_GATEWAY));
}

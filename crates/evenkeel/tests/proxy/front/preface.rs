//! The PROXY protocol on real connections: clients that must send its header, clients that must
//! not, and its effect on the client's address.

use crate::stage::Stage;
use evenkeel_config::settings::{ClientAddress, ProxySettings};
use evenkeel_telemetry::counts::ConnectionRefusal;
use evenkeel_testing::wait::until;

fn trusting(settings: &mut ProxySettings) {
    settings.client_address = ClientAddress::ProxyProtocol;
    settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
}

const REQUEST: &str = "GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 6.6.6.6\r\n\r\n";

/// A version 2 header for 2001:db8::7 over TLS.
fn binary() -> Vec<u8> {
    let mut bytes = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x2c".to_vec();
    bytes.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    bytes.extend([0; 16]);
    bytes.extend([0, 1, 0, 2]);
    bytes.extend([0x20, 0, 5, 1, 0, 0, 0, 0]);
    bytes
}

#[test]
fn the_client_is_who_the_front_says() {
    let line = b"PROXY TCP4 192.0.2.7 192.0.2.8 4711 80\r\n".to_vec();
    for (preface, client, proto) in [
        (line, "192.0.2.7", "http"),
        (binary(), "2001:db8::7", "https"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1", "http"),
    ] {
        let stage = Stage::open(trusting);
        let mut wire = stage.client();
        // The header arrives in two pieces, and the request with the second one.
        let (begin, end) = preface.split_at(7);
        wire.send(begin);
        wire.send([end, REQUEST.as_bytes()].concat());
        let mut backend = stage.backend();
        let request = backend.message();
        assert_eq!(request.header("x-forwarded-for"), Some(client), "headers are not believed");
        assert_eq!(request.header("x-forwarded-proto"), Some(proto));
        backend.answer("ok");
        assert_eq!(wire.message().text(), "ok");
        // The header applies to the whole connection.
        wire.send(REQUEST);
        assert_eq!(backend.message().header("x-forwarded-for"), Some(client));
    }
}

#[test]
fn http2_may_follow() {
    let stage = Stage::open(trusting);
    let mut wire = stage.client();
    wire.send("PROXY TCP4 192.0.2.7 192.0.2.8 4711 80\r\n");
    wire.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    assert_eq!(wire.take(9)[3], 4, "settings come back");
}

#[test]
fn a_trusted_front_that_says_nothing_is_refused() {
    let stage = Stage::open(trusting);
    for (count, said) in [REQUEST, "PROXY TCP9 a b 1 2\r\n"].iter().enumerate() {
        let mut wire = stage.client();
        wire.send(said);
        wire.ends();
        until("it is counted", || {
            stage.watch.proxy.refused_connections(ConnectionRefusal::Preface).get()
                == count as u64 + 1
        });
    }
    stage.backend_is_left_alone();
}

#[test]
fn from_anybody_else_it_is_a_bad_request() {
    let stage = Stage::open(|settings| {
        settings.client_address = ClientAddress::ProxyProtocol;
        settings.trusted_proxies = vec!["10.0.0.0/8".parse().expect("a network")];
    });
    let mut wire = stage.client();
    wire.send("PROXY TCP4 192.0.2.7 192.0.2.8 4711 80\r\n").send(REQUEST);
    assert_eq!(wire.message().status(), 400);
    stage.backend_is_left_alone();
}

#[test]
fn an_address_has_no_more_connections_than_it_may_have() {
    let stage = Stage::open(|settings| {
        trusting(settings);
        settings.bounds.connections_per_address = 2;
    });
    let from = |address: &str| {
        let mut wire = stage.client();
        wire.send(format!("PROXY TCP4 {address} 192.0.2.8 1 80\r\n")).send(REQUEST);
        wire
    };
    let (mut first, _second) = (from("192.0.2.1"), from("192.0.2.1"));
    let backends = [stage.backend(), stage.backend()];
    from("192.0.2.1").ends();
    until("it is counted", || {
        stage.watch.proxy.refused_connections(ConnectionRefusal::Address).get() == 1
    });
    let _another = from("192.0.2.2");
    let _third = stage.backend();
    // A connection that ends makes room.
    for mut backend in backends {
        backend.head();
        backend.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
    first.message();
    drop(first);
    until("there is room", || stage.door.connections() == 2);
    let _again = from("192.0.2.1");
    let _fourth = stage.backend();
}

//! Strangers, garbage and peers that do not read: the master keeps working for all others.

use crate::stage::{Gatekeeper, HOUR, MasterServer, ahead, order};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const ONE: &str = "domains: {d: [{rate: 1/h, burst: 1}]}";

/// Checks that the master works. `identifier` must be one without an order so far.
fn works(program: &MasterServer, identifier: &str) {
    let mut gatekeeper = Gatekeeper::new(program, &["d\0"]);
    let t = ahead();
    gatekeeper.request("d", identifier, t);
    // Orders for other identifiers may be in force.
    let mut told = gatekeeper.hear();
    while !told.contains(identifier) {
        told = gatekeeper.hear();
    }
    assert_eq!(told, order("d", identifier, t + HOUR));
}

/// Sends bytes to the master, and returns its answer until it closes the connection.
fn sent(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    // The master may close the connection before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn greeting() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

#[test]
fn strangers_are_shown_out_and_counted() {
    let program = MasterServer::start(ONE);
    let mut huge = greeting();
    huge.extend(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB");
    huge.extend(b"\x02\x00\x03\x8d\x7e\xa4\xc6\x80\x00");
    let curve = [&greeting()[..12], b"CURVE", &[0; 47]].concat();
    for address in [program.accounting, program.control] {
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 1000], &[0xff; 1000], &huge, &curve] {
            assert!(sent(address, garbage).len() < 1000);
        }
    }
    // They are counted just after their connections are closed.
    while program.metric("evenkeel_bad_requests_total{door=\"master\"}") < 10 {}
    works(&program, "client-0");
}

#[test]
fn who_may_not_connect_does_not() {
    let program = MasterServer::start(&format!("allow: [192.0.2.0/24], {ONE}"));
    assert_eq!(sent(program.accounting, b""), b"");
    assert_eq!(sent(program.control, b""), b"");
    while program.metric("evenkeel_master_strangers_total") < 2 {}
}

#[test]
fn connections_are_bounded_and_idle_ones_harm_nobody() {
    let program = MasterServer::start(&format!("connections: 20, {ONE}"));
    let idle: Vec<_> = (0..18).map(|_| TcpStream::connect(program.accounting)).collect();
    works(&program, "client-1");
    let more: Vec<_> = (0..50).map(|_| TcpStream::connect(program.accounting)).collect();
    while program.metric("evenkeel_connections_shed_total{door=\"master\"}") < 40 {}
    drop((idle, more));
    works(&program, "client-2");
}

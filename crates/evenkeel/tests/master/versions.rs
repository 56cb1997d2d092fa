//! Peers with ZeroMQ 2 and 3 at byte level: ZMTP 1.0 and 2.0, from either side.

use crate::gatekeeper::site::Keeper;
use crate::stage::{HOUR, MasterServer, ahead, doctor, text};
use evenkeel_testing::wait::until;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const RULES: &str = "domains: {ab: [{rate: 1/h, burst: 1}], abc: [{rate: 1/h, burst: 1}]}";
/// The signature with which all versions but 1.0 begin.
const SIGNATURE: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f";
const PUB: u8 = 1;
const SUB: u8 = 2;

/// A version before 3.0.
#[derive(Clone, Copy, Debug)]
enum Old {
    One,
    Two,
}

impl Old {
    /// The greeting of a socket of type `kind`; version 1.0 does not state the type.
    fn begins(self, kind: u8) -> Vec<u8> {
        match self {
            Old::One => vec![1, 0],
            Old::Two => [SIGNATURE, &[1, kind, 0, 0]].concat(),
        }
    }

    /// The greeting with which a socket of type `kind` answers.
    fn answered(self, kind: u8) -> Vec<u8> {
        match self {
            Old::One => SIGNATURE.to_vec(),
            Old::Two => [SIGNATURE, &[3, kind, 0, 0]].concat(),
        }
    }

    fn message(self, parts: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let more = u8::from(index + 1 < parts.len());
            match (self, part.len()) {
                (Old::One, length @ ..254) => bytes.extend([length as u8 + 1, more]),
                (Old::One, length) => {
                    bytes.push(0xff);
                    bytes.extend((length as u64 + 1).to_be_bytes());
                    bytes.push(more);
                }
                (Old::Two, length @ ..256) => bytes.extend([more, length as u8]),
                (Old::Two, length) => {
                    bytes.push(more | 2);
                    bytes.extend((length as u64).to_be_bytes());
                }
            }
            bytes.extend(*part);
        }
        bytes
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    patient(TcpStream::connect(address).expect("it listens"))
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    stream
}

/// Checks that these bytes arrive next.
fn expect(stream: &mut TcpStream, expected: &[u8], what: &str) {
    let mut read = vec![0; expected.len()];
    let whole = stream.read_exact(&mut read);
    let shown = (read.escape_ascii().to_string(), expected.escape_ascii().to_string());
    assert!(whole.is_ok(), "{what}: it ended, {} was expected", shown.1);
    assert_eq!(shown.0, shown.1, "{what}");
}

/// A gatekeeper of this version reports requests in two domains, and another one subscribes. Checks
/// the orders that the subscriber gets.
fn held(old: Old, subscription: &[u8], told: &[&str]) {
    let program = MasterServer::start(RULES);
    let mut orders = connect(program.control);
    orders.write_all(&[&old.begins(SUB)[..], subscription].concat()).expect("sent");
    expect(&mut orders, &old.answered(PUB), "control");
    until("it listens", || program.get("/api/top").contains("\"listening\":1"));
    let mut accounts = connect(program.accounting);
    accounts.write_all(&old.begins(PUB)).expect("sent");
    expect(&mut accounts, &old.answered(SUB), "accounting");
    if matches!(old, Old::Two) {
        expect(&mut accounts, b"\0\x01\x01", "a subscription to everything");
    }
    let (t, long) = (ahead(), "x".repeat(300));
    for (domain, identifier) in [("ab\0", "c"), ("abc\0", "c"), ("ab\0", &long)] {
        let frames = [domain.as_bytes(), b"ACCEPTED", identifier.as_bytes(), &text(t), b"", b""];
        accounts.write_all(&old.message(&frames)).expect("sent");
    }
    until("all have come", || program.messages("accepted") == 3);
    let until = text(t + HOUR);
    for domain in told {
        let identifier: &[u8] = if *domain == "long" { long.as_bytes() } else { b"c" };
        let topic = if *domain == "long" { "ab\0" } else { domain };
        let order = [topic.as_bytes(), b"DELAY_UNTIL", identifier, &until];
        expect(&mut orders, &old.message(&order), domain);
    }
    let seen = doctor(program.admin);
    assert!(seen.contains(" 0 too late, 0 faulty") && !seen.contains("refused"), "{seen}");
}

#[test]
fn gatekeepers_over_zeromq_2_are_told_everything() {
    held(Old::One, b"", &["ab\0", "abc\0", "long"]);
}

#[test]
fn gatekeepers_over_zeromq_3_are_told_what_they_subscribe_to() {
    held(Old::Two, b"\0\x04\x01abc", &["abc\0"]);
    held(Old::Two, b"\0\x04\x01ab\0", &["ab\0", "long"]);
}

#[test]
fn a_peer_of_an_unknown_version_is_logged_counted_and_shown() {
    let mut program = MasterServer::start(RULES);
    let mut peer = connect(program.control);
    peer.write_all(&[SIGNATURE, &[0]].concat()).expect("sent");
    let mut answer = Vec::new();
    let _ = peer.read_to_end(&mut answer);
    let line = program.told("a peer was disconnected");
    let why = "it uses revision 0 of ZMTP";
    assert!(line.contains("WARN") && line.contains("127.0.0.1") && line.contains(why), "{line}");
    let series = |why| format!("evenkeel_master_refused_total{{why=\"{why}\"}}");
    assert_eq!((program.metric(&series("version")), program.metric(&series("other"))), (1, 0));
    let shown = doctor(program.admin);
    let expected = format!("  1 connections refused, the last of 127.0.0.1: {why}");
    assert!(shown.contains(&expected), "{shown}");
}

/// A master of this version, with the program as its gatekeeper.
fn obeyed(old: Old) {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let addresses = listeners.each_ref().map(|l| l.local_addr().expect("an address"));
    let keeper = Keeper::start(addresses, "domain: ab");
    let [mut accounts, mut orders] =
        listeners.each_ref().map(|listener| patient(listener.accept().expect("it comes").0));
    accounts.write_all(&old.begins(SUB)).expect("sent");
    orders.write_all(&old.begins(PUB)).expect("sent");
    expect(&mut accounts, &old.answered(PUB), "accounting");
    expect(&mut orders, &old.answered(SUB), "control");
    match old {
        Old::One => {}
        Old::Two => {
            accounts.write_all(&old.message(&[b"\x01"])).expect("sent");
            expect(&mut orders, b"\0\x04\x01ab\0", "its subscription");
        }
    }
    until("it is connected", || keeper.is_connected());
    for topic in [&b"other\0"[..], b"abc\0", b"ab\0"] {
        let order = [topic, b"DELAY_UNTIL", b"c", &text(ahead() + HOUR)];
        orders.write_all(&old.message(&order)).expect("sent");
    }
    until("the order is there", || keeper.orders() == 1);
    assert_eq!(keeper.metric("evenkeel_gatekeeper_orders_total{result=\"faulty\"}"), 0);
    assert_eq!((keeper.get("c").status, keeper.get("another").status), (503, 200));
    for (status, identifier) in [("REJECTED", "c"), ("ACCEPTED", "another")] {
        let begins = old.message(&[b"ab\0", status.as_bytes(), identifier.as_bytes(), b"-"]);
        // The rest is the head of a time frame, which has the same length in both versions.
        let begins = &begins[..begins.len() - 3];
        expect(&mut accounts, begins, status);
        let mut rest = [0; 2 + 13 + 2 + 2];
        accounts.read_exact(&mut rest).expect("a time and two empty frames");
        assert!(rest[2..15].iter().all(u8::is_ascii_digit), "{}", rest.escape_ascii());
    }
}

#[test]
fn a_master_over_zeromq_2_is_obeyed() {
    obeyed(Old::One);
}

#[test]
fn a_master_over_zeromq_3_is_obeyed() {
    obeyed(Old::Two);
}

//! The service at byte level: HTTP/2 and gRPC frames that are wrong, cut, or of odd sizes.
//!
//! The client writes raw bytes. A wrong frame ends its stream or its connection, as HTTP/2 demands.
//! A caller without errors gets answers all the time, even on the same connection if only a stream
//! was wrong.

use super::V3;
use crate::ask::{YEARLY, request, shown};
use crate::program::Server;
use evenkeel_ratelimit::wire::Response;
use prost::Message;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short enough").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a call, with every field as a literal without indexing.
fn head(more: &[(&str, &str)]) -> Vec<u8> {
    let own = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", V3),
        (":authority", "ratelimit"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in own.iter().chain(more) {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("below 127"));
            block.extend(text.as_bytes());
        }
    }
    block
}

/// A message in a gRPC frame.
fn body(asked: &str) -> Vec<u8> {
    let message = request(asked).encode_to_vec();
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    [&[0], &length[..], &message].concat()
}

fn call(stream: u32, body: &[u8]) -> Vec<u8> {
    let head = frame(HEADERS, END_HEADERS, stream, &head(&[]));
    [head, frame(DATA, END_STREAM, stream, body)].concat()
}

/// A connection that is read frame by frame.
struct Connection(TcpStream);

impl Connection {
    fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).expect("it listens");
        // Longer than anything takes. A test fails here if the service keeps the connection open.
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        stream.set_nodelay(true).expect("set");
        Connection(stream)
    }

    /// A connection on which the HTTP/2 preface was sent.
    fn greeted(address: SocketAddr) -> Connection {
        let mut connection = Connection::open(address);
        connection.send(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat());
        connection
    }

    /// Sends bytes. If the service has closed the connection, the test notices it when reading.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    /// The next frame: kind, flags, stream, payload; `None` at the end.
    fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        let mut read = |into: &mut [u8]| match self.0.read_exact(into) {
            Ok(()) => Some(()),
            Err(error) => {
                let late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!late, "neither an answer nor an end");
                None
            }
        };
        read(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; length as usize];
        read(&mut payload)?;
        Some((head[3], head[4], stream, payload))
    }

    /// The answer on a stream, as text. An error of the connection fails the test.
    fn answer(&mut self, stream: u32) -> String {
        let mut bytes = Vec::new();
        while let Some((kind, flags, of, payload)) = self.next() {
            match kind {
                GOAWAY => return format!("GOAWAY {}", number(&payload[4..8])),
                RST_STREAM if of == stream => return format!("RST_STREAM {}", number(&payload)),
                DATA if of == stream => bytes.extend(payload),
                _ => {}
            }
            if of == stream && [DATA, HEADERS].contains(&kind) && flags & END_STREAM != 0 {
                return match bytes.get(5..) {
                    Some(bytes) => shown(&Response::decode(bytes).expect("an answer")),
                    None => "refused".to_owned(),
                };
            }
        }
        "the end".to_owned()
    }
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four"))
}

#[test]
fn wrong_frames_end_the_connection_and_nothing_else() {
    let server = Server::start(YEARLY, &[]);
    let mut calm = Connection::greeted(server.grpc);
    let headers = |flags, block: &[u8]| frame(HEADERS, flags, 1, block);
    let begun = headers(END_HEADERS, &head(&[]));
    let cases: [(&str, Vec<u8>, &str); 17] = [
        ("DATA on stream 0", frame(DATA, 0, 0, b"x"), "GOAWAY"),
        ("DATA on an idle stream", frame(DATA, 0, 1, b"x"), "GOAWAY"),
        ("an even stream", frame(HEADERS, END_HEADERS, 2, &head(&[])), "GOAWAY"),
        ("a frame that is too long", frame(DATA, 0, 1, &[0; 16_385]), "GOAWAY"),
        ("no HPACK", headers(END_HEADERS, &[0xff; 40]), "GOAWAY"),
        ("an index that does not exist", headers(END_HEADERS, &[0xfe]), "GOAWAY"),
        ("CONTINUATION alone", frame(CONTINUATION, END_HEADERS, 1, &[]), "GOAWAY"),
        (
            "HEADERS that another frame interrupts",
            [headers(0, &head(&[])), frame(PING, 0, 0, &[0; 8])].concat(),
            "GOAWAY",
        ),
        ("SETTINGS of 5 bytes", frame(SETTINGS, 0, 0, &[0; 5]), "GOAWAY"),
        ("SETTINGS on a stream", frame(SETTINGS, 0, 1, &[]), "GOAWAY"),
        ("a window that grows by 0", frame(WINDOW_UPDATE, 0, 0, &[0; 4]), "GOAWAY"),
        ("PING of 7 bytes", frame(PING, 0, 0, &[0; 7]), "GOAWAY"),
        ("RST_STREAM of an idle stream", frame(RST_STREAM, 0, 1, &[0; 4]), "GOAWAY"),
        (
            "more padding than frame",
            [begun.clone(), frame(DATA, PADDED, 1, &[9, 0])].concat(),
            "GOAWAY",
        ),
        (
            "a window that is too large",
            [begun.clone(), frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])].concat(),
            "GOAWAY",
        ),
        (
            "a stream that was used",
            [call(3, &body("t: zz=1")), call(1, &body("t: zz=1"))].concat(),
            "GOAWAY",
        ),
        ("a frame of no known kind is passed over", frame(0x42, 0xff, 0, &[1; 99]), "the end"),
    ];
    for (index, (what, bytes, told)) in cases.into_iter().enumerate() {
        let mut connection = Connection::greeted(server.grpc);
        connection.send(&bytes);
        // The server may already have closed the connection.
        let _ = connection.0.shutdown(Shutdown::Write);
        let answer = connection.answer(1);
        match told {
            // The HTTP/2 library chooses the error code.
            "GOAWAY" => {
                assert!(answer.starts_with("GOAWAY ") && answer != "GOAWAY", "{what}: {answer}")
            }
            told => assert_eq!(answer, told, "{what}"),
        }
        let stream = u32::try_from(2 * index + 1).expect("small");
        calm.send(&call(stream, &body("t: un=1")));
        assert_eq!(calm.answer(stream), "OK [max]", "after {what}");
    }
}

#[test]
fn what_is_not_http_2_is_closed() {
    let server = Server::start(YEARLY, &[]);
    for bytes in [
        &b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &PREFACE[..20],
        &[0; 64],
        b"",
    ] {
        let mut connection = Connection::open(server.grpc);
        connection.send(bytes);
        // The server may already have closed the connection.
        let _ = connection.0.shutdown(Shutdown::Write);
        let told = connection.answer(1);
        assert!(["the end", "GOAWAY 1"].contains(&told.as_str()), "{told}");
    }
    assert_eq!(super::asked(&server.grpc(), V3, "t: k=v"), "OK [5/YEAR 4]");
}

/// Messages that are cut, or that state a wrong length, end their stream but not the connection.
#[test]
fn wrong_messages_end_their_stream_alone() {
    let server = Server::start(YEARLY, &[]);
    let mut connection = Connection::greeted(server.grpc);
    let good = body("t: k=v");
    let stated = |length: u32| [&[0], &length.to_be_bytes()[..], &good[5..]].concat();
    let actual = u32::try_from(good.len() - 5).expect("short");
    let (mut stream, mut ask) = (1, |bytes: &[u8], stream: &mut u32| {
        connection
            .send(&[frame(HEADERS, END_HEADERS, *stream, &head(&[])), bytes.to_vec()].concat());
        let answer = connection.answer(*stream);
        *stream += 2;
        answer
    });
    for (what, body) in [
        ("nothing", Vec::new()),
        ("half a head", good[..3].to_vec()),
        ("a head alone", good[..5].to_vec()),
        ("a cut message", good[..good.len() - 1].to_vec()),
        ("a message that is longer", [&good[..], b"x"].concat()),
        ("two messages", [&good[..], &good].concat()),
        ("a length of 0", stated(0)),
        ("a length that is one more", stated(actual + 1)),
        ("the greatest length", stated(u32::MAX)),
        ("the compressed flag", [&[1], &good[1..]].concat()),
        ("another flag", [&[0xff], &good[1..]].concat()),
        ("no protobuf", [&[0, 0, 0, 0, 3][..], b"\xff\xff\xff"].concat()),
        ("4 MiB and a byte are promised", [&[0, 0, 64, 0, 1][..], &[0; 16_000]].concat()),
    ] {
        let bytes = frame(DATA, END_STREAM, stream, &body);
        assert_eq!(ask(&bytes, &mut stream), "refused", "{what}");
    }
    // The caller resets the stream: no hit is counted, and the connection stays.
    let broken =
        [frame(DATA, 0, stream, &good), frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())];
    let abandoned = stream;
    let next = [
        broken.concat(),
        frame(HEADERS, END_HEADERS, stream + 2, &head(&[])),
        frame(DATA, END_STREAM, stream + 2, &good),
    ];
    stream += 2;
    connection.send(&[frame(HEADERS, END_HEADERS, abandoned, &head(&[])), next.concat()].concat());
    assert_eq!(connection.answer(stream), "OK [5/YEAR 4]");
    // The content-length differs from the length of the frames.
    stream += 2;
    let head = head(&[("content-length", "99")]);
    connection.send(&frame(HEADERS, END_HEADERS, stream, &head));
    connection.send(&frame(DATA, END_STREAM, stream, &good));
    assert_eq!(connection.answer(stream), "RST_STREAM 1");
    stream += 2;
    connection.send(&call(stream, &good));
    assert_eq!(connection.answer(stream), "OK [5/YEAR 3]", "refused messages count nothing");
}

/// A call is the same call in whatever frames and segments it arrives.
#[test]
fn a_call_in_pieces_is_a_call() {
    let server = Server::start(YEARLY, &[]);
    let good = body("t: k=v");
    let mut connection = Connection::open(server.grpc);
    let whole = [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[]), call(1, &good)].concat();
    for byte in whole {
        connection.send(&[byte]);
    }
    assert_eq!(connection.answer(1), "OK [5/YEAR 4]");
    let (first, rest) = (head(&[])[..7].to_vec(), head(&[])[7..].to_vec());
    let mut pieces =
        [frame(HEADERS, 0, 3, &first), frame(CONTINUATION, END_HEADERS, 3, &rest)].concat();
    for byte in &good {
        pieces.extend(frame(DATA, 0, 3, &[]));
        pieces.extend(frame(DATA, PADDED, 3, &[3, *byte, 0, 0, 0]));
    }
    pieces.extend(frame(DATA, END_STREAM, 3, &[]));
    connection.send(&pieces);
    assert_eq!(connection.answer(3), "OK [5/YEAR 3]");
}

/// Calls with bytes changed, removed, repeated and cut off at random, from a fixed seed. Every
/// connection ends after the caller has sent everything, and the service's memory stays bounded.
#[test]
fn damaged_calls_come_to_an_end() {
    let server = Server::start(YEARLY, &[]);
    let before = server.peak_kib();
    let good = [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[])].concat();
    let good = [good, call(1, &body("t: un=1")), call(3, &body("t: k=damaged | zero=1"))].concat();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).expect("small")
    };
    for _ in 0..400 {
        let mut bytes = good.clone();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            match random(5) {
                0 => bytes[at] ^= 1 << random(8),
                1 => bytes[at] = u8::try_from(random(256)).expect("a byte"),
                2 => bytes.truncate(at.max(1)),
                3 => _ = bytes.drain(at..bytes.len().min(at + 1 + random(20))),
                _ => {
                    let again = bytes[at..].to_vec();
                    bytes.extend(again);
                }
            }
            bytes.resize(bytes.len().max(1), 0);
        }
        let mut connection = Connection::open(server.grpc);
        connection.send(&bytes);
        // The service may have closed the connection already.
        let _ = connection.0.shutdown(Shutdown::Write);
        while connection.next().is_some() {}
    }
    let grown = server.peak_kib() - before;
    assert!(grown < 32 * 1024, "400 damaged connections took {grown} KiB");
    assert_eq!(super::asked(&server.grpc(), V3, "t: k=alive"), "OK [5/YEAR 4]");
}

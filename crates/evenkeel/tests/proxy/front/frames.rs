//! Frames that no correct client sends, each case by name: the stream or the connection ends, the
//! backend gets nothing, and the proxy keeps nothing.

use crate::stage::{Stage, Wire, hit_limit};
use evenkeel_config::settings::ConcurrencySetting;
use evenkeel_core::limit::LimitAction;
use evenkeel_core::units::{Cost, Nanos};
use evenkeel_testing::wait::until;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// The HTTP/2 error codes that the tests expect.
const PROTOCOL_ERROR: u32 = 1;
pub const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header field, neither indexed nor compressed (RFC 7541, 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        assert!(text.len() < 127, "longer ones take more bytes");
        bytes.push(text.len() as u8);
        bytes.extend(text.as_bytes());
    }
    bytes
}

pub fn fields(lines: &[(&str, &str)]) -> Vec<u8> {
    lines.iter().flat_map(|(name, value)| field(name, value)).collect()
}

const PROPER: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];

/// A connection on which the preface and SETTINGS were sent.
pub fn begun(stage: &Stage) -> Wire {
    let mut wire = stage.client();
    wire.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").send(frame(SETTINGS, 0, 0, &[]));
    wire
}

/// The end of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    /// The stream was reset with this code.
    Reset(u32),
    /// The connection was ended with this code.
    Ended(u32),
    Cut,
}

/// Reads frames until `stream` or the connection ends, and returns how it ended.
pub fn fate(wire: &mut Wire, stream: u32) -> Fate {
    loop {
        let Some(header) = wire.try_take(9) else { return Fate::Cut };
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four"));
        let (length, kind, of) = (word(0) >> 8, header[3], word(5));
        let Some(payload) = wire.try_take(length as usize) else { return Fate::Cut };
        let reason = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("four"));
        match kind {
            HEADERS if of == stream => return Fate::Answered,
            RST_STREAM if of == stream => return Fate::Reset(reason(0)),
            GOAWAY if reason(4) != 0 => return Fate::Ended(reason(4)),
            _ => {}
        }
    }
}

/// The head of an extended CONNECT request for another protocol.
pub fn connect(protocol: &'static str) -> Vec<(&'static str, &'static str)> {
    [&PROPER[1..], &[(":method", "CONNECT"), (":protocol", protocol)]].concat()
}

fn request(stream: u32, lines: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields(lines))
}

#[test]
fn heads_that_are_not_proper_are_refused() {
    let with = |line: (&'static str, &'static str)| [&PROPER[..], &[line]].concat();
    let without =
        |name: &str| PROPER.iter().filter(|(known, _)| *known != name).copied().collect::<Vec<_>>();
    for (name, lines) in [
        ("upper case in a name", with(("X-Upper", "1"))),
        ("a space in a name", with(("x a", "1"))),
        ("a colon in a name", with(("x:a", "1"))),
        ("a line end in a value", with(("x", "1\r\ny: 2"))),
        ("a line feed in a value", with(("x", "1\n"))),
        ("a null in a value", with(("x", "1\0"))),
        ("connection", with(("connection", "close"))),
        ("transfer-encoding", with(("transfer-encoding", "chunked"))),
        ("keep-alive", with(("keep-alive", "5"))),
        ("upgrade", with(("upgrade", "websocket"))),
        ("te but trailers", with(("te", "gzip"))),
        ("a pseudo-header after fields", [&[("x", "1")], &PROPER[..]].concat()),
        ("an unknown pseudo-header", with((":status", "200"))),
        ("a method twice", with((":method", "POST"))),
        ("no method", without(":method")),
        ("no path", without(":path")),
        ("no scheme", without(":scheme")),
        ("no authority and no host", without(":authority")),
        ("an empty path", [&without(":path")[..], &[(":path", "")]].concat()),
        ("a path without slash", [&without(":path")[..], &[(":path", "x y")]].concat()),
        ("a length and no body", with(("content-length", "5"))),
        (
            "two lengths",
            [&PROPER[..], &[("content-length", "0"), ("content-length", "1")]].concat(),
        ),
        ("a length that is no number", with(("content-length", "x"))),
        ("another host than authority", with(("host", "b"))),
        ("two hosts", [&PROPER[..], &[("host", "a"), ("host", "a")]].concat()),
        ("connect", vec![(":method", "CONNECT"), (":authority", "a:1")]),
        ("extended connect to another protocol", connect("x")),
        ("extended connect without a scheme", {
            connect("websocket").into_iter().filter(|(name, _)| *name != ":scheme").collect()
        }),
        ("extended connect without a path", {
            connect("websocket").into_iter().filter(|(name, _)| *name != ":path").collect()
        }),
        ("a protocol without connect", with((":protocol", "websocket"))),
        ("two protocols", [&connect("websocket")[..], &[(":protocol", "websocket")]].concat()),
        ("another scheme", [&without(":scheme")[..], &[(":scheme", "ftp")]].concat()),
    ] {
        let stage = Stage::open(|_| {});
        let mut wire = begun(&stage);
        wire.send(request(1, &lines));
        // A refusal by the proxy itself is an answer, and the backend must not get anything.
        let fate = fate(&mut wire, 1);
        stage.backend_is_left_alone();
        assert!(fate != Fate::Cut, "{name}: {fate:?}");
    }
}

#[test]
fn bodies_that_are_not_as_long_as_stated_are_reset() {
    for (name, sent) in [("shorter", "ab"), ("longer", "abcd")] {
        let stage = Stage::open(|_| {});
        let mut wire = begun(&stage);
        let lines = [&PROPER[1..], &[(":method", "POST"), ("content-length", "3")]].concat();
        wire.send(frame(HEADERS, END_HEADERS, 1, &fields(&lines)));
        wire.send(frame(DATA, END_STREAM, 1, sent.as_bytes()));
        assert_eq!(fate(&mut wire, 1), Fate::Reset(PROTOCOL_ERROR), "{name}");
    }
}

#[test]
fn frames_that_nobody_may_send_end_the_connection() {
    let head = fields(&PROPER);
    for (name, bytes) in [
        ("data on a stream that is not open", frame(DATA, 0, 1, b"x")),
        ("an even stream", frame(HEADERS, END_STREAM | END_HEADERS, 2, &head)),
        ("stream zero", frame(HEADERS, END_STREAM | END_HEADERS, 0, &head)),
        ("a window that overflows", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        ("a window of nothing", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, &head)),
        ("something within a head", {
            [frame(HEADERS, END_STREAM, 1, &head), frame(PING, 0, 0, &[0; 8])].concat()
        }),
        ("a ping of seven bytes", frame(PING, 0, 0, &[0; 7])),
        ("settings of five bytes", frame(SETTINGS, 0, 0, &[0; 5])),
        ("a frame beyond the size", frame(DATA, 0, 1, &[0; 20_000])),
        ("a push", frame(5, END_HEADERS, 1, &[&[0, 0, 0, 2], &head[..]].concat())),
        ("compression that says nothing", frame(HEADERS, END_HEADERS, 1, &[0xff; 20])),
        ("a table beyond its size", frame(HEADERS, END_HEADERS, 1, &[0x3f, 0xff, 0xff, 0x7f])),
        ("an older stream opened late", {
            let mut bytes = request(5, &PROPER[..3]);
            bytes.extend(request(3, &PROPER));
            bytes
        }),
    ] {
        let stage = Stage::open(|_| {});
        let mut wire = begun(&stage);
        wire.send(bytes);
        let fate = fate(&mut wire, u32::MAX);
        assert!(matches!(fate, Fate::Ended(_) | Fate::Cut), "{name}: {fate:?}");
        stage.backend_is_left_alone();
    }
}

#[test]
fn a_head_without_end_is_not_kept() {
    for (name, piece) in [("long", 16_000), ("of one byte", 1), ("empty", 0)] {
        let stage = Stage::open(|_| {});
        let mut wire = begun(&stage);
        wire.send(frame(HEADERS, END_STREAM, 1, &fields(&PROPER)));
        // One long value that is never complete.
        wire.send(frame(CONTINUATION, 0, 1, &[0, 1, b'x', 0x7f, 0xff, 0xff, 0xff, 0x0f]));
        let piece = frame(CONTINUATION, 0, 1, &vec![b'x'; piece]);
        let mut sent = 0;
        while sent < 16 << 20 && wire.try_send(&piece) {
            sent += piece.len();
        }
        assert!(sent < 16 << 20, "{name}: all of it was taken");
        let fate = fate(&mut wire, 1);
        assert!(matches!(fate, Fate::Ended(_) | Fate::Cut), "{name}: {fate:?}");
        stage.backend_is_left_alone();
    }
}

#[test]
fn a_head_that_is_too_long_is_refused() {
    let stage = Stage::open(|settings| settings.bounds.header_bytes = 1024);
    let mut wire = begun(&stage);
    let long = "x".repeat(120);
    let lines = [&PROPER[..], &[("x", long.as_str()); 12]].concat();
    wire.send(request(1, &lines));
    let fate = fate(&mut wire, 1);
    assert!(fate != Fate::Cut, "{fate:?}");
    stage.backend_is_left_alone();
}

#[test]
fn streams_beyond_the_bound_are_refused() {
    let stage = Stage::open(|settings| settings.bounds.streams = 2);
    let mut wire = begun(&stage);
    wire.send(request(1, &PROPER)).send(request(3, &PROPER));
    let _running = (stage.backend(), stage.backend());
    wire.send(request(5, &PROPER));
    assert_eq!(fate(&mut wire, 5), Fate::Reset(REFUSED_STREAM));
    stage.backend_is_left_alone();
}

#[test]
fn a_flood_of_resets_ends_the_connection() {
    let stage = Stage::open(|_| {});
    let mut wire = begun(&stage);
    let mut stream = 1;
    let rapid = |stream: u32| {
        let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        [request(stream, &PROPER), reset].concat()
    };
    while stream < 100_000 && wire.try_send(&rapid(stream)) {
        stream += 2;
    }
    assert!(stream < 100_000, "it goes on");
    let fate = fate(&mut wire, u32::MAX);
    assert!(matches!(fate, Fate::Ended(ENHANCE_YOUR_CALM) | Fate::Cut), "{fate:?}");
    until("it is closed", || stage.door.connections() == 0);
    until("nothing is kept", || stage.engine.load().0 == 0);
}

#[test]
fn who_takes_back_what_it_asks_for_is_charged_and_loses_the_connection() {
    let stage = Stage::open(|settings| settings.limits = vec![hit_limit(1, 100)]);
    let mut wire = begun(&stage);
    for stream in 0..100 {
        let stream = 2 * stream + 1;
        wire.send(request(stream, &PROPER));
        // The proxy has the request before the client resets it.
        until("it is asked", || stage.watch.proxy.requests.get() == u64::from(stream).div_ceil(2));
        wire.try_send(&frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    assert_eq!(fate(&mut wire, u32::MAX), Fate::Cut);
    until("it is counted", || {
        stage
            .watch
            .proxy
            .refused_connections(evenkeel_telemetry::counts::ConnectionRefusal::Resets)
            .get()
            == 1
    });
    let mut other = stage.client();
    other.get("/");
    assert_eq!(other.message().status(), 429, "all of it was charged");
}

#[test]
fn a_connection_that_asks_nothing_is_closed_whatever_else_it_says() {
    let stage = Stage::open(|settings| {
        settings.timeouts.header = std::time::Duration::from_millis(200);
    });
    let mut wire = stage.client();
    let ping = frame(PING, 0, 0, &[0; 8]);
    // The first ping goes with the preface, because the connection may be closed before the next
    // one.
    let begin = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[]), &ping];
    wire.send(begin.concat());
    while wire.try_send(&ping) {
        wire.is_silent();
    }
    assert_eq!(fate(&mut wire, u32::MAX), Fate::Cut);
}

/// With a window of zero from the start, no byte of an answer's body can be sent. The backend may
/// still work after it sent the head, and the slot is free only when it does not.
#[test]
fn a_closed_window_hides_no_work_and_keeps_no_slot_after_it() {
    let stage = Stage::open(|settings| {
        settings.action = LimitAction::Queue;
        settings.queue.concurrency = ConcurrencySetting::Fixed(1);
        settings.queue.reserve = 0;
    });
    let mut closed = stage.client();
    let no_window = [0, 4, 0, 0, 0, 0];
    closed.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").send(frame(SETTINGS, 0, 0, &no_window));
    closed.send(request(1, &PROPER));
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf");
    assert_eq!(fate(&mut closed, 1), Fate::Answered);
    let running = || stage.engine.admission_stats().map(|crowd| crowd.running);
    let before = stage.engine.load().1;
    until("the work behind the head is measured", || {
        stage.engine.load().1.minus(before) >= Cost::cpu(Nanos::from_millis(200))
    });
    assert_eq!((running(), stage.engine.load().0), (Some(1), 1));
    backend.send(" full");
    until("the slot is free", || running() == Some(0));
    assert_eq!(stage.engine.load().0, 0, "and the clock rests");
    let mut other = stage.client();
    other.get("/other");
    let mut free = stage.backend_for("/other", backend);
    free.answer("ok");
    assert_eq!(other.message().text(), "ok");
    closed.send(frame(WINDOW_UPDATE, 0, 1, &100_u32.to_be_bytes()));
    let mut got = String::new();
    while got.len() < 9 {
        let header = closed.try_take(9).expect("a frame");
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let payload = closed.try_take(length).expect("all of it");
        if header[3] == DATA {
            got += str::from_utf8(&payload).expect("text");
        }
    }
    assert_eq!(got, "half full");
}

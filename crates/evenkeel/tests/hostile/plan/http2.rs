//! HTTP/2 streams: their frames are written by hand, interleaved at random between streams.

use super::random::Random;
use super::{Asked, Sent, Stated, Step};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER_TABLE_SIZE: u16 = 1;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// The longest frame that may be sent.
const FRAME_BYTES_MAX: usize = 16_384;

/// Codes of resets (RFC 9113, 7), most often NO_ERROR, which some libraries take for a regular end.
const CODES: [u32; 8] = [0, 0, 0, 1, 2, 7, 8, 8];

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The stream of a connection's request, given the index of the request.
pub fn stream_of(index: usize) -> u32 {
    2 * u32::try_from(index).expect("few") + 1
}

/// Header fields, neither indexed nor compressed (RFC 7541, 6.2.2).
fn fields(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in lines {
        bytes.push(0);
        for text in [name, value] {
            bytes
                .push(u8::try_from(text.len()).ok().filter(|length| *length < 127).expect("short"));
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// A hostile client's way of using a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trick {
    Nothing,
    Stall,
    /// Resets the stream within the body.
    Reset,
    /// Resets the stream after everything was sent.
    ResetLate,
    /// Ends the stream before the whole body was sent.
    Short,
    /// Sends more bytes than the head states.
    Long,
    /// Never ends the stream.
    Open,
    /// Sends header fields that HTTP/2 forbids.
    Improper,
}

const TRICKS: [Trick; 11] = [
    Trick::Nothing,
    Trick::Stall,
    Trick::Reset,
    Trick::Reset,
    Trick::Reset,
    Trick::ResetLate,
    Trick::Short,
    Trick::Long,
    Trick::Open,
    Trick::Open,
    Trick::Improper,
];

const IMPROPER: [(&str, &str); 5] = [
    ("content-length", "3"),
    ("transfer-encoding", "chunked"),
    ("connection", "keep-alive"),
    ("X-Upper", "case"),
    ("x-break", "a\r\nx-token: smuggled"),
];

pub fn script(random: &mut Random, requests: &mut [Asked], innocent: bool) -> Vec<Step> {
    let closed = !innocent && random.one_in(3);
    let mut steps = vec![Step::Send("the preface".to_owned(), preface(closed)), Step::Greeting];
    let mut streams: Vec<Vec<Step>> = Vec::new();
    for (index, asked) in requests.iter_mut().enumerate() {
        let trick = if innocent { Trick::Nothing } else { *random.pick(&TRICKS) };
        let mut frames = stream(random, asked, stream_of(index), trick);
        if closed && random.one_in(2) {
            frames.push(Step::Pause(random.below(40)));
            frames.push(window(stream_of(index), 100_000));
        }
        frames.reverse();
        streams.push(frames);
    }
    // Streams begin in the order of their numbers.
    let mut begun = 0;
    while !streams.iter().all(Vec::is_empty) {
        let which = random.index((begun + 1).min(streams.len()));
        begun = begun.max(which + 1);
        for _ in 0..1 + random.below(3) {
            steps.extend(streams[which].pop());
        }
        if !innocent && random.one_in(12) {
            steps.push(Step::Send("a ping".to_owned(), frame(PING, 0, 0, b"hostile!")));
        }
    }
    match innocent {
        true => steps.push(Step::Answers(requests.len())),
        false => end(random, requests, &mut steps),
    }
    steps
}

/// The beginning of a connection. With `closed`, streams have no window for answers.
fn preface(closed: bool) -> Vec<u8> {
    let window: u32 = if closed { 0 } else { 1 << 30 };
    let mut settings = Vec::new();
    for (name, value) in [(HEADER_TABLE_SIZE, 0), (INITIAL_WINDOW_SIZE, window)] {
        settings.extend(name.to_be_bytes());
        settings.extend(value.to_be_bytes());
    }
    let room = frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes());
    [PREFACE, &frame(SETTINGS, 0, 0, &settings), &room].concat()
}

fn window(stream: u32, bytes: u32) -> Step {
    let what = format!("room for {bytes} bytes on stream {stream}");
    Step::Send(what, frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes()))
}

/// Adds the way in which a hostile client leaves.
fn end(random: &mut Random, requests: &mut [Asked], steps: &mut Vec<Step>) {
    let all = requests.len();
    match random.below(6) {
        0 => {
            // Cuts within a frame, of whatever kind: the last frame of any request.
            let sends = |step: &Step| matches!(step, Step::Send(what, _) if what.contains(" of t"));
            if let Some(at) = steps.iter().rposition(sends)
                && let Step::Send(what, bytes) = &mut steps[at]
            {
                bytes.truncate(random.index(bytes.len()));
                let cut = requests.iter_mut().find(|asked| what.ends_with(&asked.token));
                is_cut(cut.expect("its request"), what);
                what.push_str(", cut off");
                steps.truncate(at + 1);
            }
        }
        1 => steps.push(Step::Reset),
        2 => {
            let code = *random.pick(&CODES);
            let payload = [0_u32.to_be_bytes(), code.to_be_bytes()].concat();
            let what = format!("GOAWAY with code {code}");
            steps.push(Step::Send(what, frame(GOAWAY, 0, 0, &payload)));
        }
        3 => steps.extend([Step::HalfClose, Step::Answers(all)]),
        4 => steps.extend([Step::Deaf(random.below(40)), Step::Answers(all)]),
        _ => steps.push(Step::Answers(all)),
    }
}

/// Notes that the frame `what` of a request is cut off.
fn is_cut(asked: &mut Asked, what: &str) {
    let (ended, sized) =
        (what.starts_with("the end") || what.starts_with("trailers"), Stated::Length(asked.sends));
    asked.sent = match asked.sent {
        sent if what.starts_with("a reset") => sent,
        Sent::Whole | Sent::Unsure if ended && asked.stated == sized => Sent::Unsure,
        _ => Sent::Cut,
    };
}

fn stream(random: &mut Random, asked: &mut Asked, id: u32, trick: Trick) -> Vec<Step> {
    // A second length can be added only where a length may be stated.
    let fits = if asked.stated == Stated::Open { &IMPROPER[1..] } else { &IMPROPER[..] };
    let improper = (trick == Trick::Improper).then(|| *random.pick(fits));
    if improper.is_some() {
        asked.sent = Sent::Cut;
    }
    let mut steps = head(random, asked, id, improper);
    let length = asked.sends;
    // The number of body bytes sent, and whether the stream is ended after them.
    let (sent, ends) = match trick {
        Trick::Reset | Trick::Open => (random.index(length + 1), false),
        Trick::Short => (random.index(length.max(1)), true),
        Trick::Long => (length + 1 + random.index(3_000), true),
        _ => (length, true),
    };
    if asked.stated != Stated::Nothing {
        asked.sends = sent;
        body(random, asked, (id, sent, ends), trick == Trick::Stall, &mut steps);
        let lacks = match asked.stated {
            // Without a length, a body that is too short looks complete.
            Stated::Open => !ends,
            _ => sent < length,
        };
        asked.sent = match trick {
            Trick::Improper => Sent::Cut,
            _ if lacks => Sent::Cut,
            // The backend may have received the whole body before the excess arrived.
            _ if !ends || (sent > length && asked.stated != Stated::Open) => Sent::Unsure,
            _ => Sent::Whole,
        };
    }
    if matches!(trick, Trick::Reset | Trick::ResetLate) {
        if random.one_in(2) {
            steps.push(Step::Pause(random.below(20)));
        }
        let code = *random.pick(&CODES);
        let what = format!("a reset with code {code} of {}", asked.token);
        steps.push(Step::Send(what, frame(RST_STREAM, 0, id, &code.to_be_bytes())));
    }
    steps
}

fn head(
    random: &mut Random,
    asked: &Asked,
    id: u32,
    improper: Option<(&'static str, &'static str)>,
) -> Vec<Step> {
    let length = match asked.stated {
        Stated::Length(length) => length.to_string(),
        _ => String::new(),
    };
    let mut lines = vec![
        (":method", asked.method),
        (":scheme", "http"),
        (":path", &asked.target),
        (":authority", "site.example"),
        ("x-token", &asked.token),
    ];
    if !length.is_empty() {
        lines.push(("content-length", &length));
    }
    lines.extend(improper);
    let block = fields(&lines);
    let end = if asked.stated == Stated::Nothing { END_STREAM } else { 0 };
    let name = format!("the head of {}", asked.token);
    if asked.innocent || !random.one_in(4) {
        return vec![Step::Send(name, frame(HEADERS, END_HEADERS | end, id, &block))];
    }
    // No other frame may be between the two.
    let (one, two) = block.split_at(random.index(block.len()));
    let bytes = [frame(HEADERS, end, id, one), frame(CONTINUATION, END_HEADERS, id, two)].concat();
    vec![Step::Send(name, bytes)]
}

/// Adds frames with the given number of body bytes.
fn body(
    random: &mut Random,
    asked: &Asked,
    (id, sent, ends): (u32, usize, bool),
    stalls: bool,
    steps: &mut Vec<Step>,
) {
    let count = 1 + random.index(4) + sent / FRAME_BYTES_MAX;
    let pieces = random.cut(sent, count);
    let all = pieces.iter().flat_map(|piece| {
        let starts = piece.clone().step_by(FRAME_BYTES_MAX);
        starts.map(|start| start..piece.end.min(start + FRAME_BYTES_MAX))
    });
    for piece in all {
        if (stalls && random.one_in(2)) || random.one_in(8) {
            steps.push(Step::Pause(random.below(if stalls { 40 } else { 4 })));
        }
        let what = format!("bytes {piece:?} of {}", asked.token);
        steps.push(Step::Send(what, frame(DATA, 0, id, &asked.body(piece))));
    }
    if !ends {
        return;
    }
    let (what, last) = match random.one_in(4) {
        true => {
            let block = fields(&[("x-token", &asked.token)]);
            ("trailers", frame(HEADERS, END_HEADERS | END_STREAM, id, &block))
        }
        false => ("the end", frame(DATA, END_STREAM, id, &[])),
    };
    steps.push(Step::Send(format!("{what} of {}", asked.token), last));
}

//! The schedule of a seed: the settings of the proxy, and the steps of the client on each
//! connection.
//!
//! Every random choice is made here, so that the schedule can be printed before it runs. How
//! requests are written: `plan/http1.rs` and `plan/http2.rs`. How they are sent: `client.rs`.

mod http1;
pub mod http2;
pub mod random;

use random::Random;
use std::fmt;
use std::ops::Range;

/// The body that the head of a request states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stated {
    Nothing,
    Length(usize),
    /// A chunked body, or over HTTP/2 one without a length.
    Open,
}

/// Whether the client sends a request to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Whole,
    /// No: a backend must never receive it as complete.
    Cut,
    /// All bytes that its head states, but without a proper end after them.
    Unsure,
}

/// The way in which the body of the raw backend's answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Length,
    Chunks,
    ToTheEnd,
}

/// The raw backend's use of its connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Keeps,
    SaysClose,
    /// Closes it without having announced that.
    Closes,
    /// Closes it in the middle of the answer.
    Breaks,
    /// Closes it without an answer.
    Silent,
    /// Sends more bytes than the answer may have, and keeps the connection.
    Overruns,
}

/// The raw backend's answer to a request.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Whether it is sent after the head of the request, before any of the body is read.
    pub early: bool,
    pub interim: bool,
    pub status: u16,
    pub form: Form,
    pub size: usize,
    pub pieces: usize,
    /// The time that the backend works on it, in milliseconds.
    pub work: u64,
    /// Whether the head of the answer is sent before the work.
    pub head_first: bool,
    pub after: After,
    /// Whether the backend switches protocols if the request asks for that.
    pub switches: bool,
}

/// A request as its client intends it.
#[derive(Clone, Debug)]
pub struct Asked {
    /// A unique text in its path, a header and its body, and nowhere else.
    pub token: String,
    pub method: &'static str,
    pub target: String,
    pub stated: Stated,
    pub sent: Sent,
    /// The number of body bytes that the client sends.
    pub sends: usize,
    pub answer: Answer,
    /// Whether its client does everything right, and has to get a full answer.
    pub innocent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    Http1,
    Http2,
}

/// A step of a client.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends bytes; the text describes them.
    Send(String, Vec<u8>),
    /// Reads for this number of milliseconds.
    Pause(u64),
    /// Neither reads nor writes for this number of milliseconds.
    Deaf(u64),
    /// Waits for the proxy's SETTINGS (HTTP/2); before them, the windows for bodies are smaller.
    Greeting,
    /// Waits until this number of requests is answered in all.
    Answers(usize),
    HalfClose,
    Reset,
}

/// One connection of a client.
#[derive(Clone, Debug)]
pub struct Script {
    pub speaks: Speaks,
    /// The indexes of its requests in the plan.
    pub requests: Range<usize>,
    pub steps: Vec<Step>,
    pub innocent: bool,
    /// Whether it begins after all others have ended, to reuse the connections that they left.
    pub last: bool,
}

/// The settings of the proxy that differ between seeds.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub body_buffer: usize,
    pub cpus: u32,
    /// The maximum number of concurrent requests to the backend; zero means that there is no queue.
    pub concurrency: usize,
    /// Whether all of its timeouts are only a fifth of a second.
    pub impatient: bool,
}

/// The requests that a backend can answer.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Path prefixes, each of which the server answers in a different way; none for the raw
    /// backend.
    pub paths: &'static [&'static str],
    /// Path prefixes for hostile clients only.
    pub rude: &'static [&'static str],
    /// Whether innocent clients send bodies.
    pub bodies: bool,
}

/// The complete schedule of a seed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub settings: Settings,
    pub requests: Vec<Asked>,
    pub scripts: Vec<Script>,
}

impl Plan {
    pub fn of(seed: u64, shape: &Shape) -> Plan {
        let mut random = Random(seed);
        let settings = Settings {
            body_buffer: *random.pick(&[0, 0, 300, 65_536]),
            cpus: *random.pick(&[1, 2, 8]),
            concurrency: *random.pick(&[0, 0, 2, 4]),
            impatient: shape.paths.is_empty() && random.one_in(8),
        };
        let mut plan = Plan { seed, settings, requests: Vec::new(), scripts: Vec::new() };
        for _ in 0..2 + random.below(4) {
            plan.connect(&mut random, shape, false);
        }
        for _ in 0..2 + random.below(2) {
            plan.connect(&mut random, shape, true);
        }
        let others = plan.scripts.len();
        for _ in 0..4 {
            plan.connect(&mut random, shape, true);
        }
        plan.scripts[others..].iter_mut().for_each(|script| script.last = true);
        plan
    }

    fn connect(&mut self, random: &mut Random, shape: &Shape, innocent: bool) {
        let first = self.requests.len();
        for index in 0..1 + random.below(4) {
            let token = format!("t{}c{}r{index}t", self.seed, self.scripts.len());
            let asked = Asked::new(random, shape, token, innocent);
            self.requests.push(asked);
        }
        let speaks = *random.pick(&[Speaks::Http1, Speaks::Http2]);
        let requests = &mut self.requests[first..];
        let mut steps = vec![Step::Pause(random.below(if innocent { 20 } else { 8 }))];
        steps.extend(match speaks {
            Speaks::Http1 => http1::script(random, requests, innocent),
            Speaks::Http2 => http2::script(random, requests, innocent),
        });
        let requests = first..self.requests.len();
        self.scripts.push(Script { speaks, requests, steps, innocent, last: false });
    }

    /// Whether the backend may close a connection that the proxy takes for usable.
    pub fn closes_unsaid(&self) -> bool {
        let closes = |asked: &Asked| !matches!(asked.answer.after, After::Keeps | After::SaysClose);
        self.requests.iter().any(closes)
    }
}

impl Asked {
    fn new(random: &mut Random, shape: &Shape, token: String, innocent: bool) -> Asked {
        let answer = match innocent {
            true => Answer::proper(random),
            false => Answer::any(random),
        };
        let bodies = shape.bodies || !innocent;
        let posts = bodies && random.one_in(if innocent { 3 } else { 1 }) && !random.one_in(5);
        let method = match posts {
            true => *random.pick(&["POST", "POST", "PUT"]),
            false => *random.pick(&["GET", "GET", "GET", "HEAD"]),
        };
        let length = *random.pick(&[1, 10, 600, 5_000, 20_000, 70_300]);
        let stated = match posts {
            true if random.one_in(3) => Stated::Open,
            true => Stated::Length(length),
            false => Stated::Nothing,
        };
        let sends = match stated {
            Stated::Nothing => 0,
            Stated::Length(length) => length,
            Stated::Open => 2_000,
        };
        let rude = !innocent && !shape.rude.is_empty() && random.one_in(2);
        let paths = if rude { shape.rude } else { shape.paths };
        let path = if paths.is_empty() { "/raw" } else { *random.pick(paths) };
        let target = format!("{path}/{token}");
        Asked { token, method, target, stated, sent: Sent::Whole, sends, answer, innocent }
    }

    /// The given range of the bytes of its body.
    pub fn body(&self, bytes: Range<usize>) -> Vec<u8> {
        pattern(&self.token, b',', bytes)
    }
}

impl Answer {
    /// An answer that each client can receive in full.
    fn proper(random: &mut Random) -> Answer {
        Answer {
            early: false,
            interim: random.one_in(8),
            status: 200,
            form: *random.pick(&[Form::Length, Form::Length, Form::Chunks, Form::ToTheEnd]),
            size: *random.pick(&[0, 10, 500, 9_000, 40_000]),
            pieces: 1 + random.below(3) as usize,
            work: random.below(6),
            head_first: random.one_in(4),
            after: if random.one_in(8) { After::SaysClose } else { After::Keeps },
            switches: false,
        }
    }

    fn any(random: &mut Random) -> Answer {
        let after = match random.below(16) {
            0 | 1 => After::SaysClose,
            2 => After::Closes,
            3 => After::Breaks,
            4 => After::Silent,
            5 => After::Overruns,
            _ => After::Keeps,
        };
        Answer {
            early: random.one_in(2),
            status: *random.pick(&[200, 200, 200, 404, 413, 500]),
            work: *random.pick(&[0, 0, 3, 10, 30]),
            head_first: random.one_in(3),
            switches: random.one_in(2),
            after,
            ..Answer::proper(random)
        }
    }
}

/// Bytes that belong to `token` and to nothing else, wherever they are cut.
pub fn pattern(token: &str, end: u8, bytes: Range<usize>) -> Vec<u8> {
    bytes.map(|at| pattern_at(token, end, at)).collect()
}

/// One byte of that pattern.
pub fn pattern_at(token: &str, end: u8, at: usize) -> u8 {
    token.as_bytes().get(at % (token.len() + 1)).copied().unwrap_or(end)
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answer { status, size, pieces, work, form, after, .. } = self;
        let when = if self.early { "at the head" } else { "after the body" };
        write!(f, "{status} {when}, works {work} ms")?;
        write!(f, "{}", if self.head_first { " after its head" } else { "" })?;
        write!(f, ", {size} bytes as {form:?} in {pieces}, then {after:?}")?;
        write!(f, "{}", if self.interim { ", interim first" } else { "" })?;
        write!(f, "{}", if self.switches { ", switches" } else { "" })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Send(what, bytes) => write!(f, "send {what} ({} bytes)", bytes.len()),
            Step::Pause(ms) => write!(f, "pause {ms} ms"),
            Step::Deaf(ms) => write!(f, "read nothing for {ms} ms"),
            Step::Answers(count) => write!(f, "wait for {count} answers"),
            Step::Greeting => write!(f, "wait for the settings"),
            Step::HalfClose => write!(f, "close the writing half"),
            Step::Reset => write!(f, "reset the connection"),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "proxy: {:?}", self.settings)?;
        for (index, script) in self.scripts.iter().enumerate() {
            let who = if script.innocent { "innocent" } else { "hostile" };
            let when = if script.last { ", after the others" } else { "" };
            writeln!(f, "connection {index}: {who}, {:?}{when}", script.speaks)?;
            for asked in &self.requests[script.requests.clone()] {
                let Asked { method, target, stated, sent, answer, .. } = asked;
                writeln!(f, "  asks {method} {target} {stated:?}, sent {sent:?}: {answer}")?;
            }
            for step in &script.steps {
                writeln!(f, "  - {step}")?;
            }
        }
        Ok(())
    }
}

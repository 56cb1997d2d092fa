//! The one law, and the record of a seed that is checked against it.
//!
//! - (a) No client receives a byte that was meant for another client, and innocent clients receive
//!   all of their bytes.
//! - (b) Every request that a backend reads is, byte for byte, one that a client has sent whole, or
//!   is cut off by the end of its connection.
//! - (c) The charges add up to the work: at least nine tenths of the work that the backend reports,
//!   and no more than the time in which there was work to do.

use crate::plan::{Asked, Plan, Sent, pattern_at};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// The status of servers that read bodies, if a body does not belong to its client.
const READ_WRONG: u16 = 599;

/// The number of bytes with which a client makes progress, so that its backend may have waited for
/// it: `engine/charge/delivery.rs`.
const PROGRESS_BYTES: usize = 1024;

/// A client's record of the answer to a request.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// The status; zero without an answer.
    pub status: u16,
    /// The token in the answer; `None` if the proxy answered by itself.
    pub token: Option<String>,
    pub body: Vec<u8>,
    pub whole: bool,
    /// Whether the stream or the connection ended before the answer was complete.
    pub ended: bool,
}

/// The record of a running seed.
pub struct Ledger {
    pub plan: Plan,
    /// Whether the backend is the raw one, for which each byte of its answers is known.
    pub raw: bool,
    /// Whether the proxy is being replaced, so that connections of innocent clients may be closed.
    pub replaced: bool,
    /// Whether charges are compared with work.
    charges: Cell<bool>,
    violations: RefCell<Vec<String>>,
    /// The number of requests of innocent clients with the right answer.
    right: Cell<usize>,
    /// How often a backend has read each request to its end, by its index in the plan.
    read: RefCell<Vec<usize>>,
    /// The times in which the backend worked.
    worked: RefCell<Vec<Interval>>,
    asked: RefCell<Vec<(Instant, Option<Instant>)>>,
}

type Interval = (Instant, Instant);

impl Ledger {
    pub fn new(plan: Plan, raw: bool, replaced: bool) -> Ledger {
        let read = RefCell::new(vec![0; plan.requests.len()]);
        let (worked, asked) = (RefCell::default(), RefCell::default());
        let charges = Cell::new(raw && !replaced && !plan.settings.impatient);
        let (violations, right) = (RefCell::default(), Cell::default());
        Ledger { plan, raw, replaced, charges, violations, right, read, worked, asked }
    }

    pub fn violated(&self, what: impl Into<String>) {
        self.violations.borrow_mut().push(what.into());
    }

    pub fn violations(&self) -> Vec<String> {
        self.violations.borrow().clone()
    }

    /// The request with this token.
    pub fn request(&self, token: &str) -> Option<(usize, &Asked)> {
        self.plan.requests.iter().enumerate().find(|(_, asked)| asked.token == token)
    }

    /// Notes that the backend has read a request to its end.
    pub fn was_read(&self, index: usize, body: usize) {
        let asked = &self.plan.requests[index];
        let mut read = self.read.borrow_mut();
        read[index] += 1;
        let token = &asked.token;
        if asked.sent == Sent::Cut {
            self.violated(format!(
                "(b) {token} was cut by its client and reached the backend whole"
            ));
        }
        if body != asked.sends && asked.sent == Sent::Whole {
            let sends = asked.sends;
            self.violated(format!("(b) {token} has a body of {sends} bytes; {body} were read"));
        }
        if read[index] > 1 && asked.method != "GET" && asked.method != "HEAD" {
            self.violated(format!("(b) {token}, a {}, was sent twice", asked.method));
        }
    }

    /// Notes that the backend has worked on a request since `from`.
    pub fn worked(&self, asked: &Asked, from: Instant) {
        // While the client makes progress, a working backend counts as waiting for the client.
        if asked.answer.early && asked.sends >= PROGRESS_BYTES {
            return;
        }
        self.worked.borrow_mut().push((from, Instant::now()));
    }

    /// Notes that a request was in flight until `until`, or until the end of the seed.
    pub fn asked(&self, from: Instant, until: Option<Instant>) {
        self.asked.borrow_mut().push((from, until));
    }

    /// Checks the answer that a client got against its request.
    pub fn check_answer(&self, asked: &Asked, heard: &Heard) {
        let token = &asked.token;
        if let Some(named) = heard.token.as_ref().filter(|named| *named != token) {
            self.violated(format!("(a) {token} was given the answer to {named}"));
        } else if let Some(strange) = self.strange(asked, heard) {
            self.violated(format!("(a) the answer to {token} holds {strange}: {}", shown(heard)));
        } else if heard.status == READ_WRONG {
            self.violated(format!("(b) the backend read a strange body of {token}"));
        } else if asked.innocent && self.is_right(asked, heard) {
            self.right.set(self.right.get() + 1);
        } else if asked.innocent && !self.is_excused(asked, heard) {
            let answered = shown(heard);
            self.violated(format!("(a) {token} is innocent and was answered {answered}"));
        }
    }

    /// The part of an answer that does not belong to this request, if any.
    fn strange(&self, asked: &Asked, heard: &Heard) -> Option<String> {
        if self.raw && heard.token.is_some() {
            let own = |(at, byte): (usize, &u8)| *byte == pattern_at(&asked.token, b';', at);
            let at = heard.body.iter().enumerate().position(|one| !own(one))?;
            return Some(format!("a strange byte at {at}"));
        }
        let text = String::from_utf8_lossy(&heard.body);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let foreign = words.filter(|word| *word != asked.token);
        let mut tokens = foreign.filter(|word| self.request(word).is_some() || *word == "smuggled");
        tokens.next().map(|token| format!("`{token}`"))
    }

    /// Whether the backend answered the request in full.
    fn is_right(&self, asked: &Asked, heard: &Heard) -> bool {
        let size = if asked.method == "HEAD" { 0 } else { asked.answer.size };
        let full = !self.raw || heard.body.len() == size;
        heard.whole && heard.token.is_some() && heard.status == asked.answer.status && full
    }

    /// Whether the proxy may have answered by itself, or not at all.
    fn is_excused(&self, asked: &Asked, heard: &Heard) -> bool {
        if heard.token.is_some() {
            // The answer may be cut off if the backend had no time.
            return self.plan.settings.impatient && !heard.whole;
        }
        // The request must not be sent twice.
        let once = asked.method != "GET" && asked.method != "HEAD";
        let unlucky = once && heard.status == 502 && self.plan.closes_unsaid();
        self.plan.settings.impatient || self.replaced || unlucky
    }

    pub fn right(&self) -> usize {
        self.right.get()
    }

    /// Compares the charges with the work.
    pub fn check_charges(&self, charged: f64) -> Option<(f64, f64)> {
        if !self.charges.get() {
            return None;
        }
        let cpus = self.plan.settings.cpus;
        let worked = integral(&self.worked.borrow(), cpus);
        if charged < 0.9 * worked - 1e-6 {
            self.violated(format!("(c) {charged:.4} s charged for {worked:.4} s of work"));
        }
        // A request that breaks off is charged the usual cost of such requests, if that is more.
        let now = Instant::now();
        let asked = self.asked.borrow();
        let asked: Vec<Interval> =
            asked.iter().map(|(from, until)| (*from, until.unwrap_or(now))).collect();
        let longest = asked.iter().map(|(from, to)| to.duration_since(*from)).max();
        let cut = self.plan.requests.iter().filter(|asked| !asked.innocent).count();
        let most = integral(&asked, cpus)
            + cut as f64 * longest.unwrap_or_default().max(Duration::from_millis(50)).as_secs_f64();
        if charged > most {
            self.violated(format!("(c) {charged:.4} s charged, at most {most:.4} s to work on"));
        }
        Some((charged, worked))
    }
}

/// The integral of min(n, cpus) over time, in seconds.
fn integral(intervals: &[Interval], cpus: u32) -> f64 {
    let ends = intervals.iter().flat_map(|(from, to)| [(*from, 1_i64), (*to, -1)]);
    let mut ends: Vec<(Instant, i64)> = ends.collect();
    ends.sort_unstable();
    let (mut sum, mut running) = (0.0, 0);
    for pair in ends.windows(2) {
        running += pair[0].1;
        let seconds = pair[1].0.duration_since(pair[0].0).as_secs_f64();
        sum += seconds * running.min(i64::from(cpus)) as f64;
    }
    sum
}

fn shown(heard: &Heard) -> String {
    let Heard { status, token, body, whole, ended } = heard;
    let start = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
    let length = body.len();
    format!("{status} of {token:?}, {length} bytes `{start}`, whole: {whole}, ended: {ended}")
}

#[test]
fn work_is_added_up_to_the_number_of_cpus() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let intervals = [(at(0), at(10)), (at(5), at(20)), (at(6), at(7)), (at(30), at(40))];
    assert!((integral(&intervals, 1) - 0.030).abs() < 1e-9);
    assert!((integral(&intervals, 2) - 0.035).abs() < 1e-9);
    assert!((integral(&intervals, 8) - 0.036).abs() < 1e-9);
}

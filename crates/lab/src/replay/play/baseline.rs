//! The CPU time that each request of a log needed, and how it went without any limit.
//!
//! If the log has the duration of a request, the request ran at that time, and it needed its share
//! of the processors during it. Otherwise its CPU time is guessed from its path and its status, and
//! its duration is simulated. Requests are returned in the order of arrival, each when its values
//! are known.

use super::processors::{FinishedRequest, Processors};
use crate::replay::entry::LogEntry;
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::meter;
use evenkeel_core::units::{Nanos, Time};
use std::collections::VecDeque;

/// The maximum number of requests that run at once; beyond it, a new request counts as needing no
/// CPU time.
pub const RUNNING_MAX: usize = 100_000;
/// The maximum number of requests in memory; beyond it, the first is returned with the values known
/// so far.
const WAITING_MAX: usize = 1_000_000;
/// The cost of a page divided by that of a file, for guessed costs.
const PAGE_COST_PER_FILE: u64 = 100;
/// The cost of a page divided by that of an answer without a page, for guessed costs.
const PAGE_COST_PER_EMPTY_ANSWER: u64 = 20;

/// A request with its CPU time and its duration without limits.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRequest {
    /// The request in the log.
    pub entry: LogEntry,
    /// The CPU time that the request needed.
    pub needed: Nanos,
    /// The time from its arrival to the end of its answer.
    pub took: Nanos,
    /// The number of requests that ran when it arrived, itself included.
    pub beside: usize,
}

/// The simulation of the recorded traffic without limits.
pub struct BaselineSimulation {
    processors: Processors,
    /// The assumed cost of a page.
    page: Nanos,
    /// The number of the first request in `waiting`.
    first: u64,
    waiting: VecDeque<BaselineSlot>,
    /// The number of requests with a guessed cost.
    pub guessed: u64,
    /// The number of requests left out because too many were running.
    pub overrun: u64,
}

struct BaselineSlot {
    was: RecordedRequest,
    known: bool,
}

impl BaselineSimulation {
    /// Makes an empty simulation of a site with `cpus` processors; `page` is the assumed cost of a
    /// page.
    pub fn new(cpus: f64, page: Nanos) -> BaselineSimulation {
        let (processors, waiting) = (Processors::new(cpus), VecDeque::new());
        BaselineSimulation { processors, page, first: 0, waiting, guessed: 0, overrun: 0 }
    }

    /// Adds a request. Invariant: the calls are in the order of arrival.
    pub fn push(&mut self, entry: LogEntry) {
        self.run_until(Some(entry.start));
        let (id, start) = (self.first + self.waiting.len() as u64, entry.start);
        let mut was = RecordedRequest { entry, needed: Nanos::ZERO, took: Nanos::ZERO, beside: 0 };
        let mut known = false;
        if self.processors.running() >= RUNNING_MAX {
            self.overrun += 1;
            known = true;
        } else if was.entry.took.is_some() {
            self.processors.begin_until(id, was.entry.end(), start);
        } else {
            let stated = was.entry.cost.as_deref().map(|cost| meter::header_cost(cost.as_bytes()));
            let stated = stated.and_then(|cost| cost.ok().flatten());
            self.guessed += u64::from(stated.is_none());
            let needed = stated.unwrap_or_else(|| guess(&was.entry, self.page));
            self.processors.begin(id, needed, start);
        }
        was.beside = self.processors.running();
        self.waiting.push_back(BaselineSlot { was, known });
    }

    /// Completes all running requests; no further request arrives.
    pub fn finish(&mut self) {
        self.run_until(None);
    }

    /// Returns the next request if its values are known.
    pub fn pop(&mut self) -> Option<RecordedRequest> {
        let full = self.waiting.len() > WAITING_MAX;
        let ready = self.waiting.front().is_some_and(|slot| slot.known || full);
        let slot = ready.then(|| self.waiting.pop_front()).flatten()?;
        self.first += 1;
        Some(slot.was)
    }

    fn run_until(&mut self, until: Option<Time>) {
        while let Some(at) = self.processors.poll_timeout() {
            if until.is_some_and(|until| at > until) {
                return;
            }
            while let Some(over) = self.processors.poll_over(at) {
                self.note(over, at);
            }
        }
    }

    fn note(&mut self, over: FinishedRequest, at: Time) {
        let place = over.id.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        let Some(slot) = place.and_then(|place| self.waiting.get_mut(place)) else { return };
        slot.was.needed = over.used;
        slot.was.took = at.since(slot.was.entry.start);
        slot.known = true;
    }
}

/// Guesses the CPU time of a request from its method, its path and its status.
fn guess(entry: &LogEntry, page: Nanos) -> Nanos {
    let light = matches!(entry.method(), "HEAD" | "OPTIONS");
    if is_file(entry.path()) {
        Nanos(page.0 / PAGE_COST_PER_FILE)
    } else if light || (300..500).contains(&entry.status) {
        Nanos(page.0 / PAGE_COST_PER_EMPTY_ANSWER)
    } else {
        page
    }
}

/// The extensions of files that browsers fetch together with a page.
const FILES: [&str; 29] = [
    "css",
    "js",
    "mjs",
    "map",
    "png",
    "jpg",
    "jpeg",
    "gif",
    "webp",
    "avif",
    "svg",
    "ico",
    "bmp",
    "woff",
    "woff2",
    "ttf",
    "otf",
    "eot",
    "mp4",
    "webm",
    "mp3",
    "ogg",
    "m4a",
    "wasm",
    "cur",
    "webmanifest",
    "m3u8",
    "ts",
    "vtt",
];

/// Whether a path names a file that browsers fetch together with a page.
pub fn is_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let Some((_, kind)) = name.rsplit_once('.') else { return false };
    FILES.iter().any(|file| kind.eq_ignore_ascii_case(file))
}

//! What each request of a log needed, and how it went without any limit.
//!
//! Where the log says how long requests took, they ran then and there; what each needed is its
//! share of the processors meanwhile. Where it does not, what they need is a guess by what they ask
//! for, and how it went is worked out. A request is handed on, in the order of arrival, when that
//! is known of it.

use super::processors::{Over, Processors};
use crate::cli::replay::entry::Entry;
use evenkeel_core::classify::Attributes;
use evenkeel_core::meter;
use evenkeel_core::units::{Nanos, Time};
use std::collections::VecDeque;

/// Requests that run at once at most; of more nobody asks the processors.
pub const RUNNING_MAX: usize = 100_000;
/// Requests that wait to be handed on at most; then the first goes as far as it is known.
const WAITING_MAX: usize = 1_000_000;
/// A file costs so much less than a page, where that has to be guessed.
const PAGE_TO_FILE: u64 = 100;
/// And an answer without a page.
const PAGE_TO_NOTHING: u64 = 20;

/// A request of which everything is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Was {
    /// It.
    pub entry: Entry,
    /// The CPU time that it needed.
    pub needed: Nanos,
    /// How long it took, from when it came to the end of its answer.
    pub took: Nanos,
    /// How many ran when it came, itself included.
    pub beside: usize,
}

/// Requests on their way.
pub struct Past {
    processors: Processors,
    /// What a page is taken to cost.
    page: Nanos,
    /// The number of the first that waits.
    first: u64,
    waiting: VecDeque<Slot>,
    /// Of how many it had to be guessed what they cost.
    pub guessed: u64,
    /// How many found so many running that they were left out.
    pub overrun: u64,
}

struct Slot {
    was: Was,
    known: bool,
}

impl Past {
    /// On so many processors.
    #[must_use]
    pub fn new(cpus: f64, page: Nanos) -> Past {
        let (processors, waiting) = (Processors::new(cpus), VecDeque::new());
        Past { processors, page, first: 0, waiting, guessed: 0, overrun: 0 }
    }

    /// A request comes; none came later before.
    pub fn push(&mut self, entry: Entry) {
        self.go_on(Some(entry.start));
        let (id, start) = (self.first + self.waiting.len() as u64, entry.start);
        let mut was = Was { entry, needed: Nanos::ZERO, took: Nanos::ZERO, beside: 0 };
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
        self.waiting.push_back(Slot { was, known });
    }

    /// No more requests come.
    pub fn finish(&mut self) {
        self.go_on(None);
    }

    /// The next of which everything is known.
    pub fn pop(&mut self) -> Option<Was> {
        let full = self.waiting.len() > WAITING_MAX;
        let ready = self.waiting.front().is_some_and(|slot| slot.known || full);
        let slot = ready.then(|| self.waiting.pop_front()).flatten()?;
        self.first += 1;
        Some(slot.was)
    }

    fn go_on(&mut self, until: Option<Time>) {
        while let Some(at) = self.processors.poll_timeout() {
            if until.is_some_and(|until| at > until) {
                return;
            }
            while let Some(over) = self.processors.poll_over(at) {
                self.note(over, at);
            }
        }
    }

    fn note(&mut self, over: Over, at: Time) {
        let place = over.id.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        let Some(slot) = place.and_then(|place| self.waiting.get_mut(place)) else { return };
        slot.was.needed = over.used;
        slot.was.took = at.since(slot.was.entry.start);
        slot.known = true;
    }
}

/// What a request needs of which nothing is known but what it asked for and what it got.
fn guess(entry: &Entry, page: Nanos) -> Nanos {
    let light = matches!(entry.method(), "HEAD" | "OPTIONS");
    if is_file(entry.path()) {
        Nanos(page.0 / PAGE_TO_FILE)
    } else if light || (300..500).contains(&entry.status) {
        Nanos(page.0 / PAGE_TO_NOTHING)
    } else {
        page
    }
}

/// What browsers fetch beside a page.
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

/// Whether a path names a file that browsers fetch beside a page.
#[must_use]
pub fn is_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let Some((_, kind)) = name.rsplit_once('.') else { return false };
    FILES.iter().any(|file| kind.eq_ignore_ascii_case(file))
}

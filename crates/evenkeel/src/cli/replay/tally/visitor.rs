//! What is kept of one client while a log is played: how it behaves, and what became of it.
//!
//! Some two hundred bytes each, whatever it does. What the figures mean is decided in `people`.

use super::needs::Needs;
use crate::cli::replay::entry::Entry;
use crate::cli::replay::play::Outcome;
use crate::cli::replay::play::was::{Was, is_file};
use evenkeel_core::classify::Attributes;
use evenkeel_core::units::{Nanos, SECOND, Time};

/// A wait that people notice.
pub const NOTICED: Nanos = Nanos::from_secs(1);
/// Between two pages, less than this is no pause.
const PAUSE: Nanos = Nanos::from_secs(1);
/// And more than this is another visit.
const VISIT: Nanos = Nanos::from_secs(1_800);

/// One client.
#[derive(Clone, Debug, Default)]
pub struct Visitor {
    /// All it asked for.
    pub requests: u32,
    /// What was no file beside a page.
    pub pages: u32,
    /// Files beside pages.
    pub files: u32,
    /// Requests that name a page they came from.
    pub referred: u32,
    /// Answers of 400 and above.
    pub errors: u32,
    /// Whether it asked for `robots.txt`.
    pub robots: bool,
    /// What it calls itself, as a number of [`super::agents::Agents`].
    pub agent: u32,
    /// Whether it calls itself by several names.
    pub several: bool,
    /// Hours of the day, a bit each.
    pub hours: u32,
    /// When it first came.
    pub first: Time,
    /// When it came last.
    pub last: Time,
    /// Pauses between two pages of one visit.
    pub gaps: Gaps,
    /// CPU time.
    pub needed: Nanos,
    /// What became of it.
    pub fate: Fate,
    /// Which shares would have been enough for it.
    pub needs: Needs,
    /// When it asked for its last page.
    pub last_page: Option<Time>,
}

/// How far apart pages of one visit were asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gaps {
    /// How many.
    pub count: u32,
    /// How many of them were no pause.
    pub quick: u32,
    /// Their mean, in seconds.
    pub mean: f32,
    /// How far from the mean they are, on average, in seconds.
    pub spread: f32,
}

impl Gaps {
    fn add(&mut self, gap: Nanos) {
        let seconds = gap.as_secs_f64() as f32;
        self.count += 1;
        self.quick += u32::from(gap < PAUSE);
        let weight = 1.0 / self.count.min(1_000) as f32;
        self.mean += (seconds - self.mean) * weight;
        self.spread += ((seconds - self.mean).abs() - self.spread) * weight;
    }
}

/// What became of somebody's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fate {
    /// How many were refused.
    pub refused: u32,
    /// How many answers were held.
    pub held: u32,
    /// How many were delayed.
    pub delayed: u32,
    /// How many waited for room.
    pub queued: u32,
    /// How many waited for so long that people notice.
    pub noticed: u32,
    /// For how long all together waited.
    pub waited: Nanos,
    /// The longest wait of one.
    pub longest: Nanos,
    /// The first that was refused or waited noticeably.
    pub first: Time,
    /// The last.
    pub last: Time,
    /// In how many different minutes that was.
    pub minutes: u32,
    minute: u32,
}

impl Fate {
    /// Adds one request.
    pub fn add(&mut self, outcome: &Outcome) {
        for note in outcome.notes.iter().filter(|note| !note.shadow) {
            match note.verdict {
                "hold" => self.held += 1,
                "delay" => self.delayed += 1,
                "queue" => self.queued += 1,
                _ => {}
            }
        }
        self.refused += u32::from(outcome.refused);
        self.waited = self.waited.plus(outcome.waited);
        self.longest = self.longest.max(outcome.waited);
        let noticed = outcome.waited >= NOTICED;
        self.noticed += u32::from(noticed);
        if outcome.refused || noticed {
            self.stood(outcome.was.entry.start);
        }
    }

    fn stood(&mut self, at: Time) {
        if self.first == Time::ZERO || at < self.first {
            self.first = at;
        }
        self.last = self.last.max(at);
        let minute = (at.0 / SECOND / 60) as u32;
        self.minutes += u32::from(minute > self.minute);
        self.minute = self.minute.max(minute);
    }

    /// Adds what became of somebody else.
    pub fn join(&mut self, other: &Fate) {
        self.refused += other.refused;
        self.held += other.held;
        self.delayed += other.delayed;
        self.queued += other.queued;
        self.noticed += other.noticed;
        self.waited = self.waited.plus(other.waited);
        self.longest = self.longest.max(other.longest);
        if other.first != Time::ZERO && (self.first == Time::ZERO || other.first < self.first) {
            self.first = other.first;
        }
        self.last = self.last.max(other.last);
        self.minutes = self.minutes.max(other.minutes);
    }

    /// Requests that were refused or waited noticeably.
    #[must_use]
    pub fn felt(&self) -> u32 {
        self.refused + self.noticed
    }
}

impl Visitor {
    /// It asks for something.
    pub fn arrive(&mut self, was: &Was, agent: u32) {
        let entry = &was.entry;
        if self.requests == 0 {
            (self.first, self.agent) = (entry.start, agent);
        }
        self.several |= self.agent != agent;
        self.requests = self.requests.saturating_add(1);
        self.last = self.last.max(entry.start);
        self.hours |= 1 << (entry.second() / 3_600 % 24);
        self.needed = self.needed.plus(was.needed);
        self.errors += u32::from(entry.status >= 400);
        self.referred += u32::from(!matches!(entry.referrer(), "" | "-"));
        if is_file(entry.path()) {
            self.files += 1;
        } else {
            self.page(entry);
        }
    }

    fn page(&mut self, entry: &Entry) {
        self.robots |= entry.path() == "/robots.txt";
        self.pages += 1;
        let gap = self.last_page.map(|last| entry.start.since(last));
        if let Some(gap) = gap.filter(|gap| *gap < VISIT) {
            self.gaps.add(gap);
        }
        self.last_page = Some(entry.start);
    }
}

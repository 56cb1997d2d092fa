//! The counts of one client during a replay: its behaviour and its results.
//!
//! A client takes some two hundred bytes, whatever it does. `people` interprets the counts.

use super::share_needs::ShareNeeds;
use crate::replay::entry::LogEntry;
use crate::replay::play::ReplayOutcome;
use crate::replay::play::baseline::{RecordedRequest, is_file};
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::units::{Nanos, SECOND, Time};

/// The shortest wait that people notice.
pub const NOTICED_WAIT_MIN: Nanos = Nanos::from_secs(1);
/// The shortest time between two pages that counts as a pause.
const PAGE_PAUSE_MIN: Nanos = Nanos::from_secs(1);
/// The longest time between two pages of one visit.
const VISIT_GAP_MAX: Nanos = Nanos::from_secs(1_800);

#[derive(Clone, Debug, Default)]
pub struct ClientTally {
    pub requests: u32,
    /// The number of its requests for pages.
    pub pages: u32,
    /// The number of its requests for files that belong to pages.
    pub files: u32,
    /// The number of its requests with a `Referer` header.
    pub referred: u32,
    /// The number of answers with a status of 400 and above.
    pub errors: u32,
    /// Whether it requested `robots.txt`.
    pub robots: bool,
    /// The number of its `User-Agent` in [`super::agents::AgentNames`].
    pub agent: u32,
    /// The hours of the day in which it was active, one bit each.
    pub hours: u32,
    /// The times between two pages of one visit.
    pub gaps: PageGaps,
    /// The CPU time that its requests needed.
    pub needed: Nanos,
    pub fate: RequestResults,
    /// The shares that would have been enough for it.
    pub needs: ShareNeeds,
    pub last_page: Option<Time>,
}

/// Statistics of the times between two pages of one visit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PageGaps {
    pub count: u32,
    /// The number of gaps too short to count as a pause.
    pub quick: u32,
    pub mean: f32,
    /// The mean distance of the gaps from their mean, in seconds.
    pub spread: f32,
}

impl PageGaps {
    fn add(&mut self, gap: Nanos) {
        let seconds = gap.as_secs_f64() as f32;
        self.count += 1;
        self.quick += u32::from(gap < PAGE_PAUSE_MIN);
        let weight = 1.0 / self.count.min(1_000) as f32;
        self.mean += (seconds - self.mean) * weight;
        self.spread += ((seconds - self.mean).abs() - self.spread) * weight;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestResults {
    pub refused: u32,
    /// The number of held answers.
    pub held: u32,
    pub delayed: u32,
    /// The number of requests that waited in the queue.
    pub queued: u32,
    /// The number of requests that waited noticeably.
    pub noticed: u32,
    pub waited: Nanos,
    pub longest: Nanos,
    /// The time of the first request that was refused or waited noticeably.
    pub first: Time,
    /// The time of the last such request.
    pub last: Time,
    /// The number of different minutes with such a request.
    pub minutes: u32,
    minute: u32,
}

impl RequestResults {
    pub fn add(&mut self, outcome: &ReplayOutcome) {
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
        let noticed = outcome.waited >= NOTICED_WAIT_MIN;
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

    /// Adds the results of another client.
    pub fn join(&mut self, other: &RequestResults) {
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

    /// The number of requests that were refused or waited noticeably.
    pub fn felt(&self) -> u32 {
        self.refused + self.noticed
    }
}

impl ClientTally {
    /// Counts a request of this client; `agent` is the number of its `User-Agent`.
    pub fn arrive(&mut self, was: &RecordedRequest, agent: u32) {
        let entry = &was.entry;
        if self.requests == 0 {
            self.agent = agent;
        }
        self.requests = self.requests.saturating_add(1);
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

    fn page(&mut self, entry: &LogEntry) {
        self.robots |= entry.path() == "/robots.txt";
        self.pages += 1;
        let gap = self.last_page.map(|last| entry.start.since(last));
        if let Some(gap) = gap.filter(|gap| *gap < VISIT_GAP_MAX) {
            self.gaps.add(gap);
        }
        self.last_page = Some(entry.start);
    }
}

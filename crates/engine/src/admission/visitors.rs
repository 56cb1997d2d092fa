//! The operators' figures on strangers and visitors at the queue: since when there is pressure, how
//! many wait, the cost of strangers, and how many visitors are in the waiting room.
//!
//! The core decides and counts (`evenkeel_core::queue::standing`). This file adds what follows from
//! its results over time, and finds the moments at which the pressure begins and ends. It is a part
//! of the state behind the lock of `admission`. The log lines: `telemetry::pressure`.

use evenkeel_core::queue::standing::{ByLine, StandingReport};
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_telemetry::pressure::PressureNotice;

/// The number of seconds ahead for which returning visitors are counted; more than the longest time
/// after which a visitor comes back.
const SECONDS: usize = 32;
/// Of the mean wait of newcomers, the part that follows the newest one.
const MEAN_PART: u64 = 8;

/// A snapshot of what is known of strangers and visitors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VisitorStats {
    /// Since when clients in credit ask for more than the backend can do, if they do.
    pub pressure_since: Option<Time>,
    /// The number of waiting requests of strangers.
    pub strangers_waiting: usize,
    /// The number of waiting requests of visitors that have waited or were served before.
    pub visitors_waiting: usize,
    /// The cost of requests of strangers since the start.
    pub strangers_cost: Cost,
    /// The part of this cost since the pressure began; zero without pressure.
    pub pressure_cost: Cost,
    /// The visitors in the waiting room.
    pub waiting_room: WaitingRoomCounts,
    /// The number of waiting pages sent since the start.
    pub pages: u64,
    /// The time between the first request of newcomers and their turn, a mean over the last ones of
    /// this pressure; `None` if there was none.
    pub newcomer_wait: Option<Nanos>,
}

/// The number of visitors that have a waiting page and are to come back. A program that never comes
/// back counts until the time at which it should have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingRoomCounts {
    /// Visitors with their first page.
    pub new: u32,
    /// Visitors that have come back at least once.
    pub returned: u32,
}

/// What is counted over time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VisitorLog {
    pressure_since: Option<Time>,
    /// The report at the time when the pressure began.
    before: StandingReport,
    /// The visitors that are to come back in a second, and that second.
    coming: [(u64, WaitingRoomCounts); SECONDS],
    newcomer_wait: Option<Nanos>,
}

impl VisitorLog {
    /// Notes that a visitor was sent to the waiting room. `is_new`: it gets a ticket with the page.
    pub fn send(&mut self, is_new: bool, come_back_after: Nanos, now: Time) {
        // The door adds up to a second and a half.
        let second = now.plus(come_back_after).second() + 2;
        let index = (second % SECONDS as u64) as usize;
        let Some(slot) = self.coming.get_mut(index) else { return };
        if slot.0 != second {
            *slot = (second, WaitingRoomCounts::default());
        }
        let count = if is_new { &mut slot.1.new } else { &mut slot.1.returned };
        *count = count.saturating_add(1);
    }

    /// Notes that a newcomer gets its turn.
    pub fn serve(&mut self, wait: Nanos) {
        let mean = self.newcomer_wait.unwrap_or(wait).0;
        self.newcomer_wait = Some(Nanos(mean - mean / MEAN_PART + wait.0 / MEAN_PART));
    }

    /// Compares the state of the pressure with that of the last call. Returns what is to be logged.
    pub fn handle_pressure(
        &mut self,
        since: Option<Time>,
        report: impl FnOnce() -> StandingReport,
        now: Time,
    ) -> Option<PressureNotice> {
        let began = std::mem::replace(&mut self.pressure_since, since);
        if began == since {
            return None;
        }
        let report = report();
        let before = std::mem::replace(&mut self.before, report);
        if since.is_some() {
            self.newcomer_wait = None;
            return Some(PressureNotice::Begins { waiting: total(&report) });
        }
        Some(PressureNotice::Ends {
            lasted: now.since(began?),
            strangers_cost: Some(strangers(&report.served).minus(strangers(&before.served))),
            pages: Some(report.sent_to_waiting_room.saturating_sub(before.sent_to_waiting_room)),
        })
    }

    pub fn stats(&self, report: StandingReport, now: Time) -> VisitorStats {
        let StandingReport { pressure_since, waiting, served, sent_to_waiting_room } = report;
        let since_start = strangers(&served);
        let pressure_cost = pressure_since
            .map_or(Cost::ZERO, |_| since_start.minus(strangers(&self.before.served)));
        VisitorStats {
            pressure_since,
            strangers_waiting: waiting.strangers + waiting.burning,
            visitors_waiting: waiting.first + waiting.later,
            strangers_cost: since_start,
            pressure_cost,
            waiting_room: self.waiting_room(now),
            pages: sent_to_waiting_room,
            newcomer_wait: self.newcomer_wait,
        }
    }

    fn waiting_room(&self, now: Time) -> WaitingRoomCounts {
        let due = self.coming.iter().filter(|(second, _)| *second >= now.second());
        due.fold(WaitingRoomCounts::default(), |sum, (_, count)| WaitingRoomCounts {
            new: sum.new.saturating_add(count.new),
            returned: sum.returned.saturating_add(count.returned),
        })
    }
}

fn total(report: &StandingReport) -> usize {
    let waiting = report.waiting;
    waiting.history + waiting.first + waiting.later + waiting.strangers + waiting.burning
}

/// The cost of all strangers, burning ones included.
fn strangers(served: &ByLine<Cost>) -> Cost {
    served.strangers.plus(served.burning)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Time {
        Time(Nanos::from_secs(1_000 + secs).0)
    }

    #[test]
    fn visitors_are_in_the_waiting_room_until_they_are_to_come_back() {
        let mut log = VisitorLog::default();
        log.send(true, Nanos::from_secs(1), at(0));
        log.send(true, Nanos::from_secs(1), at(0));
        log.send(false, Nanos::from_secs(15), at(0));
        let counts = |log: &VisitorLog, secs| {
            let WaitingRoomCounts { new, returned } = log.waiting_room(at(secs));
            (new, returned)
        };
        assert_eq!(counts(&log, 0), (2, 1));
        assert_eq!(counts(&log, 3), (2, 1));
        assert_eq!(counts(&log, 4), (0, 1));
        assert_eq!(counts(&log, 18), (0, 0));
        // The place of a second that is over is used again.
        log.send(true, Nanos::from_secs(1), at(32));
        assert_eq!(counts(&log, 32), (1, 0));
    }

    #[test]
    fn the_beginning_and_the_end_of_the_pressure_are_noticed_once() {
        let mut log = VisitorLog::default();
        let report = |secs: Option<u64>, cost, pages| StandingReport {
            pressure_since: secs.map(at),
            waiting: ByLine { history: 1, strangers: 2, ..ByLine::default() },
            served: ByLine { strangers: Cost(cost), ..ByLine::default() },
            sent_to_waiting_room: pages,
        };
        let mut look = |report: StandingReport, secs| {
            log.serve(Nanos::from_secs(4));
            let notice = log.handle_pressure(report.pressure_since, || report, at(secs));
            (notice, log.stats(report, at(secs)))
        };
        assert_eq!(look(report(None, 10, 1), 0).0, None);
        let (notice, stats) = look(report(Some(1), 15, 1), 1);
        assert_eq!(notice, Some(PressureNotice::Begins { waiting: 3 }));
        assert_eq!((stats.pressure_cost, stats.newcomer_wait), (Cost::ZERO, None));
        let (notice, stats) = look(report(Some(1), 40, 7), 5);
        assert_eq!(notice, None);
        assert_eq!((stats.strangers_cost, stats.pressure_cost), (Cost(40), Cost(25)));
        assert_eq!((stats.strangers_waiting, stats.pages), (2, 7));
        assert_eq!(stats.newcomer_wait, Some(Nanos::from_secs(4)));
        let (notice, stats) = look(report(None, 50, 8), 11);
        let ends = PressureNotice::Ends {
            lasted: Nanos::from_secs(10),
            strangers_cost: Some(Cost(35)),
            pages: Some(7),
        };
        assert_eq!((notice, stats.pressure_cost), (Some(ends), Cost::ZERO));
    }
}

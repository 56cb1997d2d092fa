//! Finds out whether requests are so brief that a few more in flight make no noticeable difference.
//!
//! If a request takes tens of microseconds, handing it over takes as long as the work. With one
//! request at a time, either side waits for the other. With two, each seems to take twice as long,
//! although it is Evenkeel that reads the answer later. So the times of so few requests are no
//! evidence, and none is needed: by Little's law a request waits for the `n` requests before it for
//! `n / X`, if `X` of them are completed per second, and for a few that wait is not noticeable.
//!
//! This holds only as long as all requests are brief. The expected length of the request before is
//! the mean in which each request has its own length as weight, so one long request among many
//! counts against it. Requests that have not ended count too: if more time was spent with the
//! backend than the requests that ended account for, some request stays for long. Where nothing
//! ended for a moment, the machine may have stood still, and all that are there have spent that
//! moment. Even so, several long requests may arrive at once. So only a few of unknown length are
//! allowed for each processor, which is enough to keep both sides busy. Requests that are known to
//! be brief ([`BriefSlots`]) may be as many as are completed within a wait that is not noticeable.
//! Making them wait here instead would cost more than it orders: each would be woken for its turn
//! alone. Figures: docs/adr/0004.

use crate::queue::BriefSlots;
use crate::units::{Cost, Nanos, Time};

/// The longest wait that is not noticeable.
const UNNOTICED_WAIT: Nanos = Nanos::from_millis(2);
/// The weighted mean of the request times may be this many times [`UNNOTICED_WAIT`], and so may the
/// work of all requests in [`BriefSlots`], for each processor.
const LONG_MEAN_RATIO: u32 = 4;
/// The shortest period that is judged.
const PERIOD_MIN: Nanos = Nanos::from_millis(100);
/// The number of periods in a row that must show brief requests: a second. A client that sends long
/// requests between brief ones, to have more of them in flight than is good for others, does not
/// succeed.
const PERIODS_FOR_MIN: u32 = 10;
/// The number of periods in a row that must show the opposite: in a single one it may be Evenkeel
/// itself that was stopped.
const PERIODS_AGAINST_MIN: u32 = 2;
/// The mean number of requests in flight that the requests that ended do not account for, up to
/// which the requests are still brief.
const STAYING_REQUESTS_MAX: f64 = 0.25;
/// The number of requests for each processor that always have room. With more, no more gets done.
const ROOM_PER_PROCESSOR: usize = 4;
/// The upper bound of [`BriefSlots`] for each processor. If requests that were brief all turn long
/// at once, because a cache was emptied, this many of them are with the backend before it shows.
const BRIEF_PER_PROCESSOR_MAX: usize = 64;

const _: () = {
    assert!(PERIODS_FOR_MIN as u64 * PERIOD_MIN.0 == crate::units::SECOND, "its doc says a second");
    assert!(PERIODS_AGAINST_MIN < PERIODS_FOR_MIN, "doubt weighs more");
    assert!(UNNOTICED_WAIT.0 < PERIOD_MIN.0);
};

/// Counts the requests that end, and the time they took.
#[derive(Clone, Debug, Default)]
pub(super) struct BriefRequestDetector {
    since: Option<Time>,
    count: u32,
    /// The sum of the times of the requests that ended in this period, in seconds, and (`squares`)
    /// the sum of their squares.
    sum: f64,
    squares: f64,
    /// When the last request ended, and the longest time in this period in which none did, in
    /// seconds.
    ended: Time,
    gap: f64,
    /// The time that all requests had spent with the backend when this period began, in seconds.
    held_before: f64,
    /// Whether requests are brief, and the number of periods in a row that showed it (`spoken_for`)
    /// or the opposite (`against`). At least one of the two counts is zero.
    holds: bool,
    periods_for: u32,
    periods_against: u32,
    /// The number of requests completed within [`UNNOTICED_WAIT`], in each of the last two periods.
    completed: [usize; 2],
}

impl BriefRequestDetector {
    /// The number of requests that may be in flight before this many processors, whatever times
    /// show; zero if requests are not brief.
    pub fn room(&self, processors: usize) -> usize {
        if self.holds { ROOM_PER_PROCESSOR * processors } else { 0 }
    }

    /// The slots for requests that are known to be brief, before this many processors.
    pub fn slots(&self, processors: usize) -> BriefSlots {
        let count = self.completed[0].max(self.completed[1]);
        let count = count.min(BRIEF_PER_PROCESSOR_MAX * processors);
        if !self.holds || count <= ROOM_PER_PROCESSOR * processors {
            return BriefSlots::default();
        }
        let work = UNNOTICED_WAIT.0 * u64::from(LONG_MEAN_RATIO) * processors as u64;
        BriefSlots { count, cost_max: Cost(work / count as u64) }
    }

    /// Notes that a request took `elapsed`, that all requests so far have spent `held` seconds with
    /// the backend, and that `running` are there. At the end of a period `room` may change.
    pub fn note(
        &mut self,
        elapsed: Nanos,
        (held, running): (f64, usize),
        processors: usize,
        now: Time,
    ) {
        let seconds = elapsed.as_secs_f64();
        if self.since.is_none() {
            (self.held_before, self.ended) = (held - seconds, now);
        }
        let since = *self.since.get_or_insert(now);
        self.count = self.count.saturating_add(1);
        self.sum += seconds;
        self.squares += seconds * seconds;
        self.gap = self.gap.max(now.since(self.ended).as_secs_f64());
        self.ended = now;
        let age = now.since(since);
        if age < PERIOD_MIN {
            return;
        }
        let (moment, age) = (UNNOTICED_WAIT.as_secs_f64(), age.as_secs_f64());
        let completed = f64::from(self.count) * moment / age;
        let few = completed < (ROOM_PER_PROCESSOR * processors) as f64;
        // Those that are there now have spent some time, and those that were there before, too.
        let carried = running as f64 * self.gap.max(self.sum / f64::from(self.count));
        let unaccounted = held - self.held_before - self.sum;
        let some_stay = unaccounted > STAYING_REQUESTS_MAX * age + carried;
        let long_mean = f64::from(LONG_MEAN_RATIO) * moment;
        let is_against = few || some_stay || self.squares > long_mean * self.sum;
        let (spoken_for, against) = match is_against {
            true => (0, self.periods_against.saturating_add(1)),
            false => (self.periods_for.saturating_add(1), 0),
        };
        let holds = match self.holds {
            true => !some_stay && against < PERIODS_AGAINST_MIN,
            false => spoken_for >= PERIODS_FOR_MIN,
        };
        *self = BriefRequestDetector {
            since: Some(now),
            ended: now,
            held_before: held,
            holds,
            periods_for: spoken_for,
            periods_against: against,
            completed: [completed as usize, self.completed[0]],
            ..BriefRequestDetector::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::window::InFlight;
    use super::*;

    const US: u64 = 1_000;

    /// The room after `count` requests, one every `apart` microseconds, that take `times`
    /// (microseconds) in turn.
    fn after(count: u64, apart: u64, times: &[u64]) -> usize {
        let mut brief = BriefRequestDetector::default();
        for number in 0..=count {
            let took = times[number as usize % times.len()];
            brief.note(Nanos(took * US), (0.0, 0), 2, Time(1 + number * apart * US));
        }
        brief.room(2)
    }

    #[test]
    fn a_few_for_each_processor_where_these_are_done_in_two_milliseconds() {
        assert_eq!(after(40_000, 50, &[40]), 8);
        assert_eq!(after(40_000, 249, &[400]), 8);
        assert_eq!(after(40_000, 260, &[400]), 0);
        assert_eq!(after(10_000, 50, &[40]), 0, "too soon to say");
    }

    #[test]
    fn one_that_is_long_is_in_everybodys_way() {
        let mut times = [40; 2_000];
        assert_eq!(after(40_000, 50, &times), 8);
        times[7] = 100_000;
        assert_eq!(after(40_000, 50, &times), 0);
        times[7] = 10_000;
        assert_eq!(after(40_000, 50, &times), 8, "short among so many");
    }

    #[test]
    fn who_stays_is_in_the_way_before_it_ends() {
        let mut brief = BriefRequestDetector::default();
        let mut in_flight = InFlight::none();
        let mut stretch = |from_ms: u64, beside: usize| {
            for number in 0..=2_000 {
                let now = Time(from_ms * 1_000 * US + number * 50 * US);
                in_flight.run(beside + 1, Time(now.0.saturating_sub(40 * US)));
                brief.note(Nanos(40 * US), (in_flight.held_at(now), beside), 2, now);
                in_flight.run(beside, now);
            }
            brief.room(2)
        };
        let quiet = (0..10).map(|tenth| stretch(tenth * 100, 0)).last();
        assert_eq!((quiet, stretch(1_000, 1)), (Some(8), 0));
        assert!((11..20).all(|tenth| stretch(tenth * 100, 0) == 0), "it may come again");
        assert_eq!(stretch(2_000, 0), 8);
    }

    #[test]
    fn who_stands_still_once_says_nothing() {
        let mut brief = BriefRequestDetector::default();
        let mut stretch = |from_ms: u64, took: u64| {
            for number in 0..=2_000 {
                let now = Time(from_ms * 1_000 * US + number * 50 * US);
                brief.note(Nanos(took * US), (0.0, 0), 2, now);
            }
            brief.room(2)
        };
        (0..10).for_each(|tenth| assert_eq!(stretch(tenth * 100, 40) > 0, tenth == 9));
        assert_eq!([stretch(1_000, 20_000), stretch(1_100, 40)], [8, 8]);
        assert_eq!([stretch(1_200, 20_000), stretch(1_300, 20_000)], [8, 0]);
    }
}

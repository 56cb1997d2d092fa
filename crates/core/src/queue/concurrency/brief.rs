//! Whether requests are so brief that nobody notices how many are there.
//!
//! Where a request takes tens of microseconds, handing it over takes as long as the work. With one
//! at a time either side waits for the other; with two each seems to take twice as long, though it
//! is we who come to it later. So times say nothing of so few there, nor is there need to know: by
//! Little's law whoever comes next waits for `n` that are there for `n / X`, where X of them are
//! completed a second, and for a few that is no time that anybody notices.
//!
//! That holds as long as all of them are brief: what one finds before oneself is as long as the
//! mean in which each has its own length as weight. One long request among many says: not here. And
//! those that have not ended yet: if more time was spent with the backend than what ended accounts
//! for, somebody is there for long. Still several long ones may come at once; so there are only a
//! few for each processor, which is all that is needed for both sides to be busy.

use crate::units::{Nanos, Time};

/// For so long nobody notices that he waits.
const MOMENT: Nanos = Nanos::from_millis(2);
/// What is before one may take so many times as long.
const LONG: f64 = 4.0;
/// The shortest stretch of time that is judged.
const STRETCH: Nanos = Nanos::from_millis(100);
/// So many in a row must say that requests are brief: a second. Whoever sends long ones between
/// brief ones, to have more there at once than is good for others, is not believed.
const FOR: u32 = 10;
/// So many in a row must say that they are not: in one it may be we who stood still.
const AGAINST: u32 = 2;
/// So many in the mean may be there beside those that end.
const STAY: f64 = 0.25;
/// So many for each processor have room. More get no more done.
const EACH: usize = 4;

/// Counts requests that end, and how long they took.
#[derive(Clone, Debug, Default)]
pub struct Brief {
    since: Option<Time>,
    count: u32,
    /// Of their times, in seconds, and of the squares of these.
    sum: f64,
    squares: f64,
    /// How many are there, since when, and the time that all have spent there in this stretch.
    running: usize,
    last: Time,
    spent: f64,
    /// Whether they are brief, and how many stretches in a row said so, or that they are not.
    holds: bool,
    spoken_for: u32,
    against: u32,
}

impl Brief {
    /// So many may be there at once before so many processors, whatever times say; zero where
    /// requests are not brief.
    pub fn room(&self, processors: usize) -> usize {
        if self.holds { EACH * processors } else { 0 }
    }

    /// From now on so many are there.
    pub fn run(&mut self, running: usize, now: Time) {
        self.spent += self.running as f64 * now.since(self.last).as_secs_f64();
        (self.running, self.last) = (running, now);
    }

    /// A request took `elapsed`. Whether a stretch is over, so that `room` may have changed.
    pub fn note(&mut self, elapsed: Nanos, processors: usize, now: Time) -> bool {
        let since = *self.since.get_or_insert(now);
        let seconds = elapsed.as_secs_f64();
        self.count = self.count.saturating_add(1);
        self.sum += seconds;
        self.squares += seconds * seconds;
        let age = now.since(since);
        if age < STRETCH {
            return false;
        }
        self.run(self.running, now);
        let (moment, age) = (MOMENT.as_secs_f64(), age.as_secs_f64());
        let few = f64::from(self.count) * moment < (EACH * processors) as f64 * age;
        let some_stay = self.spent - self.sum > STAY * age;
        let is_against = few || some_stay || self.squares > LONG * moment * self.sum;
        let (spoken_for, against) = match is_against {
            true => (0, self.against.saturating_add(1)),
            false => (self.spoken_for.saturating_add(1), 0),
        };
        let holds = match self.holds {
            true => !some_stay && against < AGAINST,
            false => spoken_for >= FOR,
        };
        let Brief { running, last, .. } = *self;
        let since = Some(now);
        *self = Brief { since, running, last, holds, spoken_for, against, ..Brief::default() };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    /// After `count` requests, one each `apart` microseconds, that take `times` in turns.
    fn after(count: u64, apart: u64, times: &[u64]) -> usize {
        let mut brief = Brief::default();
        for number in 0..=count {
            let took = times[number as usize % times.len()];
            brief.note(Nanos(took * US), 2, Time(1 + number * apart * US));
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
        let mut brief = Brief::default();
        let mut stretch = |from_ms: u64, beside: usize| {
            for number in 0..=2_000 {
                let now = Time(from_ms * 1_000 * US + number * 50 * US);
                brief.run(beside + 1, Time(now.0.saturating_sub(40 * US)));
                brief.note(Nanos(40 * US), 2, now);
                brief.run(beside, now);
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
        let mut brief = Brief::default();
        let mut stretch = |from_ms: u64, took: u64| {
            for number in 0..=2_000 {
                brief.note(Nanos(took * US), 2, Time(from_ms * 1_000 * US + number * 50 * US));
            }
            brief.room(2)
        };
        (0..10).for_each(|tenth| assert_eq!(stretch(tenth * 100, 40) > 0, tenth == 9));
        assert_eq!([stretch(1_000, 20_000), stretch(1_100, 40)], [8, 8]);
        assert_eq!([stretch(1_200, 20_000), stretch(1_300, 20_000)], [8, 0]);
    }
}

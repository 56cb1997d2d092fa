//! Whether requests are so brief that nobody notices how many are there.
//!
//! Where a request takes tens of microseconds, handing it over takes as long as the work. With one
//! at a time either side waits for the other; with two each seems to take twice as long, though it
//! is we who come to it later. So times say nothing of so few there, nor is there need to know: by
//! Little's law whoever comes next waits for `n` that are there for `n / X`, where X of them are
//! completed a second, and for a few that is no time that anybody notices.
//!
//! That holds as long as all of them are brief: what one finds before oneself is as long as the
//! mean in which each has its own length as weight. One long request among many says: not here. But
//! it says so when it ends, and others may have come along with it; so there are only a few for each
//! processor, which is all that is needed for both sides to be busy.

use crate::units::{Nanos, Time};

/// For so long nobody notices that he waits.
const MOMENT: Nanos = Nanos::from_millis(2);
/// What is before one may take so many times as long.
const LONG: f64 = 4.0;
/// The shortest stretch of time that is judged.
const STRETCH: Nanos = Nanos::from_millis(100);
/// So many in a row must say that requests are not brief: in one it may be we who stood still.
const STRETCHES: u32 = 2;
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
    /// Whether they are brief, and how many stretches in a row said that they are not.
    holds: bool,
    against: u32,
}

impl Brief {
    /// So many may be there at once before so many processors, whatever times say; zero where
    /// requests are not brief.
    pub fn room(&self, processors: usize) -> usize {
        if self.holds { EACH * processors } else { 0 }
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
        let moment = MOMENT.as_secs_f64();
        let in_a_moment = f64::from(self.count) * moment / age.as_secs_f64();
        let few = in_a_moment < (EACH * processors) as f64;
        let is_against = few || self.squares > LONG * moment * self.sum;
        let against = if is_against { self.against.saturating_add(1) } else { 0 };
        let holds = against == 0 || (self.holds && against < STRETCHES);
        *self = Brief { since: Some(now), holds, against, ..Brief::default() };
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
        assert_eq!(after(10_000, 50, &[40]), 8);
        assert_eq!(after(10_000, 249, &[400]), 8);
        assert_eq!(after(10_000, 260, &[400]), 0);
        assert_eq!(after(1_000, 50, &[40]), 0, "too soon to say");
    }

    #[test]
    fn one_that_is_long_is_in_everybodys_way() {
        let mut times = [40; 2_000];
        assert_eq!(after(10_000, 50, &times), 8);
        times[7] = 100_000;
        assert_eq!(after(10_000, 50, &times), 0);
        times[7] = 10_000;
        assert_eq!(after(10_000, 50, &times), 8, "short among so many");
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
        assert_eq!([stretch(0, 40), stretch(100, 20_000), stretch(200, 40)], [8, 8, 8]);
        assert_eq!([stretch(300, 20_000), stretch(400, 20_000), stretch(500, 40)], [8, 0, 8]);
    }
}

//! How many requests the backend may have because they are so brief that nobody notices them.
//!
//! Where a request takes tens of microseconds, handing it over takes as long as the work. With one
//! at a time either side waits for the other; with two each seems to take twice as long, though it
//! is we who come to it later. So nothing is to be found out from times there, nor is there need:
//! by Little's law whoever comes next waits for `n` that are there for `n / X`, where X of them are
//! completed a second. As many as are completed in [`MOMENT`] may be there, then. More is completed
//! if that was too few, and so it is the right number soon.
//!
//! That holds as long as all of them are brief: what one finds before oneself is as long as the
//! mean in which each has its own length as weight. One long request among many says: not here.

use crate::units::{Nanos, Time};

/// For so long nobody notices that he waits.
const MOMENT: Nanos = Nanos::from_millis(2);
/// What is before one may take so many times as long.
const LONG: f64 = 4.0;
/// The shortest stretch of time that is judged.
const STRETCH: Nanos = Nanos::from_millis(100);

/// Counts requests that end, and how long they took.
#[derive(Clone, Debug, Default)]
pub struct Brief {
    since: Option<Time>,
    count: u32,
    /// Of their times, in seconds, and of the squares of these.
    sum: f64,
    squares: f64,
    most: usize,
}

impl Brief {
    /// So many may be there at once; zero where requests are not brief.
    pub fn most(&self) -> usize {
        self.most
    }

    /// A request took `elapsed`.
    pub fn note(&mut self, elapsed: Nanos, now: Time) {
        let since = *self.since.get_or_insert(now);
        let seconds = elapsed.as_secs_f64();
        self.count = self.count.saturating_add(1);
        self.sum += seconds;
        self.squares += seconds * seconds;
        let age = now.since(since);
        if age < STRETCH {
            return;
        }
        let moment = MOMENT.as_secs_f64();
        let all_brief = self.squares <= LONG * moment * self.sum;
        let most = f64::from(self.count) * moment / age.as_secs_f64();
        let most = if all_brief { most as usize } else { 0 };
        *self = Brief { since: Some(now), most, ..Brief::default() };
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
            brief.note(Nanos(took * US), Time(1 + number * apart * US));
        }
        brief.most()
    }

    #[test]
    fn as_many_as_are_completed_in_two_milliseconds() {
        assert_eq!(after(10_000, 50, &[40]), 40);
        assert_eq!(after(10_000, 1_000, &[900]), 2);
        assert_eq!(after(1_000, 50, &[40]), 0, "too soon to say");
        assert_eq!(after(100, 10_000, &[40]), 0, "of a hundred a second nobody is in the way");
    }

    #[test]
    fn one_that_is_long_is_in_everybodys_way() {
        let mut times = [40; 2_000];
        assert!(after(10_000, 50, &times) > 0);
        times[7] = 100_000;
        assert_eq!(after(10_000, 50, &times), 0);
        times[7] = 10_000;
        assert!(after(10_000, 50, &times) > 0, "short among so many");
    }
}

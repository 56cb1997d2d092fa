//! Measures the work that a backend does per second while requests wait for it.
//!
//! Only windows in which requests wait all the time count: otherwise the clients are the limit. The
//! total is looked at a few times a second. It grows while answers are streamed, but an answer that
//! comes in one piece adds all its work at its end, also what was done before the window. So a
//! window ends when no single look has found a large part of its work.

use crate::units::{Cost, SECOND, Time};

/// The shortest time between two looks, in seconds: those of several threads count as one.
const LOOK_SECS_MIN: f64 = 0.2;
/// The shortest window, in seconds, and how many times the most that one look has found it must
/// have found in all.
const WINDOW_SECS_MIN: f64 = 4.0;
const WINDOW_LOOKS_MIN: u64 = 8;
/// The length of a window, in seconds, that counts whatever single looks have found.
const WINDOW_SECS_LONG: f64 = 30.0;
/// The weight of a new window.
const WEIGHT: f64 = 0.3;

/// The work that a backend does per second while requests wait for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkRate {
    /// `None` while no request waits.
    window: Option<RateWindow>,
    rate: Option<f64>,
}

/// A time in which requests have waited.
#[derive(Clone, Copy, Debug)]
struct RateWindow {
    began: Time,
    /// The total when it began, and at the last look.
    before: Cost,
    last: Cost,
    looked: Time,
    /// The most that a single look has found.
    most: Cost,
}

impl RateWindow {
    fn new(total: Cost, now: Time) -> RateWindow {
        RateWindow { began: now, before: total, last: total, looked: now, most: Cost::ZERO }
    }

    /// Looks at the total. Returns the work per second if the window is over.
    fn look(&mut self, total: Cost, now: Time) -> Option<f64> {
        if now.since(self.looked).as_secs_f64() < LOOK_SECS_MIN {
            return None;
        }
        self.most = self.most.max(total.minus(self.last));
        (self.last, self.looked) = (total, now);
        let (work, age) = (total.minus(self.before), now.since(self.began).as_secs_f64());
        let is_even = age >= WINDOW_SECS_MIN && work.0 / WINDOW_LOOKS_MIN >= self.most.0;
        let is_over = work > Cost::ZERO && (is_even || age >= WINDOW_SECS_LONG);
        is_over.then(|| work.0 as f64 / SECOND as f64 / age)
    }
}

impl WorkRate {
    /// Notes the total of all work, and whether requests wait. To be called a few times a second.
    pub fn handle_total(&mut self, total: Cost, waiting: bool, now: Time) {
        if !waiting {
            self.window = None;
            return;
        }
        let window = self.window.get_or_insert(RateWindow::new(total, now));
        if let Some(measured) = window.look(total, now) {
            self.rate = Some(self.rate.map_or(measured, |rate| rate + WEIGHT * (measured - rate)));
            *window = RateWindow::new(total, now);
        }
    }

    /// The work per second, in units of 10^9; `None` if requests have hardly ever waited.
    #[must_use]
    pub fn per_second(&self) -> Option<f64> {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Nanos;

    /// Looks at the total every quarter of a second, for `seconds`. `total`: the tokens after so
    /// many quarters.
    fn run(seconds: u64, waiting: bool, total: impl Fn(u64) -> u64) -> Option<f64> {
        let mut rate = WorkRate::default();
        for quarter in 0..=4 * seconds {
            let now = Time(1_000 * SECOND).plus(Nanos(quarter * SECOND / 4));
            rate.handle_total(Cost::tokens(total(quarter)), waiting, now);
        }
        rate.per_second().map(|rate| 1e3 * rate)
    }

    #[test]
    fn a_backlog_shows_what_the_backend_can_do() {
        let steady = |quarter| 250 * quarter;
        assert_eq!(run(3, true, steady), None, "too early");
        assert_eq!(run(4, true, steady), Some(1_000.0));
        assert_eq!(run(100, false, steady), None, "the clients are the limit");
    }

    /// Sixteen answers of 30 s that come in one piece, one each 1.9 s.
    #[test]
    fn answers_in_one_piece_count_when_several_have_come() {
        let pieces = |quarter| 1_900 * (quarter * 10 / 76);
        assert_eq!(run(10, true, pieces), None);
        let tokens = run(120, true, pieces).expect("measured");
        assert!((tokens - 1_000.0).abs() < 80.0, "{tokens}");
    }

    #[test]
    fn answers_that_all_come_at_once_count_after_a_long_time() {
        let at_once = |quarter| 30_000 * (quarter / 120);
        assert_eq!(run(29, true, at_once), None);
        assert_eq!(run(30, true, at_once), Some(1_000.0));
        assert_eq!(run(60, true, |_| 5), None, "no work");
    }

    /// Several threads look, one after the other.
    #[test]
    fn looks_at_the_same_time_count_as_one() {
        let mut rate = WorkRate::default();
        for step in 0..=40 * 8 {
            let now = Time(SECOND).plus(Nanos((step / 8) * SECOND / 4 + step % 8));
            rate.handle_total(Cost::tokens(step / 8 / 10 * 2_500), true, now);
        }
        assert_eq!(rate.per_second(), None, "four steps of 2 500 tokens");
    }
}

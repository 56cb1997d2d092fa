//! Measures the work that a backend does per second while requests wait for it.
//!
//! Only windows in which requests wait all the time count: otherwise the clients are the limit.
//! Many requests end in a window, so those that began before it or end after it make little
//! difference.

use crate::units::{Cost, SECOND, Time};

/// The shortest window, in seconds, and the least number of requests that end in it.
const WINDOW_SECS_MIN: f64 = 4.0;
const WINDOW_REQUESTS_MIN: u32 = 32;
/// The length of a window, in seconds, that counts with a quarter of the requests.
const WINDOW_SECS_LONG: f64 = 30.0;
/// The weight of a new window.
const WEIGHT: f64 = 0.3;

/// The work that a backend does per second while requests wait for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkRate {
    /// When the window began; `None` while no request waits.
    begun: Option<Time>,
    work: Cost,
    ended: u32,
    rate: Option<f64>,
}

impl WorkRate {
    /// Records the end of a request that cost `cost`, and whether others wait.
    pub fn handle_done(&mut self, cost: Cost, waiting: bool, now: Time) {
        let Some(begun) = self.begun.filter(|_| waiting) else {
            (self.begun, self.work, self.ended) = (waiting.then_some(now), Cost::ZERO, 0);
            return;
        };
        self.work = self.work.plus(cost);
        self.ended += 1;
        let age = now.since(begun).as_secs_f64();
        let is_long = age >= WINDOW_SECS_LONG && self.ended >= WINDOW_REQUESTS_MIN / 4;
        if (age >= WINDOW_SECS_MIN && self.ended >= WINDOW_REQUESTS_MIN) || is_long {
            let measured = self.work.0 as f64 / SECOND as f64 / age;
            self.rate = Some(self.rate.map_or(measured, |rate| rate + WEIGHT * (measured - rate)));
            (self.begun, self.work, self.ended) = (Some(now), Cost::ZERO, 0);
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

    /// 10 requests a second, of 100 tokens each.
    fn run(rate: &mut WorkRate, from: u64, seconds: u64, waiting: bool) {
        for tenth in 10 * from..10 * (from + seconds) {
            let now = Time(1_000 * SECOND).plus(Nanos(tenth * SECOND / 10));
            rate.handle_done(Cost::tokens(100), waiting, now);
        }
    }

    #[test]
    fn a_backlog_shows_what_the_backend_can_do() {
        let mut rate = WorkRate::default();
        run(&mut rate, 0, 3, true);
        assert_eq!(rate.per_second(), None, "too early");
        run(&mut rate, 3, 10, true);
        let tokens = 1e3 * rate.per_second().expect("measured");
        assert!((tokens - 1_000.0).abs() < 40.0, "{tokens}");
    }

    #[test]
    fn what_clients_ask_for_without_a_backlog_shows_nothing() {
        let mut rate = WorkRate::default();
        run(&mut rate, 0, 100, false);
        assert_eq!(rate.per_second(), None);
    }
}

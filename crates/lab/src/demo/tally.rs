//! The results of one visitor of the demo: answers, refusals, waiting times.
//!
//! This is plain bookkeeping without a clock or a screen: `visitors` writes it, `report` prints it.

use evenkeel_core::units::{Nanos, Time};
use serde::Serialize;
use std::ops::Range;

/// All results of one visitor so far.
#[derive(Clone, Debug, Default)]
pub struct VisitorTally {
    /// The time until each answer, in the order of the answers.
    waits: Vec<Nanos>,
    refused: u64,
    /// The times at which the unanswered requests were sent.
    open: Vec<Time>,
}

/// The progress of a tally at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct TallyMark {
    served: usize,
    refused: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VisitorResults {
    /// The number of pages.
    pub served: usize,
    /// Refusals (503 or 429), and requests without an answer.
    pub refused: u64,
    /// The median wait for a page, in milliseconds; `None` without a page.
    pub wait_p50_ms: Option<f64>,
    /// The 95th percentile of the waits, in milliseconds; `None` without a page.
    pub wait_p95_ms: Option<f64>,
    /// The longest wait for a page, in milliseconds; `None` without a page.
    pub wait_max_ms: Option<f64>,
    /// The share of the CPU time that the site could give, from 0 to 1.
    pub cpu_share: f64,
}

impl VisitorTally {
    /// Records a request sent at `at`.
    pub fn asked(&mut self, at: Time) {
        self.open.push(at);
    }

    /// Records that the request sent at `at` got its page after `waited`.
    pub fn served(&mut self, at: Time, waited: Nanos) {
        self.close(at);
        self.waits.push(waited);
    }

    /// Records that the request sent at `at` was refused, or got no answer.
    pub fn refused(&mut self, at: Time) {
        self.close(at);
        self.refused += 1;
    }

    fn close(&mut self, at: Time) {
        if let Some(place) = self.open.iter().position(|open| *open == at) {
            self.open.swap_remove(place);
        }
    }

    /// The progress at this moment, for a later [`VisitorTally::since`].
    pub fn mark(&self) -> TallyMark {
        TallyMark { served: self.waits.len(), refused: self.refused }
    }

    /// How long the oldest unanswered request has been waiting.
    pub fn oldest(&self, now: Time) -> Option<Nanos> {
        self.open.iter().min().map(|at| now.since(*at))
    }
    pub fn since(&self, mark: TallyMark, cpu_share: f64) -> VisitorResults {
        let now = self.mark();
        let waits = sorted(&self.waits, mark.served..now.served);
        let ms = |wait: &Nanos| wait.as_secs_f64() * 1e3;
        VisitorResults {
            served: waits.len(),
            refused: now.refused - mark.refused,
            wait_p50_ms: waits.get(waits.len() / 2).map(ms),
            wait_p95_ms: waits.get(waits.len() * 95 / 100).map(ms),
            wait_max_ms: waits.last().map(ms),
            cpu_share,
        }
    }
}

fn sorted(waits: &[Nanos], range: Range<usize>) -> Vec<Nanos> {
    let mut waits = waits[range].to_vec();
    waits.sort_unstable();
    waits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_is_counted_for_itself() {
        let mut tally = VisitorTally::default();
        let at = |ms| Time(0).plus(Nanos::from_millis(ms));
        tally.asked(at(0));
        tally.served(at(0), Nanos::from_millis(30));
        let first = tally.mark();
        for (sent, wait) in [(50, 10), (60, 90), (70, 20)] {
            tally.asked(at(sent));
            tally.served(at(sent), Nanos::from_millis(wait));
        }
        tally.asked(at(80));
        tally.refused(at(80));
        tally.asked(at(90));
        let got = tally.since(first, 0.5);
        assert_eq!((got.served, got.refused), (3, 1));
        assert_eq!((got.wait_p50_ms, got.wait_max_ms), (Some(20.0), Some(90.0)));
        assert_eq!(tally.oldest(at(100)), Some(Nanos::from_millis(10)));
        assert_eq!(tally.since(tally.mark(), 0.0).wait_p50_ms, None);
    }
}

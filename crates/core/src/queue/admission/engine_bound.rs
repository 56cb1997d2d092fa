//! The bound of the slots that follows from the reports of an inference engine about its queue.
//!
//! An engine that is sent more requests than it can run lets the rest wait, first come first
//! served, so the order of the admission queue is lost. While requests wait inside, the bound is
//! the number that the engine runs. While none wait, it rises by a step with each report, from the
//! number that is known to run, until it has no effect and ends. So a bound that is too low does no
//! harm for long, and only a few requests wait inside.

/// A step up is the bound divided by this, and at least one slot.
const STEP_PART: usize = 16;
/// After this many missing reports in a row, the bound ends.
const SILENT_REPORTS_MAX: u8 = 10;

/// The bound of the requests of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineBound {
    slots: Option<usize>,
    silent: u8,
}

impl EngineBound {
    /// The maximum number of requests to send to the engine at once: at least 1, and below the
    /// `limit` of the last report. `None`: no bound.
    #[must_use]
    pub fn slots(&self) -> Option<usize> {
        self.slots
    }

    /// Handles a report with the numbers of running and of waiting requests. `limit`: the number of
    /// slots without any bound.
    pub fn handle_report(&mut self, running: usize, waiting: usize, limit: usize) {
        self.silent = 0;
        let next = match self.slots {
            _ if waiting > 0 => running.max(1),
            None => return,
            Some(before) => {
                let known = before.max(running);
                known.saturating_add((known / STEP_PART).max(1))
            }
        };
        self.slots = (next < limit).then_some(next);
    }

    /// Handles a missing report.
    pub fn handle_silence(&mut self) {
        self.silent = self.silent.saturating_add(1);
        if self.silent >= SILENT_REPORTS_MAX {
            self.slots = None;
        }
    }
}

/// The bound of all engines together, at least 1. `None` without engines, and if one of them has no
/// bound: it may be sent any number of requests.
#[must_use]
pub fn bound_of_all(mut bounds: impl Iterator<Item = Option<usize>>) -> Option<usize> {
    let first = bounds.next()??;
    bounds.try_fold(first, |all, one| Some(all.saturating_add(one?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn while_requests_wait_the_bound_is_what_runs() {
        let mut engine = EngineBound::default();
        engine.handle_report(8, 0, 32);
        assert_eq!(engine.slots(), None);
        engine.handle_report(8, 24, 32);
        assert_eq!(engine.slots(), Some(8));
        engine.handle_report(6, 2, 32);
        assert_eq!(engine.slots(), Some(6), "its cache is full");
        engine.handle_report(0, 5, 32);
        assert_eq!(engine.slots(), Some(1), "it loads its model");
    }

    #[test]
    fn while_none_waits_the_bound_rises_from_what_runs_until_it_is_none() {
        let mut engine = EngineBound::default();
        engine.handle_report(1, 9, 64);
        let mut bounds = Vec::new();
        for running in [10, 10, 33, 40, 60, 62] {
            engine.handle_report(running, 0, 64);
            bounds.push(engine.slots());
        }
        assert_eq!(bounds, [Some(11), Some(12), Some(35), Some(42), Some(63), None]);
        engine.handle_report(10, 0, 64);
        assert_eq!(engine.slots(), None);
    }

    #[test]
    fn a_bound_ends_if_the_engine_is_silent_for_long() {
        let mut engine = EngineBound::default();
        engine.handle_report(4, 1, 32);
        (1..SILENT_REPORTS_MAX).for_each(|_| engine.handle_silence());
        assert_eq!(engine.slots(), Some(4));
        engine.handle_silence();
        assert_eq!(engine.slots(), None);
        engine.handle_report(4, 1, 32);
        assert_eq!(engine.slots(), Some(4));
        engine.handle_silence();
        assert_eq!(engine.slots(), Some(4), "it counts anew");
    }

    #[test]
    fn a_bound_of_all_needs_one_of_each() {
        assert_eq!(bound_of_all([].into_iter()), None);
        assert_eq!(bound_of_all([Some(3), Some(4)].into_iter()), Some(7));
        assert_eq!(bound_of_all([None, Some(4)].into_iter()), None);
        assert_eq!(bound_of_all([Some(4), None].into_iter()), None);
    }

    /// An engine that runs 8 requests. Of 32 requests that always wait for it, it gets the number
    /// that the bound allows.
    #[test]
    fn the_search_settles_at_what_the_engine_can_run() {
        let mut engine = EngineBound::default();
        let mut inside = Vec::new();
        for _ in 0..100 {
            let sent = engine.slots().unwrap_or(32);
            let running = sent.min(8);
            inside.push(sent - running);
            engine.handle_report(running, sent - running, 32);
        }
        assert_eq!(inside[0], 24);
        assert!(inside[1..].iter().all(|waiting| *waiting <= 1), "{inside:?}");
    }
}

//! The bound of the slots that follows from the reports of an inference engine about its queue.
//!
//! An engine that is sent more requests than it can run lets the rest wait, first come first
//! served, so the order of the admission queue is lost. If more than a few wait inside in two
//! reports in a row, the engine is full, and the bound is just above the number that it runs. While
//! none wait, the bound rises by a step with each report, until it has no effect and ends. So a
//! bound that is too low does no harm for long.
//!
//! A request that is new to the engine counts as waiting until its prompt is read. Some engines
//! read one prompt after the other, and are busy with that. A bound that left none waiting would
//! make them idle, and one report with many says little. In simulations, such
//! engines do 85 to 95 % of what they do without any bound, and engines that are full do all of it.

/// A bound allows for this many waiting requests inside the engine.
const WAITING_MAX: usize = 2;
/// A step up is the bound divided by this, and at least one slot.
const STEP_PART: usize = 16;
/// After this many missing reports in a row, the bound ends.
const SILENT_REPORTS_MAX: u8 = 10;

/// The bound of the requests of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineBound {
    slots: Option<usize>,
    /// The numbers of running and of waiting requests in the last report.
    last: (usize, usize),
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
        let (ran, waited) = core::mem::replace(&mut self.last, (running, waiting));
        let next = if waited.min(waiting) > WAITING_MAX {
            ran.max(running).saturating_add(1)
        } else if waiting == 0
            && let Some(before) = self.slots
        {
            let known = before.max(running);
            known.saturating_add((known / STEP_PART).max(1))
        } else {
            return;
        };
        self.slots = (next < limit).then_some(next);
    }

    /// Handles a missing report.
    pub fn handle_silence(&mut self) {
        self.silent = self.silent.saturating_add(1);
        if self.silent >= SILENT_REPORTS_MAX {
            *self = EngineBound { silent: self.silent, ..EngineBound::default() };
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

    /// The bound after these reports of running and waiting requests.
    fn bound_after(reports: &[(usize, usize)], limit: usize) -> EngineBound {
        let mut engine = EngineBound::default();
        reports.iter().for_each(|(running, waiting)| {
            engine.handle_report(*running, *waiting, limit);
        });
        engine
    }

    #[test]
    fn if_many_wait_in_two_reports_the_bound_is_just_above_what_runs() {
        let slots = |reports: &[(usize, usize)]| bound_after(reports, 32).slots();
        assert_eq!(slots(&[(8, 0)]), None);
        assert_eq!(slots(&[(8, 24)]), None, "it may be reading their prompts");
        assert_eq!(slots(&[(8, 24), (6, 24)]), Some(9));
        assert_eq!(slots(&[(8, 24), (8, 24), (6, 3), (6, 3)]), Some(7), "its cache is full");
        assert_eq!(slots(&[(0, 5), (0, 5)]), Some(1), "it loads its model");
        assert_eq!(slots(&[(8, 24), (8, 0), (8, 24)]), None);
    }

    #[test]
    fn a_few_that_wait_change_nothing() {
        assert_eq!(bound_after(&[(8, 2), (8, 2)], 32).slots(), None);
        assert_eq!(bound_after(&[(8, 9), (8, 9), (6, 2), (7, 1), (3, 2)], 32).slots(), Some(9));
    }

    #[test]
    fn while_none_waits_the_bound_rises_from_what_runs_until_it_is_none() {
        let mut engine = bound_after(&[(1, 9), (1, 9)], 64);
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
        let mut engine = bound_after(&[(4, 5), (4, 5)], 32);
        (1..SILENT_REPORTS_MAX).for_each(|_| engine.handle_silence());
        assert_eq!(engine.slots(), Some(5));
        engine.handle_silence();
        assert_eq!(engine.slots(), None);
        engine.handle_report(4, 5, 32);
        assert_eq!(engine.slots(), None, "the report before the silence is not the last one");
        engine.handle_report(4, 5, 32);
        assert_eq!(engine.slots(), Some(5));
        engine.handle_silence();
        assert_eq!(engine.slots(), Some(5), "it counts anew");
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
        assert_eq!(inside[..2], [24, 24]);
        assert!(inside[2..].iter().all(|waiting| *waiting == 1), "{inside:?}");
    }

    /// An engine that reads one prompt after the other, 10 a second, which is less than it could
    /// answer: of those that it was sent, one waits in most reports, and now and then many do. 100
    /// reports, each with the number that waits while the engine is not short of work.
    #[test]
    fn an_engine_that_reads_prompts_one_by_one_is_not_made_idle() {
        let mut engine = bound_after(&[(12, 9), (12, 9)], 64);
        let least = (0..100)
            .map(|round| {
                let slots = engine.slots().expect("bounded");
                let waiting = [1, 2, 4, 1, 2, 1, 3, 1][round % 8].min(slots);
                engine.handle_report(slots - waiting, waiting, 64);
                slots
            })
            .min();
        assert_eq!(least, Some(13));
    }
}

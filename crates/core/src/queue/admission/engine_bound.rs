//! The bound of the slots that follows from the reports of an inference engine about its queue.
//!
//! An engine that is sent more requests than it can run lets the rest wait, first come first
//! served, so the order of the admission queue is lost. The number that waits inside in each of
//! several reports is too many: the bound is what the engine was sent, without these. While none
//! wait, the bound rises by a step with each report, until it has no effect and ends. So a bound
//! that is too low does no harm for long.
//!
//! A request that is new to the engine counts as waiting until its prompt is read. Some engines
//! read one prompt after the other, and are busy with that, so the least number of several reports
//! counts: in between, none wait there, and in an engine that is full some always do.

/// The number of reports of which the one with the fewest waiting requests counts. Fewer: engines
/// that read one prompt after the other become idle. More: requests wait inside for longer before
/// the bound is lowered.
const REPORTS: usize = 4;
/// A step up is the bound divided by this, and at least one slot.
const STEP_PART: usize = 16;
/// After this many missing reports in a row, the bound ends.
const SILENT_REPORTS_MAX: u8 = 20;

/// The bound of the requests of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineBound {
    slots: Option<usize>,
    /// The number of reports in a row with waiting requests, the least number that waited in one,
    /// and the largest number that the engine had.
    crowded: (usize, usize, usize),
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
        let next = if waiting == 0 {
            self.crowded = (0, 0, 0);
            let Some(before) = self.slots else { return };
            let known = before.max(running);
            known.saturating_add((known / STEP_PART).max(1))
        } else {
            let (reports, least, most) = self.crowded;
            let least = if reports == 0 { waiting } else { least.min(waiting) };
            let most = most.max(running.saturating_add(waiting));
            if reports + 1 < REPORTS {
                self.crowded = (reports + 1, least, most);
                return;
            }
            self.crowded = (0, 0, 0);
            (most - least).max(1)
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
    fn what_waits_inside_in_each_of_several_reports_is_not_sent_any_more() {
        let slots = |reports: &[(usize, usize)]| bound_after(reports, 32).slots();
        assert_eq!(slots(&[(8, 0)]), None);
        assert_eq!(slots(&[(8, 24), (6, 24)]), None, "it may be reading their prompts");
        assert_eq!(slots(&[(8, 24), (6, 24), (7, 24), (8, 24)]), Some(8));
        let one = [(7, 1), (8, 1), (8, 2), (8, 2)];
        assert_eq!(slots(&one), Some(9), "in one report, only one waited");
        assert_eq!(slots(&[(8, 24), (8, 0), (8, 24), (8, 24), (8, 24)]), None);
        assert_eq!(slots(&[(0, 5); REPORTS]), Some(1), "it loads its model");
        let full = [(8, 24); REPORTS].into_iter().chain([(6, 2); REPORTS]).collect::<Vec<_>>();
        assert_eq!(slots(&full), Some(6), "its cache is full");
    }

    #[test]
    fn while_none_waits_the_bound_rises_from_what_runs_until_it_is_none() {
        let mut engine = bound_after(&[(1, 9); REPORTS], 64);
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
        let mut engine = bound_after(&[(4, 5); REPORTS], 32);
        (1..SILENT_REPORTS_MAX).for_each(|_| engine.handle_silence());
        assert_eq!(engine.slots(), Some(4));
        engine.handle_silence();
        assert_eq!(engine.slots(), None);
        (1..REPORTS).for_each(|_| engine.handle_report(4, 5, 32));
        assert_eq!(engine.slots(), None, "reports before the silence do not count");
        engine.handle_report(4, 5, 32);
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

    /// The work of an engine that always has all the requests that its bound allows, at most 32:
    /// the requests that have ended in 400 reports, and the mean number that waits inside. Between
    /// two reports it has 25 steps. It runs `seats` requests, each for 15 to 45 steps. Before that
    /// it reads their prompts, one after the other, each for `prompt` steps.
    fn run(mut engine: EngineBound, seats: usize, prompt: usize, is_bounded: bool) -> (usize, f64) {
        let (mut waiting, mut read, mut drawn) = (0, 0, 7_u64);
        let (mut running, mut ended, mut inside) = (Vec::<usize>::new(), 0, 0);
        for step in 1..=10_000 {
            let bound = engine.slots().filter(|_| is_bounded).unwrap_or(32).min(32);
            waiting += bound.saturating_sub(running.len() + waiting);
            while waiting > 0 && running.len() < seats && read >= prompt {
                drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                running.push(15 + (drawn >> 33) as usize % 31);
                waiting -= 1;
                read = 0;
            }
            read = if waiting > 0 { read + 1 } else { 0 };
            let before = running.len();
            running.retain_mut(|left| {
                *left -= 1;
                *left > 0
            });
            ended += before - running.len();
            if step % 25 == 0 {
                inside += waiting;
                engine.handle_report(running.len(), waiting, 32);
            }
        }
        (ended, inside as f64 / 400.0)
    }

    #[test]
    fn hardly_any_request_waits_inside_of_a_full_engine_and_it_does_all_its_work() {
        let (most, _) = run(EngineBound::default(), 8, 0, false);
        let (done, inside) = run(EngineBound::default(), 8, 0, true);
        assert!(done * 100 >= most * 98 && inside <= 1.2, "{done} of {most}, {inside} inside");
    }

    #[test]
    fn an_engine_that_reads_prompts_one_by_one_is_not_made_idle() {
        for prompt in [1, 2, 4, 8] {
            let (most, _) = run(EngineBound::default(), 64, prompt, false);
            let (done, inside) = run(EngineBound::default(), 64, prompt, true);
            assert!(done * 100 >= most * 80, "{prompt}: {done} of {most}, {inside} inside");
        }
    }
}

//! A set of numbers that have been seen: all numbers below a base, and a few ranges above it.
//!
//! A receiver uses it to accept each report once, and a sender to skip what need not be sent again.
//! The number of ranges is bounded: if there are too many gaps, the earliest gap is given up.
//! Numbers that are given up count as seen, so a report that arrives late is never counted twice.

use alloc::vec::Vec;

/// The maximum number of ranges above the base.
pub const RANGES_MAX: usize = 128;

/// A set of numbers that have been seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceWindow {
    /// All numbers below it are seen or given up.
    base: u64,
    /// Seen ranges above the base: start, and end (exclusive). Invariant: ascending, with gaps
    /// between.
    ranges: Vec<(u64, u64)>,
}

impl SequenceWindow {
    /// A window in which all numbers below `base` are seen or given up.
    #[must_use]
    pub fn starting_at(base: u64) -> SequenceWindow {
        SequenceWindow { base, ranges: Vec::new() }
    }

    /// The base: all numbers below it are seen or given up.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The seen ranges above the base: start, and end (exclusive).
    #[must_use]
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// Whether `number` has been seen or given up.
    #[must_use]
    pub fn has(&self, number: u64) -> bool {
        let at = self.ranges.partition_point(|(start, _)| *start <= number);
        number < self.base || at.checked_sub(1).is_some_and(|at| number < self.ranges[at].1)
    }

    /// Adds `number`. Returns whether it is new, and the count of numbers that were given up to
    /// make room. The number `u64::MAX` is never accepted.
    pub fn insert(&mut self, number: u64) -> (bool, u64) {
        if self.has(number) || number == u64::MAX {
            return (false, 0);
        }
        let at = self.ranges.partition_point(|(start, _)| *start <= number);
        let joins_before = at > 0 && self.ranges[at - 1].1 == number;
        let joins_after = self.ranges.get(at).is_some_and(|(start, _)| *start == number + 1);
        match (joins_before, joins_after) {
            (true, true) => {
                let (_, end) = self.ranges.remove(at);
                self.ranges[at - 1].1 = end;
            }
            (true, false) => self.ranges[at - 1].1 = number + 1,
            (false, true) => self.ranges[at].0 = number,
            (false, false) => self.ranges.insert(at, (number, number + 1)),
        }
        self.settle();
        let lost = match self.ranges.get(RANGES_MAX) {
            Some(_) => self.give_up(self.ranges[0].0),
            None => 0,
        };
        (true, lost)
    }

    /// Gives up all missing numbers below `base`. Returns the count of numbers that were missing.
    pub fn give_up(&mut self, base: u64) -> u64 {
        if base <= self.base {
            return 0;
        }
        let seen = |(start, end): &(u64, u64)| (*end).min(base).saturating_sub(*start);
        let seen: u64 = self.ranges.iter().map(seen).sum();
        let lost = (base - self.base).saturating_sub(seen);
        self.base = base;
        self.ranges.retain(|(_, end)| *end > base);
        if let Some((start, _)) = self.ranges.first_mut() {
            *start = (*start).max(base);
        }
        self.settle();
        lost
    }

    /// Adds all numbers of another window.
    pub fn join(&mut self, other: &SequenceWindow) {
        self.give_up(other.base);
        for (start, end) in &other.ranges {
            self.add(*start, *end);
        }
    }

    /// Appends a range. It must lie above all others, with a gap between.
    pub(super) fn push(&mut self, start: u64, end: u64) {
        self.ranges.push((start, end));
    }

    fn add(&mut self, start: u64, end: u64) {
        let (start, end) = (start.max(self.base), end.max(self.base));
        let mut joined = (start, end);
        self.ranges.retain(|(from, to)| {
            let apart = *to < joined.0 || *from > joined.1;
            if !apart {
                joined = (joined.0.min(*from), joined.1.max(*to));
            }
            apart
        });
        if start < end {
            let at = self.ranges.partition_point(|(from, _)| *from < joined.0);
            self.ranges.insert(at, joined);
        }
        self.settle();
        if self.ranges.len() > RANGES_MAX {
            self.give_up(self.ranges[0].0);
        }
    }

    /// Merges a range that begins at the base into the part below the base.
    fn settle(&mut self) {
        if let Some((start, end)) = self.ranges.first().copied()
            && start <= self.base
        {
            self.base = end.max(self.base);
            self.ranges.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Compares with a set of all numbers.
        #[test]
        fn each_number_is_new_once(steps in prop::collection::vec((0_u64..60, 0_u8..10), 1..200)) {
            let (mut window, mut seen) = (SequenceWindow::default(), BTreeSet::new());
            for (number, step) in steps {
                if step == 0 {
                    let lost = window.give_up(number);
                    let missing = (0..number).filter(|n| !seen.contains(n)).count() as u64;
                    prop_assert_eq!(lost, missing);
                    seen.extend(0..number);
                } else {
                    let new = seen.insert(number);
                    prop_assert_eq!(window.insert(number), (new, 0));
                }
                for number in 0..61 {
                    prop_assert_eq!(window.has(number), seen.contains(&number));
                }
            }
        }

        #[test]
        fn joined_windows_have_what_either_has(
            a in prop::collection::btree_set(0_u64..60, 0..40),
            b in prop::collection::btree_set(0_u64..60, 0..40),
        ) {
            let window = |set: &BTreeSet<u64>| {
                let mut window = SequenceWindow::default();
                set.iter().for_each(|n| _ = window.insert(*n));
                window
            };
            let mut joined = window(&a);
            joined.join(&window(&b));
            for number in 0..61 {
                prop_assert_eq!(joined.has(number), a.contains(&number) || b.contains(&number));
            }
        }
    }

    #[test]
    fn too_many_gaps_are_given_up_from_the_start() {
        let mut window = SequenceWindow::default();
        let lost: u64 = (0..1_000).map(|n| window.insert(2 * n + 1).1).sum();
        assert_eq!(window.ranges().len(), RANGES_MAX);
        assert_eq!(lost, 1_000 - RANGES_MAX as u64);
        assert!(window.has(0) && !window.insert(0).0, "what was given up does not come back");
    }
}

//! Counters of windows of many lengths in one table, and several of them counted at once.
//!
//! This is the rate limit service's side of the decision: a request names any number of counters,
//! each with its own limit and window, and all are looked at and counted while every set they
//! live in is held, so no other request comes between. The state is one word that knows its own
//! end: the second at which its window ends in the upper half, the hits in the lower. So a table
//! can hold windows of all lengths, and one that has ended is worth nothing.
//!
//! Ends are cut to 32 bits: this holds until 2106. Which counters a request names, and what an
//! answer says, is a door's business; `bucket::fixed` is the same arithmetic for one length.

mod calendar;

use crate::key::KeyHash;
use crate::table::Table;
use crate::units::Time;
use alloc::vec::Vec;
pub use calendar::Length;

/// The seconds that a window covers, up to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The first second that no longer belongs to it, since the epoch.
    pub end: u32,
    /// How many seconds it has.
    pub seconds: u32,
}

impl Window {
    /// How long until it ends, in whole seconds: from 1 to its length.
    #[must_use]
    pub fn left(&self, now: Time) -> u32 {
        let left = u64::from(self.end).saturating_sub(now.second());
        (left as u32).clamp(1, self.seconds.max(1))
    }
}

/// One counter that a request names, and after [`Windows::count`] what became of it.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    /// Which counter. The length of its window has to be part of what was hashed.
    pub key: KeyHash,
    /// The window that counts now.
    pub window: Window,
    /// The most hits in a window.
    pub limit: u32,
    /// How many hits; none: only look.
    pub hits: u32,
    /// The hits are given back, down to none. Who gives back is never over.
    pub give_back: bool,
    /// The hits before.
    pub before: u32,
    /// The hits after.
    pub after: u32,
    /// It was over before, so it was not counted ([`Policy::spare_over`]).
    pub spared: bool,
}

impl Hit {
    /// `hits` of a counter that has not been looked at.
    #[must_use]
    pub fn new(key: KeyHash, window: Window, limit: u32, hits: u32) -> Hit {
        let (before, after) = (0, 0);
        Hit { key, window, limit, hits, give_back: false, before, after, spared: false }
    }

    /// Whether it is over its limit, once it has been counted.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.give_back && self.after > self.limit
    }

    /// The hits that are left in the window, once it has been counted.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.limit.saturating_sub(self.after)
    }

    /// The hits that a state tells of. It counts one window early too: who took the time just
    /// before the boundary and comes to write just after another must not undo the other's hits.
    /// Further ahead it was written before the clock was set back, and is void.
    fn counted(&self, state: u64) -> u32 {
        if self.is_live(state) { hits(state) } else { 0 }
    }

    fn is_live(&self, state: u64) -> bool {
        end(state).wrapping_sub(self.window.end) <= self.window.seconds
    }

    /// Whether these hits would bring it over its limit.
    fn would_be_over(&self, state: u64) -> bool {
        !self.give_back && self.counted(state).saturating_add(self.hits) > self.limit
    }

    fn would_be_spared(&self, state: u64, policy: Policy) -> bool {
        policy.spare_over && !self.give_back && self.counted(state) > self.limit
    }

    /// Counts, unless it is spared or `stopped`, and says what is to be written, if anything.
    fn count(&mut self, state: u64, policy: Policy, stopped: bool) -> Option<u64> {
        self.before = self.counted(state);
        self.spared = self.would_be_spared(state, policy);
        let still = self.spared || self.hits == 0 || (stopped && !self.give_back);
        self.after = match self.give_back {
            _ if still => self.before,
            true => self.before.saturating_sub(self.hits),
            false => self.before.saturating_add(self.hits),
        };
        let end = if self.is_live(state) { end(state) } else { self.window.end };
        (!still).then_some(u64::from(end) << 32 | u64::from(self.after))
    }
}

/// What is not counted when a request is over a limit. By default all is counted always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// If one counter would go over, only those are counted that would go over; if one is spared,
    /// none.
    pub stop_when_over: bool,
    /// What is over already is not counted further.
    pub spare_over: bool,
}

/// The counters of all windows.
pub struct Windows {
    table: Table,
}

impl Windows {
    /// Room for `keys_max` counters; all memory is taken here. When it is full, windows that have
    /// ended go first, then those with the fewest hits.
    #[must_use]
    pub fn new(keys_max: usize) -> Windows {
        Windows { table: Table::new(keys_max, 1) }
    }

    /// The table, for its figures.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Counts all, in order; a counter that is named twice counts twice. No other request comes
    /// between. `sets` is room to work in, kept by the caller to save making it anew.
    pub fn count(&self, hits: &mut [Hit], sets: &mut Vec<usize>, policy: Policy, now: Time) {
        match hits {
            [] => {}
            [hit] => {
                let mut entry = self.table.take(hit.key);
                let state = entry.get(0);
                // Alone, it stops itself only by being spared.
                if let Some(state) = hit.count(state, policy, false) {
                    entry.put(&[state], |state| worth(state, now));
                }
            }
            many => self.count_many(many, sets, policy, now),
        }
    }

    fn count_many(&self, hits: &mut [Hit], sets: &mut Vec<usize>, policy: Policy, now: Time) {
        sets.clear();
        sets.extend(hits.iter().map(|hit| self.table.set_index(hit.key)));
        sets.sort_unstable();
        sets.dedup();
        let mut taken = self.table.take_all(sets);
        let stop = match policy.stop_when_over {
            true => Stop::find(hits, |key| taken.get(key), policy),
            false => Stop::None,
        };
        for hit in hits {
            taken.change(
                hit.key,
                |state| {
                    let stopped = stop.stops(hit, state[0]);
                    if let Some(after) = hit.count(state[0], policy, stopped) {
                        state[0] = after;
                    }
                },
                |state| worth(state, now),
            );
        }
    }
}

/// Which counters of a request are not counted because others are over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    None,
    WithinLimits,
    All,
}

impl Stop {
    fn find(hits: &[Hit], state: impl Fn(KeyHash) -> u64, policy: Policy) -> Stop {
        if hits.iter().any(|hit| hit.would_be_spared(state(hit.key), policy)) {
            Stop::All
        } else if hits.iter().any(|hit| hit.would_be_over(state(hit.key))) {
            Stop::WithinLimits
        } else {
            Stop::None
        }
    }

    fn stops(self, hit: &Hit, state: u64) -> bool {
        match self {
            Stop::None => false,
            Stop::WithinLimits => !hit.would_be_over(state),
            Stop::All => true,
        }
    }
}

/// What would be forgiven if a counter were forgotten: its hits, nothing once its window ended.
fn worth(state: &[u64], now: Time) -> u64 {
    let live = u64::from(end(state[0])) > now.second();
    if live { hits(state[0]).into() } else { 0 }
}

/// The upper half of a state.
const fn end(state: u64) -> u32 {
    (state >> 32) as u32
}

/// The lower half of a state.
const fn hits(state: u64) -> u32 {
    state as u32
}

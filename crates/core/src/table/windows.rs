//! Counters of windows of many lengths in one table, and several of them counted at once.
//!
//! This is the rate limit service's side of the decision: a request names any number of counters,
//! each with its own limit and window, and all are looked at and counted while every set they
//! live in is held, so no other request comes between. What a counter's word tells, and how the
//! algorithms count: `state`. Which counters a request names, and what an answer says, is a
//! door's business; `bucket::fixed` is the same arithmetic for windows of one length.

mod calendar;
mod state;

use crate::key::KeyHash;
use crate::table::{Table, Taken};
use crate::units::Time;
use alloc::vec::Vec;
pub use calendar::Length;
pub use state::Algorithm;
use state::worth;

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
    /// How it counts. It has to be part of what was hashed, too.
    pub algorithm: Algorithm,
    /// The most hits in a window.
    pub limit: u32,
    /// How many hits; none: only look.
    pub hits: u32,
    /// The hits are given back, down to none. Who gives back is never over.
    pub give_back: bool,
    /// The hits before.
    pub before: u32,
    /// The hits after; over the limit also if they were not counted for that
    /// ([`Algorithm::Sliding`], [`Algorithm::Bucket`]).
    pub after: u32,
    /// It was over before, so it was not counted ([`Policy::spare_over`]).
    pub spared: bool,
}

impl Hit {
    /// `hits` of a counter that has not been looked at.
    #[must_use]
    pub fn new(key: KeyHash, window: Window, limit: u32, hits: u32) -> Hit {
        let (before, after, algorithm) = (0, 0, Algorithm::Fixed);
        let (give_back, spared) = (false, false);
        Hit { key, window, algorithm, limit, hits, give_back, before, after, spared }
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

    /// How long until the window ends, in whole seconds, at least 1; of a bucket, until as many
    /// hits pass as were asked for, or if they did, until it is full.
    #[must_use]
    pub fn reset_secs(&self, now: Time) -> u32 {
        if self.algorithm != Algorithm::Bucket {
            return self.window.left(now);
        }
        let over = if self.is_over() { self.limit } else { 0 };
        let missing = u64::from(self.after - over) * u64::from(self.window.seconds);
        u32::try_from(missing.div_ceil(u64::from(self.limit.max(1)))).unwrap_or(u32::MAX).max(1)
    }

    /// How many hits were charged, once it has been counted; those given back are none.
    #[must_use]
    pub fn charged(&self) -> u32 {
        let refused = self.algorithm != Algorithm::Fixed && self.is_over();
        if self.give_back || refused { 0 } else { self.after.saturating_sub(self.before) }
    }

    /// Whether these hits would bring it over its limit.
    fn would_be_over(&self, used: u32) -> bool {
        !self.give_back && used.saturating_add(self.hits) > self.limit
    }

    fn would_be_spared(&self, used: u32, policy: Policy) -> bool {
        policy.spare_over && !self.give_back && used > self.limit
    }

    /// Counts, unless it is spared or `stopped`, and says what is to be written, if anything.
    fn count(&mut self, words: Words, policy: Policy, stopped: bool, now: Time) -> Option<u64> {
        let used = self.used(words.own, words.previous, now);
        self.before = used;
        self.spared = self.would_be_spared(used, policy);
        let still = self.spared || self.hits == 0 || (stopped && !self.give_back);
        self.after = match self.give_back {
            _ if still => used,
            true => used.saturating_sub(self.hits),
            false => used.saturating_add(self.hits),
        };
        let refused = self.algorithm != Algorithm::Fixed && self.is_over();
        (!still && !refused).then(|| self.counted(words.own, now))
    }
}

/// The words that a counter is told by.
#[derive(Clone, Copy)]
struct Words {
    own: u64,
    previous: u64,
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

    /// Calls `f` with the word of every counter that still counts, set by set: nobody waits for
    /// longer than for another request.
    pub fn for_each(&self, now: Time, mut f: impl FnMut(KeyHash, u64)) {
        self.table.for_each(|key, words| {
            if worth(words[0], now) > 0 {
                f(key, words[0]);
            }
        });
    }

    /// Puts back a counter as [`Windows::for_each`] had it. False if it counts no longer. Keys are
    /// found again only under the seed that they were hashed with.
    pub fn restore(&self, key: KeyHash, word: u64, now: Time) -> bool {
        let counts = worth(word, now) > 0;
        if counts {
            self.table.take(key).put(&[word], |words| worth(words[0], now));
        }
        counts
    }

    /// Counts hits that another instance has let in, whatever the limit. Of a window that counts no
    /// longer, nothing.
    pub fn absorb(&self, hit: &Hit, now: Time) {
        let Window { end, seconds } = hit.window;
        let over = match hit.algorithm {
            Algorithm::Fixed => u64::from(end) <= now.second(),
            Algorithm::Sliding => u64::from(end) + u64::from(seconds) <= now.second(),
            Algorithm::Bucket => false,
        };
        if over {
            return;
        }
        let (own, _) = hit.keys();
        let count = |state: &mut [u64]| state[0] = hit.counted(state[0], now);
        self.table.take(own).change(count, |words| worth(words[0], now));
    }

    /// Has a counter stand where it stands elsewhere, as its hits before and after say.
    pub fn learn(&self, hit: &Hit, now: Time) {
        let (own, previous) = hit.keys();
        let previous = previous.map_or(0, |key| self.table.take(key).get(0));
        let refused = hit.algorithm != Algorithm::Fixed && hit.is_over();
        let used = if refused { hit.before } else { hit.after };
        let word = hit.standing_at(used, previous, now);
        self.table.take(own).put(&[word], |words| worth(words[0], now));
    }

    /// Counts all, in order; a counter that is named twice counts twice. No other request comes
    /// between. `sets` is room to work in, kept by the caller to save making it anew.
    pub fn count(&self, hits: &mut [Hit], sets: &mut Vec<usize>, policy: Policy, now: Time) {
        match hits {
            [] => {}
            [hit] if hit.algorithm != Algorithm::Sliding => {
                let mut entry = self.table.take(hit.key);
                let words = Words { own: entry.get(0), previous: 0 };
                // Alone, it stops itself only by being spared.
                if let Some(word) = hit.count(words, policy, false, now) {
                    entry.put(&[word], |words| worth(words[0], now));
                }
            }
            many => self.count_many(many, sets, policy, now),
        }
    }

    fn count_many(&self, hits: &mut [Hit], sets: &mut Vec<usize>, policy: Policy, now: Time) {
        sets.clear();
        for (own, previous) in hits.iter().map(Hit::keys) {
            sets.push(self.table.set_index(own));
            sets.extend(previous.map(|key| self.table.set_index(key)));
        }
        sets.sort_unstable();
        sets.dedup();
        let mut taken = self.table.take_all(sets);
        let stop = match policy.stop_when_over {
            true => Stop::find(hits, &taken, policy, now),
            false => Stop::None,
        };
        for hit in hits {
            let (own, previous) = hit.keys();
            let previous = previous.map_or(0, |key| taken.get(key));
            let count = |state: &mut [u64]| {
                let words = Words { own: state[0], previous };
                let stopped = stop.stops(hit, words, now);
                if let Some(word) = hit.count(words, policy, stopped, now) {
                    state[0] = word;
                }
            };
            taken.change(own, count, |words| worth(words[0], now));
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
    fn find(hits: &[Hit], taken: &Taken<'_>, policy: Policy, now: Time) -> Stop {
        let used = |hit: &Hit| {
            let (own, previous) = hit.keys();
            hit.used(taken.get(own), previous.map_or(0, |key| taken.get(key)), now)
        };
        if hits.iter().any(|hit| hit.would_be_spared(used(hit), policy)) {
            Stop::All
        } else if hits.iter().any(|hit| hit.would_be_over(used(hit))) {
            Stop::WithinLimits
        } else {
            Stop::None
        }
    }

    fn stops(self, hit: &Hit, words: Words, now: Time) -> bool {
        match self {
            Stop::None => false,
            Stop::WithinLimits => !hit.would_be_over(hit.used(words.own, words.previous, now)),
            Stop::All => true,
        }
    }
}

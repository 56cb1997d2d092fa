//! Counters with windows of many lengths in one table, several of which are counted at once.
//!
//! This is the decision of the rate limit service: a request names any number of counters, each
//! with its own limit and window. All are read and counted while every set they belong to is held,
//! so no other request comes between. The encoding of a counter, and the algorithms: `state`. Which
//! counters a request names, and the response: the doors. `bucket::fixed` is the same arithmetic
//! for windows of one length.

mod calendar;
mod state;

use crate::key::KeyHash;
use crate::table::{BucketTable, HeldSets};
use crate::units::Time;
use alloc::vec::Vec;
pub use calendar::{CounterWindow, WindowLength};
use core::iter;
pub use state::WindowAlgorithm;
use state::worth;

/// One counter that a request names and, after [`WindowCounters::count`], the result.
#[derive(Clone, Copy, Debug)]
pub struct Hit {
    /// The counter. The length of its window must be part of the hashed data.
    pub key: KeyHash,
    /// The present window.
    pub window: CounterWindow,
    /// The algorithm. It must be part of the hashed data, too.
    pub algorithm: WindowAlgorithm,
    /// The largest number of hits in a window.
    pub limit: u32,
    /// The number of hits; zero: only read the counter.
    pub hits: u32,
    /// Whether the hits are given back, down to zero. Such a request is never over the limit.
    pub give_back: bool,
    /// The hits before this request.
    pub before: u32,
    /// The hits after this request. Over the limit also if the hits were not counted for that
    /// reason ([`WindowAlgorithm::Sliding`], [`WindowAlgorithm::Bucket`]).
    pub after: u32,
    /// Whether the counter was over the limit before, and so was not counted
    /// ([`WindowPolicy::spare_over`]).
    pub spared: bool,
}

impl Hit {
    /// `hits` of a counter that has not been read, with a fixed window.
    #[must_use]
    pub fn new(key: KeyHash, window: CounterWindow, limit: u32, hits: u32) -> Hit {
        let (before, after, algorithm) = (0, 0, WindowAlgorithm::Fixed);
        let (give_back, spared) = (false, false);
        Hit { key, window, algorithm, limit, hits, give_back, before, after, spared }
    }

    /// Whether the counter is over its limit, after it was counted.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.give_back && self.after > self.limit
    }

    /// The hits that remain in the window, after it was counted.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.limit.saturating_sub(self.after)
    }

    /// Time until the window ends, in whole seconds, at least 1. For a bucket: until the hits of
    /// this request would pass or, if they did pass, until it is full.
    #[must_use]
    pub fn reset_secs(&self, now: Time) -> u32 {
        if self.algorithm != WindowAlgorithm::Bucket {
            return self.window.left(now);
        }
        let over = if self.is_over() { self.limit } else { 0 };
        let missing = u64::from(self.after - over) * u64::from(self.window.seconds);
        u32::try_from(missing.div_ceil(u64::from(self.limit.max(1)))).unwrap_or(u32::MAX).max(1)
    }

    /// The number of hits that were charged, after it was counted; zero if hits were given back.
    #[must_use]
    pub fn charged(&self) -> u32 {
        let refused = self.algorithm != WindowAlgorithm::Fixed && self.is_over();
        if self.give_back || refused { 0 } else { self.after.saturating_sub(self.before) }
    }

    /// Whether the hits of this request would bring the counter over its limit.
    fn would_be_over(&self, used: u32) -> bool {
        !self.give_back && used.saturating_add(self.hits) > self.limit
    }

    fn would_be_spared(&self, used: u32, policy: WindowPolicy) -> bool {
        policy.spare_over && !self.give_back && used > self.limit
    }

    /// Counts the hits, unless the counter is spared or `stopped`. Returns the word to be written,
    /// if any.
    fn count(
        &mut self,
        words: Words,
        policy: WindowPolicy,
        stopped: bool,
        now: Time,
    ) -> Option<u64> {
        let used = self.used(words.own, words.previous, now);
        self.before = used;
        self.spared = self.would_be_spared(used, policy);
        let still = self.spared || self.hits == 0 || (stopped && !self.give_back);
        self.after = match self.give_back {
            _ if still => used,
            true => used.saturating_sub(self.hits),
            false => used.saturating_add(self.hits),
        };
        let refused = self.algorithm != WindowAlgorithm::Fixed && self.is_over();
        (!still && !refused).then(|| self.counted(words.own, now))
    }
}

/// The stored words of a counter: of the present window and, for a sliding one, of the one before.
#[derive(Clone, Copy)]
struct Words {
    own: u64,
    previous: u64,
}

/// Which counters are not counted when a request is over a limit. By default all are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowPolicy {
    /// If one counter would go over its limit, only the counters that would go over are counted. If
    /// one is spared, none is counted.
    pub stop_when_over: bool,
    /// A counter that is over its limit already is not counted further.
    pub spare_over: bool,
}

/// The counters of all windows.
pub struct WindowCounters {
    table: BucketTable,
}

impl WindowCounters {
    /// Room for `keys_max` counters; all memory is allocated here. When it is full, ended windows
    /// are evicted first, then counters with the fewest hits.
    #[must_use]
    pub fn new(keys_max: usize) -> WindowCounters {
        WindowCounters { table: BucketTable::new(keys_max, 1) }
    }

    /// The underlying table, for its metrics.
    #[must_use]
    pub fn table(&self) -> &BucketTable {
        &self.table
    }

    /// Calls `f` with the word of every counter that has not ended, set by set, so no request waits
    /// longer than for another request.
    pub fn for_each(&self, now: Time, mut f: impl FnMut(KeyHash, u64)) {
        self.table.for_each(|key, words| {
            if worth(words[0], now) > 0 {
                f(key, words[0]);
            }
        });
    }

    /// Restores a counter as [`WindowCounters::for_each`] reported it. Returns false if it has
    /// ended. A key is found again only under the seed that it was hashed with.
    pub fn restore(&self, key: KeyHash, word: u64, now: Time) -> bool {
        let counts = worth(word, now) > 0;
        if counts {
            self.table.take(key).put(&[word], |words| worth(words[0], now));
        }
        counts
    }

    /// Counts hits that another instance has admitted, whatever the limit. Hits of a window that
    /// has ended are ignored.
    pub fn absorb(&self, hit: &Hit, now: Time) {
        let CounterWindow { end, seconds } = hit.window;
        let over = match hit.algorithm {
            WindowAlgorithm::Fixed => u64::from(end) <= now.second(),
            WindowAlgorithm::Sliding => u64::from(end) + u64::from(seconds) <= now.second(),
            WindowAlgorithm::Bucket => false,
        };
        if over {
            return;
        }
        let (own, _) = hit.keys();
        let count = |state: &mut [u64]| state[0] = hit.counted(state[0], now);
        self.table.take(own).change(count, |words| worth(words[0], now));
    }

    /// Sets a counter to its state elsewhere, as given by its hits before and after.
    pub fn learn(&self, hit: &Hit, now: Time) {
        let (own, previous) = hit.keys();
        let previous = previous.map_or(0, |key| self.table.take(key).get(0));
        let refused = hit.algorithm != WindowAlgorithm::Fixed && hit.is_over();
        let used = if refused { hit.before } else { hit.after };
        let word = hit.standing_at(used, previous, now);
        self.table.take(own).put(&[word], |words| worth(words[0], now));
    }

    /// Counts all hits, in order; a counter that is named twice counts twice. No other request
    /// comes between. `sets` is a work buffer, kept by the caller to save allocations.
    pub fn count(&self, hits: &mut [Hit], sets: &mut Vec<usize>, policy: WindowPolicy, now: Time) {
        match hits {
            [] => {}
            [hit] if hit.algorithm != WindowAlgorithm::Sliding => {
                let mut entry = self.table.take(hit.key);
                let words = Words { own: entry.get(0), previous: 0 };
                // A single counter can be kept from counting only by being spared.
                if let Some(word) = hit.count(words, policy, false, now) {
                    entry.put(&[word], |words| worth(words[0], now));
                }
            }
            many => self.count_many(many, sets, policy, now),
        }
    }

    fn count_many(&self, hits: &mut [Hit], sets: &mut Vec<usize>, policy: WindowPolicy, now: Time) {
        sets.clear();
        for (own, previous) in hits.iter().map(Hit::keys) {
            for key in iter::once(own).chain(previous) {
                self.table.prefetch(key);
                sets.push(self.table.set_index(key));
            }
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

/// Which counters of a request are not counted because others are over their limits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    None,
    WithinLimits,
    All,
}

impl Stop {
    fn find(hits: &[Hit], taken: &HeldSets<'_>, policy: WindowPolicy, now: Time) -> Stop {
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

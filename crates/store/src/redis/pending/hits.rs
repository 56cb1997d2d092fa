//! Hits that were counted in this process alone and have to be reported to the store.
//!
//! The hits of one counter are added up, so an outage costs one entry for each counter that was
//! hit, and the number of entries is bounded. The table is shared by all threads: the local count
//! of a counter includes the hits of all threads, and without the pending hits it is the count that
//! the store knew. The script decides which hits still matter when the store is back: it does not
//! count those of a window that has ended.

use super::PendingTable;
use crate::redis::script::CounterAsk;
use evenkeel_core::units::Time;
use evenkeel_core::windows::WindowAlgorithm;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The pending hits, by the name of their counter. A negative number gives hits back.
#[derive(Default)]
pub struct PendingHits {
    entries: HashMap<String, CounterHits, foldhash::fast::RandomState>,
}

struct CounterHits {
    ask: CounterAsk,
    /// The hits that are not being reported yet.
    owed: i64,
    /// The hits that are being reported now.
    telling: i64,
}

impl PendingTable for PendingHits {
    fn len(&self) -> usize {
        self.entries.len()
    }
}

impl PendingHits {
    /// The hits of a counter that are not being reported yet.
    pub fn of(&self, name: &str) -> i64 {
        self.entries.get(name).map_or(0, |hits| hits.owed)
    }

    /// All pending hits of a counter, with those that are being reported.
    pub fn unheard(&self, name: &str) -> i64 {
        self.entries.get(name).map_or(0, |hits| hits.owed + hits.telling)
    }

    /// Adds hits. Returns false if the counter is new and there are `max` counters already.
    pub fn add(&mut self, ask: &CounterAsk, hits: i64, max: usize) -> bool {
        let full = self.entries.len() >= max;
        match self.entries.entry(ask.name.clone()) {
            // Pending hits of a window that has ended no longer matter.
            Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                let window = std::mem::replace(&mut known.ask.hit.window, ask.hit.window);
                let goes_on =
                    window == ask.hit.window || ask.hit.algorithm == WindowAlgorithm::Bucket;
                known.owed = if goes_on { known.owed.saturating_add(hits) } else { hits };
            }
            Entry::Vacant(_) if full => return false,
            Entry::Vacant(entry) => {
                entry.insert(CounterHits { ask: ask.clone(), owed: hits, telling: 0 });
            }
        }
        true
    }

    /// Takes at most `max` entries that `wanted` accepts, as reports. Call
    /// [`PendingHits::end_report`] for each when it is done. Entries that cannot matter any more at
    /// `now` are dropped and counted in `lost`.
    pub fn take(
        &mut self,
        max: usize,
        now: Time,
        lost: &mut u64,
        wanted: impl Fn(&CounterAsk) -> bool,
    ) -> Vec<CounterAsk> {
        let over =
            |_: &String, hits: &mut CounterHits| hits.telling == 0 && !matters(&hits.ask, now);
        *lost += self.entries.extract_if(over).count() as u64;
        let idle =
            |hits: &&mut CounterHits| hits.telling == 0 && hits.owed != 0 && wanted(&hits.ask);
        self.entries.values_mut().filter(idle).take(max).map(CounterHits::tell).collect()
    }

    /// Ends the report of a counter. Its hits are pending again if they are `kept`.
    pub fn end_report(&mut self, name: &str, kept: bool) {
        let Some(hits) = self.entries.get_mut(name) else { return };
        let told = std::mem::take(&mut hits.telling);
        hits.owed = hits.owed.saturating_add(if kept { told } else { 0 });
        if hits.owed == 0 {
            self.entries.remove(name);
        }
    }
}

impl CounterHits {
    fn tell(&mut self) -> CounterAsk {
        self.telling = std::mem::take(&mut self.owed);
        let mut ask = self.ask.clone();
        ask.hit.hits = u32::try_from(self.telling.unsigned_abs()).unwrap_or(u32::MAX);
        ask.hit.give_back = self.telling < 0;
        ask.force = true;
        ask
    }
}

/// Whether the window of these hits may still be open on a server with a clock some seconds behind.
fn matters(ask: &CounterAsk, now: Time) -> bool {
    let window = ask.hit.window;
    let end = u64::from(window.end) + 2;
    match ask.hit.algorithm {
        WindowAlgorithm::Fixed => end > now.second(),
        WindowAlgorithm::Sliding => end + u64::from(window.seconds) > now.second(),
        WindowAlgorithm::Bucket => true,
    }
}

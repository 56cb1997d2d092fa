//! What was counted here alone, and that the store has yet to be told.
//!
//! Hits of one counter are added up, so an outage costs an entry for each counter that was hit, and
//! there are no more of them than a bound. It is one for all threads: what is known here of a
//! counter has in it what any of them has counted, and less what is owed it is what the store knew.
//! What of it still matters when the store is back, the script knows: hits of a window that has
//! ended there are not counted.

use super::lane::shared::Notes;
use super::script::Ask;
use evenkeel_core::units::Time;
use evenkeel_core::windows::Algorithm;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Hits to be told, by the name of their counter; below zero they are given back.
#[derive(Default)]
pub struct Owed {
    entries: HashMap<String, Hits, foldhash::fast::RandomState>,
}

struct Hits {
    ask: Ask,
    /// To be told,
    owed: i64,
    /// and of which the store is being told.
    telling: i64,
}

impl Notes for Owed {
    fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Owed {
    /// The hits of a counter that the store is not told of.
    pub fn of(&self, name: &str) -> i64 {
        self.entries.get(name).map_or(0, |hits| hits.owed)
    }

    /// Those, and what it is being told.
    pub fn unheard(&self, name: &str) -> i64 {
        self.entries.get(name).map_or(0, |hits| hits.owed + hits.telling)
    }

    /// Notes hits. False: there is no room for one more counter, of at most `max`.
    pub fn add(&mut self, ask: &Ask, hits: i64, max: usize) -> bool {
        if hits == 0 {
            return true;
        }
        let full = self.entries.len() >= max;
        match self.entries.entry(ask.name.clone()) {
            // What is owed to a window that has ended matters to nobody.
            Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                let window = std::mem::replace(&mut known.ask.hit.window, ask.hit.window);
                let goes_on = window == ask.hit.window || ask.hit.algorithm == Algorithm::Bucket;
                known.owed = if goes_on { known.owed.saturating_add(hits) } else { hits };
            }
            Entry::Vacant(_) if full => return false,
            Entry::Vacant(entry) => {
                entry.insert(Hits { ask: ask.clone(), owed: hits, telling: 0 });
            }
        }
        true
    }

    /// At most `max` of those that `wanted` wants, as they are to be told: [`Owed::told`] when they
    /// were. What cannot matter any more at `now` is thrown away and counted in `lost`.
    pub fn take(
        &mut self,
        max: usize,
        now: Time,
        lost: &mut u64,
        wanted: impl Fn(&Ask) -> bool,
    ) -> Vec<Ask> {
        let over = |_: &String, hits: &mut Hits| hits.telling == 0 && !matters(&hits.ask, now);
        *lost += self.entries.extract_if(over).count() as u64;
        let idle = |hits: &&mut Hits| hits.telling == 0 && hits.owed != 0 && wanted(&hits.ask);
        self.entries.values_mut().filter(idle).take(max).map(Hits::tell).collect()
    }

    /// The store was told of a counter, or will never be.
    pub fn told(&mut self, name: &str) {
        self.settle(name, |_| {});
    }

    /// The store has not taken what it was told of a counter.
    pub fn not_told(&mut self, name: &str) {
        self.settle(name, |hits| hits.owed = hits.owed.saturating_add(hits.telling));
    }

    fn settle(&mut self, name: &str, change: impl FnOnce(&mut Hits)) {
        let Some(hits) = self.entries.get_mut(name) else { return };
        change(hits);
        hits.telling = 0;
        if hits.owed == 0 {
            self.entries.remove(name);
        }
    }
}

impl Hits {
    fn tell(&mut self) -> Ask {
        self.telling = std::mem::take(&mut self.owed);
        let mut ask = self.ask.clone();
        ask.hit.hits = u32::try_from(self.telling.unsigned_abs()).unwrap_or(u32::MAX);
        ask.hit.give_back = self.telling < 0;
        ask.force = true;
        ask
    }
}

/// Whether the window of what is owed may go on where the clock is some seconds behind.
fn matters(ask: &Ask, now: Time) -> bool {
    let window = ask.hit.window;
    let end = u64::from(window.end) + 2;
    match ask.hit.algorithm {
        Algorithm::Fixed => end > now.second(),
        Algorithm::Sliding => end + u64::from(window.seconds) > now.second(),
        Algorithm::Bucket => true,
    }
}

//! What was counted here alone, and that the store has yet to be told.
//!
//! Hits of one counter are added up, so an outage costs an entry for each counter that was hit, and
//! there are no more of them than a bound. What of it still matters when the store is back, the
//! script knows: hits of a window that has ended there are not counted.

use super::script::Ask;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use tollgate_core::units::Time;
use tollgate_core::windows::Algorithm;

/// Hits to be told, by the name of their counter; below zero they are given back.
#[derive(Default)]
pub struct Owed {
    entries: HashMap<String, (Ask, i64), foldhash::fast::RandomState>,
}

impl Owed {
    /// How many counters.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The hits of a counter that the store does not know of.
    pub fn of(&self, name: &str) -> i64 {
        if self.entries.is_empty() {
            return 0;
        }
        self.entries.get(name).map_or(0, |(_, hits)| *hits)
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
                let (known, owed) = entry.get_mut();
                let goes_on =
                    known.hit.window == ask.hit.window || known.hit.algorithm == Algorithm::Bucket;
                *owed = if goes_on { owed.saturating_add(hits) } else { hits };
                known.hit.window = ask.hit.window;
            }
            Entry::Vacant(_) if full => return false,
            Entry::Vacant(entry) => _ = entry.insert((ask.clone(), hits)),
        }
        true
    }

    /// Takes out at most `max` of those that `wanted` wants, as they are to be told; what cannot
    /// matter any more at `now` is thrown away and counted in `lost`.
    pub fn take(
        &mut self,
        max: usize,
        now: Time,
        lost: &mut u64,
        wanted: impl Fn(&Ask) -> bool,
    ) -> Vec<Ask> {
        let mut taken = Vec::new();
        let leaves = |(ask, _): &(Ask, i64)| !matters(ask, now) || wanted(ask);
        for (_, (ask, hits)) in self.entries.extract_if(|_, entry| leaves(entry)) {
            match matters(&ask, now) {
                true => taken.push(told(ask, hits)),
                false => *lost += 1,
            }
            if taken.len() >= max {
                break;
            }
        }
        taken
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

fn told(mut ask: Ask, hits: i64) -> Ask {
    ask.hit.hits = u32::try_from(hits.unsigned_abs()).unwrap_or(u32::MAX);
    ask.hit.give_back = hits < 0;
    ask.force = true;
    ask
}

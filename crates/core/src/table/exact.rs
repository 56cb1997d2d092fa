//! The order inside a small table: one set, at most half full, searched from a key's home slot.
//!
//! Linear probing with the gap closed on removal, so a search ends at the first empty slot and
//! there are no tombstones. A full table looks at every slot before it takes a key in: that is
//! what makes "the least worthy of all" exact, and why it is for small tables only. All that is
//! worth nothing by then goes at once, so the long look is rare unless every bucket is in use.

use super::set::{Relaxed, Set};
use super::{Table, scaled};
use crate::key::KeyHash;

/// The slot where the search for a key starts.
pub(super) fn home(set: &Set<'_>, hash: KeyHash) -> usize {
    scaled(hash, set.ways())
}

/// Where a key is.
pub(super) fn find(set: &Set<'_>, hash: KeyHash) -> Option<usize> {
    let slot = search(set, hash, |owner| owner == 0 || owner == hash.bits());
    (set.hash(slot) == hash.bits()).then_some(slot)
}

/// An empty slot for a key that is not there, made by dropping buckets if need be.
pub(super) fn room(
    table: &Table,
    set: &Set<'_>,
    hash: KeyHash,
    worth: impl Fn(&[u64]) -> u64,
) -> usize {
    let counts = &table.counts;
    if counts.used.load(Relaxed) >= table.keys_max as u64 {
        let gone = clear(set, &worth);
        if gone == 0 {
            counts.dropped.fetch_add(1, Relaxed);
        }
        counts.used.fetch_sub(gone.max(1), Relaxed);
    }
    counts.used.fetch_add(1, Relaxed);
    search(set, hash, |owner| owner == 0)
}

/// The first slot from a key's home on whose hash pleases; its home if none does.
fn search(set: &Set<'_>, hash: KeyHash, pleases: impl Fn(u64) -> bool) -> usize {
    let home = home(set, hash);
    let slots = (home..set.ways()).chain(0..home);
    slots.into_iter().find(|slot| pleases(set.hash(*slot))).unwrap_or(home)
}

/// Removes every bucket that is worth nothing and says how many; if there is none, removes the
/// one that is worth least and says zero.
fn clear(set: &Set<'_>, worth: impl Fn(&[u64]) -> u64) -> u64 {
    let mut gone = 0;
    let mut least = (u64::MAX, 0);
    for slot in 0..set.ways() {
        // What closes the gap may be worth nothing either.
        while set.hash(slot) != 0 {
            let worth = set.with_state(slot, &worth);
            if worth > 0 {
                least = least.min((worth, slot));
                break;
            }
            remove(set, slot);
            gone += 1;
        }
    }
    if gone == 0 {
        remove(set, least.1);
    }
    gone
}

/// Empties a slot and moves up those behind it that would no longer be found.
fn remove(set: &Set<'_>, slot: usize) {
    let ways = set.ways();
    let behind = |from: usize, to: usize| (to + ways - from) % ways;
    let mut gap = slot;
    let mut next = (slot + 1) % ways;
    while set.hash(next) != 0 {
        let home = home(set, KeyHash::from_bits(set.hash(next)));
        if behind(home, next) >= behind(gap, next) {
            set.with_state(next, |state| set.assign(gap, set.hash(next), state));
            gap = next;
        }
        next = (next + 1) % ways;
    }
    set.vacate(gap);
}

//! The order inside a small table: one set, at most half full, searched from a key's home slot.
//!
//! Linear probing, with gaps closed on removal, so a search ends at the first empty slot and there
//! are no tombstones. A full table examines every slot before it stores a new key. This makes "the
//! least worthy of all" exact, and it is the reason why it is for small tables only. All buckets
//! that are worth nothing are removed at the same time, so this is rare unless every bucket is in
//! use.

use super::set::{Relaxed, Set};
use super::{BucketTable, scaled};
use crate::key::KeyHash;

/// The slot at which the search for a key starts.
pub(super) fn home(set: &Set<'_>, hash: KeyHash) -> usize {
    scaled(hash, set.ways())
}

/// The slot of a key, if it is present.
pub(super) fn find(set: &Set<'_>, hash: KeyHash) -> Option<usize> {
    let slot = search(set, hash, |owner| owner == 0 || owner == hash.bits());
    (set.hash(slot) == hash.bits()).then_some(slot)
}

/// An empty slot for an absent key. Evicts buckets if the table is full.
pub(super) fn room(
    table: &BucketTable,
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

/// The first slot, from the key's home on, with a hash that satisfies the predicate; the home slot
/// if there is none.
fn search(set: &Set<'_>, hash: KeyHash, pleases: impl Fn(u64) -> bool) -> usize {
    let home = home(set, hash);
    let slots = (home..set.ways()).chain(0..home);
    slots.into_iter().find(|slot| pleases(set.hash(*slot))).unwrap_or(home)
}

/// Removes every bucket that is worth nothing, and returns their number. If there is none, removes
/// the bucket that is worth least and returns zero.
fn clear(set: &Set<'_>, worth: impl Fn(&[u64]) -> u64) -> u64 {
    let mut gone = 0;
    let mut least = (u64::MAX, 0);
    for slot in 0..set.ways() {
        // The bucket that closes the gap may be worth nothing either.
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

/// Empties a slot, and moves up the buckets behind it that a search would no longer find.
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

//! The bounded store of buckets: fixed memory, no lists, no stored keys and no background sweep.
//!
//! A slot is a 63-bit hash and the words of one bucket. Invariants: each key belongs to one set of
//! neighbouring slots and is in at most one of them; all writes to a set happen while its writer
//! bit is held (`set`, a spin lock). So a charge never reaches another key. When a set is full, the
//! bucket that is worth least is evicted. A bucket that is worth nothing equals an absent one and
//! is simply overwritten, so no sweep is needed.
//!
//! Which sets are taken together, and in which order, is decided in `limiter`; the caller knows the
//! worth of a bucket (`bucket`). A table of up to [`EXACT_KEYS_MAX`] keys is a single set with an
//! order of its own (`small_table`), and evicts the least worthy of all its buckets.

mod set;
mod small_table;
pub mod windows;
mod zeroed;

use crate::bucket::{STATE_WORDS_MAX, STATE_WORDS_USUAL};
use crate::key::KeyHash;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use set::{AtomicU64, LINE_WORDS, Relaxed, Set, Shape};
use zeroed::ZeroedWords;

/// Up to this many keys, a full table evicts the least worthy of *all* its buckets and never holds
/// more than `keys_max`. Above, it evicts the least worthy of a set.
pub const EXACT_KEYS_MAX: usize = if cfg!(loom) { 2 } else { 4096 };

/// Slots in a set of a large table.
const SLOTS_PER_SET: usize = 8;

/// Slots per key in a large table, in halves. At 3/2 a key costs 24 bytes (one word of state).
const SLOTS_PER_KEY_HALVES: usize = 3;

const _: () = {
    assert!(SLOTS_PER_SET.is_multiple_of(LINE_WORDS), "a set is whole cache lines");
    assert!(2 * size_of::<u64>() * SLOTS_PER_KEY_HALVES / 2 == 24, "Limit::keys_max says 24 bytes");
};

/// The buckets of one limit.
///
/// ```
/// use evenkeel_core::key::KeyHash;
/// use evenkeel_core::table::BucketTable;
///
/// let table = BucketTable::new(1_000, 1);
/// // Here the state is a count, and a bucket is worth as much as it has counted.
/// let worth = |state: &[u64]| state[0];
/// let key = KeyHash::from_bits(7);
/// for _ in 0..3 {
///     table.take(key).change(|state| state[0] += 1, worth);
/// }
/// assert_eq!(table.peek(key), Some(3));
/// assert_eq!(table.take(KeyHash::from_bits(8)).get(0), 0);
/// ```
pub struct BucketTable {
    words: ZeroedWords,
    shape: Shape,
    sets: usize,
    keys_max: usize,
    counts: TableCounts,
}

/// Counters that are written seldom. They are not on the cache line that every decision reads.
#[repr(align(64))]
struct TableCounts {
    used: AtomicU64,
    dropped: AtomicU64,
}

impl BucketTable {
    /// A table for `keys_max` buckets (at least 1) of `words` words of state each (1 to
    /// [`STATE_WORDS_MAX`]). All memory is allocated here; a system with virtual memory provides
    /// each page of it when a key first uses it.
    #[must_use]
    pub fn new(keys_max: usize, words: usize) -> BucketTable {
        let keys_max = keys_max.max(1);
        let words = words.clamp(1, STATE_WORDS_MAX);
        let (sets, ways) = if keys_max <= EXACT_KEYS_MAX {
            (1, (2 * keys_max).next_multiple_of(LINE_WORDS))
        } else {
            (
                keys_max.saturating_mul(SLOTS_PER_KEY_HALVES).div_ceil(2).div_ceil(SLOTS_PER_SET),
                SLOTS_PER_SET,
            )
        };
        let shape = Shape { ways, words };
        let words = ZeroedWords::new(sets * shape.set_words());
        let counts = TableCounts { used: AtomicU64::new(0), dropped: AtomicU64::new(0) };
        BucketTable { words, shape, sets, keys_max, counts }
    }

    /// Makes the processor load the cache lines of a key's set from memory, without waiting for
    /// them. So the lines of several tables are loaded in parallel, during other work.
    pub fn prefetch(&self, hash: KeyHash) {
        let set = self.set_of(hash);
        if self.is_exact() {
            set.prefetch(small_table::home(&set, hash));
        }
        set.prefetch(0);
        set.prefetch(self.shape.ways - 1);
    }

    /// The state of a key's bucket, zero if the key is absent, read without taking its set. `None`
    /// if only a taken set can tell: while the slot is being given to another key, if the state has
    /// more than one word, and for an absent key in a small table, whose buckets move to other
    /// slots.
    ///
    /// The result was true at some moment during the call, with one accepted exception: if, between
    /// two neighbouring loads, the slot is given to another key and then back to this one, the
    /// result is the state of the other key. So it may be used to refuse early and cheaply, but
    /// never to charge.
    #[must_use]
    pub fn peek(&self, hash: KeyHash) -> Option<u64> {
        if self.shape.words != 1 {
            return None;
        }
        let set = self.set_of(hash);
        match self.find(&set, hash) {
            Some(slot) => set.peek(slot, hash),
            None => (!self.is_exact()).then_some(0),
        }
    }

    /// Takes the writer bit of the key's set, spinning until it is free, and finds the key.
    /// Dropping the entry releases the set. Lock order: code that takes entries of several tables
    /// takes at most one of each, in the order of the limits. A second entry of the same set would
    /// spin for ever.
    #[inline]
    #[must_use]
    pub fn take(&self, hash: KeyHash) -> TableEntry<'_> {
        let set = self.set_of(hash);
        set.take();
        let slot = self.find(&set, hash);
        TableEntry { table: self, set, hash, slot }
    }

    /// The index of the set that a key belongs to.
    #[must_use]
    fn set_index(&self, hash: KeyHash) -> usize {
        scaled(hash, self.sets)
    }

    /// Takes several sets, as [`BucketTable::take`] takes one. Lock order: `sets` must be strictly
    /// ascending.
    #[must_use]
    fn take_all<'a>(&'a self, sets: &'a [usize]) -> HeldSets<'a> {
        debug_assert!(sets.is_sorted_by(|a, b| a < b), "sets are taken in order");
        sets.iter().for_each(|index| self.set(*index).take());
        HeldSets { table: self, sets }
    }

    /// Calls `f` with every bucket once, including those that are worth nothing any longer. Each
    /// set is copied first, so `f` may take entries, even of this table.
    pub fn for_each(&self, mut f: impl FnMut(KeyHash, &[u64])) {
        let stride = 1 + self.shape.words;
        let mut copy = Vec::with_capacity(self.shape.ways * stride);
        for index in 0..self.sets {
            self.set(index).copy_all(&mut copy);
            for slot in copy.chunks_exact(stride) {
                f(KeyHash::from_bits(slot[0]), &slot[1..]);
            }
            copy.clear();
        }
    }

    /// The number of keys that the table was made for.
    #[must_use]
    pub fn keys_max(&self) -> usize {
        self.keys_max
    }

    /// Words of state per bucket.
    #[must_use]
    pub fn words(&self) -> usize {
        self.shape.words
    }

    /// The number of slots in use. A bucket that is worth nothing counts until it is overwritten.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.counts.used.load(Relaxed)
    }

    /// The number of buckets that were evicted although they were worth something.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Relaxed)
    }

    /// The memory of all slots, in bytes. It never changes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(self.words.as_slice())
    }

    fn is_exact(&self) -> bool {
        self.keys_max <= EXACT_KEYS_MAX
    }

    /// The set of a key. The upper bits of the hash select it, so any number of sets is possible.
    fn set_of(&self, hash: KeyHash) -> Set<'_> {
        self.set(self.set_index(hash))
    }

    fn set(&self, index: usize) -> Set<'_> {
        let length = self.shape.set_words();
        Set::new(&self.words.as_slice()[index * length..(index + 1) * length], self.shape)
    }

    #[inline]
    fn find(&self, set: &Set<'_>, hash: KeyHash) -> Option<usize> {
        if self.is_exact() { small_table::find(set, hash) } else { set.find(hash) }
    }

    /// The worth of the bucket that an absent key would evict; 0 if it would evict none.
    fn least_worth(&self, set: &Set<'_>, worth: impl Fn(&[u64]) -> u64) -> u64 {
        if self.is_exact() && self.counts.used.load(Relaxed) < self.keys_max as u64 {
            return 0;
        }
        let worth_of = |slot| match set.hash(slot) {
            // A small table is never full of keys: its free slots make searches short.
            0 if self.is_exact() => u64::MAX,
            0 => 0,
            _ => set.with_state(slot, &worth),
        };
        (0..self.shape.ways).map(worth_of).min().unwrap_or(0)
    }

    /// A slot for an absent key, in a set that is held. Evicts a bucket if needed.
    fn room(&self, set: &Set<'_>, hash: KeyHash, worth: impl Fn(&[u64]) -> u64) -> usize {
        if self.is_exact() {
            return small_table::room(self, set, hash, worth);
        }
        let mut least = (u64::MAX, 0);
        for slot in 0..self.shape.ways {
            if set.hash(slot) == 0 {
                self.counts.used.fetch_add(1, Relaxed);
                return slot;
            }
            match set.with_state(slot, &worth) {
                0 => return slot,
                worth => least = least.min((worth, slot)),
            }
        }
        self.counts.dropped.fetch_add(1, Relaxed);
        least.1
    }
}

/// Maps a hash to an index below `count`.
fn scaled(hash: KeyHash, count: usize) -> usize {
    ((u128::from(hash.bits()) * count as u128) >> 63) as usize
}

/// The slot of one key, in a set that is held. Until the entry is dropped, no other thread writes
/// to the set.
pub struct TableEntry<'a> {
    table: &'a BucketTable,
    set: Set<'a>,
    hash: KeyHash,
    slot: Option<usize>,
}

impl TableEntry<'_> {
    /// One word of the bucket's state; zero if the key is absent.
    #[must_use]
    pub fn get(&self, word: usize) -> u64 {
        self.slot.map_or(0, |slot| self.set.state(slot, word))
    }

    /// Calls `f` with the bucket's state; all zero if the key is absent.
    pub fn with<R>(&self, f: impl FnOnce(&[u64]) -> R) -> R {
        match self.slot {
            Some(slot) => self.set.with_state(slot, f),
            None => f(&[0; STATE_WORDS_MAX][..self.table.shape.words]),
        }
    }

    /// Lets `f` change the bucket's state, then writes it as `put` does. The set is held while `f`
    /// runs.
    pub fn change<R>(
        &mut self,
        f: impl FnOnce(&mut [u64]) -> R,
        worth: impl Fn(&[u64]) -> u64,
    ) -> R {
        let words = self.table.shape.words;
        if words == 1 {
            let mut state = [self.get(0)];
            let result = f(&mut state);
            self.put(&state, worth);
            return result;
        }
        match words {
            0..=STATE_WORDS_USUAL => self.change_copy::<STATE_WORDS_USUAL, R>(f, worth),
            _ => self.change_copy::<STATE_WORDS_MAX, R>(f, worth),
        }
    }

    /// `change` for at most `N` words.
    fn change_copy<const N: usize, R>(
        &mut self,
        f: impl FnOnce(&mut [u64]) -> R,
        worth: impl Fn(&[u64]) -> u64,
    ) -> R {
        let mut state = [0; N];
        let state = &mut state[..self.table.shape.words];
        self.with(|now| state.copy_from_slice(now));
        let result = f(state);
        self.put(state, worth);
        result
    }

    /// Writes the bucket's state. An absent key gets an empty slot or one that is worth nothing,
    /// else that of the least worthy bucket. The new bucket itself is never the one evicted,
    /// because a client that was just seen is the likeliest to return. A worthless state is not
    /// stored.
    pub fn put(&mut self, state: &[u64], worth: impl Fn(&[u64]) -> u64) {
        if let Some(slot) = self.slot {
            self.set.write(slot, state);
        } else if worth(state) > 0 {
            let slot = self.table.room(&self.set, self.hash, worth);
            self.set.assign(slot, self.hash.bits(), state);
            self.slot = Some(slot);
        }
    }

    /// Like [`TableEntry::put`], but an absent key evicts no bucket that is worth as much as its
    /// own. Returns whether the state was written.
    pub fn offer(&mut self, state: &[u64], worth: impl Fn(&[u64]) -> u64) -> bool {
        let fits = self.slot.is_some() || worth(state) > self.table.least_worth(&self.set, &worth);
        if fits {
            self.put(state, worth);
        }
        fits
    }
}

impl Drop for TableEntry<'_> {
    fn drop(&mut self) {
        self.set.give_back();
    }
}

/// Several sets that are held. Until this is dropped, no other thread writes to them.
struct HeldSets<'a> {
    table: &'a BucketTable,
    sets: &'a [usize],
}

impl HeldSets<'_> {
    /// The first word of a bucket's state; zero if the key is absent. Its set must be held.
    #[must_use]
    pub fn get(&self, hash: KeyHash) -> u64 {
        let set = self.table.set_of(hash);
        self.table.find(&set, hash).map_or(0, |slot| set.state(slot, 0))
    }

    /// Like [`TableEntry::change`]. The set of the key must be held.
    pub fn change<R>(
        &mut self,
        hash: KeyHash,
        f: impl FnOnce(&mut [u64]) -> R,
        worth: impl Fn(&[u64]) -> u64,
    ) -> R {
        debug_assert!(self.sets.contains(&self.table.set_index(hash)), "its set is not taken");
        let set = self.table.set_of(hash);
        let slot = self.table.find(&set, hash);
        let mut entry = ManuallyDrop::new(TableEntry { table: self.table, set, hash, slot });
        // The entry is not dropped: all sets are released together.
        entry.change(f, worth)
    }
}

impl Drop for HeldSets<'_> {
    fn drop(&mut self) {
        self.sets.iter().for_each(|index| self.table.set(*index).give_back());
    }
}

//! One set of slots: the layout of its words, its writer bit (a spin lock), and the order of its
//! writes.
//!
//! The 64th bit of the first slot's hash is the writer bit. Only the thread that has set it may
//! write to the set, until it clears the bit. Readers without it (`peek`) do not mistake the state
//! of another key for theirs, apart from the case that `BucketTable::peek` describes, because a
//! slot changes its owner in a fixed order: hash cleared, state, new hash. Which slot a key gets is
//! decided in `table` and `small_table`.

use crate::bucket::{STATE_WORDS_MAX, STATE_WORDS_USUAL};
use crate::key::KeyHash;
use alloc::vec::Vec;

#[cfg(not(loom))]
pub(super) use core::sync::atomic::{
    AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
#[cfg(loom)]
pub(super) use loom::sync::atomic::{
    AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Words in a cache line.
pub(super) const LINE_WORDS: usize = 8;

/// The writer bit, in the hash of a set's first slot.
const WRITER_BIT: u64 = !KeyHash::MASK;

/// The layout of the words of a set.
///
/// With one word of state, hash and state are neighbours, so a key found in the first line costs
/// one cache line. Wider states follow after all hashes, so that a search does not step over them.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Slots in a set, a multiple of [`LINE_WORDS`].
    pub(super) ways: usize,
    /// Words of state in a slot.
    pub(super) words: usize,
}

impl Shape {
    /// Words in a set, a multiple of [`LINE_WORDS`].
    pub(super) fn set_words(self) -> usize {
        self.ways * (1 + self.words)
    }

    fn hash(self, slot: usize) -> usize {
        if self.words == 1 { 2 * slot } else { slot }
    }

    fn state(self, slot: usize, word: usize) -> usize {
        if self.words == 1 { 2 * slot + 1 } else { self.ways + slot * self.words + word }
    }
}

/// The slots of one set.
pub(super) struct Set<'a> {
    words: &'a [AtomicU64],
    shape: Shape,
}

impl<'a> Set<'a> {
    /// A set in `words`, which begin at a cache line.
    pub(super) fn new(words: &'a [AtomicU64], shape: Shape) -> Set<'a> {
        Set { words, shape }
    }

    pub(super) fn ways(&self) -> usize {
        self.shape.ways
    }

    fn word(&self, at: usize) -> &'a AtomicU64 {
        &self.words[at]
    }

    /// Takes the writer bit, spinning until it is free. It is held for some hundred nanoseconds; in
    /// a small table (`small_table`) for longer while all slots are copied or searched for one to
    /// evict. It is never held across anything that could block.
    pub(super) fn take(&self) {
        let first = self.word(0);
        loop {
            let free = first.load(Relaxed) & KeyHash::MASK;
            if first.compare_exchange(free, free | WRITER_BIT, Acquire, Relaxed).is_ok() {
                return;
            }
            wait_while(|| first.load(Relaxed) & WRITER_BIT != 0);
        }
    }

    /// Releases the writer bit, and publishes everything written under it to the next thread that
    /// takes it.
    pub(super) fn give_back(&self) {
        self.word(0).store(self.hash(0), Release);
    }

    /// The hash in a slot; zero if it is empty.
    pub(super) fn hash(&self, slot: usize) -> u64 {
        self.word(self.shape.hash(slot)).load(Relaxed) & KeyHash::MASK
    }

    pub(super) fn state(&self, slot: usize, word: usize) -> u64 {
        self.word(self.shape.state(slot, word)).load(Relaxed)
    }

    /// The slot of a key, searching all slots.
    pub(super) fn find(&self, hash: KeyHash) -> Option<usize> {
        let owned = |word: &AtomicU64| word.load(Relaxed) & KeyHash::MASK == hash.bits();
        if self.shape.words > 1 {
            return (0..self.shape.ways).find(|slot| owned(self.word(*slot)));
        }
        self.words.as_chunks::<2>().0.iter().position(|[word, _]| owned(word))
    }

    /// Makes the processor load the cache line of a slot's hash, without waiting for it.
    pub(super) fn prefetch(&self, slot: usize) {
        #[cfg(not(target_os = "none"))]
        prefetch_index::prefetch_index(self.words, self.shape.hash(slot));
        #[cfg(target_os = "none")]
        let _ = slot;
    }

    /// The one word of a slot's state if the slot belongs to `hash`, read without the writer bit.
    ///
    /// A writer that gives the slot to another key clears the hash before it writes the state
    /// (`assign`). So a reader that sees the state of the other key also sees the earlier writes,
    /// and finds the hash changed when it checks again.
    pub(super) fn peek(&self, slot: usize, hash: KeyHash) -> Option<u64> {
        let owner = self.word(self.shape.hash(slot));
        let owned = || owner.load(Acquire) & KeyHash::MASK == hash.bits();
        if !owned() {
            return None;
        }
        let state = self.word(self.shape.state(slot, 0)).load(Acquire);
        owned().then_some(state)
    }

    /// Calls `f` with a slot's state as a slice.
    pub(super) fn with_state<R>(&self, slot: usize, f: impl FnOnce(&[u64]) -> R) -> R {
        if self.shape.words == 1 {
            return f(&[self.state(slot, 0)]);
        }
        match self.shape.words {
            0..=STATE_WORDS_USUAL => self.with_copy::<STATE_WORDS_USUAL, R>(slot, f),
            _ => self.with_copy::<STATE_WORDS_MAX, R>(slot, f),
        }
    }

    /// `with_state` for at most `N` words.
    fn with_copy<const N: usize, R>(&self, slot: usize, f: impl FnOnce(&[u64]) -> R) -> R {
        let mut words = [0; N];
        let words = &mut words[..self.shape.words];
        for (word, value) in words.iter_mut().enumerate() {
            *value = self.state(slot, word);
        }
        f(words)
    }

    /// Writes a slot's state. The key of the slot does not change.
    pub(super) fn write(&self, slot: usize, state: &[u64]) {
        for (word, value) in state.iter().take(self.shape.words).enumerate() {
            self.word(self.shape.state(slot, word)).store(*value, Release);
        }
    }

    /// Gives a slot to another key, in this order: hash cleared, state, new hash.
    pub(super) fn assign(&self, slot: usize, hash: u64, state: &[u64]) {
        self.own(slot, 0);
        self.write(slot, state);
        self.own(slot, hash);
    }

    /// Empties a slot.
    pub(super) fn vacate(&self, slot: usize) {
        self.own(slot, 0);
    }

    /// Writes a slot's hash. Keeps the writer bit, which must be held.
    fn own(&self, slot: usize, hash: u64) {
        let bit = if slot == 0 { WRITER_BIT } else { 0 };
        self.word(self.shape.hash(slot)).store(hash | bit, Release);
    }

    /// Appends hash and state of every slot in use, all as of one moment.
    pub(super) fn copy_all(&self, copy: &mut Vec<u64>) {
        // Taking the set would write to memory that no key has used yet.
        if (0..self.shape.ways).all(|slot| self.hash(slot) == 0) {
            return;
        }
        self.take();
        for slot in 0..self.shape.ways {
            let hash = self.hash(slot);
            if hash != 0 {
                copy.push(hash);
                self.with_state(slot, |state| copy.extend_from_slice(state));
            }
        }
        self.give_back();
    }
}

/// Spins without writing, so that the cache line can stay with the thread that holds the bit.
#[cfg(not(loom))]
fn wait_while(held: impl Fn() -> bool) {
    while held() {
        core::hint::spin_loop();
    }
}

/// Yields to the thread that holds the bit: loom would follow a spinning reader for ever.
#[cfg(loom)]
fn wait_while(_held: impl Fn() -> bool) {
    loom::thread::yield_now();
}

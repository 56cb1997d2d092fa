//! What any thread notes and any thread takes out: what the store has yet to be told.
//!
//! The lock is held for as long as a note takes, never while somebody waits. What the notes are:
//! `owed` of counters, `account::owed` of buckets.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Notes of which there are some or none.
pub trait Notes {
    /// How many.
    fn len(&self) -> usize;
}

/// Notes of one kind.
#[derive(Default)]
pub struct Shared<N> {
    notes: Mutex<N>,
    /// Whether there are any, so that nobody waits for the others where there are not.
    any: AtomicBool,
}

impl<N: Notes> Shared<N> {
    /// What comes of changing them.
    pub fn change<R>(&self, change: impl FnOnce(&mut N) -> R) -> R {
        let mut notes = self.notes.lock();
        let result = change(&mut notes);
        self.any.store(notes.len() > 0, Ordering::Release);
        result
    }

    /// What they say; the default where there are none.
    pub fn look<R: Default>(&self, look: impl FnOnce(&N) -> R) -> R {
        if self.any.load(Ordering::Acquire) { look(&self.notes.lock()) } else { R::default() }
    }
}

//! A locked table of pending reports, which any thread may add to or take from.
//!
//! The lock is held only for one change, never across an `await`. No other lock is taken while it
//! is held. The tables: `hits` of counters, `charges` of buckets.

pub mod charges;
pub mod hits;

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A table of pending reports.
pub trait PendingTable {
    /// The number of entries.
    fn len(&self) -> usize;
}

/// A table of pending reports behind a lock.
#[derive(Default)]
pub struct SharedPending<N> {
    notes: Mutex<N>,
    /// Whether the table has entries, so that reading an empty one takes no lock.
    any: AtomicBool,
}

impl<N: PendingTable> SharedPending<N> {
    /// Changes the table with its lock held. `change` must not call this table again.
    pub fn change<R>(&self, change: impl FnOnce(&mut N) -> R) -> R {
        let mut notes = self.notes.lock();
        let result = change(&mut notes);
        self.any.store(notes.len() > 0, Ordering::Release);
        result
    }

    /// Reads the table with its lock held; returns the default without the lock if it is empty.
    pub fn look<R: Default>(&self, look: impl FnOnce(&N) -> R) -> R {
        if self.any.load(Ordering::Acquire) { look(&self.notes.lock()) } else { R::default() }
    }
}

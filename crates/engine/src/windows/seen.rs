//! The most frequent descriptors, by name, in bounded memory.
//!
//! The list is for display, and no decision uses it. It counts every descriptor when there are few,
//! and a fair sample when there are many. A request never waits for the list: if it is locked, the
//! request is not counted.

use crate::Standing;
use crate::tags::Sampler;
use evenkeel_core::key::{KeyHash, Seed};
use evenkeel_core::top::Top;
use evenkeel_core::units::{Cost, Nanos, Time};
use parking_lot::{Mutex, MutexGuard};

/// The number of descriptors that the list remembers by name.
const TOP_KEYS: usize = 1_000;

/// The name of the list in `/api/top`.
pub const NAME: &str = "descriptors";

/// The list of the most frequent descriptors, behind a lock.
pub struct Seen(Mutex<Books>);

struct Books {
    top: Top,
    sampler: Sampler,
}

/// The locked list, and the time of the request that holds it. It must not be held while the
/// request waits.
pub struct Look<'a>(MutexGuard<'a, Books>, Time);

impl Default for Seen {
    fn default() -> Seen {
        // The sample needs no secret randomness.
        let sampler = Sampler::new(&Seed([0; 16]), 0);
        Seen(Mutex::new(Books { top: Top::new(TOP_KEYS), sampler }))
    }
}

impl Seen {
    /// Locks the list for a request at `now`; `None` if it is in use.
    pub fn look(&self, now: Time) -> Option<Look<'_>> {
        let mut books = self.0.try_lock()?;
        books.sampler.turn(now);
        Some(Look(books, now))
    }

    /// The rows by hits, the heaviest first. They have no level, because that would take the rule
    /// of each descriptor.
    pub fn rows(&self, now: Time) -> Vec<Standing> {
        let rows = self.0.lock().top.rows(now).into_iter();
        rows.map(|row| Standing { row, level: None, wait: Nanos::ZERO }).collect()
    }
}

impl Look<'_> {
    /// Counts `hits` for a descriptor, if the sample has it. `name` is called only if the list does
    /// not have the name yet.
    pub fn see(&mut self, key: KeyHash, hits: u64, name: impl FnOnce() -> String) {
        let Look(books, now) = self;
        if let Some(times) = books.sampler.weight() {
            let hits = Cost::hits(hits.saturating_mul(times.into()));
            books.top.count(key, times.into(), hits, *now, name);
        }
    }
}

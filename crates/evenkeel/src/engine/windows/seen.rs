//! Which descriptors are asked about most, by name, in bounded memory.
//!
//! A list for people: nothing is decided by it. It sees every descriptor of a quiet moment and a
//! fair sample of a busy one, and nobody waits for it: who finds it taken is not seen.

use crate::engine::Standing;
use crate::engine::tags::Sampler;
use evenkeel_core::key::{KeyHash, Seed};
use evenkeel_core::top::Top;
use evenkeel_core::units::{Cost, Nanos, Time};
use parking_lot::{Mutex, MutexGuard};

/// How many descriptors it knows by name.
const TOP_KEYS: usize = 1_000;

/// What `/api/top` calls the list.
pub const NAME: &str = "descriptors";

/// The list.
pub struct Seen(Mutex<Books>);

struct Books {
    top: Top,
    sampler: Sampler,
}

/// The list, held for one request.
pub struct Look<'a>(MutexGuard<'a, Books>, Time);

impl Default for Seen {
    fn default() -> Seen {
        // The chance of the sample needs no secret.
        let sampler = Sampler::new(&Seed([0; 16]), 0);
        Seen(Mutex::new(Books { top: Top::new(TOP_KEYS), sampler }))
    }
}

impl Seen {
    /// The list for a request at `now`, if nobody has it.
    pub fn look(&self, now: Time) -> Option<Look<'_>> {
        let mut books = self.0.try_lock()?;
        books.sampler.turn(now);
        Some(Look(books, now))
    }

    /// The heaviest first, by hits; what is left to each nobody knows without its rule.
    pub fn rows(&self, now: Time) -> Vec<Standing> {
        let rows = self.0.lock().top.rows(now).into_iter();
        rows.map(|row| Standing { row, level: None, wait: Nanos::ZERO }).collect()
    }
}

impl Look<'_> {
    /// A descriptor stands for so many hits.
    pub fn see(&mut self, key: KeyHash, hits: u64, name: impl FnOnce() -> String) {
        let Look(books, now) = self;
        if let Some(times) = books.sampler.weight() {
            let hits = Cost::hits(hits.saturating_mul(times.into()));
            books.top.count(key, times.into(), hits, *now, name);
        }
    }
}

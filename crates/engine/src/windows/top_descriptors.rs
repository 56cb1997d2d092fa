//! The most frequent descriptors, by name, in bounded memory.
//!
//! The list is for display, and no decision uses it. It counts every descriptor when there are few,
//! and a fair sample when there are many. A request never waits for the list: if it is locked, the
//! request is not counted.

use crate::tags::QuestionSampler;
use crate::view::HeavyClient;
use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::top::TopClients;
use evenkeel_core::units::{Cost, Time};
use parking_lot::{Mutex, MutexGuard};

/// The number of descriptors that the list remembers by name.
const TOP_KEYS: usize = 1_000;

/// The name of the list in `/api/top`.
pub const LIST_NAME: &str = "descriptors";

/// The list of the most frequent descriptors, behind a lock.
pub struct TopDescriptors(Mutex<DescriptorSample>);

struct DescriptorSample {
    top: TopClients,
    sampler: QuestionSampler,
}

/// The locked list, and the time of the request that holds it. It must not be held while the
/// request waits.
pub struct TopDescriptorsGuard<'a>(MutexGuard<'a, DescriptorSample>, Time);

impl Default for TopDescriptors {
    fn default() -> TopDescriptors {
        // The sample needs no secret randomness.
        let sampler = QuestionSampler::new(&KeySeed([0; 16]), 0);
        TopDescriptors(Mutex::new(DescriptorSample { top: TopClients::new(TOP_KEYS), sampler }))
    }
}

impl TopDescriptors {
    /// Locks the list for a request at `now`; `None` if it is in use.
    pub fn look(&self, now: Time) -> Option<TopDescriptorsGuard<'_>> {
        let mut books = self.0.try_lock()?;
        books.sampler.turn(now);
        Some(TopDescriptorsGuard(books, now))
    }

    /// The rows by hits, the heaviest first. They have no level, because that would take the rule
    /// of each descriptor.
    pub fn rows(&self, now: Time) -> Vec<HeavyClient> {
        let rows = self.0.lock().top.rows(now).into_iter();
        rows.map(HeavyClient::of_view).collect()
    }
}

impl TopDescriptorsGuard<'_> {
    /// Counts `hits` for a descriptor, if the sample has it. `name` is called only if the list does
    /// not have the name yet.
    pub fn see(&mut self, key: KeyHash, hits: u64, name: impl FnOnce() -> String) {
        let TopDescriptorsGuard(books, now) = self;
        if let Some(times) = books.sampler.weight() {
            let hits = Cost::hits(hits.saturating_mul(times.into()));
            books.top.count(key, times.into(), hits, *now, name);
        }
    }
}

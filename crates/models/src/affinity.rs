//! Which backends are likely to have the beginning of a prompt in their KV cache.
//!
//! A request prefers a backend that has served the longest known prefix of its prompt, if that
//! backend is not ahead of the least loaded one by more than a bound (the idea of DLPM, arXiv
//! 2501.14312). The table is a guess: caches evict without notice. All threads share it, because
//! the requests of one client arrive at any of them. It is used by `choice.rs`.

use evenkeel_config::settings::{ConcurrencySetting, ProxySettings};
use evenkeel_engine::BackendId;
use evenkeel_telemetry::counts::affinity::AffinityResult;
use evenkeel_usage::PromptPrefixes;
use lru::LruCache;
use parking_lot::Mutex;

/// The maximum number of prefixes that are remembered, some 100 bytes each. Beyond it the one that
/// was used least recently is forgotten.
const PREFIXES_MAX: usize = 32_768;
/// The number of backends that are remembered for a prefix. A prefix that many requests have in
/// common needs several.
const HOLDERS_MAX: usize = 4;

/// The prefixes that the threads of the process know together.
#[derive(Default)]
pub struct PrefixAffinity(Mutex<PrefixTable>);

/// How far the choice by prefixes may differ from the choice by load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffinityBounds {
    /// By how many requests, the new one included, a backend may be ahead of the least loaded one.
    /// At least 1.
    pub lead: usize,
    /// The most requests that a backend may have then. With more, requests may wait inside the
    /// backend while others have room.
    pub most: usize,
}

impl AffinityBounds {
    /// The bounds that the settings give.
    #[must_use]
    pub fn of(settings: &ProxySettings) -> AffinityBounds {
        let (lead, backends) = (settings.tokens.prefix_lead, settings.backends.len());
        let most = match settings.queue.concurrency {
            // Half more than its even share.
            ConcurrencySetting::Fixed(slots) => (3 * slots).div_ceil(backends.max(1)) / 2,
            ConcurrencySetting::Auto => usize::MAX,
        };
        AffinityBounds { lead, most }
    }

    /// A backend is preferred if it has fewer running requests than this. `least`: the running
    /// requests of the backend that would be chosen otherwise. `shorter`: by how many steps the
    /// prefix that the backend has is shorter than the longest of the prompt. A quarter of a prompt
    /// is worth a quarter of the lead: with all of it, a prefix that many prompts share would bring
    /// all of them to one backend.
    fn running_bound(self, least: usize, shorter: usize) -> usize {
        let lead = (self.lead >> (2 * shorter)).max(self.lead.min(1));
        least.saturating_add(lead).min(self.most)
    }
}

/// A prompt for which a backend is chosen.
pub struct PrefixedPrompt<'a> {
    /// The prefixes that are known.
    pub affinity: &'a PrefixAffinity,
    /// Those of the prompt; zero if load alone decides.
    pub hashes: PromptPrefixes,
    /// How far the choice may differ from that by load.
    pub bounds: AffinityBounds,
}

impl PrefixedPrompt<'_> {
    /// Chooses by the prefixes of the prompt. `least`: the requests of the least loaded backend.
    /// `running_of`: the number of requests with a backend; `None` if it may not be used.
    pub(crate) fn choose(
        &self,
        least: usize,
        running_of: impl Fn(BackendId) -> Option<usize>,
    ) -> PrefixChoice {
        let bound = |shorter| self.bounds.running_bound(least, shorter);
        self.affinity.0.lock().choose(self.hashes, running_of, bound)
    }

    /// Records that this backend gets the prompt. Returns the number of prefixes that are forgotten
    /// for that.
    pub fn note(&self, backend: BackendId) -> u64 {
        self.affinity.0.lock().note(self.hashes, backend)
    }
}

/// The result of a search for the prefixes of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixChoice {
    /// This backend has served one of them, and may be chosen.
    Hit(BackendId),
    /// Backends have served them, but all of these are too busy.
    OverBound,
    /// No backend that may be used has served any of them.
    Unknown,
}

impl PrefixChoice {
    /// The result for the metrics.
    #[must_use]
    pub fn result(self) -> AffinityResult {
        match self {
            PrefixChoice::Hit(_) => AffinityResult::Hit,
            PrefixChoice::OverBound => AffinityResult::OverBound,
            PrefixChoice::Unknown => AffinityResult::Unknown,
        }
    }
}

/// The backends that have served a prefix, the latest first; 0 where there are fewer.
type PrefixHolders = [BackendId; HOLDERS_MAX];

/// Prefixes and the backends that have served them, bounded.
struct PrefixTable(LruCache<u64, PrefixHolders>);

impl Default for PrefixTable {
    fn default() -> PrefixTable {
        // `note` keeps the bound: a cache that is created with it takes all its memory at once.
        PrefixTable(LruCache::unbounded())
    }
}

impl PrefixTable {
    /// Finds a backend that has served the longest prefix, or else the next shorter one. Of several
    /// it is the one with the fewest running requests. It must have fewer than `bound` returns for
    /// the number of steps by which the prefix is shorter than the longest. `running_of`: the
    /// number of requests with a backend; `None` if it may not be used.
    fn choose(
        &mut self,
        prefixes: PromptPrefixes,
        running_of: impl Fn(BackendId) -> Option<usize>,
        bound: impl Fn(usize) -> usize,
    ) -> PrefixChoice {
        let mut choice = PrefixChoice::Unknown;
        let longest_first = prefixes.0.iter().rev().filter(|prefix| **prefix != 0);
        for (shorter, prefix) in longest_first.enumerate() {
            let Some(holders) = self.0.get(prefix) else { continue };
            let usable = holders.iter().filter(|id| **id != 0);
            let usable = usable.filter_map(|id| Some((running_of(*id)?, *id)));
            match usable.min_by_key(|(running, _)| *running) {
                Some((running, id)) if running < bound(shorter) => return PrefixChoice::Hit(id),
                Some(_) => choice = PrefixChoice::OverBound,
                None => {}
            }
        }
        choice
    }

    fn note(&mut self, prefixes: PromptPrefixes, backend: BackendId) -> u64 {
        let mut forgotten = 0;
        for prefix in prefixes.0.into_iter().filter(|prefix| *prefix != 0) {
            let holders = self.0.get_or_insert_mut(prefix, PrefixHolders::default);
            let last = holders.iter().position(|id| *id == backend).unwrap_or(HOLDERS_MAX - 1);
            holders[..=last].rotate_right(1);
            holders[0] = backend;
            if self.0.len() > PREFIXES_MAX {
                self.0.pop_lru();
                forgotten += 1;
            }
        }
        forgotten
    }
}

#[cfg(test)]
mod tests;

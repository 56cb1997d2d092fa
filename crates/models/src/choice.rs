//! Which backend gets a request: the least loaded one, or one that has the beginning of its prompt.
//!
//! A backend that is unreachable or fails three requests in a row is left out: for one second the
//! first time, then twice as long each time up to `OUT_MAX_MS`. After that the next request tries
//! it. If all backends are left out, the one that returns first is used, so a wrong guess never
//! costs a client its request. There are no active health checks. Who has the beginning of a
//! prompt: `affinity.rs`.

use crate::affinity::{PrefixChoice, PrefixedPrompt};
use evenkeel_engine::{BackendId, SharedBackend};

/// The number of failures in a row after which a reachable backend is left out.
const FAILURES_MAX: u32 = 3;

/// How long a backend is left out the first time, and the maximum, in milliseconds.
const OUT_FIRST_MS: u64 = 1_000;
const OUT_MAX_MS: u64 = 30_000;

const _: () = assert!(OUT_FIRST_MS <= OUT_MAX_MS, "the first time is bounded too");

/// What is known of the failures of one backend. Times are in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackendHealth {
    failures: u32,
    /// The time until which the backend is left out, and the length of that period.
    out: Option<(u64, u64)>,
}

impl BackendHealth {
    /// The backend has answered: forgets its failures.
    pub fn note_success(&mut self) {
        *self = BackendHealth::default();
    }

    /// The backend has failed a request. `unreachable`: no connection could be made.
    pub fn note_failure(&mut self, unreachable: bool, now: u64) {
        self.failures += 1;
        if unreachable || self.failures >= FAILURES_MAX {
            // Failures while the backend is left out prolong nothing.
            if self.out.is_none_or(|(until, _)| now >= until) {
                let long = self.out.map_or(OUT_FIRST_MS, |(_, long)| (2 * long).min(OUT_MAX_MS));
                self.out = Some((now + long, long));
            }
        }
    }

    /// Zero if the backend may be used, else the time until which it is left out.
    #[must_use]
    pub fn out_until(&self, now: u64) -> u64 {
        self.out.map_or(0, |(until, _)| if now < until { until } else { 0 })
    }
}

/// The state of a backend that may be chosen.
#[derive(Clone, Copy, Debug)]
pub struct BackendLoad {
    id: BackendId,
    out_until: u64,
    running: usize,
    is_full: bool,
}

impl BackendLoad {
    /// The state of `backend`, with the requests of all threads. `out_until`: zero if it may be
    /// used, else the time until which it is left out.
    #[must_use]
    pub fn of(backend: &SharedBackend, out_until: u64) -> BackendLoad {
        let running = backend.running();
        BackendLoad { id: backend.id(), out_until, running, is_full: running >= backend.room() }
    }
}

impl PrefixedPrompt<'_> {
    /// Chooses one of `count` backends for the prompt by its prefixes and by load. Returns its
    /// place, and the result for the prefixes; `None` if there is no backend to choose from.
    /// `first`: the place to prefer among equals. `load_of`: `None` if the backend at this place
    /// must not be chosen.
    pub fn choose_backend(
        &self,
        count: usize,
        first: usize,
        load_of: impl Fn(usize) -> Option<BackendLoad>,
    ) -> Option<(usize, PrefixChoice)> {
        let places = (first..first + count).map(|place| place % count);
        let loads = places.filter_map(|place| Some((place, load_of(place)?)));
        let (least, load) =
            loads.min_by_key(|(_, load)| (load.out_until, load.is_full, load.running))?;
        let usable = |id: BackendId| {
            let places = (0..count).filter_map(|place| Some((place, load_of(place)?)));
            let mut usable = places.filter(|(_, load)| load.out_until == 0 && !load.is_full);
            usable.find(|(_, load)| load.id == id)
        };
        let running_of = |id| usable(id).map(|(_, load)| load.running);
        let choice = self.choose(load.running, running_of);
        let place = match choice {
            PrefixChoice::Hit(id) => usable(id).map_or(least, |(place, _)| place),
            PrefixChoice::OverBound | PrefixChoice::Unknown => least,
        };
        Some((place, choice))
    }
}

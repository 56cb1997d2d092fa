//! The backends of a door, shared by all its threads: the number of requests at each, and its
//! reports about its own queue.
//!
//! An inference engine lets requests wait inside, first come first served, if it is sent more than
//! it can run. While it reports that, the slots of the admission queue are bounded to the number
//! that the backends run ([`EngineBound`]), and no backend is sent more than it runs. So requests
//! wait in fair order again. The reports are fetched in `evenkeel/src/run/engine_pages.rs`; a
//! backend is chosen in `models/src/choice.rs`.

use arc_swap::ArcSwap;
use evenkeel_config::settings::{
    BackendAddress, BackendTls, CostSource, EngineMetricsSetting, ProxySettings,
};
use evenkeel_core::queue::admission::engine_bound::{EngineBound, bound_of_all};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// The number of a backend in this process, from 1. It is never reused.
pub type BackendId = u32;

/// One backend, shared by all threads of the process.
pub struct SharedBackend {
    at: BackendAddress,
    id: BackendId,
    running: AtomicUsize,
    /// The maximum number of requests to send to it at once; `usize::MAX` if it is not known.
    room: AtomicUsize,
}

impl SharedBackend {
    /// The number of the backend in this process.
    pub fn id(&self) -> BackendId {
        self.id
    }

    /// The number of requests that hold a [`BackendOccupation`].
    pub fn running(&self) -> usize {
        self.running.load(Relaxed)
    }

    /// The maximum number of requests to send to the backend at once, because more of them would
    /// wait inside; `usize::MAX` if it is not known.
    pub fn room(&self) -> usize {
        self.room.load(Relaxed)
    }

    /// Sets the maximum number of requests to send to the backend at once.
    pub fn set_room(&self, room: usize) {
        self.room.store(room, Relaxed);
    }

    /// Counts a request with the backend until the result is dropped.
    pub fn occupy(self: &Arc<SharedBackend>) -> BackendOccupation {
        self.running.fetch_add(1, Relaxed);
        BackendOccupation(Arc::clone(self))
    }
}

/// The place of one request at a backend, given back when dropped.
pub struct BackendOccupation(Arc<SharedBackend>);

impl Drop for BackendOccupation {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
    }
}

/// A report of an inference engine about its own queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineReport {
    /// The number of requests that it works on.
    pub running: usize,
    /// The number of requests that wait inside.
    pub waiting: usize,
    /// The used part of its KV cache, from 0 to 1, if it reports that.
    pub cache_used: Option<f64>,
}

/// The state of the queue inside one backend.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendReport {
    /// The address of the backend.
    pub backend: BackendAddress,
    /// Its latest report; `None` if it sends none.
    pub report: Option<EngineReport>,
    /// The maximum number of requests to send to it at once, because others waited inside.
    pub room: Option<usize>,
}

/// The backends of a door.
#[derive(Default)]
pub struct SharedBackends {
    known: Mutex<Vec<Weak<SharedBackend>>>,
    ids: AtomicU32,
    /// The bounds of the backends that have been asked for reports.
    bounds: Mutex<Vec<(Arc<SharedBackend>, EngineBound)>>,
    pub(crate) reports: ArcSwap<Vec<BackendReport>>,
}

impl SharedBackends {
    /// The backend at this address. Its state exists while any reference to it does.
    pub fn at(&self, at: &BackendAddress) -> Arc<SharedBackend> {
        let mut known = self.known.lock();
        known.retain(|backend| backend.strong_count() > 0);
        let found = known.iter().filter_map(Weak::upgrade).find(|backend| backend.at == *at);
        found.unwrap_or_else(|| {
            let made = Arc::new(SharedBackend {
                at: at.clone(),
                id: self.ids.fetch_add(1, Relaxed) + 1,
                running: AtomicUsize::new(0),
                room: AtomicUsize::new(usize::MAX),
            });
            known.push(Arc::downgrade(&made));
            made
        })
    }

    /// Handles a round of reports of all backends. `limit`: the number of slots without any bound.
    /// Returns the bound of the slots of all backends together.
    pub(crate) fn handle_reports(
        &self,
        reports: &[(BackendAddress, Option<EngineReport>)],
        limit: usize,
    ) -> Option<usize> {
        // Lock order: `bounds`, then `known`.
        let mut bounds = self.bounds.lock();
        let mut next = Vec::new();
        for (at, report) in reports {
            let before = bounds.iter().find(|(backend, _)| backend.at == *at);
            let (backend, mut bound) =
                before.cloned().unwrap_or_else(|| (self.at(at), EngineBound::default()));
            match report {
                Some(report) => bound.handle_report(report.running, report.waiting, limit),
                None => bound.handle_silence(),
            }
            next.push((backend, bound));
        }
        let gone = bounds.iter().filter(|(old, _)| next.iter().all(|(one, _)| one.id != old.id));
        gone.for_each(|(backend, _)| backend.set_room(usize::MAX));
        let shown = next.iter().zip(reports).map(|((backend, bound), (at, report))| {
            backend.set_room(bound.slots().unwrap_or(usize::MAX));
            BackendReport { backend: at.clone(), report: *report, room: bound.slots() }
        });
        self.reports.store(Arc::new(shown.collect()));
        *bounds = next;
        bound_of_all(bounds.iter().map(|(_, bound)| bound.slots()))
    }
}

/// The pages with metrics that the backends are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedPages {
    /// The backends.
    pub backends: Vec<BackendAddress>,
    /// How they are authenticated.
    pub tls: BackendTls,
    /// The path of the page.
    pub path: String,
    /// Whether only backends in private networks are asked, because no path is configured.
    pub is_private_only: bool,
}

impl WatchedPages {
    /// The pages that these settings ask for.
    pub(crate) fn of(proxy: &ProxySettings) -> Option<WatchedPages> {
        let (path, is_private_only) = match &proxy.queue.engine_metrics {
            EngineMetricsSetting::Off => return None,
            EngineMetricsSetting::Auto if proxy.cost != CostSource::Tokens => return None,
            EngineMetricsSetting::Auto => ("/metrics", true),
            EngineMetricsSetting::Path(path) => (&**path, false),
        };
        Some(WatchedPages {
            backends: proxy.backends.clone(),
            tls: proxy.backend_tls.clone(),
            path: path.to_owned(),
            is_private_only,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(running: usize, waiting: usize) -> Option<EngineReport> {
        Some(EngineReport { running, waiting, cache_used: None })
    }

    #[test]
    fn a_backend_is_the_same_for_all_threads_and_counts_their_requests() {
        let backends = SharedBackends::default();
        let at = |place: &str| BackendAddress::http(place);
        let (one, again) = (backends.at(&at("a:1")), backends.at(&at("a:1")));
        assert!(Arc::ptr_eq(&one, &again));
        let (_held, freed) = (one.occupy(), again.occupy());
        assert_eq!(one.running(), 2);
        drop(freed);
        assert_eq!(one.running(), 1);
        let old = backends.at(&at("b:1")).id;
        assert_ne!(backends.at(&at("b:1")).id, old, "it was gone in between");
    }

    #[test]
    fn the_slots_are_bounded_only_if_all_backends_are() {
        let backends = SharedBackends::default();
        let [a, b] = ["a:1", "b:1"].map(BackendAddress::http);
        let round =
            |one, other| backends.handle_reports(&[(a.clone(), one), (b.clone(), other)], 32);
        round(report(8, 3), report(2, 0));
        let mut bound = None;
        for _ in 0..3 {
            assert_eq!(bound, None);
            bound = round(report(8, 3), report(20, 5));
        }
        assert_eq!((backends.at(&a).room(), backends.at(&b).room()), (8, usize::MAX));
        assert_eq!(round(report(8, 3), report(20, 5)), Some(28));
        let shown = backends.reports.load_full();
        assert_eq!((shown[1].room, shown[1].report), (Some(20), report(20, 5)));
    }

    #[test]
    fn a_backend_that_is_no_longer_asked_is_not_bounded() {
        let backends = SharedBackends::default();
        let at = BackendAddress::http("a:1");
        let backend = backends.at(&at);
        let full = [(at.clone(), report(4, 3))];
        (0..3).for_each(|_| _ = backends.handle_reports(&full, 32));
        assert_eq!(backends.handle_reports(&full, 32), Some(4));
        assert_eq!(backend.room(), 4);
        assert_eq!(backends.handle_reports(&[], 32), None);
        assert_eq!((backend.room(), backends.reports.load().len()), (usize::MAX, 0));
    }
}

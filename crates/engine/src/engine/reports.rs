//! The part of the engine that handles the reports of backends about their own queues.
//!
//! The effects of a report: `backends`. Reports are fetched in `evenkeel/src/run/engine_pages.rs`.

use super::Engine;
use crate::backends::{BackendReport, EngineReport, SharedBackends, WatchedPages};
use evenkeel_config::settings::BackendAddress;
use std::sync::Arc;

impl Engine {
    /// The backends, shared by all threads.
    pub fn backends(&self) -> &SharedBackends {
        &self.backends
    }

    /// The pages in which the backends may report their own queues; `None` if they are not asked.
    /// Otherwise call [`Engine::handle_backend_reports`] about once a second.
    pub fn watched_pages(&self) -> Option<WatchedPages> {
        WatchedPages::of(&self.given.lock().proxy)
    }

    /// Handles a round of reports, one for each backend; `None`: the backend sends none. Without
    /// backends, the bounds of earlier reports end.
    pub fn handle_backend_reports(&self, reports: &[(BackendAddress, Option<EngineReport>)]) {
        let bound = self.backends.handle_reports(reports, self.gate.unbounded_slots());
        self.gate.set_bound(bound, self.shards.clock.now());
    }

    /// The latest reports of the backends; empty if they are not asked.
    pub fn backend_reports(&self) -> Arc<Vec<BackendReport>> {
        self.backends.reports.load_full()
    }
}

//! One thread of the proxy: what its connections share ([`ThreadContext`]), and above that its
//! backends, the engine and the store, which requests are decided with. Threads share only the
//! engine and [`ProxyShared`].
//!
//! How threads start and stop: `lib.rs`. How connections are accepted: `accept.rs`; timeouts:
//! `sweep.rs`; what is done with a request: `exchange.rs`; which backend is asked: `backends.rs`.

use super::backends::{UpstreamPool, UpstreamTls};
use super::context::ThreadContext;
use super::context::settings::ThreadSettings;
use super::front::write_batch::SpareBuffer;
use super::room::ProxyShared;
use evenkeel_config::settings::ProxySettings;
use evenkeel_engine::EngineLane;
use evenkeel_runtime::clock::Clock;
use evenkeel_store::redis::StoreLane;
use evenkeel_telemetry::Watch;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// A snapshot of the settings with the backends; replaced as a whole on reload.
pub(super) struct ProxyConfigSnapshot {
    pub(super) backends: UpstreamPool,
    pub(super) settings: Rc<ThreadSettings>,
}

/// The state of one thread.
pub(super) struct ProxyWorker {
    pub(super) thread: Rc<ThreadContext>,
    pub(super) lane: EngineLane,
    /// The store that counts for all instances, if there is one.
    pub(super) store: Option<Rc<StoreLane>>,
    site: RefCell<Rc<ProxyConfigSnapshot>>,
    /// The write buffer that connections share, while none of them uses it.
    pub(super) gathering: SpareBuffer,
}

impl ProxyWorker {
    /// Creates the state of a thread that serves.
    pub(super) fn new(
        (settings, secured): (&ProxySettings, &UpstreamTls),
        (lane, store): (EngineLane, Option<Rc<StoreLane>>),
        clock: Clock,
        shared: Arc<ProxyShared>,
        watch: Arc<Watch>,
    ) -> Rc<ProxyWorker> {
        let backends = UpstreamPool::new(&settings.backends, secured, None);
        let settings = Rc::new(ThreadSettings::new(settings));
        Rc::new(ProxyWorker {
            thread: ThreadContext::new(Rc::clone(&settings), clock, shared, watch),
            lane,
            store,
            site: RefCell::new(Rc::new(ProxyConfigSnapshot { backends, settings })),
            gathering: SpareBuffer::default(),
        })
    }

    /// Returns the current settings and backends.
    pub(super) fn site(&self) -> Rc<ProxyConfigSnapshot> {
        Rc::clone(&self.site.borrow())
    }

    /// Applies changed settings to requests that begin from now on.
    pub(super) fn reload(&self, settings: &ProxySettings, secured: &UpstreamTls) {
        let before = self.site();
        let backends = UpstreamPool::new(&settings.backends, secured, Some(&before.backends));
        let settings = Rc::new(ThreadSettings::new(settings));
        self.thread.replace_settings(Rc::clone(&settings));
        *self.site.borrow_mut() = Rc::new(ProxyConfigSnapshot { backends, settings });
    }

    /// Accepts no more connections, and lets every connection end after its current request.
    pub(super) fn drain(&self) {
        self.thread.drain();
    }

    /// Prepares for the end of the thread: its tasks are about to be dropped, so nothing new may
    /// begin. Returns the number of connections that are still open.
    pub(super) fn stop(&self) -> usize {
        self.site().backends.retire();
        self.thread.stop()
    }

    /// Waits until no connection is open and no exchange runs.
    pub(super) async fn empty(&self) {
        self.thread.empty().await;
    }
}

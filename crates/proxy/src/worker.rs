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
use arc_swap::ArcSwap;
use evenkeel_config::settings::ProxySettings;
use evenkeel_engine::{EngineLane, SharedBackends};
use evenkeel_identity::waiting_room::SharedWaitingRoom;
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::threads::ServerWorker;
use evenkeel_store::redis::StoreLane;
use evenkeel_telemetry::Watch;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// The settings that all threads follow.
pub(super) struct ProxyInstructions {
    pub(super) settings: ProxySettings,
    pub(super) secured: UpstreamTls,
    pub(super) waiting_room: SharedWaitingRoom,
}

/// A snapshot of the settings with the backends; replaced as a whole on reload.
pub(super) struct ProxyConfigSnapshot {
    pub(super) backends: UpstreamPool,
    pub(super) settings: Rc<ThreadSettings>,
}

impl ProxyConfigSnapshot {
    /// Takes a thread's part of the instructions. Backends that exist in `before` keep their state.
    fn of(
        of: &ProxyInstructions,
        before: Option<&UpstreamPool>,
        shared: &SharedBackends,
    ) -> Rc<ProxyConfigSnapshot> {
        Rc::new(ProxyConfigSnapshot {
            backends: UpstreamPool::new(&of.settings.backends, &of.secured, before, shared),
            settings: Rc::new(ThreadSettings::new(&of.settings, &of.waiting_room)),
        })
    }
}

pub(super) struct ProxyWorker {
    pub(super) thread: Rc<ThreadContext>,
    pub(super) lane: EngineLane,
    /// The store that counts for all instances, if there is one.
    pub(super) store: Option<Rc<StoreLane>>,
    instructions: Arc<ArcSwap<ProxyInstructions>>,
    site: RefCell<Rc<ProxyConfigSnapshot>>,
    /// The write buffer that connections share, while none of them uses it.
    pub(super) gathering: SpareBuffer,
}

impl ProxyWorker {
    pub(super) fn new(
        instructions: Arc<ArcSwap<ProxyInstructions>>,
        (lane, store): (EngineLane, Option<Rc<StoreLane>>),
        clock: Clock,
        shared: Arc<ProxyShared>,
        watch: Arc<Watch>,
    ) -> Rc<ProxyWorker> {
        let site = ProxyConfigSnapshot::of(&instructions.load(), None, lane.backends());
        Rc::new(ProxyWorker {
            thread: ThreadContext::new(Rc::clone(&site.settings), clock, shared, watch),
            lane,
            store,
            instructions,
            site: RefCell::new(site),
            gathering: SpareBuffer::default(),
        })
    }

    pub(super) fn site(&self) -> Rc<ProxyConfigSnapshot> {
        Rc::clone(&self.site.borrow())
    }

    /// Prepares for the end of the thread: its tasks are about to be dropped, so nothing new may
    /// begin. Returns the number of connections that are still open.
    pub(super) fn stop(&self) -> usize {
        self.site().backends.retire();
        self.thread.stop()
    }
}

impl ServerWorker for ProxyWorker {
    fn reload(&self) {
        let before = self.site();
        let (instructions, shared) = (self.instructions.load(), self.lane.backends());
        let site = ProxyConfigSnapshot::of(&instructions, Some(&before.backends), shared);
        self.thread.replace_settings(Rc::clone(&site.settings));
        *self.site.borrow_mut() = site;
    }

    fn drain(&self) {
        self.thread.drain();
    }

    fn empty(&self) -> impl Future<Output = ()> {
        self.thread.empty()
    }
}

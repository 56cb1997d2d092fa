//! The state of a thread for its connections and their requests: its settings, its coarse
//! time, its metrics, its room, and the lists of what is open.
//!
//! This is the state that bodies and connections to backends hold a reference to. The backends and
//! the engine are above it (`worker.rs`). Which room a connection takes: `context/make_room.rs`.
//! Streams that wait for their client: `context/parked.rs`. The heads of streams:
//! `context/heads.rs`.

pub(super) mod heads;
mod make_room;
pub(super) mod parked;
pub(super) mod settings;

use super::failure::UpstreamFailure;
use super::link::ClientLink;
use super::link::list::LinkList;
use super::outbox::Outbox;
use super::room::{ProxyShared, ThreadRoom};
use evenkeel_core::units::Time;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::failure::BackendFailure;
use settings::ThreadSettings;
use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// The maximum number of exchanges without a client on a thread. Beyond it the connection to the
/// backend is closed at once; otherwise clients that connect and disconnect would pile up
/// connections without a bound.
const LINGERING_MAX: usize = 1024;

/// The state of one thread that its connections and requests share.
pub(super) struct ThreadContext {
    pub(super) clock: Clock,
    pub(super) watch: Arc<Watch>,
    settings: RefCell<Rc<ThreadSettings>>,
    pub(super) room: Rc<ThreadRoom>,
    pub(super) outbox: Rc<Outbox>,
    /// The engine's clock, as of the last sweep.
    now: Cell<Time>,
    pub(super) links: LinkList,
    pub(super) streams: LinkList,
    lingering: Cell<usize>,
    /// The number of streams that wait for their client: see `parked`.
    aside: Cell<usize>,
    /// The number of buffered bytes of requests' bodies.
    pub(super) kept: Cell<usize>,
    /// The number of bytes of answers that are read ahead of their clients.
    pub(super) ahead: Cell<usize>,
    /// The total size of the heads of running streams, in bytes.
    heads: Cell<usize>,
    draining: Cell<bool>,
    stopping: Cell<bool>,
}

impl ThreadContext {
    pub(super) fn new(
        settings: Rc<ThreadSettings>,
        clock: Clock,
        shared: Arc<ProxyShared>,
        watch: Arc<Watch>,
    ) -> Rc<ThreadContext> {
        Rc::new(ThreadContext {
            clock,
            watch,
            settings: RefCell::new(settings),
            room: ThreadRoom::new(shared),
            outbox: Rc::default(),
            now: Cell::new(clock.now()),
            links: LinkList::default(),
            streams: LinkList::default(),
            lingering: Cell::new(0),
            aside: Cell::new(0),
            kept: Cell::new(0),
            ahead: Cell::new(0),
            heads: Cell::new(0),
            draining: Cell::new(false),
            stopping: Cell::new(false),
        })
    }

    /// Borrows the current settings. They must not be replaced during the borrow.
    pub(super) fn settings(&self) -> Ref<'_, ThreadSettings> {
        Ref::map(self.settings.borrow(), |settings| &**settings)
    }

    /// Applies changed settings to what begins from now on.
    pub(super) fn replace_settings(&self, settings: Rc<ThreadSettings>) {
        *self.settings.borrow_mut() = settings;
    }

    /// Returns the coarse time, as of the last sweep.
    pub(super) fn time(&self) -> Time {
        self.now.get()
    }

    pub(super) fn now(&self) -> u64 {
        self.now.get().0 / 1_000_000
    }

    /// Reads the clock for the coarse time.
    pub(super) fn update_time(&self) {
        self.now.set(self.clock.now());
    }

    /// Whether connections end after their current request.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Accepts no more connections, and lets every connection end after its current request.
    pub(super) fn drain(&self) {
        self.draining.set(true);
        for link in &*self.links.all() {
            link.task.wake();
        }
    }

    /// Prepares for the end of the thread: its tasks are about to be dropped, so no exchange may
    /// continue without its client. Returns the number of connections that are still open.
    pub(super) fn stop(&self) -> usize {
        self.stopping.set(true);
        self.outbox.send();
        self.links.len()
    }

    /// Waits until no connection is open and no exchange runs.
    pub(super) async fn empty(&self) {
        loop {
            let freed = self.room.freed.notified();
            if self.links.is_empty() && self.lingering.get() == 0 {
                return;
            }
            freed.await;
        }
    }

    /// Returns a place for an exchange without a client, or `None` if there are too many or the
    /// thread is about to end.
    pub(super) fn linger(self: &Rc<ThreadContext>) -> Option<LingerGuard> {
        let most = match self.settings.borrow().bounds.connections {
            0 => LINGERING_MAX,
            bound => LINGERING_MAX.min(bound.div_ceil(4)),
        };
        if self.stopping.get() || self.lingering.get() >= most {
            return None;
        }
        self.lingering.set(self.lingering.get() + 1);
        Some(LingerGuard(Rc::clone(self)))
    }

    /// Counts and logs that a backend failed the request on `link`.
    pub(super) fn record_failure(&self, link: &ClientLink, name: &str, failure: &UpstreamFailure) {
        let error = failure.error.as_deref();
        let (fault, client) = (failure.fault, link.peer.client());
        let failure = BackendFailure { fault, backend: name, client, error };
        self.watch.failed(&failure, self.time());
    }
}

/// The place of an exchange without a client, given back when dropped.
pub(super) struct LingerGuard(Rc<ThreadContext>);

impl Drop for LingerGuard {
    fn drop(&mut self) {
        self.0.lingering.set(self.0.lingering.get() - 1);
        self.0.room.freed.notify_waiters();
    }
}

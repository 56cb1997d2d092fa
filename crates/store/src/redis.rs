//! One count for all instances, in Redis or Valkey.
//!
//! One script counts all counters of a request in one round trip, on the server's own clock, so
//! several instances together never grant more than the limit (`script`, `count.lua`). Each thread
//! has a `lane` of its own, with connections that never leave the thread (`link`), a map of the
//! servers' keys (`route`), and access to the hits and charges that still have to be reported to
//! the store (`owed`). A request waits for the store no longer than the deadline. After that, and
//! while the store is unreachable, this process decides by its own counts and reports to the store
//! later. The counts of other instances are learned from each answer, so that these decisions
//! include them.

mod account;
mod background;
mod lane;
mod link;
mod name;
mod pending_hits;
mod route;
mod script;

pub use account::StoreAccount;
use evenkeel_config::settings::store::{StoreMode, StoreSettings as Settings};
use evenkeel_engine::windows::Counters;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::store::StoreCounts;
pub use lane::accounts::ChargeOutbox;
use lane::shared::SharedPending;
pub use lane::{StoreLane, StoreUnansweredError};
pub use name::KeyNaming;
use pending_hits::PendingHits;
pub use script::CounterAsk;
use std::rc::Rc;
use std::sync::Arc;

/// The state of a store that all lanes share. Its locks (`owed`, `outbox`) are held only for the
/// time of one change, never across an `await` and never both at once.
pub struct RedisStore {
    settings: Settings,
    counts: Arc<StoreCounts>,
    /// The counts of this process, and the latest known counts of the store.
    counters: Arc<Counters>,
    /// The hits of counters that are not reported to the store yet.
    owed: SharedPending<PendingHits>,
    /// The charges of buckets that are not reported to the store yet.
    outbox: ChargeOutbox,
    clock: Clock,
}

impl RedisStore {
    /// Makes a store without connections. Hits that this process counts itself go into `counters`.
    #[must_use]
    pub fn new(
        settings: &Settings,
        counters: Arc<Counters>,
        clock: Clock,
        watch: &Watch,
    ) -> Arc<RedisStore> {
        let counts = Arc::new(StoreCounts::new(watch.registry()));
        watch.store.describe(
            settings.place.layout.word(),
            settings.mode.to_string(),
            settings.place.servers.iter().map(|server| server.end.to_string()).collect(),
            &counts,
        );
        let (owed, outbox) = (SharedPending::default(), ChargeOutbox::new(settings.owed_max));
        Arc::new(RedisStore { settings: settings.clone(), counts, counters, owed, outbox, clock })
    }

    /// Opens a lane for the current thread. Its tasks run on the thread's runtime.
    #[must_use]
    pub fn lane(self: &Arc<RedisStore>) -> Rc<StoreLane> {
        StoreLane::open(Arc::clone(self))
    }

    /// Queues hits that have happened and were counted here. The next lane that can reports them to
    /// the store. Hits that find no room are lost to the store, and counted.
    pub fn report(&self, ask: &CounterAsk) {
        self.owe(ask, ask.hit.hits.into());
    }

    /// Queues a number of hits; a negative number gives hits back.
    fn owe(&self, ask: &CounterAsk, hits: i64) {
        if hits != 0 && !self.owed.change(|owed| owed.add(ask, hits, self.settings.owed_max)) {
            self.counts.lost.increment(1);
        }
    }

    /// The rules by which keys in the store are named.
    #[must_use]
    pub fn naming(&self) -> KeyNaming {
        let prefix = self.settings.prefix.clone();
        KeyNaming { prefix, compatible: self.settings.compatible_keys }
    }

    /// The longest time for which compatible keys are kept beyond their window.
    #[must_use]
    pub fn jitter(&self) -> std::time::Duration {
        self.settings.jitter
    }

    /// Whether any connection is usable.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.counts.is_good()
    }

    /// Whether instances decide by their own counts and only report to the store.
    #[must_use]
    pub fn is_batched(&self) -> bool {
        self.settings.mode == StoreMode::Batched
    }
}

//! One count for all instances, in Redis or Valkey.
//!
//! A request's counters are counted by one script in one round trip, on the server's own clock, so
//! several instances never grant more than the limit together (`script`, `count.lua`). Each thread
//! has a `lane` of its own: connections that never leave it (`link`), who has what (`route`), and
//! what the store has yet to be told (`owed`). A request waits no longer than the deadline; then,
//! and while the store is away, what is known here decides, and the store is told when it is back.
//! What others have counted is noted here with each answer, so that it is known then.

mod account;
mod lane;
mod link;
mod name;
mod owed;
mod route;
mod script;
mod tend;

use crate::clock::Clock;
use crate::config::settings::store::{Store as Settings, StoreMode};
use crate::engine::windows::Counters;
use crate::watch::Watch;
use crate::watch::counts::store::StoreCounts;
pub use account::Account;
pub use lane::accounts::Outbox;
use lane::shared::Shared;
pub use lane::{Lane, Unanswered};
pub use name::Naming;
use owed::Owed;
pub use script::Ask;
use std::rc::Rc;
use std::sync::Arc;

/// What all lanes share.
pub struct Store {
    settings: Settings,
    counts: Arc<StoreCounts>,
    /// What was counted here, and what is known of the store's count.
    counters: Arc<Counters>,
    /// What it is owed of counters,
    owed: Shared<Owed>,
    /// and of buckets.
    outbox: Outbox,
    clock: Clock,
}

impl Store {
    /// A store that nothing is connected to. What is counted here is counted in `counters`.
    #[must_use]
    pub fn new(
        settings: &Settings,
        counters: Arc<Counters>,
        clock: Clock,
        watch: &Watch,
    ) -> Arc<Store> {
        let counts = Arc::new(StoreCounts::new(watch.registry()));
        watch.store.describe(
            settings.place.layout.word(),
            settings.mode.to_string(),
            settings.place.servers.iter().map(|server| server.end.to_string()).collect(),
            &counts,
        );
        let (owed, outbox) = (Shared::default(), Outbox::new(settings.owed_max));
        Arc::new(Store { settings: settings.clone(), counts, counters, owed, outbox, clock })
    }

    /// A lane for the thread that asks, whose tasks run on its runtime.
    #[must_use]
    pub fn lane(self: &Arc<Store>) -> Rc<Lane> {
        Lane::open(Arc::clone(self))
    }

    /// These hits have happened and were counted here: the store is told by whatever lane comes
    /// first. What finds no room is lost to it.
    pub fn report(&self, ask: &Ask) {
        self.owe(ask, ask.hit.hits.into());
    }

    /// The same of so many; below zero they are given back.
    fn owe(&self, ask: &Ask, hits: i64) {
        if hits != 0 && !self.owed.change(|owed| owed.add(ask, hits, self.settings.owed_max)) {
            self.counts.lost.increment(1);
        }
    }

    /// How counters are called.
    #[must_use]
    pub fn naming(&self) -> Naming {
        let prefix = self.settings.prefix.clone();
        Naming { prefix, compatible: self.settings.compatible_keys }
    }

    /// How long compatible keys are kept beyond their window at most.
    #[must_use]
    pub fn jitter(&self) -> std::time::Duration {
        self.settings.jitter
    }

    /// Whether any connection is good.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.counts.is_good()
    }

    /// Whether each instance decides by what it knows.
    #[must_use]
    pub fn is_batched(&self) -> bool {
        self.settings.mode == StoreMode::Batched
    }
}

//! The task that looks up the names of clients, and the transfer of a debt when a name becomes
//! known.
//!
//! The lookup itself is in `identity::lookup`. Names of requests: `host_names`.

use crate::engine::Engine;
use crate::host_names::{ClientAttributes, NameLookups};
use evenkeel_core::classify;
use evenkeel_core::limit::KeyPart;
use evenkeel_identity::hosts::HostPolicy;
use evenkeel_identity::lookup;
use std::net::IpAddr;
use std::sync::Arc;

impl Engine {
    /// The task that looks up the names of clients. The caller runs it beside its other tasks.
    /// `None` if no setting needs names, or if the task was taken already.
    pub fn lookups(self: &Arc<Engine>) -> Option<impl Future<Output = ()> + Send + 'static> {
        let NameLookups { hosts, wanted } = self.lookups.lock().take()?;
        let (engine, clock) = (Arc::downgrade(self), self.shards.clock);
        let told = move |client, known| {
            if let Some(engine) = engine.upgrade() {
                engine.merge_group_debt(client, known);
            }
        };
        Some(lookup::serve(Arc::downgrade(&hosts), wanted, clock, told))
    }

    /// Moves the debt of a client's address to the group that the client counts as. Called when the
    /// group becomes known, and again at the end of each request that may have begun before. Locks
    /// only the buckets concerned.
    pub(crate) fn merge_group_debt(&self, client: IpAddr, known: HostPolicy) {
        if known == HostPolicy::default() {
            return;
        }
        let rules = self.shards.rules();
        let Some(group) = rules.hosts.as_ref().and_then(|hosts| hosts.group(known)) else { return };
        let now = self.shards.clock.now();
        for (index, limit) in rules.limiter.limits().iter().enumerate() {
            // For a key of several parts the other parts are unknown here.
            if *limit.by == [KeyPart::Host] {
                let hash =
                    |group| classify::hash(limit, &rules.seed, &ClientAttributes(client, group));
                rules.limiter.merge(index, hash(None), hash(Some(group)), now);
            }
        }
    }
}

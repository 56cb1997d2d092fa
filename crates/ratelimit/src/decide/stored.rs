//! A request counted in a store: it is sent over the lane of its thread, then answered.
//!
//! The rules and the answer are the same as for a request that is decided in memory. Between the
//! two, the request waits for the store, at most for the store's deadline. For the case that the
//! store does not answer, see `store::redis`.

use super::matching::{self, LimitMatch};
use super::{DecisionError, RatelimitDecider};
use crate::rules::RuleLimit;
use crate::wire::view::RequestView;
use crate::wire::{ProtoPackage, Response};
use evenkeel_core::windows::{Hit, WindowAlgorithm, WindowLength};
use evenkeel_store::redis::{CounterAsk, RedisStore, StoreLane};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

impl RatelimitDecider {
    /// Decides a request and counts it in the store of `lane`.
    ///
    /// # Errors
    /// [`DecisionError`]; then either no hit was counted or only some of them were.
    pub async fn ask(
        &self,
        request: &RequestView<'_>,
        package: ProtoPackage,
        lane: &Rc<StoreLane>,
    ) -> Result<Response, DecisionError> {
        let now = self.now();
        let rules = self.rules.load_full();
        let mut met = self.met_by(rules.as_deref(), request, package)?;
        let settings = self.settings.load_full();
        let domain = self.counter_domain(request.domain);
        let mut asks: Vec<CounterAsk> = Vec::with_capacity(met.len());
        for (limited, part) in matching::limits(&mut met, request) {
            let entries = request.entries(part);
            let hit = domain.hit(&limited, entries, matching::hits(request, part), now);
            asks.push(store_question(&lane.store, &limited, hit, (request.domain, entries)));
        }
        let time = match asks.is_empty() {
            true => now,
            false => lane.count(&mut asks, settings.policy, now).await.inspect_err(|_| {
                self.events.errors.fetch_add(1, Relaxed);
                self.events.store_errors.fetch_add(1, Relaxed);
            })?,
        };
        let hits: Vec<Hit> = asks.iter().map(|ask| ask.hit).collect();
        Ok(self.conclude((&met, &hits), request, package, &settings, time))
    }

    /// Reports to the store hits that already happened and were counted in memory.
    pub(super) fn report_to_store(
        &self,
        limited: &LimitMatch<'_>,
        hit: Hit,
        place: (&str, &[(&str, &str)]),
    ) {
        if let Some(store) = &self.store {
            let ask = store_question(store, limited, hit, place);
            store.report_hits(&ask, hit.hits.into());
        }
    }
}

/// Makes the question to the store about a limit of a domain and the entries that it counts.
fn store_question(
    store: &RedisStore,
    limited: &LimitMatch<'_>,
    hit: Hit,
    (domain, entries): (&str, &[(&str, &str)]),
) -> CounterAsk {
    let RuleLimit { length, algorithm, .. } = limited.limit;
    let name =
        store.naming.counter(domain, algorithm, length, hit.window, limited.counted(entries));
    let compatible = store.naming.compatible && algorithm == WindowAlgorithm::Fixed;
    CounterAsk {
        compatible: compatible.then(|| jittered(&name, store.settings.jitter)),
        name,
        hit,
        length,
        per_second: length == WindowLength::Seconds(1),
        known: 0,
        force: false,
        returned: false,
    }
}

/// How long a compatible key is kept after its window, in whole seconds below `jitter`. It depends
/// on the name only, so keys do not all expire at once and every instance computes the same time.
fn jittered(name: &str, jitter: Duration) -> Duration {
    match jitter.as_secs() {
        0 => Duration::ZERO,
        most => Duration::from_secs(u64::from(crc32fast::hash(name.as_bytes())) % most),
    }
}

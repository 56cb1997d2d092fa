//! A request counted in a store: it is sent over the lane of its thread, then answered.
//!
//! The rules and the answer are the same as for a request that is decided in memory. Between the
//! two, the request waits for the store, at most for the store's deadline. For the case that the
//! store does not answer, see `store::redis`.

use super::matching::{DescriptorMatch, LimitedDescriptor};
use super::{DecisionError, RatelimitDecider};
use crate::wire::view::RequestView;
use crate::wire::{ProtoPackage, Response};
use evenkeel_core::windows::{WindowAlgorithm, WindowLength};
use evenkeel_store::redis::{CounterAsk, StoreLane};
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
        let mut met = self.met_by(rules.as_deref(), request, package, now)?;
        let settings = self.settings.load_full();
        let mut asks: Vec<CounterAsk> = Vec::with_capacity(met.len());
        for met in &mut met {
            let DescriptorMatch::Limited(limited) = met else { continue };
            limited.hit_index = asks.len();
            asks.push(self.store_question(limited));
        }
        let time = match asks.is_empty() {
            true => now,
            false => lane.count(&mut asks, settings.policy, now).await.inspect_err(|_| {
                self.events.errors.fetch_add(1, Relaxed);
                self.events.store_errors.fetch_add(1, Relaxed);
            })?,
        };
        for met in &mut met {
            if let DescriptorMatch::Limited(limited) = met {
                limited.hit = asks[limited.hit_index].hit;
            }
        }
        Ok(self.conclude(&met, request, package, &settings, time))
    }

    /// Makes the question to the store about one limit. It takes the name out of `limited`, so it
    /// must be called only once for each.
    fn store_question(&self, limited: &mut LimitedDescriptor<'_>) -> CounterAsk {
        let name = limited.name.take().unwrap_or_default();
        let fixed = limited.hit.algorithm == WindowAlgorithm::Fixed;
        let store = self.store.as_ref().filter(|store| store.naming.compatible && fixed);
        CounterAsk {
            compatible: store.map(|store| jittered(&name, store.settings.jitter)),
            name,
            hit: limited.hit,
            length: limited.limit.length,
            per_second: limited.limit.length == WindowLength::Seconds(1),
            known: 0,
            force: false,
            returned: false,
        }
    }

    /// Reports to the store hits that already happened and were counted in memory.
    pub(super) fn report_to_store(&self, limited: &mut LimitedDescriptor<'_>) {
        if let Some(store) = &self.store {
            let ask = self.store_question(limited);
            store.report_hits(&ask, ask.hit.hits.into());
        }
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

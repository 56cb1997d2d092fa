//! A request counted in a store: it is sent over the lane of its thread, then answered.
//!
//! The rules and the answer are the same as for a request that is decided in memory. Between the
//! two, the request waits for the store, at most for the store's deadline. For the case that the
//! store does not answer, see `store::redis`.

use super::meet::{Limited, Met};
use super::{Decider, Package, Refusal};
use crate::wire::Response;
use crate::wire::view::View;
use evenkeel_core::windows::{Algorithm, Length};
use evenkeel_store::redis::{Ask, Lane};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

impl Decider {
    /// Decides a request and counts it in the store of `lane`.
    ///
    /// # Errors
    /// [`Refusal`]; then either no hit was counted or only some of them were.
    pub async fn ask(
        &self,
        request: &View<'_>,
        package: Package,
        lane: &Rc<Lane>,
    ) -> Result<Response, Refusal> {
        let now = self.now();
        let rules = self.rules.load_full();
        let mut met = self.met_by(rules.as_deref(), request, package, now)?;
        let settings = self.settings.load_full();
        let mut asks: Vec<Ask> = Vec::with_capacity(met.len());
        for met in &mut met {
            let Met::Limited(limited) = met else { continue };
            limited.place = asks.len();
            asks.push(self.ask_of(limited));
        }
        let time = match asks.is_empty() {
            true => now,
            false => lane.count(&mut asks, settings.policy, now).await.inspect_err(|_| {
                self.events.errors.fetch_add(1, Relaxed);
                self.events.store_errors.fetch_add(1, Relaxed);
            })?,
        };
        for met in &mut met {
            if let Met::Limited(limited) = met {
                limited.hit = asks[limited.place].hit;
            }
        }
        Ok(self.conclude(&met, request, package, &settings, time))
    }

    /// Makes the question to the store about one limit. It takes the name out of `limited`, so it
    /// must be called only once for each.
    fn ask_of(&self, limited: &mut Limited<'_>) -> Ask {
        let name = limited.name.take().unwrap_or_default();
        let fixed = limited.hit.algorithm == Algorithm::Fixed;
        let compatible = self.naming.as_ref().is_some_and(|naming| naming.compatible) && fixed;
        Ask {
            compatible: compatible.then(|| self.jittered(&name)),
            name,
            hit: limited.hit,
            length: limited.limit.length,
            per_second: limited.limit.length == Length::Seconds(1),
            known: 0,
            force: false,
            returned: false,
        }
    }

    /// Reports to the store hits that already happened and were counted in memory.
    pub(super) fn tell(&self, limited: &mut Limited<'_>) {
        if let Some(store) = &self.store {
            store.report(&self.ask_of(limited));
        }
    }

    /// How long a compatible key is kept after its window, in whole seconds below `jitter`. It
    /// depends on the name only, so keys do not all expire at once and every instance computes the
    /// same time.
    fn jittered(&self, name: &str) -> Duration {
        match self.jitter.as_secs() {
            0 => Duration::ZERO,
            most => Duration::from_secs(u64::from(crc32fast::hash(name.as_bytes())) % most),
        }
    }
}

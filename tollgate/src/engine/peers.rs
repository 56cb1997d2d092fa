//! The engine of requests among those that count together: what it notes of its charges, and what
//! it takes of others'.
//!
//! Hits are noted when a request is let in, CPU time when it has ended. Shares are of the CPUs of
//! all who live, as far as somebody says how many those are. The rest: `together`.

use super::together::{Spent, Together};
use super::{Books, Engine, Rules};
use crate::config::settings::Proxy;
use tollgate_core::bucket::Algorithm;
use tollgate_core::classify::Keys;
use tollgate_core::key::KeyHash;
use tollgate_core::limit::Unit;
use tollgate_core::replica::Shared;
use tollgate_core::units::Cost;

/// What changes shares by less than this part is not worth a new limiter.
const WORTHWHILE: f64 = 0.001;

impl Books {
    /// Notes what the limits in `unit` were charged for a request, where others are to be told.
    pub(super) fn spend(&mut self, rules: &Rules, keys: &Keys, unit: Unit, cost: Cost) {
        let Some(spent) = &mut self.spent else { return };
        for key in keys.as_slice() {
            let index = usize::from(key.limit);
            if rules.limiter.limits().get(index).is_some_and(|limit| limit.unit == unit) {
                spent.add(rules.marks.of(index), key.hash, cost);
            }
        }
    }
}

impl Together for Engine {
    fn share(&self) {
        self.lanes.iter().for_each(|lane| lane.lock().spent = Some(Spent::default()));
    }

    fn shared(&self) -> Vec<Shared> {
        let given = self.given.lock();
        self.rules.load().marks.shared(&given.0.limits, given.0.cpus)
    }

    fn spent(&self, each: &mut dyn FnMut(u64, KeyHash, Cost)) -> u64 {
        let taken = self.lanes.iter().filter_map(|lane| Some(lane.lock().spent.as_mut()?.take()));
        taken.map(|spent| spent.show(each)).sum()
    }

    fn hear(&self, fingerprint: u64, key: KeyHash, amount: Cost) {
        let (rules, now) = (self.rules.load(), self.clock.now());
        if let Some(index) = rules.marks.place(fingerprint) {
            rules.limiter.absorb(index, key, amount, now);
            self.elsewhere.add(fingerprint, key, amount, rules.names_max, now);
        }
    }

    fn hear_short(&self, fingerprint: u64, key: KeyHash, missing: Cost) {
        let rules = self.rules.load();
        if let Some(index) = rules.marks.place(fingerprint) {
            rules.limiter.absorb_state(index, key, missing, self.clock.now());
        }
    }

    fn hear_name(&self, fingerprint: u64, key: KeyHash, name: &str) {
        self.elsewhere.name(fingerprint, key, name, self.clock.now());
    }

    fn short(&self, max: usize) -> Vec<(u64, KeyHash, Cost)> {
        let rules = self.rules.load();
        rules.marks.short(&rules.limiter, max, self.clock.now())
    }

    fn cpus(&self) -> Option<f64> {
        Some(self.given.lock().0.cpus)
    }

    fn share_of(&self, cpus: f64) {
        let mut given = self.given.lock();
        let factor = cpus / given.0.cpus.max(f64::EPSILON);
        if (factor / given.1 - 1.0).abs() < WORTHWHILE {
            return;
        }
        given.1 = factor;
        self.take_over(&scaled(&given.0, factor));
    }
}

/// The settings where there are `factor` times as many CPUs to share out: those that limits say a
/// share of. What the backend works on here stays the same.
pub(super) fn scaled(proxy: &Proxy, factor: f64) -> Proxy {
    let mut proxy = proxy.clone();
    for limit in &mut proxy.limits {
        if let (Unit::Cpu, Algorithm::Debt(debt)) = (limit.unit, &limit.algorithm) {
            limit.algorithm = Algorithm::Debt(debt.scaled(factor));
        }
    }
    proxy
}

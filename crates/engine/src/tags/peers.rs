//! The engine of tags as one of several instances: how it notes its charges and applies those of
//! other instances.
//!
//! Hits are noted when they are served. Tags share out no CPUs, so the number of instances changes
//! none of their limits. The interface: `together`.

use super::{TOP_KEYS, TagEngine};
use crate::replicated::{NamedClient, PendingDeltas, Replicated, heaviest};
use evenkeel_core::key::KeyHash;
use evenkeel_core::replica::ReplicatedLimit;
use evenkeel_core::units::{Cost, Nanos};

impl Replicated for TagEngine {
    fn start_sharing(&self) {
        self.lanes.iter().for_each(|lane| lane.lock().spent = Some(PendingDeltas::default()));
    }

    fn shared(&self) -> Vec<ReplicatedLimit> {
        let rules = self.rules.load();
        rules.marks.shared(rules.limiter.limits(), 1.0)
    }

    fn spent(&self, each: &mut dyn FnMut(u64, u128, KeyHash, Cost)) -> u64 {
        let taken = self.lanes.iter().filter_map(|lane| Some(lane.lock().spent.as_mut()?.take()));
        taken.map(|spent| spent.show(each)).sum()
    }

    fn apply_delta(&self, fingerprint: u64, _: u128, key: KeyHash, amount: Cost, age: Nanos) {
        let (rules, now) = (self.rules.load(), self.clock.now());
        if let Some(index) = rules.marks.place(fingerprint) {
            rules.limiter.absorb(index, key, amount, now.minus(age), now);
            self.elsewhere.add(fingerprint, key, amount, TOP_KEYS, now);
        }
    }

    fn apply_deficit(&self, fingerprint: u64, key: KeyHash, missing: Cost) {
        let rules = self.rules.load();
        if let Some(index) = rules.marks.place(fingerprint) {
            rules.limiter.apply_remote_deficit(index, key, missing, self.clock.now());
        }
    }

    fn apply_name(&self, fingerprint: u64, key: KeyHash, name: &str) {
        self.elsewhere.name(fingerprint, key, name, self.clock.now());
    }

    fn short(&self, max: usize) -> Vec<(u64, KeyHash, Cost)> {
        let rules = self.rules.load();
        rules.marks.short(&rules.limiter, max, self.clock.now())
    }

    fn heaviest(&self, max: usize) -> Vec<NamedClient> {
        heaviest(self, &self.rules.load().marks, max)
    }

    fn cpus(&self) -> Option<f64> {
        None
    }

    fn set_total_cpus(&self, _: f64) {}
}

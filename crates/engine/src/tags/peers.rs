//! The engine of tags as one of several instances: how it notes its charges and applies those of
//! other instances.
//!
//! Hits are noted when they are served. Tags share out no CPUs, so the number of instances changes
//! none of their limits. The interface: `together`.

use super::{TOP_KEYS, Tags};
use crate::together::{Named, Spent, Together, heaviest};
use evenkeel_core::key::KeyHash;
use evenkeel_core::replica::Shared;
use evenkeel_core::units::{Cost, Nanos};

impl Together for Tags {
    fn share(&self) {
        self.lanes.iter().for_each(|lane| lane.lock().spent = Some(Spent::default()));
    }

    fn shared(&self) -> Vec<Shared> {
        let rules = self.rules.load();
        rules.marks.shared(rules.limiter.limits(), 1.0)
    }

    fn spent(&self, each: &mut dyn FnMut(u64, u128, KeyHash, Cost)) -> u64 {
        let taken = self.lanes.iter().filter_map(|lane| Some(lane.lock().spent.as_mut()?.take()));
        taken.map(|spent| spent.show(each)).sum()
    }

    fn hear(&self, fingerprint: u64, _: u128, key: KeyHash, amount: Cost, age: Nanos) {
        let (rules, now) = (self.rules.load(), self.clock.now());
        if let Some(index) = rules.marks.place(fingerprint) {
            rules.limiter.absorb(index, key, amount, now.minus(age), now);
            self.elsewhere.add(fingerprint, key, amount, TOP_KEYS, now);
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

    fn heaviest(&self, max: usize) -> Vec<Named> {
        heaviest(self, &self.rules.load().marks, max)
    }

    fn cpus(&self) -> Option<f64> {
        None
    }

    fn share_of(&self, _: f64) {}
}

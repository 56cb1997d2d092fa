//! What costs most by other things than the limits count: by route and by what clients call
//! themselves.
//!
//! For people who look; no limit is needed for it and nothing is decided by it. A route is a method
//! and a path without what names one thing of many (`meter::estimate::fold`). Each list is bounded,
//! and a flood of paths or names fights for its lightest place (`evenkeel_core::top`).

use evenkeel_core::classify::{self, Attributes, readable};
use evenkeel_core::key::{KeyHash, KeyHasher, Seed};
use evenkeel_core::meter::estimate::{RouteHash, fold};
use evenkeel_core::top::{Row, Top};
use evenkeel_core::units::{Cost, Nanos, Time};
use std::borrow::Cow;

/// What the lists are called, in their order.
pub const NAMES: [&str; 2] = ["routes", "agents"];
/// How many routes, and how many agents, each thread remembers by name: some 300 bytes each.
const ENTRIES: usize = 512;

/// The lists of one thread.
#[derive(Debug)]
pub struct Views([Top; 2]);

/// Where a request is counted.
#[derive(Clone, Copy, Debug)]
pub struct Seen([KeyHash; 2]);

impl Default for Views {
    fn default() -> Views {
        Views([Top::new(ENTRIES), Top::new(ENTRIES)])
    }
}

impl Views {
    /// A request comes.
    pub fn touch(&mut self, seed: &Seed, request: &impl Attributes, now: Time) -> Seen {
        let path: Cow<'_, str> = classify::normal_path(request.path());
        let route = RouteHash::of(seed, request.method(), &path);
        let agent = request.header("user-agent").unwrap_or_default();
        let mut hasher = KeyHasher::new(seed);
        hasher.part(agent);
        let seen = [KeyHash::from_bits(route.bits()), hasher.finish()];
        let [routes, agents] = &mut self.0;
        routes.touch(seen[0], now, || {
            readable(format!("{} {}", request.method(), fold(&path)).as_bytes())
        });
        agents.touch(seen[1], now, || match agent {
            [] => "-".to_owned(),
            agent => readable(agent),
        });
        Seen(seen)
    }

    /// It has cost `cost` and waited for `wait`.
    pub fn add(&mut self, seen: Seen, cost: Cost, wait: Nanos, now: Time) {
        for (top, hash) in self.0.iter_mut().zip(seen.0) {
            top.add(hash, cost, wait, now);
        }
    }

    /// The `max` heaviest of the list at `place`.
    #[must_use]
    pub fn heaviest(&self, place: usize, max: usize, now: Time) -> Vec<Row> {
        self.0.get(place).map(|top| top.heaviest(max, now)).unwrap_or_default()
    }
}

//! The heaviest routes and user agents, which no limit counts by.
//!
//! These lists are for display: they work without any limit, and no decision uses them. A route is
//! a method and a path, with the parts that name single things left out (`meter::estimate::fold`).
//! Each list is bounded. A flood of paths or names competes for the lightest place of the list
//! (`evenkeel_core::top`).

use evenkeel_core::classify::{self, RequestAttributes, readable};
use evenkeel_core::key::{KeyHash, KeyHasher, KeySeed};
use evenkeel_core::meter::estimate::{RouteHash, fold};
use evenkeel_core::top::{TopClient, TopClients};
use evenkeel_core::units::{Cost, Nanos, Time};
use std::borrow::Cow;

/// The names of the lists, in their order.
pub const VIEW_NAMES: [&str; 2] = ["routes", "agents"];
/// The number of routes, and of user agents, that each thread remembers by name, at some 300 bytes
/// each.
const VIEW_ROWS_MAX: usize = 512;

/// The lists of one lane.
#[derive(Debug)]
pub struct TopViews([TopClients; 2]);

/// The hashes of a request's route and user agent.
#[derive(Clone, Copy, Debug)]
pub struct ViewKeys(pub(crate) [KeyHash; 2]);

impl Default for TopViews {
    fn default() -> TopViews {
        TopViews([TopClients::new(VIEW_ROWS_MAX), TopClients::new(VIEW_ROWS_MAX)])
    }
}

impl TopViews {
    /// Enters the route and the user agent of a new request into the lists.
    pub fn touch(
        &mut self,
        seed: &KeySeed,
        request: &impl RequestAttributes,
        now: Time,
    ) -> ViewKeys {
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
        ViewKeys(seen)
    }

    /// Adds the cost and the wait of a request that has ended.
    pub fn add(&mut self, seen: ViewKeys, cost: Cost, wait: Nanos, now: Time) {
        for (top, hash) in self.0.iter_mut().zip(seen.0) {
            top.add(hash, cost, wait, now);
        }
    }

    /// The name of an entry of the list at `place`, if it is among the heaviest.
    pub fn name(&self, place: usize, key: KeyHash) -> Option<String> {
        self.0.get(place)?.name(key)
    }

    /// The `max` heaviest rows of the list at `place`.
    pub fn heaviest(&self, place: usize, max: usize, now: Time) -> Vec<TopClient> {
        self.0.get(place).map(|top| top.heaviest(max, now)).unwrap_or_default()
    }
}

//! The current cost estimates of the routes that have waiting requests.
//!
//! A request arrives with the estimate of its route at that time. In the first seconds that is a
//! guess, and a request may wait for long. So newer estimates are kept here, and waiting requests
//! get them in `reestimates`. Only routes with waiting requests are kept, so there are never more
//! routes than waiting requests. Requests on unknown routes have one common estimate. The estimates
//! are learned in `meter::estimate`.

use super::prehashed::Map;
use super::share::WaitingRequest;
use super::standing::PASS_MILLI_CPUS;
use crate::meter::estimate::RouteHash;
use crate::units::{Cost, Nanos};
use core::mem;
use hashbrown::hash_map::Entry;

/// A larger difference between two estimates matters also if it is less than a quarter: in a line
/// it is more than a second. Lower: dear requests change their places more often. Higher: those on
/// one route are served further out of order.
const DIFFERENCE_MAX: Cost = Cost::cpu(Nanos::from_millis(PASS_MILLI_CPUS));

/// What a request is expected to cost.
#[derive(Clone, Copy, Debug)]
struct CurrentEstimate {
    /// `None` if it is unknown.
    cost: Option<Cost>,
    /// The highest estimate that a waiting request may have.
    highest: Cost,
}

impl Default for CurrentEstimate {
    /// It is unknown.
    fn default() -> CurrentEstimate {
        CurrentEstimate { cost: None, highest: Cost(u64::MAX) }
    }
}

impl CurrentEstimate {
    /// Returns whether it has fallen so far that waiting requests may belong further ahead.
    fn learn(&mut self, cost: Cost) -> bool {
        let has_fallen = cost < self.highest && differ(cost, self.highest);
        self.highest = if has_fallen { cost } else { self.highest.max(cost) };
        self.cost = Some(cost);
        has_fallen
    }
}

/// The number of waiting requests on a route, and what such a request is expected to cost.
#[derive(Clone, Copy, Debug, Default)]
struct WaitingRoute {
    waiting: usize,
    estimate: CurrentEstimate,
}

/// The routes of all waiting requests, and these routes as the clients use them.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingRoutes {
    routes: Map<RouteHash, WaitingRoute>,
    /// What requests on unknown routes are expected to cost.
    unknown: CurrentEstimate,
    has_fallen: bool,
}

impl WaitingRoutes {
    /// Notes that a request begins to wait.
    pub fn join(&mut self, waiting: &WaitingRequest) {
        let is_own = waiting.own.is_some_and(|own| own.is_known);
        let estimate = Some(waiting.estimate);
        self.enter(waiting.route, estimate.filter(|_| !is_own && !waiting.is_guess));
        self.enter(waiting.own.map(|own| own.hash), estimate.filter(|_| is_own));
    }

    fn enter(&mut self, route: Option<RouteHash>, estimate: Option<Cost>) {
        let Some(route) = route else { return };
        let entry = self.routes.entry(route).or_default();
        if entry.waiting == 0 {
            entry.estimate.highest = estimate.unwrap_or(entry.estimate.highest);
        }
        entry.waiting += 1;
        entry.estimate.cost = entry.estimate.cost.or(estimate);
    }

    /// Notes that a request no longer waits. A route is forgotten with its last request.
    pub fn leave(&mut self, waiting: &WaitingRequest) {
        for route in [waiting.route, waiting.own.map(|own| own.hash)].into_iter().flatten() {
            let Entry::Occupied(mut found) = self.routes.entry(route) else { continue };
            found.get_mut().waiting -= 1;
            if found.get().waiting == 0 {
                found.remove();
            }
        }
    }

    /// Sets the expected cost of requests on `route`, if one waits, or of those on unknown routes.
    pub fn learn(&mut self, route: RouteHash, estimate: Cost) {
        let current = match route {
            RouteHash::UNKNOWN => Some(&mut self.unknown),
            _ => self.routes.get_mut(&route).map(|found| &mut found.estimate),
        };
        self.has_fallen |= current.is_some_and(|current| current.learn(estimate));
    }

    /// Whether an estimate has fallen since this was last called.
    pub fn take_fall(&mut self) -> bool {
        mem::take(&mut self.has_fallen)
    }

    /// The estimate that replaces the one of a waiting request, and whether it is a guess: if the
    /// two differ by enough to matter, or if the request has only a guess and the cost of the route
    /// is known by now.
    pub fn newer_estimate(&self, waiting: &WaitingRequest) -> Option<(Cost, bool)> {
        let known = |route| self.routes.get(&route)?.estimate.cost;
        let own = waiting.own.and_then(|own| known(own.hash));
        let known = own.or_else(|| known(waiting.route?));
        let newer = known.or_else(|| self.unknown.cost.filter(|_| waiting.is_guess))?;
        let is_guess = known.is_none();
        (differ(newer, waiting.estimate) || waiting.is_guess != is_guess)
            .then_some((newer, is_guess))
    }

    /// The number of routes with waiting requests.
    pub fn len(&self) -> usize {
        self.routes.len()
    }
}

/// Whether two estimates of a waiting request differ by enough to matter.
fn differ(one: Cost, other: Cost) -> bool {
    let (more, less) = (one.max(other), one.min(other));
    is_far(more, less) || more.minus(less) > DIFFERENCE_MAX
}

/// Whether `more` exceeds `less` by over a quarter. Smaller differences do not matter.
pub(super) fn is_far(more: Cost, less: Cost) -> bool {
    more.0 / 5 > less.0 / 4
}

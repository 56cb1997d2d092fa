//! What is thought of the routes that have requests waiting.
//!
//! A request comes with what its route was thought to cost then. In the first seconds that is a
//! guess, and what waits may wait for long: so what is learned meanwhile is kept here, and a
//! request is given it when its turn seems to have come. Only routes that somebody waits for are
//! kept, so there are never more of them than requests. Nothing is learned here: see
//! `meter::estimate`.

use super::spread::Map;
use super::tiers::Share;
use crate::meter::estimate::RouteHash;
use crate::units::Cost;
use hashbrown::hash_map::Entry;

/// A route that has requests waiting.
#[derive(Clone, Copy, Debug)]
struct Route {
    waiting: usize,
    estimate: Cost,
    is_guess: bool,
}

/// The routes of all that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes(Map<RouteHash, Route>);

impl Routes {
    /// A request begins to wait.
    pub fn join(&mut self, share: &Share) {
        let Share { estimate, is_guess, .. } = *share;
        let Some(route) = share.route else { return };
        self.0.entry(route).or_insert(Route { waiting: 0, estimate, is_guess }).waiting += 1;
    }

    /// A request waits no more.
    pub fn leave(&mut self, route: Option<RouteHash>) {
        let Some(route) = route else { return };
        let Entry::Occupied(mut found) = self.0.entry(route) else { return };
        found.get_mut().waiting -= 1;
        if found.get().waiting == 0 {
            found.remove();
        }
    }

    /// A request on `route` is taken to cost `estimate` from now on.
    pub fn learn(&mut self, route: RouteHash, estimate: Cost) {
        if let Some(found) = self.0.get_mut(&route) {
            (found.estimate, found.is_guess) = (estimate, false);
        }
    }

    /// What a request that waits is to be taken to cost instead, if that is far from what it was,
    /// or known where it was a guess.
    pub fn instead(&self, share: &Share) -> Option<Cost> {
        let Route { estimate: known, is_guess, .. } = *self.0.get(&share.route?)?;
        let is_news = is_far(known, share.estimate) || is_far(share.estimate, known);
        (is_news || (share.is_guess && !is_guess)).then_some(known)
    }

    /// How many routes are known.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Whether `more` is more than `less` by over a quarter: nearer than that is all the same.
pub(super) fn is_far(more: Cost, less: Cost) -> bool {
    more.0 / 5 > less.0 / 4
}

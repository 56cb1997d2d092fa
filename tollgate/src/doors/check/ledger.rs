//! Passes that wait for their report.
//!
//! They lie in the order in which they were given out, so the number in an id is a place, and the
//! oldest is always the first: looking one up, settling it and letting the late ones go take no
//! search. The other half of an id is a random secret: who cannot guess it settles nothing of
//! anybody's. There are at most `open_max` passes; beyond that the oldest settles early. What is
//! not told costs what requests of its route cost on average, as reports have it.
//!
//! It reads no clock and knows no protocol.

use super::report::Id;
use crate::engine::{Charge, Told};
use std::collections::VecDeque;
use tollgate_core::meter::estimate::{Estimates, RouteHash};
use tollgate_core::units::{Nanos, Time};

/// Places kept for each pass that may be open: those between two open ones are settled already.
const PLACES_PER_PASS: usize = 16;
/// Routes whose cost is remembered.
const ROUTES_MAX: usize = 4096;

/// A pass that is open.
struct Pass {
    secret: u64,
    charge: Charge,
    since: Time,
    route: RouteHash,
}

/// All of them.
pub struct Ledger {
    /// The number of the first place.
    first: u64,
    places: VecDeque<Option<Box<Pass>>>,
    open: usize,
    open_max: usize,
    estimates: Estimates,
}

impl Ledger {
    /// For at most `open_max` passes at once.
    pub fn new(open_max: usize) -> Ledger {
        let estimates = Estimates::new(ROUTES_MAX);
        Ledger { first: 1, places: VecDeque::new(), open: 0, open_max, estimates }
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Gives out a pass. Also returns how many had to settle early to make room.
    pub fn issue(&mut self, charge: Charge, route: RouteHash, secret: u64, now: Time) -> (Id, u64) {
        let mut crowded = 0;
        while self.open >= self.open_max || self.places.len() >= self.open_max * PLACES_PER_PASS {
            crowded += u64::from(self.forget_first(now));
        }
        let number = self.first + self.places.len() as u64;
        self.places.push_back(Some(Box::new(Pass { secret, charge, since: now, route })));
        self.open += 1;
        (Id { number, secret }, crowded)
    }

    /// Settles the pass `id`. False if there is none: it is settled already, or never was.
    pub fn settle(&mut self, id: Id, told: Told, now: Time) -> bool {
        let place = id.number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let Some(place) = place.and_then(|at| self.places.get_mut(at)) else { return false };
        let Some(pass) = place.take_if(|pass| pass.secret == id.secret) else { return false };
        self.open -= 1;
        let cost = pass.charge.close(told, now.since(pass.since));
        self.estimates.learn(pass.route, cost, now);
        self.tidy();
        true
    }

    /// Settles what was given out more than `within` ago and not told of. Returns how many.
    pub fn sweep(&mut self, within: Nanos, now: Time) -> u64 {
        let mut late = 0;
        self.tidy();
        while let Some(Some(pass)) = self.places.front()
            && now.since(pass.since) >= within
        {
            late += u64::from(self.forget_first(now));
        }
        late
    }

    /// Settles the oldest by its route. False if its place was empty.
    fn forget_first(&mut self, now: Time) -> bool {
        let Some(place) = self.places.pop_front() else { return false };
        self.first += 1;
        let pass = place.map(|pass| {
            let estimate = self.estimates.of(pass.route);
            pass.charge.close(Told::Nothing(estimate), now.since(pass.since));
            self.open -= 1;
        });
        self.tidy();
        pass.is_some()
    }

    /// Drops the places in front that are settled.
    fn tidy(&mut self) {
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
    }
}

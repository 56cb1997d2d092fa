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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::address::Trust;
    use crate::clock::Clock;
    use crate::config::settings::ClientAddress;
    use crate::doors::check::asked::Original;
    use crate::engine::{Asked, Engine, Lane};
    use crate::watch::Watch;
    use crate::watch::metrics::CHARGED;
    use std::sync::Arc;
    use tollgate_core::key::Seed;
    use tollgate_core::units::{Cost, SECOND};

    const SEED: Seed = Seed([1; 16]);

    struct Front {
        lane: Lane,
        watch: Arc<Watch>,
        ledger: Ledger,
    }

    impl Front {
        fn new(open_max: usize) -> Front {
            let config = crate::config::parse("t", b"check:", 1.0).expect("good");
            let proxy = config.settings.proxy.expect("its limits");
            let clock = Clock::start();
            let watch = Arc::new(Watch::new(clock.now()));
            let engine = Engine::new(&proxy, 1, SEED, clock, Arc::clone(&watch));
            Front { lane: engine.lane(0), watch, ledger: Ledger::new(open_max) }
        }

        fn issue(&mut self, secret: u64, second: u64) -> (Id, u64) {
            let headers = http::HeaderMap::new();
            let trust = Trust::new(&[], &ClientAddress::XForwardedFor);
            let client = trust.client_of_front([192, 0, 2, 1].into(), &headers);
            let Asked::Pass(charge) = self.lane.ask(&Original::read(client, &headers)) else {
                panic!("it is in credit")
            };
            let route = RouteHash::of(&SEED, "GET", "/");
            self.ledger.issue(charge, route, secret, at(second))
        }

        fn charged(&self) -> Cost {
            Cost(self.watch.registry().nanos(&CHARGED, &[]).get())
        }
    }

    fn at(second: u64) -> Time {
        Time((1_000 + second) * SECOND)
    }

    fn cost(seconds: u64) -> Told {
        Told::Cost(Cost(seconds * SECOND))
    }

    #[test]
    fn only_who_knows_the_id_settles_and_only_once() {
        let mut front = Front::new(10);
        let (id, _) = front.issue(7, 0);
        let guesses = [
            Id { secret: 8, ..id },
            Id { number: id.number + 1, ..id },
            Id { number: 0, ..id },
            Id { number: u64::MAX, ..id },
        ];
        for guess in guesses {
            assert!(!front.ledger.settle(guess, cost(9), at(1)), "{guess}");
        }
        assert!(front.ledger.settle(id, cost(2), at(1)));
        assert!(!front.ledger.settle(id, cost(2), at(1)));
        assert_eq!((front.ledger.open(), front.charged()), (0, Cost(2 * SECOND)));
    }

    #[test]
    fn what_is_not_told_in_time_costs_what_its_route_does() {
        let mut front = Front::new(10);
        let (told, _) = front.issue(1, 0);
        front.ledger.settle(told, cost(3), at(1));
        let ids = [2, 5, 6].map(|second| front.issue(second, second).0);
        assert!(front.ledger.settle(ids[1], cost(0), at(7)), "in the middle");
        assert_eq!(front.ledger.sweep(Nanos::from_secs(10), at(11)), 0);
        let before = front.charged();
        assert_eq!(front.ledger.sweep(Nanos::from_secs(10), at(12)), 1);
        // One cost of 3 s and one of nothing were told of.
        let guess = front.charged().minus(before);
        assert!(guess > Cost(SECOND) && guess < Cost(2 * SECOND), "{guess:?}");
        assert!(!front.ledger.settle(ids[0], cost(1), at(13)), "too late");
        assert_eq!(front.ledger.sweep(Nanos::from_secs(10), at(16)), 1);
        assert_eq!((front.ledger.open(), front.ledger.places.len()), (0, 0));
    }

    #[test]
    fn beyond_what_may_be_open_the_oldest_settles_early() {
        let mut front = Front::new(2);
        let first = front.issue(1, 0).0;
        let (second, crowded) = front.issue(2, 0);
        assert_eq!(crowded, 0);
        let (third, crowded) = front.issue(3, 0);
        assert_eq!((crowded, front.ledger.open()), (1, 2));
        assert!(!front.ledger.settle(first, cost(1), at(1)));
        assert!(front.ledger.settle(third, cost(1), at(1)));
        assert!(front.ledger.settle(second, cost(1), at(1)));
    }

    /// One request that never ends does not make places pile up behind it.
    #[test]
    fn places_are_bounded_too() {
        let mut front = Front::new(2);
        front.issue(1, 0);
        let mut crowded = 0;
        for _ in 0..100 {
            let (id, more) = front.issue(2, 0);
            crowded += more;
            assert!(front.ledger.settle(id, cost(0), at(0)));
            assert!(front.ledger.places.len() <= 2 * PLACES_PER_PASS);
        }
        assert_eq!((crowded, front.ledger.open()), (1, 0));
    }
}

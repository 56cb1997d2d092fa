//! Passes that wait for their report.
//!
//! They lie in the order in which they were given out, so the number in an id is a place, and the
//! oldest is always the first: looking one up, settling it and letting the late ones go take no
//! search. The other half of an id is a random secret: who cannot guess it settles nothing of
//! anybody's. There are at most `open_max` passes; beyond that the oldest settles early. What is
//! not told costs what requests of its route cost on average, as reports have it; and it counts
//! as running for no longer than requests do here.
//!
//! It reads no clock and knows no protocol.

use super::report::Id;
use crate::engine::{Charge, Told};
use evenkeel_core::meter::estimate::{Estimates, RouteHash};
use evenkeel_core::units::{Cost, Nanos, Time};
use std::collections::VecDeque;

/// Places kept for each pass that may be open: those between two open ones are settled already.
const PLACES_PER_PASS: usize = 16;
/// Routes whose cost is remembered.
const ROUTES_MAX: usize = 4096;
/// For how long a request is taken to run at least and at most, if nothing is told of it.
const PATIENCE_MIN: Nanos = Nanos::from_secs(1);
const PATIENCE_MAX: Nanos = Nanos::from_secs(30);
/// How many times as long as those that are met running.
const TIMES_MET: f64 = 4.0;
/// What is left of the weight of a request's time with each later one.
const FADE: f64 = 1.0 - 1.0 / 256.0;

/// A pass that is open.
struct Pass {
    secret: u64,
    charge: Charge,
    since: Time,
    route: RouteHash,
    /// For how long it counted as running, once it does not any more.
    counted: Option<Nanos>,
}

impl Pass {
    /// It runs no longer, as far as anybody can tell.
    fn rest(&mut self, now: Time) {
        if self.counted.is_none() {
            self.charge.rest();
            self.counted = Some(now.since(self.since));
        }
    }

    fn close(self, told: Told, now: Time) -> Cost {
        let elapsed = now.since(self.since);
        self.charge.close(told, elapsed, self.counted.unwrap_or(elapsed))
    }
}

/// All of them.
pub struct Ledger {
    /// The number of the first place.
    first: u64,
    places: VecDeque<Option<Box<Pass>>>,
    /// The number of the first place that may count as running; all before do not.
    running: u64,
    open: usize,
    open_max: usize,
    estimates: Estimates,
    usual: Usual,
}

impl Ledger {
    /// For at most `open_max` passes at once.
    pub fn new(open_max: usize) -> Ledger {
        Ledger {
            first: 1,
            places: VecDeque::new(),
            running: 1,
            open: 0,
            open_max,
            estimates: Estimates::new(ROUTES_MAX),
            usual: Usual::default(),
        }
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Gives out a pass. Also returns how many had to settle early to make room.
    pub fn issue(
        &mut self,
        mut charge: Charge,
        route: RouteHash,
        secret: u64,
        now: Time,
    ) -> (Id, u64) {
        let mut crowded = 0;
        while self.open >= self.open_max || self.places.len() >= self.open_max * PLACES_PER_PASS {
            crowded += u64::from(self.forget_first(now));
        }
        let number = self.first + self.places.len() as u64;
        let counted = self.usual.silent.then_some(Nanos::ZERO);
        if counted.is_none() {
            charge.work();
        }
        self.places.push_back(Some(Box::new(Pass { secret, charge, since: now, route, counted })));
        self.open += 1;
        (Id { number, secret }, crowded)
    }

    /// Settles the pass `id`. False if there is none: it is settled already, or never was.
    pub fn settle(&mut self, id: Id, told: Told, now: Time) -> bool {
        let place = id.number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let Some(place) = place.and_then(|at| self.places.get_mut(at)) else { return false };
        let Some(pass) = place.take_if(|pass| pass.secret == id.secret) else { return false };
        self.open -= 1;
        let (route, elapsed) = (pass.route, now.since(pass.since));
        let cost = pass.close(told, now);
        self.estimates.learn(route, cost, now);
        self.usual
            .learn(if let Told::Time(took) = told { took.min(elapsed) } else { elapsed }, now);
        self.tidy();
        true
    }

    /// Settles what was given out more than `within` ago and not told of. Returns how many. What
    /// should have been told of by now counts as running no longer.
    pub fn sweep(&mut self, within: Nanos, now: Time) -> u64 {
        let mut late = 0;
        self.tidy();
        while let Some(Some(pass)) = self.places.front()
            && now.since(pass.since) >= within
        {
            late += u64::from(self.forget_first(now));
        }
        if let Some(Some(oldest)) = self.places.front() {
            self.usual.look(oldest.since, now);
        }
        self.rest_late(now);
        late
    }

    /// Lets passes rest whose requests have most probably ended.
    fn rest_late(&mut self, now: Time) {
        self.running = self.running.max(self.first);
        while let Some(place) = self.places.get_mut((self.running - self.first) as usize) {
            if let Some(pass) = place {
                if now.since(pass.since) < self.usual.patience() {
                    return;
                }
                pass.rest(now);
            }
            self.running += 1;
        }
    }

    /// Settles the oldest by its route. False if its place was empty.
    fn forget_first(&mut self, now: Time) -> bool {
        let Some(place) = self.places.pop_front() else { return false };
        self.first += 1;
        let pass = place.map(|pass| {
            let estimate = self.estimates.of(pass.route);
            pass.close(Told::Nothing(estimate), now);
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

/// For how long a pass may be taken to run that nothing was told of. A front that does not report,
/// or a line that was lost, must not look like a backend that is busy: that would make those beside
/// it cheaper, and clients in debt wait for nothing.
#[derive(Default)]
struct Usual {
    /// What reported requests took, in seconds; older ones fade.
    sum: f64,
    /// The same of their squares.
    squares: f64,
    told: bool,
    last: Time,
    /// Nobody reports, so nobody knows what runs.
    silent: bool,
}

impl Usual {
    fn learn(&mut self, took: Nanos, now: Time) {
        let seconds = took.as_secs_f64();
        self.sum = self.sum * FADE + seconds;
        self.squares = self.squares * FADE + seconds * seconds;
        (self.told, self.last, self.silent) = (true, self.last.max(now), false);
    }

    /// The oldest pass that is open is of then. If nothing at all was told since, and for long,
    /// nobody reports.
    fn look(&mut self, since: Time, now: Time) {
        self.silent |= self.last < since && now.since(since) >= PATIENCE_MAX;
    }

    /// Several times what a request takes that is met running: long ones are met more often, in
    /// proportion to their length, and it is them that matter.
    fn patience(&self) -> Nanos {
        match self.told {
            _ if self.silent => Nanos::ZERO,
            true if self.sum > 0.0 => {
                let met = self.squares / self.sum;
                Nanos::from_secs_f64(TIMES_MET * met).clamp(PATIENCE_MIN, PATIENCE_MAX)
            }
            true => PATIENCE_MIN,
            false => PATIENCE_MAX,
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
    use evenkeel_core::key::Seed;
    use evenkeel_core::units::SECOND;
    use std::sync::Arc;

    const SEED: Seed = Seed([1; 16]);

    struct Front {
        engine: Arc<Engine>,
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
            Front { lane: engine.lane(0), engine, watch, ledger: Ledger::new(open_max) }
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

        /// How many requests run, as far as the engine knows.
        fn running(&self) -> u32 {
            self.engine.load().0
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

    const WITHIN: Nanos = Nanos::from_secs(300);

    #[test]
    fn a_front_that_never_reports_has_nothing_running() {
        let mut front = Front::new(1_000);
        let ids: Vec<Id> = (0..100).map(|n| front.issue(n, n).0).collect();
        assert_eq!(front.running(), 100, "nobody knows yet");
        front.ledger.sweep(WITHIN, at(29));
        assert_eq!(front.running(), 100);
        front.ledger.sweep(WITHIN, at(30));
        assert_eq!((front.running(), front.ledger.open()), (0, 100));
        front.issue(100, 101);
        assert_eq!(front.running(), 0);
        // It begins to: who is let in from now on counts.
        assert!(front.ledger.settle(ids[50], cost(1), at(102)));
        let (late, _) = front.issue(101, 102);
        assert_eq!(front.running(), 1);
        assert!(front.ledger.settle(late, cost(1), at(103)));
        assert_eq!(front.running(), 0);
        // What did not count costs all of its time; there is no telling what ran beside it.
        let before = front.charged();
        assert!(front.ledger.settle(ids[60], Told::Time(Nanos::from_secs(2)), at(104)));
        assert_eq!(front.charged().minus(before), Cost(2 * SECOND));
    }

    #[test]
    fn a_report_that_is_lost_counts_for_as_long_as_requests_take() {
        let mut front = Front::new(10);
        for second in 0..20 {
            let (id, _) = front.issue(second, second);
            assert!(front.ledger.settle(id, Told::Time(Nanos::from_millis(500)), at(second + 1)));
        }
        let (lost, _) = front.issue(99, 20);
        front.ledger.sweep(WITHIN, at(21));
        assert_eq!(front.running(), 1);
        let (running, _) = front.issue(100, 21);
        front.ledger.sweep(WITHIN, at(22));
        assert_eq!(front.running(), 1, "four times half a second is over");
        assert!(front.ledger.settle(running, cost(1), at(22)));
        assert!(front.ledger.settle(lost, cost(1), at(200)), "it was late, not lost");
        assert_eq!((front.running(), front.ledger.open()), (0, 0));
    }

    #[test]
    fn a_few_long_requests_among_many_short_ones_are_waited_for() {
        let mut front = Front::new(10);
        for n in 0..300 {
            let took = Nanos::from_millis(if n % 100 == 99 { 5_000 } else { 50 });
            let (id, _) = front.issue(n, n);
            assert!(front.ledger.settle(id, Told::Time(took), at(n + 5)));
        }
        front.issue(0, 400);
        front.ledger.sweep(WITHIN, at(406));
        assert_eq!(front.running(), 1);
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

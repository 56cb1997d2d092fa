//! The passes that wait for their report.
//!
//! They are stored in the order in which they were issued, so the number in an id is a position and
//! the oldest pass is always first: finding one, settling it and expiring late ones need no search.
//! The other half of an id is a random secret: without it, a client cannot settle the pass of
//! another. There are at most `open_max` passes; beyond that, the oldest settles early. A pass
//! without a report costs the average of the reported requests of its route, and it counts as
//! running for no longer than requests usually do.
//!
//! This file reads no clock and knows no protocol.

use super::report::PassId;
use evenkeel_core::meter::estimate::{Estimates, RouteHash};
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_engine::{Charge, ServedReport};
use std::collections::VecDeque;

/// The maximum number of positions per pass that may be open. Positions between two open passes are
/// settled already.
const PLACES_PER_PASS: usize = 16;
/// The maximum number of routes with a remembered cost.
const ROUTES_MAX: usize = 4096;
/// The minimum and maximum time for which a request without a report counts as running.
const PATIENCE_MIN: Nanos = Nanos::from_secs(1);
const PATIENCE_MAX: Nanos = Nanos::from_secs(30);
/// The factor by which the patience exceeds the mean duration of requests met running.
const PATIENCE_FACTOR: f64 = 4.0;
/// The factor by which the weight of a request's time shrinks with each later request.
const DURATION_DECAY: f64 = 1.0 - 1.0 / 256.0;

struct OpenPass {
    secret: u64,
    charge: Charge,
    since: Time,
    route: RouteHash,
    /// The time for which it counted as running, once it no longer does.
    counted: Option<Nanos>,
}

impl OpenPass {
    /// The request has most probably ended: it no longer counts as running.
    fn rest(&mut self, now: Time) {
        if self.counted.is_none() {
            self.charge.rest();
            self.counted = Some(now.since(self.since));
        }
    }

    fn close(self, told: ServedReport, now: Time) -> Cost {
        let elapsed = now.since(self.since);
        self.charge.close(told, elapsed, self.counted.unwrap_or(elapsed))
    }
}

/// All open passes. Invariant: `places[i]` is the pass number `first + i`, and `open` is the number
/// of places that are `Some`.
pub struct PassLedger {
    /// The number of the first place.
    first: u64,
    places: VecDeque<Option<Box<OpenPass>>>,
    /// The number of the first place that may count as running; no pass before it does.
    running: u64,
    open: usize,
    open_max: usize,
    estimates: Estimates,
    usual: UsualDurations,
}

impl PassLedger {
    /// Creates a ledger for at most `open_max` passes at once.
    pub fn new(open_max: usize) -> PassLedger {
        PassLedger {
            first: 1,
            places: VecDeque::new(),
            running: 1,
            open: 0,
            open_max,
            estimates: Estimates::new(ROUTES_MAX),
            usual: UsualDurations::default(),
        }
    }

    /// Returns the number of open passes.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Issues a pass. Also returns how many passes had to settle early to make room.
    pub fn issue(
        &mut self,
        mut charge: Charge,
        route: RouteHash,
        secret: u64,
        now: Time,
    ) -> (PassId, u64) {
        let mut crowded = 0;
        while self.open >= self.open_max || self.places.len() >= self.open_max * PLACES_PER_PASS {
            crowded += u64::from(self.forget_first(now));
        }
        let number = self.first + self.places.len() as u64;
        let counted = self.usual.silent.then_some(Nanos::ZERO);
        if counted.is_none() {
            charge.work();
        }
        self.places.push_back(Some(Box::new(OpenPass {
            secret,
            charge,
            since: now,
            route,
            counted,
        })));
        self.open += 1;
        (PassId { number, secret }, crowded)
    }

    /// Settles the pass `id`. Returns false if it does not exist or is already settled.
    pub fn settle(&mut self, id: PassId, told: ServedReport, now: Time) -> bool {
        let place = id.number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let Some(place) = place.and_then(|at| self.places.get_mut(at)) else { return false };
        let Some(pass) = place.take_if(|pass| pass.secret == id.secret) else { return false };
        self.open -= 1;
        let (route, elapsed) = (pass.route, now.since(pass.since));
        let cost = pass.close(told, now);
        self.estimates.learn(route, cost, now);
        self.usual.learn(
            if let ServedReport::Time(took) = told { took.min(elapsed) } else { elapsed },
            now,
        );
        self.tidy();
        true
    }

    /// Settles the passes that were issued at least `within` ago and have no report. Returns their
    /// number. A pass with an overdue report no longer counts as running.
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

    /// Stops counting requests as running that have most probably ended.
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

    /// Settles the oldest pass with the estimate of its route. Returns false if its place was
    /// empty.
    fn forget_first(&mut self, now: Time) -> bool {
        let Some(place) = self.places.pop_front() else { return false };
        self.first += 1;
        let pass = place.map(|pass| {
            let estimate = self.estimates.of(pass.route);
            pass.close(ServedReport::Nothing(estimate), now);
            self.open -= 1;
        });
        self.tidy();
        pass.is_some()
    }

    /// Drops the settled places at the front.
    fn tidy(&mut self) {
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
    }
}

/// The usual duration of requests, which bounds how long a pass without a report counts as running.
/// A front that does not report, or a lost line, must not look like a busy backend: that would make
/// concurrent requests cheaper, and let clients in debt wait for nothing.
#[derive(Default)]
struct UsualDurations {
    /// The sum of the durations of reported requests in seconds, with fading weights.
    sum: f64,
    /// The sum of their squares, with the same weights.
    squares: f64,
    told: bool,
    last: Time,
    /// The front does not report, so it is unknown which requests run.
    silent: bool,
}

impl UsualDurations {
    fn learn(&mut self, took: Nanos, now: Time) {
        let seconds = took.as_secs_f64();
        self.sum = self.sum * DURATION_DECAY + seconds;
        self.squares = self.squares * DURATION_DECAY + seconds * seconds;
        (self.told, self.last, self.silent) = (true, self.last.max(now), false);
    }

    /// `since` is the time of the oldest open pass. If there has been no report since then, for a
    /// long time, the front does not report.
    fn look(&mut self, since: Time, now: Time) {
        self.silent |= self.last < since && now.since(since) >= PATIENCE_MAX;
    }

    /// Returns several times the duration of a request that is met running: long requests are met
    /// more often, in proportion to their length, and they matter most.
    fn patience(&self) -> Nanos {
        match self.told {
            _ if self.silent => Nanos::ZERO,
            true if self.sum > 0.0 => {
                let met = self.squares / self.sum;
                Nanos::from_secs_f64(PATIENCE_FACTOR * met).clamp(PATIENCE_MIN, PATIENCE_MAX)
            }
            true => PATIENCE_MIN,
            false => PATIENCE_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::original::OriginalRequest;
    use evenkeel_config::settings::ClientAddress;
    use evenkeel_core::key::KeySeed;
    use evenkeel_core::units::SECOND;
    use evenkeel_engine::{AskOutcome, Engine, EngineLane};
    use evenkeel_identity::address::ProxyTrust;
    use evenkeel_runtime::clock::Clock;
    use evenkeel_telemetry::Watch;
    use evenkeel_telemetry::metrics::CHARGED;
    use std::sync::Arc;

    const SEED: KeySeed = KeySeed([1; 16]);

    struct Front {
        engine: Arc<Engine>,
        lane: EngineLane,
        watch: Arc<Watch>,
        ledger: PassLedger,
    }

    impl Front {
        fn new(open_max: usize) -> Front {
            let config = evenkeel_config::parse("t", b"check:", 1.0).expect("good");
            let proxy = config.settings.proxy.expect("its limits");
            let clock = Clock::start();
            let watch = Arc::new(Watch::new(clock.now()));
            let engine = Engine::new(&proxy, 1, SEED, clock, Arc::clone(&watch));
            Front { lane: engine.lane(0), engine, watch, ledger: PassLedger::new(open_max) }
        }

        fn issue(&mut self, secret: u64, second: u64) -> (PassId, u64) {
            let headers = http::HeaderMap::new();
            let trust = ProxyTrust::new(&[], &ClientAddress::XForwardedFor);
            let client = trust.client_of_front([192, 0, 2, 1].into(), &headers);
            let AskOutcome::Pass(charge) =
                self.lane.ask(&OriginalRequest::read(client, &headers, false))
            else {
                panic!("it is in credit")
            };
            let route = RouteHash::of(&SEED, "GET", "/");
            self.ledger.issue(charge, route, secret, at(second))
        }

        /// The number of running requests that the engine knows of.
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

    fn cost(seconds: u64) -> ServedReport {
        ServedReport::Cost(Cost(seconds * SECOND))
    }

    #[test]
    fn only_who_knows_the_id_settles_and_only_once() {
        let mut front = Front::new(10);
        let (id, _) = front.issue(7, 0);
        let guesses = [
            PassId { secret: 8, ..id },
            PassId { number: id.number + 1, ..id },
            PassId { number: 0, ..id },
            PassId { number: u64::MAX, ..id },
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
        // One cost of 3 s and one of zero were reported.
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
        let ids: Vec<PassId> = (0..100).map(|n| front.issue(n, n).0).collect();
        assert_eq!(front.running(), 100, "nobody knows yet");
        front.ledger.sweep(WITHIN, at(29));
        assert_eq!(front.running(), 100);
        front.ledger.sweep(WITHIN, at(30));
        assert_eq!((front.running(), front.ledger.open()), (0, 100));
        front.issue(100, 101);
        assert_eq!(front.running(), 0);
        // The front begins to report: passes issued from now on count.
        assert!(front.ledger.settle(ids[50], cost(1), at(102)));
        let (late, _) = front.issue(101, 102);
        assert_eq!(front.running(), 1);
        assert!(front.ledger.settle(late, cost(1), at(103)));
        assert_eq!(front.running(), 0);
        // A pass that did not count as running is charged all of its time, because it is unknown
        // what ran in parallel.
        let before = front.charged();
        assert!(front.ledger.settle(ids[60], ServedReport::Time(Nanos::from_secs(2)), at(104)));
        assert_eq!(front.charged().minus(before), Cost(2 * SECOND));
    }

    #[test]
    fn a_report_that_is_lost_counts_for_as_long_as_requests_take() {
        let mut front = Front::new(10);
        for second in 0..20 {
            let (id, _) = front.issue(second, second);
            assert!(front.ledger.settle(
                id,
                ServedReport::Time(Nanos::from_millis(500)),
                at(second + 1)
            ));
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
            assert!(front.ledger.settle(id, ServedReport::Time(took), at(n + 5)));
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

//! What is measured while a limit holds, and what two such windows say about their two levels.
//!
//! A request counts as much work as requests of its route usually take. So the work done does not
//! depend on which routes happen to be requested, and a route counts the same in both windows that
//! are compared, because the usual times are means over all windows. Where requests differ in a
//! size that is known at their end (tokens), the usual time is that of one unit of size.

use super::belief::{LevelExperiment, difference};
use crate::meter::estimate::RouteHash;
use crate::units::{Nanos, Time};

/// The number of routes that are told apart. Routes that fall on the same place share a mean.
const ROUTES: usize = 64;
/// The number of requests over which the usual times are means.
const TIMES_MAX: f32 = 256.0;
/// A single time counts at most this much in the spread. It is the square of three means.
const DEVIATION_MAX: f64 = 9.0;
/// The weight of the lesser of the two estimates of a gain. A high one may be too high, because
/// some requests have not ended yet, or began under another limit.
const LESSER_WEIGHT: f64 = 0.75;

/// How long requests usually take.
#[derive(Clone, Debug)]
pub(super) struct UsualTimes {
    /// For each route the mean in seconds, and the number of requests that it stands for.
    routes: [(f32, f32); ROUTES],
    /// The sum of the squares of relative deviations from the mean, and (`freedom`) their number.
    deviations: f64,
    freedom: f64,
    /// The mean number of requests in flight while they were measured; zero if not known.
    level: f64,
}

impl UsualTimes {
    pub fn new() -> UsualTimes {
        UsualTimes { routes: [(0.0, 0.0); ROUTES], deviations: 0.0, freedom: 0.0, level: 0.0 }
    }

    /// What requests of `route` take in the mean, in seconds; 0 if not known.
    pub fn mean(&self, route: RouteHash) -> f64 {
        f64::from(self.routes[place(route)].0)
    }

    /// Notes that a request of `route` took `seconds`.
    pub fn note(&mut self, route: RouteHash, seconds: f64) {
        let place = place(route);
        let (mean, weight) = self.routes[place];
        let next = (weight + 1.0).min(TIMES_MAX);
        self.routes[place] = (mean + (seconds as f32 - mean) / next, next);
        if weight > 0.0 {
            let off = seconds / f64::from(mean).max(1e-9) - 1.0;
            // The mean of a few times deviates, too.
            let own = f64::from(weight / (weight + 1.0));
            self.deviations += (off * off).min(DEVIATION_MAX) * own;
            self.freedom += 1.0;
        }
        if self.freedom > f64::from(TIMES_MAX) {
            self.forget(0.5);
        }
    }

    /// The variance of the time of a request, in relation to the square of the mean of its route.
    /// Before times are known it is 1, as for times that are distributed exponentially.
    fn spread(&self) -> f64 {
        (1.0 + self.deviations) / (1.0 + self.freedom)
    }

    fn forget(&mut self, part: f64) {
        self.deviations *= part;
        self.freedom *= part;
    }

    /// Includes the level of a window.
    pub fn note_level(&mut self, window: &LimitWindow) {
        let part =
            if self.level > 0.0 { f64::from(window.count) / f64::from(TIMES_MAX) } else { 1.0 };
        self.level += (window.level() - self.level) * part.min(1.0);
    }

    /// Makes the next times the usual ones, because the backend has changed.
    pub fn begin_anew(&mut self) {
        self.routes.iter_mut().for_each(|(_, weight)| *weight = weight.min(1.0));
        self.forget(1.0 / 32.0);
        self.level = 0.0;
    }
}

/// The place of a route among the usual times.
fn place(route: RouteHash) -> usize {
    (route.bits() % ROUTES as u64) as usize
}

/// The number of requests in flight, and the time that they have spent there.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub running: usize,
    /// When that was last noted.
    pub last: Time,
    /// The sum of the times of all requests until then, unfinished ones included, in seconds.
    held: f64,
}

impl InFlight {
    /// No request is in flight.
    pub fn none() -> InFlight {
        InFlight { running: 0, last: Time::ZERO, held: 0.0 }
    }

    /// The sum at `now`.
    pub fn held_at(&self, now: Time) -> f64 {
        self.held + self.running as f64 * now.since(self.last).as_secs_f64()
    }

    /// Notes that `running` requests are in flight from now on.
    pub fn run(&mut self, running: usize, now: Time) {
        self.held = self.held_at(now);
        (self.running, self.last) = (running, self.last.max(now));
    }
}

/// The sum of the sizes of requests, and of their squares.
#[derive(Clone, Copy, Debug, Default)]
struct SizeSums {
    sizes: f64,
    squares: f64,
}

impl SizeSums {
    fn plus(self, other: SizeSums) -> SizeSums {
        SizeSums { sizes: self.sizes + other.sizes, squares: self.squares + other.squares }
    }
}

/// The measurements while one limit holds.
#[derive(Clone, Debug)]
pub(super) struct LimitWindow {
    /// The number of requests that ended.
    pub count: u32,
    /// The age at the last of these ends, and (`backlogged`) the time until then in which others
    /// waited, in seconds.
    ended_age: f64,
    backlogged: f64,
    /// The largest number in flight.
    pub running_max: usize,
    pub begun: Time,
    /// The time that all requests had spent in flight when the window began, in seconds.
    held_before: f64,
    /// The length in seconds; the time that all requests spent in flight, and (`spent`) the time
    /// that those took that ended, in seconds.
    pub age: f64,
    held: f64,
    spent: f64,
    /// The sizes of the requests that ended, by route.
    ended: [SizeSums; ROUTES],
}

impl LimitWindow {
    pub fn new(in_flight: &InFlight, now: Time) -> LimitWindow {
        LimitWindow {
            count: 0,
            ended_age: 0.0,
            backlogged: 0.0,
            running_max: in_flight.running,
            begun: now,
            held_before: in_flight.held_at(now),
            age: 0.0,
            held: 0.0,
            spent: 0.0,
            ended: [SizeSums::default(); ROUTES],
        }
    }

    /// Notes that the number of requests in flight has changed, or time has passed.
    pub fn note_in_flight(&mut self, in_flight: &InFlight) {
        self.age = in_flight.last.since(self.begun).as_secs_f64();
        self.held = in_flight.held - self.held_before;
        self.running_max = self.running_max.max(in_flight.running);
    }

    /// Notes that a request has ended.
    pub fn note_end(
        &mut self,
        route: RouteHash,
        elapsed: Nanos,
        size: f64,
        waiting: bool,
        usual: &mut UsualTimes,
    ) {
        usual.note(route, elapsed.as_secs_f64() / size);
        let ended = &mut self.ended[place(route)];
        *ended = ended.plus(SizeSums { sizes: size, squares: size * size });
        self.count += 1;
        // Not by the number of ends: of requests that end together, most end while their clients
        // have not sent the next one yet.
        let gap = self.age - core::mem::replace(&mut self.ended_age, self.age);
        self.backlogged += if waiting { gap } else { 0.0 };
        self.spent += elapsed.as_secs_f64();
    }

    /// The mean number of requests in flight.
    pub fn level(&self) -> f64 {
        self.held / self.age.max(1e-9)
    }

    /// Whether requests waited most of the time, so the limit was what limited.
    pub fn was_bound(&self) -> bool {
        2.0 * self.backlogged >= self.ended_age
    }

    /// Appends another window.
    pub fn append(&mut self, other: &LimitWindow) {
        self.count = self.count.saturating_add(other.count);
        self.age += other.age;
        self.held += other.held;
        self.spent += other.spent;
        self.ended.iter_mut().zip(other.ended).for_each(|(own, other)| *own = own.plus(other));
    }

    /// The work done in seconds, and the variance of it by chance in relation to its square.
    fn work(&self, usual: &UsualTimes) -> (f64, f64) {
        let routes = self.ended.iter().zip(usual.routes);
        let (work, squares) = routes.fold((0.0, 0.0), |(work, squares), (ended, (mean, _))| {
            let mean = f64::from(mean);
            (work + ended.sizes * mean, squares + ended.squares * mean * mean)
        });
        (work, usual.spread() * squares / (work * work).max(1e-18))
    }

    /// The square of how much slower or faster than usual requests were, and its variance by
    /// chance. What another level explains does not count.
    pub fn change(&self, usual: &UsualTimes) -> (f64, f64) {
        let (work, chance) = self.work(usual);
        let times = self.spent / work.max(1e-9);
        let level = self.level() / usual.level.max(1e-9);
        let off = (times / level.max(1.0)).max(level.min(1.0) / times.max(1e-9)) - 1.0;
        (off * off, chance)
    }

    /// Compares the throughput of this window with that of another one.
    pub fn compare(&self, other: &LimitWindow, usual: &UsualTimes) -> LevelExperiment {
        let (low, high) = if self.level() < other.level() { (self, other) } else { (other, self) };
        let measure = |window: &LimitWindow| {
            let (work, chance) = window.work(usual);
            // By Little's law, throughput also follows from the level and the times.
            let by_times = window.level() * work / window.spent.max(1e-9);
            (work / window.age.max(1e-9), by_times, chance)
        };
        let ((rate_low, times_low, chance_low), (rate_high, times_high, chance_high)) =
            (measure(low), measure(high));
        let (by_rate, by_times) =
            (difference(rate_low, rate_high), difference(times_low, times_high));
        let gain =
            LESSER_WEIGHT * by_rate.min(by_times) + (1.0 - LESSER_WEIGHT) * by_rate.max(by_times);
        let chance = chance_low + chance_high;
        LevelExperiment { low: low.level(), high: high.level(), gain, chance }
    }
}

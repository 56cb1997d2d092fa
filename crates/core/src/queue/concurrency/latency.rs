//! How long requests take, by route: their 20th percentile now, and what it usually is.
//!
//! Not the least, as one folded route may span 2 to 500 ms, and not the mean, which a few slow
//! ones move. For each of some routes a histogram over a stretch of time, in buckets that are an
//! eighth of a doubling wide: to note a request takes some nanoseconds. Routes for which there is
//! no place, and rare ones, count among all. Decides nothing: see `concurrency`.

use crate::meter::estimate::RouteHash;
use crate::units::Nanos;
use alloc::boxed::Box;

/// How many routes have a place; one whose place is taken counts among all only.
const ROUTES: usize = 64;
/// Buckets to each doubling, as a power of two.
const FINE: u32 = 3;
/// The shortest time that is told apart: 2^10 ns, a microsecond.
const LEAST: u32 = 10;
/// Up to 2^42 ns, more than an hour.
const BUCKETS: usize = 32 << FINE;
/// Which percentile is looked at: one in so many is quicker.
const QUICKER: u32 = 5;
/// Fewer requests of a route than this say nothing of it.
const ENOUGH: u32 = 8;
/// What was usual weighs so much against what is now.
const MEMORY: f64 = 7.0;

/// The variance of a time within its bucket, as a part of its square.
const BUCKET_SPREAD: f64 = 0.125 * 0.125 / 12.0;
/// Where it is known how much the times of a route differ, so many say something.
const GLIMPSE: u32 = 4;
/// How many times the spread of chance a route must be slower by to be surely so: it is looked at
/// again and again.
const SURE: f64 = 1.5;

/// One route, or all.
#[derive(Clone, Debug)]
struct Times {
    route: Option<RouteHash>,
    count: u32,
    buckets: [u32; BUCKETS],
    /// The usual 20th percentile, in nanoseconds; zero: not known.
    usual: f64,
    /// What a request counts in `work`: what was usual when that was last settled.
    weight: f64,
    /// How many windows that was learned from, at most one more than [`MEMORY`].
    learned: f64,
    /// What they are compared with before a window is over.
    before: Option<Mean>,
}

/// The mean time of a route in some window.
#[derive(Clone, Copy, Debug)]
struct Mean {
    nanos: f64,
    /// The variance of one of the times, as a part of the mean's square.
    spread: f64,
    count: f64,
}

impl Mean {
    /// Whether this is surely more than `times` as long as `other`.
    fn is_surely(&self, times: f64, other: &Mean) -> bool {
        let ratio = self.nanos / other.nanos;
        let spread = self.spread.max(other.spread);
        let chance = ratio * ratio * spread * (1.0 / self.count + 1.0 / other.count);
        let beyond = ratio - times;
        beyond > 0.0 && beyond * beyond > SURE * SURE * chance
    }
}

impl Times {
    const NONE: Times = Times {
        route: None,
        count: 0,
        buckets: [0; BUCKETS],
        usual: 0.0,
        weight: 0.0,
        learned: 0.0,
        before: None,
    };

    fn note(&mut self, bucket: usize) {
        self.count = self.count.saturating_add(1);
        self.buckets[bucket] = self.buckets[bucket].saturating_add(1);
    }

    /// The 20th percentile of what was noted, in nanoseconds, if it was enough.
    fn quick(&self) -> Option<f64> {
        if self.count < ENOUGH {
            return None;
        }
        let mut left = self.count.div_ceil(QUICKER);
        for (bucket, count) in self.buckets.iter().enumerate() {
            if *count >= left {
                let part = f64::from(left) / f64::from(*count);
                return Some(bound(bucket) + part * (bound(bucket + 1) - bound(bucket)));
            }
            left -= count;
        }
        None
    }

    /// The mean of what was noted, if it was at all enough.
    fn mean(&self, enough: u32) -> Option<Mean> {
        if self.count < enough {
            return None;
        }
        let middle = |bucket| (bound(bucket) + bound(bucket + 1)) / 2.0;
        let times = || self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        let (mut sum, mut squares) = (0.0, 0.0);
        for (bucket, count) in times() {
            sum += f64::from(*count) * middle(bucket);
            squares += f64::from(*count) * middle(bucket) * middle(bucket);
        }
        let count = f64::from(self.count);
        let nanos = sum / count;
        // A bucket is an eighth wide, so of less spread than that nothing is known.
        let spread = (squares / count / (nanos * nanos) - 1.0).max(BUCKET_SPREAD);
        Some(Mean { nanos, spread, count })
    }

    /// Forgets what was noted, but not what is usual.
    fn clear(&mut self) {
        if self.count > 0 {
            self.count = 0;
            self.buckets = [0; BUCKETS];
        }
    }
}

/// The times of requests since the last `clear`.
#[derive(Clone, Debug)]
pub(super) struct Latency {
    routes: Box<[Times]>,
    all: Box<Times>,
}

impl Latency {
    /// Nothing noted, nothing usual.
    pub fn new() -> Latency {
        let routes = (0..ROUTES).map(|_| Times::NONE).collect();
        Latency { routes, all: Box::new(Times::NONE) }
    }

    /// A request on `route` took so long.
    pub fn note(&mut self, route: RouteHash, elapsed: Nanos) {
        let bucket = bucket(elapsed);
        self.all.note(bucket);
        let place = &mut self.routes[(route.bits() % ROUTES as u64) as usize];
        if place.route != Some(route) {
            if place.count > 0 {
                return;
            }
            // Nobody has come there since the last `clear`.
            *place = Times { route: Some(route), ..Times::NONE };
        }
        place.note(bucket);
    }

    /// How many requests were noted.
    pub fn count(&self) -> u32 {
        self.all.count
    }

    /// How the times are to the usual ones: 2 is twice as long. 1 where nothing is known.
    pub fn ratio(&self) -> f64 {
        let known = |times: &&Times| times.usual > 0.0 && times.count >= ENOUGH;
        let seen: u32 = self.routes.iter().filter(known).map(|times| times.count).sum();
        let sum = |over: &[Times]| {
            let both = over.iter().filter(known).filter_map(|times| {
                let count = f64::from(times.count);
                Some((count * times.quick()?, count * times.usual))
            });
            let (now, usual) = both.fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            if usual > 0.0 { now / usual } else { 1.0 }
        };
        let few = u64::from(seen) * 2 < u64::from(self.all.count);
        if few { sum(core::slice::from_ref(&self.all)) } else { sum(&self.routes) }
    }

    /// What is now is what the next windows are compared with as they run.
    pub fn compare_with(&mut self) {
        for times in &mut self.routes {
            times.before = times.mean(ENOUGH).or(times.before);
        }
    }

    /// Whether requests surely take more than `times` as long as those they are compared with:
    /// the routes that take up most of the time, each by its mean.
    pub fn is_slower(&self, times: f64) -> bool {
        let (mut sure, mut all) = (0.0, 0.0);
        for route in self.routes.iter().filter(|route| route.count > 0) {
            let Some((before, now)) = route.before.zip(route.mean(GLIMPSE)) else { continue };
            let work = f64::from(route.count) * before.nanos;
            all += work;
            if now.is_surely(times, &before) {
                sure += work;
            }
        }
        sure > 0.5 * all
    }

    /// What is now is brought into what is usual.
    pub fn learn(&mut self) {
        self.each(|times, quick| {
            let learned = times.learned.min(MEMORY);
            times.usual = (learned * times.usual + quick) / (learned + 1.0);
            times.learned = learned + 1.0;
        });
    }

    /// What is now is usual.
    pub fn take_as_usual(&mut self) {
        self.each(|times, quick| (times.usual, times.learned) = (quick, 1.0));
    }

    /// What is now is usual, and from now on requests count as much in `work`: what was counted
    /// before is not to be compared any more.
    pub fn learn_anew(&mut self) {
        self.take_as_usual();
        self.each(|times, quick| times.weight = quick);
    }

    /// Of routes that come for the first time, what is now is usual.
    pub fn meet(&mut self) {
        self.each(|times, quick| {
            if times.usual == 0.0 {
                (times.usual, times.learned, times.weight) = (quick, 1.0, quick);
            }
        });
    }

    fn each(&mut self, change: impl Fn(&mut Times, f64)) {
        for times in self.routes.iter_mut().chain([&mut *self.all]) {
            if let Some(quick) = times.quick() {
                change(times, quick);
            }
        }
    }

    /// The requests noted, each counting as much as is usual for its route: completions that
    /// do not depend on the mix. Those of which nothing is known count as all usually do.
    pub fn work(&self) -> f64 {
        let known = self.routes.iter().filter(|times| times.weight > 0.0);
        let parts = known.map(|times| (times.count, f64::from(times.count) * times.weight));
        let (count, work) = parts.fold((0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
        work + f64::from(self.all.count - count) * self.all.weight.max(1.0)
    }

    /// A stretch of time begins.
    pub fn clear(&mut self) {
        self.routes.iter_mut().for_each(Times::clear);
        self.all.clear();
    }
}

fn bucket(elapsed: Nanos) -> usize {
    let time = elapsed.0.max(1 << LEAST);
    let doublings = time.ilog2();
    let fine = (time >> (doublings - FINE)) as usize & ((1 << FINE) - 1);
    ((((doublings - LEAST) << FINE) as usize) + fine).min(BUCKETS - 1)
}

/// Where a bucket begins, in nanoseconds.
fn bound(bucket: usize) -> f64 {
    let (doublings, fine) = (bucket >> FINE, bucket & ((1 << FINE) - 1));
    let eighths = (1_u64 << LEAST << doublings) / (1 << FINE);
    (((1 << FINE) + fine as u64) * eighths) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Seed;

    #[test]
    fn a_time_lies_in_its_bucket() {
        for time in [1_u64 << 10, 1_500, 100_000, 2_000_000, 499_999_999, 1 << 41] {
            let bucket = bucket(Nanos(time));
            let (from, to) = (bound(bucket), bound(bucket + 1));
            assert!(from <= time as f64 && (time as f64) < to, "{from} {time} {to}");
            assert!(to / from < 1.13);
        }
        assert_eq!(bucket(Nanos(0)), 0);
        assert_eq!(bucket(Nanos(u64::MAX)), BUCKETS - 1);
    }

    #[test]
    fn a_fifth_is_quicker() {
        let route = RouteHash::of(&Seed([1; 16]), "GET", "/");
        let mut latency = Latency::new();
        (1..=1_000).for_each(|ms| latency.note(route, Nanos::from_millis(ms)));
        let quick = latency.routes.iter().find_map(Times::quick).expect("known");
        assert!((quick / 200e6 - 1.0).abs() < 0.02, "{quick}");
        latency.take_as_usual();
        latency.clear();
        assert_eq!((latency.count(), latency.ratio()), (0, 1.0));
        (1..=1_000).for_each(|ms| latency.note(route, Nanos::from_millis(2 * ms)));
        assert!((latency.ratio() - 2.0).abs() < 0.05, "{}", latency.ratio());
    }
}

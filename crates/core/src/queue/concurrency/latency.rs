//! Measures how long requests take, by route: the present 20th percentile, and the usual one.
//!
//! The minimum would not do, because one folded route may span 2 to 500 ms, and a few slow requests
//! move the mean. A limited number of routes has a histogram over a period, with buckets an eighth
//! of a doubling wide, so recording a request takes some nanoseconds. Routes without a histogram,
//! and rare ones, are counted only in the total. Decides nothing: see `concurrency`.

use crate::meter::estimate::RouteHash;
use crate::units::Nanos;
use alloc::boxed::Box;

/// The number of routes with a histogram. A route that finds its slot taken counts in the total
/// only.
const ROUTE_HISTOGRAMS_MAX: usize = 64;
/// The number of buckets for each doubling, as a power of two.
const BUCKETS_PER_DOUBLING_LOG2: u32 = 3;
/// The shortest time that is distinguished, as a power of two: 2^10 ns, about a microsecond.
const TIME_MIN_LOG2_NANOS: u32 = 10;
/// The number of buckets: they reach up to 2^42 ns, more than an hour.
const BUCKETS: usize = 32 << BUCKETS_PER_DOUBLING_LOG2;
/// The percentile: one request in this many is quicker.
const PERCENTILE_DIVISOR: u32 = 5;
/// The number of requests below which a route shows nothing.
const ROUTE_REQUESTS_MIN: u32 = 8;
/// The weight of the usual percentile against a new one.
const USUAL_WEIGHT_MAX: f64 = 7.0;

/// The variance of a time within its bucket, as a part of its square.
const BUCKET_SPREAD: f64 = 0.125 * 0.125 / 12.0;
/// The number of requests from which on the mean of a route is compared with an earlier one, if the
/// variance of the earlier one is known.
const EARLY_MEAN_REQUESTS_MIN: u32 = 4;
/// The number of standard deviations by which a route must be slower to be surely so. The
/// comparison is repeated with each request.
const SLOWER_DEVIATIONS: f64 = 1.5;

const _: () = {
    let doublings = (BUCKETS >> BUCKETS_PER_DOUBLING_LOG2) as u32;
    assert!(TIME_MIN_LOG2_NANOS + doublings == 42, "the doc of BUCKETS says 2^42 ns");
    assert!(TIME_MIN_LOG2_NANOS >= BUCKETS_PER_DOUBLING_LOG2, "a bucket is no finer than 1 ns");
    assert!(EARLY_MEAN_REQUESTS_MIN <= ROUTE_REQUESTS_MIN, "early comes first");
    assert!(ROUTE_REQUESTS_MIN > PERCENTILE_DIVISOR, "the quickest request does not decide");
};

/// The histogram of one route, or of all.
#[derive(Clone, Debug)]
struct RouteTimes {
    route: Option<RouteHash>,
    count: u32,
    buckets: [u32; BUCKETS],
    /// The usual 20th percentile, in nanoseconds; zero: not known.
    usual: f64,
    /// The work that a request counts as in `work`: the usual percentile when `learn_anew` was last
    /// called.
    weight: f64,
    /// The number of windows that `usual` was learned from, at most one more than
    /// [`USUAL_WEIGHT_MAX`].
    learned: f64,
    /// The mean that later windows are compared with while they run.
    before: Option<Mean>,
}

const _: () = assert!(
    (ROUTE_HISTOGRAMS_MAX + 1) * size_of::<RouteTimes>() <= 72_000,
    "the header of concurrency says 72 kB"
);

/// The mean time of a route in one window.
#[derive(Clone, Copy, Debug)]
struct Mean {
    nanos: f64,
    /// The variance of a single time, as a part of the square of the mean.
    spread: f64,
    count: f64,
}

impl Mean {
    /// Whether this mean is surely more than `times` that of `other`.
    fn is_surely(&self, times: f64, other: &Mean) -> bool {
        let ratio = self.nanos / other.nanos;
        let spread = self.spread.max(other.spread);
        let chance = ratio * ratio * spread * (1.0 / self.count + 1.0 / other.count);
        let beyond = ratio - times;
        beyond > 0.0 && beyond * beyond > SLOWER_DEVIATIONS * SLOWER_DEVIATIONS * chance
    }
}

impl RouteTimes {
    const NONE: RouteTimes = RouteTimes {
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

    /// The 20th percentile of the recorded times, in nanoseconds; `None` with fewer than
    /// [`ROUTE_REQUESTS_MIN`].
    fn quick(&self) -> Option<f64> {
        if self.count < ROUTE_REQUESTS_MIN {
            return None;
        }
        let mut left = self.count.div_ceil(PERCENTILE_DIVISOR);
        for (bucket, count) in self.buckets.iter().enumerate() {
            if *count >= left {
                let part = f64::from(left) / f64::from(*count);
                return Some(bound(bucket) + part * (bound(bucket + 1) - bound(bucket)));
            }
            left -= count;
        }
        None
    }

    /// The mean of the recorded times; `None` with fewer than `enough`.
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
        // A bucket is an eighth of a doubling wide, so a smaller variance cannot be measured.
        let spread = (squares / count / (nanos * nanos) - 1.0).max(BUCKET_SPREAD);
        Some(Mean { nanos, spread, count })
    }

    /// Forgets the recorded times, but not the usual ones.
    fn clear(&mut self) {
        if self.count > 0 {
            self.count = 0;
            self.buckets = [0; BUCKETS];
        }
    }
}

/// The times of the requests since the last `clear`, and the usual ones.
#[derive(Clone, Debug)]
pub(super) struct RouteLatencies {
    routes: Box<[RouteTimes]>,
    all: Box<RouteTimes>,
}

impl RouteLatencies {
    /// No recorded times, and no usual ones.
    pub fn new() -> RouteLatencies {
        let routes = (0..ROUTE_HISTOGRAMS_MAX).map(|_| RouteTimes::NONE).collect();
        RouteLatencies { routes, all: Box::new(RouteTimes::NONE) }
    }

    /// Records that a request on `route` took `elapsed`.
    pub fn note(&mut self, route: RouteHash, elapsed: Nanos) {
        let bucket = bucket(elapsed);
        self.all.note(bucket);
        let place = &mut self.routes[(route.bits() % ROUTE_HISTOGRAMS_MAX as u64) as usize];
        if place.route != Some(route) {
            if place.count > 0 {
                return;
            }
            // No request of the other route was recorded since the last `clear`.
            *place = RouteTimes { route: Some(route), ..RouteTimes::NONE };
        }
        place.note(bucket);
    }

    /// The number of requests recorded.
    pub fn count(&self) -> u32 {
        self.all.count
    }

    /// The present times as a multiple of the usual ones: 2 is twice as long. 1 if no usual time is
    /// known. If the known routes have less than half of the requests, the total is compared
    /// instead.
    pub fn ratio(&self) -> f64 {
        let known = |times: &&RouteTimes| times.usual > 0.0 && times.count >= ROUTE_REQUESTS_MIN;
        let seen: u32 = self.routes.iter().filter(known).map(|times| times.count).sum();
        let sum = |over: &[RouteTimes]| {
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

    /// Makes the present means those that [`RouteLatencies::is_slower`] compares later windows
    /// with.
    pub fn set_baseline(&mut self) {
        for times in &mut self.routes {
            times.before = times.mean(ROUTE_REQUESTS_MIN).or(times.before);
        }
    }

    /// Whether requests surely take more than `times` as long as in the window that they are
    /// compared with. Each route is compared by its mean, and the slower ones must have more than
    /// half of the time.
    pub fn is_slower(&self, times: f64) -> bool {
        let (mut sure, mut all) = (0.0, 0.0);
        for route in self.routes.iter().filter(|route| route.count > 0) {
            let Some((before, now)) = route.before.zip(route.mean(EARLY_MEAN_REQUESTS_MIN)) else {
                continue;
            };
            let work = f64::from(route.count) * before.nanos;
            all += work;
            if now.is_surely(times, &before) {
                sure += work;
            }
        }
        sure > 0.5 * all
    }

    /// Blends the present times into the usual ones.
    pub fn learn(&mut self) {
        self.each(|times, quick| {
            let learned = times.learned.min(USUAL_WEIGHT_MAX);
            times.usual = (learned * times.usual + quick) / (learned + 1.0);
            times.learned = learned + 1.0;
        });
    }

    /// Replaces the usual times by the present ones.
    pub fn take_as_usual(&mut self) {
        self.each(|times, quick| (times.usual, times.learned) = (quick, 1.0));
    }

    /// Replaces the usual times by the present ones, and with them the weights in `work`: results
    /// from before are not comparable any longer.
    pub fn learn_anew(&mut self) {
        self.take_as_usual();
        self.each(|times, quick| times.weight = quick);
    }

    /// Takes the present times as usual ones for routes that have none yet.
    pub fn meet(&mut self) {
        self.each(|times, quick| {
            if times.usual == 0.0 {
                (times.usual, times.learned, times.weight) = (quick, 1.0, quick);
            }
        });
    }

    fn each(&mut self, change: impl Fn(&mut RouteTimes, f64)) {
        for times in self.routes.iter_mut().chain([&mut *self.all]) {
            if let Some(quick) = times.quick() {
                change(times, quick);
            }
        }
    }

    /// The work of the recorded requests: each counts as the usual time of its route (`weight`), so
    /// the completed work does not depend on the mix of routes. Requests of unknown routes count as
    /// the usual time of all.
    pub fn work(&self) -> f64 {
        let known = self.routes.iter().filter(|times| times.weight > 0.0);
        let parts = known.map(|times| (times.count, f64::from(times.count) * times.weight));
        let (count, work) = parts.fold((0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
        work + f64::from(self.all.count - count) * self.all.weight.max(1.0)
    }

    /// Begins a new period.
    pub fn clear(&mut self) {
        self.routes.iter_mut().for_each(RouteTimes::clear);
        self.all.clear();
    }
}

fn bucket(elapsed: Nanos) -> usize {
    let time = elapsed.0.max(1 << TIME_MIN_LOG2_NANOS);
    let doublings = time.ilog2();
    let fine = (time >> (doublings - BUCKETS_PER_DOUBLING_LOG2)) as usize
        & ((1 << BUCKETS_PER_DOUBLING_LOG2) - 1);
    ((((doublings - TIME_MIN_LOG2_NANOS) << BUCKETS_PER_DOUBLING_LOG2) as usize) + fine)
        .min(BUCKETS - 1)
}

/// The lower bound of a bucket, in nanoseconds.
fn bound(bucket: usize) -> f64 {
    let (doublings, fine) =
        (bucket >> BUCKETS_PER_DOUBLING_LOG2, bucket & ((1 << BUCKETS_PER_DOUBLING_LOG2) - 1));
    let eighths = (1_u64 << TIME_MIN_LOG2_NANOS << doublings) / (1 << BUCKETS_PER_DOUBLING_LOG2);
    (((1 << BUCKETS_PER_DOUBLING_LOG2) + fine as u64) * eighths) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeySeed;

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
        let route = RouteHash::of(&KeySeed([1; 16]), "GET", "/");
        let mut latency = RouteLatencies::new();
        (1..=1_000).for_each(|ms| latency.note(route, Nanos::from_millis(ms)));
        let quick = latency.routes.iter().find_map(RouteTimes::quick).expect("known");
        assert!((quick / 200e6 - 1.0).abs() < 0.02, "{quick}");
        latency.take_as_usual();
        latency.clear();
        assert_eq!((latency.count(), latency.ratio()), (0, 1.0));
        (1..=1_000).for_each(|ms| latency.note(route, Nanos::from_millis(2 * ms)));
        assert!((latency.ratio() - 2.0).abs() < 0.05, "{}", latency.ratio());
    }
}

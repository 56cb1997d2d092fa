//! Compares learned costs with a model that keeps every cost.

use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::meter::estimate::{COST_DEFAULT, COST_HALF_LIFE, Estimates, RouteHash};
use evenkeel_core::units::{Cost, Nanos, Time};
use proptest::prelude::*;

fn route(name: u8) -> RouteHash {
    RouteHash::of(&KeySeed([7; 16]), "GET", &format!("/page{name}"))
}

fn millis(n: u64) -> Cost {
    Cost::cpu(Nanos::from_millis(n))
}

/// Every cost of one route with its present weight.
#[derive(Default)]
struct Log {
    costs: Vec<(f64, f64)>,
    last: Time,
    /// Ordinary costs that are to come until an odd one is doubted again.
    odd_left: u32,
}

impl Log {
    /// What is believed of a cost.
    fn believed(&mut self, cost: Cost) -> Cost {
        let Some(mean) = self.mean() else {
            self.odd_left = 30;
            return cost;
        };
        let most = Cost(4 * (mean + 0.5) as u64);
        let before = self.odd_left;
        self.odd_left = if cost > most { 31 } else { before.saturating_sub(1) };
        if before == 0 { cost.min(most) } else { cost }
    }

    fn learn(&mut self, cost: Cost, most: f64, now: Time) {
        let mut halvings = now.since(self.last).0 as f64 / COST_HALF_LIFE.0 as f64;
        let mut faded = 1.0;
        while halvings >= 1.0 {
            faded /= 2.0;
            halvings -= 1.0;
        }
        faded *= 1.0 - halvings / 2.0;
        let total: f64 = self.costs.iter().map(|(_, weight)| weight * faded).sum();
        let faded = if total > most { faded * most / total } else { faded };
        self.costs.iter_mut().for_each(|(_, weight)| *weight *= faded);
        self.costs.push((cost.0 as f64, 1.0));
        self.last = now;
    }

    fn mean(&self) -> Option<f64> {
        let weight: f64 = self.costs.iter().map(|(_, weight)| weight).sum();
        let sum: f64 = self.costs.iter().map(|(cost, weight)| cost * weight).sum();
        (weight > 0.0).then(|| sum / weight)
    }
}

proptest! {
    #[test]
    fn the_mean_is_that_of_a_full_log(
        events in prop::collection::vec((0..6_u8, 0..500_000_000_u64, 0..900_u64), 1..60),
    ) {
        // The table has room for all routes, so no route is evicted.
        let mut estimates = Estimates::new(1 << 10);
        let mut logs: [Log; 6] = Default::default();
        let (mut unknown, mut now) = (Log::default(), Time(1 << 40));
        for (name, cost, later) in events {
            now = now.plus(Nanos::from_secs(later));
            estimates.learn(route(name), Cost(cost), now);
            let believed = logs[usize::from(name)].believed(Cost(cost));
            let log = &mut logs[usize::from(name)];
            if log.mean().is_none() {
                unknown.learn(believed, 31.0, now);
            }
            log.learn(believed, 31.0, now);
            for (name, log) in logs.iter().enumerate() {
                let expected = log.mean().or(unknown.mean()).unwrap_or_default();
                let got = estimates.of(route(name as u8)).0 as f64;
                prop_assert!((got - expected).abs() <= 1.0 + expected * 1e-9, "{got} {expected}");
            }
        }
    }

    /// For random input: no more routes than configured, and no estimate outside the observed
    /// costs.
    #[test]
    fn memory_and_estimates_are_bounded(
        events in prop::collection::vec((any::<u8>(), any::<u64>(), any::<u64>()), 1..80),
    ) {
        let mut estimates = Estimates::new(16);
        let (mut least, mut most) = (u64::MAX, 0);
        for (name, cost, now) in events {
            estimates.learn(route(name), Cost(cost), Time(now));
            let cost = cost.min(3_600_000_000_000);
            (least, most) = (least.min(cost), most.max(cost));
            let (got, spread) = (estimates.of(route(name)).0, estimates.spread(route(name)).0);
            prop_assert!((least.saturating_sub(1)..=most + 1).contains(&got));
            prop_assert!(spread <= most - least + 1);
            prop_assert!(estimates.len() <= 16);
        }
    }
}

/// A site of light pages, known for long: a flood of unknown routes is known after a few requests.
#[test]
fn what_is_not_known_costs_what_unknown_routes_cost() {
    let mut estimates = Estimates::new(4_096);
    for n in 0..2_000 {
        estimates.learn(route(n as u8 % 4), millis(5), Time(n));
    }
    let flood =
        |n: u64| RouteHash::of(&KeySeed([7; 16]), "GET", &format!("/x{}", "y".repeat(n as usize)));
    assert_eq!(estimates.of(flood(0)), millis(5));
    for n in 1..=4 {
        let learned = estimates.learn_request(flood(n), None, millis(300), Time(2_000 + n));
        assert_eq!(learned[2], Some((RouteHash::UNKNOWN, estimates.of(flood(0)))));
    }
    assert!(estimates.of(flood(0)) >= millis(150), "{:?}", estimates.of(flood(0)));
    assert_eq!(estimates.learn_request(flood(1), None, millis(300), Time(3_000))[2], None);
}

#[test]
fn what_is_not_known_is_average() {
    let mut estimates = Estimates::new(64);
    assert!(estimates.is_empty());
    assert_eq!(estimates.of(route(1)), COST_DEFAULT);
    estimates.learn(route(1), millis(10), Time(1));
    estimates.learn(route(2), millis(30), Time(2));
    assert_eq!(estimates.of(route(1)), millis(10));
    assert_eq!(estimates.of(route(3)), millis(20));
}

#[test]
fn a_route_that_changes_is_learned_anew() {
    let mut estimates = Estimates::new(64);
    (0..1_000).for_each(|i| _ = estimates.learn(route(1), millis(2), Time(i)));
    (0..100).for_each(|i| _ = estimates.learn(route(1), millis(200), Time(1_000 + i)));
    let got = estimates.of(route(1));
    assert!(got > millis(190) && got <= millis(200), "{got:?}");
}

fn client(n: u64) -> KeyHash {
    KeyHash::from_bits(n + 1)
}

/// A request of `from` on route 1 costs this many milliseconds. Returns what was expected, in
/// nanoseconds.
fn request(estimates: &mut Estimates, from: u64, ms: u64, now: u64) -> u64 {
    let forecast = estimates.forecast(route(1), Some(client(from)));
    estimates.learn_request(route(1), forecast.own, millis(ms), Time(now));
    forecast.cost.0
}

/// The machine stood still for half a second; later the route really becomes heavy.
#[test]
fn one_odd_cost_is_not_believed_and_several_are() {
    let mut estimates = Estimates::new(64);
    (0..100).for_each(|i| _ = estimates.learn(route(1), millis(2), Time(i)));
    estimates.learn(route(1), millis(500), Time(100));
    assert!(estimates.of(route(1)) < millis(3), "{:?}", estimates.of(route(1)));
    (0..3).for_each(|i| _ = estimates.learn(route(1), millis(500), Time(101 + i)));
    assert!(estimates.of(route(1)) > millis(40), "{:?}", estimates.of(route(1)));
}

#[test]
fn a_client_is_expected_to_cost_what_it_costs() {
    let mut estimates = Estimates::new(64).with_clients(1_000);
    for n in 0..40 {
        (0..20).for_each(|crawler| _ = request(&mut estimates, 100 + crawler, 300, n));
        request(&mut estimates, 1, 5, n);
    }
    let of = |from| estimates.forecast(route(1), Some(client(from))).cost;
    assert_eq!(of(1), millis(5));
    assert!(of(105) > millis(280) && of(99) > millis(200), "{:?} and {:?}", of(105), of(99));
    // Another client than before, and no client at all, are expected to cost what clients do.
    let unknown = estimates.forecast(route(1), None);
    assert_eq!((unknown.cost, unknown.own), (estimates.of(route(1)), None));
}

/// A crawler sends more requests on a route than all people together.
#[test]
fn one_client_does_not_make_a_route_heavy_for_others() {
    let mut estimates = Estimates::new(64).with_clients(10_000);
    for n in 0..200 {
        (0..10).for_each(|_| _ = request(&mut estimates, 0, 300, n));
        request(&mut estimates, 1_000 + n, 5, n);
    }
    let new = estimates.forecast(route(1), Some(client(99)));
    assert!(new.cost < millis(100) && !new.is_guess, "{new:?}");
    assert!(estimates.forecast(route(1), Some(client(0))).cost > millis(280));
}

/// A flood of other clients does not displace one that comes regularly.
#[test]
fn a_flood_of_clients_leaves_those_that_come_again() {
    let mut estimates = Estimates::new(64).with_clients(256);
    let mut forgotten = 0;
    for n in 0..20_000 {
        let now = n * 10_000_000;
        request(&mut estimates, 1_000 + n, 300, now);
        if n % 100 == 0 {
            for person in 0..20 {
                let wrong = request(&mut estimates, person, 5, now) > millis(20).0;
                forgotten += u64::from(wrong && n >= 1_000);
            }
        }
    }
    assert!(forgotten < 20 * 190 / 20, "{forgotten} of {}", 20 * 190);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a client mixes, what is expected of it adds up to nearly what it costs: light
    /// requests do not buy heavy ones. One odd cost in 32 may pass for a light one.
    #[test]
    fn a_client_cannot_mask_heavy_requests(
        heavy in prop::collection::vec(any::<bool>(), 100..400),
        rarer in 0..6_usize,
        ms in 10..500_u64,
    ) {
        let mut estimates = Estimates::new(64).with_clients(1_000);
        let (mut expected, mut actual, mut odd) = (0, 0, 0);
        for (n, heavy) in heavy.iter().enumerate() {
            (0..20).for_each(|from| _ = request(&mut estimates, 1 + from, 2, n as u64));
            let ms = if *heavy && n % (rarer + 1) == 0 { ms } else { 2 };
            odd += u64::from(ms > 2);
            expected += request(&mut estimates, 0, ms, n as u64);
            actual += millis(ms).0;
        }
        let passed = (heavy.len() as u64 / 32 + 8).min(odd) * millis(ms).0;
        prop_assert!(expected + passed >= actual * 7 / 10, "{expected} of {actual}");
    }
}

/// A crawler that requests paths that do not exist does not evict the learned costs of the site.
#[test]
fn a_flood_of_new_routes_leaves_those_in_use() {
    let mut estimates = Estimates::new(256);
    let now = |i: u64| Time(1 << 60).plus(Nanos::from_millis(i));
    for i in 0..20_000 {
        if i % 100 == 0 {
            (0..20).for_each(|name| _ = estimates.learn(route(name), millis(50), now(i)));
        }
        let path = format!("/nowhere/x{}y", i);
        estimates.learn(RouteHash::of(&KeySeed([7; 16]), "GET", &path), millis(1), now(i));
    }
    let kept = (0..20).filter(|name| estimates.of(route(*name)) == millis(50)).count();
    assert!(kept >= 19, "{kept} of 20");
    assert!(estimates.len() <= 256);
}

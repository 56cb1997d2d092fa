//! Compares learned costs with a model that keeps every cost.

use evenkeel_core::key::KeySeed;
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
}

impl Log {
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
        let (mut all, mut now) = (Log::default(), Time(1 << 40));
        for (name, cost, later) in events {
            now = now.plus(Nanos::from_secs(later));
            estimates.learn(route(name), Cost(cost), now);
            logs[usize::from(name)].learn(Cost(cost), 31.0, now);
            all.learn(Cost(cost), 1_023.0, now);
            for (name, log) in logs.iter().enumerate() {
                let expected = log.mean().or(all.mean()).unwrap_or_default();
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

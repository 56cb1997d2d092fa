//! The rate limit quota service: the shares of Envoys, with minimal Envoys on a simulated clock.
//! The tests check the shares by the requests that the Envoys let pass.

mod envoy;
mod wire;

use crate::ask::Service;
use bucket_action::BucketAction as Action;
use evenkeel_config::settings::RlqsSettings;
use evenkeel_core::key::KeySeed;
use evenkeel_core::units::{SECOND, Time};
use evenkeel_ratelimit::quota::share::{ShareClaim, balance, parts};
use evenkeel_ratelimit::quota::state::{QuotaMoment, QuotaState};
use evenkeel_ratelimit::wire::quota::rate_limit_quota_response::BucketAction;
use evenkeel_ratelimit::wire::quota::rate_limit_quota_response::bucket_action;
use evenkeel_ratelimit::wire::rate_limit_strategy::{BlanketRule, Strategy};
use evenkeel_ratelimit::wire::reports::{UsageReport, UsageReports};
use proptest::prelude::{Just, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as _;
use std::collections::HashMap;
use std::task::Waker;
use std::time::Duration;

const RULES: &str = "
domain: d
descriptors:
- {key: name, rate_limit: {unit: minute, requests_per_unit: 600}}
- {key: name, value: free, rate_limit: {unlimited: true}}
- {key: name, value: none, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: name, value: watched, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: fast, rate_limit: {unit: second, requests_per_unit: 100}}
- {key: smooth, rate_limit: {unit: minute, requests_per_unit: 60, algorithm: token_bucket}}
- key: zone
  value: z
  descriptors:
  - {key: app, rate_limit: {unit: hour, requests_per_unit: 7}}
";

const SETTINGS: RlqsSettings = RlqsSettings {
    ttl: Duration::from_secs(60),
    idle: Duration::from_secs(600),
    streams_max: 100,
    buckets_max: 1_000,
    per_unit: false,
};

/// The rule by which an Envoy decides about requests.
#[derive(Clone, Debug, PartialEq)]
enum Assigned {
    Nothing,
    All,
    None,
    /// The tokens left, the capacity, and the tokens added each second.
    Tokens(f64, f64, f64),
    Abandoned,
}

/// One bucket of one Envoy, with the behaviour of Envoy 1.40.
#[derive(Debug)]
struct Held {
    assigned: Assigned,
    until: Time,
    allowed: u64,
    denied: u64,
    passed: u64,
    refused: u64,
}

struct Envoy {
    stream: u64,
    held: HashMap<String, Held>,
}

struct Scene {
    service: Service,
    book: QuotaState,
    now: Time,
}

impl Scene {
    fn new() -> Scene {
        Scene::with(SETTINGS)
    }

    fn with(settings: RlqsSettings) -> Scene {
        let book = QuotaState::new(settings, KeySeed([3; 16]));
        // The beginning of a minute.
        Scene { service: Service::new(RULES), book, now: Time(6_000 * SECOND) }
    }

    fn moment(&self) -> QuotaMoment {
        QuotaMoment { steady: self.now, wall: self.now }
    }

    fn envoy(&mut self) -> Envoy {
        Envoy { stream: self.book.open().expect("room"), held: HashMap::new() }
    }

    /// Advances the clock by at most a second.
    fn pass(&mut self, millis: u64) {
        let before = self.now.second();
        self.now = Time(self.now.0 + millis * 1_000_000);
        if self.now.second() != before {
            self.book.tick(&self.service.decider, self.moment());
        }
    }

    /// Sends a request to an Envoy and returns whether it passes. The first request of a bucket is
    /// reported at once.
    fn ask(&mut self, envoy: &mut Envoy, name: &str) -> bool {
        let fresh = !envoy.held.contains_key(name);
        let held = envoy.held.entry(name.to_owned()).or_insert(Held {
            assigned: Assigned::Nothing,
            until: Time(u64::MAX),
            allowed: 0,
            denied: 0,
            passed: 0,
            refused: 0,
        });
        let passes = held.ask(self.now);
        if fresh {
            self.report(envoy, Some(name));
        }
        passes
    }

    fn report(&mut self, envoy: &mut Envoy, only: Option<&str>) {
        let mut usages = Vec::new();
        for (name, held) in &mut envoy.held {
            if only.is_none_or(|only| only == name) {
                let (allowed, denied) =
                    (std::mem::take(&mut held.allowed), std::mem::take(&mut held.denied));
                usages.push(UsageReport { name: pairs(name), allowed, denied });
            }
        }
        let reports = UsageReports { domain: "d", usages, left_out: 0 };
        let moment = self.moment();
        self.book.report(envoy.stream, reports, &self.service.decider, moment).expect("a domain");
    }

    /// Delivers the pending actions to an Envoy.
    fn tell(&mut self, envoy: &mut Envoy) -> Vec<BucketAction> {
        let actions = self.book.take_actions(envoy.stream, Waker::noop(), self.moment());
        for action in &actions {
            envoy.apply(action, self.now);
        }
        actions
    }
}

fn pairs(name: &str) -> Vec<(&str, &str)> {
    let mut pairs: Vec<_> =
        name.split(',').map(|pair| pair.split_once('=').expect("key=value")).collect();
    pairs.sort_unstable();
    pairs
}

impl Held {
    fn ask(&mut self, now: Time) -> bool {
        if now >= self.until {
            self.assigned = Assigned::Nothing;
        }
        let passes = match &mut self.assigned {
            Assigned::Nothing | Assigned::All => true,
            Assigned::None => false,
            Assigned::Tokens(left, ..) if *left >= 1.0 => {
                *left -= 1.0;
                true
            }
            Assigned::Tokens(..) => false,
            Assigned::Abandoned => panic!("it is gone"),
        };
        self.allowed += u64::from(passes);
        self.passed += u64::from(passes);
        self.denied += u64::from(!passes);
        self.refused += u64::from(!passes);
        passes
    }

    fn fill(&mut self, millis: u64) {
        if let Assigned::Tokens(left, most, rate) = &mut self.assigned {
            *left = most.min(*left + *rate * millis as f64 / 1_000.0);
        }
    }
}

impl Envoy {
    fn apply(&mut self, action: &BucketAction, now: Time) {
        let id = action.bucket_id.as_ref().expect("a bucket");
        let mut pairs: Vec<_> = id.bucket.iter().map(|(k, v)| format!("{k}={v}")).collect();
        pairs.sort();
        let known = self.held.iter_mut().find(|(name, _)| {
            let mut own: Vec<&str> = name.split(',').collect();
            own.sort_unstable();
            own == pairs
        });
        let (_, held) = known.expect("a bucket that was reported");
        match action.bucket_action.as_ref().expect("an action") {
            Action::AbandonAction(_) => held.assigned = Assigned::Abandoned,
            Action::QuotaAssignmentAction(assignment) => {
                let ttl = assignment.assignment_time_to_live.expect("a time").seconds as u64;
                let strategy = assignment.rate_limit_strategy.and_then(|all| all.strategy);
                held.assigned = assigned(&strategy.expect("a strategy"), &held.assigned);
                held.until = Time(now.0 + ttl * SECOND);
            }
        }
    }
}

/// Applies an assignment as Envoy does: the same bucket continues, and a new one begins as full as
/// the previous one was.
fn assigned(strategy: &Strategy, before: &Assigned) -> Assigned {
    match strategy {
        Strategy::BlanketRule(rule) if *rule == i32::from(BlanketRule::AllowAll) => Assigned::All,
        Strategy::BlanketRule(_) => Assigned::None,
        Strategy::RequestsPerTimeUnit(_) => before.clone(),
        Strategy::TokenBucket(bucket) => {
            let most = f64::from(bucket.max_tokens);
            let interval = bucket.fill_interval.expect("an interval").seconds as f64;
            let rate = f64::from(bucket.tokens_per_fill.expect("a number")) / interval;
            let full = match before {
                Assigned::Tokens(left, most, _) => left / most,
                _ => 1.0,
            };
            Assigned::Tokens(most * full, most, rate)
        }
    }
}

/// Runs Envoys, each with a number of requests per second to one bucket, for a number of seconds.
/// Returns the number of passed and refused requests of each Envoy.
fn run(
    scene: &mut Scene,
    envoys: &mut [(Envoy, f64)],
    seconds: u64,
    interval: u64,
) -> Vec<(u64, u64)> {
    let mut owed = vec![0.0; envoys.len()];
    let before: Vec<(u64, u64)> = envoys.iter().map(|(envoy, _)| counts(envoy)).collect();
    for step in 0..seconds * 10 {
        for (index, (envoy, rate)) in envoys.iter_mut().enumerate() {
            owed[index] += *rate / 10.0;
            while owed[index] >= 1.0 {
                owed[index] -= 1.0;
                scene.ask(envoy, "name=x");
                scene.tell(envoy);
            }
            // Each Envoy reports at a different moment.
            if (step + index as u64 * 3).is_multiple_of(interval * 10) {
                scene.report(envoy, None);
            }
            scene.tell(envoy);
            envoy.held.values_mut().for_each(|held| held.fill(100));
        }
        scene.pass(100);
    }
    let after = envoys.iter().map(|(envoy, _)| counts(envoy));
    after.zip(before).map(|(after, before)| (after.0 - before.0, after.1 - before.1)).collect()
}

fn counts(envoy: &Envoy) -> (u64, u64) {
    let all = envoy.held.values();
    all.fold((0, 0), |(passed, refused), held| (passed + held.passed, refused + held.refused))
}

fn told(scene: &mut Scene, envoy: &mut Envoy, name: &str) -> Assigned {
    scene.ask(envoy, name);
    scene.tell(envoy);
    envoy.held[name].assigned.clone()
}

#[test]
fn the_first_report_is_answered_with_what_the_rules_say() {
    let mut scene = Scene::new();
    let mut envoy = scene.envoy();
    // The first request has passed already.
    let year = 1.0 / (365.0 * 86_400.0);
    assert_eq!(told(&mut scene, &mut envoy, "name=x"), Assigned::Tokens(599.0, 599.0, year));
    assert_eq!(told(&mut scene, &mut envoy, "name=free"), Assigned::All);
    assert_eq!(told(&mut scene, &mut envoy, "name=none"), Assigned::None);
    assert_eq!(told(&mut scene, &mut envoy, "name=watched"), Assigned::All, "it refuses nobody");
    assert_eq!(told(&mut scene, &mut envoy, "nobody=knows"), Assigned::All);
    assert_eq!(told(&mut scene, &mut envoy, "fast=x"), Assigned::Tokens(100.0, 100.0, 100.0));
    assert_eq!(told(&mut scene, &mut envoy, "smooth=x"), Assigned::Tokens(60.0, 60.0, 1.0));
    assert_eq!(scene.service.figure("d.name_watched", "total_hits"), 1);
}

#[test]
fn pairs_are_taken_in_the_order_of_the_rules_and_counted_with_the_descriptor() {
    let mut scene = Scene::new();
    let mut envoy = scene.envoy();
    let seven = told(&mut scene, &mut envoy, "app=a,zone=z");
    assert!(matches!(seven, Assigned::Tokens(6.0, 6.0, _)), "{seven:?}");
    scene.service.now = scene.now;
    assert_eq!(scene.service.ask("d: zone=z,app=a"), "OK [7/HOUR 5]");
    // Hits that other callers requested are not shared again.
    scene.service.ask("d+5: zone=z,app=a");
    scene.report(&mut envoy, None);
    scene.tell(&mut envoy);
    assert_eq!(envoy.held["app=a,zone=z"].assigned, Assigned::None);
}

#[test]
fn requests_per_unit_are_told_to_whom_wants_them() {
    let mut scene = Scene::with(RlqsSettings { per_unit: true, ..SETTINGS });
    let mut envoy = scene.envoy();
    scene.ask(&mut envoy, "name=x");
    let actions = scene.tell(&mut envoy);
    let shown = format!("{actions:?}");
    assert!(shown.contains("requests_per_time_unit: 600, time_unit: Minute"), "{shown}");
}

#[test]
fn one_envoy_gets_the_whole_limit_and_no_more() {
    let mut scene = Scene::new();
    let mut envoys = [(scene.envoy(), 30.0)];
    for window in 0..3 {
        let passed = run(&mut scene, &mut envoys, 60, 5)[0].0;
        assert_eq!(passed, 600, "window {window}");
    }
}

#[test]
fn envoys_share_by_demand_and_what_one_leaves_is_for_the_others() {
    let mut scene = Scene::new();
    let mut envoys = [(scene.envoy(), 20.0), (scene.envoy(), 20.0), (scene.envoy(), 1.0)];
    run(&mut scene, &mut envoys, 60, 5);
    let counts = run(&mut scene, &mut envoys, 120, 5);
    assert_eq!(counts[2].1, 0, "who wants little is never refused: {counts:?}");
    let (a, b) = (counts[0].0 as f64, counts[1].0 as f64);
    assert!((a / b - 1.0).abs() < 0.1, "{counts:?}");
    let all: u64 = counts.iter().map(|(passed, _)| passed).sum();
    assert!((1_150..=1_224).contains(&all), "{counts:?}");
}

#[test]
fn a_newcomer_finds_its_part_and_one_that_leaves_gives_it_back() {
    let mut scene = Scene::new();
    let mut envoys = vec![(scene.envoy(), 8.0)];
    run(&mut scene, &mut envoys, 10, 5);
    envoys.push((scene.envoy(), 8.0));
    let counts = run(&mut scene, &mut envoys, 10, 5);
    assert_eq!((counts[0].1, counts[1].1), (0, 0), "there is enough for both: {counts:?}");
    let (gone, _) = envoys.remove(0);
    scene.book.close(gone.stream);
    envoys[0].1 = 9.9;
    run(&mut scene, &mut envoys, 40, 5);
    let counts = run(&mut scene, &mut envoys, 60, 5);
    assert_eq!(counts[0].1, 0, "it has all of it: {counts:?}");
    assert_eq!(scene.book.sizes(), (1, 1));
}

#[test]
fn assignments_are_renewed_before_they_expire_and_given_up_when_nobody_uses_them() {
    let mut scene = Scene::new();
    let mut envoy = scene.envoy();
    for name in ["name=x", "name=free", "name=none", "fast=x"] {
        scene.ask(&mut envoy, name);
    }
    scene.tell(&mut envoy);
    for _ in 0..598 {
        scene.pass(1_000);
        scene.tell(&mut envoy);
        for (name, held) in &envoy.held {
            assert!(scene.now < held.until, "{name} has expired at {:?}", scene.now);
        }
    }
    for _ in 0..4 {
        scene.pass(1_000);
        scene.tell(&mut envoy);
    }
    assert!(envoy.held.values().all(|held| held.assigned == Assigned::Abandoned));
    assert_eq!(scene.book.sizes(), (1, 0));
}

#[test]
fn rules_that_change_take_effect_at_the_next_report() {
    let mut scene = Scene::new();
    let mut envoy = scene.envoy();
    told(&mut scene, &mut envoy, "name=x");
    scene.service.load(&RULES.replace("requests_per_unit: 600", "requests_per_unit: 50"));
    scene.report(&mut envoy, None);
    scene.tell(&mut envoy);
    assert!(matches!(envoy.held["name=x"].assigned, Assigned::Tokens(49.0, ..)));
    scene.service.load("{domain: d}");
    scene.report(&mut envoy, None);
    scene.tell(&mut envoy);
    assert_eq!(envoy.held["name=x"].assigned, Assigned::All);
}

#[test]
fn streams_and_buckets_are_bounded() {
    let mut scene = Scene::with(RlqsSettings { streams_max: 2, buckets_max: 3, ..SETTINGS });
    let (mut a, mut b) = (scene.envoy(), scene.envoy());
    assert_eq!(scene.book.open(), None);
    for n in 0..5 {
        scene.ask(&mut a, &format!("name=a{n}"));
        scene.ask(&mut b, &format!("name=b{n}"));
    }
    assert_eq!(scene.book.sizes(), (2, 3));
    assert_eq!(scene.service.figure("d.name", "total_hits"), 10, "all were charged");
    scene.book.close(a.stream);
    scene.book.close(b.stream);
    assert_eq!(scene.book.sizes(), (0, 0));
}

#[test]
fn a_stream_has_one_domain() {
    let mut scene = Scene::new();
    let envoy = scene.envoy();
    let moment = scene.moment();
    let mut report = |domain| {
        let reports = UsageReports { domain, ..UsageReports::default() };
        scene.book.report(envoy.stream, reports, &scene.service.decider, moment).is_ok()
    };
    assert!(!report(""));
    assert!(report("d"));
    assert!(report("") && report("d"));
    assert!(!report("e"));
}

#[test]
fn many_envoys_are_served_within_a_second() {
    let mut scene = Scene::new();
    let mut envoys: Vec<(Envoy, f64)> = (0..90).map(|_| (scene.envoy(), 0.08)).collect();
    run(&mut scene, &mut envoys, 120, 5);
    let counts = run(&mut scene, &mut envoys, 60, 5);
    let refused: u64 = counts.iter().map(|(_, refused)| refused).sum();
    let all: u64 = counts.iter().map(|(passed, _)| passed).sum();
    assert_eq!(refused, 0, "{counts:?}");
    assert!(all >= 90 * 4, "{counts:?}");
}

fn claim() -> impl proptest::strategy::Strategy<Value = ShareClaim> {
    let demand = prop_oneof![Just(None), (0_u64..2_000).prop_map(Some)];
    (0_u64..500, 0_u64..500, 0_u64..500, demand, any::<bool>(), any::<bool>()).prop_map(
        |(held, used, unreported, demand, due, hungry)| ShareClaim {
            held,
            used,
            unreported: unreported.min(held),
            demand,
            due,
            hungry,
        },
    )
}

proptest! {
    #[test]
    fn parts_are_all_there_is_and_nobody_gets_less_than_its_due(
        left in 0_u64..3_000,
        claims in prop::collection::vec(claim(), 1..20),
    ) {
        let parts = parts(left, &claims);
        prop_assert_eq!(parts.iter().sum::<u64>(), left);
        let had = |claim: &ShareClaim| claim.used + claim.unreported;
        let total = left + claims.iter().map(had).sum::<u64>();
        let fair = total / claims.len() as u64;
        for (part, claim) in parts.iter().zip(&claims) {
            let wants = claim.demand.map_or(u64::MAX, |demand| demand + had(claim));
            let due = wants.min(fair * 3 / 4);
            // Buckets that used more than an equal share leave less for the others.
            let greedy = claims.iter().any(|claim| had(claim) > fair);
            prop_assert!(greedy || part + had(claim) >= due, "{part} of {total} for {claim:?}");
        }
        let wanted: u64 = claims.iter().map(|c| c.demand.unwrap_or(10_000)).sum();
        let least = claims.len() as u64 * (fair / 4);
        if wanted + least <= left {
            let served = |(part, claim): (&u64, &ShareClaim)| *part >= claim.demand.unwrap_or(0);
            prop_assert!(parts.iter().zip(&claims).all(served), "{parts:?} {claims:?}");
        }
    }

    #[test]
    fn what_is_held_is_never_more_than_there_is(
        total in 0_u64..3_000,
        claims in prop::collection::vec(claim(), 1..20),
    ) {
        let given = balance(total, &claims);
        let holds = claims.iter().zip(&given).map(|(claim, given)| {
            given.map_or(claim.held, |part| part + claim.unreported)
        });
        let unreported: u64 = claims.iter().map(|claim| claim.unreported).sum();
        prop_assert!(holds.sum::<u64>() <= total.max(unreported), "{given:?}");
        for (claim, given) in claims.iter().zip(&given) {
            prop_assert!(!claim.due || given.is_some(), "{claim:?} is due");
        }
    }

    #[test]
    fn what_passes_is_the_limit_and_what_was_not_told_yet(
        rates in prop::collection::vec(0.0_f64..30.0, 1..6),
        interval in 1_u64..8,
    ) {
        let mut scene = Scene::new();
        let mut envoys: Vec<(Envoy, f64)> =
            rates.iter().map(|rate| (scene.envoy(), *rate)).collect();
        run(&mut scene, &mut envoys, 60, interval);
        let counts = run(&mut scene, &mut envoys, 60, interval);
        let all: u64 = counts.iter().map(|(passed, _)| passed).sum();
        // The requests that may pass between two reports while other Envoys get their shares.
        let untold = rates.iter().sum::<f64>() * interval as f64;
        prop_assert!(all as f64 <= 600.0 + untold.min(60.0) + 1.0, "{all} of {rates:?}");
        let wanted: f64 = rates.iter().sum::<f64>() * 60.0;
        if wanted < 420.0 {
            let refused: u64 = counts.iter().map(|(_, refused)| refused).sum();
            prop_assert_eq!(refused, 0, "{:?}", counts);
        }
    }
}

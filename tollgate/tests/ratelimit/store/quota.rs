//! What Envoys report that let requests pass by themselves: counted for all instances.

use super::property::{local, settings};
use super::redis::Redis;
use std::sync::Arc;
use std::time::Duration;
use tollgate::clock::Clock;
use tollgate::config::settings::RatelimitAnswers;
use tollgate::config::settings::store::{Store as Settings, StoreFail};
use tollgate::doors::ratelimit::decide::Decider;
use tollgate::doors::ratelimit::decide::used::{Bound, Used};
use tollgate::engine::windows::Counters;
use tollgate::store::redis::Store;
use tollgate::watch::Watch;
use tollgate_core::key::Seed;
use tollgate_core::units::Nanos;

const RULES: &str = "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, \
                     requests_per_unit: 100}}\n";

/// An instance whose seed is its own, and what tells its store.
fn instance(settings: &Settings, number: u8) -> (Decider, Arc<Store>) {
    let clock = Clock::start();
    let counters = Arc::new(Counters::new(100, clock));
    let store = Store::new(settings, Arc::clone(&counters), clock, &Watch::new(clock.now()));
    let answers = RatelimitAnswers::default();
    let decider = Decider::new(answers, counters, Seed([number; 16]), clock);
    decider.rules.store(Some(Arc::new(crate::ask::rules(RULES))));
    (decider.with_store(Some(Arc::clone(&store))), store)
}

/// Charges what an Envoy let pass; what is left of the limit, as this instance knows.
fn left(decider: &Decider, allowed: u64) -> u32 {
    let (now, elapsed) = (decider.now(), Nanos::ZERO);
    let used = Used { allowed, denied: 0, elapsed, before: 0 };
    let (bound, _) = decider.charge("d", &mut [("a", "v")], used, now);
    let Bound::Limit(key, limit) = bound else { panic!("{bound:?}") };
    decider.standing(key, limit, now).left
}

#[test]
fn what_envoys_report_here_is_used_up_there() {
    let redis = Redis::start(&[]);
    let settings =
        Settings { fail: StoreFail::Local, period: Duration::from_millis(10), ..settings(&redis) };
    local(async {
        let two = [instance(&settings, 1), instance(&settings, 2)];
        let _lanes = two.each_ref().map(|(_, store)| store.lane());
        assert_eq!(left(&two[0].0, 30), 70);
        let key = "tollgate:window:86400s:d:a=v";
        let count = || redis.text(&["GET", key]);
        let told = async |wanted: &str| {
            while count() != wanted {
                let pause = std::future::pending::<()>();
                tokio::time::timeout(Duration::from_millis(1), pause).await.ok();
            }
        };
        told("30").await;
        // Of the other's it hears with the answer to its own.
        assert_eq!(left(&two[1].0, 5), 95);
        told("35").await;
        while left(&two[1].0, 0) != 65 {
            let pause = std::future::pending::<()>();
            tokio::time::timeout(Duration::from_millis(1), pause).await.ok();
        }
    });
}

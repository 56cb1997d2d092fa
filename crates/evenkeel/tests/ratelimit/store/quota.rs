//! Usage that is reported by Envoys which decide by themselves, counted for all instances.

use super::property::{local, settings, settings_of};
use super::redis::Redis;
use super::several::{all_good, cluster, counted, kill_a_master, masters, move_a_slot};
use evenkeel_config::settings::RatelimitAnswers;
use evenkeel_config::settings::store::{StoreFail, StoreLayout, StoreSettings as Settings};
use evenkeel_core::key::KeySeed;
use evenkeel_core::units::Nanos;
use evenkeel_engine::windows::Counters;
use evenkeel_ratelimit::decide::RatelimitDecider;
use evenkeel_ratelimit::decide::usage::{BucketBound, BucketUsage};
use evenkeel_runtime::clock::Clock;
use evenkeel_store::redis::{RedisStore, StoreLane};
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::store::StoreCounts;
use evenkeel_testing::wait::until_async;
use evenkeel_testing::wait::wait_for;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;

const RULES: &str = "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: year, \
                     requests_per_unit: 100}}\n";

/// An instance with a seed of its own, and its handle of the store.
fn instance(settings: &Settings, number: u8) -> (RatelimitDecider, Arc<RedisStore>) {
    let clock = Clock::start();
    let counters = Arc::new(Counters::new(100, clock));
    let store = RedisStore::new(settings, Arc::clone(&counters), clock, &Watch::new(clock.now()));
    let answers = RatelimitAnswers::default();
    let decider = RatelimitDecider::new(answers, counters, KeySeed([number; 16]), clock);
    decider.rules.store(Some(Arc::new(crate::ask::rules(RULES))));
    (decider.with_store(Some(Arc::clone(&store))), store)
}

/// Charges the requests that an Envoy let pass, and returns what is left of the limit as far as
/// this instance knows.
fn left_of(decider: &RatelimitDecider, value: &str, allowed: u64) -> u32 {
    let (now, elapsed) = (decider.now(), Nanos::ZERO);
    let used = BucketUsage { allowed, denied: 0, elapsed, before: 0 };
    let (bound, _) = decider.charge("d", &mut [("a", value)], used, now);
    let BucketBound::Limit(key, limit) = bound else { panic!("{bound:?}") };
    decider.standing(key, limit, now).left
}

fn left(decider: &RatelimitDecider, allowed: u64) -> u32 {
    left_of(decider, "v", allowed)
}

#[test]
fn what_envoys_report_here_is_used_up_there() {
    let redis = Redis::start(&[]);
    let settings =
        Settings { fail: StoreFail::Local, period: Duration::from_millis(10), ..settings(&redis) };
    local(async {
        let two = [instance(&settings, 1), instance(&settings, 2)];
        let _lanes = two.each_ref().map(|(_, store)| StoreLane::open(store));
        assert_eq!(left(&two[0].0, 30), 70);
        let key = "evenkeel:window:31536000s:d:a=v";
        let count = || redis.text(&["GET", key]);
        let told = async |wanted: &str| until_async(wanted, || count() == wanted).await;
        told("30").await;
        // It learns of the other instance's hits with the answer to its own.
        assert_eq!(left(&two[1].0, 5), 95);
        told("35").await;
        until_async("65 left", || left(&two[1].0, 0) == 65).await;
    });
}

/// Reports to these stores on the current thread until `stop`. Sends the metrics of its lanes to
/// `told` once they are connected.
fn tell(
    stores: &[Arc<RedisStore>],
    told: &mpsc::SyncSender<Vec<Arc<StoreCounts>>>,
    stop: oneshot::Receiver<()>,
) {
    local(async {
        let lanes: Vec<_> = stores.iter().map(StoreLane::open).collect();
        for lane in &lanes {
            all_good(lane).await;
        }
        let counts = lanes.iter().map(|lane| Arc::clone(&lane.store.counts)).collect();
        told.send(counts).expect("somebody waits");
        let _ = stop.await;
    });
}

/// Two instances that use one cluster, with the metrics of their lanes.
struct Two {
    instances: [(RatelimitDecider, Arc<RedisStore>); 2],
    counts: Vec<Arc<StoreCounts>>,
}

const VALUES: u64 = 30;

impl Two {
    /// The number of hits reported to the cluster so far, and of hits that are lost.
    fn told(&self) -> (u64, u64) {
        let sum = |of: fn(&StoreCounts) -> u64| self.counts.iter().map(|counts| of(counts)).sum();
        (sum(|counts| counts.told.get()), sum(|counts| counts.lost.get()))
    }

    /// Envoys report one request for each value to each instance. Returns once every hit is
    /// reported or lost.
    fn report(&self) {
        let before = self.told();
        for (decider, _) in &self.instances {
            (0..VALUES).for_each(|n| _ = left_of(decider, &format!("v{n}"), 1));
        }
        wait_for("all to be told", || {
            let told = self.told();
            (told.0 + told.1 >= before.0 + before.1 + 2 * VALUES).then_some(())
        });
    }

    /// The number of hits left for each value, as far as each instance knows.
    fn left(&self) -> Vec<u32> {
        let of = |decider: &RatelimitDecider| {
            let left = |n| left_of(decider, &format!("v{n}"), 0);
            (0..VALUES).map(left).collect::<Vec<_>>()
        };
        self.instances.iter().flat_map(|(decider, _)| of(decider)).collect()
    }
}

#[test]
fn what_envoys_report_is_one_count_on_a_cluster_whose_slots_move_and_whose_masters_die() {
    let nodes = cluster("4000");
    let settings = settings_of(StoreLayout::Cluster, &nodes[..2]);
    let settings =
        Settings { fail: StoreFail::Local, period: Duration::from_millis(10), ..settings };
    let instances = [instance(&settings, 1), instance(&settings, 2)];
    let stores = instances.each_ref().map(|(_, store)| Arc::clone(store));
    let (told, heard) = mpsc::sync_channel(1);
    let (stop, stopped) = oneshot::channel();
    let telling = std::thread::spawn(move || tell(&stores, &told, stopped));
    let two = Two { instances, counts: heard.recv().expect("lanes") };
    let all = || counted(&masters(&nodes));
    two.report();
    assert_eq!(all(), 2 * VALUES);
    for node in masters(&nodes) {
        let keys = node.text(&["KEYS", "evenkeel:*"]).lines().count();
        assert!(keys > 0, "each has some");
    }
    move_a_slot(&nodes, || two.report());
    assert_eq!((all(), two.told()), (8 * VALUES, (8 * VALUES, 0)));
    // Each instance learns of the other's hits with the answer to its own, and of the last ones
    // with the next answer.
    two.report();
    let left = two.left();
    assert!(left.iter().all(|left| [90, 91].contains(left)), "{left:?}");
    kill_a_master(masters(&nodes)[2]);
    two.report();
    wait_for("another master", || (masters(&nodes).len() == 3).then_some(()));
    two.report();
    let (told, lost) = two.told();
    assert_eq!(told + lost, 14 * VALUES);
    // Hits in flight when the master died may have been counted.
    assert!((told..=told + lost).contains(&all()), "{} of {told} and {lost}", all());
    drop(stop);
    telling.join().expect("it ends");
}

//! Measures by how much instances that decide by themselves and settle later exceed a common limit.
//! The excess is counted, not timed.
//!
//! In each round, every instance gets the same number of requests and then settles. Instances that
//! settle later in the same round learn of its hits; the others learn of them in the next round.

use super::property::{YEAR, ask, lane_by, local, settings};
use super::redis::Redis;
use evenkeel_config::settings::store::{StoreFail, StoreMode, StoreSettings as Settings};
use evenkeel_core::windows::{WindowAlgorithm, WindowLength, WindowPolicy};
use evenkeel_runtime::clock::Clock;
use evenkeel_store::redis::StoreLane;
use evenkeel_testing::wait::until_async;
use std::rc::Rc;
use std::time::Duration;

const LIMIT: u32 = 100;

/// Sends `times` requests to one instance and returns how many it admits.
async fn let_in(lane: &Rc<StoreLane>, algorithm: WindowAlgorithm, times: u32) -> u32 {
    let clock = Clock::start();
    let mut count = 0;
    for _ in 0..times {
        let mut asks = [ask("c", algorithm, WindowLength::Seconds(YEAR), LIMIT, clock.now())];
        asks[0].hit.hits = 1;
        lane.count(&mut asks, WindowPolicy::default(), clock.now()).await.expect("nobody is asked");
        count += u32::from(!asks[0].hit.is_over());
    }
    count
}

/// Returns how many requests `instances` admit together. Each one gets `asked` requests in each
/// round, until a round in which none is admitted.
async fn rounds(
    settings: &Settings,
    instances: usize,
    asked: u32,
    algorithm: WindowAlgorithm,
) -> u32 {
    let mut lanes = Vec::new();
    for _ in 0..instances {
        lanes.push(lane_by(settings).await);
    }
    let mut all = 0;
    loop {
        let mut round = 0;
        for lane in &lanes {
            let told = lane.store.counts.told.get();
            let count = let_in(lane, algorithm, asked).await;
            round += count;
            if count > 0 {
                let settled =
                    || lane.store.counts.told.get() > told && lane.store.pending_hits() == 0;
                until_async("settled hits", settled).await;
            }
        }
        all += round;
        if round == 0 {
            return all;
        }
    }
}

/// The bound of docs/guide/redis.md: the requests that each instance admits within two periods, and
/// never more than the limit at each.
#[test]
fn a_limit_is_exceeded_by_no_more_than_two_periods_at_each_instance() {
    local(async {
        for (instances, asked) in [(2, 3), (2, 20), (10, 3), (10, 20), (10, 200)] {
            for algorithm in [WindowAlgorithm::Fixed, WindowAlgorithm::Bucket] {
                let redis = Redis::start(&[]);
                let settings = Settings {
                    mode: StoreMode::Batched,
                    fail: StoreFail::Local,
                    period: Duration::from_millis(10),
                    ..settings(&redis)
                };
                let all = rounds(&settings, instances, asked, algorithm).await;
                let over = all - LIMIT;
                let bound = (2 * asked * instances as u32).min((instances as u32 - 1) * LIMIT);
                assert!(all >= LIMIT && over <= bound, "{over}, not {bound}: {algorithm:?}");
            }
        }
    });
}

//! Several instances that lose the store at once, each with different knowledge: the count after
//! the store returns empty.

use super::away::RULES;
use super::property::{YEAR, ask, lane_by, local, settings};
use super::redis::Redis;
use super::{ready, unready};
use crate::program::Server;
use crate::server::{V3, asked};
use evenkeel_config::settings::store::{StoreFail, StoreMode, StoreSettings as Settings};
use evenkeel_core::units::{SECOND, Time};
use evenkeel_core::windows::{Hit, WindowAlgorithm, WindowLength, WindowPolicy};
use evenkeel_runtime::clock::Clock;
use evenkeel_store::redis::StoreLane;
use evenkeel_testing::port::free_port;
use evenkeel_testing::wait::until_async;
use evenkeel_testing::wait::wait_for;
use std::time::Duration;

/// An instance that is used over one connection, and so by one thread.
struct Instance {
    server: Server,
    admin: String,
}

impl Instance {
    fn start(redis: &Redis) -> Instance {
        let admin = format!("127.0.0.1:{}", free_port());
        let more = [("EVENKEEL_ADMIN", &*admin), ("EVENKEEL_COMPATIBLE_KEYS", "false")];
        let server = unready(redis, RULES, &more);
        ready(redis, &server);
        Instance { server, admin }
    }

    fn hits(&self, hits: u32) {
        let said = asked(&self.server.grpc(), V3, &format!("t: h=v +{hits}"));
        assert!(said.starts_with("OK"), "{said}");
    }

    fn told(&self, key: &str) -> u64 {
        let (_, body) = super::away::admin(&self.admin, "/api/store");
        let told: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        told[key].as_u64().unwrap_or_else(|| panic!("{key} in {body}"))
    }
}

fn count(redis: &Redis) -> u32 {
    redis.text(&["GET", "evenkeel:window:31536000s:t:h=v"]).parse().unwrap_or(0)
}

/// The bound of docs/guide/redis.md: the missing hits are at most those that others reported after
/// the store returned and before an instance that knew more had reported.
#[test]
fn what_any_instance_knew_is_counted_whoever_is_back_first() {
    for outage in [[0, 0], [3, 2], [0, 2], [3, 0]] {
        let redis = Redis::start(&[]);
        let two = [0, 1].map(|_| Instance::start(&redis));
        two[0].hits(1);
        two[1].hits(1_000);
        redis.kill();
        for one in &two {
            wait_for("the loss to be noticed", || (one.told("good") == 0).then_some(()));
        }
        for (one, hits) in two.iter().zip(outage) {
            // Neither instance learns of the other's hits.
            if hits > 0 {
                one.hits(hits);
            }
        }
        redis.restart();
        for one in &two {
            wait_for("the return", || (one.told("failed") == 0).then_some(()));
            wait_for("the store to be told", || (one.told("owed") == 0).then_some(()));
        }
        // The instance that knows least sends the first request.
        two[0].hits(1);
        two[1].hits(1);
        let (all, counted) = (1_003 + outage[0] + outage[1], count(&redis));
        // On a busy machine, the second instance may learn of the first one's hit too late.
        let late = outage[0] + 2;
        assert!((all - late..=all).contains(&counted), "{outage:?}: {counted} of {all}");
    }
}

/// Threads of an instance know each other's hits, and each hit is counted once.
#[test]
fn what_one_thread_knows_of_the_others_is_not_told_twice() {
    let redis = Redis::start(&[]);
    local(async {
        let settings = Settings { fail: StoreFail::Local, ..settings(&redis) };
        let first = lane_by(&settings).await;
        let open = || StoreLane::open(&first.store);
        let lanes = [std::rc::Rc::clone(&first), open(), open()];
        redis.kill();
        until_async("the loss", || !first.store.counts.is_good()).await;
        let clock = Clock::start();
        let length = WindowLength::Seconds(YEAR);
        for lane in lanes.iter().cycle().take(30) {
            let mut asks = [ask("c", WindowAlgorithm::Fixed, length, 1_000, clock.now())];
            asks[0].hit.hits = 1;
            lane.count(&mut asks, WindowPolicy::default(), clock.now())
                .await
                .expect("decided here");
        }
        redis.restart();
        until_async("the reports", || first.store.pending_hits() == 0).await;
        let key = redis.text(&["KEYS", "*"]);
        assert_eq!(redis.text(&["GET", key.trim()]), "30", "{key}");
    });
}

/// A bucket of 100 tokens that gains one each second gets one request each second of a long outage.
/// Tokens that were refilled in the meantime are not owed.
#[test]
fn a_bucket_is_told_what_it_is_short_of_and_not_all_it_ever_let_in() {
    let redis = Redis::start(&[]);
    local(async {
        let settings = Settings {
            mode: StoreMode::Batched,
            fail: StoreFail::Local,
            period: Duration::from_millis(10),
            ..settings(&redis)
        };
        let lane = lane_by(&settings).await;
        redis.kill();
        until_async("the loss", || !lane.store.counts.is_good()).await;
        let now = Clock::start().now();
        for second in (0..500).rev() {
            let then = Time(now.0 - second * SECOND);
            let mut asks =
                [ask("c", WindowAlgorithm::Bucket, WindowLength::Seconds(100), 100, then)];
            asks[0].hit = Hit { hits: 1, ..asks[0].hit };
            lane.count(&mut asks, WindowPolicy::default(), then).await.expect("decided here");
            assert!(asks[0].hit.after <= 2, "{:?}", asks[0].hit);
        }
        redis.restart();
        until_async("the reports", || lane.store.pending_hits() == 0).await;
        let key = redis.text(&["KEYS", "*"]);
        let short = redis.text(&["GET", key.trim()]);
        let short: f64 = short.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0);
        assert!((0.0..=2e6).contains(&short), "microseconds short of full: {short}");
    });
}

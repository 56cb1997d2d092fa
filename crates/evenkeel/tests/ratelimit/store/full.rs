//! A store that answers but does not execute commands, because it is full or has lost the scripts.
//! No hit is lost before, during or after that, in either mode.

use super::away::{RULES, more_hits, under_load, used};
use super::redis::Redis;
use super::{ready, unready};
use crate::program::Server;
use evenkeel_testing::wait::wait_for;

/// The number of clients, each with one request at a time. This is also the maximum number of
/// requests in flight when the server becomes full.
const CLIENTS: usize = 24;
const MODES: [&str; 2] = ["exact", "batched"];

fn service(redis: &Redis, mode: &str) -> Server {
    let server = unready(redis, RULES, &[("EVENKEEL_STORE_MODE", mode)]);
    ready(redis, &server);
    server
}

/// Checks that each hit was counted once. On a busy machine, a hit with an answer after the
/// deadline may be both counted and reported.
fn is_counted(redis: &Redis, count: u64, mode: &str) {
    wait_for("the count", || (used(redis, "load") >= count).then_some(()));
    let used = used(redis, "load");
    assert!(used <= count + CLIENTS as u64, "{mode}: {used} of {count}");
}

#[test]
fn no_hit_is_lost_while_it_is_full() {
    for mode in MODES {
        let redis = Redis::start(&[]);
        let server = service(&redis, mode);
        let count = under_load::<CLIENTS>(&server, || {
            for _ in 0..4 {
                more_hits(&server, 150);
                redis.text(&["CONFIG", "SET", "maxmemory", "1"]);
                more_hits(&server, 150);
                redis.text(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            more_hits(&server, 150);
        });
        is_counted(&redis, count as u64, mode);
    }
}

#[test]
fn no_hit_is_lost_that_is_told_to_who_has_forgotten_the_scripts() {
    for mode in MODES {
        let redis = Redis::start(&[]);
        let server = service(&redis, mode);
        let count = under_load::<CLIENTS>(&server, || {
            for _ in 0..4 {
                more_hits(&server, 50);
                redis.text(&["SCRIPT", "FLUSH"]);
            }
        });
        is_counted(&redis, count as u64, mode);
    }
}

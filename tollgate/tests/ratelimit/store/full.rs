//! A store that answers and does not do what it is asked, because it is full or has forgotten the
//! scripts: no hit is lost, before, during or after, in either mode.

use super::away::{RULES, load, used};
use super::redis::Redis;
use super::{ready, unready};
use crate::program::{Server, http, wait_for};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

/// Who ask, each one question after the other: so many are with the server when it is full.
const CLIENTS: usize = 24;
const MODES: [&str; 2] = ["exact", "batched"];

fn service(redis: &Redis, mode: &str) -> Server {
    let server = unready(redis, RULES, &[("TOLLGATE_STORE_MODE", mode)]);
    ready(redis, &server);
    server
}

/// Hits that the service has let in, by its own figures.
fn let_in(server: &Server) -> u64 {
    let figures = http(server.debug, "GET", "/stats", "").1;
    let line = figures.lines().find(|line| line.contains("t.h.total_hits"));
    line.and_then(|line| line.rsplit(' ').next()).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// All ask while `harm` happens to the store, which is given what to do to wait for more hits.
/// Returns how many were let in.
fn under_load(server: &Server, harm: impl FnOnce(&dyn Fn(u64))) -> u64 {
    let stop = AtomicBool::new(false);
    let more = |hits| {
        let begin = let_in(server);
        wait_for("requests", || (let_in(server) >= begin + hits).then_some(()));
    };
    thread::scope(|scope| {
        let loads = [(); CLIENTS].map(|()| scope.spawn(|| load(server, &stop).len() as u64));
        harm(&more);
        stop.store(true, Relaxed);
        loads.into_iter().map(|load| load.join().expect("no request failed")).sum()
    })
}

#[test]
fn no_hit_is_lost_while_it_is_full() {
    for mode in MODES {
        let redis = Redis::start(&[]);
        let server = service(&redis, mode);
        let count = under_load(&server, |more| {
            for _ in 0..4 {
                more(150);
                redis.text(&["CONFIG", "SET", "maxmemory", "1"]);
                more(150);
                redis.text(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            more(150);
        });
        wait_for("the count", || (used(&redis, "load") >= count).then_some(()));
        assert_eq!(used(&redis, "load"), count, "{mode}");
    }
}

#[test]
fn no_hit_is_lost_that_is_told_to_who_has_forgotten_the_scripts() {
    for mode in MODES {
        let redis = Redis::start(&[]);
        let server = service(&redis, mode);
        let count = under_load(&server, |more| {
            for _ in 0..4 {
                more(50);
                redis.text(&["SCRIPT", "FLUSH"]);
            }
        });
        wait_for("the count", || (used(&redis, "load") >= count).then_some(()));
        assert_eq!(used(&redis, "load"), count, "{mode}");
    }
}

//! The store is killed, stalled, restarted, full, or refuses connections, under load and without.
//! No caller gets an error, and the count is right again once the store is back. Case 82.
//!
//! The tests assert that no request was lost, not how long it took.

use super::property::{YEAR, ask as ask_for, lane_by, local, settings};
use super::redis::Redis;
use super::{all, service, unready};
use crate::ask::{YEARLY, request};
use crate::program::{Server, http};
use crate::server::{V3, asked};
use evenkeel_config::settings::store::StoreSettings;
use evenkeel_core::windows::{WindowAlgorithm, WindowLength};
use evenkeel_runtime::clock::Clock;
use evenkeel_testing::evenkeel;
use evenkeel_testing::port::free_port;
use evenkeel_testing::wait::until_async;
use evenkeel_testing::wait::wait_for;
use prost::Message;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const SHORT: (&str, &str) = ("EVENKEEL_STORE_DEADLINE", "20ms");
pub const RULES: &str = "domain: t\ndescriptors:\n- {key: h, rate_limit: {unit: year, \
                     requests_per_unit: 1000000}}\n";

/// The hits counted for the value `value`.
pub fn used(redis: &Redis, value: &str) -> u64 {
    let keys = redis.text(&["KEYS", &format!("t_*_{value}_*")]);
    let Some(key) = keys.lines().next() else { return 0 };
    redis.text(&["GET", key]).parse().unwrap_or(0)
}

#[test]
fn c82_without_the_store_what_is_known_decides_or_an_error_where_it_is_wanted() {
    let redis = Redis::start(&[]);
    let local = service(&redis, &[]);
    let strict = service(&redis, &[("EVENKEEL_STORE_FAIL", "error")]);
    assert_eq!(all(&local, &["t: k=v", "t: k=v"]), ["OK [5/YEAR 4]", "OK [5/YEAR 3]"]);
    assert_eq!(all(&strict, &["t: k=v"]), ["OK [5/YEAR 2]"]);
    redis.kill();
    // It cannot know of the other instance's hit.
    let said = all(&local, &["t: k=v", "t: k=v +2", "t: k=v"]);
    assert_eq!(said, ["OK [5/YEAR 2]", "OK [5/YEAR 0]", "OVER [OVER 5/YEAR 0]"]);
    let said = all(&strict, &["t: k=v", "t: zz=v"]);
    assert_eq!(said, ["2: the store does not answer", "OK [-]"]);
    let body =
        "{\"domain\":\"t\",\"descriptors\":[{\"entries\":[{\"key\":\"k\",\"value\":\"v\"}]}]}";
    assert_eq!(http(strict.http, "POST", "/json", body), (400, "Bad Request\n".to_owned()));
    redis.restart();
    wait_for("an answer", || (all(&strict, &["t: k=other"])[0].starts_with("OK")).then_some(()));
}

/// Hits counted during the outage are reported. The count that the store forgot is restored by an
/// instance that still knows it.
#[test]
fn who_comes_back_empty_is_told_what_was_counted() {
    let redis = Redis::start(&[]);
    let server = unready(&redis, RULES, &[]);
    super::ready(&redis, &server);
    let grpc = server.grpc();
    let ask = |text: &str| asked(&grpc, V3, text);
    assert_eq!(ask("t: h=v +5"), "OK [1000000/YEAR 999995]");
    redis.kill();
    assert_eq!(ask("t: h=v +3"), "OK [1000000/YEAR 999992]");
    redis.restart();
    wait_for("the count", || (used(&redis, "v") == 8).then_some(()));
    assert_eq!(ask("t: h=v"), "OK [1000000/YEAR 999991]");
    wait_for("one more", || (used(&redis, "v") == 9).then_some(()));
}

/// The server restarts while the thread is busy. When the thread runs again, its connection still
/// counts as good, and the report is due at the same time as the end of the connection.
#[test]
fn no_report_is_lost_on_a_connection_that_ended_unnoticed() {
    let redis = Redis::start(&[]);
    local(async {
        let settings = StoreSettings { period: Duration::from_millis(10), ..settings(&redis) };
        let lane = lane_by(&settings).await;
        let now = Clock::start().now();
        let length = WindowLength::Seconds(YEAR);
        for round in 1..=5 {
            let mut hits = ask_for(&round.to_string(), WindowAlgorithm::Fixed, length, 100, now);
            hits.hit.hits = 5;
            redis.restart();
            lane.store.report_hits(&hits, 5);
            until_async("the reports", || lane.store.pending_hits() == 0).await;
            assert_eq!(redis.text(&["GET", &hits.name]), "5", "round {round}");
        }
    });
}

/// Sends requests as fast as they are answered until `stop`, and returns their number.
fn load(server: &Server, stop: &AtomicBool) -> usize {
    let grpc = server.grpc();
    let message = request("t: h=load").encode_to_vec();
    let mut count = 0;
    while !stop.load(Relaxed) {
        let answer = grpc.call(V3, &message);
        assert!(answer.is_ok(), "{answer:?}");
        count += 1;
    }
    count
}

/// Runs clients while `harm` happens to the store. Returns the number of requests.
pub fn under_load<const CLIENTS: usize>(server: &Server, harm: impl FnOnce()) -> usize {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let loads = [(); CLIENTS].map(|()| scope.spawn(|| load(server, &stop)));
        harm();
        stop.store(true, Relaxed);
        loads.into_iter().map(|load| load.join().expect("no request failed")).sum()
    })
}

/// The number of hits that the service has counted.
fn hits(server: &Server) -> u64 {
    let figures = http(server.debug, "GET", "/stats", "").1;
    let line = figures.lines().find(|line| line.contains("t.h.total_hits"));
    line.and_then(|line| line.rsplit(' ').next()).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Waits until the service has counted `more` hits in addition.
pub fn more_hits(server: &Server, more: u64) {
    let begin = hits(server);
    wait_for("requests", || (hits(server) >= begin + more).then_some(()));
}

#[test]
fn nobody_fails_while_it_is_stalled_and_the_count_is_exact_again() {
    let redis = Redis::start(&[]);
    let server = unready(&redis, RULES, &[SHORT]);
    super::ready(&redis, &server);
    let count = under_load::<3>(&server, || {
        more_hits(&server, 200);
        redis.signal(Signal::STOP);
        more_hits(&server, 2_000);
        redis.signal(Signal::CONT);
        more_hits(&server, 200);
    });
    // Each hit is reported once, whether it was in flight when the server stopped or was counted
    // locally.
    wait_for("the count", || (used(&redis, "load") >= count as u64).then_some(()));
    assert_eq!(used(&redis, "load"), count as u64);
}

#[test]
fn nobody_fails_while_it_is_killed_and_started_again() {
    let redis = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let server = unready(&redis, RULES, &[SHORT]);
    super::ready(&redis, &server);
    let count = under_load::<3>(&server, || {
        more_hits(&server, 200);
        redis.kill();
        more_hits(&server, 1_000);
        redis.restart();
        more_hits(&server, 200);
    });
    // A hit in flight when the server died may or may not be counted: three at most.
    wait_for("the count", || (used(&redis, "load") + 3 >= count as u64).then_some(()));
    assert!(used(&redis, "load") <= count as u64 + 3);
}

#[test]
fn nobody_fails_while_it_is_full_or_refuses_us() {
    let redis = Redis::start(&[]);
    let server = unready(&redis, RULES, &[SHORT]);
    super::ready(&redis, &server);
    let count = under_load::<3>(&server, || {
        more_hits(&server, 100);
        redis.text(&["CONFIG", "SET", "maxmemory", "1"]);
        more_hits(&server, 500);
        redis.text(&["CONFIG", "SET", "maxmemory", "0"]);
        more_hits(&server, 100);
    });
    // For hits in flight when the server changes its state, one for each client, the report may be
    // missing. Or a hit may be reported that was already counted, if its answer came after the
    // deadline.
    wait_for("the count", || (used(&redis, "load") + 3 >= count as u64).then_some(()));
    let counted = used(&redis, "load");
    assert!(counted <= count as u64 + 3, "{counted} of {count}");
    let again = under_load::<3>(&server, || {
        for _ in 0..10 {
            redis.text(&["SCRIPT", "FLUSH"]);
            more_hits(&server, 20);
        }
    });
    wait_for("the count", || (used(&redis, "load") >= counted + again as u64).then_some(()));
    assert!(used(&redis, "load") <= (count + again) as u64 + 3);
}

/// A corrected password takes effect, because its file is read again.
#[test]
fn a_wrong_password_costs_nobody_an_error() {
    let redis = Redis::start(&["--requirepass", "right"]);
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules.yaml");
    let password = folder.path().join("password");
    std::fs::write(&rules, YEARLY).expect("written");
    std::fs::write(&password, "wrong").expect("written");
    let server = Server::from_file(&format!(
        "admin: off\nratelimit: {{grpc: 127.0.0.1:0, http: 127.0.0.1:0, debug: 127.0.0.1:0, rules: \
         {}}}\nstore: {{redis: {}, credentials_file: {}, compatible_keys: true}}\n",
        rules.display(),
        redis.url(),
        password.display()
    ));
    assert_eq!(all(&server, &["t: k=v", "t: k=v"]), ["OK [5/YEAR 4]", "OK [5/YEAR 3]"]);
    std::fs::write(&password, "right").expect("written");
    let mut connection = wait_for("redis", || {
        let url = format!("redis://:right@{}/", redis.url());
        redis::Client::open(url).ok()?.get_connection().ok()
    });
    wait_for("the store to be told", || {
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("t_k_v_*").query(&mut connection).expect("keys");
        let used: String = redis::cmd("GET").arg(keys.first()?).query(&mut connection).ok()?;
        (used == "2").then_some(())
    });
}

/// The answer of the admin port: its status and its body.
pub fn admin(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, body.to_owned())
}

/// A connection to such a server is not a good one; it is checked again and again, before any
/// request.
#[test]
fn a_server_that_cannot_write_is_away_until_it_can() {
    let redis = Redis::start(&["--maxmemory", "1"]);
    let address = format!("127.0.0.1:{}", free_port());
    let _server = unready(&redis, YEARLY, &[("EVENKEEL_ADMIN", &address)]);
    let told = || -> serde_json::Value {
        serde_json::from_str(&admin(&address, "/api/store").1).expect("JSON")
    };
    wait_for("the refusal", || told()["why"].as_str()?.contains("OOM").then_some(()));
    assert_eq!(told()["good"], 0);
    redis.text(&["CONFIG", "SET", "maxmemory", "0"]);
    wait_for("all connections", || (told()["failed"] == 0 && told()["good"] != 0).then_some(()));
    assert_eq!(redis.text(&["DBSIZE"]), "0", "it leaves nothing behind");
}

#[test]
fn it_starts_without_the_store_and_is_ready() {
    let redis = Redis::start(&[]);
    redis.kill();
    let address = format!("127.0.0.1:{}", free_port());
    let health = ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true");
    let server = unready(&redis, YEARLY, &[health, ("EVENKEEL_ADMIN", &address)]);
    assert_eq!(all(&server, &["t: k=v"]), ["OK [5/YEAR 4]"]);
    assert_eq!(http(server.http, "GET", "/healthcheck", "").0, 500);
    let told = || -> serde_json::Value {
        serde_json::from_str(&admin(&address, "/api/store").1).expect("JSON")
    };
    wait_for("the failure", || (told()["failed"] != 0).then_some(()));
    assert_eq!((&told()["good"], &told()["layout"]), (&0.into(), &"single".into()));
    assert_eq!(told()["local"], 1);
    assert!(told()["why"].as_str().is_some_and(|why| why.contains("refused")), "{}", told());
    assert_eq!(admin(&address, "/readyz").0, 200);
    redis.restart();
    wait_for("the count", || (used(&redis, "v") == 1).then_some(()));
    wait_for("health", || (http(server.http, "GET", "/healthcheck", "").0 == 200).then_some(()));
    wait_for("all connections", || (told()["failed"] == 0).then_some(()));
    wait_for("nothing to tell", || (told()["owed"] == 0).then_some(()));
    let mut doctor = evenkeel!();
    let told = doctor.args(["clients", "--admin", &address]).output().expect("it runs").stdout;
    let told = String::from_utf8_lossy(&told).into_owned();
    assert!(told.contains("connections good, 0 counters to send"), "{told}");
    let metrics = admin(&address, "/metrics").1;
    assert!(metrics.contains("evenkeel_store_answers_total{result=\"away\"} 1"), "{metrics}");
    assert!(metrics.contains("evenkeel_store_told_total 1"), "{metrics}");
}

//! The service with real Redis servers: one count for all instances, the reference server's keys,
//! and the cost.
//!
//! Further tests: a server that is unreachable (`away`), full (`full`) or floods its clients
//! (`flood`); several instances in an outage (`apart`); several servers (`several`); random
//! schedules that compare the store with memory (`property`); the other doors (`doors`); Envoys
//! that decide by themselves (`quota`).

mod apart;
mod away;
mod batches;
mod doors;
mod flood;
mod full;
mod property;
mod quota;
pub mod redis;
mod several;

use crate::ask::YEARLY;
use crate::program::Server;
use crate::server::{V3, asked};
use evenkeel_testing::port::free_port;
use evenkeel_testing::wait::wait_for;
use redis::Redis;

/// A service that counts in this store, with additional variables. Returns once it is connected.
pub fn service(redis: &Redis, more: &[(&str, &str)]) -> Server {
    let before = connections(redis);
    let server = unready(redis, YEARLY, more);
    ready_beside(redis, before, &server);
    server
}

/// A service that counts in this store. Returns at once.
pub fn unready(redis: &Redis, rules: &str, more: &[(&str, &str)]) -> Server {
    let url = redis.url();
    // A machine that is busy with other tests answers late.
    let admin = format!("127.0.0.1:{}", free_port());
    let mut variables = vec![("REDIS_URL", &*url), ("EVENKEEL_STORE_DEADLINE", "5s")];
    variables.push(("EVENKEEL_ADMIN", &*admin));
    variables.extend(more);
    Server::start(rules, &variables)
}

/// Waits until each thread of the service has sent a request to the store and got an answer.
pub fn ready(redis: &Redis, server: &Server) {
    ready_beside(redis, 0, server);
}

/// Waits for the service if `before` connections of other clients exist already.
fn ready_beside(redis: &Redis, before: usize, server: &Server) {
    let all = before as u64 + threads();
    wait_for("connections", || (connections(redis) as u64 >= all).then_some(()));
    // The store may have answered before the service has read the answer.
    wait_for("all of them", || (good(server) >= threads()).then_some(()));
}

/// The number of threads of a service that are connected to each server of its store.
fn threads() -> u64 {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64 + 1
}

/// The number of connections that the service reports as good; 0 while it reports any as failed.
fn good(server: &Server) -> u64 {
    let (_, told) = away::admin(server.admin.as_ref().expect("an address"), "/api/store");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    told["good"].as_u64().filter(|_| told["failed"] == 0).unwrap_or(0)
}

/// The number of connections that have proved to be usable.
fn connections(redis: &Redis) -> usize {
    redis.text(&["CLIENT", "LIST"]).lines().filter(is_loaded).count()
}

fn is_loaded(line: &&str) -> bool {
    line.contains("cmd=script|load") || line.contains("cmd=evalsha")
}

/// The answers of a service to some requests on one connection, one line each.
pub fn all(server: &Server, requests: &[&str]) -> Vec<String> {
    let grpc = server.grpc();
    requests.iter().map(|request| asked(&grpc, V3, request)).collect()
}

#[test]
fn c12_two_servers_have_one_count_under_the_reference_s_keys() {
    let redis = Redis::start(&[]);
    let servers = [service(&redis, &[]), service(&redis, &[])];
    let said: Vec<String> = (0..7).map(|n| all(&servers[n % 2], &["t: k=seq"]).remove(0)).collect();
    let left =
        ["OK [5/YEAR 4]", "OK [5/YEAR 3]", "OK [5/YEAR 2]", "OK [5/YEAR 1]", "OK [5/YEAR 0]"];
    let over = ["OVER [OVER 5/YEAR 0]"; 2];
    assert_eq!(said, [&left[..], &over].concat());
    let keys = redis.text(&["KEYS", "*"]);
    let key = keys.trim();
    let window = key.strip_prefix("t_k_seq_").and_then(|window| window.parse::<u64>().ok());
    assert_eq!(window.map(|window| window % 31_536_000), Some(0), "{keys}");
    assert_eq!(redis.text(&["GET", key]), "7");
    let ttl: u64 = redis.text(&["TTL", key]).parse().expect("a number");
    assert!((31_535_900..=31_536_300).contains(&ttl), "{ttl}");
    // A reference server that uses the same store does this with each hit.
    redis.text(&["INCRBY", key, "2"]);
    redis.text(&["EXPIRE", key, "31536100"]);
    assert_eq!(all(&servers[0], &["t: k=seq"]), ["OVER [OVER 5/YEAR 0]"]);
    assert_eq!(redis.text(&["GET", key]), "10");
}

#[test]
fn each_limit_has_a_key_that_ends_by_itself() {
    let redis = Redis::start(&[]);
    let server = service(&redis, &[("EVENKEEL_COMPATIBLE_KEYS", "false")]);
    let said = all(&server, &["t: k=m | mid=x,leaf=1 | w=foo1 | zz=m | un=m | k=m"]);
    assert_eq!(said, ["OK [5/YEAR 4, 3/YEAR 2, 3/WEEK 2, -, max, 5/YEAR 3]"]);
    let mut keys: Vec<String> = redis.text(&["KEYS", "*"]).lines().map(str::to_owned).collect();
    keys.sort();
    let expected = [
        "evenkeel:window:31536000s:t:k=m",
        "evenkeel:window:31536000s:t:mid=x:leaf=1",
        "evenkeel:window:604800s:t:w=foo1",
    ];
    assert_eq!(keys, expected);
    for key in expected {
        let ttl: i64 = redis.text(&["TTL", key]).parse().expect("a number");
        assert!(ttl > 0 && ttl <= 31_536_000, "{key}: {ttl}");
    }
}

#[test]
fn ten_descriptors_cost_one_round_trip() {
    let redis = Redis::start(&[]);
    let rules = "domain: t\ndescriptors:\n- {key: a, rate_limit: {unit: year, \
                 requests_per_unit: 1000000}}\n";
    let server = unready(&redis, rules, &[]);
    ready(&redis, &server);
    let ten: Vec<String> = (0..10).map(|n| format!("a=v{n}")).collect();
    let ten = format!("t: {}", ten.join(" | "));
    redis.text(&["CONFIG", "RESETSTAT"]);
    let requests = vec![&*ten; 50];
    for said in all(&server, &requests) {
        assert_eq!(said.matches("1000000/YEAR").count(), 10, "{said}");
    }
    let stats = redis.text(&["INFO", "commandstats"]);
    let calls = |command: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")))?;
        let calls = line.split("calls=").nth(1)?.split(',').next()?;
        calls.parse::<u64>().ok()
    };
    assert_eq!((calls("evalsha"), calls("incrby")), (Some(50), Some(500)), "{stats}");
    assert_eq!((calls("get"), calls("multi"), calls("eval")), (None, None, None), "{stats}");
}

/// Hits of all kinds, also some that are given back.
#[test]
fn c13_to_c17_hits_are_counted_as_in_memory() {
    let redis = Redis::start(&[]);
    let server = service(&redis, &[]);
    let said = all(
        &server,
        &[
            "t: k=add +3",
            "t: k=add +3",
            "t: k=add",
            "t: k=p +0",
            "t+9: k=p +2",
            "t: zero=x",
            "t: zero=y +0",
            "t: k=p -1",
        ],
    );
    let expected = [
        "OK [5/YEAR 2]",
        "OVER [OVER 5/YEAR 0]",
        "OVER [OVER 5/YEAR 0]",
        "OK [5/YEAR 5]",
        "OK [5/YEAR 3]",
        "OVER [OVER 0/YEAR 0]",
        "OK [0/YEAR 0]",
        "OK [5/YEAR 4]",
    ];
    assert_eq!(said, expected);
}

#[test]
fn c63_who_is_over_stops_the_others() {
    let redis = Redis::start(&[]);
    let server = service(&redis, &[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")]);
    let said = all(&server, &["t: k=s | mid=x"; 4]);
    let expected = [
        "OK [5/YEAR 4, 2/YEAR 1]",
        "OK [5/YEAR 3, 2/YEAR 0]",
        "OVER [5/YEAR 3, OVER 2/YEAR 0]",
        "OVER [5/YEAR 3, OVER 2/YEAR 0]",
    ];
    assert_eq!(said, expected);
}

#[test]
fn c64_what_is_known_to_be_over_is_not_asked_again() {
    let redis = Redis::start(&[]);
    let server = service(&redis, &[("LOCAL_CACHE_SIZE_IN_BYTES", "1000")]);
    let said = all(&server, &["t: zero=x", "t: zero=x", "t: zero=x +0", "t: zero=x"]);
    assert_eq!(said, ["OVER [OVER 0/YEAR 0]"; 4]);
    let key = redis.text(&["KEYS", "t_zero_x_*"]);
    assert_eq!(redis.text(&["GET", key.lines().next().expect("a key")]), "1");
}

#[test]
fn limits_of_a_second_have_a_store_of_their_own() {
    let (redis, other) = (Redis::start(&[]), Redis::start(&[]));
    let rules = "domain: t\ndescriptors:\n- {key: s, rate_limit: {unit: second, \
                 requests_per_unit: 1000}}\n- {key: h, rate_limit: {unit: year, \
                 requests_per_unit: 1000}}\n";
    let url = other.url();
    // Keys that outlive the test, even a slow one.
    let jitter = ("EXPIRATION_JITTER_MAX_SECONDS", "86400");
    let more = [("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", &*url), jitter];
    let server = unready(&redis, rules, &more);
    ready(&redis, &server);
    ready(&other, &server);
    wait_for("both", || (good(&server) >= 2 * threads()).then_some(()));
    let said = all(&server, &["t: s=v | h=v"]);
    assert_eq!(said, ["OK [1000/SECOND 999, 1000/YEAR 999]"]);
    assert!(redis.text(&["KEYS", "*"]).starts_with("t_h_v_"));
    assert!(other.text(&["KEYS", "*"]).starts_with("t_s_v_"));
}

/// Instances that decide by themselves learn of each other's hits soon afterwards.
#[test]
fn batches_are_settled_behind_the_answers() {
    let redis = Redis::start(&[]);
    let servers = [(); 2].map(|()| service(&redis, &[("EVENKEEL_STORE_MODE", "batched")]));
    assert_eq!(all(&servers[0], &["t: k=b +3"]), ["OK [5/YEAR 2]"]);
    let key = wait_for("the store to be told", || {
        redis.text(&["KEYS", "t_k_b_*"]).lines().next().map(str::to_owned)
    });
    assert_eq!(redis.text(&["GET", &key]), "3");
    assert_eq!(all(&servers[1], &["t: k=b +2"]), ["OK [5/YEAR 3]"]);
    wait_for("both to be told", || (redis.text(&["GET", &key]) == "5").then_some(()));
    let told = || all(&servers[1], &["t: k=b"]) == ["OVER [OVER 5/YEAR 0]"];
    wait_for("the other's hits", || told().then_some(()));
}

//! The limits of the proxy and of the check door.

use super::{Instance, calls};
use crate::store::redis::Redis;
use evenkeel_testing::wait::DEADLINE;
use evenkeel_testing::wait::wait_for;
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// A backend that answers `ok` to every request, until the test ends.
pub fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 4_096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        }
    });
    address
}

/// A proxy with three limits in requests, of which the first one is the narrowest.
fn proxy(redis: &Redis, store: &str) -> Instance {
    let sections = format!(
        "proxy: {{listen: '127.0.0.1:0', backend: 'http://{}', limits: [{{name: one, by: ip/32, \
         rate: 1/d, burst: 3}}, {{name: net, by: ip/24, rate: 1/d, burst: 50}}, {{name: who, by: \
         ['header:x-token', method], rate: 1/d, burst: 60}}]}}",
        backend()
    );
    Instance::start(&sections, store, redis, "proxy open")
}

/// A check door with a share of the CPU time and a rate for each client.
fn check(redis: &Redis, store: &str) -> Instance {
    let sections = format!(
        "check: {{listen: '127.0.0.1:0'}}\nproxy: {{listen: '127.0.0.1:0', backend: 'http://{}', \
         cpus: 1, action: reject, limits: [{{name: cpu, by: ip/32, share: 1%, burst: 200ms}}, \
         {{name: hits, by: ip/32, rate: 1/d, burst: 100000}}]}}",
        backend()
    );
    Instance::start(&sections, store, redis, "check open")
}

/// The status of an answer, and the whole answer as text.
pub fn http(at: SocketAddr, head: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(at).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let text = format!("{head}host: x\r\nconnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("sent");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, answer)
}

fn get(program: &Instance) -> u16 {
    http(program.doors[0], "GET / HTTP/1.1\r\nx-token: secret-of-ann\r\n").0
}

/// Asks whether a client may pass, and returns the status with the id of the request.
fn asks(program: &Instance, client: &str) -> (u16, String) {
    let head = format!("GET /check HTTP/1.1\r\nx-real-ip: {client}\r\nx-original-uri: /\r\n");
    let (status, answer) = http(program.doors[0], &head);
    let id = answer.lines().find_map(|line| line.strip_prefix("x-evenkeel-id: "));
    (status, id.unwrap_or_default().to_owned())
}

fn reports(program: &Instance, id: &str, cost: &str) {
    let (status, answer) =
        http(program.doors[0], &format!("POST /report?id={id}&cost={cost} HTTP/1.1\r\n"));
    assert_eq!(status, 204, "{answer}");
}

#[test]
fn two_proxies_let_in_what_one_may_in_one_round_trip_for_all_limits() {
    let redis = Redis::start(&[]);
    let two = [proxy(&redis, ""), proxy(&redis, "")];
    redis.text(&["CONFIG", "RESETSTAT"]);
    let said: Vec<u16> = (0..6).map(|n| get(&two[n % 2])).collect();
    assert_eq!(said, [200, 200, 200, 429, 429, 429]);
    assert_eq!(calls(&redis, "evalsha"), 6, "one for three limits");
    let mut keys: Vec<String> = redis.text(&["KEYS", "*"]).lines().map(str::to_owned).collect();
    keys.sort();
    let names = ["net:127.0.0.0/24", "one:127.0.0.1", "who:%23"];
    for (key, name) in keys.iter().zip(names) {
        assert!(key.starts_with(&format!("evenkeel:debt:proxy:{name}")), "{key}");
        assert!(!key.contains("secret"), "{key}");
    }
    assert_eq!(keys.len(), 3);
    // If one limit refuses a request, the other limits do not count it.
    let left = redis.text(&["PTTL", &keys[0]]).parse::<u64>().expect("a number");
    assert_eq!((left + 43_200_000) / 86_400_000, 3, "days, but for the time that this took");
}

#[test]
fn while_the_store_is_away_requests_pass_by_what_is_known_and_it_is_told() {
    let redis = Redis::start(&[]);
    let two = [proxy(&redis, ""), proxy(&redis, "")];
    assert_eq!(get(&two[0]), 200);
    redis.kill();
    for one in &two {
        let good = || one.metric("evenkeel_store_connections{state=\"good\"}");
        wait_for("the loss to be noticed", || (good() == 0).then_some(()));
    }
    assert_eq!([(); 3].map(|()| get(&two[0])), [200, 200, 429]);
    redis.restart();
    let one = "evenkeel:debt:proxy:one:127.0.0.1";
    wait_for("the store to be told", || {
        let owed = two[0].metric("evenkeel_store_owed");
        (redis.text(&["EXISTS", one]) == "1" && owed == 0).then_some(())
    });
    for one in &two {
        let failed = || one.metric("evenkeel_store_connections{state=\"failed\"}");
        wait_for("connections", || (failed() == 0).then_some(()));
    }
    // Two requests were counted during the outage. The one before it is known to the instance that
    // admitted it.
    let said = [get(&two[1]), get(&two[1])];
    assert!(said == [200, 429] || said == [429, 429], "{said:?}");
    assert_eq!(get(&two[0]), 429);
}

/// A server that accepts connections and stays silent costs the first request of each thread the
/// deadline, and later requests nothing.
#[test]
fn a_store_that_stalls_is_waited_for_once() {
    let redis = Redis::start(&[]);
    let program = proxy(&redis, "deadline: 1s");
    assert_eq!(get(&program), 200);
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let answers = |result: &str| {
        program.metric(&format!("evenkeel_store_answers_total{{result=\"{result}\"}}"))
    };
    let before = (answers("late"), answers("away"));
    redis.signal(Signal::STOP);
    let said: Vec<u16> = (0..20).map(|_| get(&program)).collect();
    assert_eq!(said[..2], [200, 200], "what is known decides");
    assert!(said[2..].iter().all(|status| *status == 429));
    // Each request has three limits. A connection with an overdue answer gets no further request.
    let (late, away) = (answers("late") - before.0, answers("away") - before.1);
    assert!(late > 0 && late <= 3 * threads && late + away == 60, "{late}, {away}");
    redis.signal(Signal::CONT);
    wait_for("the store to be told", || {
        get(&program);
        (program.metric("evenkeel_store_owed") == 0 && answers("ok") > 6).then_some(())
    });
}

#[test]
fn what_a_request_cost_here_is_owed_there() {
    let redis = Redis::start(&[]);
    let two = [check(&redis, ""), check(&redis, "")];
    let (status, id) = asks(&two[0], "192.0.2.1");
    assert_eq!(status, 204);
    reports(&two[0], &id, "2s");
    assert_eq!(asks(&two[0], "192.0.2.1").0, 403);
    // The report was not delayed by the store.
    wait_for("the other to know", || (asks(&two[1], "192.0.2.1").0 == 403).then_some(()));
    assert_eq!(asks(&two[1], "192.0.2.2").0, 204);
    let key = "evenkeel:debt:proxy:cpu:192.0.2.1";
    let left: u64 = redis.text(&["PTTL", key]).parse().expect("a number");
    // A hundredth of a CPU pays for two seconds in two hundred seconds.
    assert!((150_000..=201_000).contains(&left), "{left}");
}

#[test]
fn batches_decide_by_what_is_known() {
    let redis = Redis::start(&[]);
    let two = [proxy(&redis, "mode: batched"), proxy(&redis, "mode: batched")];
    assert_eq!([(); 4].map(|()| get(&two[0])), [200, 200, 200, 429]);
    assert_eq!(get(&two[1]), 200, "it has not heard of any");
    wait_for("the others' requests", || (get(&two[1]) == 429).then_some(()));
}

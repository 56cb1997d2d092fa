//! Histories in Redis: the common knowledge of two masters, and of one that was restarted. Without
//! a store, a restarted master knows nothing.

use crate::stage::{Gatekeeper, HOUR, MasterServer, ahead, order};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::{until, wait_for};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

/// A Redis server for one test.
struct Redis {
    _process: Program,
    port: u16,
}

impl Redis {
    fn start() -> Redis {
        let port = free_port();
        let server = std::env::var_os("EVENKEEL_TEST_REDIS");
        let mut command = Command::new(server.unwrap_or_else(|| "redis-server".into()));
        command.args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1"]);
        let redis = Redis { _process: Program::listening(command, port), port };
        wait_for("redis-server", || redis.ask("PING"));
        redis
    }

    /// The first line of an answer.
    fn ask(&self, words: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        stream.write_all(format!("{words}\r\n").as_bytes()).ok()?;
        let mut answer = [0; 256];
        let count = stream.read(&mut answer).ok()?;
        String::from_utf8_lossy(&answer[..count]).lines().next().map(str::to_owned)
    }

    /// The number of keys in the store.
    fn keys(&self) -> u64 {
        let answer = self.ask("DBSIZE").expect("an answer");
        answer.trim_start_matches(':').parse().expect("a number")
    }
}

/// One domain for each algorithm: three requests within three hours, then one an hour.
const DOMAINS: &str = "domains: {h: [{rate: 1/hour, burst: 3}], k: [{rate: 1/hour, burst: 2, \
                       algorithm: gcra}]}";

fn master(redis: &Redis) -> MasterServer {
    master_on(&format!("redis: '127.0.0.1:{}'", redis.port), 1)
}

/// A master with a store of this number of servers.
fn master_on(place: &str, servers: usize) -> MasterServer {
    let program = MasterServer::start_with(&format!(
        "master: {{accounting: 'tcp://127.0.0.1:0', control: 'tcp://127.0.0.1:0', {DOMAINS}}}\n\
         store: {{{place}, deadline: 5s}}\n"
    ));
    until("connections", || {
        program.metric("evenkeel_store_connections{state=\"good\"}") >= servers as u64
    });
    program
}

/// Sends three requests, and returns the order that the last one causes, if any.
fn third_is_delayed(masters: [&MasterServer; 3], domain: &str, identifier: &str) -> Option<String> {
    let at = ahead();
    let mut told = None;
    for (number, master) in masters.into_iter().enumerate() {
        let mut gatekeeper = Gatekeeper::new(master, &[&format!("{domain}\0")]);
        gatekeeper.request(domain, identifier, at + number as u64);
        // The orders for another identifier after it show that this request has been decided.
        // Newcomers first get the orders in force, so this identifier must not have been used
        // before.
        let end = format!("end-{identifier}-{number}");
        (0..4).for_each(|_| gatekeeper.request(domain, &end, at));
        told = None;
        loop {
            let order = gatekeeper.hear();
            if order.contains(&end) {
                break;
            }
            if order.contains(&format!("|{identifier}|")) {
                told = Some(order);
            }
        }
    }
    told
}

#[test]
fn two_masters_have_one_history() {
    let redis = Redis::start();
    let two = [master(&redis), master(&redis)];
    let at = ahead();
    let told = third_is_delayed([&two[0], &two[1], &two[0]], "h", "c").expect("an order");
    let until: u64 = told.rsplit('|').next().and_then(|ms| ms.parse().ok()).expect("a time");
    assert!((at + HOUR..at + HOUR + 60_000).contains(&until), "{until} for {at}");
    let told = third_is_delayed([&two[1], &two[0], &two[1]], "k", "c");
    assert!(told.is_some_and(|told| told.starts_with("k\\x00|DELAY_UNTIL|c|")));
    assert!(third_is_delayed([&two[0], &two[1], &two[0]], "h", "d").is_some());
    assert!(redis.keys() >= 3);
}

#[test]
fn two_smockron_files_with_a_store_have_one_count() {
    let redis = Redis::start();
    let text = format!(
        "server: {{listen: '127.0.0.1:0'}}\ndatastore: {{host: localhost}}\n\
         domains: {{k: {{rate: 1/hour, burst: 2}}}}\n\
         store: {{redis: 'redis://127.0.0.1:{}'}}\n",
        redis.port
    );
    let two = [MasterServer::start_with(&text), MasterServer::start_with(&text)];
    let told = third_is_delayed([&two[1], &two[0], &two[1]], "k", "c");
    assert!(told.is_some_and(|told| told.starts_with("k\\x00|DELAY_UNTIL|c|")));
    assert!(redis.keys() >= 1);
}

/// Histories and buckets of several identifiers, which are spread over both servers.
#[test]
fn two_masters_on_a_ring_have_one_history() {
    let ring = [Redis::start(), Redis::start()];
    let place = format!(
        "layout: ring, redis: ['127.0.0.1:{}', '127.0.0.1:{}']",
        ring[0].port, ring[1].port
    );
    let two = [master_on(&place, 2), master_on(&place, 2)];
    for identifier in ["a", "b", "c"] {
        for domain in ["h", "k"] {
            let told = third_is_delayed([&two[0], &two[1], &two[0]], domain, identifier);
            assert!(told.is_some(), "{domain} {identifier}");
        }
    }
    assert!(ring.iter().all(|redis| redis.keys() > 0));
}

#[test]
fn a_master_that_is_started_again_knows_what_the_store_does() {
    let redis = Redis::start();
    let before = master(&redis);
    assert_eq!(third_is_delayed([&before; 3], "h", "known").map(|told| told.len() > 5), Some(true));
    drop(before);
    let after = master(&redis);
    let mut gatekeeper = Gatekeeper::new(&after, &["h\0"]);
    let at = ahead() + 20_000;
    gatekeeper.request("h", "known", at);
    assert_eq!(gatekeeper.hear(), order("h", "known", at + HOUR));
}

#[test]
fn a_master_that_is_started_again_without_a_store_delays_nobody_it_has_not_heard_of() {
    let before = MasterServer::start(DOMAINS);
    assert!(third_is_delayed([&before; 3], "h", "known").is_some());
    let after = before.killed_and_started(DOMAINS);
    let mut gatekeeper = Gatekeeper::new(&after, &["h\0"]);
    let at = ahead();
    gatekeeper.request("h", "known", at);
    (0..3).for_each(|_| gatekeeper.request("h", "end", at));
    assert!(gatekeeper.hear().contains("|end|"), "its history begins anew, and nobody is held");
}

#[test]
fn a_master_without_its_store_goes_on_from_what_it_hears() {
    let redis = Redis::start();
    let master = master(&redis);
    let mut gatekeeper = Gatekeeper::new(&master, &["h\0"]);
    drop(redis);
    until("the loss of the store", || {
        master.metric("evenkeel_store_connections{state=\"good\"}") == 0
    });
    let at = ahead();
    (0..3).for_each(|_| gatekeeper.request("h", "c", at));
    assert_eq!(gatekeeper.hear(), order("h", "c", at + HOUR));
}

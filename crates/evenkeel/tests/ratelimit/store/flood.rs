//! A server that poses as a store and sends endless answers. Each connection to it is closed after
//! a bounded number of bytes, and the instance decides with the state that it has.
//!
//! How long a legitimate answer can be: `store::redis::link::bounded` and its tests.

use super::all;
use super::away::{RULES, admin};
use super::redis::Redis;
use crate::ask::YEARLY;
use crate::program::{Grpc, Server};
use crate::server::{V3, asked};
use evenkeel_testing::evenkeel;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::{Program, addresses};
use evenkeel_testing::wait::wait_for;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

/// If a connection takes this number of bytes, it counts as read forever. The system's own buffers
/// take less.
const FOREVER: usize = 256 << 20;

/// The number of requests for the good server, alone and during a flood.
const TIMES: usize = 500;

/// The content of a flood.
#[derive(Clone, Copy)]
struct Flood {
    /// The server answers properly until a command with this word arrives. An empty word starts the
    /// flood at once.
    word: &'static str,
    head: &'static str,
    more: &'static str,
}

/// Starts a server that floods every client. Returns its address, and a list with the number of
/// bytes that each closed connection took.
fn start(flood: Flood) -> (SocketAddr, Arc<Mutex<Vec<usize>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let taken = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&taken);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let told = Arc::clone(&told);
            thread::spawn(move || {
                if let Some(count) = send(stream, flood) {
                    told.lock().expect("whole").push(count);
                }
            });
        }
    });
    (address, taken)
}

/// The number of bytes of the flood that were taken; `None` if the connection ended before the
/// flood.
fn send(mut stream: TcpStream, flood: Flood) -> Option<usize> {
    let (mut heard, mut answered, mut room) = (Vec::new(), 0, [0; 65_536]);
    loop {
        let count = stream.read(&mut room).ok().filter(|count| *count > 0)?;
        heard.extend_from_slice(&room[..count]);
        let text = String::from_utf8_lossy(&heard);
        if text.contains(flood.word) {
            break;
        }
        let asked = text.matches("$3\r\nSET\r\n").count() + text.matches("$4\r\nLOAD\r\n").count();
        stream.write_all("+OK\r\n".repeat(asked - answered).as_bytes()).ok()?;
        answered = asked;
    }
    let more = flood.more.repeat(65_536 / flood.more.len());
    let mut sent = stream.write(flood.head.as_bytes()).ok()?;
    while sent < FOREVER {
        let Ok(count) = stream.write(more.as_bytes()) else { break };
        sent += count;
    }
    Some(sent)
}

/// Checks that each connection ends because of the length of the flood and for no other reason.
fn is_left(layout: &str, flood: Flood) {
    let (address, taken) = start(flood);
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, YEARLY).expect("written");
    let page = format!("127.0.0.1:{}", free_port());
    let server = Server::from_file(&format!(
        "admin: {{listen: \"{page}\"}}\nratelimit: {{grpc: 127.0.0.1:0, http: 127.0.0.1:0, debug: \
         127.0.0.1:0, rules: {}}}\nstore: {{redis: [\"{address}\"], {layout}connect_timeout: 60s, \
         deadline: 10s}}\n",
        rules.display()
    ));
    let told = || -> serde_json::Value {
        serde_json::from_str(&admin(&page, "/api/store").1).expect("JSON")
    };
    wait_for("several connections", || (taken.lock().expect("whole").len() >= 3).then_some(()));
    wait_for("the reason", || {
        let why = told()["why"].as_str()?.to_owned();
        why.contains("that was not requested").then_some(why)
    });
    assert_eq!(all(&server, &["t: k=v", "t: k=v"]), ["OK [5/YEAR 4]", "OK [5/YEAR 3]"]);
    let most = taken.lock().expect("whole").iter().copied().max().unwrap_or(0);
    assert!(most < FOREVER, "{layout}{:?}", flood.head);
}

#[test]
fn answers_without_end_are_left() {
    for (head, more) in [
        ("+", "aaaaaaaa"),
        ("$536870000\r\n", "aaaaaaaa"),
        ("*1000000000\r\n", ":1\r\n"),
        ("*300000\r\n", ":1\r\n"),
        ("", "+OK\r\n"),
    ] {
        is_left("", Flood { word: "", head, more });
    }
}

#[test]
fn answers_without_end_of_sentinels_are_left() {
    is_left(
        "layout: sentinel, master: gate, ",
        Flood { word: "", head: "$900000000\r\n", more: "a" },
    );
}

#[test]
fn maps_of_slots_without_end_are_left() {
    is_left("layout: cluster, ", Flood { word: "SLOTS", head: "*16000\r\n+", more: "a" });
}

/// Requests for a server that floods are decided with the state of the instance. Requests for
/// another server of the same ring are answered in the meantime, on the same thread.
#[test]
fn others_are_answered_while_one_floods() {
    let redis = Redis::start(&[]);
    let (address, taken) = start(Flood { word: "EVALSHA", head: "+", more: "aaaaaaaa" });
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, RULES).expect("written");
    let page = format!("127.0.0.1:{}", free_port());
    let server = Server::from_file(&format!(
        "admin: {{listen: \"{page}\"}}\nratelimit: {{grpc: 127.0.0.1:0, http: 127.0.0.1:0, debug: \
         127.0.0.1:0, rules: {}}}\nstore: {{layout: ring, redis: [\"{}\", \"{address}\"], \
         deadline: 10s}}\n",
        rules.display(),
        redis.url()
    ));
    let answered = || -> u64 {
        let told: serde_json::Value =
            serde_json::from_str(&admin(&page, "/api/store").1).expect("JSON");
        told["answered"].as_u64().expect("a count")
    };
    // Divides the counters as a ring does.
    let name = |n: u32| format!("evenkeel:window:31536000s:t:h=v{n}");
    let at = |n: &u32| crc32fast::hash(name(*n).as_bytes()) % 2;
    let (its, floods): (Vec<u32>, Vec<u32>) = (0..20).partition(|n| at(n) == 0);
    let grpc = server.grpc();
    let ask = |n: u32| {
        let said = asked(&grpc, V3, &format!("t: h=v{n}"));
        assert!(said.starts_with("OK [1000000/YEAR "), "{said}");
    };
    wait_for("an answer of the store", || {
        ask(its[0]);
        (answered() > 0).then_some(())
    });
    let ask_its = |times: usize| its.iter().cycle().take(times).for_each(|n| ask(*n));
    ask_its(TIMES);
    let (before, ended) = (answered(), || taken.lock().expect("whole").len());
    let (begin, stop) = (ended(), AtomicBool::new(false));
    let beside = std::thread::scope(|scope| {
        let flooded = || {
            floods.iter().cycle().take_while(|_| !stop.load(Relaxed)).for_each(|n| ask(*n));
        };
        scope.spawn(flooded);
        wait_for("a flood", || (ended() > begin).then_some(()));
        let mut asked = TIMES;
        ask_its(TIMES);
        while ended() < begin + 5 {
            ask_its(1);
            asked += 1;
        }
        stop.store(true, Relaxed);
        asked
    });
    // Only the good server gives answers, and it has answered every request.
    assert_eq!(answered() - before, beside as u64);
    assert!(its.iter().all(|n| redis.text(&["EXISTS", &name(*n)]) == "1"), "{its:?}");
}

/// A server that answers with an error of this code and 300 kB of text as soon as a command with
/// this word arrives. It answers everything before properly.
fn complains(word: &'static str, code: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let error = format!("-{code} {}\r\n", "a".repeat(300_000));
                let mut room = [0; 65_536];
                // A client waits for the answer before its next request.
                while let Ok(count @ 1..) = stream.read(&mut room) {
                    let text = String::from_utf8_lossy(&room[..count]).into_owned();
                    let commands = text.matches("\r\nSET\r\n").count()
                        + text.matches("\r\nLOAD\r\n").count()
                        + text.matches("\r\nEVALSHA\r\n").count();
                    let answer = if text.contains(word) { &error } else { "+OK\r\n" };
                    if stream.write_all(answer.repeat(commands).as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn of_long_complaints_the_beginning_is_logged() {
    for (word, code, line) in [
        ("SET", "OOM", "the store is unreachable"),
        ("EVALSHA", "OOM", "the store is unreachable"),
        ("EVALSHA", "ERR", "a counter was refused"),
    ] {
        let address = complains(word, code);
        let folder = tempfile::tempdir().expect("a folder");
        let (rules, config) = (folder.path().join("rules.yaml"), folder.path().join("c.yaml"));
        std::fs::write(&rules, RULES).expect("written");
        let text = format!(
            "admin: off\nlog: {{level: debug}}\nratelimit: {{grpc: 127.0.0.1:0, http: 127.0.0.1:0, \
             rules: {}}}\nstore: {{redis: \"{address}\", deadline: 10s}}\n",
            rules.display()
        );
        std::fs::write(&config, text).expect("written");
        let mut command = evenkeel!();
        command.args(["serve", "--config"]).arg(&config);
        let mut program = Program::start(command);
        let door = addresses(&program.told("ratelimit open"))[0];
        let grpc = Grpc::connect(door);
        wait_for(line, || {
            assert!(asked(&grpc, V3, "t: h=v").starts_with("OK [1000000/YEAR "));
            program.log().contains(line).then_some(())
        });
        let longest = program.log().lines().map(str::len).max().unwrap_or(0);
        assert!(program.log().contains("aaaa") && longest < 1_000, "{longest}");
    }
}

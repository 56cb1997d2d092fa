//! What poses as a store sends answers without end: each connection is left after a bounded number
//! of bytes, and what is known here decides.
//!
//! How long an answer of ours can be: `store::redis::link::bounded` and its tests.

use super::all;
use super::away::admin;
use crate::ask::C1;
use crate::envoy::free_port;
use crate::program::{Server, wait_for};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Bytes after which a connection that is still heard counts as heard for ever; more than a system
/// takes on its own.
const FOREVER: usize = 256 << 20;

/// What it sends.
#[derive(Clone, Copy)]
struct Flood {
    /// All is answered well until a command with this word comes; empty: nothing is.
    word: &'static str,
    head: &'static str,
    more: &'static str,
}

/// Floods whoever comes. Returns its address, and what each connection that has ended has taken.
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

/// How many bytes of the flood were taken; `None` if it did not come to that.
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

/// Nothing but the length of what it sends ends a connection.
fn is_left(layout: &str, flood: Flood) {
    let (address, taken) = start(flood);
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, C1).expect("written");
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
    let why = wait_for("the reason", || {
        let why = told()["why"].as_str()?.to_owned();
        why.contains("beyond what it was asked for").then_some(why)
    });
    assert_eq!(all(&server, &["t: k=v", "t: k=v"]), ["OK [5/HOUR 4]", "OK [5/HOUR 3]"]);
    let most = taken.lock().expect("whole").iter().copied().max().unwrap_or(0);
    println!("{layout}{:?}: {most} bytes at most, {} KiB; {why}", flood.head, server.peak_kib());
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

//! Programs that count together over real connections: the original's example, a program that is
//! killed and learns the debts again, and limits that differ.
//!
//! No token returns during a test, so the remaining hits depend only on those admitted. The tests
//! wait for the state that the admin door shows.

mod apart;
mod turns;

use crate::stage::{Client, LineServer};
use evenkeel_testing::wait::until;
use rustix::process::Signal;
use std::fs;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A program with a line door and with peers.
pub struct Peer {
    pub program: LineServer,
    /// The address that other peers connect to.
    pub address: String,
}

impl Peer {
    /// Starts a peer with these keys in its `line` section that connects to the peers in `join`.
    pub fn start(line: &str, join: &[&Peer]) -> Peer {
        let join: Vec<&str> = join.iter().map(|peer| &*peer.address).collect();
        let peers = format!("listen: '127.0.0.1:0', period: 200ms, join: {join:?}");
        let mut program = program(line, &peers);
        let line = program.told("mesh open");
        let address = line.trim().rsplit('=').next().expect("an address").to_owned();
        Peer { program, address }
    }

    /// Sends some lines and returns the replies.
    pub fn ask(&self, lines: &str) -> String {
        Client::tcp(self.program.lines).ask(lines)
    }

    /// The answer to `/api/peers`.
    pub fn report(&self) -> serde_json::Value {
        body(&self.program.get("/api/peers"))
    }

    /// The hits left for a tag, as the admin door shows them.
    pub fn left(&self, tag: &str) -> Option<f64> {
        let top = body(&self.program.get("/api/top?limit=line"));
        let rows = top["limits"][0]["rows"].as_array()?;
        let row = rows.iter().find(|row| row["key"] == tag)?;
        row["level"].as_f64()
    }

    /// Waits until `live` peers are connected.
    pub fn meets(&self, live: u64) {
        until("they meet", || self.report()["live"] == live);
    }

    /// Waits until `level` hits are left for a tag.
    pub fn comes_to(&self, tag: &str, level: f64) {
        until(&format!("{level} of {tag} are left, not {:?}", self.left(tag)), || {
            self.left(tag).is_some_and(|left| (left - level).abs() < 0.5)
        });
    }
}

/// The hits left for a tag, at least zero, read by its name without a hit.
fn remaining(client: &mut Client<TcpStream>, tag: &str) -> u64 {
    client.send(format!("THROTTLE {tag} 0\r\n"));
    client.half_close();
    let reply = client.rest();
    let third = reply.lines().nth(3).and_then(|line| line.strip_prefix(':'));
    third.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{reply}"))
}

/// A program with these keys in its `line` and `peers` sections.
fn program(line: &str, peers: &str) -> LineServer {
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!(
        "admin: {{listen: '127.0.0.1:0'}}\n\
         line: {{listen: '127.0.0.1:0', resp: '127.0.0.1:0', {line}}}\npeers: {{{peers}}}\n"
    );
    fs::write(folder.path().join("evenkeel.yaml"), text).expect("saved");
    LineServer::start_in(folder)
}

fn body(answer: &str) -> serde_json::Value {
    let (_, body) = answer.split_once("\r\n\r\n").expect("an answer");
    serde_json::from_str(body).unwrap_or(serde_json::Value::Null)
}

const TEN: &str = "rate: 1 per 365d, burst: 10";

/// The door for lines opens before the mesh does.
#[test]
fn what_is_charged_before_the_mesh_is_open_is_reported_too() {
    let a = Peer::start(TEN, &[]);
    let b = Peer::start(TEN, &[&a]);
    [&a, &b].iter().for_each(|peer| peer.meets(2));
    // It has joined before the end of its first period.
    let join = [&*a.address, &*b.address];
    let join = format!("listen: '127.0.0.1:0', period: 4s, join: {join:?}");
    let joins = program(TEN, &join);
    assert_eq!(Client::tcp(joins.lines).ask("NEW\nNEW\n"), "OK\nOK\n");
    for peer in [&a, &b] {
        until("they know", || remaining(&mut Client::tcp(peer.program.resp), "NEW") == 8);
    }
}

/// Each serves one tag all the time, also while its state is read or another one's is added.
#[test]
fn instances_that_meet_while_they_are_busy_know_all_hits() {
    const BURST: u64 = 100_000_000;
    /// Ends the clients, also when the test fails.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    // A slower rate cannot express so many hits: a debt is a time.
    let many = format!("rate: 1 per 1h, burst: {BURST}");
    let (end, hits) = (AtomicBool::new(false), AtomicU64::new(0));
    let busy = |lines| {
        let mut client = Client::tcp(lines);
        while !end.load(Relaxed) {
            assert_eq!(client.ask("C\n"), "OK\n");
            hits.fetch_add(1, Relaxed);
        }
    };
    let mut peers: Vec<Peer> = Vec::new();
    std::thread::scope(|scope| {
        let _end = End(&end);
        for _ in 0..4 {
            let joins = Peer::start(&many, &peers.iter().collect::<Vec<_>>());
            let lines = joins.program.lines;
            scope.spawn(move || busy(lines));
            peers.push(joins);
            peers.iter().for_each(|peer| peer.meets(peers.len() as u64));
        }
    });
    let hits = hits.load(Relaxed);
    let known = || -> Vec<u64> {
        let left = |peer: &Peer| remaining(&mut Client::tcp(peer.program.resp), "C");
        peers.iter().map(|peer| BURST - left(peer)).collect()
    };
    until(&format!("all know {hits} hits"), || known().iter().all(|known| *known >= hits));
    assert_eq!(known(), [hits; 4]);
}

/// The original's numbers except for the refill: no token returns, so both end at 10 - 18.
#[test]
fn d1_the_example_on_two_programs() {
    let a = Peer::start(TEN, &[]);
    let b = Peer::start(TEN, &[&a]);
    a.meets(2);
    b.meets(2);
    // The number of reports between the two programs.
    let told = || [&a, &b].map(|peer| peer.report()["peers"][0]["report"].clone());
    let in_one_period = |tag: &str| {
        let before = told();
        let line = format!("{tag}\n");
        let first = (a.ask(&line.repeat(9)), b.ask(&line.repeat(8)), a.ask(&line.repeat(2)));
        (before == told()).then_some(first)
    };
    let tags: Vec<String> = (0..200).map(|n| format!("C{n}")).collect();
    let found = tags.iter().find_map(|tag| Some((tag, in_one_period(tag)?)));
    let (tag, first) = found.expect("a period in which all of this is asked");
    let ok = "OK\n";
    assert_eq!(first, (ok.repeat(9), ok.repeat(8), "OK\nNO\n".to_owned()));
    let line = format!("{tag}\n");
    for _ in 0..2 {
        a.comes_to(tag, -8.0);
        b.comes_to(tag, -8.0);
        assert_eq!((a.ask(&line), b.ask(&line)), ("NO\n".to_owned(), "NO\n".to_owned()));
    }
    // A tag that is known only from a report begins full.
    assert_eq!(b.ask("D\nD\nD\nD\n"), ok.repeat(4));
    a.comes_to("D", 6.0);
}

#[test]
fn who_is_killed_learns_again_what_is_owed() {
    let a = Peer::start(TEN, &[]);
    let b = Peer::start(TEN, &[&a]);
    let mut c = Peer::start(TEN, &[&a, &b]);
    [&a, &b, &c].iter().for_each(|peer| peer.meets(3));
    assert_eq!(c.ask(&"C\n".repeat(6)), "OK\n".repeat(6));
    a.comes_to("C", 4.0);
    b.comes_to("C", 4.0);
    c.program.signal(Signal::KILL);
    c.program.end();
    // Clients of the other programs do not notice it.
    assert_eq!(a.ask(&"C\n".repeat(3)), "OK\n".repeat(3));
    b.comes_to("C", 1.0);
    a.meets(2);
    let c = Peer::start(TEN, &[&a, &b]);
    c.meets(3);
    until("it knows what is owed", || remaining(&mut Client::tcp(c.program.resp), "C") == 1);
    assert_eq!(c.ask("C\nC\n"), "OK\nNO\n", "one was left");
    a.comes_to("C", 0.0);
    assert_eq!(b.report()["refused"], 0);
}

#[test]
fn who_ends_tells_what_it_has_not_told_yet() {
    let slow = |join: &str| format!("listen: '127.0.0.1:0', period: 60s, join: [{join}]");
    let started = |join: &str| {
        let mut program = program(TEN, &slow(join));
        let line = program.told("mesh open");
        let address = line.trim().rsplit('=').next().expect("an address").to_owned();
        Peer { program, address }
    };
    let a = started("");
    let mut b = started(&a.address);
    a.meets(2);
    b.meets(2);
    assert_eq!(b.ask(&"C\n".repeat(7)), "OK\n".repeat(7));
    b.program.signal(Signal::TERM);
    assert_eq!(b.program.end().code(), Some(0));
    // Long before a period has passed.
    until("the other has heard of it", || a.report()["peers"][0]["entries_in"] == 1);
    assert_eq!(a.ask(&"C\n".repeat(4)), "OK\nOK\nOK\nNO\n");
}

#[test]
fn what_is_shared_counts_and_what_differs_is_told() {
    let mut a = Peer::start(
        "rate: 1 per 365d, burst: 10, limits: [{prefix: x, rate: 1 per 365d, burst: 5}]",
        &[],
    );
    let mut b = Peer::start(
        "rate: 1 per 365d, burst: 20, limits: [{prefix: y, rate: 1 per 365d, burst: 5}]",
        &[&a],
    );
    a.meets(2);
    b.meets(2);
    for peer in [&mut a, &mut b] {
        let line = peer.program.told("a limit is configured differently on a peer");
        assert!(line.contains("limit=\"line\"") || line.contains("limit=line"), "{line}");
        peer.program.told("a peer has a limit that differs from this instance's");
    }
    assert_eq!(a.ask("C\nC\nC\n"), "OK\nOK\nOK\n");
    b.comes_to("C", 17.0);
    assert_eq!(a.ask("x1\n"), "OK\n");
    until("it was passed over", || b.report()["peers"][0]["entries_unshared"] == 1);
}

#[test]
fn a_group_on_this_machine_counts_together() {
    // A port of its own, because other tests may run at the same time.
    let port = std::net::UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = port.expect("a port").port();
    let peers = format!(
        "via: multicast, group: '239.255.70.46:{port}', interface: 127.0.0.1, period: 200ms"
    );
    let [a, b] = [(); 2].map(|()| Peer { program: program(TEN, &peers), address: String::new() });
    a.meets(2);
    b.meets(2);
    assert_eq!(a.ask(&"C\n".repeat(6)), "OK\n".repeat(6));
    b.comes_to("C", 4.0);
    assert_eq!(b.ask(&"C\n".repeat(5)), ["OK\n".repeat(4), "NO\n".to_owned()].concat());
    a.comes_to("C", 0.0);
    // A Redis client with numbers of its own: the debt is a time, so other programs need no
    // numbers.
    let mut cell = Client::tcp(a.program.resp);
    cell.send("CL.THROTTLE k 0 1 86400\r\n");
    assert!(cell.take(8).ends_with(":0\r\n"), "it passes");
    until("the other refuses it too", || {
        let mut cell = Client::tcp(b.program.resp);
        cell.send("CL.THROTTLE k 0 1 86400 0\r\n");
        let reply = cell.take(16);
        reply.split("\r\n").nth(3) == Some(":0")
    });
}

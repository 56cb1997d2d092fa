//! Two processes before one backend share its queue: one slot for both, one order of all requests.
//!
//! The first process is the older one, so it owns the queue. In each test it is stopped, killed,
//! ended or reloaded while requests wait at both.

#[path = "queues/balanced.rs"]
mod balanced;

use super::handover::{Last, told_pid};
use super::{ask, get, read, start};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::{until, wait_for};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use tempfile::TempDir;

/// A backend that tells of each request, and answers it when the test says so.
struct Backend {
    address: SocketAddr,
    requests: Receiver<(String, Sender<()>)>,
}

impl Backend {
    fn start() -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let (arrived, requests) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let arrived = arrived.clone();
                thread::spawn(move || answer(stream, &arrived));
            }
        });
        Backend { address, requests }
    }

    /// Waits for a request for `path`. Any other request before it is an error.
    fn gets(&self, path: &str) -> Sender<()> {
        let (found, go) = self.requests.recv_timeout(super::LONG).expect("a request");
        assert_eq!(found, path);
        go
    }

    fn gets_nothing(&self) {
        assert!(self.requests.try_recv().is_err(), "two requests are with the backend");
    }
}

fn answer(mut stream: TcpStream, arrived: &Sender<(String, Sender<()>)>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n > 0) {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let (go, told) = channel();
    let path = head.split(' ').nth(1).map(str::to_owned);
    if path.is_some_and(|path| arrived.send((path, go)).is_ok()) && told.recv().is_ok() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
        let _ = stream.write_all(text.as_bytes());
    }
}

/// One of the two processes.
struct Instance {
    program: Program,
    config: PathBuf,
    proxy: SocketAddr,
    admin: SocketAddr,
}

impl Instance {
    fn start(config: PathBuf) -> Instance {
        let mut program = start(&["serve", "--config", &config.display().to_string()]);
        let addresses = super::addresses(&mut program);
        let (proxy, admin) = (addresses[0], addresses[1]);
        Instance { program, config, proxy, admin }
    }

    /// A figure of the queue; `None` if it shares none.
    fn figure(&self, name: &str) -> Option<usize> {
        let all = get(self.admin, "/metrics");
        let series = format!("evenkeel_queue_{name}{{door=\"proxy\"}} ");
        all.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
    }

    fn owns(&self) -> bool {
        self.figure("owner") == Some(1)
    }

    fn reload(&mut self, from: &str, to: &str) {
        let text = fs::read_to_string(&self.config).expect("there");
        assert!(text.contains(from), "{text}");
        fs::write(&self.config, text.replace(from, to)).expect("saved");
        self.program.signal(Signal::HUP);
        self.program.told("configuration reloaded");
    }
}

/// Small tables: without optimisation, looking through large ones for an instance that joins takes
/// longer than an owner may be silent.
const LIMITS: &str = "  limits: [{name: ip, by: ip/32, share: 100%, burst: 1h, keys_max: 1000}]\n";

/// One test at a time: an owner that gets no CPU for half a second loses its queue.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two instances with one slot, or several. The first one owns the queue.
struct Pair {
    backend: Backend,
    owner: Instance,
    other: Instance,
    _folder: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Pair {
    /// Starts two instances with `more` at the end of their configurations.
    fn start(more: &str) -> Pair {
        Pair::with_slots(1, more)
    }

    fn with_slots(slots: usize, more: &str) -> Pair {
        let _alone = alone();
        let folder = tempfile::tempdir().expect("a folder");
        let backend = Backend::start();
        let ports = [free_port(), free_port()];
        // Only one connects to the other, so there is one connection between the two.
        let joins = [String::new(), format!("'127.0.0.1:{}'", ports[0])];
        let config = |own: usize| {
            let text = format!(
                "admin: {{listen: '127.0.0.1:0'}}\nproxy:\n  listen: 127.0.0.1:0\n  \
                 backend: http://{}\n  queue: {{concurrency: {slots}, reserve: 0}}\n{LIMITS}\
                 peers:\n  listen: 127.0.0.1:{}\n  join: [{}]\n  cpus_shared: true\n{more}",
                backend.address, ports[own], joins[own]
            );
            let path = folder.path().join(format!("{own}.yaml"));
            fs::write(&path, text).expect("saved");
            path
        };
        let owner = Instance::start(config(0));
        until("it owns a queue", || owner.owns());
        let other = Instance::start(config(1));
        let pair = Pair { backend, owner, other, _folder: folder, _alone };
        pair.is_shared();
        pair
    }

    /// Waits until both share the queue of the first.
    fn is_shared(&self) {
        until("they share a queue", || {
            let both = [&self.owner, &self.other];
            both.iter().all(|one| one.figure("instances") == Some(2))
                && self.owner.owns()
                && !self.other.owns()
        });
    }

    /// A request that waits at one of the two. `count`: the number that then wait at both.
    fn waits(&self, at: &Instance, path: &str, waiting: usize) -> TcpStream {
        let client = ask(at.proxy, path);
        until("it waits", || self.owner.figure("waiting_requests") == Some(waiting));
        client
    }

    /// A request that runs.
    fn runs(&self, at: &Instance, path: &str) -> (TcpStream, Sender<()>) {
        let client = ask(at.proxy, path);
        (client, self.backend.gets(path))
    }
}

fn served(client: TcpStream) {
    let answer = read(client);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
}

/// Answers requests, and expects them in this order, one after the other.
fn in_order(backend: &Backend, running: &Sender<()>, paths: &[&str]) {
    let mut go = running.clone();
    for path in paths {
        backend.gets_nothing();
        go.send(()).expect("it waits for that");
        go = backend.gets(path);
    }
    go.send(()).expect("it waits for that");
}

#[test]
fn one_slot_is_for_both_and_requests_have_one_order() {
    let pair = Pair::start("");
    let (first, running) = pair.runs(&pair.owner, "/first");
    let mut clients = vec![first];
    clients.push(pair.waits(&pair.other, "/second", 1));
    clients.push(pair.waits(&pair.owner, "/third", 2));
    clients.push(pair.waits(&pair.other, "/fourth", 3));
    in_order(&pair.backend, &running, &["/second", "/third", "/fourth"]);
    clients.into_iter().for_each(served);
    // When none waits, the other asks for a slot, too, and both have it in turns.
    for at in [&pair.other, &pair.owner, &pair.other] {
        let (client, running) = pair.runs(at, "/alone");
        running.send(()).expect("answered");
        served(client);
    }
}

#[test]
fn if_the_owner_is_killed_requests_of_the_other_are_served_in_their_order() {
    let mut pair = Pair::start("");
    let (first, running) = pair.runs(&pair.other, "/first");
    let mut clients = vec![first, pair.waits(&pair.other, "/second", 1)];
    let lost = pair.waits(&pair.owner, "/lost", 2);
    clients.push(pair.waits(&pair.other, "/third", 3));
    clients.push(pair.waits(&pair.other, "/fourth", 4));
    pair.owner.program.kill();
    drop(lost);
    until("the other takes the queue over", || pair.other.owns());
    // A queue always has a slot beside the requests that run on from before it.
    let second = pair.backend.gets("/second");
    in_order(&pair.backend, &second, &["/third", "/fourth"]);
    running.send(()).expect("answered");
    clients.into_iter().for_each(served);
    assert_eq!(pair.other.figure("takeovers_total"), Some(1));
    // The one that was killed starts again, and joins the queue.
    let config = pair.owner.config.clone();
    let again = Instance::start(config);
    std::mem::swap(&mut pair.owner, &mut pair.other);
    pair.other = again;
    pair.is_shared();
    let (client, running) = pair.runs(&pair.other, "/again");
    let waits = pair.waits(&pair.owner, "/waits", 1);
    in_order(&pair.backend, &running, &["/waits"]);
    [client, waits].into_iter().for_each(served);
}

#[test]
fn while_the_owner_is_stopped_the_other_serves_and_all_are_served_afterwards() {
    let mut pair = Pair::start("");
    let (first, running) = pair.runs(&pair.other, "/first");
    let here = pair.waits(&pair.other, "/here", 1);
    let there = pair.waits(&pair.owner, "/there", 2);
    pair.owner.program.signal(Signal::STOP);
    until("the other takes the queue over", || pair.other.owns());
    for go in [running, pair.backend.gets("/here")] {
        go.send(()).expect("answered");
    }
    [first, here].into_iter().for_each(served);
    let (blocking, running) = pair.runs(&pair.other, "/blocking");
    pair.owner.program.signal(Signal::CONT);
    // It joins the queue of the other, and what waits here asks there.
    std::mem::swap(&mut pair.owner, &mut pair.other);
    pair.is_shared();
    running.send(()).expect("answered");
    pair.backend.gets("/there").send(()).expect("answered");
    [blocking, there].into_iter().for_each(served);
}

#[test]
fn an_owner_that_ends_serves_what_waits_there_and_hands_the_queue_on() {
    let mut pair = Pair::start("");
    let (first, running) = pair.runs(&pair.other, "/first");
    let mut clients = vec![first, pair.waits(&pair.owner, "/second", 1)];
    clients.push(pair.waits(&pair.other, "/third", 2));
    clients.push(pair.waits(&pair.other, "/fourth", 3));
    pair.owner.program.signal(Signal::TERM);
    pair.owner.program.told("draining");
    // It owns the queue until the last of its requests has ended.
    running.send(()).expect("answered");
    let running = pair.backend.gets("/second");
    pair.backend.gets_nothing();
    running.send(()).expect("answered");
    let third = pair.backend.gets("/third");
    assert_eq!(pair.owner.program.end().code(), Some(0));
    until("the other owns the queue", || pair.other.owns());
    // If the owner before gave it its slot, the next request may run beside it.
    third.send(()).expect("answered");
    pair.backend.gets("/fourth").send(()).expect("answered");
    clients.into_iter().for_each(served);
}

#[test]
fn a_reload_ends_and_begins_the_sharing() {
    let mut pair = Pair::start("");
    let (first, running) = pair.runs(&pair.owner, "/first");
    let waits = pair.waits(&pair.other, "/waits", 1);
    // Then the other has a slot of its own.
    pair.other.reload("reserve: 0}", "reserve: 0, shared: false}");
    let beside = pair.backend.gets("/waits");
    until("it shares no queue", || pair.other.figure("owner").is_none());
    until("the owner is alone", || pair.owner.figure("instances") == Some(1));
    [running, beside].into_iter().for_each(|go| go.send(()).expect("answered"));
    [first, waits].into_iter().for_each(served);

    // It has owned a queue of its own, so either may own the one of both.
    pair.other.reload(", shared: false}", "}");
    until("one owns the queue", || {
        pair.owner.figure("instances") == pair.other.figure("instances")
    });
    until("one owns the queue", || pair.owner.owns() != pair.other.owns());
    if pair.other.owns() {
        std::mem::swap(&mut pair.owner, &mut pair.other);
    }
    pair.is_shared();
    let (first, running) = pair.runs(&pair.other, "/first");
    let waits = pair.waits(&pair.owner, "/waits", 1);
    let last = pair.waits(&pair.other, "/last", 2);
    in_order(&pair.backend, &running, &["/waits", "/last"]);
    [first, waits, last].into_iter().for_each(served);
}

/// It does not leave a part of the slots to an instance with which it shares no queue.
#[test]
fn an_instance_that_shares_no_longer_has_all_slots() {
    let mut pair = Pair::with_slots(2, "");
    pair.other.reload("reserve: 0}", "reserve: 0, shared: false}");
    until("the owner is alone", || pair.owner.figure("instances") == Some(1));
    for at in [&pair.other, &pair.owner] {
        let both = ["/a", "/b"].map(|path| pair.runs(at, path));
        for (client, go) in both {
            go.send(()).expect("answered");
            served(client);
        }
    }
}

#[test]
fn a_store_that_is_away_does_not_keep_them_from_sharing() {
    let pair = Pair::start("store: {redis: 'redis://127.0.0.1:1'}\n");
    let (first, running) = pair.runs(&pair.owner, "/first");
    let second = pair.waits(&pair.other, "/second", 1);
    let third = pair.waits(&pair.owner, "/third", 2);
    in_order(&pair.backend, &running, &["/second", "/third"]);
    [first, second, third].into_iter().for_each(served);
}

/// Its successor takes part before it ends, and does not own the queue afterwards.
#[test]
fn an_owner_that_is_replaced_serves_what_waits_and_the_other_is_next() {
    let mut pair = Pair::start("");
    let (first, running) = pair.runs(&pair.owner, "/first");
    let second = pair.waits(&pair.other, "/second", 1);
    pair.owner.program.signal(Signal::USR2);
    let program = &mut pair.owner.program;
    let _successor = Last(told_pid(&program.told("a successor was started and opens its doors")));
    program.told("replaced");
    until("three take part", || pair.other.figure("instances") == Some(3));
    in_order(&pair.backend, &running, &["/second"]);
    [first, second].into_iter().for_each(served);
    assert_eq!(pair.owner.program.end().code(), Some(0));
    until("two take part", || pair.other.figure("instances") == Some(2) && pair.other.owns());
}

/// Both have requests all the time, and take their places in the queue again and again.
#[test]
fn restarts_in_turns_lose_no_waiting_request() {
    let mut pair = Pair::start("");
    for _ in 0..3 {
        let (first, running) = pair.runs(&pair.other, "/first");
        let (second, third) =
            (pair.waits(&pair.owner, "/second", 1), pair.waits(&pair.other, "/third", 2));
        pair.owner.program.signal(Signal::TERM);
        pair.owner.program.told("draining");
        in_order(&pair.backend, &running, &["/second", "/third"]);
        [first, second, third].into_iter().for_each(served);
        assert_eq!(pair.owner.program.end().code(), Some(0));
        let again = Instance::start(pair.owner.config.clone());
        pair.owner = std::mem::replace(&mut pair.other, again);
        pair.is_shared();
    }
    let log = wait_for("a log", || Some(pair.owner.program.log()));
    assert!(!log.contains("panicked"), "{log}");
}

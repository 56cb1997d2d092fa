//! Turns on the wire: `TAKE`, `TRY` and `DONE`, Redis clients, and commands that wait for a turn.

use crate::stage::{Client, LineServer};
use evenkeel_testing::evenkeel;
use evenkeel_testing::wait::until;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};

/// A program with this number of slots, and with more keys in `turns`.
fn start(slots: usize, more: &str) -> LineServer {
    LineServer::start(&format!("turns: {{slots: {slots}{more}}}"))
}

/// A connection that reads replies line by line.
pub struct Worker {
    client: Client<TcpStream>,
    replies: BufReader<TcpStream>,
}

impl Worker {
    pub fn new(program: &LineServer) -> Worker {
        let client = Client::tcp(program.lines);
        let replies = BufReader::new(client.stream.try_clone().expect("a handle"));
        Worker { client, replies }
    }

    pub fn send(&mut self, line: &str) {
        self.client.send(format!("{line}\n"));
    }

    pub fn reply(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("a reply");
        line.trim_end().to_owned()
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.reply()
    }

    /// Waits for a turn, and returns its id.
    pub fn turn(&mut self) -> String {
        let reply = self.reply();
        reply.strip_prefix("TURN ").unwrap_or_else(|| panic!("{reply}")).to_owned()
    }

    pub fn take(&mut self, tag: &str) -> String {
        self.send(&format!("TAKE {tag}"));
        self.turn()
    }

    pub fn done(&mut self, id: &str) {
        assert_eq!(self.ask(&format!("DONE {id} cost=10ms")), "OK");
    }
}

/// Waits until this number of programs wait for their turn.
pub fn waiting(program: &LineServer, count: u64) {
    until("they wait", || program.metric("evenkeel_waiting_requests{door=\"turns\"}") == count);
}

#[test]
fn a_tag_with_many_jobs_does_not_delay_one_with_a_single_job() {
    let program = start(1, "");
    let mut first = Worker::new(&program);
    let id = first.take("heavy");
    let mut waiters = Vec::new();
    for (count, tag) in (1..).zip(["heavy", "heavy", "heavy", "light"]) {
        let mut worker = Worker::new(&program);
        worker.send(&format!("TAKE {tag}"));
        waiting(&program, count);
        waiters.push(worker);
    }
    // A further job of `heavy` comes after all of them, one of a new tag before its second one.
    let mut asks = Worker::new(&program);
    assert_eq!(asks.ask("PLACE heavy"), "PLACE 4");
    assert_eq!(asks.ask("PLACE other"), "PLACE 2");
    assert_eq!(asks.ask("PLACE "), "ERR a tag is missing");
    first.done(&id);
    // What the first turn has cost counts.
    for place in [3, 0, 1, 2] {
        let id = waiters[place].turn();
        waiters[place].done(&id);
    }
}

#[test]
fn the_turn_of_a_program_that_ends_is_free_at_once() {
    let program = start(1, "");
    let mut holder = Worker::new(&program);
    let _ = holder.take("a");
    let mut gone = Worker::new(&program);
    gone.send("TAKE b");
    waiting(&program, 1);
    let mut next = Worker::new(&program);
    next.send("TAKE c");
    waiting(&program, 2);
    drop(gone);
    waiting(&program, 1);
    drop(holder);
    let id = next.turn();
    next.done(&id);
    assert_eq!(next.ask(&format!("DONE {id}")), "NO", "it was given back");
}

/// There are more connections than may be open: those of programs that wait are closed, and those
/// of programs that run are not.
#[test]
fn programs_that_hold_turns_keep_their_connections() {
    let program = LineServer::start("turns: {slots: 2}, connections: 6");
    let mut holders = [Worker::new(&program), Worker::new(&program)];
    let ids = holders.each_mut().map(|holder| holder.take("honest"));
    let mut others = Vec::new();
    for _ in 0..20 {
        let mut other = Worker::new(&program);
        other.send("TAKE other");
        others.push(other);
    }
    until("some are closed", || {
        program.metric("evenkeel_connections_shed_total{door=\"line\"}") >= 10
    });
    for (holder, id) in holders.iter_mut().zip(&ids) {
        holder.done(id);
    }
}

/// A program that has sent much behind a `TAKE` that waits, and is gone, leaves its place.
#[test]
fn too_much_behind_a_take_that_waits_ends_the_connection() {
    let program = start(1, "");
    let mut holder = Worker::new(&program);
    let id = holder.take("a");
    let mut full = Worker::new(&program);
    full.send(&format!("TAKE b\n{}", "TAKE b\n".repeat(3_000)));
    assert_eq!(full.reply(), "ERR more than 16384 bytes follow a TAKE that waits");
    waiting(&program, 0);
    holder.done(&id);
}

/// The time of turns is not shown as CPU time.
#[test]
fn turns_are_shown_as_slots() {
    let program = start(3, "");
    let mut worker = Worker::new(&program);
    let id = worker.take("a");
    worker.done(&id);
    let top = program.get("/api/top");
    assert!(top.contains("\"door\":\"turns\"") && top.contains("\"work_unit\":\"slots\""), "{top}");
    let column = |name: &str| -> Vec<f64> {
        let history = program.get("/api/history");
        let values = history.split(&format!("\"{name}\":[")).nth(1).unwrap_or_default();
        let values = values.split(']').next().unwrap_or_default();
        values.split(',').filter_map(|value| value.parse().ok()).collect()
    };
    until("a point with slots", || column("slots").contains(&3.0));
    assert!(column("cpus").iter().all(|cpus| *cpus == 0.0), "{:?}", column("cpus"));
}

#[test]
fn late_and_busy_programs_and_mistakes_are_told() {
    let program = start(1, ", len_max: 1, wait_max: 1h");
    let mut one = Worker::new(&program);
    let id = one.take("a tag with spaces");
    let mut other = Worker::new(&program);
    assert_eq!(other.ask("TRY b"), "BUSY");
    assert_eq!(other.ask("TAKE b wait=10ms"), "LATE");
    assert_eq!(other.ask("TAKE b wait=0s cost=1s"), "LATE");
    other.send("TAKE b");
    waiting(&program, 1);
    let mut third = Worker::new(&program);
    assert_eq!(third.ask("TAKE b"), "BUSY", "one may wait");
    assert_eq!(third.ask("TAKE b wait=soon"), "ERR `wait=soon` is not a time; write wait=120ms");
    assert_eq!(third.ask("DONE x"), "ERR `x` is not the id of a turn");
    assert_eq!(third.ask("TRY b wait=1s"), "ERR `wait` is only for TAKE");
    assert_eq!(third.ask("DONE 1"), "NO");
    assert_eq!(third.ask("TAKEN"), "OK", "a tag");
    // A turn may be given back over any connection.
    third.done(&id);
    let id = other.turn();
    other.done(&id);
}

/// Without this, a program would wait for a turn that it has given back itself.
#[test]
fn a_turn_that_is_given_back_after_a_take_is_free() {
    let program = start(1, "");
    let mut worker = Worker::new(&program);
    let id = worker.take("a");
    worker.send(&format!("tag\nTAKE b\nDONE {id}\nTRY c\ntag"));
    assert_eq!(worker.reply(), "OK");
    let id = worker.turn();
    assert_eq!([worker.reply(), worker.reply(), worker.reply()], ["OK", "BUSY", "OK"]);
    worker.done(&id);
}

#[test]
fn a_reload_changes_the_number_of_slots_and_turns_are_given_back_after_hold_max() {
    let mut program = start(1, "");
    let mut holder = Worker::new(&program);
    let _ = holder.take("a");
    let mut next = Worker::new(&program);
    next.send("TAKE b");
    waiting(&program, 1);
    program.reload("turns: {slots: 2}");
    let _ = next.turn();
    let mut third = Worker::new(&program);
    third.send("TAKE c");
    waiting(&program, 1);
    program.reload("turns: {slots: 2, hold_max: 1ms}");
    let _ = third.turn();
}

const LIBRARY: &str = r#"
import sys, threading, redis
r = redis.Redis(port=int(sys.argv[1]))
turn = r.execute_command("EK.TAKE", "a", "wait=60s")
assert r.execute_command("EK.TRY", "b") is None
assert r.execute_command("EK.TAKE", "b", "wait=10ms") is None
order = []
def job(tag):
    turn = r.execute_command("EK.TAKE", tag)
    order.append(tag)
    assert r.execute_command("EK.DONE", turn, "cost=20ms") == 1
jobs = [threading.Thread(target=job, args=(tag,)) for tag in "xyz"]
for one in jobs:
    one.start()
assert r.execute_command("EK.DONE", turn) == 1
assert r.execute_command("EK.DONE", turn) == 0
for one in jobs:
    one.join()
assert sorted(order) == ["x", "y", "z"], order
for words in (["EK.TAKE"], ["EK.TAKE", "a", "now"], ["EK.DONE", "x"]):
    try:
        r.execute_command(*words)
    except redis.ResponseError as error:
        print(error)
"#;

#[test]
fn redis_clients_take_turns() {
    let program = start(1, "");
    let port = program.resp.port().to_string();
    let cli = |words: &[&str]| said(Command::new("redis-cli").args(["-p", &port]).args(words));
    // Its turn ends with its connection.
    assert!(cli(&["EK.TAKE", "a"]).trim().parse::<u64>().is_ok());
    assert!(cli(&["EK.TRY", "a"]).trim().parse::<u64>().is_ok());
    let faults = said(Command::new("/usr/bin/python3").args(["-c", LIBRARY, &port]));
    let faults: Vec<&str> = faults.lines().collect();
    assert_eq!(faults[0], "wrong number of arguments for 'ek.take' command");
    assert_eq!(faults[1], "unknown word `now`: write cost=120ms or wait=5s");
    assert_eq!(faults[2], "`x` is not the id of a turn");
    let without = LineServer::start("rate: 1/s");
    let port = without.resp.port().to_string();
    let reply = said(Command::new("redis-cli").args(["-p", &port, "EK.TRY", "a"]));
    assert!(reply.contains("there are no turns: `line.turns` is not set"), "{reply}");
}

fn said(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("see ci/test");
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned()
}

/// `evenkeel turn` at this program.
fn command(program: &LineServer, words: &[&str]) -> Command {
    let mut command = evenkeel!();
    command.args(["turn", "--line", &format!("tcp://{}", program.lines)]).args(words);
    command
}

#[test]
fn a_command_waits_for_its_turn_and_is_charged_its_cpu_time() {
    let program = start(1, "");
    let mut holder = Worker::new(&program);
    let id = holder.take("a");
    let late = command(&program, &["--tag", "b", "--wait", "10ms", "--", "true"]).output();
    let late = late.expect("it runs");
    assert_eq!(late.status.code(), Some(75), "{}", String::from_utf8_lossy(&late.stderr));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ran");
    let script =
        format!("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; touch {file:?}; exit 3");
    let mut waits = command(&program, &["--tag", "nightly", "--", "sh", "-c", &script]);
    let mut child = waits.stdin(Stdio::null()).spawn().expect("it runs");
    waiting(&program, 1);
    assert!(fs::metadata(&file).is_err(), "it has no turn");
    holder.done(&id);
    assert_eq!(child.wait().expect("it ends").code(), Some(3));
    assert!(fs::metadata(&file).is_ok());
    let top = program.get("/api/top?limit=turns");
    let body = top.split("\r\n\r\n").nth(1).unwrap_or(&top);
    let top: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let rows = top["limits"][0]["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["key"] == "nightly").expect("its tag");
    assert!(row["cpu_total"].as_f64().expect("a cost") > 0.01, "{row}");
    let mut next = Worker::new(&program);
    let _ = next.take("c");
}

/// A limiter that is down must not take the job with it.
#[test]
fn a_command_runs_without_a_turn_if_no_door_answers() {
    let port = evenkeel_testing::port::free_port();
    let mut alone = evenkeel!();
    alone.args(["turn", "--line", &format!("tcp://127.0.0.1:{port}"), "--tag", "a", "--", "true"]);
    let done = alone.output().expect("it runs");
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && told.contains("running without a turn"), "{told}");
    let without = LineServer::start("rate: 1/s");
    let done = command(&without, &["--tag", "a", "--", "true"]).output().expect("it runs");
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && told.contains("it gives out no turns"), "{told}");
}

const PYTHON: &str = r#"
import asyncio, logging, sys, threading
from evenkeel_client import AsyncTurns, Busy, EvenkeelError, Late, Turns

door, nobody, without = sys.argv[1:]
turns = Turns(door)
with turns.take("a", cost=0.1) as turn:
    assert turn.id
    for take in (lambda: turns.take("b", wait=0.01), lambda: turns.take("b", wait=0)):
        try:
            with take():
                raise AssertionError("a second turn")
        except Late:
            pass
    try:
        with turns.try_take("b"):
            raise AssertionError("a second turn")
    except Busy:
        pass
    turn.cost = 0.25
at_once, most = 0, 0
def job(n):
    global at_once, most
    with turns.take(f"tenant-{n % 5}"):
        at_once += 1
        most = max(most, at_once)
        at_once -= 1
threads = [threading.Thread(target=job, args=(n,)) for n in range(50)]
for one in threads: one.start()
for one in threads: one.join()
assert most == 1, most

async def main():
    turns = AsyncTurns(door)
    async def job(n):
        async with turns.take(f"tenant-{n % 5}") as turn:
            turn.cost = 0.01
            await asyncio.sleep(0)
    await asyncio.gather(*(job(n) for n in range(50)))
    async with turns.take("a"):
        waits = asyncio.create_task(job(1))
        await asyncio.sleep(0.05)
        waits.cancel()
        try:
            async with turns.try_take("b"):
                raise AssertionError("a second turn")
        except Busy:
            pass
    async with turns.try_take("b"):
        pass
    async with AsyncTurns(nobody).take("a") as turn:
        assert turn.id is None
asyncio.run(main())
with Turns(nobody).take("a") as turn:
    assert turn.id is None
try:
    with Turns(without).take("a"):
        raise AssertionError("there are no turns")
except EvenkeelError as error:
    assert "line.turns" in str(error)
print("good")
"#;

#[test]
fn the_client_for_python_takes_turns() {
    let (program, without) = (start(1, ""), LineServer::start("rate: 1/s"));
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python");
    let nobody = evenkeel_testing::port::free_port();
    let doors = [
        format!("tcp://{}", program.lines),
        format!("tcp://127.0.0.1:{nobody}"),
        format!("unix://{}", without.socket().display()),
    ];
    let mut python = Command::new("/usr/bin/python3");
    python.env("PYTHONPATH", client).env("PYTHONDONTWRITEBYTECODE", "1");
    assert_eq!(said(python.args(["-c", PYTHON]).args(doors)), "good\n");
    waiting(&program, 0);
}

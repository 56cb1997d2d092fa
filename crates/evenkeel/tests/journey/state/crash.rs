//! The effect of a crash: after a kill while clients are charged, the program knows all charges
//! from before the last snapshot began, and none that never happened.
//!
//! The test counts instead of measuring time: every charge is one CPU-second, the rate is so low
//! that nothing is paid in the meantime, and the time of a snapshot is read from the snapshot.

use crate::client::Client;
use crate::door::{Door, report};
use evenkeel_testing::wait::wait_for;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

const CLIENTS: u8 = 4;
/// The number of charges of one client. `max_delay` bounds a debt at 864 CPU-seconds.
const CHARGES_MAX: usize = 800;

/// A hundredth of a CPU-second is paid each second. No request may be refused, because a refused
/// one would not be charged; apart from that the decisions do not matter.
fn settings(folder: &Path) -> String {
    format!(
        "  cpus: 1\n  action: hold\n  max_delay: 1d\n  shadow: true\n  limits:\n    \
         - {{name: ip, by: ip/32, share: 1%, burst: 1ms}}\n\
         state: {{file: {}/state, every: 200ms}}\n",
        folder.display()
    )
}

fn client(n: u8) -> String {
    format!("192.0.2.{n}")
}

/// The present in the form of snapshots, in nanoseconds since the Unix epoch.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(now.as_nanos()).expect("before 2554")
}

/// The charges of one client: the time at which each was confirmed, and the number of charges
/// begun.
#[derive(Default)]
struct Charged {
    done: Vec<u64>,
    begun: usize,
}

/// Charges `client` one CPU-second after the other until the program is gone, or it owes so much
/// that `max_delay` would bound it.
fn charge(port: u16, client: &str, all: &AtomicUsize) -> Charged {
    let mut charged = Charged::default();
    let door = Client::new("127.0.0.1", port);
    let ask = format!("GET /check HTTP/1.1\r\nHost: t\r\nX-Real-IP: {client}\r\n\r\n");
    while charged.begun < CHARGES_MAX {
        let Some(passed) = door.try_ask(&ask) else { return charged };
        let id = passed.header("x-evenkeel-id").expect("an id").to_owned();
        charged.begun += 1;
        let told = report(&format!("id={id}&cost=1s"));
        let Some(settled) = door.try_ask(&told) else { return charged };
        assert_eq!(settled.status, 204);
        charged.done.push(now());
        all.fetch_add(1, Relaxed);
    }
    charged
}

/// The time at which the snapshot began, which follows its kind, version, number of limits and
/// seed.
fn begun(state: &Path) -> u64 {
    let bytes = fs::read(state).expect("a snapshot");
    u64::from_le_bytes(bytes[32..40].try_into().expect("eight bytes"))
}

/// The debt of a client, in whole CPU-seconds.
fn owed(door: &Door, client: &str) -> usize {
    let before = door.log().lines().filter(|line| line.contains(client)).count();
    assert_eq!(before, 0, "nothing was decided before");
    assert_eq!(door.ask(client).status, 204);
    let level = door.decisions_about(client, 1).remove(0).number("level");
    (0.5 - level) as usize
}

#[test]
fn killed_while_clients_are_charged_it_loses_what_came_after_the_last_snapshot() {
    let mut door = Door::start_with("", settings);
    let state = door.folder.path().join("state");
    let counts: [AtomicUsize; CLIENTS as usize] = Default::default();
    let charged: Vec<Charged> = thread::scope(|scope| {
        let port = door.port;
        let one = |(n, count)| scope.spawn(move || charge(port, &client(n), count));
        let clients: Vec<_> = (1..=CLIENTS).zip(&counts).map(one).collect();
        let counted = || counts.iter().map(|count| count.load(Relaxed));
        wait_for("charges of each", || counted().all(|count| count > 0).then_some(()));
        let written = [("result", "ok")];
        let before = door.metric("evenkeel_state_writes_total", &written);
        door.wait_for_metric("evenkeel_state_writes_total", &written, before + 2.0);
        let before: usize = counted().sum();
        let are_all = || counted().all(|count| count == CHARGES_MAX);
        let are_more = || counted().sum::<usize>() > before + 20;
        wait_for("charges", || (are_more() || are_all()).then_some(()));
        door.kill();
        clients.into_iter().map(|one| one.join().expect("a client")).collect()
    });
    let begun = begun(&state);
    door.revive();
    let (mut known, mut done) = (0, 0);
    for (n, charged) in (1..=CLIENTS).zip(&charged) {
        let owed = owed(&door, &client(n));
        let before = charged.done.iter().filter(|at| **at < begun).count();
        assert!(before > 0, "it was charged before the snapshot");
        assert!(owed >= before, "{owed} of {before} that were done before the snapshot");
        assert!(owed <= charged.begun, "{owed} of {} that there were", charged.begun);
        known += owed;
        done += charged.done.len();
    }
    // Only charges after the snapshot may be missing; none of them has to be.
    let after: usize =
        charged.iter().map(|c| c.done.iter().filter(|at| **at >= begun).count()).sum();
    assert!(done <= known + after, "{done} done, {known} known, {after} after the snapshot");
}

/// If it is killed between two snapshots with no charge in the meantime, it loses nothing, however
/// often.
#[test]
fn killed_many_times_it_forgives_nothing() {
    let mut door = Door::start_with("", settings);
    for round in 1..=5 {
        door.spend(&client(1), "1s");
        let written = [("result", "ok")];
        let before = door.metric("evenkeel_state_writes_total", &written);
        door.wait_for_metric("evenkeel_state_writes_total", &written, before + 2.0);
        door.kill();
        door.revive();
        assert_eq!(owed(&door, &client(1)), round);
    }
}

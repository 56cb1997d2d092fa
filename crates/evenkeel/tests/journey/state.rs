//! Debts outlive the program: after a kill under load, with a damaged snapshot, and on a full disk.

use crate::client::Client;
use crate::gate::Gate;
use crate::site::Site;
use evenkeel_testing::wait::wait_for;
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

/// With these limits, a cost of 100 s makes a debt of a quarter of an hour.
fn settings(state: &Path) -> String {
    format!(
        "  cpus: 1\n  cost: \"header:X-Cost\"\n  action: reject\n  max_delay: 0s\n  limits:\n    \
         - {{name: ip, by: ip/32, share: 10%, burst: 100ms}}\n\
         state: {{file: {}, every: 300ms}}\n",
        state.display()
    )
}

fn debtor(n: u8) -> String {
    format!("127.1.0.{n}")
}

fn run_up_debts(gate: &Gate, debtors: u8) {
    for n in 1..=debtors {
        assert_eq!(gate.client(&debtor(n)).get("/page?stated=100s").status, 200);
    }
    gate.wait_until_idle();
}

/// Waits for a snapshot that begins after this call.
fn wait_for_snapshot(gate: &Gate) {
    let written = [("result", "ok")];
    let before = gate.metric("evenkeel_state_writes_total", &written);
    gate.wait_for_metric("evenkeel_state_writes_total", &written, before + 2.0);
}

fn statuses(gate: &Gate, debtors: u8) -> Vec<u16> {
    (1..=debtors).map(|n| gate.client(&debtor(n)).get("/page").status).collect()
}

#[test]
fn killed_under_load_it_knows_all_debts_but_those_of_the_last_moment() {
    let site = Site::start(4);
    let mut gate = Gate::start(&site, &settings(&site.folder.path().join("state")));
    run_up_debts(&gate, 20);
    wait_for_snapshot(&gate);
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for n in 1..=8_u8 {
            let (stop, served, port) = (&stop, &served, gate.port);
            scope.spawn(move || load(&format!("127.3.0.{n}"), port, stop, served));
        }
        wait_for("load", || (served.load(Relaxed) > 200).then_some(()));
        gate.process.signal(Signal::KILL);
        wait_for("its end", || gate.process.ended());
        stop.store(true, Relaxed);
    });
    gate.start_again();
    assert_eq!(statuses(&gate, 20), [503; 20]);
    assert_eq!(gate.client("127.2.0.1").get("/page").status, 200);
    assert!(gate.metric("evenkeel_state_restored_keys", &[]) >= 20.0);
}

/// Requests cheap pages, each over a new connection, until the server is gone.
fn load(from: &str, port: u16, stop: &AtomicBool, served: &AtomicU64) {
    while !stop.load(Relaxed) {
        let page = "GET /page?stated=1us HTTP/1.1\r\nHost: site\r\n\r\n";
        if Client::new(from, port).try_ask(page).is_none() {
            return;
        }
        served.fetch_add(1, Relaxed);
    }
}

#[test]
fn a_damaged_snapshot_is_refused_and_told_and_everybody_served() {
    let site = Site::start(2);
    let path = site.folder.path().join("state");
    let mut gate = Gate::start(&site, &settings(&path));
    run_up_debts(&gate, 3);
    gate.process.signal(Signal::TERM);
    wait_for("its end", || gate.process.ended());
    let whole = fs::read(&path).expect("a snapshot written at the end");
    gate.start_again();
    assert_eq!(statuses(&gate, 3), [503; 3], "what was written at the end is known");

    gate.process.signal(Signal::KILL);
    wait_for("its end", || gate.process.ended());
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(&path, &damaged).expect("written");
    gate.start_again();
    assert_eq!(statuses(&gate, 3), [200; 3]);
    let told = wait_for("the refusal in the log", || {
        let output = gate.process.log();
        output.lines().find(|line| line.contains("snapshot is refused")).map(String::from)
    });
    assert!(told.contains("ERROR") && told.contains("state.refused"), "{told}");
    assert_eq!(fs::read(path.with_extension("refused")).expect("put aside"), damaged);
    wait_for_snapshot(&gate);
}

/// How many of `strangers`, each with a page of its own address, are served before `client`, which
/// asks when three of them are served.
fn served_before(gate: &Gate, strangers: u8, client: &str) -> u64 {
    let (served, page) = (AtomicU64::new(0), "/page?sleep=200");
    thread::scope(|scope| {
        for n in 1..=strangers {
            let (served, port) = (&served, gate.port);
            scope.spawn(move || {
                assert_eq!(Client::new(&format!("127.3.0.{n}"), port).get(page).status, 200);
                served.fetch_add(1, Relaxed);
            });
        }
        // The cost of the page is known then, and most strangers still wait.
        wait_for("the first strangers", || (served.load(Relaxed) >= 3).then_some(()));
        let before = served.load(Relaxed);
        assert_eq!(gate.client(client).get(page).status, 200);
        served.load(Relaxed) - before
    })
}

#[test]
fn after_a_restart_under_attack_regulars_are_known() {
    let site = Site::start(2);
    let queue = "  cpus: 1\n  queue: {concurrency: 1, reserve: 0, known: auto}\n";
    let state = site.folder.path().join("state");
    let settings = format!("{queue}state: {{file: {}, every: 300ms}}\n", state.display());
    let mut gate = Gate::start(&site, &settings);
    // Light pages, because a client that uses much loses its place.
    for _ in 0..3 {
        assert_eq!(gate.client("127.2.0.1").get("/page").status, 200);
    }
    gate.process.signal(Signal::TERM);
    wait_for("its end", || gate.process.ended());
    gate.start_again();
    let regular = served_before(&gate, 25, "127.2.0.1");
    gate.wait_until_idle();
    gate.process.signal(Signal::TERM);
    wait_for("its end", || gate.process.ended());
    fs::remove_file(&state).expect("the snapshot");
    gate.start_again();
    let unknown = served_before(&gate, 25, "127.2.0.1");
    assert!(regular <= 4 && unknown >= 12, "{regular} and {unknown} strangers went before");
}

#[test]
fn a_full_disk_stops_nobody() {
    let site = Site::start(2);
    let folder = site.folder.path().join("small");
    fs::create_dir(&folder).expect("a folder");
    let path = folder.join("state");
    let mut gate = Gate::start(&site, &settings(&path));
    gate.process.signal(Signal::TERM);
    wait_for("its end", || gate.process.ended());
    // A full disk of one page; where mounting is not allowed, a limit on the size of files.
    let disk = "mount -t tmpfs -o size=4k none \"$0\" && head -c 4096 /dev/zero >\"$0/filler\"";
    let mounted = |rest: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &format!("{disk} && {rest}")]).arg(&folder);
        command
    };
    let may_mount = mounted("true").status().is_ok_and(|status| status.success());
    let command = if may_mount {
        mounted("exec \"$@\"")
    } else {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$@\"", "sh"]);
        command
    };
    gate.start_under(command);
    gate.wait_for_metric("evenkeel_state_writes_total", &[("result", "failed")], 2.0);
    assert_eq!(gate.client("127.2.0.1").get("/page").status, 200);
    assert_eq!(gate.metric("evenkeel_state_writes_total", &[("result", "ok")]), 0.0);
    if may_mount {
        let inside = format!("/proc/{}/root{}/filler", gate.process.id(), folder.display());
        fs::remove_file(inside).expect("room is made");
        gate.wait_for_metric("evenkeel_state_writes_total", &[("result", "ok")], 1.0);
        wait_for("the good news", || {
            gate.process.log().contains("can be written again").then_some(())
        });
    }
}

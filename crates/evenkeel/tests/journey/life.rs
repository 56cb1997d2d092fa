//! The life of a gate: reload, a faulty reload, drain, a dead backend, and monitoring.

use crate::gate::{Gate, evenkeel};
use crate::site::Site;
use evenkeel_testing::wait::wait_for;
use rustix::process::Signal;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Instant;

const CRAWLER: &str = "127.1.0.1";

fn limits(share: &str, action: &str) -> String {
    format!(
        "  cpus: 1\n  action: {action}\n  max_delay: 60s\n  limits:\n    \
         - {{name: ip, by: ip/32, share: {share}, burst: 100ms}}\n"
    )
}

#[test]
fn a_reload_changes_the_limits_and_forgives_no_debt() {
    let site = Site::start(2);
    let gate =
        Gate::start(&site, &limits("1%", "hold").replace("max_delay: 60s", "max_delay: 10ms"));
    // A debt for two minutes, but the answer is released at once.
    assert_eq!(gate.client(CRAWLER).get("/page?ms=1500").status, 200);
    gate.write(&limits("1%", "reject"));
    gate.process.signal(Signal::HUP);
    gate.wait_for_metric("evenkeel_config_reloads_total", &[("result", "ok")], 1.0);
    assert_eq!(gate.client(CRAWLER).get("/page?ms=1").status, 503);
    assert_eq!(gate.client("127.2.0.1").get("/page?ms=1").status, 200);

    gate.write("  cpus: 1\n  acton: reject\n");
    gate.process.signal(Signal::HUP);
    gate.wait_for_metric("evenkeel_config_reloads_total", &[("result", "failed")], 1.0);
    assert_eq!(gate.client(CRAWLER).get("/page?ms=1").status, 503, "the old one stays");
    wait_for("the fault in the log", || gate.process.log().contains("acton").then_some(()));

    // The program also checks its file by itself, and may have read the first version twice.
    let before = gate.metric("evenkeel_config_reloads_total", &[("result", "ok")]);
    gate.write("  limits: []\n");
    gate.process.signal(Signal::HUP);
    gate.wait_for_metric("evenkeel_config_reloads_total", &[("result", "ok")], before + 1.0);
    assert_eq!(gate.client(CRAWLER).get("/page?ms=1").status, 200);
}

/// Twelve clients send requests that wait. Returns the largest number of slots and of requests with
/// a slot that the metrics show.
fn most_slots(gate: &Gate) -> [f64; 2] {
    let mut most = [0.0_f64; 2];
    std::thread::scope(|scope| {
        let clients: Vec<_> = (1..=12)
            .map(|n| {
                let mut client = gate.client(&format!("127.1.{n}.1"));
                scope.spawn(move || {
                    for _ in 0..20 {
                        assert_eq!(client.get("/page?sleep=50").status, 200);
                    }
                })
            })
            .collect();
        wait_for("all answers", || {
            for (most, name) in most.iter_mut().zip(["evenkeel_slots", "evenkeel_slots_used"]) {
                *most = most.max(gate.metric(name, &[("door", "proxy")]));
            }
            clients.iter().all(|client| client.is_finished()).then_some(())
        });
    });
    most
}

/// Checks that slots and requests reach the number of workers, sooner or later, and never exceed
/// it.
fn reaches_and_keeps(gate: &Gate, workers: f64) {
    wait_for("all workers are used", || {
        let most = most_slots(gate);
        assert!(most.iter().all(|most| *most <= workers), "{most:?}, {workers} workers");
        (most == [workers; 2]).then_some(())
    });
}

#[test]
fn the_workers_bound_the_slots_before_and_after_a_reload() {
    let site = Site::start(12);
    let queue = |workers: u32| format!("  cpus: 1\n  queue: {{workers: {workers}}}\n");
    let gate = Gate::start(&site, &queue(4));
    reaches_and_keeps(&gate, 4.0);
    gate.write(&queue(2));
    gate.process.signal(Signal::HUP);
    gate.wait_for_metric("evenkeel_config_reloads_total", &[("result", "ok")], 1.0);
    reaches_and_keeps(&gate, 2.0);
    assert_eq!(gate.metric("evenkeel_slots_useful", &[]), 2.0);
}

#[test]
fn sigterm_lets_running_requests_end_and_takes_no_new_ones() {
    let site = Site::start(2);
    let mut gate = Gate::start(&site, &limits("100%", "hold"));
    let mut client = gate.client(CRAWLER);
    let started = Instant::now();
    client.send("GET /page?sleep=2500 HTTP/1.1\r\nHost: site\r\n\r\n");
    gate.wait_for_metric("evenkeel_working_requests", &[], 1.0);
    gate.process.signal(Signal::TERM);
    wait_for("a closed door", || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, gate.port)).is_err().then_some(())
    });
    assert!(gate.process.ended().is_none(), "it ended before its request");
    assert_eq!(client.read(started).status, 200);
    let status = wait_for("the end", || gate.process.ended());
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_second_sigterm_stops_at_once() {
    let site = Site::start(2);
    let mut gate = Gate::start(&site, &limits("100%", "hold"));
    gate.client(CRAWLER).send("GET /page?sleep=20000 HTTP/1.1\r\nHost: site\r\n\r\n");
    let mut client = gate.client(CRAWLER);
    client.send("GET /page?sleep=20000 HTTP/1.1\r\nHost: site\r\n\r\n");
    gate.wait_for_metric("evenkeel_working_requests", &[], 1.0);
    let started = Instant::now();
    gate.process.signal(Signal::TERM);
    wait_for("a closed door", || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, gate.port)).is_err().then_some(())
    });
    gate.process.signal(Signal::TERM);
    wait_for("the end", || gate.process.ended());
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
}

#[test]
fn a_dead_backend_is_said_to_be_dead_and_costs_nobody_much() {
    let mut site = Site::start(1);
    let gate = Gate::start(&site, &limits("100%", "hold"));
    site.die();
    let answer = gate.client(CRAWLER).get("/page");
    assert_eq!(answer.status, 502);
    gate.wait_for_metric("evenkeel_backend_failures_total", &[], 1.0);
    gate.wait_until_idle();
}

#[test]
fn who_watches_sees_the_crawler_first() {
    let site = Site::start(2);
    // The backend states the costs, so that a backend that stands still does not increase any.
    let stated = format!("  cost: \"header:X-Cost\"\n{}", limits("50%", "hold"));
    let gate = Gate::start(&site, &stated);
    gate.client("127.2.0.1").get("/page?stated=5ms");
    gate.client(CRAWLER).get("/page?stated=150ms");
    gate.wait_until_idle();
    assert_eq!(gate.admin_page("/healthz").lines().count(), 1);
    let doctor = gate.doctor();
    assert!(doctor.status.success(), "{doctor:?}");
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let place = |name: &str| text.find(name).unwrap_or_else(|| panic!("no {name} in:\n{text}"));
    assert!(place(CRAWLER) < place("127.2.0.1"), "{text}");
    assert!(gate.admin_page("/api/top").contains(CRAWLER));
}

#[test]
fn the_example_is_sound_and_a_fault_is_named_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    // The systemd unit creates the folder for the socket.
    let example = include_str!("../../../../examples/evenkeel.yaml");
    let here = example.replace("/run/evenkeel", &folder.path().display().to_string());
    let path = folder.path().join("example.yaml");
    fs::write(&path, here).expect("a file");
    let checked = evenkeel().arg("check").arg(&path).output().expect("the binary");
    assert!(checked.status.success(), "{checked:?}");
    let path = folder.path().join("faulty.yaml");
    fs::write(&path, "proxy:\n  backend: http://127.0.0.1:1\n  acton: hold\n").expect("a file");
    let checked = evenkeel().arg("check").arg(&path).output().expect("the binary");
    assert_eq!(checked.status.code(), Some(1));
    let all = [checked.stdout, checked.stderr].concat();
    let text = String::from_utf8_lossy(&all).into_owned();
    assert!(text.contains("faulty.yaml:3:3") && text.contains("action"), "{text}");
}

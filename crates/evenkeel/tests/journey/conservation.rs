//! The law of conservation on the wire: with `shared`, the sum of all charges equals the time that
//! the virtual clock counts as work of the backend, whatever clients do.
//!
//! It is tested at about 10, 100 and 400 % load, with idle sockets, slow readers, aborts and
//! pipelining.

use crate::gate::Gate;
use crate::site::Site;
use evenkeel_testing::wait::wait_for;
use serde_json::Value;
use std::io::Read;
use std::thread;
use std::time::Instant;

const BOUNDLESS: &str = "  cpus: 1\n  cost: shared\n  action: hold\n  \
                         timeouts: {abort_linger: 2s}\n  limits:\n    \
                         - {name: ip, by: ip/32, share: 100%, burst: 1h}\n";
const PAGE: &str = "/page?ms=20";

/// Sends requests one after the other, so that the backend works a tenth of the time.
fn light(gate: &Gate) {
    let mut client = gate.client("127.1.0.1");
    for _ in 0..5 {
        client.get("/page?ms=5");
        // A page that takes time but no CPU, with no other request: work at n = 1.
        client.get("/page?sleep=20");
    }
}

fn steady(gate: &Gate, parallel: usize, each: usize) {
    thread::scope(|scope| {
        for index in 0..parallel {
            scope.spawn(move || {
                let mut client = gate.client(&format!("127.{}.0.1", index + 1));
                (0..each).for_each(|_| assert_eq!(client.get(PAGE).status, 200));
            });
        }
    });
}

/// Disconnects while the backend works, or just afterwards if that was not visible in time.
fn abort(gate: &Gate) {
    let done = || gate.metric("evenkeel_request_cost_seconds_count", &[]);
    let before = done();
    let mut client = gate.client("127.21.0.1");
    client.send("GET /page?sleep=300 HTTP/1.1\r\nHost: site\r\n\r\n");
    let working = || gate.metric("evenkeel_working_requests", &[]) >= 1.0;
    wait_for("a request that runs", || (working() || done() > before).then_some(()));
    client.close();
}

/// Reads a little of a large answer, then nothing while `others` runs, then the rest.
fn slow_reader(gate: &Gate, others: impl FnOnce()) {
    const BYTES: usize = 8_000_000;
    let mut client = gate.client("127.22.0.1");
    client.send(&format!("GET /page?bytes={BYTES} HTTP/1.1\r\nHost: site\r\n\r\n"));
    let mut some = [0; 1000];
    client.connect().read_exact(&mut some).expect("the beginning of an answer");
    others();
    let mut rest = vec![0; BYTES - 1000];
    client.connect().read_exact(&mut rest).expect("the rest of the answer");
}

/// Sends three requests in one write, and expects three answers in order.
fn pipeline(gate: &Gate) {
    let mut client = gate.client("127.23.0.1");
    let one = |ms: u32| format!("GET /page?ms={ms} HTTP/1.1\r\nHost: site\r\n\r\n");
    client.send(&format!("{}{}{}", one(30), one(10), one(20)));
    for ms in [30, 10, 20] {
        assert_eq!(client.read(Instant::now()).text(), format!("burnt {ms} ms\n"));
    }
}

fn law_holds(gate: &Gate, load: &str) {
    gate.wait_until_idle();
    // Accounts are closed a moment after the work is done.
    let charged = wait_for(&format!("as much charged as worked at {load}"), || {
        let charged = gate.metric("evenkeel_cost_seconds_total", &[]);
        let busy = gate.metric("evenkeel_cpu_busy_seconds_total", &[]);
        // Equal up to the rounding of the metrics' text and of nanoseconds.
        ((charged - busy).abs() < 1e-4).then_some(charged)
    });
    assert!(charged > 0.0, "{load}");
}

#[test]
fn charges_add_up_to_the_work_at_any_load() {
    let site = Site::start(8);
    let gate = Gate::start(&site, BOUNDLESS);
    let mut idle: Vec<_> = (0..20).map(|_| gate.client("127.20.0.1")).collect();
    for client in &mut idle {
        client.connect();
    }
    light(&gate);
    law_holds(&gate, "10 %");
    for (load, parallel) in [("100 %", 1), ("400 %", 4)] {
        slow_reader(&gate, || {
            abort(&gate);
            pipeline(&gate);
            steady(&gate, parallel, 15);
            abort(&gate);
        });
        law_holds(&gate, load);
    }
}

#[test]
fn an_aborted_request_is_charged_for_what_it_goes_on_to_cost() {
    let site = Site::start(2);
    let gate = Gate::start(&site, BOUNDLESS);
    abort(&gate);
    gate.wait_until_idle();
    gate.wait_for_metric("evenkeel_cost_seconds_total", &[], 0.29);
}

#[test]
fn a_slow_reader_pays_for_the_backend_and_not_for_its_own_line() {
    let site = Site::start(2);
    let gate = Gate::start(&site, BOUNDLESS);
    let (begun, mut waited) = (Instant::now(), 0.0);
    slow_reader(&gate, || {
        let started = Instant::now();
        // In the meantime, another client's request works long enough to show.
        gate.client("127.1.0.1").get("/page?sleep=1500");
        waited = started.elapsed().as_secs_f64();
    });
    gate.wait_until_idle();
    let top: Value = serde_json::from_str(&gate.admin_page("/api/top")).expect("JSON");
    let rows = top["limits"][0]["rows"].as_array().expect("rows");
    let charged = |client: &str| {
        let row = rows.iter().find(|row| row["key"] == client);
        row.and_then(|row| row["cpu_total"].as_f64()).expect("a client")
    };
    // If both worked at once, they would share the time, and each would be charged half.
    let (slow, other) = (charged("127.22.0.1"), charged("127.1.0.1"));
    assert!(other > 1.2, "somebody else was charged {other} CPU-s, the slow one {slow}");
    // Before and after its pause, the slow reader reads as fast as it can.
    let read = begun.elapsed().as_secs_f64() - waited;
    assert!(slow < read + 0.75, "charged {slow} CPU-s in {read} s of {waited} s more");
}

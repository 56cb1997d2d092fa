//! The check door, asked as a hand-written front would ask it: answers in all forms, reports,
//! waiting, and invalid input.

use crate::client::Client;
use crate::door::Door;
use evenkeel_testing::wait::wait_for;
use std::time::Instant;

const LIMIT: &str = "  cpus: 1\n  action: reject\n  limits:\n    \
                     - {name: ip, by: ip/32, share: 10%, burst: 1s}\n";

#[test]
fn questions_and_reports() {
    let door = Door::start(LIMIT);
    let id = door.pass("192.0.2.1");
    let (rest, last) = id.split_at(id.len() - 1);
    let other = if last == "0" { "1" } else { "0" };
    assert_eq!(door.report(&format!("id={rest}{other}&cost=12ms")), 404, "a guess");
    assert_eq!(door.report(&format!("id={id}")), 400);
    assert_eq!(door.report("cost=1s"), 400);
    assert_eq!(door.report(&format!("id={id}&cost=3s")), 204);
    assert_eq!(door.report(&format!("id={id}&cost=3s")), 404, "once");
    assert_eq!(door.metric("evenkeel_cost_seconds_total", &[]), 3.0);
    for (query, status) in
        [("", 403), ("?deny=429", 429), ("?deny=status", 503), ("?deny=200", 403)]
    {
        let refused = door.ask_with("192.0.2.1", &format!("/check{query}"), "");
        assert_eq!(refused.status, status, "{query}");
        let told = ["x-evenkeel-status", "x-evenkeel-limit", "retry-after"];
        let told = told.map(|name| refused.header(name).expect("told"));
        assert_eq!(told[..2], ["503", "ip"]);
        // 2 CPU-seconds of debt at a tenth of a CPU.
        let seconds: u64 = told[2].parse().expect("seconds");
        assert!((10..=20).contains(&seconds), "{seconds}");
        assert!(refused.text().contains("\"ip\""), "{}", refused.text());
    }
    let forged = "X-Forwarded-For: 192.0.2.1\r\n";
    assert_eq!(door.ask_with("192.0.2.2", "/check", forged).status, 204, "X-Real-IP goes first");
    let mut asking = Client::new("127.0.0.1", door.port);
    let forwarded = "X-Forwarded-For: 192.0.2.2, 192.0.2.1\r\nX-Forwarded-Method: GET\r\n";
    assert_eq!(asking.get_with("/check", forwarded).status, 403);
    assert_eq!(asking.ask("GET /report?id=1-1 HTTP/1.1\r\nHost: t\r\n\r\n").status, 405);
    assert_eq!(asking.get("/else").status, 404);
}

#[test]
fn a_refusal_comes_in_the_form_that_the_client_accepts() {
    let door = Door::start(LIMIT);
    door.spend("192.0.2.1", "3s");
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    for (accept, kind, begins) in [
        (browser, "text/html; charset=utf-8", "<!doctype html>"),
        ("application/json", "application/json", "{\"status\":503,\"limit\":\"ip\","),
        ("*/*", "text/plain; charset=utf-8", "over the limit \"ip\"; try again in "),
    ] {
        let accept = format!("Accept: {accept}\r\n");
        for query in ["", "?deny=status"] {
            let refused = door.ask_with("192.0.2.1", &format!("/check{query}"), &accept);
            let told = ["content-type", "cache-control"].map(|name| refused.header(name));
            assert_eq!(told, [Some(kind), Some("no-store")]);
            assert!(refused.text().starts_with(begins), "{}", refused.text());
        }
    }
}

/// The first client takes the only place for waiting. The next one gets the time after which it may
/// return, and the name of the limit. This holds for each action that waits.
#[test]
fn who_finds_no_place_to_wait_in_is_refused_with_a_reason() {
    for (action, keys) in [("hold", ""), ("delay", ""), ("queue", "  queue: {concurrency: 1}\n")] {
        let proxy = |_: &_| format!("{keys}  max_delay: 60s\n{}", LIMIT.replace("reject", action));
        let door = Door::start_with(", waiting_max: 1", proxy);
        // With `queue`, only a client in debt waits, and only while all slots are used.
        door.spend("192.0.2.1", "3s");
        let running = door.pass("192.0.2.9");
        let mut first = Client::new("127.0.0.1", door.port);
        let started = Instant::now();
        first.send("GET /check HTTP/1.1\r\nHost: t\r\nX-Real-IP: 192.0.2.1\r\n\r\n");
        door.wait_for_metric("evenkeel_check_waiting", &[], 1.0);
        let refused = door.ask_with("192.0.2.1", "/check?deny=status", "");
        assert_eq!((refused.status, refused.header("x-evenkeel-limit")), (503, Some("ip")));
        let after: u64 = refused.header("retry-after").expect("when").parse().expect("seconds");
        assert!((1..=60).contains(&after), "{action}: {after}");
        assert_eq!(door.metric("evenkeel_check_crowded_total", &[("what", "waiting")]), 1.0);
        let in_credit = door.pass("192.0.2.2");
        let waits = door.decisions_about("192.0.2.1", 1).remove(0);
        let verdict = if action == "queue" { "queue" } else { "delay" };
        assert_eq!((waits.text("verdict"), waits.text("limit")), (verdict, "ip"), "{action}");
        for id in [running, in_credit] {
            assert_eq!(door.report(&format!("id={id}&cost=1ms")), 204);
        }
        match action {
            // A slot is free again, so the client does not wait until its debt is paid.
            "queue" => assert_eq!(first.read(started).status, 204),
            _ => {
                first.close();
                door.wait_for_metric("evenkeel_check_gone_total", &[], 1.0);
            }
        }
        wait_for("its place", || (door.metric("evenkeel_check_waiting", &[]) == 0.0).then_some(()));
    }
}

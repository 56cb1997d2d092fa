//! The waiting room on the wire: which clients get the page, what the cookie does, and what the
//! backend sees.
//!
//! Cookies that are forged, old, copied or from another instance: `waiting/cookies.rs`. Requests
//! other than a page over HTTP/1.1: `waiting/kinds.rs`. Instances that count together:
//! `waiting/together.rs`. The order of requests in a swarm
//! is tested in the core.

mod burning;
mod cookies;
mod denied;
mod kinds;
mod seen;
mod together;

use crate::stage::{Message, Stage, Wire, cpu_limit};
use evenkeel_config::settings::{ConcurrencySetting, CostSource, KnownSetting, ProxySettings};
use evenkeel_core::limit::LimitAction;
use evenkeel_testing::wait::until;
use std::time::Duration;

const NAVIGATE: &str = "sec-fetch-mode: navigate\r\n";

/// A proxy with one slot and one processor that distinguishes visitors from strangers at all times.
/// It trusts the addresses of clients that a front proxy names.
fn stage(change: impl FnOnce(&mut ProxySettings)) -> Stage {
    Stage::open(|settings| {
        settings.action = LimitAction::Queue;
        settings.cpus = 1.0;
        settings.queue.concurrency = ConcurrencySetting::Fixed(1);
        settings.queue.reserve = 0;
        settings.queue.known = KnownSetting::Always;
        settings.queue.known_max = 1_000;
        settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
        settings.cost = CostSource::Header("x-cost".into());
        settings.limits = vec![cpu_limit(0.5, Duration::from_secs(60))];
        change(settings);
    })
}

fn ask(wire: &mut Wire, client: &str, more: &str) {
    wire.send(format!("GET /page HTTP/1.1\r\nhost: a\r\nx-forwarded-for: {client}\r\n{more}\r\n"));
}

fn answer(wire: &mut Wire, more: &str) {
    wire.send(format!("HTTP/1.1 200 OK\r\nx-cost: 9s\r\ncontent-length: 2\r\n{more}\r\nok"));
}

/// A page that is known to take 9 s is with the backend, so a client that asks for it has to wait.
/// Returns the backend, and the client that it works for.
fn busy(stage: &Stage) -> (Wire, Wire) {
    let (mut first, mut second) = (stage.client(), stage.client());
    ask(&mut first, "192.0.2.1", "");
    let mut backend = stage.backend();
    backend.head();
    answer(&mut backend, "");
    assert_eq!(first.message().text(), "ok");
    ask(&mut second, "192.0.2.2", "");
    (stage.backend_for("/page", backend), second)
}

/// The connection on which the next request arrives, a new one or `old`, and the head of the
/// request.
fn next(stage: &Stage, mut old: Wire) -> (Wire, String) {
    let mut new = None;
    until("a request comes", || {
        new = stage.backend_if_any();
        new.is_some() || !old.is_silent()
    });
    let mut wire = new.unwrap_or(old);
    let head = wire.head();
    (wire, head)
}

fn waits(stage: &Stage, count: usize) {
    until("so many wait", || stage.engine.admission_stats().expect("a queue").waiting == count);
}

/// The name and value of the cookie that an answer sets.
fn cookie(message: &Message) -> Option<&str> {
    message.header("set-cookie")?.split(';').next()
}

#[test]
fn a_visitor_waits_elsewhere_and_is_served_by_its_ticket_and_gets_a_pass() {
    let stage = stage(|_| {});
    let (mut backend, _first) = busy(&stage);
    let mut visitor = stage.client();
    ask(&mut visitor, "192.0.2.3", &format!("{NAVIGATE}x-forwarded-proto: https\r\n"));
    let page = visitor.message();
    assert_eq!(page.status(), 503);
    assert!(page.text().contains("<h1>Please wait</h1>"), "{}", page.text());
    assert_eq!(page.header("cache-control"), Some("no-store"));
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(page.header("refresh"), page.header("retry-after"));
    assert!(["1", "2"].contains(&page.header("refresh").expect("seconds")));
    let set = page.header("set-cookie").expect("a ticket");
    assert!(set.ends_with("Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure"), "{set}");
    let ticket = cookie(&page).expect("a ticket").to_owned();
    assert!(stage.engine.admission_stats().expect("a queue").waiting == 0);

    ask(&mut visitor, "192.0.2.3", &format!("{NAVIGATE}cookie: a=b; {ticket}; c=d\r\n"));
    waits(&stage, 1);
    answer(&mut backend, "");
    let (mut backend, head) = next(&stage, backend);
    assert!(head.contains("cookie: a=b; c=d\r\n") && !head.contains("evenkeel"), "{head}");
    answer(&mut backend, "");
    let served = visitor.message();
    assert_eq!((served.status(), served.text()), (200, "ok"));
    let set = served.header("set-cookie").expect("a pass");
    assert!(set.ends_with("Path=/; Max-Age=43200; HttpOnly; SameSite=Lax"), "{set}");
    assert_eq!(served.header("cache-control"), Some("private"));

    // The pass is not set again, and the backend does not get it either.
    let pass = cookie(&served).expect("a pass").to_owned();
    ask(&mut visitor, "192.0.2.3", &format!("cookie: {pass}\r\n"));
    let (mut backend, head) = next(&stage, backend);
    assert!(!head.contains("cookie"), "{head}");
    answer(&mut backend, "");
    assert_eq!(visitor.message().header("set-cookie"), None);
}

#[test]
fn a_visitor_that_comes_too_early_keeps_its_ticket() {
    let stage = stage(|_| {});
    let (_backend, _first) = busy(&stage);
    let mut visitor = stage.client();
    ask(&mut visitor, "192.0.2.3", NAVIGATE);
    let page = visitor.message();
    let ticket = cookie(&page).expect("a ticket");
    ask(&mut visitor, "192.0.2.3", &format!("{NAVIGATE}cookie: {ticket}\r\n"));
    let again = visitor.message();
    assert_eq!((again.status(), again.header("set-cookie")), (503, None));
    // A forged ticket is none: the visitor gets one of its own.
    ask(&mut visitor, "192.0.2.3", &format!("{NAVIGATE}cookie: {ticket}x\r\n"));
    let other = visitor.message();
    assert!(cookie(&other).is_some_and(|other| other != ticket));
}

#[test]
fn an_answer_for_shared_caches_sets_no_cookie() {
    let stage = stage(|_| {});
    let (mut backend, _first) = busy(&stage);
    let mut visitor = stage.client();
    ask(&mut visitor, "192.0.2.3", NAVIGATE);
    let page = visitor.message();
    let ticket = cookie(&page).expect("a ticket");
    ask(&mut visitor, "192.0.2.3", &format!("{NAVIGATE}cookie: {ticket}\r\n"));
    waits(&stage, 1);
    answer(&mut backend, "");
    let (mut backend, _) = next(&stage, backend);
    answer(&mut backend, "cache-control: public, max-age=60\r\n");
    let served = visitor.message();
    assert_eq!((served.status(), served.header("set-cookie")), (200, None));
    assert_eq!(served.header("cache-control"), Some("public, max-age=60"));
}

#[test]
fn programs_and_parts_of_pages_wait_for_their_turn() {
    let stage = stage(|_| {});
    let (mut backend, _first) = busy(&stage);
    let mut clients = [
        "",
        "accept: */*\r\n",
        "sec-fetch-mode: cors\r\naccept: text/html\r\n",
        "accept: text/html\r\nx-requested-with: XMLHttpRequest\r\n",
        "sec-fetch-mode: navigate\r\nsec-purpose: prefetch\r\n",
    ]
    .map(|more| {
        let mut client = stage.client();
        ask(&mut client, "192.0.2.3", more);
        client
    });
    let mut head = stage.client();
    head.send("HEAD /page HTTP/1.1\r\nhost: a\r\naccept: text/html\r\n\r\n");
    // A visitor that came later was sent away, and these still wait.
    let mut visitor = stage.client();
    ask(&mut visitor, "198.51.100.1", NAVIGATE);
    assert_eq!(visitor.message().status(), 503);
    waits(&stage, clients.len() + 1);
    drop(head);
    waits(&stage, clients.len());
    answer(&mut backend, "");
    for _ in 0..clients.len() {
        backend = next(&stage, backend).0;
        answer(&mut backend, "");
    }
    clients.iter_mut().for_each(|client| assert_eq!(client.message().text(), "ok"));
}

#[test]
fn without_a_waiting_room_a_visitor_waits_for_its_turn() {
    let stage = stage(|settings| {
        settings.queue.waiting_room = None;
        settings.queue.wait_max = evenkeel_core::units::Nanos::from_secs(3);
    });
    let (mut backend, _first) = busy(&stage);
    let mut visitor = stage.client();
    ask(&mut visitor, "192.0.2.3", &format!("{NAVIGATE}cookie: evenkeel=x\r\n"));
    let refused = visitor.message();
    assert_eq!((refused.status(), refused.header("set-cookie")), (503, None));
    assert_eq!(refused.header("refresh"), None);
    answer(&mut backend, "");
}

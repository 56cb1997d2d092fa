//! Tests of what watchers are sent, and what operators' orders change.

use super::*;
use crate::admin::live::WATCHERS_MAX;
use evenkeel_engine::QueueAdmission;
use evenkeel_engine::replicated::Replicated;
use evenkeel_engine::view::EngineView;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::task::{Context, Poll, Waker};

/// An engine that can be asked while its admin door is open.
pub(super) struct Stage {
    _running: RunningAdmin,
    pub(super) address: SocketAddr,
    pub(super) lane: EngineLane,
    engine: Arc<Engine>,
}

pub(super) fn stage(proxy: &ProxySettings) -> Stage {
    stage_after(proxy, |_| ())
}

/// Like `stage`, with requests made before the door reads its counters for the first time.
fn stage_after(proxy: &ProxySettings, asked: impl FnOnce(&EngineLane)) -> Stage {
    let clock = Clock::start();
    let watch = Arc::new(Watch::new(clock.now()));
    let engine = Engine::new(proxy, 1, KeySeed([7; 16]), clock, Arc::clone(&watch));
    let lane = engine.lane(0);
    asked(&lane);
    let show = Box::new(String::new);
    let shown = Arc::clone(&engine);
    let engines = vec![DoorEngine { door: "proxy", engine: shown }];
    let sources = AdminSources { watch, clock, engines, show, setup: SetupFacts::default() };
    let running = start(&on("127.0.0.1:0"), sources, &ListenSockets::default()).expect("it opens");
    running.ready();
    let address = running.addresses[0];
    Stage { _running: running, address, lane, engine }
}

fn post(address: SocketAddr, headers: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let head = format!(
        "POST /api/overrides HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n{headers}\r\n{body}"
    );
    let (status, _, answer) = raw(address, &head);
    (status, answer)
}

pub(super) fn order(address: SocketAddr, order: &Value) -> (u16, String) {
    post(address, "Content-Type: application/json\r\n", &order.to_string())
}

/// Opens the stream and reads its first `count` events.
pub(super) fn watch(
    address: SocketAddr,
    count: usize,
) -> (BufReader<std::net::TcpStream>, Vec<Value>) {
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    let head = format!("GET /api/events HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut lines = BufReader::new(stream);
    let (mut events, mut line) = (Vec::new(), String::new());
    while events.len() < count {
        line.clear();
        assert!(lines.read_line(&mut line).expect("a line") > 0, "the stream ended");
        if let Some(data) = line.strip_prefix("data: ") {
            events.push(serde_json::from_str(data).expect("JSON"));
        }
    }
    (lines, events)
}

/// Makes two clients ask for the only slot repeatedly, and returns the clients of the first turns.
fn served_in_turns(lane: &EngineLane, count: usize) -> Vec<u8> {
    let ask = |last| match lane.ask(&From(IpAddr::from([192, 0, 2, last]))) {
        AskOutcome::Pass(charge) => charge,
        AskOutcome::Refused(refusal) => panic!("{refusal:?}"),
    };
    let mut holder = ask(9);
    assert!(matches!(holder.enter(), QueueAdmission::Room));
    let mut waiting = Vec::new();
    for last in [1, 2].repeat(count) {
        let mut charge = ask(last);
        match charge.enter() {
            QueueAdmission::Waits(turn) => waiting.push((last, charge, Box::pin(turn))),
            _ => panic!("there is room for one"),
        }
    }
    let mut served = Vec::new();
    while served.len() < count {
        holder.work();
        holder.head(Some(b"100ms"));
        drop(holder);
        let mut cx = Context::from_waker(Waker::noop());
        let mut ready = None;
        for (at, (_, _, turn)) in waiting.iter_mut().enumerate() {
            if let Poll::Ready(turned) = turn.as_mut().poll(&mut cx) {
                ready = Some((at, turned));
                break;
            }
        }
        let (at, turned) = ready.expect("somebody's turn");
        let (last, mut charge, _) = waiting.remove(at);
        charge.accept_turn(turned).expect("room");
        served.push(last);
        holder = charge;
    }
    served
}

/// Whether a request of this client has to wait or is refused.
fn is_held_up(lane: &EngineLane, last: u8) -> bool {
    match lane.ask(&From(IpAddr::from([192, 0, 2, last]))) {
        AskOutcome::Refused(_) => true,
        AskOutcome::Pass(charge) => charge.delay_until().is_some(),
    }
}

#[test]
fn watchers_see_who_costs_most_second_by_second() {
    let stage = stage_after(&proxy(), |lane| charge(lane, 1, b"5s"));
    let (_lines, events) = watch(stage.address, 3);
    for event in &events {
        assert_eq!((&event["stage"], &event["version"]), (&"ready".into(), &version()));
        let limits = event["limits"].as_array().expect("a list");
        let names: Vec<_> = limits.iter().map(|limit| limit["name"].as_str()).collect();
        let expected = ["ip", "agent", "hits", "routes", "agents"].map(Some);
        assert_eq!(names, expected);
        assert_eq!((&limits[0]["in_debt"], &limits[0]["open"]), (&1.into(), &true.into()));
        assert_eq!(limits[0]["rows"][0]["key"], "192.0.2.1");
        assert_eq!(limits[3]["rows"][0]["key"], "GET /");
        assert_eq!(event["doors"][0]["cpus"], 4.0);
        assert_eq!(event["doors"][0]["measured"], "header:x-cost");
    }
    let point = &events[2]["point"];
    assert!(point["t"].as_f64() <= events[2]["now"].as_f64(), "{point}");
    assert_eq!(point["cpus"], 4.0);

    let (status, _, body) = get(stage.address, "/api/history", "");
    let history: Value = serde_json::from_str(&body).expect("JSON");
    let long = history["t"].as_array().map_or(0, Vec::len);
    assert!(status == 200 && long > 0, "{body}");
    assert_eq!(history["reject"].as_array().map(Vec::len), Some(long));
    for fault in ["seconds=0", "seconds=3601", "seconds=x", "seconds=%"] {
        assert_eq!(get(stage.address, &format!("/api/history?{fault}"), "").0, 400, "{fault}");
    }
    let id = events[0]["limits"][0]["rows"][0]["id"].as_str().expect("an id").to_owned();
    let of = |id: &str| format!("/api/client?door=proxy&limit=ip&id={id}");
    let (status, _, body) = get(stage.address, &of(&id), "");
    let past: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, past["t"].as_array().map(Vec::len)), (200, Some(1)), "{body}");
    assert!(past["level"][0].as_f64() < Some(-2.0), "{body}");
    let (status, _, body) = get(stage.address, &of("0000000000000001"), "");
    assert!(status == 200 && body.contains("\"t\":[],"), "{body}");
    for fault in ["", "7", "zzzzzzzzzzzzzzzz", "ffffffffffffffff"] {
        assert_eq!(get(stage.address, &of(fault), "").0, 400, "{fault}");
    }
}

fn version() -> Value {
    env!("CARGO_PKG_VERSION").into()
}

#[test]
fn as_many_watch_as_may_and_who_leaves_makes_room() {
    let stage = stage(&proxy());
    let mut all: Vec<_> = (0..WATCHERS_MAX).map(|_| watch(stage.address, 1)).collect();
    let (status, head, _) = get(stage.address, "/api/events", "");
    assert!(status == 503 && head.contains("retry-after"), "{head}");
    assert_eq!(get(stage.address, "/healthz", "").0, 200, "others are served");
    all.clear();
    // The door detects disconnected watchers with the next events.
    let mut came_in = false;
    for _ in 0..50 {
        let head = format!("GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n", stage.address);
        let mut stream = std::net::TcpStream::connect(stage.address).expect("it listens");
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("a status");
        came_in = &status[9..] == b"200";
        if came_in {
            break;
        }
        let _ = watch_a_second(stage.address);
    }
    assert!(came_in);
}

/// Waits until the door has added another second.
fn watch_a_second(address: SocketAddr) -> Value {
    let last = || {
        let (_, _, body) = get(address, "/api/history?seconds=60", "");
        let history: Value = serde_json::from_str(&body).expect("JSON");
        history["t"].as_array().and_then(|t| t.last().cloned()).unwrap_or_default()
    };
    let before = last();
    let mut now = last();
    while now == before {
        now = last();
    }
    now
}

#[test]
fn an_exempt_client_passes_and_a_cleared_one_owes_nothing() {
    let proxy = ProxySettings { action: LimitAction::Delay, ..proxy() };
    let stage = stage(&ProxySettings { limits: proxy.limits[..1].to_vec(), ..proxy });
    charge(&stage.lane, 1, b"5s");
    charge(&stage.lane, 2, b"5s");
    assert!(is_held_up(&stage.lane, 1) && is_held_up(&stage.lane, 2));

    let exempt = json!({"do": "exempt", "limit": "ip", "key": "192.0.2.1"});
    let (status, answer) = order(stage.address, &exempt);
    let all: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!(
        (status, &all[0]["do"], &all[0]["key"]),
        (200, &"exempt".into(), &"192.0.2.1".into())
    );
    assert!((3_590.0..=3_600.0).contains(&all[0]["left"].as_f64().expect("a time")));
    assert!(!is_held_up(&stage.lane, 1), "the decision is another");
    assert!(is_held_up(&stage.lane, 2), "of this client alone");
    let (_, _, listed) = get(stage.address, "/api/overrides", "");
    assert_eq!(
        serde_json::from_str::<Value>(&listed).expect("JSON").as_array().map(Vec::len),
        Some(1)
    );
    assert_eq!(watch(stage.address, 1).1[0]["overrides"][0]["key"], "192.0.2.1");

    let undo = json!({"do": "undo", "override_id": all[0]["override_id"]});
    assert_eq!(order(stage.address, &undo).1.trim(), "[]");
    assert!(is_held_up(&stage.lane, 1), "as before");
    assert_eq!(order(stage.address, &undo).0, 404);

    let standing = stage.engine.top(0);
    let id = observe::id(standing.iter().find(|s| s.row.name == "192.0.2.2").expect("it").row.hash);
    let clear = json!({"do": "clear", "door": "proxy", "limit": "ip", "id": id});
    assert_eq!(order(stage.address, &clear).0, 200);
    assert!(!is_held_up(&stage.lane, 2));
}

#[test]
fn orders_that_make_no_sense_change_nothing() {
    let stage = stage(&proxy());
    charge(&stage.lane, 1, b"5s");
    let good = json!({"do": "exempt", "limit": "ip", "key": "192.0.2.1"});
    let with = |name: &str, value: Value| {
        let mut order = good.clone();
        order[name] = value;
        order
    };
    for (faulty, status) in [
        (with("do", "explode".into()), 400),
        (with("more", 1.into()), 400),
        (with("limit", "none".into()), 404),
        (with("door", "line".into()), 404),
        (with("key", "192.0.2.77".into()), 404),
        (with("id", "xyz".into()), 404),
        // A possible id, of a client that never came.
        (with("id", "00000000000000ab".into()), 404),
        (with("for_seconds", 0.into()), 400),
        (with("for_seconds", 86_401.into()), 400),
        (json!({"do": "exempt", "limit": "ip"}), 400),
        (json!({"do": "undo"}), 400),
        (json!({"do": "weigh", "limit": "ip", "key": "192.0.2.1"}), 400),
        (json!({"do": "weigh", "limit": "ip", "key": "192.0.2.1", "weight": 1}), 400),
        (json!({"do": "weigh", "limit": "ip", "key": "192.0.2.1", "weight": 0.1}), 409),
        (json!([]), 400),
    ] {
        let (answered, text) = order(stage.address, &faulty);
        assert_eq!(answered, status, "{faulty}: {text}");
    }
    let good = good.to_string();
    let json = "Content-Type: application/json\r\n";
    assert_eq!(post(stage.address, "", &good).0, 415);
    assert_eq!(post(stage.address, "Content-Type: text/plain\r\n", &good).0, 415);
    let foreign = format!("{json}Origin: http://evil.example\r\n");
    assert_eq!(post(stage.address, &foreign, &good).0, 403);
    assert_eq!(post(stage.address, json, &" ".repeat(5_000)).0, 413);
    assert_eq!(get(stage.address, "/api/overrides", "").2.trim(), "[]");
    let ours = format!("{json}Origin: http://{}\r\n", stage.address);
    assert_eq!(post(stage.address, &ours, &good).0, 200);
}

#[test]
fn a_client_that_weighs_less_is_served_less_often_where_requests_wait() {
    let queue = settings::ProxyQueueSettings::for_cpus(1.0);
    let queue = settings::ProxyQueueSettings {
        concurrency: settings::ConcurrencySetting::Fixed(1),
        ..queue
    };
    let proxy = ProxySettings { action: LimitAction::Queue, queue, ..proxy() };
    let stage = stage(&ProxySettings { limits: proxy.limits[..1].to_vec(), ..proxy });
    // Both have the same debt, so they are served in turns. It is of requests like those that come:
    // a turn is as long as what a client's request is expected to cost.
    for _ in 0..90 {
        charge(&stage.lane, 1, b"100ms");
        charge(&stage.lane, 2, b"100ms");
    }
    let weigh = json!({"do": "weigh", "limit": "ip", "key": "192.0.2.1", "weight": 0.1});
    assert_eq!(order(stage.address, &weigh).0, 200);
    let weigh = json!({"do": "weigh", "limit": "ip", "key": "192.0.2.9", "weight": 2});
    assert_eq!(order(stage.address, &weigh).0, 404);
    let served = served_in_turns(&stage.lane, 22);
    let light = served.iter().filter(|last| **last == 1).count();
    assert!((1..=4).contains(&light), "{served:?}");
}

#[test]
fn a_limit_in_shadow_stops_nobody_and_is_shown_counted_and_told_apart() {
    let proxy = ProxySettings { action: LimitAction::Delay, ..proxy() };
    let mut limits = proxy.limits[..1].to_vec();
    limits[0].shadow = true;
    let stage = stage(&ProxySettings { limits, ..proxy });
    charge(&stage.lane, 1, b"5s");
    assert!(!is_held_up(&stage.lane, 1));
    let (_, _, body) = get(stage.address, "/api/top", "");
    let top: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(top["limits"][0]["shadow"], true);
    assert_eq!(top["limits"][0]["would"], 1);
    assert!(top["limits"][0]["rows"][0]["wait"].as_f64() > Some(20.0), "as if it were enforced");
    let (_, _, metrics) = get(stage.address, "/metrics", "");
    let counted = |verdict: &str, shadow: bool| {
        let series = "evenkeel_decisions_total";
        format!("{series}{{verdict=\"{verdict}\",limit=\"ip\",shadow=\"{shadow}\"}} 1\n")
    };
    assert!(metrics.contains(&counted("delay", true)), "{metrics}");
    assert!(!metrics.contains(&counted("delay", false)), "{metrics}");
    let took = "evenkeel_request_seconds_count{tier=\"debt\"} 1\n";
    assert!(metrics.contains(took), "{metrics}");
}

#[test]
fn who_was_pushed_off_the_list_while_its_request_ran_has_its_name_when_it_ends() {
    let stage = stage(&ProxySettings { names_max: 1, ..proxy() });
    let slow = From(IpAddr::from([192, 0, 2, 1]));
    let AskOutcome::Pass(mut slow) = stage.lane.ask(&slow) else { panic!("it passes") };
    slow.work();
    for last in 10..20 {
        charge(&stage.lane, last, b"1ms");
    }
    slow.head(Some(b"5s"));
    drop(slow);
    let (_, _, body) = get(stage.address, "/api/top", "");
    let top: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(top["limits"][0]["rows"][0]["key"], "192.0.2.1", "{top}");
    // The name that the client gave itself is gone with its request.
    assert_eq!(top["limits"][1]["rows"][0]["key"], "<script>\u{fffd}[31m&\"'", "{top}");
}

#[test]
fn a_hit_that_a_limit_in_shadow_would_refuse_is_told_to_nobody_who_counts_with_us() {
    let mut limits = proxy().limits;
    limits[2].shadow = true;
    limits[2].algorithm = Algorithm::Debt(DebtBucket::new(
        Rate::per(Cost::hits(1), Nanos::from_secs(3_600)).expect("a rate"),
        Cost::hits(2),
    ));
    limits[2].action = Some(LimitAction::Reject);
    let stage = stage(&ProxySettings { limits, ..proxy() });
    stage.engine.start_sharing();
    for _ in 0..5 {
        charge(&stage.lane, 1, b"1ms");
    }
    let mut hits = 0;
    let mut cpu = 0;
    stage.engine.spent(&mut |_, _, _, cost| {
        if cost.0 % SECOND == 0 { hits += cost.0 / SECOND } else { cpu += cost.0 }
    });
    assert_eq!(hits, 2, "as many as it let in here");
    assert!(cpu > 0, "what requests cost is told all the same");
}

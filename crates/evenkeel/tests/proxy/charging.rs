//! Charging on the wire: holds, delays, refusals, and the charge when a client disconnects.

use crate::stage::{Stage, cpu_limit, hit_limit};
use evenkeel_config::settings::CostSource;
use evenkeel_core::limit::LimitAction;
use evenkeel_core::units::{Cost, Nanos};
use evenkeel_engine::view::EngineView;
use evenkeel_testing::wait::until;
use std::time::{Duration, Instant};

/// The total charge of all requests, as the limits see it.
fn total(stage: &Stage) -> Cost {
    stage.engine.load().1
}

fn working(stage: &Stage) -> u32 {
    stage.engine.load().0
}

/// A proxy with a backend that states its costs, and a limit of one CPU-second a second with the
/// burst `burst`.
fn stated(burst: Duration, action: LimitAction) -> Stage {
    Stage::open(|settings| {
        settings.cost = CostSource::Header("x-cost".into());
        settings.action = action;
        settings.limits = vec![cpu_limit(1.0, burst)];
    })
}

#[test]
fn t28_a_held_answer_shows_no_byte_before_its_time_whatever_its_size() {
    let stage = stated(Duration::ZERO, LimitAction::Hold);
    let body = "x".repeat(300_000);
    let mut client = stage.client();
    let start = Instant::now();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    let length = body.len();
    backend
        .send(format!("HTTP/1.1 200 OK\r\nx-cost: 0.7\r\ncontent-length: {length}\r\n\r\n{body}"));
    let head = client.head();
    assert!(start.elapsed() >= Duration::from_millis(700), "{:?}", start.elapsed());
    assert!(!head.contains("x-cost"), "the cost was told: {head}");
    assert_eq!(client.take(body.len()), body.as_bytes());
    // The connection to the backend is idle again.
    client.get("/");
    backend.message();
}

#[test]
fn an_answer_within_the_limit_is_not_held() {
    let stage = stated(Duration::from_secs(3600), LimitAction::Hold);
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\nx-cost: 3000\r\ncontent-length: 2\r\n\r\nok");
    assert_eq!(client.message().text(), "ok");
}

#[test]
fn who_leaves_while_its_answer_is_held_is_done_with() {
    let stage = stated(Duration::ZERO, LimitAction::Hold);
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    assert_eq!(working(&stage), 1);
    backend.send("HTTP/1.1 200 OK\r\nx-cost: 25\r\ncontent-length: 2\r\n\r\nok");
    until("it is held", || working(&stage) == 0);
    drop(client);
    until("the connection ends", || stage.door.connections() == 0);
    assert_eq!(stage.watch.proxy.aborted.get(), 0, "its request was done");
}

#[test]
fn a_delayed_request_reaches_the_backend_after_its_wait() {
    let stage = stated(Duration::ZERO, LimitAction::Delay);
    let mut client = stage.client();
    let start = Instant::now();
    client.get("/1");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\nx-cost: 0.6\r\ncontent-length: 2\r\n\r\nok");
    assert_eq!(client.message().text(), "ok");
    client.get("/2");
    backend.message();
    assert!(start.elapsed() >= Duration::from_millis(600), "{:?}", start.elapsed());
}

#[test]
fn who_leaves_while_it_is_delayed_never_reaches_the_backend() {
    let stage = stated(Duration::ZERO, LimitAction::Delay);
    let mut client = stage.client();
    client.get("/1");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\nx-cost: 25\r\ncontent-length: 2\r\n\r\nok");
    client.message();
    client.get("/2");
    until("it waits", || stage.watch.proxy.requests.get() == 2);
    drop(client);
    until("the connection ends", || stage.door.connections() == 0);
    assert!(backend.is_silent());
    stage.backend_is_left_alone();
}

#[test]
fn a_refusal_says_why_and_when_in_the_form_that_is_liked() {
    let stage = Stage::open(|settings| settings.limits = vec![hit_limit(1, 1)]);
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("ok");
    assert_eq!(client.message().status(), 200);
    for (accept, kind) in [
        ("text/html", "text/html; charset=utf-8"),
        ("application/json", "application/json"),
        ("*/*", "text/plain; charset=utf-8"),
    ] {
        client.send(format!("GET / HTTP/1.1\r\nhost: a\r\naccept: {accept}\r\n\r\n"));
        let answer = client.message();
        assert_eq!(answer.status(), 429);
        assert_eq!(answer.header("content-type"), Some(kind));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        let seconds: u64 = answer.header("retry-after").expect("when").parse().expect("seconds");
        assert!((1..=60).contains(&seconds), "{seconds}");
        assert!(answer.text().contains("hits"), "{}", answer.text());
    }
    assert!(backend.is_silent());
}

#[test]
fn debt_beyond_max_delay_is_refused_with_503() {
    let stage = stated(Duration::ZERO, LimitAction::Hold);
    let mut client = stage.client();
    client.send("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut backend = stage.backend();
    backend.message();
    // The cost is charged when the account is closed; the client does not wait for it.
    drop(client);
    backend.send("HTTP/1.1 200 OK\r\nx-cost: 1000\r\n\r\n");
    until("the account is closed", || {
        // Requests of this loop that are admitted count as aborted too.
        stage.watch.proxy.aborted.get() >= 1 && {
            let mut client = stage.client();
            client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
            let refused = stage.backend_or_client(&mut client).is_none();
            if refused {
                let answer = client.message();
                assert_eq!(answer.status(), 503);
                let seconds: u64 =
                    answer.header("retry-after").expect("when").parse().expect("secs");
                assert!((900..=970).contains(&seconds), "{seconds}");
            }
            refused
        }
    });
}

#[test]
fn a_refused_connection_stays_usable_unless_a_long_body_follows() {
    let stage = Stage::open(|settings| settings.limits = vec![hit_limit(1, 1)]);
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.answer("ok");
    client.message();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nsmall");
    assert_eq!(client.message().status(), 429);
    client.get("/");
    assert_eq!(client.message().status(), 429);
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5000000\r\n\r\nlong");
    assert_eq!(client.message().status(), 429);
    client.ends();
}

#[test]
fn an_abort_before_the_head_is_charged_until_the_backend_answers() {
    let stage = Stage::open(|settings| settings.limits = vec![cpu_limit(1.0, Duration::ZERO)]);
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    drop(client);
    until("the client is gone", || stage.watch.proxy.aborted.get() == 1);
    assert_eq!(working(&stage), 1, "the backend works on");
    let before = total(&stage);
    until("the clock runs on", || total(&stage) > before);
    backend.answer("ok");
    until("the account is closed", || working(&stage) == 0);
    // The answer was discarded, and its connection can be reused.
    let mut client = stage.client();
    client.get("/again");
    stage.backend_for("/again", backend);
}

#[test]
fn an_abort_within_the_body_is_charged_until_its_end() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\none");
    client.head();
    client.expect("one");
    drop(client);
    until("the client is gone", || stage.watch.proxy.aborted.get() == 1);
    until("the backend is waited for", || working(&stage) == 1);
    backend.send("two");
    until("the account is closed", || working(&stage) == 0);
}

#[test]
fn an_abort_is_given_up_after_its_linger() {
    let stage = Stage::open(|settings| {
        settings.timeouts.abort_linger = Duration::from_millis(200);
    });
    let mut client = stage.client();
    let start = Instant::now();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    drop(client);
    backend.ends();
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
    until("the account is closed", || working(&stage) == 0);
    assert!(total(&stage) >= Cost(200_000_000), "{:?}", total(&stage));
}

#[test]
fn a_body_on_its_way_to_the_backend_is_nobodys_cost() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\none");
    let mut backend = stage.backend();
    backend.head();
    backend.expect("one");
    assert_eq!((working(&stage), total(&stage)), (0, Cost::ZERO));
    client.send("two");
    backend.expect("two");
    until("the backend works", || working(&stage) == 1);
    backend.answer("ok");
    client.message();
    until("the backend rests", || working(&stage) == 0);
}

#[test]
fn a_slow_reader_does_not_run_the_clock() {
    let stage = Stage::open(|_| {});
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    let size = 64 << 20;
    let writer = std::thread::spawn(move || {
        backend.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n"));
        backend.send(vec![b'x'; size]);
        backend
    });
    client.head();
    // All buffers on the path fill up; then the proxy no longer waits for the backend.
    let mut last = Cost::ZERO;
    let mut same = 0;
    until("the clock rests", || {
        let now = total(&stage);
        same = if now == last && working(&stage) == 0 { same + 1 } else { 0 };
        last = now;
        same > 10_000
    });
    client.take(size);
    writer.join().expect("all was written");
}

#[test]
fn the_header_of_costs_may_be_kept() {
    let stage = Stage::open(|settings| {
        settings.cost = CostSource::Header("x-cost".into());
        settings.keep_cost_header = true;
        settings.max_delay = Nanos::ZERO;
    });
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\nx-cost: 12ms\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(client.message().header("x-cost"), Some("12ms"));
}

/// Each server on the way adds a line of its own.
#[test]
fn the_first_line_of_server_timing_with_cpu_time_states_the_cost() {
    let stage = Stage::open(|settings| {
        settings.cost = CostSource::Header("server-timing".into());
        settings.limits = vec![cpu_limit(1.0, Duration::from_secs(3600))];
    });
    let mut client = stage.client();
    client.get("/");
    let mut backend = stage.backend();
    backend.message();
    let lines = [
        "cache;desc=\"hit, cpu;dur=9000\", edge;dur=3",
        "db;dur=53, cpu;desc=\"all workers\";dur=2000.5",
        "cpu;dur=7000",
    ];
    let lines = lines.map(|line| format!("server-timing: {line}\r\n")).concat();
    backend.send(format!("HTTP/1.1 200 OK\r\n{lines}content-length: 0\r\n\r\n"));
    assert!(client.message().all("server-timing").is_empty(), "the cost was passed on");
    let charged = || stage.engine.top(0).first().map(|client| client.row.total.as_units());
    until("it is charged", || {
        stage.engine.load().0 == 0 && charged().is_some_and(|cost| cost > 0.0)
    });
    let charged = charged().unwrap_or_default();
    assert!((charged - 2.0005).abs() < 1e-6, "{charged}");
    assert_eq!(stage.watch.cost_header_faults.get(), 0);
}

#[test]
fn clients_are_told_how_they_stand_if_asked_for() {
    let told = |headers: bool| {
        let stage = Stage::open(|settings| {
            settings.headers = headers;
            settings.limits = vec![hit_limit(1, 2), cpu_limit(1.0, Duration::from_secs(10))];
        });
        let mut client = stage.client();
        client.get("/");
        let mut backend = stage.backend();
        backend.message();
        backend.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        let first = client.message();
        client.get("/");
        backend.message();
        backend.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        client.message();
        let refused = client.get("/").message();
        assert_eq!(refused.status(), 429);
        [first, refused].map(|answer| {
            ["ratelimit-policy", "ratelimit"].map(|name| answer.header(name).map(str::to_owned))
        })
    };
    assert_eq!(told(false), [[None, None], [None, None]]);
    let begun = Instant::now();
    let [[policy, standing], [policy_again, refused]] = told(true);
    assert_eq!(policy.as_deref(), Some("\"hits\";q=2;w=120"));
    let left = standing.as_deref().and_then(|told| told.strip_prefix("\"hits\";r=1;t="));
    let left: u64 = left.and_then(|left| left.parse().ok()).expect("seconds");
    // The value is that of the answer, which arrived within this time.
    assert!((60 - begun.elapsed().as_secs()..=60).contains(&left), "{standing:?}");
    assert_eq!(policy_again, policy);
    let refused = refused.expect("told");
    assert!(refused.starts_with("\"hits\";r=0;t="), "{refused}");
}

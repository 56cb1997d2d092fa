//! Requests to language models: costs in tokens, streams until their end, quotas and refusals.

use crate::front::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, begun, fields, frame};
use crate::stage::{Stage, Wire};
use evenkeel_config::settings::{ConcurrencySetting, CostSource, ProxySettings};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::quota::QuotaBucket;
use evenkeel_core::condition::Condition;
use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
use evenkeel_core::units::{Cost, Nanos, Rate, Weight};
use evenkeel_engine::view::EngineView;
use evenkeel_testing::wait::until;
use std::time::Instant;

/// A limit of this many tokens a minute for each value of `Authorization`.
fn token_limit(tokens: u64) -> Limit {
    let rate = Rate::per(Cost::tokens(tokens), Nanos::from_secs(60)).expect("a rate");
    Limit {
        name: "tenant".into(),
        by: vec![KeyPart::Header("authorization".into())],
        when: Condition::default(),
        unit: LimitUnit::Tokens,
        algorithm: Algorithm::Quota(QuotaBucket::new(DebtBucket::new(rate, Cost::tokens(tokens)))),
        action: None,
        weight: Weight::ONE,
        keys_max: 1_000,
        shadow: false,
    }
}

/// A limit of weighted tokens for each value of `Authorization`, as `share` makes it.
fn share_limit() -> Limit {
    let rate = Rate::per(Cost::tokens(1_000), Nanos::from_secs(1)).expect("a rate");
    let algorithm = Algorithm::Debt(DebtBucket::new(rate, Cost::tokens(30_000)));
    let name = "share".into();
    Limit { name, unit: LimitUnit::Cpu, algorithm, ..token_limit(1) }
}

/// A stage where a token of the prompt weighs one, one of the output four, one in the cache a
/// quarter.
pub fn models(change: impl FnOnce(&mut ProxySettings)) -> Stage {
    Stage::open(|settings| {
        settings.action = LimitAction::Queue;
        settings.queue.concurrency = ConcurrencySetting::Fixed(1);
        settings.queue.reserve = 0;
        settings.bounds.body_buffer = 64 << 10;
        settings.cost = CostSource::Tokens;
        settings.charge_streams = true;
        settings.limits = vec![token_limit(10_000), share_limit()];
        change(settings);
    })
}

pub fn call(wire: &mut Wire, path: &str, body: &str) {
    let length = body.len();
    wire.send(format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer a\r\n\
         accept-encoding: gzip\r\ncontent-length: {length}\r\n\r\n{body}"
    ));
}

/// Reads the head and the body that the backend gets.
pub fn received(backend: &mut Wire) -> (String, String) {
    let head = backend.head();
    let lower = head.to_ascii_lowercase();
    let length = lower.split("content-length: ").nth(1).expect("a length");
    let length = length.split("\r\n").next().expect("a line").parse().expect("a number");
    (head, String::from_utf8(backend.take(length)).expect("text"))
}

/// Answers with this JSON. The connection ends, so that the next request comes on a new one.
fn answer_whole(backend: &mut Wire, text: &str) {
    let length = text.len();
    backend.send(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{text}"
    ));
}

/// The tokens that were charged to the only tenant under a limit.
fn charged(stage: &Stage, limit: usize) -> f64 {
    let rows = stage.engine.top(limit);
    rows.iter().map(|one| one.row.total.as_units() * 1e3).sum()
}

fn is_charged(stage: &Stage, tokens: f64, weighted: f64) {
    for (limit, tokens) in [tokens, weighted].into_iter().enumerate() {
        until("it is charged", || {
            let charged = charged(stage, limit);
            assert!(charged <= tokens + 0.01, "{charged} of {tokens}");
            (charged - tokens).abs() < 0.01
        });
    }
}

pub const CHAT: &str = "/v1/chat/completions";
const QUESTION: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello there"}]}"#;
const STREAM: &str =
    r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hello there"}]}"#;

fn chunk(text: &str) -> String {
    format!("{:X}\r\n{text}\r\n", text.len())
}

fn delta(content: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{content}\"}}}}]}}\n\n")
}

const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\
    \"completion_tokens\":50,\"prompt_tokens_details\":{\"cached_tokens\":40}}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[test]
fn an_answer_costs_the_tokens_that_it_states() {
    let stage = models(|_| ());
    let mut client = stage.client();
    call(&mut client, CHAT, QUESTION);
    let mut backend = stage.backend();
    let (head, body) = received(&mut backend);
    assert!(head.to_ascii_lowercase().contains("accept-encoding: identity\r\n"), "{head}");
    assert_eq!(body, QUESTION);
    let text = r#"{"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":50}}"#;
    answer_whole(&mut backend, text);
    let answer = client.message();
    assert_eq!(answer.text(), text);
    assert_eq!(answer.header("x-ratelimit-limit-tokens"), Some("10000"));
    is_charged(&stage, 150.0, 100.0 + 4.0 * 50.0);
}

#[test]
fn a_stream_is_made_to_report_its_usage_and_its_client_does_not_see_it() {
    let stage = models(|_| ());
    let mut client = stage.client();
    call(&mut client, CHAT, STREAM);
    let mut backend = stage.backend();
    let (_, body) = received(&mut backend);
    let asked: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(asked["stream_options"]["include_usage"], true);
    backend.send([STREAM_HEAD, &chunk(&delta("a"))].concat());
    client.head();
    client.expect(chunk(&delta("a")));
    backend.send([chunk(USAGE), chunk(DONE), "0\r\n\r\n".into()].concat());
    client.expect([chunk(DONE), "0\r\n\r\n".into()].concat());
    is_charged(&stage, 150.0, 60.0 + 0.25 * 40.0 + 4.0 * 50.0);
}

#[test]
fn a_client_that_asks_for_the_usage_gets_it() {
    let stage = models(|_| ());
    let mut client = stage.client();
    let text =
        STREAM.replace("\"stream\"", "\"stream_options\":{\"include_usage\":true},\"stream\"");
    call(&mut client, CHAT, &text);
    let mut backend = stage.backend();
    assert_eq!(received(&mut backend).1, text);
    backend.send([STREAM_HEAD, &chunk(USAGE), &chunk(DONE), "0\r\n\r\n"].concat());
    client.head();
    client.expect([chunk(USAGE), chunk(DONE), "0\r\n\r\n".into()].concat());
    is_charged(&stage, 150.0, 60.0 + 0.25 * 40.0 + 4.0 * 50.0);
}

#[test]
fn a_client_that_hangs_up_pays_for_what_was_made() {
    let stage = models(|_| ());
    let mut client = stage.client();
    call(&mut client, CHAT, STREAM);
    let mut backend = stage.backend();
    received(&mut backend);
    backend.send(STREAM_HEAD);
    client.head();
    for _ in 0..50 {
        backend.send(chunk(&delta("a")));
        client.expect(chunk(&delta("a")));
    }
    drop(client);
    backend.ends();
    until("it is charged", || charged(&stage, 0) > 0.0);
    let charged = charged(&stage, 0);
    let prompt = STREAM.len() as f64 / 4.0;
    assert!((50.0..=50.0 + 2.0 * prompt).contains(&charged), "{charged}");
}

/// A model makes its answer whether or not the client reads it. The window of the client's stream
/// holds 64 KiB, and it reads nothing.
#[test]
fn a_stream_that_is_not_read_keeps_its_slot_as_long_as_the_model_works() {
    const EVENTS: u64 = 4_000;
    let stage = models(|_| ());
    let mut client = begun(&stage);
    let length = STREAM.len().to_string();
    let head = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", CHAT),
        (":authority", "a"),
        ("authorization", "Bearer a"),
        ("content-length", &length),
    ];
    client.send(frame(HEADERS, END_HEADERS, 1, &fields(&head)));
    client.send(frame(DATA, END_STREAM, 1, STREAM.as_bytes()));
    let mut backend = stage.backend();
    received(&mut backend);
    backend.send(STREAM_HEAD);
    for _ in 0..EVENTS {
        backend.send(chunk(&delta("a")));
    }
    let made = Cost::tokens(4 * (EVENTS - 64));
    let running = || stage.engine.admission_stats().map(|crowd| crowd.running);
    until("all of it is counted", || {
        assert_eq!(running(), Some(1));
        stage.watch.tiers.progress() >= made
    });
    assert_eq!(running(), Some(1));
    backend.send("0\r\n\r\n");
    until("the slot is free", || running() == Some(0));
    until("it is charged", || charged(&stage, 0) >= EVENTS as f64);
}

#[test]
fn a_tenant_over_its_tokens_is_refused_as_clients_of_the_api_expect() {
    let stage = models(|settings| settings.limits = vec![token_limit(1_000), share_limit()]);
    let mut client = stage.client();
    call(&mut client, CHAT, QUESTION);
    let mut backend = stage.backend();
    received(&mut backend);
    let text = r#"{"usage":{"prompt_tokens":1000,"completion_tokens":300}}"#;
    answer_whole(&mut backend, text);
    client.message();
    is_charged(&stage, 1_300.0, 2_200.0);
    for (path, kind) in
        [(CHAT, "/error/type"), ("/v1/messages", "/error/type"), ("/api/chat", "/error")]
    {
        call(&mut client, path, QUESTION);
        let answer = client.message();
        assert_eq!(answer.status(), 429);
        let seconds: u64 = answer.header("retry-after").expect("a time").parse().expect("seconds");
        // 300 tokens too many, at 1000 a minute.
        assert!((17..=18).contains(&seconds), "{seconds}");
        assert_eq!(answer.header("x-ratelimit-remaining-tokens"), Some("0"));
        let body: serde_json::Value = serde_json::from_str(answer.text()).expect("JSON");
        let said = body.pointer(kind).and_then(serde_json::Value::as_str).expect("a text");
        assert!(said == "rate_limit_error" || path == "/api/chat", "{body}");
    }
    stage.backend_is_left_alone();
}

#[test]
fn the_estimate_is_held_while_a_request_runs() {
    let stage = models(|settings| settings.queue.concurrency = ConcurrencySetting::Fixed(2));
    let left = |wire: &mut Wire, backend: &mut Wire| {
        let text = r#"{"usage":{"prompt_tokens":1000,"completion_tokens":0}}"#;
        received(backend);
        answer_whole(backend, text);
        let answer = wire.message();
        answer.header("x-ratelimit-remaining-tokens").expect("told").parse::<f64>().expect("one")
    };
    let long = QUESTION.replace("hello", &"hello ".repeat(1_000));
    let (mut first, mut second) = (stage.client(), stage.client());
    call(&mut first, CHAT, &long);
    let mut one = stage.backend();
    one.head();
    call(&mut second, CHAT, QUESTION);
    let mut two = stage.backend();
    // 1500 tokens of the first prompt, and twice 1024 for the outputs, whose length is unknown.
    let left = left(&mut second, &mut two);
    assert!((6_000.0..6_500.0).contains(&left), "{left}");
}

/// However many requests arrive at once, the admitted ones may use no more than what is left and
/// what the last one of them uses.
#[test]
fn many_requests_at_once_exceed_a_quota_by_one_of_them() {
    let stage = models(|settings| {
        settings.limits = vec![token_limit(1_000), share_limit()];
        settings.queue.concurrency = ConcurrencySetting::Fixed(64);
    });
    let question = QUESTION.replace("\"model\"", "\"max_tokens\":180,\"model\"");
    let mut admitted = Vec::new();
    let refused = loop {
        let mut client = stage.client();
        call(&mut client, CHAT, &question);
        if admitted.len() == 5 {
            break client;
        }
        let mut backend = stage.backend();
        received(&mut backend);
        admitted.push((client, backend));
    };
    let mut refused = refused;
    // Five requests may use about 194 tokens each, and the sixth exceeds the quota.
    let mut sixth = stage.backend();
    received(&mut sixth);
    admitted.push((refused, sixth));
    refused = stage.client();
    call(&mut refused, CHAT, &question);
    assert_eq!(refused.message().status(), 429);
    let text = r#"{"usage":{"prompt_tokens":14,"completion_tokens":10}}"#;
    for (client, backend) in &mut admitted {
        answer_whole(backend, text);
        assert_eq!(client.message().status(), 200);
    }
    // An excess reservation is available again at once.
    is_charged(&stage, 6.0 * 24.0, 6.0 * (14.0 + 40.0));
    call(&mut refused, CHAT, &question);
    received(&mut stage.backend());
}

/// Nobody knows how long an output without a bound becomes. If it uses up the quota, requests that
/// were admitted before and still wait do not run.
#[test]
fn a_request_that_waits_is_refused_once_the_quota_is_used_up() {
    let stage = models(|settings| settings.limits = vec![token_limit(3_000), share_limit()]);
    let (mut first, mut second) = (stage.client(), stage.client());
    call(&mut first, CHAT, QUESTION);
    let mut backend = stage.backend();
    received(&mut backend);
    call(&mut second, CHAT, QUESTION);
    until("it waits", || stage.engine.admission_stats().is_some_and(|crowd| crowd.waiting == 1));
    answer_whole(&mut backend, r#"{"usage":{"prompt_tokens":14,"completion_tokens":4000}}"#);
    assert_eq!(first.message().status(), 200);
    let refused = second.message();
    assert_eq!(refused.status(), 429);
    assert!(refused.header("retry-after").is_some_and(|secs| secs != "0"), "{refused:?}");
    stage.backend_is_left_alone();
    until("the slot is free", || {
        stage.engine.admission_stats().is_some_and(|crowd| crowd.running == 0)
    });
}

/// The connection to the backend is closed at once, so that the model stops, and the client is
/// charged what such a request usually costs.
#[test]
fn a_client_that_disconnects_before_the_answer_pays_what_is_usual() {
    let stage = models(|_| ());
    let mut client = stage.client();
    call(&mut client, CHAT, QUESTION);
    let mut backend = stage.backend();
    received(&mut backend);
    drop(client);
    backend.ends();
    until("it is charged", || charged(&stage, 0) > 0.0);
    let charged = charged(&stage, 0);
    assert!((256.0..300.0).contains(&charged), "{charged}");
}

/// Short answers teach the rate of output. A request that asks for more than they have, and is
/// abandoned after ten times as long, is charged for the time: all that it asked for.
#[test]
fn a_client_that_disconnects_before_a_long_answer_pays_for_the_time() {
    const LONG: &str = r#"{"model":"m","max_tokens":300,"messages":[]}"#;
    for begin in ["", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"] {
        let stage = models(|_| ());
        let began = Instant::now();
        let mut client = stage.client();
        call(&mut client, CHAT, QUESTION);
        let mut backend = stage.backend();
        received(&mut backend);
        let text = r#"{"usage":{"prompt_tokens":10,"completion_tokens":40}}"#;
        answer_whole(&mut backend, text);
        assert_eq!(client.message().status(), 200);
        is_charged(&stage, 50.0, 10.0 + 4.0 * 40.0);
        let took = began.elapsed();
        call(&mut client, CHAT, LONG);
        let mut backend = stage.backend();
        received(&mut backend);
        backend.send(begin);
        let sent = Instant::now();
        until("the model has worked for long", || sent.elapsed() >= 10 * took);
        drop(client);
        backend.ends();
        until("it is charged", || charged(&stage, 0) > 50.0);
        let charged = charged(&stage, 0) - 50.0;
        assert!((300.0..340.0).contains(&charged), "{charged}");
    }
}

#[test]
fn an_error_of_the_backend_costs_no_tokens() {
    let stage = models(|_| ());
    let mut client = stage.client();
    call(&mut client, CHAT, QUESTION);
    let mut backend = stage.backend();
    received(&mut backend);
    backend.send("HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}");
    assert_eq!(client.message().status(), 400);
    until("it is charged", || charged(&stage, 1) > 0.0);
    assert!(charged(&stage, 0).abs() < 1e-9);
}

/// A body that is too long to be buffered passes whole. Only its buffered part is read.
#[test]
fn the_beginning_of_a_long_body_says_who_asks() {
    let by_user = || Limit { by: vec![KeyPart::Json("/user".into())], ..token_limit(100_000) };
    let stage = models(|settings| {
        settings.bounds.body_buffer = 1_000;
        settings.limits = vec![by_user(), share_limit()];
    });
    let mut client = stage.client();
    let question = QUESTION.replace("hello", &"hello ".repeat(1_000));
    let question = question.replacen('{', "{\"user\":\"bob\",", 1);
    call(&mut client, CHAT, &question);
    let mut backend = stage.backend();
    assert_eq!(received(&mut backend).1, question);
    let text = r#"{"usage":{"prompt_tokens":2000,"completion_tokens":10}}"#;
    answer_whole(&mut backend, text);
    assert_eq!(client.message().status(), 200);
    is_charged(&stage, 2_010.0, 2_040.0);
    assert_eq!(stage.engine.top(0)[0].row.name, "bob");
}

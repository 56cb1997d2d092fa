//! The metrics of requests to language models, and the errors that their clients get.

use crate::backends::nobody;
use crate::models::{CHAT, call, models, received};
use crate::stage::{Stage, Wire};
use evenkeel_config::settings::{ProxySettings, TokenSettings};
use evenkeel_telemetry::counts::models::TokenSource;
use evenkeel_telemetry::counts::tiers::Tier;
use evenkeel_telemetry::prometheus;
use evenkeel_testing::wait::until;
use serde_json::Value;
use std::time::Duration;

const QUESTION: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello there"}]}"#;
const USED: &str = r#"{"usage":{"prompt_tokens":100,"completion_tokens":50,
    "prompt_tokens_details":{"cached_tokens":40}}}"#;

/// Asks once, and lets the backend answer with these headers and this body.
fn answered(stage: &Stage, headers: &str, text: &str) -> Wire {
    let mut client = stage.client();
    let streams = headers.contains("event-stream");
    let question = QUESTION.replace("\"model\"", &format!("\"stream\":{streams},\"model\""));
    call(&mut client, CHAT, &question);
    let mut backend = stage.backend();
    received(&mut backend);
    let length = text.len();
    backend.send(format!(
        "HTTP/1.1 {headers}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{text}"
    ));
    client.message();
    client
}

/// The number of requests with each source, once `count` requests are settled.
fn sources(stage: &Stage, count: u64) -> [u64; 4] {
    use TokenSource::{Assumed, Counted, None, Stated};
    let all = || [Stated, Counted, Assumed, None].map(|source| stage.watch.models.requests(source));
    until("they are settled", || all().iter().sum::<u64>() >= count);
    all()
}

fn first_bytes(stage: &Stage) -> [u64; 2] {
    Tier::ALL.map(|tier| stage.watch.tiers.first_byte(tier).counts().iter().sum())
}

/// The settings of tokens where a million of them costs money.
fn with_prices() -> TokenSettings {
    let text = "proxy:\n  listen: 127.0.0.1:1\n  backend: http://127.0.0.1:2\n  cost: tokens\n  \
                tokens:\n    prices: [{model: m, prompt: 2, cached: 1, output: 10}]\n";
    let read = evenkeel_config::parse("evenkeel.yaml", text.as_bytes(), 2.0);
    read.expect("it is valid").settings.proxy.expect("a proxy").tokens
}

#[test]
fn stated_tokens_and_their_money_are_counted_once() {
    let stage = models(|settings: &mut ProxySettings| settings.tokens = with_prices());
    let _client = answered(&stage, "200 OK\r\ncontent-type: application/json", USED);
    assert_eq!(sources(&stage, 1), [1, 0, 0, 0]);
    assert_eq!(stage.watch.models.tokens(), [60, 40, 50]);
    let page = prometheus::text(stage.watch.registry(), &[]);
    for line in [
        "evenkeel_tokens_total{kind=\"prompt\"} 60",
        "evenkeel_tokens_total{kind=\"cached\"} 40",
        "evenkeel_tokens_total{kind=\"output\"} 50",
        "evenkeel_money_total 0.00066",
        "evenkeel_model_requests_total{source=\"stated\"} 1",
        "evenkeel_first_byte_seconds_count{tier=\"credit\"} 1",
        "evenkeel_first_byte_seconds_count{tier=\"debt\"} 0",
    ] {
        assert!(page.lines().any(|one| one == line), "{line}\n{page}");
    }
}

#[test]
fn tokens_that_are_not_stated_say_how_they_are_known() {
    let stage = models(|settings| settings.tokens.include_usage = false);
    let _counted = answered(
        &stage,
        "200 OK\r\ncontent-type: text/event-stream",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n",
    );
    assert_eq!(sources(&stage, 1), [0, 1, 0, 0]);
    let [prompt, cached, output] = stage.watch.models.tokens();
    assert!(prompt > 0 && (cached, output) == (0, 1), "{prompt} {cached} {output}");
    let json = "content-type: application/json";
    let _assumed = answered(&stage, &format!("200 OK\r\ncontent-encoding: br\r\n{json}"), "..");
    assert_eq!(sources(&stage, 2), [0, 1, 1, 0]);
    let _failed = answered(&stage, "500 Internal Server Error", "{}");
    assert_eq!(sources(&stage, 3), [0, 1, 1, 1]);
    assert_eq!(stage.watch.models.tokens(), [prompt, 0, 1], "what is assumed is not counted");
    assert_eq!(first_bytes(&stage), [2, 0], "an error is no first byte");
}

#[test]
fn requests_that_ask_no_model_are_not_counted_as_such() {
    let stage = models(|_| ());
    let mut client = stage.client();
    client.get("/v1/models");
    let mut backend = stage.backend();
    backend.message();
    backend.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}");
    client.message();
    let _client = answered(&stage, "200 OK\r\ncontent-type: application/json", USED);
    assert_eq!(sources(&stage, 1), [1, 0, 0, 0]);
    assert_eq!(first_bytes(&stage), [1, 0]);
}

#[test]
fn the_first_byte_is_counted_by_the_tier_of_the_client() {
    let stage = models(|settings| {
        settings.limits.remove(0);
    });
    let much = r#"{"usage":{"prompt_tokens":40000,"completion_tokens":0}}"#;
    let json = "200 OK\r\ncontent-type: application/json";
    let _first = answered(&stage, json, much);
    assert_eq!(sources(&stage, 1), [1, 0, 0, 0]);
    // 10000 weighted tokens of debt, of which 1000 a second are paid.
    let _second = answered(&stage, json, USED);
    assert_eq!(sources(&stage, 2), [2, 0, 0, 0]);
    assert_eq!(first_bytes(&stage), [1, 1]);
}

/// The JSON of an error, which must be in the form of the API at this path.
fn error(client: &mut Wire, status: u16, path: &str) -> (String, Value) {
    let answer = client.message();
    assert_eq!(answer.status(), status, "{path}: {}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"), "{path}");
    let body: Value = serde_json::from_str(answer.text()).expect("JSON");
    let error = &body["error"];
    let kind = match path {
        "/api/chat" => "",
        _ => error["type"].as_str().expect("a type"),
    };
    let message = if kind.is_empty() { error } else { &error["message"] };
    assert!(message.as_str().is_some_and(|text| text.ends_with('.')), "{body}");
    assert_eq!(body["type"] == "error", path == "/v1/messages", "{body}");
    (kind.to_owned(), body)
}

const PATHS: [&str; 3] = [CHAT, "/v1/messages", "/api/chat"];

#[test]
fn a_backend_that_is_away_is_an_error_in_the_form_of_the_api() {
    let stage = models(|settings| settings.backends = vec![nobody()]);
    let mut client = stage.client();
    for (path, expected) in PATHS.into_iter().zip(["server_error", "api_error", ""]) {
        call(&mut client, path, QUESTION);
        assert_eq!(error(&mut client, 502, path).0, expected);
    }
    client.get("/v1/models");
    let answer = client.message();
    assert_eq!((answer.status(), answer.text()), (502, "502 Bad Gateway\n"));
}

#[test]
fn a_backend_that_is_silent_is_an_error_in_the_form_of_the_api() {
    for (path, expected) in PATHS.into_iter().zip(["server_error", "timeout_error", ""]) {
        let stage = models(|settings| settings.timeouts.backend = Duration::from_millis(80));
        let mut client = stage.client();
        call(&mut client, path, QUESTION);
        let mut backend = stage.backend();
        received(&mut backend);
        assert_eq!(error(&mut client, 504, path).0, expected);
    }
}

#[test]
fn requests_that_are_too_long_or_too_slow_are_told_in_the_form_of_the_api() {
    let kinds = ["invalid_request_error", "request_too_large", ""];
    for (path, expected) in PATHS.into_iter().zip(kinds) {
        let stage = models(|settings| settings.bounds.body_bytes = 10);
        let mut client = stage.client();
        call(&mut client, path, QUESTION);
        assert_eq!(error(&mut client, 413, path).0, expected);
    }
    let kinds = ["invalid_request_error", "invalid_request_error", ""];
    for (path, expected) in PATHS.into_iter().zip(kinds) {
        let stage = models(|settings| settings.timeouts.idle = Duration::from_millis(80));
        let mut client = stage.client();
        client.send(format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{{"));
        assert_eq!(error(&mut client, 408, path).0, expected);
    }
}

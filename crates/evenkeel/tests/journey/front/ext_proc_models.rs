//! Language models behind a real Envoy that asks Evenkeel: tokens are charged from the bodies that
//! pass through external processing, and bodies arrive as they were sent.
//!
//! How tokens are read from every kind of answer, the tests of `usage` and of the proxy cover.

use crate::client::{Answer, Client};
use crate::gate::{evenkeel, metric};
use crate::model_server::{CACHED, ModelCall, ModelServer, PROMPT, stream};
use crate::site::take_turn;
use evenkeel_testing::envoy::envoy;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::{until, wait_for};
use std::fs;
use std::io::Read;
use std::sync::MutexGuard;
use std::time::Instant;
use tempfile::TempDir;

const ENVOY: &str = include_str!("../../../../../examples/envoy/ext-proc.yaml");
const MODES: [&str; 3] = ["STREAMED", "BUFFERED", "FULL_DUPLEX_STREAMED"];

/// An Envoy with Evenkeel beside it and servers of models behind it.
pub struct ModelEdge {
    pub servers: Vec<ModelServer>,
    _envoy: Program,
    pub evenkeel: Program,
    _folder: TempDir,
    port: u16,
    pub admin: u16,
    _turn: MutexGuard<'static, ()>,
}

impl ModelEdge {
    /// Envoy sends bodies in this mode. Evenkeel has these lines in its section `proxy`.
    fn start(mode: &str, proxy: &str) -> ModelEdge {
        ModelEdge::start_with([mode; 2], proxy)
    }

    /// The same with modes for requests and for responses.
    fn start_with([request, response]: [&str; 2], proxy: &str) -> ModelEdge {
        let modes = format!(
            "request_body_mode: {request}\n                response_body_mode: {response}\n\
             {}request_trailer_mode: SEND\n                response_trailer_mode: SEND",
            " ".repeat(16)
        );
        let envoy = ENVOY
            .replace("response_trailer_mode: SEND", &modes)
            .replace("message_timeout: 35s", "max_message_timeout: 35s")
            .replace("failure_mode_allow: true", "failure_mode_allow: false");
        let evenkeel = format!(
            "ext_proc: {{listen: 127.0.0.1:9002}}\nproxy:\n  listen: off\n  preset: openai\n{proxy}"
        );
        let servers = vec![ModelServer::start()];
        ModelEdge::open(servers, &["8000"], &envoy, &evenkeel)
    }

    /// Starts these configurations of Envoy and Evenkeel, in which the ports `known` are those of
    /// the servers.
    pub fn open(
        servers: Vec<ModelServer>,
        known: &[&str],
        envoy_text: &str,
        evenkeel_text: &str,
    ) -> ModelEdge {
        let turn = take_turn();
        let [port, door, admin] = [(); 3].map(|()| free_port());
        let folder = tempfile::tempdir().expect("a folder");
        let [envoy_file, evenkeel_file] =
            ["envoy.yaml", "evenkeel.yaml"].map(|name| folder.path().join(name));
        let ports = known.iter().zip(&servers);
        let ports = ports.map(|(known, server)| ((*known).to_owned(), server.port));
        let ports = ports.chain([("9002".to_owned(), door), ("10000".to_owned(), port)]);
        let written = |text: &str| {
            ports.clone().fold(text.to_owned(), |text, (known, port)| {
                text.replace(&format!("port_value: {known}"), &format!("port_value: {port}"))
                    .replace(&format!("127.0.0.1:{known}"), &format!("127.0.0.1:{port}"))
            })
        };
        fs::write(&envoy_file, written(envoy_text)).expect("written");
        let admin_text = format!("admin: {{listen: 127.0.0.1:{admin}}}\n");
        fs::write(&evenkeel_file, admin_text + &written(evenkeel_text)).expect("written");
        let mut command = evenkeel();
        command.args(["serve", "--config"]).arg(&evenkeel_file);
        let evenkeel = Program::listening(command, door);
        let envoy = Program::listening(envoy(&envoy_file), port);
        ModelEdge { servers, _envoy: envoy, evenkeel, _folder: folder, port, admin, _turn: turn }
    }

    pub fn client(&self) -> Client {
        Client::new("127.2.0.1", self.port)
    }

    /// The tokens charged so far: of the prompt, of those in the cache, and of outputs.
    fn tokens(&self) -> [f64; 3] {
        let kinds = ["prompt", "cached", "output"];
        kinds.map(|kind| metric(self.admin, "evenkeel_tokens_total", &[("kind", kind)]))
    }

    fn wait_for_tokens(&self, tokens: [u64; 3]) {
        let tokens = tokens.map(|count| count as f64);
        let mut last = self.tokens();
        until("tokens", || {
            last = self.tokens();
            assert!(last.iter().zip(tokens).all(|(is, due)| *is <= due), "{last:?} of {tokens:?}");
            last == tokens
        });
        self.wait_until_free();
    }

    pub fn wait_until_free(&self) {
        let used = || metric(self.admin, "evenkeel_slots_used", &[("door", "proxy")]);
        until("no slot is used", || used() == 0.0);
    }

    /// The only request that has arrived.
    fn call(&self) -> ModelCall {
        wait_for("a request", || self.servers[0].take_calls().pop())
    }
}

pub fn request(body: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: site\r\nAuthorization: Bearer a\r\n\
         Accept-Encoding: gzip\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub fn ask(client: &mut Client, body: &str) -> Answer {
    client.ask(&request(body))
}

pub fn question(model: &str, streams: bool, most: u64) -> String {
    format!(
        r#"{{"model":"{model}","stream":{streams},"max_tokens":{most},
        "messages":[{{"role":"user","content":"hello there"}}]}}"#
    )
}

#[test]
fn an_answer_costs_the_tokens_that_it_states_in_all_modes() {
    for mode in MODES {
        let edge = ModelEdge::start(mode, "");
        let mut client = edge.client();
        for times in 1..=2 {
            let body = question("m", false, 50);
            let answer = ask(&mut client, &body);
            assert_eq!(answer.status, 200, "{mode}: {}", answer.text());
            assert!(answer.text().contains("\"completion_tokens\":50"), "{mode}");
            let call = edge.call();
            assert_eq!(call.body, body, "{mode}");
            assert!(call.head.contains("accept-encoding: identity"), "{mode}: {}", call.head);
            edge.wait_for_tokens([PROMPT - CACHED, CACHED, 50].map(|count| times * count));
        }
    }
}

/// How each API is read, the tests of `usage` cover.
#[test]
fn the_tokens_of_other_apis_are_read_behind_envoy_too() {
    let mode = "FULL_DUPLEX_STREAMED";
    for modes in [["BUFFERED", "STREAMED"], [mode; 2]] {
        let edge = ModelEdge::start_with(modes, "");
        let mut client = edge.client();
        let mut due = [0; 3];
        for (path, body, tokens) in [
            ("/v1/messages", question("m", false, 50), [PROMPT - CACHED, CACHED, 50]),
            (
                "/v1/responses",
                r#"{"model":"m","input":"hello","max_tokens":50}"#.to_owned(),
                [PROMPT - CACHED, CACHED, 50],
            ),
            (
                "/v1/completions",
                r#"{"model":"m","prompt":"hello","max_tokens":50}"#.to_owned(),
                [PROMPT - CACHED, CACHED, 50],
            ),
            ("/api/chat", question("m", false, 50), [PROMPT, 0, 50]),
            ("/v1/embeddings", r#"{"model":"m","input":"hello"}"#.to_owned(), [PROMPT, 0, 0]),
        ] {
            let text = request(&body).replace("/v1/chat/completions", path);
            assert_eq!(client.ask(&text).status, 200, "{path}");
            assert_eq!(edge.call().body, body, "{path}");
            due.iter_mut().zip(tokens).for_each(|(sum, more)| *sum += more);
            edge.wait_for_tokens(due);
        }
    }
}

#[test]
fn a_stream_is_made_to_report_its_usage_and_its_client_does_not_see_it() {
    let duplex = "FULL_DUPLEX_STREAMED";
    for modes in [[duplex; 2], ["BUFFERED", "STREAMED"], ["BUFFERED", duplex]] {
        let edge = ModelEdge::start_with(modes, "");
        let mut client = edge.client();
        let answer = ask(&mut client, &question("m", true, 50));
        assert_eq!(answer.text(), stream(50, false), "{modes:?}");
        let call = edge.call();
        assert!(call.body.contains(r#""stream_options":{"include_usage":true}"#), "{}", call.body);
        edge.wait_for_tokens([PROMPT - CACHED, CACHED, 50]);
        let options = r#"{"stream_options":{"include_usage":true},"model""#;
        let asking = question("m", true, 50).replace("{\"model\"", options);
        assert_eq!(ask(&mut client, &asking).text(), stream(50, true), "{modes:?}");
        assert_eq!(edge.call().body, asking);
        edge.wait_for_tokens([PROMPT - CACHED, CACHED, 50].map(|count| 2 * count));
    }
}

#[test]
fn the_pieces_of_a_stream_are_counted_if_its_request_cannot_be_changed() {
    let edge = ModelEdge::start("STREAMED", "");
    let body = question("m", true, 50);
    let answer = ask(&mut edge.client(), &body);
    assert_eq!(answer.text(), stream(50, false));
    assert_eq!(edge.call().body, body);
    let prompt = edge.tokens()[0] as u64;
    assert!((1..20).contains(&prompt), "an estimate: {prompt}");
    edge.wait_for_tokens([prompt, 0, 50]);
}

#[test]
fn a_client_that_disconnects_pays_for_what_was_made() {
    for mode in ["STREAMED", "FULL_DUPLEX_STREAMED"] {
        let edge = ModelEdge::start(mode, "");
        let mut client = edge.client();
        client.send(&request(&question("endless", true, 300)));
        let connection = client.connect();
        let mut arrived = String::new();
        while !arrived.contains("\"299 \"") {
            let mut piece = [0; 4096];
            let length = connection.read(&mut piece).expect("the stream");
            arrived.push_str(&String::from_utf8_lossy(&piece[..length]));
        }
        drop(client);
        let prompt =
            wait_for("the charge", || Some(edge.tokens()[0] as u64).filter(|prompt| *prompt > 0));
        edge.wait_for_tokens([prompt, 0, 300]);
    }
}

#[test]
fn what_a_running_request_may_use_is_set_aside_and_others_are_refused_in_the_form_of_the_api() {
    for mode in MODES {
        let limit = "  limits: [{name: minute, by: api-key, unit: tokens, rate: 500/m}]\n";
        // An answer that has no end is not buffered.
        let edge = ModelEdge::start_with([mode, "STREAMED"], limit);
        let mut running = edge.client();
        running.send(&request(&question("endless", true, 600)));
        edge.call();
        let mut client = edge.client();
        let refused = ask(&mut client, &question("m", false, 1));
        assert_eq!(refused.status, 429, "{mode}: {}", refused.text());
        assert!(refused.text().contains("rate_limit_exceeded"), "{}", refused.text());
        assert_eq!(refused.header("x-ratelimit-limit-tokens"), Some("500"));
        assert!(refused.header("retry-after").is_some());
        let other = request(&question("m", false, 1)).replace("Bearer a", "Bearer b");
        let served = client.ask(&other);
        assert_eq!((served.status, served.header("x-ratelimit-limit-tokens")), (200, Some("500")));
    }
}

/// Requests wait with their bodies, also if Envoy waits for an answer only for 200 ms unless it is
/// asked for more.
#[test]
fn a_request_waits_for_its_turn_before_the_model_has_its_body() {
    for mode in MODES {
        let queue = "  queue: {concurrency: 1, reserve: 0}\n";
        let edge = ModelEdge::start_with([mode, "STREAMED"], queue);
        let mut running = edge.client();
        running.send(&request(&question("endless", true, 6)));
        edge.call();
        let mut waiting = edge.client();
        let body = question("m", false, 50);
        let started = Instant::now();
        waiting.send(&request(&body));
        let gauge = |name| metric(edge.admin, name, &[("door", "proxy")]);
        until("it waits", || gauge("evenkeel_waiting_requests") == 1.0);
        until("longer than Envoy waits", || started.elapsed().as_millis() > 500);
        assert!(edge.servers[0].take_calls().is_empty(), "{mode}");
        drop(running);
        assert_eq!(waiting.read(started).status, 200, "{mode}");
        assert_eq!(edge.call().body, body, "{mode}");
        let mut gone = edge.client();
        running = edge.client();
        running.send(&request(&question("endless", true, 6)));
        edge.call();
        gone.send(&request(&body));
        until("it waits", || gauge("evenkeel_waiting_requests") == 1.0);
        drop(gone);
        until("it is gone", || gauge("evenkeel_waiting_requests") == 0.0);
        drop(running);
        until("the slot is free", || gauge("evenkeel_slots_used") == 0.0);
        assert!(edge.servers[0].take_calls().is_empty(), "{mode}");
    }
}

/// With `STREAMED`, Evenkeel cannot know whether Envoy waits for an answer before it sends more, so
/// the request gets a slot. Others may use it while nothing arrives.
#[test]
fn a_body_that_arrives_slowly_takes_no_slot() {
    for mode in MODES {
        let edge = ModelEdge::start(mode, "");
        let mut client = edge.client();
        let body = question("m", false, 50);
        let text = request(&body);
        let (begin, rest) = text.split_at(text.len() - 20);
        let started = Instant::now();
        client.send(begin);
        until("longer than Envoy waits", || started.elapsed().as_millis() > 700);
        edge.wait_until_free();
        client.send(rest);
        assert_eq!(client.read(started).status, 200, "{mode}");
        assert_eq!(edge.call().body, body, "{mode}");
        edge.wait_for_tokens([PROMPT - CACHED, CACHED, 50]);
    }
}

/// Longer than the buffers of Envoy, and than what is held of a body.
#[test]
fn a_long_prompt_passes_and_is_counted() {
    for (mode, most) in
        [("FULL_DUPLEX_STREAMED", "2m"), ("FULL_DUPLEX_STREAMED", "16m"), ("STREAMED", "16m")]
    {
        let edge = ModelEdge::start(mode, &format!("  bounds: {{body_buffer: {most}}}\n"));
        let body = question("m", false, 50).replace("hello there", &"hello ".repeat(700_000));
        let started = Instant::now();
        let answer = ask(&mut edge.client(), &body);
        assert_eq!(answer.status, 200, "{mode}: {}", answer.text());
        assert!(edge.call().body == body, "{mode}");
        edge.wait_for_tokens([PROMPT - CACHED, CACHED, 50]);
        assert!(started.elapsed().as_secs() < 20, "{mode}");
    }
}

#[test]
fn without_bodies_the_tokens_are_assumed() {
    let edge = ModelEdge::start("NONE", "");
    let answer = ask(&mut edge.client(), &question("m", true, 50));
    assert_eq!(answer.text(), stream(50, false));
    until("it is counted", || {
        let assumed = [("source", "assumed")];
        metric(edge.admin, "evenkeel_model_requests_total", &assumed) == 1.0
    });
    let told = "Envoy does not send the bodies of requests and responses: tokens are estimated";
    assert_eq!(edge.evenkeel.log().matches(told).count(), 1);
}

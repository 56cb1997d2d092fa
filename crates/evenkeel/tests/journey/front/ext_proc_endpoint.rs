//! Evenkeel chooses the backend of each request and names it to a real Envoy, as configured in
//! `examples/envoy`.
//!
//! Which backend is the right one, the tests of `models` and of the proxy cover.

use crate::client::Client;
use crate::ext_proc_models::{ModelEdge, ask, question, request};
use crate::gate::metric;
use crate::model_server::{ModelCall, ModelServer, stream};
use evenkeel_testing::wait::{until, wait_for};
use std::io::Read;
use std::thread;
use std::time::Instant;

const ENVOY: &str = include_str!("../../../../../examples/envoy/ext-proc.endpoint.yaml");
const EVENKEEL: &str =
    include_str!("../../../../../examples/envoy/ext-proc.endpoint.evenkeel.yaml");

/// The Envoy of `examples` before two servers. `change` changes its configuration.
fn start(change: impl Fn(&str) -> String) -> ModelEdge {
    let servers = vec![ModelServer::start(), ModelServer::start()];
    ModelEdge::open(servers, &["8001", "8002"], &change(ENVOY), EVENKEEL)
}

/// The places of the servers that have got requests since the last call.
fn asked(edge: &ModelEdge) -> Vec<usize> {
    let calls = edge.servers.iter().map(|server| server.take_calls().len());
    calls.enumerate().flat_map(|(place, calls)| vec![place; calls]).collect()
}

/// Starts a stream that does not end. Returns its client, and the place of its server.
fn run(edge: &ModelEdge) -> (Client, usize) {
    let mut client = edge.client();
    client.send(&request(&question("endless", true, 3)));
    let is_it = |call: &ModelCall| call.body.contains("\"max_tokens\":3,");
    let place = wait_for("the request", || {
        edge.servers.iter().position(|server| server.take_calls().iter().any(is_it))
    });
    (client, place)
}

#[test]
fn requests_go_to_the_backend_with_the_fewest_in_all_modes() {
    for mode in ["BUFFERED", "FULL_DUPLEX_STREAMED", "STREAMED", "NONE"] {
        let edge = start(|text| {
            let response = if mode == "BUFFERED" { "STREAMED" } else { mode };
            let modes = [("request", "BUFFERED", mode), ("response", "STREAMED", response)];
            modes.into_iter().fold(text.to_owned(), |text, (of, known, mode)| {
                let known = format!("{of}_body_mode: {known}");
                assert!(text.contains(&known));
                text.replace(&known, &format!("{of}_body_mode: {mode}"))
            })
        });
        let mut running = vec![run(&edge), run(&edge)];
        assert_ne!(running[0].1, running[1].1, "{mode}");
        let (freed, place) = running.remove(0);
        drop(freed);
        let used = || metric(edge.admin, "evenkeel_slots_used", &[("door", "proxy")]);
        until("its slot is free", || used() == 1.0);
        for _ in 0..3 {
            let answer = ask(&mut edge.client(), &question("m", true, 5));
            assert_eq!((answer.status, answer.text()), (200, stream(5, false)), "{mode}");
            assert_eq!(asked(&edge), [place], "{mode}: the other one has more to do");
        }
        let next = run(&edge);
        assert_eq!(next.1, place, "{mode}");
        drop((running, next));
        edge.wait_until_free();
    }
}

#[test]
fn a_prompt_goes_to_the_backend_that_has_its_beginning() {
    let metadata = "%DYNAMIC_METADATA(envoy.lb:x-gateway-destination-endpoint)%";
    let told = format!(
        "\"*\"]\n              response_headers_to_add:\n              - header: \
         {{key: x-told, value: \"{metadata}\"}}"
    );
    let edge = start(|text| text.replace("\"*\"]", &told));
    let mut client = edge.client();
    for tenant in 0..4 {
        let prompt = format!("you work for tenant {tenant}, ").repeat(200);
        let mut places = Vec::new();
        for turn in 0..3 {
            let body = question("m", false, 5).replace("hello there", &format!("{prompt}{turn}"));
            let answer = ask(&mut client, &body);
            let place = asked(&edge);
            let name = format!("127.0.0.1:{}", edge.servers[place[0]].port);
            assert_eq!((answer.status, answer.header("x-told")), (200, Some(&*name)));
            places.extend(place);
        }
        assert_eq!(places, [places[0]; 3]);
    }
    let hits = [("result", "hit")];
    assert_eq!(metric(edge.admin, "evenkeel_backend_affinity_total", &hits), 8.0);
}

#[test]
fn a_client_does_not_choose_the_backend_and_a_killed_evenkeel_stops_nobody() {
    let mut edge = start(str::to_owned);
    let other = ModelServer::start();
    let forged = request(&question("m", false, 5)).replacen(
        "Host: site",
        &format!("Host: site\r\nX-Gateway-Destination-Endpoint: 127.0.0.1:{}", other.port),
        1,
    );
    let mut client = edge.client();
    assert_eq!(client.ask(&forged).status, 200);
    assert_eq!(asked(&edge).len(), 1);
    edge.evenkeel.kill();
    let statuses = [(); 5].map(|()| client.ask(&forged).status);
    assert_eq!(statuses, [200; 5]);
    assert_eq!((asked(&edge).len(), other.take_calls().len()), (5, 0));
}

#[test]
fn a_backend_that_is_not_there_is_left_out() {
    let gone = |text: &str| text.replace("8002", "9");
    let servers = vec![ModelServer::start()];
    let edge = ModelEdge::open(servers, &["8001"], &gone(ENVOY), &gone(EVENKEEL));
    let started = Instant::now();
    let mut client = edge.client();
    let statuses: Vec<_> =
        (0..6).map(|_| ask(&mut client, &question("m", false, 5)).status).collect();
    assert!(started.elapsed().as_millis() < 1_000, "it is not tried again in this time");
    let failed = statuses.iter().filter(|status| **status == 503).count();
    let served = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!((failed, served), (1, 5), "{statuses:?}");
    edge.wait_until_free();
}

/// Envoy answers with 503 in both cases.
#[test]
fn a_backend_that_breaks_a_connection_is_not_left_out() {
    let edge = start(str::to_owned);
    let mut client = edge.client();
    let broken = ask(&mut client, &question("broken", false, 5));
    assert_eq!((broken.status, broken.header("x-envoy-upstream-service-time")), (503, None));
    asked(&edge);
    let running = [run(&edge), run(&edge)];
    assert_ne!(running[0].1, running[1].1);
}

/// Envoy fails a request that has more than a hundred headers after a change.
#[test]
fn a_request_with_as_many_headers_as_envoy_accepts_is_served() {
    let edge = start(str::to_owned);
    // Four more are always sent, and Envoy adds some.
    for count in 80..=96 {
        let more: String = (0..count).map(|number| format!("X-{number}: 1\r\n")).collect();
        let text = request(&question("m", true, 5)).replacen("\r\n", &format!("\r\n{more}"), 1);
        assert_eq!((edge.client().ask(&text).status, asked(&edge).len()), (200, 1), "{count}");
    }
}

/// An Envoy that allows only this server for requests, as a gateway with an `InferencePool` does.
fn allowing(server: &str) -> impl Fn(&str) -> String {
    let set = "
          - name: envoy.filters.http.set_metadata
            typed_config:
              \"@type\": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
              metadata:
              - metadata_namespace: envoy.lb.subset_hint
                value: {x-gateway-destination-endpoint-subset: [\"127.0.0.1:SERVER\"]}
";
    let set = set.trim_start_matches('\n').replace("SERVER", server);
    move |text| {
        let filter = "          - name: envoy.filters.http.ext_proc\n";
        let both = "metadata_options: {forwarding_namespaces: {untyped: [envoy.lb.subset_hint]}, ";
        text.replace(filter, &format!("{set}{filter}")).replace("metadata_options: {", both)
    }
}

#[test]
fn only_the_backends_that_envoy_allows_are_chosen() {
    let edge = start(allowing("8002"));
    for _ in 0..3 {
        let _running = [run(&edge), run(&edge)].map(|(client, place)| {
            assert_eq!(place, 1);
            client
        });
    }
    drop(edge);
    let edge = start(allowing("9"));
    let refused = ask(&mut edge.client(), &question("m", false, 5));
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("\"error\""), "{}", refused.text());
    edge.wait_until_free();
    assert!(asked(&edge).is_empty());
}

/// So says the guide, although `failure_mode_allow` is set.
#[test]
fn without_evenkeel_requests_with_a_body_fail_if_envoy_holds_none_of_it() {
    for (mode, status) in [("FULL_DUPLEX_STREAMED", 500), ("STREAMED", 200), ("NONE", 200)] {
        let mut edge = start(|text| text.replace("_mode: BUFFERED", &format!("_mode: {mode}")));
        let mut client = edge.client();
        assert_eq!(ask(&mut client, &question("m", false, 5)).status, 200);
        edge.evenkeel.kill();
        assert_eq!(ask(&mut client, &question("m", false, 5)).status, status, "{mode}");
        assert_eq!(client.get("/v1/models").status, 404, "the answer of the server");
    }
}

/// Requests that end in every way leave neither a slot nor a place at a backend behind.
#[test]
fn whatever_happens_to_requests_nothing_of_them_is_left() {
    for mode in ["BUFFERED", "FULL_DUPLEX_STREAMED", "STREAMED"] {
        let edge = start(|text| text.replace("_mode: BUFFERED", &format!("_mode: {mode}")));
        thread::scope(|scope| {
            for number in 0..8 {
                let edge = &edge;
                scope.spawn(move || (0..25).for_each(|round| end_somehow(edge, number + round)));
            }
        });
        // Some may still be on their way.
        let requests = || metric(edge.admin, "evenkeel_requests_total", &[("door", "ext_proc")]);
        let mut seen = 0.0;
        until("no more requests", || {
            edge.wait_until_free();
            let before = std::mem::replace(&mut seen, requests());
            before == seen
        });
        let running = [run(&edge), run(&edge), run(&edge), run(&edge)];
        let places = running.iter().filter(|(_, place)| *place == 0).count();
        assert_eq!(places, 2, "{mode}: both backends have nothing else to do");
    }
}

/// Sends a request that is answered, or cut at its head, in its body or in its answer.
fn end_somehow(edge: &ModelEdge, number: usize) {
    let mut client = edge.client();
    let text = request(&question("m", number.is_multiple_of(2), 20));
    match number % 5 {
        0 => client.send(&text[..text.len() / 2]),
        1 => client.send(&text[..text.len() - 10]),
        2 => client.send(&text),
        3 => {
            client.send(&request(&question("endless", true, 20)));
            client.connect().read_exact(&mut [0; 200]).expect("a beginning");
        }
        _ => assert_eq!(client.ask(&text).status, 200),
    }
}

#[test]
fn a_prompt_may_be_as_long_as_the_buffer_of_envoy() {
    let edge = start(str::to_owned);
    for (length, status) in [(3_990_000, 200), (4_200_000, 413)] {
        let body = question("m", false, 5).replace("hello there", &"x".repeat(length));
        assert_eq!(ask(&mut edge.client(), &body).status, status);
    }
    edge.wait_until_free();
}

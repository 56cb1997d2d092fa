//! Real Envoys with the rate limit quota filter, which decide by themselves within the shares that
//! Evenkeel assigns.

use crate::envoy::{Envoy, backend, is};
use crate::program::Server;
use evenkeel_testing::port::free_port;
use evenkeel_testing::wait::wait_for;

const RULES: &str = "
domain: edge
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 300}}
";

const CONFIG: &str = include_str!("../../../../../examples/envoy/quota.yaml");

/// High enough that an assignment arrives before all requests have passed, also on a busy machine.
const LIMIT: usize = 300;

/// The number of requests that pass until one is refused.
fn until_refused(envoy: &Envoy, user: &str) -> usize {
    let mut passed = 0;
    wait_for("a refusal", || {
        let head = envoy.get(user);
        passed += usize::from(is(&head, 200));
        is(&head, 429).then_some(passed)
    })
}

#[test]
fn envoys_share_a_limit_and_our_death_stops_nobody() {
    let port = free_port();
    let grpc = port.to_string();
    let variables = [("GRPC_PORT", grpc.as_str()), ("EVENKEEL_RLQS_TTL", "10s")];
    let server = Server::start(RULES, &variables);
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let backend = backend();
    let [one, two] =
        folders.each_ref().map(|at| Envoy::start(CONFIG, at.path(), [port, backend], ""));

    // Before its first assignment, an Envoy allows everything by its configuration. These requests
    // are counted too.
    let passed = until_refused(&one, "alice");
    assert!(passed >= LIMIT, "{passed}");
    assert!(is(&one.get("alice"), 429));
    assert!(is(&one.get("bob"), 200), "others are counted apart");
    assert!(until_refused(&two, "alice") < LIMIT, "it is used up for the other one as well");
    let told = || crate::program::http(server.debug, "GET", "/stats", "").1;
    wait_for("figures", || told().contains("edge.user.over_limit: ").then_some(()));

    drop(server);
    // The last assignment expires; it may have had some requests left.
    let all_pass = || (0..30).all(|_| is(&one.get("alice"), 200));
    wait_for("everything to pass: our death stops nobody", || all_pass().then_some(()));

    let _server = Server::start(RULES, &variables);
    until_refused(&one, "alice");
}

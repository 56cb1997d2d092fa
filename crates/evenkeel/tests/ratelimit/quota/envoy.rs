//! Real Envoys with the rate limit quota filter, which decide by themselves what passes, of what
//! our service gives them.

use crate::envoy::{Envoy, backend, free_port, is};
use crate::program::{Server, wait_for};

const RULES: &str = "
domain: edge
descriptors:
- {key: user, rate_limit: {unit: year, requests_per_unit: 300}}
";

const CONFIG: &str = include_str!("../../../../../examples/envoy/quota.yaml");

/// So many that an answer comes before all of them pass, on a busy machine too.
const LIMIT: usize = 300;

/// How many pass until one does not.
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

    // Until it is told, an Envoy lets pass what it is set to; that is counted all the same.
    let passed = until_refused(&one, "alice");
    assert!(passed >= LIMIT, "{passed}");
    assert!(is(&one.get("alice"), 429));
    assert!(is(&one.get("bob"), 200), "others are counted apart");
    assert!(until_refused(&two, "alice") < LIMIT, "it is used up for the other one as well");
    let told = || crate::program::http(server.debug, "GET", "/stats", "").1;
    wait_for("figures", || told().contains("edge.user.over_limit: ").then_some(()));

    drop(server);
    // What it was told last expires; it may have had something left of that.
    let all_pass = || (0..30).all(|_| is(&one.get("alice"), 200));
    wait_for("everything to pass: our death stops nobody", || all_pass().then_some(()));

    let _server = Server::start(RULES, &variables);
    until_refused(&one, "alice");
}

//! Tests of orders about groups of strangers that burn.

use super::live::{Stage, order, stage, watch};
use super::*;
use evenkeel_engine::QueueAdmission;
use evenkeel_testing::wait::until;
use serde_json::{Value, json};

/// The number of returning clients, and of strangers of the swarm.
const CLIENTS: u8 = 60;

/// A request: the address, the path and the user agent.
struct Visitor([u8; 4], &'static str, &'static str);

impl RequestAttributes for Visitor {
    fn address(&self) -> IpAddr {
        IpAddr::from(self.0)
    }

    fn method(&self) -> &'static str {
        "GET"
    }

    fn path(&self) -> &'static str {
        self.1
    }

    fn vhost(&self) -> &'static str {
        ""
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        (name == "user-agent").then_some(self.2.as_bytes())
    }
}

fn pass(stage: &Stage, visitor: &Visitor) -> evenkeel_engine::Charge {
    match stage.lane.ask(visitor) {
        AskOutcome::Pass(charge) => charge,
        AskOutcome::Refused(refusal) => panic!("{refusal:?}"),
    }
}

fn serve(stage: &Stage, visitor: &Visitor, cost: &str) {
    let mut charge = pass(stage, visitor);
    assert!(matches!(charge.enter(), QueueAdmission::Room), "the backend is idle");
    charge.work();
    charge.head(Some(cost.as_bytes()));
}

/// A stage with a swarm that burns.
fn swarmed() -> Stage {
    let queue = settings::ProxyQueueSettings {
        concurrency: settings::ConcurrencySetting::Fixed(1),
        known: settings::KnownSetting::Auto,
        reserve: 0,
        ..settings::ProxyQueueSettings::for_cpus(1.0)
    };
    let mut limits = proxy().limits[..1].to_vec();
    limits[0].keys_max = 1_000;
    let stage = stage(&ProxySettings { action: LimitAction::Queue, queue, limits, ..proxy() });
    for _ in 0..3 {
        for n in 0..CLIENTS {
            let agent = ["a", "b", "c", "d"][usize::from(n % 4)];
            serve(&stage, &Visitor([10, n, 0, 1], "/light", agent), "1ms");
        }
    }
    serve(&stage, &Visitor([198, 51, 100, 1], "/page", "a"), "9s");
    let mut holder = pass(&stage, &Visitor([198, 51, 100, 2], "/page", "a"));
    assert!(matches!(holder.enter(), QueueAdmission::Room));
    holder.work();
    let mut waiting = Vec::new();
    for n in 0..CLIENTS {
        let mut charge = pass(&stage, &Visitor([100 + n, 16, 0, 1], "/page", "swarm/1"));
        let QueueAdmission::Waits(turn) = charge.enter() else { panic!("it waits") };
        waiting.push((turn, charge));
    }
    stage
}

fn is_denied(stage: &Stage, address: [u8; 4]) -> bool {
    matches!(stage.lane.ask(&Visitor(address, "/page", "swarm/1")), AskOutcome::Refused(_))
}

/// The sum of a column of the history.
fn sum(stage: &Stage, column: &str) -> f64 {
    let (_, _, body) = get(stage.address, "/api/history?seconds=60", "");
    let history: Value = serde_json::from_str(&body).expect("JSON");
    history[column].as_array().into_iter().flatten().filter_map(Value::as_f64).sum()
}

/// The first group that `/api/top` shows.
fn shown(stage: &Stage) -> Value {
    let (_, _, body) = get(stage.address, "/api/top", "");
    let top: Value = serde_json::from_str(&body).expect("JSON");
    top["load"][0]["swarm"]["groups"][0].clone()
}

#[test]
fn an_operator_denies_and_slows_a_group_and_takes_it_back() {
    let stage = swarmed();
    let group = shown(&stage);
    let name = group["name"].as_str().expect("a name");
    assert!(name.contains("swarm/1"), "{group}");
    assert!(group["when"].as_str().is_some_and(|when| when.contains("'swarm/1'")), "{group}");
    let (_, events) = watch(stage.address, 1);
    assert_eq!(events[0]["doors"][0]["swarm"]["groups"][0]["id"], group["id"], "as the page sees");
    assert!(!is_denied(&stage, [172, 31, 0, 1]));

    let send = |what: &str| {
        let sent = json!({"do": what, "group": group["id"], "for_seconds": 60});
        let (status, answer) = order(stage.address, &sent);
        assert_eq!(status, 200, "{answer}");
        serde_json::from_str::<Value>(&answer).expect("JSON")
    };
    let all = send("deny");
    let said = &all[0];
    assert_eq!(
        (&said["do"], &said["key"], &said["id"]),
        (&"deny".into(), &name.into(), &group["id"])
    );
    assert_eq!((&said["limit"], &said["door"]), (&Value::Null, &"proxy".into()));
    assert!((50.0..=60.0).contains(&said["left"].as_f64().expect("a time")), "{said}");
    assert!(is_denied(&stage, [172, 31, 0, 1]));
    assert!(!is_denied(&stage, [10, 7, 0, 1]), "a returning client");
    until("the history has it", || is_denied(&stage, [172, 31, 0, 1]) && sum(&stage, "deny") > 0.0);

    // One takes the place of the other. The group is found though it may not burn any longer.
    let all = send("slow");
    assert_eq!((all.as_array().map(Vec::len), &all[0]["do"]), (Some(1), &"slow".into()));
    assert!(!is_denied(&stage, [172, 31, 0, 1]));
    let all = send("deny");
    assert!(is_denied(&stage, [172, 31, 0, 1]));
    let undo = json!({"do": "undo", "override_id": all[0]["override_id"]});
    assert_eq!(order(stage.address, &undo).1.trim(), "[]");
    assert!(!is_denied(&stage, [172, 31, 0, 1]));
}

#[test]
fn orders_about_groups_that_make_no_sense_change_nothing() {
    let stage = swarmed();
    let id = shown(&stage)["id"].clone();
    for (faulty, status, why) in [
        (json!({"do": "deny"}), 400, "`limit` or `group` is missing"),
        (json!({"do": "slow", "limit": "ip", "key": "192.0.2.1"}), 400, "`group` is missing"),
        (json!({"do": "deny", "group": "xyz"}), 404, "no group of strangers with this id"),
        (
            json!({"do": "deny", "group": "00000000000000ab"}),
            404,
            "no group of strangers with this id",
        ),
        (
            json!({"do": "deny", "group": id, "door": "line"}),
            404,
            "no group of strangers with this id",
        ),
        (json!({"do": "deny", "group": id, "for_seconds": 86_401}), 400, "for_seconds"),
        // It is no client.
        (json!({"do": "exempt", "group": id}), 400, "`limit` is missing"),
    ] {
        let (answered, text) = order(stage.address, &faulty);
        assert_eq!(answered, status, "{faulty}: {text}");
        assert!(text.contains(why), "{faulty}: {text}");
    }
    assert_eq!(get(stage.address, "/api/overrides", "").2.trim(), "[]");
    assert!(!is_denied(&stage, [172, 31, 0, 1]));
}

//! Tests of what is said of single clients: how long each waits, what it asks for, its part of the
//! work over time; and of the order that denies one.

use super::live::{order, stage};
use super::*;
use evenkeel_core::limit::RefusalKind;
use serde_json::{Value, json};

fn top(address: SocketAddr) -> Value {
    let (_, _, body) = get(address, "/api/top", "");
    serde_json::from_str(&body).expect("JSON")
}

/// Without the limit that counts hits.
fn by_cpu() -> ProxySettings {
    ProxySettings { limits: proxy().limits[..2].to_vec(), ..proxy() }
}

#[test]
fn each_client_has_its_times_its_usual_route_and_agent() {
    let stage = stage(&by_cpu());
    for last in 2..=8 {
        charge(&stage.lane, last, b"1ms");
    }
    charge(&stage.lane, 1, b"5s");
    charge(&stage.lane, 1, b"1ms");
    let top = top(stage.address);
    let times = &top["load"][0]["client_times"];
    assert_eq!((&times["credit"]["clients"], &times["debt"]["clients"]), (&7.into(), &1.into()));
    assert_eq!(times["debt"]["slowest"], "192.0.2.1");
    let figure = |name: &str| times["credit"][name].as_f64().expect("a number");
    assert!(0.0 < figure("median") && figure("median") <= figure("p95"), "{times}");
    assert!(figure("p95") <= figure("longest"), "{times}");
    let row = &top["limits"][0]["rows"][0];
    assert_eq!((&row["key"], &row["route"]), (&"192.0.2.1".into(), &"GET /".into()));
    assert_eq!(row["agent"], "<script>\u{fffd}[31m&\"'");
    assert_eq!((&row["asn"], &row["country"]), (&Value::Null, &Value::Null));
    assert!(row["answered"].as_f64() > Some(0.0) && row["first_seen"].as_f64() < Some(60.0));
}

#[test]
fn a_denied_client_gets_403_and_no_other_does_until_it_is_undone() {
    let stage = stage(&by_cpu());
    charge(&stage.lane, 1, b"1ms");
    let refused = |last| match stage.lane.ask(&From(IpAddr::from([192, 0, 2, last]))) {
        AskOutcome::Refused(refusal) => Some((refusal.kind, refusal.limit)),
        AskOutcome::Pass(_) => None,
    };
    assert_eq!(refused(1), None);
    let deny = json!({"do": "deny", "limit": "ip", "key": "192.0.2.1", "for_seconds": 60});
    let (status, answer) = order(stage.address, &deny);
    let all: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((status, &all[0]["do"], &all[0]["limit"]), (200, &"deny".into(), &"ip".into()));
    let id = &all[0]["override_id"];
    assert_eq!(refused(1), Some((RefusalKind::Denied, format!("override {id}"))));
    assert_eq!(refused(2), None);
    let (_, _, metrics) = get(stage.address, "/metrics", "");
    let counted = "{verdict=\"deny\",limit=\"override\",shadow=\"false\"} 1\n";
    assert!(metrics.contains(counted), "{metrics}");
    let undo = json!({"do": "undo", "override_id": id});
    assert_eq!(order(stage.address, &undo).1.trim(), "[]");
    assert_eq!(refused(1), None);
    let stranger = json!({"do": "deny", "limit": "ip", "key": "192.0.2.77"});
    assert_eq!(order(stage.address, &stranger).0, 404);
}

#[test]
fn the_work_over_time_is_told_by_clients_of_a_limit_that_counts_it() {
    let stage = stage(&proxy());
    charge(&stage.lane, 1, b"5s");
    let chart = |query: &str| {
        let (status, _, body) = get(stage.address, &format!("/api/clients?{query}"), "");
        (status, serde_json::from_str::<Value>(&body).unwrap_or_default())
    };
    let (status, first) = chart("");
    assert_eq!((status, &first["limit"], &first["step"]), (200, &"ip".into(), &5.into()));
    let (status, other) = chart("door=proxy&limit=agent&seconds=900");
    assert_eq!(
        (status, &other["limit"], &other["work_unit"]),
        (200, &"agent".into(), &"cpu".into())
    );
    for column in ["t", "busy", "capacity", "marks", "clients"] {
        assert!(first[column].is_array(), "{column} {first}");
    }
    for (query, status) in [
        ("limit=none", 404),
        ("door=line", 404),
        // It counts hits.
        ("limit=hits", 404),
        ("seconds=0", 400),
        ("seconds=3601", 400),
        ("seconds=%", 400),
    ] {
        assert_eq!(chart(query).0, status, "{query}");
    }
}

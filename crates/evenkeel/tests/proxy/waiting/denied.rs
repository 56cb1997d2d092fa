//! An operator denies a swarm that burns: its strangers get the operator's page, and others are
//! served.

use super::{answer, ask, busy, next, stage, waits};
use crate::stage::{Stage, Wire};
use evenkeel_config::settings::KnownSetting;
use evenkeel_core::units::Nanos;
use evenkeel_engine::BurningReport;
use evenkeel_engine::view::EngineView;
use evenkeel_engine::view::overrides::{Override, OverrideEffect, StrangerGroup};
use evenkeel_telemetry::prometheus;
use evenkeel_testing::wait::until;

/// The returning clients, each in a network of its own and with one of five browsers.
const RETURNING: u8 = 60;
const SWARM: &str = "user-agent: swarm/1\r\n";

fn browser(number: u8) -> String {
    format!("user-agent: browser/{}\r\naccept-language: de\r\n", number % 5)
}

/// Serves each returning client three times, so that it is counted once. Returns the connection to
/// the backend.
fn serve_returning(stage: &Stage) -> Wire {
    let (mut client, mut backend) = (stage.client(), None);
    for _ in 0..3 {
        for number in 0..RETURNING {
            let headers = browser(number);
            let from = format!("x-forwarded-for: 10.{number}.0.1\r\n{headers}");
            client.send(format!("GET /light HTTP/1.1\r\nhost: a\r\n{from}\r\n"));
            let mut working = stage.backend_for("/light", backend.take());
            working.send("HTTP/1.1 200 OK\r\nx-cost: 1ms\r\ncontent-length: 2\r\n\r\nok");
            assert_eq!(client.message().text(), "ok");
            backend = Some(working);
        }
    }
    backend.expect("served")
}

/// Lets the first of the swarm come, who are strangers like others, and go away. Returns the groups
/// that burn.
fn burn(stage: &Stage) -> Vec<BurningReport> {
    let mut gone = Vec::new();
    for number in 0..60 {
        let mut wire = stage.client();
        ask(&mut wire, &format!("{}.16.0.1", 100 + number), SWARM);
        gone.push(wire);
        waits(stage, gone.len());
    }
    drop(gone);
    waits(stage, 0);
    stage.engine.burning()
}

/// Denies the group for an hour.
fn deny(stage: &Stage, burning: &BurningReport) -> Override {
    let BurningReport { group, pressure, .. } = *burning;
    let now = stage.engine.clock().now();
    let said = Override {
        id: 0,
        limit: None,
        key: burning.name.clone(),
        hash: burning.key(),
        effect: OverrideEffect::Deny(StrangerGroup { group, pressure }),
        since: now,
        until: now.plus(Nanos::from_secs(3_600)),
        by: "127.0.0.1".to_owned(),
    };
    stage.engine.set_override(said).expect("room")
}

#[test]
fn an_operator_denies_the_swarm_and_others_are_served_and_takes_it_back() {
    let stage = stage(|settings| {
        settings.queue.known = KnownSetting::Auto;
        settings.pages.denied = Some("<h1>No</h1>".into());
    });
    drop(serve_returning(&stage));
    let (mut backend, _first) = busy(&stage);
    let burning = burn(&stage);
    let denied = deny(&stage, burning.first().expect("the swarm"));

    let mut one = stage.client();
    ask(&mut one, "172.31.0.1", &format!("{SWARM}accept: text/html\r\n"));
    let page = one.message();
    assert_eq!((page.status(), page.text()), (403, "<h1>No</h1>"));
    assert_eq!((page.header("retry-after"), page.header("set-cookie")), (None, None));
    ask(&mut one, "172.31.0.2", SWARM);
    assert_eq!(one.message().text(), format!("denied by the rule \"override {}\"\n", denied.id));
    until("both are counted", || {
        let labels = "verdict=\"deny\",limit=\"override\",shadow=\"false\"";
        let counted = format!("evenkeel_decisions_total{{{labels}}} 2\n");
        prometheus::text(stage.watch.registry(), &[]).contains(&counted)
    });

    // A returning client with the user agent of the swarm, and a new person.
    let mut served = Vec::new();
    for (client, headers) in [("10.7.0.1", SWARM), ("198.51.100.7", &*browser(1))] {
        let mut wire = stage.client();
        ask(&mut wire, client, headers);
        served.push(wire);
        waits(&stage, served.len());
    }
    assert!(stage.engine.remove_override(denied.id).is_some());
    let mut undone = stage.client();
    ask(&mut undone, "172.31.0.1", SWARM);
    served.push(undone);
    waits(&stage, served.len());
    answer(&mut backend, "");
    for wire in &mut served {
        backend = next(&stage, backend).0;
        answer(&mut backend, "");
        assert_eq!(wire.message().text(), "ok");
    }
}

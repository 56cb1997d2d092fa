//! A swarm whose requests have something in common waits behind all other strangers, and an
//! operator sees what it is.

use super::{answer, ask, busy, next, stage, waits};
use crate::stage::{Stage, Wire};
use evenkeel_config::settings::KnownSetting;

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

#[test]
fn strangers_of_a_swarm_with_something_in_common_wait_behind_other_strangers() {
    let stage = stage(|settings| settings.queue.known = KnownSetting::Auto);
    drop(serve_returning(&stage));
    let (mut backend, _first) = busy(&stage);
    // The first of the swarm are strangers like others, and go away.
    let mut gone = Vec::new();
    for number in 0..60 {
        let mut wire = stage.client();
        ask(&mut wire, &format!("{}.16.0.1", 100 + number), SWARM);
        gone.push(wire);
        waits(&stage, gone.len());
    }
    drop(gone);
    waits(&stage, 0);
    let burning = stage.engine.burning();
    let names: Vec<&str> = burning.iter().map(|one| &*one.name).collect();
    assert!(names.contains(&"User-Agent \u{201c}swarm/1\u{201d}"), "{names:?}");
    assert!(burning[0].cost_part > 0.9 && burning[0].clients_part < 0.1, "{burning:?}");

    let mut wires = Vec::new();
    let person = browser(1);
    for (client, headers) in [
        ("172.31.0.1", SWARM),
        ("172.31.0.2", SWARM),
        ("198.51.100.7", &*person),
        // A returning client with the user agent of the swarm.
        ("10.7.0.1", SWARM),
    ] {
        let mut wire = stage.client();
        ask(&mut wire, client, headers);
        wires.push(wire);
        waits(&stage, wires.len());
    }
    let mut order = Vec::new();
    for _ in &wires {
        answer(&mut backend, "");
        let (again, head) = next(&stage, backend);
        backend = again;
        let client = head.split("x-forwarded-for: ").nth(1).and_then(|rest| rest.split(',').next());
        order.push(client.map(str::trim).unwrap_or_default().to_owned());
    }
    assert_eq!(order, ["10.7.0.1", "198.51.100.7", "172.31.0.1", "172.31.0.2"]);
}

//! Instances that count together: a regular of one goes before strangers at the other.

use super::{answer, ask, busy, next, stage, waits};
use crate::stage::Stage;
use evenkeel_config::settings::KnownSetting;
use evenkeel_config::settings::peers::{PeerTarget, PeerTransport, PeersSettings};
use evenkeel_core::units::Time;
use evenkeel_engine::view::EngineView;
use evenkeel_peers::driver::{self, PeerExchange, PeersThread};
use evenkeel_runtime::clock::Clock;
use evenkeel_testing::port::free_port;
use evenkeel_testing::wait::until;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// An instance whose queue distinguishes clients under pressure only.
fn instance() -> Stage {
    stage(|settings| settings.queue.known = KnownSetting::Auto)
}

/// Lets an instance count together with the one on the port `join`.
fn peers(stage: &Stage, port: u16, join: u16) -> PeersThread {
    let listen = SocketAddr::from(([127, 0, 0, 1], port));
    let join = vec![PeerTarget::One(format!("127.0.0.1:{join}"))];
    let settings = PeersSettings {
        via: PeerTransport::Mesh { listen, join, mdns: false },
        cluster: "test".to_owned(),
        secret_file: None,
        tls: None,
        period: Duration::from_millis(200),
        cpus_shared: true,
        nodes_max: 8,
    };
    let engines = vec![Arc::clone(&stage.engine) as Arc<_>];
    let all = PeerExchange::All { is_restored: false };
    driver::start(&settings, all, engines, None, Clock::start(), &stage.watch)
        .expect("the peers start")
}

/// Serves a client twice.
fn serve(stage: &Stage, client: &str) {
    let (mut wire, mut backend) = (stage.client(), None);
    for _ in 0..2 {
        ask(&mut wire, client, "");
        let mut working = stage.backend_for("/page", backend.take());
        working.send("HTTP/1.1 200 OK\r\nx-cost: 1ms\r\ncontent-length: 2\r\n\r\nok");
        assert_eq!(wire.message().text(), "ok");
        backend = Some(working);
    }
}

/// Waits until an instance knows of so many clients that others are told of.
fn comes_to_know(stage: &Stage, clients: usize, now: Time) {
    let history = stage.engine.client_history().expect("clients are distinguished");
    until("it has heard of the clients", || {
        let mut count = 0;
        history.for_each_shared(now, |_, _| count += 1);
        count == clients
    });
}

#[test]
fn a_regular_of_one_instance_goes_before_strangers_at_another() {
    let [a, b] = [instance(), instance()];
    let now = Clock::start().now();
    let [at_a, at_b] = [free_port(), free_port()];
    serve(&a, "192.0.2.8");
    let _a_counts = peers(&a, at_a, at_b);
    let _b_counts = peers(&b, at_b, at_a);
    comes_to_know(&b, 1, now);
    // What is served while both count together is told within some seconds.
    serve(&a, "192.0.2.9");
    comes_to_know(&b, 2, now);
    let heard = || {
        let status = b.watch.peers.read();
        status.and_then(|status| status.peers.first().map(|peer| peer.clients_in)).unwrap_or(0)
    };
    until("the status shows it", || heard() >= 2);

    let (mut backend, _first) = busy(&b);
    let mut wires = Vec::new();
    for client in ["192.0.2.4", "192.0.2.5", "192.0.2.8", "192.0.2.9"] {
        let mut wire = b.client();
        ask(&mut wire, client, "");
        wires.push(wire);
        waits(&b, wires.len());
    }
    let mut order = Vec::new();
    for _ in &wires {
        answer(&mut backend, "");
        let (again, head) = next(&b, backend);
        backend = again;
        let client = head.split("192.0.2.").nth(1).and_then(|rest| rest.chars().next());
        order.push(client.expect("the address of the client"));
    }
    order[..2].sort_unstable();
    assert_eq!(order, ['8', '9', '4', '5']);
}

//! Tests with a real nats-server of their own: frames, strangers, credentials, and the death of the
//! server.

use super::{NatsPlan, start};
use crate::seal::GroupSeal;
use crate::traffic::Traffic;
use crate::{LinkId, RunningTransport, TransportEvent, TransportOrder};
use bytes::Bytes;
use evenkeel_config::settings::peers::{NatsServer, PeersTls};
use evenkeel_runtime::clock::Clock;
use evenkeel_testing::authority::{Authority, Wish};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::{DEADLINE, until_async};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SECRET: &str = "0123456789abcdef";

/// Starts a server; it ends when the returned value is dropped.
fn start_server(port: u16, arguments: &[&str]) -> Program {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("nats-server");
    // Debian installs servers in directories of root's path.
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command.args(["-a", "127.0.0.1", "-p", &port.to_string()]).args(arguments);
    Program::listening(command, port)
}

struct Node {
    transport: RunningTransport,
    traffic: Traffic,
    link: LinkId,
}

impl Node {
    async fn start(port: u16, name: u8, secret: &str, credentials: Option<&str>) -> Node {
        let servers = vec![NatsServer { tls: false, authority: format!("127.0.0.1:{port}") }];
        let credentials = credentials.map(str::to_owned);
        Node::of(NatsPlan { servers, credentials, ..NatsPlan::default() }, name, secret).await
    }

    async fn of(plan: NatsPlan, name: u8, secret: &str) -> Node {
        evenkeel_tls::install();
        let (clock, traffic) = (Clock::start(), Traffic::default());
        let now = clock.now().0 / 1_000_000;
        let seal = GroupSeal::new(secret.as_bytes(), "test", [name; 16], 8, now).expect("a key");
        let plan = NatsPlan { cluster: "test".to_owned(), ..plan };
        let transport = start(plan, seal, clock, traffic.clone()).await.expect("it starts");
        Node { transport, traffic, link: LinkId(0) }
    }

    async fn next(&mut self) -> TransportEvent {
        let event = tokio::time::timeout(DEADLINE, self.transport.events.recv()).await;
        event.expect("an event in time").expect("it runs")
    }

    async fn up(&mut self) {
        loop {
            match self.next().await {
                TransportEvent::Up { link, .. } => return self.link = link,
                TransportEvent::Down { .. } | TransportEvent::Frame { .. } => {}
                TransportEvent::Refused { why, .. } => panic!("{why}"),
            }
        }
    }

    async fn down(&mut self) {
        while !matches!(self.next().await, TransportEvent::Down { .. }) {}
    }

    fn send(&self, frame: &'static [u8]) {
        let order = TransportOrder::Send { link: self.link, bytes: Bytes::from_static(frame) };
        self.transport.orders.try_send(order).expect("room");
    }

    /// Sends `frame` until `other` has received it, because messages may be lost.
    async fn reach(&self, other: &mut Node, frame: &'static [u8]) {
        let reached = async {
            loop {
                self.send(frame);
                let pause = Duration::from_millis(100);
                while let Ok(event) =
                    tokio::time::timeout(pause, other.transport.events.recv()).await
                {
                    match event.expect("it runs") {
                        TransportEvent::Frame { bytes, link }
                            if bytes == frame && link == other.link =>
                        {
                            return;
                        }
                        TransportEvent::Up { link, .. } => other.link = link,
                        _ => {}
                    }
                }
            }
        };
        tokio::time::timeout(DEADLINE, reached).await.expect("a frame in time");
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

#[test]
fn frames_pass_and_a_stranger_is_not_believed() {
    run(async {
        let port = free_port();
        let _server = start_server(port, &[]);
        let mut a = Node::start(port, 1, SECRET, None).await;
        let mut b = Node::start(port, 2, SECRET, None).await;
        a.up().await;
        b.up().await;
        a.reach(&mut b, b"hello").await;
        b.reach(&mut a, b"back").await;
        let mut stranger = Node::start(port, 3, "0123456789abcdeF", None).await;
        stranger.up().await;
        let refused = async {
            loop {
                stranger.send(b"lies");
                let event = tokio::time::timeout(Duration::from_millis(100), a.next()).await;
                match event {
                    Ok(TransportEvent::Refused { why, .. }) => {
                        return assert!(why.starts_with("forged"));
                    }
                    Ok(TransportEvent::Frame { bytes, .. }) => assert_ne!(bytes, b"lies"[..]),
                    _ => {}
                }
            }
        };
        tokio::time::timeout(DEADLINE, refused).await.expect("refused in time");
        a.reach(&mut b, b"still here").await;
    });
}

#[test]
fn a_server_that_dies_and_comes_back_is_used_again() {
    run(async {
        let port = free_port();
        // The server does not run at the start.
        let mut a = Node::start(port, 1, SECRET, None).await;
        let mut b = Node::start(port, 2, SECRET, None).await;
        a.send(b"to nobody");
        let server = start_server(port, &[]);
        a.up().await;
        b.up().await;
        assert_eq!(a.traffic.dropped.get(), 1);
        a.reach(&mut b, b"one").await;
        drop(server);
        a.down().await;
        b.down().await;
        let before = a.traffic.dropped.get();
        a.send(b"to nobody");
        until_async("a count of dropped frames", || a.traffic.dropped.get() > before).await;
        let _server = start_server(port, &[]);
        a.up().await;
        b.up().await;
        a.reach(&mut b, b"two").await;
        b.reach(&mut a, b"three").await;
    });
}

#[test]
fn a_server_that_wants_to_know_who_we_are_is_told() {
    run(async {
        let port = free_port();
        let _server = start_server(port, &["--user", "gate", "--pass", "pass:word"]);
        let mut wrong = Node::start(port, 1, SECRET, Some("gate:wrong")).await;
        let mut right = Node::start(port, 2, SECRET, Some("gate:pass:word")).await;
        right.up().await;
        assert!(wrong.transport.events.try_recv().is_err());
        let other = free_port();
        let _server = start_server(other, &["--auth", "a-token"]);
        let mut a = Node::start(other, 1, SECRET, Some("a-token")).await;
        let mut b = Node::start(other, 2, SECRET, Some("a-token")).await;
        a.up().await;
        b.up().await;
        a.reach(&mut b, b"hello").await;
    });
}

#[test]
fn a_server_under_tls_shows_a_certificate_and_wants_one() {
    run(async {
        let (ours, theirs) = (Authority::new(), Authority::new());
        let names = || Wish { names: vec!["127.0.0.1"], ..Wish::default() };
        let [cert, key] = ours.sign("server", &names());
        let text = |path: &Path| path.to_str().expect("text").to_owned();
        let port = free_port();
        let [cert, key, ca] = [cert, key, ours.ca()].map(|path| text(&path));
        let wanted = ["--tlsverify", "--tlscert", &cert, "--tlskey", &key, "--tlscacert", &ca];
        let _server = start_server(port, &wanted);
        let plan = |authority: &Authority| {
            let [cert, key] = authority.sign("client", &Wish::default());
            NatsPlan {
                servers: vec![NatsServer { tls: true, authority: format!("127.0.0.1:{port}") }],
                tls: Some(PeersTls { cert, key, ca: authority.ca() }),
                ..NatsPlan::default()
            }
        };
        let mut stranger = Node::of(plan(&theirs), 3, SECRET).await;
        let mut a = Node::of(plan(&ours), 1, SECRET).await;
        let mut b = Node::of(plan(&ours), 2, SECRET).await;
        a.up().await;
        b.up().await;
        a.reach(&mut b, b"hello").await;
        assert!(stranger.transport.events.try_recv().is_err());
    });
}

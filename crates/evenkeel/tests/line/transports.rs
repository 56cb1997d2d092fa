//! Three programs that count together over each available transport: the hits that one admits are
//! missing at the others, whatever the transport.

use crate::stage::{Client, LineServer};
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::until;
use std::fs;
use std::net::UdpSocket;
use std::process::Command;

/// A program with this `peers` section, and with the secret beside its configuration.
fn start(peers: &str) -> LineServer {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("key"), "0123456789abcdef").expect("saved");
    let secret = folder.path().join("key");
    let text = format!(
        "admin: {{listen: '127.0.0.1:0'}}\n\
         line: {{listen: '127.0.0.1:0', resp: '127.0.0.1:0', rate: 1 per 365d, burst: 10}}\n\
         peers: {{period: 200ms, secret_file: '{}', {peers}}}\n",
        secret.display()
    );
    fs::write(folder.path().join("evenkeel.yaml"), text).expect("saved");
    LineServer::start_in(folder)
}

fn json(program: &LineServer, path: &str) -> serde_json::Value {
    let answer = program.get(path);
    let (_, body) = answer.split_once("\r\n\r\n").expect("an answer");
    serde_json::from_str(body).unwrap_or(serde_json::Value::Null)
}

fn left(program: &LineServer, tag: &str) -> Option<f64> {
    let top = json(program, "/api/top?limit=line");
    let rows = top["limits"][0]["rows"].as_array()?;
    rows.iter().find(|row| row["key"] == tag)?["level"].as_f64()
}

/// Checks that all three know each other, and that hits admitted by two of them are missing at the
/// third.
fn count_together(programs: &[LineServer; 3]) {
    for program in programs {
        until("all three meet", || json(program, "/api/peers")["live"] == 3);
    }
    for (program, hits) in programs.iter().zip([4, 3, 0]) {
        let asked = Client::tcp(program.lines).ask(&"C\n".repeat(hits));
        assert_eq!(asked, "OK\n".repeat(hits));
    }
    let has = |program| left(program, "C").is_some_and(|left| (left - 3.0).abs() < 0.5);
    until("three are left everywhere", || programs.iter().all(has));
    let asked = Client::tcp(programs[2].lines).ask(&"C\n".repeat(4));
    assert_eq!(asked, "OK\nOK\nOK\nNO\n");
}

#[test]
fn over_a_mesh_of_those_who_know_the_secret() {
    let mut first = start("listen: '127.0.0.1:0'");
    let line = first.told("mesh open");
    let to_first = line.trim().rsplit('=').next().expect("an address").to_owned();
    let mut second = start(&format!("listen: '127.0.0.1:0', join: '{to_first}'"));
    let line = second.told("mesh open");
    let to_second = line.trim().rsplit('=').next().expect("an address").to_owned();
    let third = start(&format!("listen: '127.0.0.1:0', join: ['{to_first}', '{to_second}']"));
    count_together(&[first, second, third]);
}

#[test]
fn over_multicast() {
    let port = UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("a port").port();
    let group = format!("via: multicast, interface: 127.0.0.1, group: '239.255.70.46:{port}'");
    count_together(&[start(&group), start(&group), start(&group)]);
}

fn nats_server(port: u16) -> Program {
    // Debian installs servers into directories that only root has in its PATH.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let mut command = Command::new("nats-server");
    command.env("PATH", path).args(["-a", "127.0.0.1", "-p", &port.to_string()]);
    Program::listening(command, port)
}

#[test]
fn over_nats_and_alone_while_it_is_away() {
    let port = free_port();
    let nats = format!("via: nats, nats: 'nats://127.0.0.1:{port}'");
    let server = nats_server(port);
    let programs = [start(&nats), start(&nats), start(&nats)];
    count_together(&programs);
    drop(server);
    for program in &programs {
        until("it is alone", || json(program, "/api/peers")["live"] == 1);
        assert_eq!(Client::tcp(program.lines).ask("D\n"), "OK\n");
    }
    let _server = nats_server(port);
    for program in &programs {
        until("all three meet again", || json(program, "/api/peers")["live"] == 3);
    }
    assert_eq!(Client::tcp(programs[0].lines).ask("E\n"), "OK\n");
    let has = |program| left(program, "E").is_some_and(|left| (left - 9.0).abs() < 0.5);
    until("nine are left everywhere", || programs.iter().all(has));
}

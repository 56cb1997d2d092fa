//! The proxy on real sockets and a replay of the log that it would have left: every decision is the
//! same.
//!
//! Times pass on the real clock, so the comparison must not depend on milliseconds: budgets refill
//! so slowly that nothing is refilled during the test, and the backend states the cost of each
//! request. For each request, the test compares whether it was refused, by which limit and with
//! which status, and the `Retry-After` to a minute.

use evenkeel_config::settings::ProxySettings;
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::LimitUnit;
use evenkeel_core::sim::random::SimRandom;
use evenkeel_core::units::Nanos;
use evenkeel_engine::Engine;
use evenkeel_engine::view::EngineView;
use evenkeel_identity::address::ProxyTrust;
use evenkeel_lab::replay::{AccessLogFormat, BaselineSimulation, ReplayOutcome, ReplaySimulation};
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

const REQUESTS: usize = 400;

fn settings(backend: SocketAddr) -> ProxySettings {
    let text = format!(
        "proxy: {{listen: '127.0.0.1:0', backend: 'http://{backend}', cpus: 1, \
         cost: 'header:X-Cost', action: reject, trusted_proxies: [127.0.0.1], limits: [\
         {{name: ip, by: ip/32, share: 0.01%, burst: 8s}}, \
         {{name: net24, by: ip/24, share: 0.01%, burst: 25s}}, \
         {{name: logins, by: ip/32, when: {{method: POST, path: /login}}, rate: 2/d, burst: 2}}, \
         {{name: agents, by: [user-agent, path:1], rate: 15/d, burst: 15}}]}}"
    );
    let config = evenkeel_config::parse("test", text.as_bytes(), 1.0).expect("it is good");
    config.settings.proxy.expect("a proxy")
}

/// Answers every request on all connections; the query of a request states its cost.
fn serve(backend: TcpListener) {
    std::thread::spawn(move || {
        for stream in backend.incoming() {
            let Ok(stream) = stream else { return };
            std::thread::spawn(move || answer(stream));
        }
    });
}

fn answer(stream: TcpStream) {
    let mut out = stream.try_clone().expect("a socket");
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(first)) = lines.next() {
        let cost = first.split("cost=").nth(1).and_then(|rest| rest.split(' ').next());
        let answer = format!(
            "HTTP/1.1 200 OK\r\nX-Cost: {}\r\nContent-Length: 2\r\n\r\nok",
            cost.unwrap_or("1ms")
        );
        while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        if out.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Sends one request and returns the status, the Retry-After and the body.
fn ask(wire: &mut BufReader<TcpStream>, request: &str) -> (u16, Option<u64>, String) {
    wire.get_mut().write_all(request.as_bytes()).expect("it is sent");
    let (mut status, mut retry, mut length) = (0, None, 0);
    loop {
        let mut line = String::new();
        assert!(wire.read_line(&mut line).expect("an answer") > 0, "the connection was closed");
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(rest) = line.strip_prefix("http/1.1 ") {
            status = rest[..3].parse().expect("a status");
        } else if let Some(value) = line.strip_prefix("retry-after: ") {
            retry = value.parse().ok();
        } else if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().expect("a length");
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    wire.read_exact(&mut body).expect("a body");
    (status, retry, String::from_utf8_lossy(&body).into_owned())
}

#[test]
fn the_proxy_and_the_replay_of_its_log_decide_alike() {
    let backend = TcpListener::bind("127.0.0.1:0").expect("a port");
    let settings = settings(backend.local_addr().expect("an address"));
    serve(backend);
    let clock = Clock::start();
    let watch = Arc::new(Watch::new(clock.now()));
    let engine = Engine::new(
        &settings,
        evenkeel_proxy::threads(),
        KeySeed([7; 16]),
        clock,
        Arc::clone(&watch),
    );
    let door = evenkeel_proxy::start(&settings, &engine, &watch).expect("the door opens");
    let stream = TcpStream::connect(door.addresses()[0]).expect("the door takes us in");
    let mut wire = BufReader::new(stream);
    let mut chance = SimRandom::new(11, 0);
    let (mut log, mut answers) = (String::new(), Vec::new());
    for _ in 0..REQUESTS {
        let bits = chance.bits();
        let address = Ipv4Addr::new(198, 51, (bits % 3) as u8, (bits >> 8) as u8 % 3);
        let agent = ["one/1", "two/2", "three/3"][(bits >> 16) as usize % 3];
        let cost = ["1ms", "100ms", "1s", "2s"][(bits >> 24) as usize % 4];
        let (method, path) = match (bits >> 32) % 4 {
            0 => ("POST", "/login"),
            1 => ("GET", "/shop/a"),
            2 => ("GET", "/shop/b"),
            _ => ("GET", "/"),
        };
        let target = format!("{path}?cost={cost}");
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: example.com\r\nUser-Agent: {agent}\r\n\
             X-Forwarded-For: {address}\r\nAccept: text/plain\r\nContent-Length: 0\r\n\r\n"
        );
        answers.push(ask(&mut wire, &request));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let _ = writeln!(
            log,
            "127.0.0.1 - - [14/Nov/2023:22:13:20 +0000] \"{method} {target} HTTP/1.1\" 200 2 \
             \"-\" \"{agent}\" msec={}.{:03} rt=0.001 cost={cost} xff={address}",
            now.as_secs(),
            now.subsec_millis()
        );
    }
    let outcomes = replayed(&settings, &log);
    let limits = engine.held().limits().to_vec();
    assert_eq!(outcomes.len(), REQUESTS);
    let mut refusals = vec![0; limits.len()];
    for (number, (outcome, (status, retry, body))) in outcomes.iter().zip(&answers).enumerate() {
        assert_eq!(outcome.refused, *status != 200, "request {number}: {status} {outcome:?}");
        let Some(note) = outcome.decisive() else { continue };
        let limit = &limits[usize::from(note.reason.key.limit)];
        refusals[usize::from(note.reason.key.limit)] += 1;
        let by_rate = limit.unit == LimitUnit::Hits;
        assert_eq!(*status, if by_rate { 429 } else { 503 }, "request {number}");
        assert!(body.contains(&*limit.name), "request {number}: {body}");
        let (ours, theirs) = (note.reason.wait.as_secs_f64(), retry.expect("a header") as f64);
        assert!((ours - theirs).abs() < 60.0 || by_rate, "request {number}: {ours} {theirs}");
    }
    assert!(refusals.iter().all(|count| *count > 0), "each limit decides: {refusals:?}");
}

fn replayed(settings: &ProxySettings, log: &str) -> Vec<ReplayOutcome> {
    let lines: Vec<String> = log.lines().map(str::to_owned).collect();
    let mut format = AccessLogFormat::of(&lines[..20]).expect("a format");
    let trust = ProxyTrust::new(&settings.trusted_networks(), &settings.client_address);
    let (mut past, mut play) = (
        BaselineSimulation::new(settings.cpus, Nanos::from_millis(50)),
        ReplaySimulation::new(settings),
    );
    let mut outcomes: Vec<ReplayOutcome> = Vec::new();
    let mut last = evenkeel_core::units::Time::ZERO;
    for line in &lines {
        let mut entry = format.read(line).expect("a request").entry(&trust).expect("an address");
        // Keeps the order in which requests were sent, because the log's clock is only as fine as a
        // millisecond.
        entry.start = entry.start.max(last.plus(Nanos(100)));
        entry.took = Some(Nanos(50));
        last = entry.start;
        past.push(entry);
        while let Some(was) = past.pop() {
            play.push(was);
        }
    }
    past.finish();
    while let Some(was) = past.pop() {
        play.push(was);
    }
    play.finish();
    outcomes.extend(play.outcomes());
    outcomes.sort_by_key(|outcome| outcome.number);
    outcomes
}

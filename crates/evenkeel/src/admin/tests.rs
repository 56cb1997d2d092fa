use super::*;
use crate::cli::clients::{ClientsFormat, clients};
use crate::cli::remote::AdminClient;
use evenkeel_config::settings::{
    BackendAddress, BackendTls, ClientAddress, CostSource, ProxySettings, RefusalPages,
    RobotSettings, TokenSettings,
};
use evenkeel_core::bucket::{Algorithm, debt::DebtBucket};
use evenkeel_core::classify::RequestAttributes;
use evenkeel_core::condition::Condition;
use evenkeel_core::fact::FactSet;
use evenkeel_core::key::KeySeed;
use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
use evenkeel_core::units::{Cost, Nanos, Rate, SECOND, Weight};
use evenkeel_engine::Engine;
use evenkeel_engine::view::EngineView;
use evenkeel_engine::{AskOutcome, EngineLane};
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::handover::ListenSockets;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::metrics::{Metric, TABLE};
use std::io::{Read, Write};
use std::net::IpAddr;

/// A request from one address.
struct From(IpAddr);

impl RequestAttributes for From {
    fn address(&self) -> IpAddr {
        self.0
    }
    fn method(&self) -> &str {
        "GET"
    }
    fn path(&self) -> &str {
        "/"
    }
    fn vhost(&self) -> &str {
        ""
    }
    fn header(&self, name: &str) -> Option<&[u8]> {
        (name == "user-agent").then_some(b"<script>\x1b[31m&\"'")
    }
}

fn limit(name: &str, by: KeyPart, unit: LimitUnit) -> Limit {
    let rate = Rate::per(Cost(SECOND / 10), Nanos::from_secs(1)).expect("a rate");
    Limit {
        name: name.into(),
        by: vec![by],
        when: Condition::default(),
        unit,
        algorithm: Algorithm::Debt(DebtBucket::new(rate, Cost(2 * SECOND))),
        action: None,
        weight: Weight::ONE,
        keys_max: 100,
        shadow: false,
    }
}

fn proxy() -> ProxySettings {
    ProxySettings {
        listen: Vec::new(),
        tls: None,
        redirect: None,
        http2: true,
        backends: vec![BackendAddress::http("127.0.0.1:80")],
        backend_tls: BackendTls::default(),
        upgrades: vec!["websocket".to_owned()],
        cpus: 4.0,
        tokens: TokenSettings::default(),
        cost: CostSource::Header("x-cost".to_owned()),
        action: LimitAction::Hold,
        queue: settings::ProxyQueueSettings::for_cpus(1.0),
        max_delay: Nanos::from_secs(30),
        trusted_proxies: Vec::new(),
        client_address: ClientAddress::XForwardedFor,
        timeouts: settings::ProxyTimeouts::default(),
        bounds: settings::ProxyBounds::default(),
        exempt: Vec::new(),
        exempt_when: Vec::new(),
        facts: FactSet::default(),
        ip_files: Vec::new(),
        databases: settings::DatabaseSettings::default(),
        denials: Vec::new(),
        pages: RefusalPages::default(),
        hosts: evenkeel_config::settings::hosts::HostSettings::default(),
        robots: RobotSettings::default(),
        shadow: false,
        headers: false,
        keep_cost_header: false,
        charge_streams: false,
        names_max: 1_000,
        limits: vec![
            limit("ip", KeyPart::Ip { v4: 32, v6: 64 }, LimitUnit::Cpu),
            limit("agent", KeyPart::UserAgent, LimitUnit::Cpu),
            limit("hits", KeyPart::Ip { v4: 16, v6: 32 }, LimitUnit::Hits),
        ],
    }
}

/// A request with this cost.
fn charge(lane: &EngineLane, last: u8, cost: &[u8]) {
    if let AskOutcome::Pass(mut charge) = lane.ask(&From(IpAddr::from([192, 0, 2, last]))) {
        charge.work();
        charge.head(Some(cost));
    }
}

fn on(listen: &str) -> settings::AdminSettings {
    let listen = vec![listen.parse().expect("an address")];
    settings::AdminSettings { listen, asked_for: true, token_file: None }
}

fn sources() -> AdminSources {
    let clock = Clock::start();
    let watch = Arc::new(Watch::new(clock.now()));
    let engine = Engine::new(&proxy(), 1, KeySeed([7; 16]), clock, Arc::clone(&watch));
    let lane = engine.lane(0);
    charge(&lane, 1, b"5s");
    charge(&lane, 2, b"-5");
    charge(&lane, 9, b"its hits are used up");
    let show = Box::new(|| "proxy:\n  cpus: 4\n".to_owned());
    let engines = vec![DoorEngine { door: "proxy", engine }];
    AdminSources { watch, clock, engines, show, setup: SetupFacts::default() }
}

/// Opens an admin door on a free port, with some clients that were charged.
fn open() -> (RunningAdmin, SocketAddr) {
    let running =
        start(&on("127.0.0.1:0"), sources(), &ListenSockets::default()).expect("it opens");
    let address = running.addresses[0];
    (running, address)
}

/// Sends `head` and reads to the end. Returns the status, the head and the body.
fn raw(address: SocketAddr, head: &str) -> (u16, String, String) {
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), head.to_ascii_lowercase(), body.to_owned())
}

fn get(address: SocketAddr, path: &str, headers: &str) -> (u16, String, String) {
    let close = "Connection: close\r\n\r\n";
    raw(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}{close}"))
}

#[test]
fn a_limit_in_shadow_takes_no_part_of_a_wait() {
    let deep = |name: &str, seconds: u64, shadow: bool| {
        let rate = Rate::per(Cost(SECOND / 10), Nanos::from_secs(1)).expect("a rate");
        let algorithm = Algorithm::Debt(DebtBucket::new(rate, Cost(seconds * SECOND)));
        let ip = limit(name, KeyPart::Ip { v4: 32, v6: 64 }, LimitUnit::Cpu);
        Limit { algorithm, shadow, ..ip }
    };
    let limits = vec![deep("real", 2, false), deep("tried", 1, true)];
    let clock = Clock::start();
    let watch = Arc::new(Watch::new(clock.now()));
    let settings = ProxySettings { limits, ..proxy() };
    let engine = Engine::new(&settings, 1, KeySeed([7; 16]), clock, watch);
    charge(&engine.lane(0), 1, b"3s");
    charge(&engine.lane(0), 1, b"0s");
    let waits = [0, 1].map(|index| engine.top(index)[0].row.wait);
    assert!(waits[0] > Nanos::from_secs(1) && waits[1] == Nanos::ZERO, "{waits:?}");
}

#[test]
fn health_and_readiness_follow_the_life_of_the_program() {
    let (running, address) = open();
    let both = || (get(address, "/healthz", "").0, get(address, "/readyz", "").0);
    assert_eq!(both(), (200, 503));
    running.ready();
    assert_eq!(both(), (200, 200));
    running.draining();
    assert_eq!(both(), (200, 503));
    drop(running);
    assert!(std::net::TcpStream::connect(address).is_err(), "it is closed");
}

#[test]
fn top_lists_the_charged_clients_with_what_they_owe() {
    let (_running, address) = open();
    let (status, head, body) = get(address, "/api/top?limit=ip&n=1", "");
    assert!(status == 200 && head.contains("content-type: application/json"), "{head}");
    let json: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(json["known"], serde_json::json!(["ip", "agent", "hits"]));
    let limits = json["limits"].as_array().expect("a list");
    assert_eq!(limits.len(), 1);
    assert_eq!((&limits[0]["name"], &limits[0]["unit"]), (&"ip".into(), &"cpu".into()));
    assert_eq!(limits[0]["action"], "hold");
    let rows = limits[0]["rows"].as_array().expect("rows");
    assert_eq!((rows.len(), &rows[0]["key"]), (1, &"192.0.2.1".into()));
    let figure = |name: &str| rows[0][name].as_f64().expect("a number");
    assert!((-3.0..-2.5).contains(&figure("level")), "{rows:?}");
    assert!((25.0..=30.0).contains(&figure("wait")), "{rows:?}");
    assert_eq!(figure("cpu_total"), 5.0);
    assert!((0.0..5.0).contains(&figure("last_seen")));

    let (_, _, body) = get(address, "/api/top?limit=none", "");
    assert!(body.contains("\"limits\":[]"), "{body}");
    assert_eq!(get(address, "/api/top?n=0", "").0, 400);
    assert_eq!(get(address, "/api/top?limit=%zz", "").0, 400);
}

#[test]
fn the_page_and_the_configuration_are_shown_and_nothing_else_is_there() {
    let (_running, address) = open();
    let (status, head, page) = get(address, "/", "");
    assert!(status == 200 && head.contains("content-security-policy: default-src 'none'"));
    for header in ["cache-control: no-store", "x-content-type-options: nosniff"] {
        assert!(head.contains(header), "{head}");
    }
    assert!(!page.contains("<style") && !page.contains("style=\""), "nothing inline: {page}");
    let named = page.split(['"']).filter(|word| word.starts_with('/') && word.contains('.'));
    let files: Vec<_> = named.collect();
    assert!(files.len() > 3, "{files:?}");
    for file in files {
        assert_eq!(get(address, file, "").0, 200, "{file}");
    }
    let (status, _, yaml) = get(address, "/api/config", "");
    assert_eq!((status, yaml.as_str()), (200, "proxy:\n  cpus: 4\n"));
    for path in ["/nothing", "/healthz/", "//", "/api"] {
        assert_eq!(get(address, path, "").0, 404, "{path}");
    }
    assert_eq!(get(address, "/healthz?x=1", "").0, 200);
}

#[test]
fn strangers_pages_are_refused_on_loopback_too() {
    let (_running, address) = open();
    let with_host = |host: &str| {
        let head = format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        raw(address, &head).0
    };
    assert_eq!(with_host("evil.example"), 403);
    assert_eq!(with_host("127.0.0.1.evil.example:9970"), 403);
    assert_eq!(with_host("localhost"), 200);
    assert_eq!(raw(address, "GET /healthz HTTP/1.0\r\n\r\n").0, 200, "a probe without a host");
    for hosts in ["", "Host: localhost\r\nHost: localhost\r\n"] {
        let head = format!("GET /readyz HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
        let (status, _, text) = raw(address, &head);
        assert!(status == 400 && text.contains("one Host"), "{hosts:?}: {status} {text}");
    }
    let absolute = "GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\
                    Connection: close\r\n\r\n";
    assert_eq!(raw(address, absolute).0, 403);
    for origin in ["null", "http://evil.example", "http://localhost", "x"] {
        let origin = format!("Origin: {origin}\r\n");
        assert_eq!(get(address, "/api/top", &origin).0, 403, "{origin}");
    }
    assert_eq!(get(address, "/api/top", &format!("Origin: http://{address}\r\n")).0, 200);
    let (_, _, metrics) = get(address, "/metrics", "");
    assert!(metrics.contains("evenkeel_admin_refused_total{why=\"origin\"} 4"), "{metrics}");
}

#[test]
fn only_reading_and_no_bodies() {
    let (_running, address) = open();
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"] {
        let head = format!("{method} / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        let (status, head, _) = raw(address, &head);
        assert!(status == 405 && head.contains("allow: get, head"), "{method}: {head}");
    }
    let (status, _, _) = get(address, "/", "Content-Length: 3\r\n");
    assert_eq!(status, 413);
    let head = format!("HEAD /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let (status, _, body) = raw(address, &head);
    assert_eq!((status, body.as_str()), (200, ""));
    let (status, _, _) = get(address, "/", &format!("X: {}\r\n", "x".repeat(HEAD_BYTES_MAX)));
    assert_eq!(status, 431);
}

#[test]
fn beyond_loopback_the_token_is_needed_except_for_health_and_metrics() {
    let open = start(&on("0.0.0.0:0"), sources(), &ListenSockets::default());
    let error = open.err().expect("a token is needed").to_string();
    assert!(error.starts_with("admin: `token_file` is required"), "{error}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = Some(file.path().to_owned());
    let settings = settings::AdminSettings { token_file: path, ..on("0.0.0.0:0") };
    assert!(matches!(AdminGuard::new(&settings), Err(guard::GuardError::Token(_))), "an empty one");
    std::fs::write(file.path(), "0123456789abcdef\n").expect("written");
    let guard = AdminGuard::new(&settings).expect("a token");
    let (far, near) = (IpAddr::from([192, 0, 2, 77]), IpAddr::from([127, 0, 0, 1]));
    let ask = |path: &str, token: &str, peer| {
        let request = hyper::Request::get(path).header("host", "localhost");
        let request = request.header("authorization", token).body(());
        guard.check(&request.expect("a request").into_parts().0, false, peer)
    };
    for path in ["/page", "/api/top", "/api/config", "/api/events", "/healthz/x"] {
        assert_eq!(ask(path, "", far), Err(guard::AccessError::Token), "{path}");
        assert_eq!(ask(path, "Bearer 0123456789abcdeX", far), Err(guard::AccessError::Token));
        assert_eq!(ask(path, "Basic 0123456789abcdef", far), Err(guard::AccessError::Token));
        assert_eq!(ask(path, "bearer 0123456789abcdef", far), Ok(()));
        assert_eq!(ask(path, "", near), Ok(()));
    }
    for path in ["/healthz", "/readyz", "/metrics", "/", "/page.js"] {
        assert_eq!(ask(path, "", far), Ok(()), "{path}");
    }
    let order = |token: &str| {
        let request = hyper::Request::post(guard::ORDERS).header("host", "localhost");
        let request = request.header("authorization", token).body(());
        guard.check(&request.expect("a request").into_parts().0, true, near)
    };
    assert_eq!(order(""), Err(guard::AccessError::Token), "from loopback too");
    assert_eq!(order("Bearer 0123456789abcdef"), Ok(()));
}

#[test]
fn a_taken_port_is_a_warning_for_the_default_address_only() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let default = settings::AdminSettings { asked_for: false, ..on(&address) };
    let running = start(&default, sources(), &ListenSockets::default()).expect("a warning only");
    assert!(running.addresses.is_empty());
    let refused = start(&on(&address), sources(), &ListenSockets::default());
    assert!(matches!(refused, Err(ServerStartError::Listen { .. })));
}

#[test]
fn silent_connections_keep_no_probe_away_and_nobody_out_who_watches() {
    let (running, address) = open();
    running.ready();
    let connect = || std::net::TcpStream::connect(address).expect("it listens");
    let mut watcher = connect();
    let head = format!("GET /api/events HTTP/1.1\r\nHost: {address}\r\n\r\n");
    watcher.write_all(head.as_bytes()).expect("it reads");
    watcher.read_exact(&mut [0; 15]).expect("an answer");
    let silent: Vec<_> = (0..2 * CONNECTIONS_MAX).map(|_| connect()).collect();
    assert_eq!(get(address, "/readyz", "").0, 200);
    let (_, _, metrics) = get(address, "/metrics", "");
    let value = |series: &str| {
        let mut found = samples(&metrics).into_iter().filter(|(name, _)| name == series);
        found.next().expect("a series").1
    };
    assert!(value("evenkeel_connections_open{door=\"admin\"}") <= CONNECTIONS_MAX as f64);
    let shed = value("evenkeel_connections_shed_total{door=\"admin\"}");
    assert!(shed > CONNECTIONS_MAX as f64, "{shed}");
    drop(silent);
    let (mut event, mut byte) = (Vec::new(), [0]);
    while !event.ends_with(b"event: now") {
        watcher.read_exact(&mut byte).expect("it is told what goes on");
        event.push(byte[0]);
    }
}

/// Checks the text format (each family has a line that describes it) and returns the names and
/// values of all samples.
fn samples(text: &str) -> Vec<(String, f64)> {
    let (mut samples, mut family) = (Vec::new(), (String::new(), String::new()));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a kind");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            family = (name.to_owned(), kind.to_owned());
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let name = series.split('{').next().expect("a name");
            let suffix = name.strip_prefix(&family.0).expect("within its family");
            let suffixes = if family.1 == "histogram" { "_bucket _sum _count" } else { "" };
            assert!(suffixes.split(' ').any(|allowed| allowed == suffix), "{line}");
            assert!(series == name || series.ends_with("\"}"), "{line}");
            samples.push((series.to_owned(), value.parse().expect("a number")));
        }
    }
    samples
}

#[test]
fn metrics_are_in_the_text_format_and_agree_with_what_happened() {
    let begun = std::time::Instant::now();
    let (running, address) = open();
    let took = begun.elapsed().as_secs_f64();
    running.ready();
    let (status, head, text) = get(address, "/metrics", "");
    assert!(status == 200 && head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    let samples = samples(&text);
    let unique: std::collections::HashSet<_> = samples.iter().map(|(name, _)| name).collect();
    assert_eq!(unique.len(), samples.len(), "no series twice");
    let value = |series: &str| {
        let found = samples.iter().find(|(name, _)| name == series);
        found.unwrap_or_else(|| panic!("{series} is not in\n{text}")).1
    };
    let decisions = |verdict: &str, limit: &str| {
        let labels = format!("verdict=\"{verdict}\",limit=\"{limit}\",shadow=\"false\"");
        value(&format!("evenkeel_decisions_total{{{labels}}}"))
    };
    assert_eq!(value("evenkeel_up"), 1.0);
    assert_eq!((decisions("hold", "ip"), decisions("hold", "agent")), (1.0, 1.0));
    assert_eq!(decisions("allow", ""), 0.0, "each request is counted once");
    assert_eq!(decisions("reject", "hits"), 1.0);
    assert_eq!(value("evenkeel_cost_header_faults_total"), 1.0);
    assert_eq!(value("evenkeel_request_cost_seconds_count"), 2.0);
    // The request without a valid cost header was measured for part of this time.
    assert!((5.0..=5.0 + took).contains(&value("evenkeel_cost_seconds_total")));
    assert_eq!(value("evenkeel_capacity_cpus{door=\"proxy\"}"), 4.0);
    assert_eq!(value("evenkeel_table_keys_max{door=\"proxy\",limit=\"ip\"}"), 100.0);
    assert_eq!(value("evenkeel_backend_failures_total{kind=\"connect\"}"), 0.0);
    let buckets = samples.iter().filter(|(name, _)| name.starts_with("evenkeel_wait_seconds_bu"));
    assert!(buckets.map(|(_, count)| *count).is_sorted(), "buckets are cumulative");
    // A door that is not open is not shown.
    let of_others = [
        "evenkeel_acme_",
        "evenkeel_waiting_",
        "evenkeel_backend_engine_",
        "evenkeel_slots",
        "evenkeel_pressure_",
        "evenkeel_queue_",
        "evenkeel_strangers_",
        "evenkeel_state_",
        "evenkeel_push_",
        "evenkeel_check_",
        "evenkeel_host_",
        "evenkeel_master_",
        "evenkeel_gatekeeper_",
        "evenkeel_tls_",
        "evenkeel_network_",
        "evenkeel_peer",
        "evenkeel_rlqs_",
        "evenkeel_robot_",
        "evenkeel_signature_",
        "evenkeel_store_",
        "evenkeel_xds_",
        "evenkeel_trace_",
    ];
    let shown = |metric: &&&Metric| !of_others.iter().any(|name| metric.name.starts_with(name));
    for metric in TABLE.iter().filter(shown) {
        let there = samples.iter().any(|(name, _)| name.starts_with(metric.name));
        assert!(there, "{} has no series", metric.name);
    }
}

#[test]
fn doctor_prints_what_top_answers() {
    let (_running, address) = open();
    let address = address.to_string();
    let remote = AdminClient { address: &address, token: None };
    let text = clients(&remote, None, ClientsFormat::Tables).expect("a table").text;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "Limit: ip");
    assert!(lines[2].ends_with("192.0.2.1"), "{text}");
    assert!(lines.contains(&"Limit: agent") && lines.contains(&"Limit: hits"), "{text}");
    assert!(!text.contains('\x1b'));

    let json = clients(&remote, Some("agent"), ClientsFormat::Json).expect("JSON");
    assert_eq!(json.unknown, None);
    let json: serde_json::Value = serde_json::from_str(&json.text).expect("JSON");
    assert_eq!(json["limits"][0]["name"], "agent");

    let empty = clients(&remote, Some("no such"), ClientsFormat::Tables).expect("a header");
    assert_eq!(empty.text.lines().nth(2), Some(""), "no rows: {empty:?}");
    assert!(empty.unknown.is_some_and(|names| names.contains("ip, agent")));
}

#[test]
fn whoever_sends_nothing_is_shown_out() {
    let (_running, address) = open();
    let begin = |sent: &str| {
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        stream.write_all(sent.as_bytes()).expect("it reads");
        stream.set_read_timeout(Some(2 * HEAD_TIMEOUT)).expect("set");
        stream
    };
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n");
    for mut stream in [begin(""), begin("GET / HTT"), begin(&request)] {
        let mut answer = Vec::new();
        let closed = stream.read_to_end(&mut answer);
        assert!(closed.is_ok(), "{closed:?} {}", String::from_utf8_lossy(&answer));
    }
}

mod clients;
mod group_orders;
mod live;

//! The real program over real sockets: gRPC in all packages, JSON, health checks, the debug port,
//! files that change, and hostile callers. Cases 3, 68 to 71, 73 to 79 and 81.

mod bytes;
mod renamed;
pub mod tls;
mod traces;

use crate::ask::{YEARLY, request, shown};
use crate::program::{Grpc, Server, Stream, http};
use evenkeel_ratelimit::wire::health::{
    HealthCheckRequest, HealthCheckResponse, HealthListResponse,
};
use evenkeel_ratelimit::wire::{Descriptor, Entry, Request, Response};
use evenkeel_telemetry::config_loads::ConfigLoads;
use evenkeel_testing::admin;
use evenkeel_testing::port::free_port;
use evenkeel_testing::wait::wait_for;
use prost::Message;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

pub const V3: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const V2: &str = "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit";
const LYFT: &str = "/pb.lyft.ratelimit.RateLimitService/ShouldRateLimit";

pub fn asked(grpc: &Grpc, path: &str, text: &str) -> String {
    match grpc.call(path, &request(text).encode_to_vec()) {
        Ok(bytes) => shown(&Response::decode(&*bytes).expect("an answer")),
        Err((code, message)) => format!("{code}: {message}"),
    }
}

#[test]
fn all_packages_and_their_errors_over_grpc() {
    let server = Server::start(YEARLY, &[]);
    let grpc = server.grpc();
    assert_eq!(asked(&grpc, V3, "t: k=v"), "OK [5/YEAR 4]");
    assert_eq!(asked(&grpc, V2, "t: k=v"), "OK [5/YEAR 3]");
    assert_eq!(asked(&grpc, LYFT, "t: k=v"), "OK [5/YEAR 2]");
    assert_eq!(asked(&grpc, V3, ": k=v"), "2: rate limit domain must not be empty");
    assert_eq!(asked(&grpc, V2, "t:"), "2: rate limit descriptor list must not be empty");
    assert!(asked(&grpc, "/nobody/Knows", "t: k=v").starts_with("12: unknown method"));
    let bytes = grpc.call(V2, &request("t: k=v").encode_to_vec()).expect("an answer");
    let old = Response::decode(&*bytes).expect("a message");
    assert_eq!(old.statuses[0].duration_until_reset, None);
}

/// A limit of a year is useless if a restart resets it. The rules are in another folder after the
/// restart.
#[test]
fn counters_outlive_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let variables = [("EVENKEEL_STATE", state.to_str().expect("text"))];
    for left in ["YEAR 3]", "YEAR 2]", "YEAR 1]"] {
        let server = Server::start(YEARLY, &variables);
        let answer = asked(&server.grpc(), V3, "t: nm=v");
        assert!(answer.starts_with("OK ") && answer.ends_with(left), "{answer}");
        let _ = fs::remove_file(&state);
        server.signal(Signal::TERM);
        wait_for("the last snapshot", || state.exists().then_some(()));
    }
}

const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// The request for a list of services, which is field 7.
const LIST_SERVICES: &[u8] = b"\x3a\x01*";

#[test]
fn c71_health_and_reflection_over_grpc() {
    let server = Server::start(YEARLY, &[]);
    let grpc = server.grpc();
    let health = |service: &str| {
        let asked = HealthCheckRequest { service: service.to_owned() };
        let answer = grpc.call("/grpc.health.v1.Health/Check", &asked.encode_to_vec());
        answer.map(|bytes| HealthCheckResponse::decode(&*bytes).expect("a message").status)
    };
    assert_eq!(health(""), Ok(1));
    wait_for("health", || (health("ratelimit") == Ok(1)).then_some(()));
    assert_eq!(health("other").expect_err("nobody").0, 5);
    let listed = grpc.call("/grpc.health.v1.Health/List", &[]).expect("a list");
    let listed = HealthListResponse::decode(&*listed).expect("a message").statuses;
    let mut listed: Vec<_> = listed.iter().map(|(name, one)| (&**name, one.status)).collect();
    listed.sort_unstable();
    assert_eq!(listed, [("", 1), ("ratelimit", 1)]);
    let wrong = grpc.call("/grpc.health.v1.Health/Ask", &[]).expect_err("no method");
    assert_eq!(wrong.0, 12, "{wrong:?}");
    assert_eq!(grpc.call("/grpc.health.v1.Health/Check", b"\xff").expect_err("no message").0, 3);
    let listed = grpc.call(REFLECTION, LIST_SERVICES);
    let listed = String::from_utf8_lossy(&listed.expect("an answer")).into_owned();
    for name in ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"] {
        assert!(listed.contains(name), "{listed:?}");
    }
}

/// A watcher gets each change. For an unknown name it gets SERVICE_UNKNOWN and stays open.
#[test]
fn c71_health_is_watched_until_the_server_goes_away() {
    let server = Server::start(YEARLY, &[("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")]);
    let grpc = server.grpc();
    let watch = |service: &str| {
        let asked = HealthCheckRequest { service: service.to_owned() }.encode_to_vec();
        grpc.stream_of("/grpc.health.v1.Health/Watch", &asked).expect("a stream")
    };
    let status = |stream: &mut Stream<'_>| {
        let told = stream.receive()?;
        Ok(HealthCheckResponse::decode(&*told).expect("a message").status)
    };
    let [mut all, mut one, mut other] = ["", "ratelimit", "other"].map(watch);
    assert_eq!(status(&mut all), Ok(1));
    let told = |stream: &mut Stream<'_>, wanted: i32| while status(stream) != Ok(wanted) {};
    told(&mut one, 1);
    assert_eq!(status(&mut other), Ok(3), "it is not known, and may be later");
    fs::remove_file(server.rules().join("a.yaml")).expect("removed");
    told(&mut one, 2);
    fs::write(server.rules().join("a.yaml"), YEARLY).expect("written");
    told(&mut one, 1);
    let mut reflection = grpc.stream(REFLECTION).expect("a stream");
    reflection.send(LIST_SERVICES);
    reflection.receive().expect("a list");
    server.signal(Signal::TERM);
    assert_eq!(status(&mut one), Ok(2));
    for stream in [&mut all, &mut one, &mut other] {
        assert_eq!(status(stream), Err(14), "it ends with the server and not before");
    }
    assert_eq!(reflection.receive(), Err(14), "reflection does not keep the server");
}

#[test]
fn a_large_question_of_reflection_is_not_read() {
    let server = Server::start(YEARLY, &[]);
    let grpc = server.grpc();
    let mut stream = grpc.stream(REFLECTION).expect("a stream");
    // The head of a message of 4 MiB.
    stream.send_raw(&[0, 0, 0x40, 0, 0]);
    assert!(stream.receive().is_err(), "the stream ends");
}

#[test]
fn c68_c69_json_is_answered_as_the_reference_does() {
    let server = Server::start(YEARLY, &[]);
    let json = |method: &str, body: &str| http(server.http, method, "/json", body);
    let one = |domain: &str, key: &str| {
        format!(
            "{{\"domain\":\"{domain}\",\"descriptors\":[{{\"entries\":[{{\"key\":\"{key}\",\
             \"value\":\"v\"}}]}}]}}"
        )
    };
    let (status, body) = json("POST", &one("t", "k"));
    let reset = body.split("\"durationUntilReset\":\"").nth(1).and_then(|t| t.split('"').next());
    let reset = reset.expect("a reset");
    assert_eq!(status, 200);
    let expected = format!(
        "{{\"overallCode\":\"OK\",\"statuses\":[{{\"code\":\"OK\",\"currentLimit\":\
         {{\"requestsPerUnit\":5,\"unit\":\"YEAR\"}},\"durationUntilReset\":\"{reset}\",\
         \"limitRemaining\":4}}]}}"
    );
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    assert_eq!(value(&body), value(&expected));
    let (status, body) = json("PUT", &one("t", "zero"));
    let over = value(&body);
    assert_eq!(status, 429);
    assert_eq!(over["overallCode"], "OVER_LIMIT");
    assert_eq!(over["statuses"][0]["currentLimit"], value("{\"unit\":\"YEAR\"}"));
    assert_eq!(over["statuses"][0].get("limitRemaining"), None);
    let snake = "{\"domain\":\"t\",\"hits_addend\":2,\"descriptors\":[{\"entries\":[{\"key\":\
                 \"q\"}],\"limit\":{\"requests_per_unit\":3,\"unit\":\"HOUR\"},\"hitsAddend\":\
                 \"2\"}]}";
    let (status, body) = json("POST", snake);
    assert_eq!((status, &value(&body)["statuses"][0]["limitRemaining"]), (200, &1.into()));
    let point = "{\"domain\":\"t\",\"hits_addend\":2.0,\"descriptors\":[{\"entries\":[{\"key\":\
                 \"q\"}],\"limit\":{\"requests_per_unit\":\"7e0\",\"unit\":\"DAY\"}}]}";
    let (status, body) = json("POST", point);
    assert_eq!((status, &value(&body)["statuses"][0]["limitRemaining"]), (200, &5.into()));
    let unknown = "{\"domain\":\"t\",\"nonsense\":1}".to_owned();
    for bad in ["{".to_owned(), unknown, one("", "k"), String::new()] {
        assert_eq!(json("POST", &bad), (400, "Bad Request\n".to_owned()), "{bad}");
    }
    assert_eq!(json("GET", ""), (400, "Bad Request\n".to_owned()));
    assert_eq!(http(server.http, "GET", "/other", "").0, 404);
}

#[test]
fn c70_health_over_http_until_it_ends() {
    let server = Server::start(YEARLY, &[("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")]);
    let health = || http(server.http, "GET", "/healthcheck", "");
    assert_eq!(health(), (200, "OK".to_owned()));
    fs::remove_file(server.rules().join("a.yaml")).expect("removed");
    wait_for("no domain", || (health() == (500, String::new())).then_some(()));
    fs::write(server.rules().join("a.yaml"), YEARLY).expect("written");
    wait_for("a domain", || (health().0 == 200).then_some(()));
    // A call that hangs keeps the service from ending at once; a later call shows that draining has
    // begun.
    let grpc = server.grpc();
    let _hanging = grpc.begin(V3);
    asked(&grpc, V3, "t: k=v");
    server.signal(Signal::TERM);
    wait_for("the end is told", || (health().0 == 500).then_some(()));
}

#[test]
fn c72_the_debug_port_shows_rules_and_figures() {
    let server =
        Server::start(YEARLY, &[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "127.0.0.1:0")]);
    asked(&server.grpc(), V3, "t: k=v | zero=v");
    let shown = http(server.debug, "GET", "/rlconfig", "").1;
    let line = "t.k: unit=YEAR requests_per_unit=5, shadow_mode: false, quota_mode: false";
    assert!(shown.lines().any(|shown| shown == line), "{shown}");
    let figures = http(server.debug, "GET", "/stats", "").1;
    for line in [
        "ratelimit.service.rate_limit.t.k.total_hits: 1",
        "ratelimit.service.rate_limit.t.zero.over_limit: 1",
        "ratelimit.service.config_load_success: 1",
        "ratelimit_server.ShouldRateLimit.total_requests: 1",
    ] {
        assert!(figures.lines().any(|shown| shown == line), "{line}\n{figures}");
    }
    let prometheus = http(server.prometheus(), "GET", "/metrics", "").1;
    for line in [
        "ratelimit_service_rate_limit_total_hits{domain=\"t\",key1=\"k\"} 1",
        "ratelimit_service_rate_limit_over_limit{domain=\"t\",key1=\"zero\"} 1",
        "ratelimit_service_rate_limit_total_hits{domain=\"t\",key1=\"mid_x\",key2=\"leaf\"} 0",
        "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 1",
        "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"} 1",
    ] {
        assert!(prometheus.lines().any(|shown| shown == line), "{line}\n{prometheus}");
    }
    assert!(http(server.debug, "GET", "/", "").1.starts_with("/rlconfig: "));
}

fn domain(name: &str, requests: u32) -> String {
    format!(
        "{{domain: {name}, descriptors: [{{key: k, rate_limit: {{unit: year, \
         requests_per_unit: {requests}}}}}]}}"
    )
}

/// Writes a file atomically: a half-written file would be refused and counted.
fn put(path: &Path, text: &str) {
    let folder = tempfile::tempdir_in(path.ancestors().nth(4).expect("above")).expect("a folder");
    let whole = folder.path().join("whole");
    fs::write(&whole, text).expect("written");
    fs::rename(whole, path).expect("moved");
}

#[test]
fn c73_to_c76_files_come_change_and_go() {
    let server = Server::start(YEARLY, &[]);
    let grpc = server.grpc();
    let ask = |text: &str| asked(&grpc, V3, text);
    let becomes = |text: &str, told: &str| {
        wait_for(told, || (ask(text) == told).then_some(()));
    };
    let rules = server.rules();
    put(&rules.join("b.txt"), &domain("b", 9));
    becomes("b: k=1 +0", "OK [9/YEAR 9]");
    put(&rules.join("b.txt"), "domain: [");
    let refused = "ratelimit.service.config_load_error: 1";
    let figures = || http(server.debug, "GET", "/stats", "").1;
    wait_for("a refusal", || figures().contains(refused).then_some(()));
    assert_eq!(ask("b: k=1 +0"), "OK [9/YEAR 9]", "what runs stays");
    fs::create_dir(rules.join("deep")).expect("made");
    fs::rename(rules.join("b.txt"), rules.join("deep/.b.yaml")).expect("moved");
    fs::write(rules.join("deep/.b.yaml"), domain("b", 8)).expect("written");
    becomes("b: k=1 +0", "OK [8/YEAR 8]");
    for path in ["a.yaml", "deep/.b.yaml"] {
        fs::remove_file(rules.join(path)).expect("removed");
    }
    becomes("t: zero=1", "OK [-]");
    assert_eq!(ask("b: k=1"), "OK [-]");
}

#[test]
fn c76_dot_files_can_be_passed_over() {
    let server = Server::start(YEARLY, &[("RUNTIME_IGNOREDOTFILES", "true")]);
    let grpc = server.grpc();
    fs::write(server.rules().join(".b.yaml"), domain("b", 9)).expect("written");
    fs::write(server.rules().join("c.yaml"), domain("c", 9)).expect("written");
    wait_for("c", || (asked(&grpc, V3, "c: k=1 +0") == "OK [9/YEAR 9]").then_some(()));
    assert_eq!(asked(&grpc, V3, "b: k=1"), "OK [-]");
}

/// A Kubernetes ConfigMap: the files are links into a folder behind another link, which is swapped.
#[test]
fn c77_to_c79_links_are_followed_and_swapped() {
    let server = Server::start(YEARLY, &[]);
    let (grpc, rules) = (server.grpc(), server.rules());
    let becomes = |text: &str, told: &str| {
        wait_for(told, || (asked(&grpc, V3, text) == told).then_some(()));
    };
    for (folder, requests) in [("..one", 7), ("..two", 6)] {
        fs::create_dir(rules.join(folder)).expect("made");
        fs::write(rules.join(folder).join("m.yaml"), domain("m", requests)).expect("written");
    }
    symlink("..one", rules.join("..data")).expect("linked");
    symlink("..data/m.yaml", rules.join("m.yaml")).expect("linked");
    becomes("m: k=1 +0", "OK [7/YEAR 7]");
    symlink("..two", rules.join("..new")).expect("linked");
    fs::rename(rules.join("..new"), rules.join("..data")).expect("swapped");
    becomes("m: k=1 +0", "OK [6/YEAR 6]");
    // The root itself is a link. It first leads to another folder, and then to a missing one.
    let other = server.folder.path().join("other/ratelimit/config");
    fs::create_dir_all(&other).expect("made");
    fs::write(other.join("o.yaml"), domain("o", 5)).expect("written");
    let next = server.folder.path().join("next");
    symlink("other", &next).expect("linked");
    fs::rename(&next, server.folder.path().join("current")).expect("swapped");
    becomes("o: k=1 +0", "OK [5/YEAR 5]");
    fs::remove_file(server.folder.path().join("current")).expect("removed");
    server.signal(Signal::HUP);
    assert_eq!(asked(&grpc, V3, "o: k=1 +0"), "OK [5/YEAR 5]", "what runs stays");
}

#[test]
fn c03_c81_faulty_or_missing_rules_do_not_keep_it_from_starting() {
    let address = format!("127.0.0.1:{}", free_port());
    let told = || admin::get(address.parse().expect("an address"), "/api/top");
    let refused = |what: &str| {
        let told = told();
        assert!(told.contains(&format!("\"meanwhile\":\"{what}\"")), "{told}");
    };
    let server = Server::start("domain: [", &[("EVENKEEL_ADMIN", &address)]);
    let grpc = server.grpc();
    assert_eq!(asked(&grpc, V3, "t: k=1"), "2: no rate limit configuration loaded");
    assert_eq!(http(server.http, "GET", "/healthcheck", "").0, 200);
    refused("calls fail, as there is no previous one");
    fs::write(server.rules().join("a.yaml"), YEARLY).expect("written");
    wait_for("rules", || (asked(&grpc, V3, "t: k=1 +0") == "OK [5/YEAR 5]").then_some(()));
    fs::write(server.rules().join("a.yaml"), "domain: [").expect("written");
    server.signal(Signal::HUP);
    wait_for("a refusal", || told().contains("\"refused_config\":{").then_some(()));
    refused(ConfigLoads::PREVIOUS_IN_FORCE);
    drop(server);
    let variables = [("RUNTIME_SUBDIRECTORY", "elsewhere"), ("EVENKEEL_ADMIN", &*address)];
    let server = Server::start(YEARLY, &variables);
    assert_eq!(asked(&server.grpc(), V3, "t: zero=1"), "OK [-]");
    refused("all requests are allowed");
}

#[test]
fn hostile_messages_are_refused_and_the_server_lives() {
    let server = Server::start(YEARLY, &[]);
    let grpc = server.grpc();
    let code = |bytes: &[u8]| grpc.call(V3, bytes).expect_err("refused").0;
    assert_eq!(code(b"\xff\xff\xff"), 3);
    // A domain that is not UTF-8.
    assert_eq!(code(b"\x0a\x02\xff\xfe"), 3);
    let huge = Request {
        domain: "t".into(),
        descriptors: vec![Descriptor {
            entries: vec![Entry { key: "k".into(), value: "x".repeat(100 << 20) }],
            ..Descriptor::default()
        }],
        hits_addend: 0,
    };
    let before = server.peak_kib();
    assert_eq!(code(&huge.encode_to_vec()), 8);
    let grown = server.peak_kib() - before;
    assert!(grown < 32 * 1024, "a message of 100 MiB took {grown} KiB");
    let many = request(&format!("t: {}", vec!["k=v"; 2_000].join("|")));
    assert_eq!(code(&many.encode_to_vec()), 3);
    assert_eq!(grpc.framed(V3, &[1, 0, 0, 0, 1, 0]).expect_err("compressed").0, 12);
    assert_eq!(grpc.framed(V3, &[0, 0, 0, 0, 9, 0]).expect_err("too short").0, 3);
    assert_eq!(grpc.framed(V3, &[]).expect_err("nothing").0, 3);
    assert_eq!(asked(&grpc, V3, "t: k=alive"), "OK [5/YEAR 4]");
}

#[test]
fn statsd_is_told_how_much_figures_have_grown() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = socket.local_addr().expect("bound").port().to_string();
    let server = Server::start(
        YEARLY,
        &[
            ("USE_STATSD", "true"),
            ("STATSD_HOST", "127.0.0.1"),
            ("STATSD_PORT", &port),
            ("STATSD_PROTOCOL", "udp"),
            ("STATS_FLUSH_INTERVAL", "100ms"),
            ("EXTRA_TAGS", "zone:a"),
        ],
    );
    asked(&server.grpc(), V3, "t+3: k=10.0.0.1 | w=foo1");
    let mut told = String::new();
    let mut datagram = [0; 65_536];
    for line in [
        "ratelimit.service.rate_limit.t.k.total_hits.__zone=a:3|c",
        "ratelimit.service.rate_limit.t.w_foo*.within_limit.__zone=a:3|c",
    ] {
        while !told.lines().any(|known| known == line) {
            let length = socket.recv(&mut datagram).expect("a datagram");
            told += std::str::from_utf8(&datagram[..length]).expect("text");
        }
    }
}

#[test]
fn what_is_asked_about_most_is_seen_by_name() {
    let admin = format!("127.0.0.1:{}", free_port());
    let server = Server::start(YEARLY, &[("EVENKEEL_ADMIN", &admin)]);
    let grpc = server.grpc();
    for _ in 0..3 {
        asked(&grpc, V3, "t: k=busy | k=idle +0 | zero=x | nobody=knows");
    }
    asked(&grpc, V3, "t: k=seldom");
    let doctor = |limit: &str| {
        let program = env!("CARGO_BIN_EXE_evenkeel");
        let mut doctor = std::process::Command::new(program);
        let output = doctor.args(["clients", "--admin", &admin, "--limit", limit]).output();
        String::from_utf8(output.expect("it runs").stdout).expect("text")
    };
    let told = doctor("descriptors");
    let place = |name: &str| told.find(name).unwrap_or_else(|| panic!("no {name} in\n{told}"));
    assert!(place("t.k_busy") < place("t.k_seldom"), "{told}");
    assert!(told.contains("t.zero_x") && !told.contains("idle") && !told.contains("nobody"));
}

#[test]
fn a_unix_socket_serves_as_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rl.sock");
    let server = Server::start(YEARLY, &[("GRPC_UDS", path.to_str().expect("text"))]);
    let grpc = Grpc::unix(&path);
    assert_eq!(asked(&grpc, V3, "t: k=v"), "OK [5/YEAR 4]");
    drop(server);
}

#[test]
fn threads_and_connections_share_exact_counters() {
    let server = Server::start(
        YEARLY.replace("requests_per_unit: 5", "requests_per_unit: 100000").as_str(),
        &[],
    );
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let grpc = server.grpc();
                for _ in 0..50 {
                    assert!(asked(&grpc, V3, "t: k=all | k=all").starts_with("OK "));
                }
            });
        }
    });
    assert_eq!(asked(&server.grpc(), V3, "t: k=all +0"), "OK [100000/YEAR 99200]");
}

#[test]
fn what_cannot_start_says_why() {
    let output = Server::command(&[("BACKEND_TYPE", "memcache")]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("BACKEND_TYPE=memcache: memcache is not supported"), "{told}");
}

/// Fencer logs every call at `debug`.
#[test]
fn at_debug_each_call_is_a_line_of_the_log() {
    let server = Server::start(YEARLY, &[("LOG_LEVEL", "debug")]);
    let grpc = server.grpc();
    asked(&grpc, V3, "t: k=one,l=two | zero=x");
    asked(&grpc, V3, ": k=v");
    for parts in [
        &["answered", "t: (k=one),(l=two) | (zero=x)", "OVER_LIMIT"][..],
        &["not answered", ": (k=v)", "rate limit domain must not be empty"],
    ] {
        wait_for("a line", || {
            let log = server.log();
            log.lines().any(|line| parts.iter().all(|part| line.contains(part))).then_some(())
        });
    }
}

#[test]
fn a_variable_of_ours_that_is_not_known_is_a_warning() {
    let variables = [("EVENKEEL_KEY_MAX", "7"), ("EVENKEEL_SERVICE_HOST", "10.0.0.1")];
    let server = Server::start(YEARLY, &variables);
    let told = "unknown variable EVENKEEL_KEY_MAX; did you mean EVENKEEL_KEYS_MAX?";
    wait_for("a warning", || {
        server.log().lines().any(|line| line.contains("WARN") && line.contains(told)).then_some(())
    });
    assert!(!server.log().contains("EVENKEEL_SERVICE_HOST"));
}

#[test]
fn values_that_the_reference_takes_start_the_program() {
    let variables = [
        ("GRPC_MAX_CONNECTION_AGE", "0"),
        ("GRPC_MAX_CONNECTION_AGE_GRACE", "0"),
        ("LOG_FORMAT", "Text"),
        ("NEAR_LIMIT_RATIO", "1.5"),
        ("STATS_FLUSH_INTERVAL", "2h"),
        ("TRACING_SAMPLING_RATE", "7"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "true"),
        ("MEMCACHE_HOST_PORT", "127.0.0.1:11211"),
    ];
    let server = Server::start(YEARLY, &variables);
    let grpc = server.grpc();
    for left in ["4]", "3]"] {
        assert!(asked(&grpc, V3, "t: k=v").ends_with(left));
    }
}

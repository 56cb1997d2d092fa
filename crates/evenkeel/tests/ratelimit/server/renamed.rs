//! Renamed metrics: DogStatsD's by patterns, Prometheus' by a mapping file.

use crate::ask::{YEARLY, request};
use crate::program::{Server, http};
use prost::Message;

const V3: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[test]
fn mogrifiers_make_tags_of_names() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = socket.local_addr().expect("bound").port().to_string();
    let server = Server::start(
        YEARLY,
        &[
            ("USE_DOG_STATSD", "true"),
            ("STATSD_HOST", "127.0.0.1"),
            ("STATSD_PORT", &port),
            ("STATS_FLUSH_INTERVAL", "100ms"),
            ("EXTRA_TAGS", "zone:a"),
            ("USE_DOG_STATSD_MOGRIFIERS", "LIMIT"),
            (
                "DOG_STATSD_MOGRIFIER_LIMIT_PATTERN",
                r"^ratelimit\.service\.rate_limit\.([^.]+)\.(.*)\.([^.]+)$",
            ),
            ("DOG_STATSD_MOGRIFIER_LIMIT_NAME", "ratelimit.service.rate_limit.$3"),
            ("DOG_STATSD_MOGRIFIER_LIMIT_TAGS", "domain:$1,descriptor:$2"),
        ],
    );
    server.grpc().call(V3, &request("t+3: k=v | mid=x,leaf=1").encode_to_vec()).expect("an answer");
    let mut told = String::new();
    let mut datagram = [0; 65_536];
    for line in [
        "ratelimit.service.rate_limit.total_hits:3|c|#zone:a,domain:t,descriptor:k",
        "ratelimit.service.rate_limit.within_limit:3|c|#zone:a,domain:t,descriptor:mid_x.leaf",
        "ratelimit.service.config_load_success:1|c|#zone:a",
        "ratelimit_server.ShouldRateLimit.response_time:",
    ] {
        while !told.lines().any(|known| known.starts_with(line)) {
            let length = socket.recv(&mut datagram).expect("a datagram");
            told += std::str::from_utf8(&datagram[..length]).expect("text");
        }
    }
}

#[test]
fn a_mapping_file_names_prometheus_figures() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("map.yaml");
    let text = "
mappings:
- match: 'ratelimit.service.rate_limit.*.*.total_hits'
  name: 'hits'
  timer_type: histogram
  labels: {domain: $1, all: any}
- {match: 'ratelimit.service.rate_limit.*.*.*.total_hits', name: deep-hits, labels: {leaf: $3}}
- {match: 'ratelimit.service.config_load_(.*)', match_type: regex, name: loads, labels: {how: $1}}
- {match: '.', match_type: regex, action: drop}
";
    std::fs::write(&path, text).expect("written");
    let variables = [
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", "127.0.0.1:0"),
        ("PROMETHEUS_PATH", "/figures"),
        ("PROMETHEUS_MAPPER_YAML", path.to_str().expect("text")),
    ];
    let server = Server::start(YEARLY, &variables);
    let asked = request("t: k=v | zero=v | mid=x,leaf=1");
    server.grpc().call(V3, &asked.encode_to_vec()).expect("an answer");
    assert_eq!(http(server.prometheus(), "GET", "/metrics", "").0, 404);
    let shown = http(server.prometheus(), "GET", "/figures", "").1;
    let expected = "# TYPE deep_hits counter\ndeep_hits{leaf=\"leaf\"} 1\n# TYPE hits counter\n\
                    hits{domain=\"t\",all=\"any\"} 2\n# TYPE loads counter\n\
                    loads{how=\"error\"} 0\nloads{how=\"success\"} 1\n";
    assert_eq!(shown, expected);
    std::fs::write(&path, "mappings: [{match: a, name: $7}]").expect("written");
    let all = [&variables[..], &[("RUNTIME_ROOT", "/tmp/current")]].concat();
    let output = Server::command(&all).output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("map.yaml:1:29: `name` is `$7`: `^a$` has no group 7"), "{told}");
}

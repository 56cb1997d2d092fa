//! The dashboard and the alert rules in `examples/monitoring` use existing metrics, and a real
//! Prometheus that scrapes a real Evenkeel accepts all of their expressions.
//!
//! The conditions that trigger each alert are in `examples/monitoring/alerts.test.yaml`, which
//! promtool runs here.

use super::root;
use evenkeel_telemetry::metrics::{MetricKind, TABLE};
use evenkeel_testing::evenkeel;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::wait_for;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Longer than anything takes on a slow machine.
const LONG: Duration = Duration::from_secs(60);

fn folder() -> PathBuf {
    root().join("examples/monitoring")
}

fn dashboard() -> serde_json::Value {
    let text = fs::read_to_string(folder().join("dashboard.json")).expect("a dashboard");
    serde_json::from_str(&text).expect("JSON")
}

/// Every expression of the dashboard, with its variables filled in.
fn expressions() -> Vec<String> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let written = targets.map(|target| target["expr"].as_str().expect("an expression"));
    let all: Vec<String> =
        written.map(|e| e.replace("$__rate_interval", "1m").replace("$instance", ".*")).collect();
    assert!(all.len() > 20, "only {} expressions", all.len());
    all
}

#[test]
fn every_metric_that_is_named_is_in_the_table() {
    let ends = ["_bucket", "_sum", "_count"];
    let known = |name: &str| {
        TABLE.iter().any(|metric| match metric.kind {
            MetricKind::Histogram => ends.iter().any(|end| name == format!("{}{end}", metric.name)),
            _ => name == metric.name,
        })
    };
    for file in ["alerts.yaml", "alerts.test.yaml", "dashboard.json"] {
        let text = fs::read_to_string(folder().join(file)).expect("a file");
        let words = text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
        let names: Vec<&str> = words.filter(|word| word.starts_with("evenkeel_")).collect();
        assert!(names.len() > 10, "{file}: only {}", names.len());
        let unknown: Vec<_> = names.into_iter().filter(|name| !known(name)).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}");
    }
}

#[test]
fn panels_have_each_their_place_and_say_what_they_show() {
    let dashboard = dashboard();
    let mut seen = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let at = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        let place = (at("x"), at("y"), at("w"), at("h"));
        let apart = |other: &(u64, u64, u64, u64)| {
            place.0 >= other.0 + other.2
                || other.0 >= place.0 + place.2
                || place.1 >= other.1 + other.3
                || other.1 >= place.1 + place.3
        };
        assert!(place.0 + place.2 <= 24 && seen.iter().all(apart), "{panel}");
        seen.push(place);
        let said = panel["description"].as_str().is_some_and(|text| !text.is_empty());
        assert!(said || panel["type"] == "row", "{panel}");
    }
}

#[test]
fn promtool_takes_the_rules_and_each_alert_comes_when_it_should() {
    for arguments in [
        ["check", "config", "prometheus.yaml"],
        ["check", "rules", "alerts.yaml"],
        ["test", "rules", "alerts.test.yaml"],
    ] {
        let run = Command::new("promtool").args(arguments).current_dir(folder()).output();
        let run = run.expect("promtool is there: apt-get install prometheus");
        let said = String::from_utf8_lossy(&run.stderr) + String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{arguments:?}: {said}");
    }
    let read = |name| fs::read_to_string(folder().join(name)).expect("a file");
    let (rules, tests) = (read("alerts.yaml"), read("alerts.test.yaml"));
    let alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    alerts.for_each(|alert| assert!(tests.contains(&format!("name: {alert}\n")), "{alert}"));
}

/// A proxy without a backend, and its admin address.
fn evenkeel(folder: &Path) -> (Program, SocketAddr) {
    let config = folder.join("evenkeel.yaml");
    let text = "admin: {listen: 127.0.0.1:0}\nproxy: {listen: 127.0.0.1:0}\n";
    fs::write(&config, text).expect("written");
    let mut command = evenkeel!();
    command.arg("serve").arg("--config").arg(config);
    let mut program = Program::start(command);
    let line = program.told("proxy open");
    let admin = line.split("admin=[").nth(1).expect("an address");
    let admin = admin.split(']').next().and_then(|at| at.parse().ok()).expect("an address");
    (program, admin)
}

fn prometheus(folder: &Path, evenkeel: SocketAddr) -> (Program, SocketAddr) {
    let read = fs::read_to_string(self::folder().join("prometheus.yaml")).expect("a file");
    let config = read.replace("127.0.0.1:9970", &evenkeel.to_string()).replace("15s", "1s");
    fs::write(folder.join("prometheus.yaml"), config).expect("written");
    fs::copy(self::folder().join("alerts.yaml"), folder.join("alerts.yaml")).expect("copied");
    let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", folder.join("prometheus.yaml").display()));
    command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
    command.arg(format!("--web.listen-address={at}"));
    (Program::listening(command, at.port()), at)
}

/// The answer of Prometheus; `None` while it does not answer.
fn api(at: SocketAddr, path: &str) -> Option<serde_json::Value> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(LONG)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nhost: a\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

fn query(at: SocketAddr, expression: &str) -> Option<serde_json::Value> {
    let escaped: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
    api(at, &format!("/api/v1/query?query={escaped}"))
}

#[test]
fn a_real_prometheus_scrapes_and_understands_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_evenkeel, admin) = evenkeel(folder.path());
    let (_prometheus, at) = prometheus(folder.path(), admin);
    let value = |expression: &str| {
        let answer = query(at, expression)?;
        answer["data"]["result"][0]["value"][1].as_str().map(str::to_owned)
    };
    assert_eq!(wait_for("a scrape", || value("evenkeel_up")), "1");
    assert_eq!(wait_for("a scrape", || value("up{job=\"evenkeel\"}")), "1");
    for expression in expressions() {
        let answer = wait_for("an answer", || query(at, &expression));
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
    }
    // Prometheus knows each family with the type and the help text from Evenkeel's table of
    // metrics.
    let metadata = wait_for("metadata", || {
        let answer = api(at, "/api/v1/metadata?limit=1000")?;
        answer["data"]["evenkeel_up"].is_array().then_some(answer)
    });
    for metric in TABLE {
        let known = &metadata["data"][metric.name][0];
        assert_eq!(known["type"], metric.kind.name(), "{}: {known}", metric.name);
        assert_eq!(known["help"], metric.help, "{}", metric.name);
    }
    wait_for("every rule to be evaluated", || {
        let rules = api(at, "/api/v1/rules")?;
        let rules = rules["data"]["groups"][0]["rules"].as_array()?;
        assert!(rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
        rules.iter().all(|rule| rule["health"] == "ok").then_some(())
    });
}

//! The configuration of Smockron's master as Evenkeel runs it: its forms, the exact warnings, and
//! arbitrary files, none of which may crash the parser.
//!
//! The behaviour of its domains is tested with the master (`tests/master`).

use evenkeel_config::settings::master::MasterSettings;
use evenkeel_config::{Config, parse};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::units::{Cost, Nanos};
use std::net::SocketAddr;

fn read(text: &str) -> Config {
    match parse("default.yaml", text.as_bytes(), 4.0) {
        Ok(config) => config,
        Err(faults) => panic!("{text}\n{faults}"),
    }
}

fn master(text: &str) -> MasterSettings {
    read(text).settings.master.expect("a master")
}

fn faults(text: &str) -> String {
    parse("default.yaml", text.as_bytes(), 4.0).expect_err("a fault").to_string()
}

/// The configuration that Smockron's package contains, in meaning.
const DEFAULT: &str = "\
server:
  listen: 0.0.0.0
datastore:
  host: localhost
domains:
  default:
    rate: 1/sec
    burst: 10
statsd:
  host: localhost
";

/// The rate of the only rule of the only domain, in hits a second, and its burst.
fn rule(text: &str) -> (f64, Cost) {
    let master = master(text);
    let [domain] = &master.domains[..] else { panic!("{text}") };
    let [rule] = &domain.rules[..] else { panic!("{text}") };
    match &rule.algorithm {
        Algorithm::Debt(debt) => (debt.rate().per_second(), debt.burst()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_default_file_runs_as_it_is() {
    let config = read(DEFAULT);
    let master = config.settings.master.as_ref().expect("a master");
    let any = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
    assert_eq!((master.accounting, master.control), (any(10_004), any(10_005)));
    assert_eq!(master.domains[0].name, "default");
    assert_eq!(
        config.settings.metrics.statsd.map(|statsd| statsd.address).as_deref(),
        Some("localhost:8125")
    );
    let (rate, burst) = rule(DEFAULT);
    assert!(burst == Cost::hits(10) && (rate - 1.0).abs() < 1e-6, "{rate}");
    assert_eq!(
        config.warnings,
        ["default.yaml:3:1: `datastore` has no effect: counts are in memory; `state` keeps them \
          across a restart, and `store` keeps them in Redis",]
    );
}

#[test]
fn what_is_shown_is_native_and_means_the_same() {
    let config = read(DEFAULT);
    for part in ["accounting: tcp://0.0.0.0:10004", "algorithm: gcra", "statsd: "] {
        assert!(config.native.contains(part), "no {part} in\n{}", config.native);
    }
    let again = read(&config.native);
    assert_eq!((&again.settings, again.warnings.len()), (&config.settings, 0));
}

#[test]
fn a_store_may_stand_beside_its_sections() {
    let text = format!("{DEFAULT}store: {{redis: 'redis://127.0.0.1:7379'}}\n");
    let config = read(&text);
    assert!(config.settings.store.is_some() && config.settings.master.is_some());
    assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    assert_eq!(read(&config.native).settings, config.settings);
    let wrong = faults(&format!("{DEFAULT}store: {{redsi: x}}\n"));
    assert!(
        wrong.contains("default.yaml:11:") && wrong.contains("did you mean `redis`?"),
        "{wrong}"
    );
}

#[test]
fn s24_where_it_listens() {
    for (listen, accounting, control) in [
        ("localhost", "127.0.0.1:10004", "127.0.0.1:10005"),
        ("127.0.0.1:9", "127.0.0.1:9", "127.0.0.1:10"),
        ("tcp://127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:2"),
        ("'[::1]:5'", "[::1]:5", "[::1]:6"),
        ("'[::1]'", "[::1]:10004", "[::1]:10005"),
        ("'tcp://*:77'", "0.0.0.0:77", "0.0.0.0:78"),
        ("0.0.0.0", "0.0.0.0:10004", "0.0.0.0:10005"),
        ("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"),
    ] {
        let text = format!("server: {{listen: {listen}}}\ndomains: {{d: {{rate: 1/s, burst: 1}}}}");
        let master = master(&text);
        let found = [master.accounting, master.control].map(|address| address.to_string());
        assert_eq!(found, [accounting, control], "{listen}");
    }
    for listen in ["host.example:9", "127.0.0.1:65535", "127.0.0.1:x", "ipc://x:1", "[a]", "''"] {
        let text = format!("server: {{listen: {listen}}}\ndomains: {{d: {{rate: 1/s, burst: 1}}}}");
        let told = faults(&text);
        assert!(told.lines().all(|line| line.starts_with("default.yaml:1:18: ")), "{told}");
    }
}

#[test]
fn s22_s23_rates_intervals_and_bursts() {
    for (written, interval_ms, burst) in [
        ("rate: 1/sec, burst: 10", 1000.0, 10),
        ("rate: 7 per min, burst: '3'", 60_000.0 / 7.0, 3),
        ("rate: 10/2min, burst: 1", 12_000.0, 1),
        ("rate: 100/hour, burst: 0", 36_000.0, 0),
        ("rate: 5000/sec, burst: 1", 0.2, 1),
        ("interval: 500, burst: 3", 500.0, 3),
        ("interval: 5s, burst: 3", 5_000.0, 3),
        ("interval: min, burst: 3", 60_000.0, 3),
        ("interval: 500, burst: 10s", 500.0, 20),
        ("rate: 1/sec, interval: null, burst: 2", 1000.0, 2),
        ("rate: 1/sec, interval: 500, burst: 2", 1000.0, 2),
    ] {
        let (rate, found) = rule(&format!("domains: {{d: {{{written}}}}}"));
        let expected = 1e3 / interval_ms;
        assert!((rate / expected - 1.0).abs() < 1e-6, "{written}: {rate} {expected}");
        assert_eq!(found, Cost::hits(burst), "{written}");
    }
    for wrong in [
        "rate: 1.5/sec, burst: 1",
        "rate: 1/week, burst: 1",
        "rate: 0/sec, burst: 1",
        "rate: 1/sec",
        "burst: 3",
        "interval: 0, burst: 3",
        "interval: [5], burst: 3",
        "interval: {}, burst: 3",
    ] {
        let told = faults(&format!("domains: {{d: {{{wrong}}}}}"));
        assert!(told.starts_with("default.yaml:1:"), "{wrong}: {told}");
    }
}

#[test]
fn several_rules_and_the_other_algorithm_may_be_added() {
    let master = master(
        "domains: {d: [{rate: 2/s, burst: 3, algorithm: history}, {rate: 10/min, burst: 10}], \
         e: []}\nserver: {allow: [192.0.2.0/24]}\nstate: {keys_max: 10}",
    );
    assert!(matches!(master.domains[0].rules[0].algorithm, Algorithm::History(_)));
    assert!(matches!(master.domains[0].rules[1].algorithm, Algorithm::Debt(_)));
    assert!(master.domains[1].rules.is_empty());
    assert_eq!(master.allow, ["192.0.2.0/24".parse().expect("a network")]);
    assert_eq!(master.ahead_max, Nanos::from_secs(60));
}

#[test]
fn statsd_in_its_forms() {
    for (written, expected) in [
        ("stats: {}", Some("localhost:8125")),
        ("stats: {host: 127.0.0.1, port: 99}", Some("127.0.0.1:99")),
        ("statsd: graphs.example", Some("graphs.example:8125")),
        ("statsd: 'graphs.example:9'", Some("graphs.example:9")),
        ("stats: false", None),
        ("stats: null", None),
        ("log: {level: warn}", None),
    ] {
        let config = read(&format!("{written}\ndomains: {{d: {{rate: 1/s, burst: 1}}}}"));
        assert_eq!(
            config.settings.metrics.statsd.map(|statsd| statsd.address).as_deref(),
            expected,
            "{written}"
        );
    }
    for (written, prefix) in
        [("stats: {prefix: smockron.}", "smockron."), ("stats: {}", ""), ("statsd: host", "")]
    {
        let config = read(&format!("{written}\ndomains: {{d: {{rate: 1/s, burst: 1}}}}"));
        let statsd = config.settings.metrics.statsd.expect("a StatsD");
        assert_eq!(statsd.smockron.as_deref(), Some(prefix), "{written}");
        let again = read(&config.native).settings.metrics.statsd.expect("a StatsD");
        assert_eq!(again, statsd, "{written}");
    }
    let wrong = faults("stats: {prefix: 'a|b'}\ndomains: {}");
    assert!(wrong.contains("default.yaml:1:17: `statsd_smockron`"), "{wrong}");
    assert!(faults("stats: {port: 99999}\ndomains: {}").contains("default.yaml:1:8: `statsd`"));
}

#[test]
fn what_means_nothing_is_warned_of() {
    let config = read(
        "server: {listen: 127.0.0.1, workers: 4}\n\
         domains: {d: {rate: 1/s, burst: 1, title: x, interval: 7}}\n\
         stats: {suffix: p}\n\
         colour: blue",
    );
    let told = config.warnings.join("\n");
    for (place, name) in [("1:29", "workers"), ("2:36", "title"), ("3:9", "suffix")] {
        assert!(told.contains(&format!("default.yaml:{place}: `{name}`")), "{name}: {told}");
    }
    assert!(
        told.contains("default.yaml:2:56: `interval` has no effect together with `rate`"),
        "{told}"
    );
    assert!(
        told.contains(
            "default.yaml:4:1: `colour` is not a key of Smockron's \
                           master"
        ),
        "{told}"
    );
}

#[test]
fn native_files_stay_native() {
    for native in [
        "master: {domains: {d: {rate: 1/s, burst: 1}}}",
        "proxy: {backend: 'http://127.0.0.1:80'}",
        "admin: off",
    ] {
        assert!(read(native).warnings.is_empty(), "{native}");
    }
    // An additional section does not turn a native file into one of another kind.
    let told = faults("proxy: {backend: 'http://127.0.0.1:80'}\ndomains: {}");
    assert!(told.contains("unknown key `domains`"), "{told}");
    assert!(faults("server: {port: 1}").contains("unknown key `server`"));
    assert!(faults("datastore: {host: x}").contains("a master without `domains`"));
    assert!(faults("domains: [1]").contains("must be a section of names"));
    assert!(faults("server: {listen: 127.0.0.1}\ndomains: null").contains("without `domains`"));
}

#[test]
fn fuzz_any_values_are_read_or_refused() {
    evenkeel_fuzz::fuzz().with_type::<(u8, String, i64)>().for_each(|(key, text, number)| {
        for value in [serde_json::json!(text), serde_json::json!(number), serde_json::json!([text])]
        {
            let rule = serde_json::json!({"rate": "1/s", "burst": 1});
            let mut file = serde_json::json!({"server": {}, "domains": {"d": rule}});
            match key % 7 {
                0 => file["server"]["listen"] = value,
                1 => file["domains"]["d"]["rate"] = value,
                2 => file["domains"]["d"]["burst"] = value,
                3 => file["domains"]["d"] = serde_json::json!({"interval": value, "burst": 1}),
                4 => file["domains"] = serde_json::json!({text: rule}),
                5 => file["stats"] = serde_json::json!({"host": value}),
                _ => file["stats"] = value,
            }
            let file = file.to_string();
            if let Ok(config) = parse("t.json", file.as_bytes(), 4.0) {
                let again = parse("shown", config.native.as_bytes(), 4.0).expect("good");
                assert_eq!(again.settings, config.settings, "{file}");
            }
        }
    });
}

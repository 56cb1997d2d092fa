//! A `tempomat.json` as Evenkeel runs it: the cases of its options, the exact warnings, and
//! arbitrary files, none of which may crash the parser.
//!
//! The behaviour of its buckets is tested with the models (`crates/core/tests/models/debt.rs`), and
//! the behaviour that clients see with the journeys.

use evenkeel_config::settings::{CostSource, GraphiteSelection, ProxySettings};
use evenkeel_config::{Config, parse};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::limit::{KeyPart, LimitAction, LimitUnit};
use evenkeel_core::table::BucketTable;
use evenkeel_core::units::{Cost, Nanos};

/// The number of CPUs of the machine.
const CPUS: f64 = 4.0;

fn read(text: &str) -> Config {
    match parse("/etc/tempomat.json", text.as_bytes(), CPUS) {
        Ok(config) => config,
        Err(faults) => panic!("{text}\n{faults}"),
    }
}

fn proxy(text: &str) -> ProxySettings {
    read(text).settings.proxy.expect("a proxy")
}

/// The rate of each limit in CPU-seconds a second.
fn rates(text: &str) -> Vec<f64> {
    let rate = |algorithm: &Algorithm| match algorithm {
        Algorithm::Debt(debt) => debt.rate().per_second(),
        other => panic!("{other:?}"),
    };
    proxy(text).limits.iter().map(|limit| rate(&limit.algorithm)).collect()
}

#[test]
fn t1_a_share_of_the_cpus_is_a_rate_and_none_is_all() {
    for (text, expected) in [
        (r#"{"slash32Share": 0.5, "cpuCount": 1}"#, [0.5, 1.0, 1.0, 1.0]),
        (r#"{"slash32Share": 0, "cpuCount": 4}"#, [4.0; 4]),
        (r#"{"cpuCount": 4}"#, [4.0; 4]),
        (r#"{"slash32Share": 0.1, "cpuCount": 4}"#, [0.4, 4.0, 4.0, 4.0]),
        (r#"{"userAgentShare": 0.25, "slash16Share": 0.5}"#, [4.0, 4.0, 2.0, 1.0]),
        (r#"{"slash32Share": 0.5, "slash16Share": 2.5, "cpuCount": 2}"#, [1.0, 2.0, 5.0, 2.0]),
    ] {
        for (found, expected) in rates(text).into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{text}: {found} {expected}");
        }
    }
}

#[test]
fn t2_the_defaults_and_an_unknown_key() {
    for text in ["{}", r#"{"dummy": "x"}"#, r#"{"hashMaxLen": null, "x": {"y": [1]}}"#] {
        let config = read(text);
        let metrics = config.settings.metrics;
        assert_eq!((metrics.held_above, metrics.graphite), (Nanos::from_secs(3), None));
        let proxy = config.settings.proxy.expect("a proxy");
        assert!(proxy.listen.iter().all(|l| l.port() == 8888 && l.ip().is_unspecified()));
        assert_eq!(proxy.backends[0].place, "localhost:80");
        assert_eq!((proxy.cost, proxy.action), (CostSource::Wall, LimitAction::Hold));
        assert_eq!((proxy.max_delay, proxy.cpus), (Nanos::from_secs(120), CPUS));
        assert!(proxy.trusted_proxies.is_empty());
        assert_eq!(proxy.names_max, 1_000);
        let ip = |v4, v6| KeyPart::Ip { v4, v6 };
        let expected = [
            ("Slash32", ip(32, 64), 30),
            ("Slash24", ip(24, 48), 30),
            ("Slash16", ip(16, 32), 30),
            ("UserAgent", KeyPart::UserAgent, 120),
        ];
        for (limit, (name, by, burst)) in proxy.limits.iter().zip(expected) {
            assert_eq!((&*limit.name, &limit.by, limit.unit), (name, &vec![by], LimitUnit::Cpu));
            let Algorithm::Debt(debt) = &limit.algorithm else { panic!("{name}") };
            assert_eq!(debt.burst(), Cost::cpu(Nanos::from_secs(burst)), "{name}");
            assert_eq!((limit.keys_max, limit.action), (1_000, Some(LimitAction::Hold)), "{name}");
        }
        assert_eq!(proxy.limits.len(), 4);
    }
}

#[test]
fn the_example_is_read_in_full_and_what_is_shown_runs_the_same() {
    let text = include_str!("../../../../examples/from/tempomat.json");
    let config = parse("t.json", text.as_bytes(), CPUS).expect("good");
    assert_eq!(config.warnings, [""; 0]);
    let native = parse("native.yaml", config.native.as_bytes(), CPUS).expect("good");
    assert_eq!(native, config);
    let Config { settings, .. } = config;
    assert_eq!(settings.metrics.graphite.as_deref(), Some("localhost:2003"));
    assert_eq!(settings.metrics.graphite_lines, GraphiteSelection::Limits);
    let prefix = settings.metrics.graphite_prefix;
    assert!(prefix.starts_with("tempomat.") && !prefix.contains('{'), "{prefix}");
    assert!(native.native.contains("graphite_prefix: \"tempomat.{hostname}\"\n"));
    let proxy = settings.proxy.expect("a proxy");
    let trusted: Vec<String> = proxy.trusted_proxies.iter().map(ToString::to_string).collect();
    assert_eq!(trusted, ["127.0.0.1/32", "10.0.0.5/32"]);
}

#[test]
fn t27_graphite_is_named_with_and_without_its_scheme() {
    for (written, expected) in
        [("tcp://g:2003", Some("g:2003")), ("g:2003", Some("g:2003")), ("", None)]
    {
        let text = format!(r#"{{"graphite": "{written}", "graphitePrefix": "a.{{hostname}}"}}"#);
        assert_eq!(read(&text).settings.metrics.graphite.as_deref(), expected);
    }
}

/// T22 for the table: whatever `hashMaxLen` is, there are never more keys than that.
#[test]
fn t22_no_table_has_more_places_than_hash_max_len() {
    for length in [1, 2, 100, 1_000, 4_096, 4_097, 5_000, 6_143, 6_144, 10_000, 100_000] {
        let proxy = proxy(&format!(r#"{{"hashMaxLen": {length}}}"#));
        assert_eq!(proxy.names_max, length);
        for limit in &proxy.limits {
            let table = BucketTable::new(limit.keys_max, 1);
            // A place takes 16 bytes. Tables that rarely drop a key are half empty on purpose.
            let exact = limit.keys_max <= evenkeel_core::table::EXACT_KEYS_MAX;
            let places = if exact { limit.keys_max } else { table.bytes() / 16 };
            assert!(places <= length, "{length}: {places}");
            assert!(limit.keys_max * 3 + 32 > length * 2, "{length}: {}", limit.keys_max);
        }
    }
}

#[test]
fn what_means_nothing_is_warned_of_and_runs() {
    for (text, told) in [
        (r#"{"debug": true}"#, ":1:11: `debug` has no effect; `evenkeel show` prints"),
        (r#"{"statsFile": "/tmp/x"}"#, ":1:2: `statsFile` is a key of Tempomat before 0.3"),
        (r#"{"slash32CPUs": 3}"#, ":1:2: `slash32CPUs` is a key of Tempomat before 0.3"),
        (r#"{"hashMaxLem": 3}"#, ":1:2: `hashMaxLem` is not a key of Tempomat"),
        (r#"{"trustedProxies": "127.0.0.1, x"}"#, ":1:20: `x` is not an address and has no effect"),
        (r#"{"trustedProxies": "10.0.0.0/8"}"#, ":1:20: all of `10.0.0.0/8` is trusted"),
        (r#"{"hashMaxLen": 0}"#, ":1:16: `hashMaxLen` must be from 1 to 1048576; 1000 is used"),
        (r#"{"hashMaxLen": 10000}"#, ":1:16: `hashMaxLen: 10000` becomes a table for 6666 keys"),
        (r#"{"slash32Share": 1.5}"#, ":1:1: a share is 1.5, and the maximum is 1"),
    ] {
        let warnings = read(text).warnings;
        let expected = format!("/etc/tempomat.json{told}");
        assert!(warnings.iter().any(|w| w.starts_with(&expected)), "{text}: {warnings:?}");
        assert_eq!(warnings.len(), 1, "{text}: {warnings:?}");
    }
}

#[test]
fn what_cannot_be_meant_is_a_fault_at_its_place() {
    for (text, told) in [
        (r#"{"cpuCount": "many"}"#, "1:14: `cpuCount` is `many`: not a number of at least 0"),
        (r#"{"cpuCount": -1}"#, "1:14: `cpuCount` is `-1`: not a number of at least 0"),
        (r#"{"slash32Share": -0.5}"#, "1:18: `slash32Share` is `-0.5`"),
        (r#"{"delayThresholdSec": "nan"}"#, "1:23: `delayThresholdSec` is `nan`"),
        (r#"{"listenPort": 70000}"#, "1:16: `listenPort` must be a whole number from 0 to 65535"),
        (r#"{"listenPort": [1]}"#, "1:16: `listenPort` must be a single value"),
        (r#"{"backend": "ftp://x"}"#, "1:13: `backend` is `ftp://x`"),
        (r#"{"graphite": "g:2003"}"#, "1:14: `graphite` needs a `graphitePrefix`"),
        (r#"{"graphite": "g", "graphitePrefix": "a"}"#, "1:14: `graphite` is `g`: write tcp://"),
        (r#"{"proxy": {}, "hashMaxLen": 3}"#, "1:2: `proxy` is a key of a native configuration"),
    ] {
        let faults = parse("t.json", text.as_bytes(), CPUS).expect_err("faulty").to_string();
        assert!(faults.starts_with(&format!("t.json:{told}")), "{text}: {faults}");
    }
}

#[test]
fn it_is_read_as_go_reads_json() {
    let text = "\u{feff}{\n\t\"LISTENPORT\": 1,\n\t\"listenPort\": 81,\t\"backend\": \
                \"http:\\/\\/127.0.0.1:8080\",\n\t\"cpucount\": 2e0\n}\n";
    let proxy = proxy(text);
    assert_eq!(proxy.listen[0].port(), 81, "the last of two");
    assert_eq!((proxy.backends[0].place.as_str(), proxy.cpus), ("127.0.0.1:8080", 2.0));
}

#[test]
fn native_sections_beside_it_move_what_tempomat_did_not_have() {
    let text = r#"{"hashMaxLen": 5, "admin": {"listen": "127.0.0.1:1"}, "log": {"format": "json"},
                  "state": {"file": "/var/lib/evenkeel/state"}}"#;
    let config = read(text);
    assert_eq!(config.warnings, [""; 0]);
    assert_eq!(config.settings.admin.expect("open").listen[0].port(), 1);
    assert!(config.settings.state.file.is_some());
}

#[test]
fn it_is_known_by_its_keys() {
    let is = |file: &str, text: &str| {
        let config = parse(file, text.as_bytes(), CPUS);
        config.is_ok_and(|config| config.native.contains("name: Slash32"))
    };
    for text in [
        r#"{"slash32Share": 0.1}"#,
        "listenPort: 8888",
        r#"{"hashmaxlen": 10}"#,
        r#"{"statsFile": "x"}"#,
        r#"{"backend": "http://localhost:80", "debug": false}"#,
    ] {
        assert!(is("any", text), "{text}");
    }
    assert!(is("/etc/tempomat.json", "{}"));
    assert!(is("x.json", r#"{"backend": "http://localhost:80"}"#));
    for (file, text) in [
        ("x.yaml", "backend: http://localhost:80"),
        ("x.json", "{}"),
        ("tempomat.json", r#"{"proxy": {}}"#),
        ("x.json", r#"{"proxy": {}}"#),
    ] {
        assert!(!is(file, text), "{file}: {text}");
    }
}

/// A reload compares the file with the running configuration in its native form.
#[test]
fn t24_a_reload_changes_rates_and_proxies_and_keeps_where_it_listens() {
    let running = read(r#"{"slash32Share": 0.1, "listenPort": 1}"#);
    let wanted = r#"{"slash32Share": 0.2, "trustedProxies": "10.0.0.1", "listenPort": 2}"#;
    let (taken, kept) = read(wanted).reloaded(&running).expect("they go together");
    assert_eq!(kept, ["proxy.listen"]);
    let proxy = taken.settings.proxy.expect("a proxy");
    assert_eq!((proxy.listen[0].port(), proxy.trusted_proxies.len()), (1, 1));
    let Algorithm::Debt(debt) = &proxy.limits[0].algorithm else { panic!("a share") };
    assert!((debt.rate().per_second() - 0.8).abs() < 1e-9);
}

#[test]
fn fuzz_any_values_are_read_or_refused() {
    const KEYS: [&str; 9] = [
        "backend",
        "listenPort",
        "graphite",
        "graphitePrefix",
        "trustedProxies",
        "cpuCount",
        "slash16Share",
        "hashMaxLen",
        "delayThresholdSec",
    ];
    evenkeel_fuzz::fuzz().with_type::<(u8, String, f64)>().for_each(|(key, text, number)| {
        let key = KEYS[usize::from(*key) % KEYS.len()];
        for value in [serde_json::json!(text), serde_json::json!(number)] {
            let file = serde_json::json!({ key: value, "graphitePrefix": "a" }).to_string();
            if let Ok(config) = parse("t.json", file.as_bytes(), CPUS) {
                let again = parse("shown", config.native.as_bytes(), CPUS).expect("good");
                assert_eq!(again.settings, config.settings, "{file}");
            }
        }
    });
}

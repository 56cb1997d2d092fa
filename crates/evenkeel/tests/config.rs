//! Configurations from text to settings: valid ones, invalid ones, and the exact error messages.
//! The table of errors shows what users see, word for word. The last test reads arbitrary bytes.

#[path = "config/advice.rs"]
mod advice;
#[path = "config/conditions.rs"]
mod conditions;
#[path = "config/doubts.rs"]
mod doubts;
#[path = "config/front.rs"]
mod front;
#[path = "config/gatekeeper.rs"]
mod gatekeeper;
#[path = "config/include.rs"]
mod include;
#[path = "config/models.rs"]
mod models;
#[path = "config/peers.rs"]
mod peers;
#[path = "config/reload.rs"]
mod reload;
#[path = "config/robots.rs"]
mod robots;
#[path = "config/schema.rs"]
mod schema;
#[path = "config/seen.rs"]
mod seen;
#[path = "config/store.rs"]
mod store;
#[path = "config/written.rs"]
mod written;

use evenkeel_config::settings::{
    ClientAddress, CostSource, LogFormat, LogLevel, WaitingRoomSettings,
};
use evenkeel_config::source::{ConfigChange, ConfigSource};
use evenkeel_config::{Config, ProxyFlags, StartProblems, check, from_flags, parse};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::condition::Clause;
use evenkeel_core::condition::patterns::{PathPatterns, Patterns};
use evenkeel_core::limit::{KeyPart, LimitAction, LimitUnit};
use evenkeel_core::units::{Cost, Nanos};
use std::fs;
use std::path::Path;
use std::time::Duration;

fn good(text: &str) -> Config {
    match parse("t.yaml", text.as_bytes(), 4.0) {
        Ok(config) => config,
        Err(faults) => panic!("{text}\n{faults}"),
    }
}

fn faults(text: &str) -> String {
    match parse("t.yaml", text.as_bytes(), 4.0) {
        Ok(config) => panic!("no fault in\n{text}\n{}", config.native),
        Err(faults) => faults.to_string(),
    }
}

#[test]
fn an_empty_file_opens_admin_alone() {
    for text in ["", "# nothing\n", "---\n", "{}", "null"] {
        let config = good(text);
        assert!(config.settings.proxy.is_none(), "{text}");
        let admin = config.settings.admin.expect("on by default");
        assert_eq!(admin.listen, ["127.0.0.1:9970".parse().expect("an address")]);
        assert!(!admin.asked_for);
    }
    assert!(good("admin: off").settings.admin.is_none());
}

#[test]
fn an_empty_proxy_has_the_defaults_of_the_contract() {
    for text in ["proxy:", "proxy: {}", "{\"proxy\": {}}"] {
        let proxy = good(text).settings.proxy.expect("open");
        assert_eq!(proxy.listen, ["0.0.0.0:8888".parse().expect("an address")]);
        assert_eq!(proxy.backends[0].to_string(), "http://127.0.0.1:80");
        assert_eq!((proxy.cpus, &proxy.cost), (4.0, &CostSource::Shared));
        assert_eq!((proxy.action, proxy.max_delay), (LimitAction::Queue, Nanos::from_secs(30)));
        let names: Vec<&str> = proxy.limits.iter().map(|limit| &*limit.name).collect();
        assert_eq!(names, ["ip", "net24", "net16"]);
        let Algorithm::Debt(debt) = &proxy.limits[1].algorithm else { panic!("a share") };
        assert!((debt.rate().per_second() - 1.0).abs() < 1e-12);
        assert_eq!(debt.burst(), Cost::cpu(Nanos::from_secs(30)));
        assert_eq!(proxy.limits[1].by, [KeyPart::Ip { v4: 24, v6: 48 }]);
    }
    assert!(good("proxy: {limits: []}").settings.proxy.expect("open").limits.is_empty());
}

#[test]
fn the_example_is_read_in_full() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/evenkeel.yaml");
    let config = good(&fs::read_to_string(path).expect("there"));
    let proxy = config.settings.proxy.expect("open");
    assert_eq!(config.settings.log.level, LogLevel::Info);
    assert_eq!(config.settings.log.format, LogFormat::Text);
    assert_eq!(proxy.trusted_proxies.len(), 3);
    assert_eq!(proxy.client_address, ClientAddress::XForwardedFor);
    assert_eq!(proxy.bounds.header_bytes, 65_536);
    assert_eq!(proxy.exempt.len(), 1);
    let logins = &proxy.limits[3];
    assert_eq!((logins.unit, logins.action), (LimitUnit::Hits, Some(LimitAction::Reject)));
    let posts = Clause::Method(Patterns::new(["POST"]).expect("a pattern"));
    let path = Clause::Path(PathPatterns::new(["/login"]).expect("a path"));
    assert_eq!(logins.when.clauses, [posts, path]);
    let Algorithm::Sliding(window) = &proxy.limits[5].algorithm else { panic!("a window") };
    assert_eq!(window.max(), Cost::cpu(Nanos::from_millis(1050)));
}

#[test]
fn what_is_shown_runs_the_same() {
    let example = include_str!("../../../examples/evenkeel.yaml");
    let odd = "admin: {listen: ['[::1]:9', 127.0.0.1:10], token_file: '/tmp/a: #b'}\n\
               log: {level: trace, format: json}\n\
               proxy: {cost: 'header:X-Cost', cost_header: keep, cpus: 0.30000000000000004, \
               streams: charge, exempt: ip:2001:db8::/32, timeouts: {idle: 1.000000001s}, \
               trusted_proxies: ::1, client_address: forwarded, limits: [{name: x, by: ip/9, \
               share: 33.3333%}, {name: y, by: all, rate: 7 per 3s, burst: 2, keys_max: 5}, \
               {name: z, by: host, window: 90s, max: 3.3%, action: delay, \
               shadow: true}]}";
    for text in ["", "proxy:", "admin: off", example, odd] {
        let first = good(text);
        let second = good(&first.native);
        assert_eq!(first.settings, second.settings, "{}", first.native);
        assert_eq!(first.native, second.native);
    }
}

#[test]
fn what_is_shown_reads_like_this() {
    let shown = good("proxy: {exempt: ip:192.0.2.1, limits: {name: a, by: all, rate: 5/m}}").native;
    assert_eq!(
        shown,
        "admin:\n  listen: [127.0.0.1:9970]\n\
         log:\n  level: info\n  format: text\nmetrics:\n  held_above: 3s\n\
         proxy:\n  listen: [0.0.0.0:8888]\n  redirect_to_https: false\n  \
         backend: [http://127.0.0.1:80]\n  \
         upgrades: [websocket]\n  \
         cost: shared\n  cpus: 4\n  streams: leave\n  \
         action: queue\n  queue:\n    concurrency: auto\n    engine_metrics: auto\n    \
         reserve: 8\n    len_max: 4096\n    wait_max: 30s\n    known: auto\n    \
         known_max: 65536\n    waiting_room: true\n    shared: false\n  max_delay: 30s\n  \
         http2: true\n  trusted_proxies: []\n  client_address: xff\n  \
         timeouts:\n    header: 10s\n    connect: 3s\n    idle: 1m\n    backend: 5m\n    \
         drain: 30s\n    abort_linger: 5s\n    tunnel: 1h\n  \
         bounds:\n    connections: 10000\n    connections_per_address: 0\n    \
         header_bytes: 65536\n    body_bytes: 0\n    body_buffer: 65536\n    \
         requests_per_connection: 0\n    streams: 100\n    backend_streams: 100\n  \
         exempt: [ip:192.0.2.1]\n  shadow: false\n  \
         headers: false\n  cost_header: strip\n  names_max: 1000\n  \
         limits:\n    - name: a\n      by: [all]\n      rate: 5/m\n      burst: 5\n      \
         action: reject\n      weight: 1\n      keys_max: 262144\n"
    );
}

#[test]
fn every_fault_of_a_file_is_told_at_its_place() {
    let text = "\
admni: {}
log: {level: loud}
proxy:
  listen: 0.0.0.0:8888
  backend: http://127.0.0.1:8888
  backend: http://127.0.0.1:80
  max_delay: 10
  trusted_proxies: [10.0.0.0/33]
  limits:
    - {name: a, by: ip/33, share: 10%}
    - {name: b, by: all, share: 10%, rate: 5/m}
    - {name: b, by: all, window: 15s}
    - {name: b, by: all, rate: 1/s, max: 3s}
store: {redis: 'a:0'}
";
    let told = faults(text);
    let expected = [
        "t.yaml:1:1: unknown key `admni`; did you mean `admin`?",
        "t.yaml:2:14: `level` is `loud`: must be one of: error, warn, info, debug, trace",
        "t.yaml:5:12: `backend` http://127.0.0.1:8888 is the proxy itself, which listens on \
         0.0.0.0:8888; name the server behind it",
        "t.yaml:6:3: `backend` occurs twice, first in line 5; remove one",
        "t.yaml:7:14: `max_delay` is `10`: has no unit; write 10s, 10ms or 10m",
        "t.yaml:8:21: `trusted_proxies` is `10.0.0.0/33`: not a network; the number after `/` \
         must be from 0 to 32",
        "t.yaml:10:21: `by` is `ip/33`: an IPv4 network has 0 to 32 bits",
        "t.yaml:11:44: a limit has `share` or `rate`, not both; remove one",
        "t.yaml:12:7: a limit needs `max`",
        "t.yaml:13:42: `max` belongs to `window`, which is missing; add it, or remove `max`",
        "t.yaml:13:14: two limits are named `b`; rename one",
        "t.yaml:14:16: `redis` is `a:0`: write redis://127.0.0.1:6379, \
         rediss://user:password@host:6379/0 or unix:///run/redis.sock",
    ];
    for line in expected {
        assert!(told.lines().any(|told| told == line), "missing: {line}\ntold:\n{told}");
    }
    assert_eq!(told.lines().count(), expected.len(), "{told}");
}

#[test]
fn faults_of_the_queue() {
    for (text, what) in [
        ("proxy: {action: wait}", "must be one of: queue, hold, delay, reject"),
        ("proxy: {queue: {concurrency: 0}}", "must be from 1 to 1000000, or auto"),
        ("proxy: {queue: {workers: 0}}", "`workers` is `0`: must be from 1 to 1000000"),
        ("proxy: {queue: {workers: auto}}", "not a whole number"),
        (
            "proxy: {queue: {concurrency: 9, workers: 8}}",
            "`concurrency` 9 is more than `workers`, 8; lower it, or write auto",
        ),
        ("proxy: {queue: {lenmax: 5}}", "did you mean `len_max`?"),
        ("proxy: {queue: {wait_max: 2d}}", "must be from"),
        ("proxy: {queue: {debt_max: 0s}}", "must be from"),
        ("proxy: {queue: {waiting_room: maybe}}", "must be one of: true, false"),
        ("proxy: {queue: {waiting_room: [a]}}", "`waiting_room` must be a section"),
        ("proxy: {queue: {waiting_room: {pages: a}}}", "did you mean `page`?"),
        ("proxy: {queue: {waiting_room: {page: ''}}}", "name a file"),
    ] {
        let told = faults(text);
        assert!(told.contains(what), "{text}: {told}");
    }
}

#[test]
fn a_waiting_room_is_there_unless_it_is_turned_off() {
    let room = |text: &str| {
        let config = good(&format!("proxy: {{queue: {{{text}}}}}"));
        let again = good(&config.native);
        assert_eq!((&again.settings, &again.native), (&config.settings, &config.native), "{text}");
        config.settings.proxy.expect("there").queue.waiting_room
    };
    for text in ["", "waiting_room: true", "waiting_room:", "waiting_room: {}"] {
        assert_eq!(room(text), Some(WaitingRoomSettings::default()), "{text}");
    }
    assert_eq!(room("waiting_room: false"), None);
    let files = room("waiting_room: {secret_file: /s, page: /p}").expect("there");
    assert_eq!((files.secret_file, files.page), (Some("/s".into()), Some("/p".into())));
}

#[test]
fn each_of_these_is_faulty() {
    for (text, what) in [
        ("[1, 2]", "1:1: the file must be a section: keys with values, such as `proxy:`"),
        ("a: b: c", "this line and of the one before it; a value that contains `: ` needs quotes"),
        ("proxy:\n\tcpus: 1", "indent with spaces"),
        ("proxy:\n  cpus: 1\n\tshadow: true", "indent with spaces"),
        ("[proxy]\nbackend = 'x'", "`=` is not of YAML"),
        ("a: [1", "not YAML"),
        ("proxy: 5", "1:8: `proxy` must be a section"),
        ("proxy: {listen: {a: 1}}", "must be a single value, not a section"),
        ("proxy: {cpus: [1]}", "must be a single value, not a list"),
        ("proxy: {cpus: 0}", "must be from 0.01 to 65536"),
        ("proxy: {cpus: .inf}", "not a number of CPUs"),
        ("proxy: {backend: h2c+unix://a}", "not a path; write h2c+unix:///run/app.sock"),
        ("proxy: {backend: http://a/b}", "only a host and a port"),
        ("proxy: {backend: 'http://:80'}", "not a host and port"),
        ("proxy: {backend: 'http://a:0'}", "not a host and port"),
        (
            "proxy: {backend: 'http://a:99999'}",
            "a port is a number from 1 to 65535; write http://a:80",
        ),
        ("proxy: {backend: [http://a, http://a]}", "`backend` http://a:80 occurs twice"),
        ("proxy: {backend: http://localhost:8888}", "is the proxy itself"),
        ("proxy: {cost: 'cgroup:x'}", "write cgroup:/system.slice"),
        ("proxy: {cost: header}", "must be wall, shared, header:NAME, cgroup:PATH or tokens"),
        ("proxy: {cost: 'header:a b'}", "a name has 1 to 64"),
        ("proxy: {client_address: forwarded}", "used only for `trusted_proxies`"),
        ("proxy: {cost_header: keep}", "needs `cost: header:NAME`"),
        ("proxy: {shadow: yes}", "must be one of: true, false"),
        ("proxy: {timeouts: {idle: 0s}}", "must be from 1ms to 1d"),
        ("proxy: {timeouts: {idel: 1s}}", "did you mean `idle`?"),
        ("proxy: {bounds: {header_bytes: 64kb}}", "not a size"),
        ("proxy: {bounds: {body_bytes: 99999999999g}}", "not a size"),
        ("proxy: {listen: '127.0.0.1:9970'}", "two listeners use 127.0.0.1:9970"),
        ("admin: {listen: '0.0.0.0:9970'}", "needs a `token_file`"),
        ("admin: on", "must be `off` or a section"),
        ("proxy: {limits: [{by: all, share: 1%}]}", "a limit needs `name`"),
        ("proxy: {limits: [{name: a, share: 1%}]}", "a limit needs `by`"),
        ("proxy: {limits: [{name: a, by: all}]}", "one of `share`, `rate` or `window`"),
        ("proxy: {limits: [{name: a b, by: all, share: 1%}]}", "a name has 1 to 64"),
        ("proxy: {limits: [{name: a, by: ipp, share: 1%}]}", "must be ip/N"),
        ("proxy: {limits: [{name: a, by: key, share: 1%}]}", "must be written api-key"),
        ("proxy: {limits: [{name: a, by: [ip/8, ip/9], share: 1%}]}", "two networks of one kind"),
        ("proxy: {limits: [{name: a, by: all, share: 101%}]}", "not a share"),
        ("proxy: {limits: [{name: a, by: all, rate: 5/m, burst: 0}]}", "the minimum is 1"),
        ("line: {burst: 0}", "with 0 no request could pass"),
        ("proxy: {limits: [{name: a, by: all, rate: 5/m, burst: 30s}]}", "number of requests"),
        ("proxy: {limits: [{name: a, by: all, window: 1500ms, max: 1s}]}", "window"),
        ("proxy: {limits: [{name: a, by: all, window: 5s, max: 1s, burst: 3s}]}", "remove it"),
        ("proxy: {limits: [{name: a, by: all, share: 1%, weight: 0}]}", "not a weight"),
        ("proxy: {limits: [{name: a, by: all, share: 1%, weight: 101}]}", "from 0.01 to 100"),
        ("proxy: {limits: [{name: a, by: all, share: 1%, weight: -1}]}", "write 4 or 0.25"),
        ("proxy: {limits: [{name: a, by: all, share: 1%, keys_max: 0}]}", "must be from 1 to"),
        ("proxy: {limits: [{name: a, by: all, share: 1%, when: {path: x}}]}", "begins with /"),
        ("proxy: {limits: [5]}", "must be a section"),
        (
            &format!("proxy: {{exempt: [{}]}}", "ip:::1, ".repeat(1_025)),
            "1025 entries are too many",
        ),
        ("a: !include x", "is a tag"),
        ("a: 1\n---\nb: 2", "a second document"),
        ("<<: {a: 1}", "merge keys are not supported"),
        ("? [a]\n: b", "a key must be a plain word"),
    ] {
        let told = faults(text);
        assert!(told.contains(what), "{text}\nwants: {what}\ntold: {told}");
        assert!(told.lines().all(|line| line.starts_with("t.yaml:")), "{told}");
    }
}

#[test]
fn state_says_where_how_often_and_how_many_keys() {
    let config = good(
        "state: {file: /s, keys_max: 7}\nproxy: {limits: [\
        {name: a, by: all, share: 1%}, {name: b, by: all, share: 1%, keys_max: 9}, \
        {name: c, by: all, window: 5s, max: 1s}]}",
    );
    let state = config.settings.state;
    assert_eq!((state.file, state.every.as_secs()), (Some("/s".into()), 5));
    let proxy = config.settings.proxy.expect("a proxy");
    let keys: Vec<usize> = proxy.limits.iter().map(|limit| limit.keys_max).collect();
    assert_eq!(keys, [7, 9, 7]);
    assert!(config.native.contains("state:\n  file: /s\n  every: 5s\n  keys_max: 7\n"));
    assert_eq!(good("proxy:").settings.state.file, None);
}

#[test]
fn hostile_documents_end_in_a_fault() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let repeat = format!("*a{}, ", level - 1).repeat(9);
        bomb += &format!("a{level}: &a{level} [{repeat}]\n");
    }
    assert!(faults(&bomb).contains("aliases repeat more than 50000 keys and values"));
    assert!(faults(&"[".repeat(10_000)).contains("not YAML"));
    assert!(faults(&"- ".repeat(10_000)).contains("nested deeper"));
    assert!(faults(&"x".repeat((1 << 20) + 1)).contains("bytes are too many"));
    assert!(faults(&format!("[{}]", "a,".repeat(400_000))).contains("more than 50000"));
    let keys: String = (0..20_000).map(|n| format!("k{n}: 1\n")).collect();
    assert!(faults(&keys).lines().count() < 200);
    let bad = parse("t.yaml", b"a: 1\nb: \xff", 4.0).expect_err("not text");
    assert_eq!(bad.to_string(), "t.yaml:2:4: not UTF-8; save the file as UTF-8 text");
}

#[test]
fn flags_are_a_configuration_too() {
    let flags = ProxyFlags { backend: "http://127.0.0.1:8080".into(), ..ProxyFlags::default() };
    let proxy = from_flags(&flags, 2.0).expect("good").settings.proxy.expect("open");
    assert_eq!((proxy.cpus, proxy.limits.len()), (2.0, 3));
    let shadow = ProxyFlags { shadow: true, ..flags.clone() };
    assert!(from_flags(&shadow, 2.0).expect("good").settings.proxy.expect("open").shadow);
    let flags = ProxyFlags { cpus: Some("many".into()), admin: Some("off".into()), ..flags };
    let told = from_flags(&flags, 2.0).expect_err("faulty").to_string();
    assert_eq!(told, "command line: `--cpus` is `many`: not a number of CPUs; write 4 or 0.5");
    let some = |text: &str| Some(text.to_owned());
    let wrong = ProxyFlags {
        backend: "http://127.0.0.1:9".into(),
        listen: vec!["nine".into(), ":9".into()],
        preset: some("opnai"),
        cpus: None,
        action: some("hodl"),
        cost: some("header"),
        trusted_proxies: vec!["all".into()],
        admin: some("all"),
        shadow: true,
    };
    let told = from_flags(&wrong, 2.0).expect_err("faulty").to_string();
    for flag in ["backend", "listen", "preset", "action", "cost", "trusted-proxies", "admin"] {
        let starts = format!("command line: `--{flag}` ");
        assert_eq!(told.lines().filter(|line| line.starts_with(&starts)).count(), 1, "{told}");
    }
    assert_eq!(told.lines().count(), 7, "{told}");
    let open = ProxyFlags { admin: some("0.0.0.0:9970"), listen: Vec::new(), ..wrong };
    let told = from_flags(&open, 2.0).expect_err("faulty").to_string();
    assert!(told.contains("`--admin` beyond loopback needs a `token_file`"), "{told}");
}

#[test]
fn check_finds_what_a_start_would_stumble_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("key");
    let checked =
        |text: &str| match check("t.yaml", text.as_bytes(), 4.0, evenkeel_tls::start_problems) {
            Ok(_) => "good".to_owned(),
            Err(faults) => faults.to_string(),
        };
    for text in ["", "# nothing\n", "\nlog: {level: info}"] {
        assert!(checked(text).starts_with("t.yaml:1:1: no door to open: "), "{text}");
    }
    let text = format!("proxy:\nadmin:\n  token_file: {}\n", path.display());
    let told = checked(&text);
    assert!(told.starts_with("t.yaml:3:15: cannot read the token in "), "{told}");
    fs::write(&path, "").expect("saved");
    assert!(checked(&text).contains("must hold a token"), "{}", checked(&text));
    fs::write(&path, "0123456789abcdef").expect("saved");
    assert_eq!(checked(&text), "good");
    let told = checked("line:\npeers:\n  secret_file: /none\n  tls: {cert: /a, key: /b, ca: /c}");
    let lines: Vec<_> = told.lines().collect();
    assert!(lines[0].starts_with("t.yaml:3:16: cannot read the token in /none: "), "{told}");
    assert!(lines[1].starts_with("t.yaml:4:8: cannot read /a: "), "{told}");
    let text = "ratelimit: {rules: off, tls: {cert: /d, key: /e}}";
    assert!(checked(text).starts_with("t.yaml:1:30: cannot read /d: "), "{}", checked(text));
    let told = checked("ratelimit: {rules: off, tls: {key: /e, client_name: 'a b'}}");
    assert!(told.contains("`tls` needs `cert`: a file in PEM"), "{told}");
    assert!(told.contains("`client_name` is `a b`: write a DNS name"), "{told}");
    let text = b"state: {file: /nowhere/state}\nline: {listen: '127.0.0.1:3'}\n\
                 ratelimit: {rules: /nowhere/rules}\n\
                 master: {accounting: 'tcp://*:1', domains: {a: [{rate: 1/s, burst: 1}]}}";
    let warned = check("t.yaml", text, 4.0, |_| StartProblems::default()).expect("good");
    let expected = [
        "t.yaml:1:15: `state` needs the folder /nowhere, which does not exist",
        "t.yaml:3:20: /nowhere/rules does not exist; all requests are allowed until it does",
        "t.yaml:4:9: the master listens beyond loopback, and any host that reaches it",
    ];
    assert_eq!(warned.len(), expected.len(), "{warned:?}");
    for (warned, expected) in warned.iter().zip(expected) {
        assert!(warned.starts_with(expected), "{warned}");
    }
    assert!(checked("proxy: {cpus: x}").starts_with("t.yaml:1:15: `cpus`"));
}

/// Instances that count together answer the same visitors.
#[test]
fn instances_without_a_common_key_for_visitors_are_warned_of() {
    let warns = |proxy: &str, more: &str| {
        let text = format!("proxy: {{backend: 'http://127.0.0.1:1', {proxy}}}\n{more}");
        let warned = check("t.yaml", text.as_bytes(), 4.0, |_| StartProblems::default());
        let warned = warned.expect("good").join("\n");
        assert!(
            warned.is_empty() || warned.contains("`queue.waiting_room.secret_file`"),
            "{warned}"
        );
        !warned.is_empty()
    };
    let secret = tempfile::NamedTempFile::new().expect("a file");
    fs::write(secret.path(), "0123456789abcdef").expect("saved");
    let secret = secret.path().display();
    let peers = "peers: {listen: '127.0.0.1:3'}";
    let store = "store: {redis: '127.0.0.1:6379'}";
    for together in [peers, store] {
        assert!(warns("", together), "{together}");
        assert!(warns("queue: {waiting_room: true}", together), "{together}");
        assert!(!warns("queue: {waiting_room: false}", together), "{together}");
        let room = format!("queue: {{waiting_room: {{secret_file: {secret}}}}}");
        assert!(!warns(&room, together), "{together}");
        assert!(!warns("listen: off", &format!("{together}\ncheck:")), "{together}");
    }
    let shared = format!("peers: {{listen: '127.0.0.1:3', secret_file: {secret}}}");
    assert!(!warns("", &shared) && !warns("", ""));
    let text = format!("proxy: {{backend: 'http://127.0.0.1:1', queue: {{known: off}}}}\n{peers}");
    let warned = check("t.yaml", text.as_bytes(), 4.0, |_| StartProblems::default());
    assert!(warned.expect("good").is_empty());
}

#[test]
fn t26_a_changed_file_is_seen_a_faulty_one_refused_and_the_next_good_one_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("saved");
    write("one", "proxy: {cpus: 1}");
    write("two", "proxy: {cpus: oops}");
    write("three", "proxy: {cpus: 3}");
    let link = folder.path().join("evenkeel.yaml");
    let point = |to: &str| {
        let next = folder.path().join("next");
        std::os::unix::fs::symlink(folder.path().join(to), &next).expect("linked");
        fs::rename(&next, &link).expect("swapped");
    };
    point("one");
    let mut source = ConfigSource::new(&link);
    assert!(source.load(4.0).is_ok());
    // The file is read at the second check: while it still changes, it is being written.
    let mut look = || match source.look(4.0) {
        ConfigChange::None => source.look(4.0),
        change => panic!("too early: {change:?}"),
    };
    assert_eq!(look(), ConfigChange::None);
    point("two");
    assert!(matches!(look(), ConfigChange::Faulty(_)));
    assert_eq!(look(), ConfigChange::None, "told once");
    point("three");
    let ConfigChange::Good(config) = look() else { panic!("a good one") };
    assert_eq!(config.settings.proxy.map(|proxy| proxy.cpus), Some(3.0));
    write("three", "proxy: {cpus: 4}");
    assert!(matches!(look(), ConfigChange::Good(_)), "changed in place");
    fs::remove_file(&link).expect("gone");
    assert_eq!(look(), ConfigChange::None, "gone for now");
}

#[test]
fn fuzz_any_bytes_are_read_or_refused() {
    evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
        if let Ok(config) = parse("t.yaml", bytes, 4.0) {
            let again = parse("shown", config.native.as_bytes(), 4.0);
            assert_eq!(again.expect("what is shown is good").native, config.native);
        }
    });
}

/// Words of real configurations in any order test deeper code than arbitrary bytes.
#[test]
fn fuzz_any_words_are_read_or_refused() {
    const WORDS: [&str; 40] = [
        "proxy",
        "admin",
        "log",
        "limits",
        "name",
        "by",
        "share",
        "rate",
        "window",
        "max",
        "burst",
        "action",
        "when",
        "timeouts",
        "bounds",
        "listen",
        "backend",
        ": ",
        ":\n ",
        ":\n  ",
        "\n- ",
        "\n  - ",
        "\n    ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        "ip/24",
        "all",
        "10%",
        "5/m",
        "15s",
        "hold",
        "http://a",
        "127.0.0.1:1",
        "&a ",
        "*a",
        "\"",
        "#",
    ];
    evenkeel_fuzz::fuzz().for_each(|bytes: &[u8]| {
        let text: String = bytes.iter().map(|b| WORDS[usize::from(*b) % WORDS.len()]).collect();
        if let Ok(config) = parse("t.yaml", text.as_bytes(), 4.0) {
            let again = parse("shown", config.native.as_bytes(), 4.0);
            assert_eq!(again.expect("what is shown is good").native, config.native);
        }
    });
}

/// The guide has a line for every key, and names those of later versions.
#[test]
fn the_guide_has_every_key() {
    let guide = include_str!("../../../docs/guide/configuration.md");
    let shown = good(include_str!("../../../examples/evenkeel.yaml")).native;
    let keys = shown.lines().filter_map(|line| line.trim_start_matches([' ', '-']).split_once(':'));
    let more =
        ["token_file", "exempt", "max", "round", "window", "rate", "weight", "tls", "backend_tls"];
    for key in keys.map(|(key, _)| key).chain(more) {
        let there = guide.contains(&format!("`{key}`")) || guide.contains(&format!("## {key}"));
        assert!(there || guide.contains(&format!("## proxy.{key}")), "no line for {key}");
    }
}

#[test]
fn clients_by_name() {
    let text = "proxy:\n  exempt: [ip:192.0.2.1, \"host:*.Example.com\"]\n  \
                merge:\n    - {match: host:*.googlebot.com, as: googlebot.com}\n  \
                resolver: [127.0.0.1:5353, \"::1\"]";
    let config = good(text);
    let proxy = config.settings.proxy.expect("open");
    assert_eq!(proxy.exempt.len(), 1);
    let hosts = &proxy.hosts;
    assert!(hosts.exempt[0].matches("www.example.com") && !hosts.exempt[0].matches("example.com"));
    assert!(hosts.merge[0].pattern.matches("x.googlebot.com"));
    assert_eq!(&*hosts.merge[0].name, "googlebot.com");
    let servers: Vec<String> = hosts.resolver.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["127.0.0.1:5353", "[::1]:53"]);
    assert_eq!(good(&config.native).native, config.native);
    for (text, fault) in [
        ("proxy: {exempt: host:*}", "write host:*.example.com or host:www.example.com"),
        ("proxy: {exempt: example.com}", "write ip:192.0.2.0/24, host:*.example.com or"),
        ("proxy: {merge: [{match: host:*.a.com}]}", "an entry of `merge` needs `as`"),
        ("proxy: {merge: [{match: ip:1.2.3.4, as: a}]}", "write host:*.example.com"),
        ("proxy: {merge: [{match: host:*.a.com, as: a b}]}", "a name such as googlebot.com"),
        ("proxy: {resolver: 127.0.0.1}", "`resolver` is used only if"),
        ("proxy: {exempt: host:a.com, resolver: ns.a.com}", "write 192.0.2.53"),
    ] {
        assert!(faults(text).contains(fault), "{text}: {}", faults(text));
    }
}

#[test]
fn the_check_door_uses_the_limits_of_the_proxy() {
    let settings = good("check: {syslog: \"udp://127.0.0.1:5514\", waiting_max: 7}").settings;
    let check = settings.check.clone().expect("open");
    assert_eq!(check.listen, ["127.0.0.1:9971".parse().expect("an address")]);
    assert_eq!(check.syslog[0].to_string(), "udp://127.0.0.1:5514");
    assert_eq!((check.waiting_max, check.open_max), (7, 65_536));
    assert_eq!(check.report_within, Duration::from_secs(300));
    assert_eq!(settings.doors(), ["check"], "the proxy only lends its limits");
    assert_eq!(settings.proxy.expect("its defaults").limits.len(), 3);
    let alone = "check:\nproxy: {listen: off, limits: []}";
    assert_eq!(good(alone).settings.doors(), ["check"]);
    assert_eq!(good("check:\nproxy:").settings.doors(), ["proxy", "check"]);
    assert!(good("proxy: {listen: off}").settings.doors().is_empty());
    for (text, fault) in [
        ("check: {syslog: \"tcp://127.0.0.1:5514\"}", "udp://127.0.0.1:5514"),
        ("check: {open_max: 0}", "must be from 1 to 1000000"),
        ("check: {report_within: 10ms}", "must be from 1s to 1d"),
        ("check: {listen: 127.0.0.1:9970}", "two listeners use 127.0.0.1:9970"),
        (
            "check: {syslog: ['udp://127.0.0.1:5514', 'udp://0.0.0.0:5514']}",
            "two listeners use udp://0.0.0.0:5514",
        ),
        ("check: {limits: []}", "unknown key `limits` in `check`"),
        ("proxy: {limits: [{name: a, by: all, rate: 1/s, round: 10ms}]}", "add it, or remove"),
        ("proxy: {limits: [{name: a, by: all, window: 5s, max: 1s, round: 2s}]}", "must be from"),
    ] {
        assert!(faults(text).contains(fault), "{text}: {}", faults(text));
    }
}

#[test]
fn a_pipe_is_not_waited_for_when_a_server_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("evenkeel.yaml");
    fs::write(&path, "proxy: {cpus: 3}").expect("written");
    let mut source = ConfigSource::new(&path);
    assert!(source.load(4.0).is_ok());
    fs::remove_file(&path).expect("removed");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
    assert!(made.success());
    assert_eq!(source.look(4.0), ConfigChange::None);
    let faults = source.load(4.0).expect_err("refused").to_string();
    assert!(faults.contains("not a regular file"), "{faults}");
}

//! Each check with facts that are written down: what it finds, and what it says to do.

use super::*;
use crate::doctor::facts::{
    BackendAnswer, BackendFacts, FileFacts, MetricSeries, RecentLoad, ServerFacts,
};
use evenkeel_config::host::{HostFacts, StateFolder};
use evenkeel_config::settings::Settings;
use evenkeel_telemetry::snapshot::setup::{
    ClientAddressFacts, FailedReplacement, RequestFacts, SetupSnapshot,
};
use evenkeel_telemetry::snapshot::{
    ApartPeer, ClientRow, LimitTable, LoadSnapshot, PeersSummary, QueueLoad, RefusedConfig,
    StoreSummary, TopSnapshot,
};
use std::path::Path;
use std::time::Duration;

const YAML: &str = "proxy: {listen: '127.0.0.1:8888', backend: 'http://127.0.0.1:8080', cpus: 2}\n\
                    state: {file: /var/lib/evenkeel/state}\n";

fn settings(yaml: &str) -> Settings {
    evenkeel_config::parse("t.yaml", yaml.as_bytes(), 2.0).expect("good").settings
}

fn row(key: &str, level: f64) -> ClientRow {
    ClientRow {
        key: key.to_owned(),
        id: String::new(),
        level: Some(level),
        wait: 0.0,
        cpu_per_second: 0.1,
        requests_per_second: 1.0,
        wait_average: 0.0,
        last_seen: 1.0,
        cpu_total: 1.0,
        about: Default::default(),
    }
}

fn limit(rows: Vec<ClientRow>) -> LimitTable {
    LimitTable {
        door: "proxy".to_owned(),
        name: "ip".to_owned(),
        unit: "cpu".to_owned(),
        action: "queue".to_owned(),
        shadow: false,
        would: 0,
        rows,
    }
}

fn load(waiting: usize, concurrency: usize) -> LoadSnapshot {
    LoadSnapshot {
        door: "proxy".to_owned(),
        working: 1,
        work_unit: Default::default(),
        cpus: 2.0,
        measures_rate: false,
        work_rate: None,
        busy_seconds: 10.0,
        crowd: Some(QueueLoad { waiting, running: 1, concurrency }),
        shared_queue: None,
        swarm: None,
        engines: Vec::new(),
        running: Vec::new(),
        oldest_waiting: None,
        client_times: Default::default(),
    }
}

/// A machine with everything that is needed.
fn host() -> HostFacts {
    HostFacts {
        cores: 2.0,
        cpus: 2.0,
        files_used: Some(40),
        files_max: Some(524_288),
        memory_max: Some(1 << 30),
        memory_used: Some(1 << 28),
        somaxconn: Some(4_096),
        listen_overflows: Some(0),
        ports: Some(28_232),
        time_wait: Some(12),
        clock_follows: Some(true),
    }
}

/// A set-up in which everything is well.
fn good() -> SetupFacts {
    let host = host();
    let setup = SetupSnapshot {
        version: "0.1.0".to_owned(),
        pid: 7,
        ready: true,
        now: 1e9,
        started: 1e9 - 7_200.0,
        config_since: 1e9 - 3_600.0,
        clock_step: 0.0,
        config_file: Some("/etc/evenkeel/evenkeel.yaml".to_owned()),
        restart_keys: Vec::new(),
        program: Some("/usr/bin/evenkeel".to_owned()),
        program_replaced: Some(false),
        not_replaced: None,
        host: host.clone(),
        state: Some(StateFolder {
            file: "/var/lib/evenkeel/state".to_owned(),
            unwritable: None,
            free: Some(10 << 30),
        }),
        listen_overflows: Some(0),
        clients: ClientAddressFacts { other_without: 1_000, recent: 100, ..Default::default() },
        requests: RequestFacts { all: 1_000, late: 0, crowded: 0 },
    };
    let clients = vec![row("192.0.2.1", 3.0), row("192.0.2.2", -1.0)];
    let top = TopSnapshot {
        now: 1e9,
        load: vec![load(0, 4)],
        known: vec!["ip".to_owned()],
        limits: vec![limit(clients)],
        peers: None,
        store: None,
        master: None,
        gatekeepers: Vec::new(),
        robots: Vec::new(),
        refused_config: None,
    };
    SetupFacts {
        file: FileFacts {
            path: setup.config_file.clone(),
            checked: Some(Ok(Vec::new())),
            differences: Some(Vec::new()),
            names_cpus: true,
        },
        admin: "127.0.0.1:9970".to_owned(),
        settings: Some(settings(YAML)),
        host,
        backends: vec![BackendFacts {
            name: "http://127.0.0.1:8080".to_owned(),
            is_local: true,
            is_tcp: true,
            loops_to: None,
            quota: None,
            answer: Some(Ok(answer())),
        }],
        server: Ok(ServerFacts {
            setup,
            top,
            metrics: metrics(""),
            recent: RecentLoad { seconds: 600.0, requests: 900.0, failed: 0.0, used: 0.2 },
            longest_debt: None,
        }),
        token_readable: None,
    }
}

fn answer() -> BackendAnswer {
    BackendAnswer {
        connect: Duration::from_millis(1),
        took: Duration::from_millis(20),
        version: "HTTP/1.1".to_owned(),
        status: 200,
        keeps_alive: true,
        clock_ahead: Some(0.4),
    }
}

fn metrics(more: &str) -> MetricSeries {
    let usual = "evenkeel_requests_total{door=\"proxy\"} 1000\n\
                 evenkeel_table_keys_max{door=\"proxy\",limit=\"ip\"} 1000\n\
                 evenkeel_table_keys_used{door=\"proxy\",limit=\"ip\"} 100\n";
    MetricSeries::parse(&format!("{more}\n{usual}"))
}

/// What a check says about a set-up with one change.
fn found(check: &str, change: impl FnOnce(&mut SetupFacts, &mut ServerFacts)) -> Option<Finding> {
    let mut facts = good();
    let mut server = facts.server.clone().expect("it runs");
    change(&mut facts, &mut server);
    if facts.server.is_ok() {
        facts.server = Ok(server);
    }
    examine(&facts).into_iter().find(|finding| finding.check == check)
}

#[track_caller]
fn expect(found: Option<Finding>, level: FindingLevel, says: &str, todo: &str) {
    let found = found.expect("a finding");
    assert_eq!(found.level, level, "{found:?}");
    assert!(found.found.contains(says), "{found:?}");
    let all = found.todo.join("\n");
    assert!(all.contains(todo), "{found:?}");
    assert_eq!(found.todo.is_empty(), level < FindingLevel::Warning, "{found:?}");
}

use FindingLevel::{Ok as Fine, Problem, Unknown, Warning};

#[test]
fn a_good_setup_has_no_findings() {
    for finding in examine(&good()) {
        assert_eq!(finding.level, Fine, "{finding:?}");
    }
    assert!(examine(&good()).len() > 18);
}

#[test]
fn without_a_server_checks_say_what_they_need() {
    let mut facts = good();
    facts.server = Err("no server answers at 127.0.0.1:9970: refused".to_owned());
    let findings = examine(&facts);
    let of = |check| findings.iter().find(|finding| finding.check == check).cloned();
    expect(of("server"), Problem, "no server answers", "systemctl start");
    expect(of("trusted-proxies"), Unknown, "needs the running server", "");
    expect(of("cpus"), Fine, "cpus is 2, and this machine has 2", "");
    expect(of("backend"), Fine, "1 of 1 answer", "");
    assert_eq!(of("tables"), None);
}

#[test]
fn the_file_and_what_runs() {
    let fault = "t.yaml:1:1: unknown key `x`".to_owned();
    let faults = vec![fault.clone(), fault];
    let bad = found("configuration", |facts, _| facts.file.checked = Some(Err(faults)));
    expect(bad, Problem, "unknown key `x` (and 1 more)", "evenkeel check /etc/evenkeel/evenkeel");
    let warned = vec!["t.yaml:1:1: no share is left".to_owned()];
    let bad = found("configuration", |facts, _| facts.file.checked = Some(Ok(warned)));
    expect(bad, Warning, "no share is left", "evenkeel check");
    let none = found("configuration", |facts, server| {
        facts.file = FileFacts::default();
        server.setup.config_file = None;
    });
    expect(none, Fine, "with flags", "");

    let lines = vec!["file has `cpus: 4`".to_owned()];
    let differs = found("reload", |facts, _| facts.file.differences = Some(lines.clone()));
    expect(differs, Warning, "not in force yet: file has `cpus: 4`", "evenkeel reload");
    let other = found("reload", |facts, _| {
        facts.file.differences = Some(lines);
        facts.file.path = Some("/root/mine.yaml".to_owned());
    });
    expect(other, Warning, "the server runs /etc/evenkeel/evenkeel.yaml", "systemctl cat");
    let keys = vec!["proxy.listen".to_owned()];
    let kept = found("reload", |_, server| server.setup.restart_keys = keys);
    expect(kept, Warning, "only after a restart: proxy.listen", "systemctl restart");
    let refused = RefusedConfig { fault: "t.yaml:3:1: x".to_owned(), ..Default::default() };
    let refused = found("reload", |_, server| server.top.refused_config = Some(refused));
    expect(refused, Problem, "t.yaml:3:1: x", "evenkeel check");

    let newer = found("program", |_, server| server.setup.program_replaced = Some(true));
    expect(newer, Warning, "another file", "evenkeel upgrade");
    let failed = FailedReplacement { why: "it ended".to_owned(), seconds: 30.0 };
    let failed = found("program", |_, server| server.setup.not_replaced = Some(failed));
    expect(failed, Problem, "failed 30 s ago: it ended", "journalctl");
}

#[test]
fn shadow_admin_and_certificates() {
    let shadow = found("shadow", |_, server| {
        server.top.limits[0].shadow = true;
        server.top.limits[0].would = 12;
    });
    expect(shadow, Warning, "all limits only watch, for 60 min at least; 12", "shadow: false");
    let open = "admin: {listen: '0.0.0.0:9970', token_file: /etc/evenkeel/admin.key}\n";
    let open = format!("{YAML}{open}");
    let token = found("admin", |facts, _| facts.settings = Some(settings(&open)));
    expect(token, Fine, "needs a token", "");
    let readable = found("admin", |facts, _| {
        facts.settings = Some(settings(&open));
        facts.token_readable = Some(true);
    });
    expect(readable, Problem, "can read /etc/evenkeel/admin.key", "chmod 640");

    let until = |days: f64| {
        let until = 1e9 + days * 86_400.0;
        let name = "evenkeel_tls_certificate_expiry_time_seconds";
        let text = format!("{name}{{of=\"proxy\"}} {until}\n{name}{{of=\"peers\"}} 0");
        found("certificates", move |_, server| server.metrics = metrics(&text))
    };
    assert_eq!(found("certificates", |_, _| {}), None);
    expect(until(80.0), Fine, "expires in 80 days", "");
    expect(until(3.0), Warning, "expires in 3 days", "renew");
    expect(until(-2.0), Problem, "expired 2 days ago", "renew");
}

#[test]
fn proxies_that_are_not_trusted() {
    let seen = |peers: &[&str], headers: &[&str]| ClientAddressFacts {
        other_with: 980,
        other_without: 20,
        recent: 1_000,
        recent_forwarding: 980,
        headers: headers.iter().map(|name| (*name).to_owned()).collect(),
        peers: peers.iter().map(|peer| (peer.parse().expect("one"), 100)).collect(),
        ..ClientAddressFacts::default()
    };
    let of = |clients| found("trusted-proxies", |_, server| server.setup.clients = clients);
    let local = of(seen(&["127.0.0.1"], &["x-forwarded-for"]));
    let says = "980 of the last 1000 requests came with x-forwarded-for from addresses that are \
                not trusted: 127.0.0.1";
    expect(local, Problem, says, "proxy:\n  trusted_proxies: [127.0.0.1]\nevenkeel reload");
    let both = of(seen(&["10.0.0.1", "fd00::1"], &["forwarded"]));
    expect(
        both,
        Problem,
        "10.0.0.1, fd00::1",
        "[10.0.0.1, \"fd00::1\"]\n  client_address: forwarded",
    );
    let cdn = of(seen(&["104.16.0.1"], &["x-forwarded-for", "cf-connecting-ip"]));
    let advice = "trusted_proxies: [cloudflare]\n  client_address: header:CF-Connecting-IP";
    expect(cdn, Problem, "104.16.0.1", advice);
    let newer = found("trusted-proxies", |facts, server| {
        let yaml = YAML.replace("cpus: 2", "trusted_proxies: [cloudflare]");
        facts.settings = Some(settings(&yaml));
        server.setup.clients = seen(&["203.0.113.9"], &["cf-connecting-ip"]);
    });
    expect(newer, Problem, "203.0.113.9", "trusted_proxies: [cloudflare, 203.0.113.9]");
    let public = of(seen(&["203.0.113.9"], &["x-forwarded-for"]));
    expect(public, Problem, "203.0.113.9", "only if these are proxies of yours");

    let few = of(ClientAddressFacts { other_with: 3, ..ClientAddressFacts::default() });
    expect(few, Unknown, "only 3 requests", "");
    let forged = of(ClientAddressFacts {
        other_with: 10,
        other_without: 990,
        recent: 1_000,
        recent_forwarding: 10,
        ..ClientAddressFacts::default()
    });
    expect(forged, Fine, "the header of 10 others is ignored", "");
    let single = found("trusted-proxies", |_, server| {
        server.top.limits = vec![limit(vec![row("172.17.0.1", 1.0)])];
    });
    expect(single, Warning, "came from 172.17.0.1, none with a header", "trusted_proxies: [172.17");
}

/// Behind Envoy or a web server that asks, the proxy of this program has no clients.
#[test]
fn clients_that_others_name_need_no_trusted_proxies() {
    for check in ["trusted-proxies", "forwarded-headers"] {
        let asked = found(check, |facts, _| {
            let yaml = "proxy: {listen: off, cpus: 2}\next_proc: {}\n";
            facts.settings = Some(settings(yaml));
        });
        assert_eq!(asked, None, "{check}");
    }
}

#[test]
fn trusted_proxies_that_send_nothing() {
    let yaml = YAML.replace("cpus: 2", "trusted_proxies: [10.0.0.0/8]");
    let of = |trusted_with, trusted_without, other_without| {
        found("forwarded-headers", |facts, server| {
            facts.settings = Some(settings(&yaml));
            server.setup.clients = ClientAddressFacts {
                trusted_with,
                trusted_without,
                other_without,
                ..ClientAddressFacts::default()
            };
        })
    };
    expect(
        of(0, 500, 0),
        Problem,
        "0 of 500 requests of trusted proxies have X-Forwarded-For",
        "proxy_set_header",
    );
    expect(of(400, 100, 0), Warning, "400 of 500", "log");
    expect(of(499, 1, 0), Fine, "499 of 500", "");
    expect(of(0, 0, 500), Warning, "none of 500 requests came from", "evenkeel clients");
    expect(of(1, 1, 1), Unknown, "only 2 requests", "");
    assert_eq!(found("forwarded-headers", |_, _| {}), None);
}

#[test]
fn cpus_of_the_file_and_of_the_backend() {
    let of = |yaml: &str, change: fn(&mut SetupFacts, &mut ServerFacts)| {
        let settings = settings(&YAML.replace("cpus: 2", yaml));
        found("cpus", move |facts, server| {
            facts.settings = Some(settings);
            change(facts, server);
        })
    };
    expect(
        of("cpus: 8", |_, _| {}),
        Problem,
        "cpus is 8, and this machine has 2",
        "  cpus: 2\nevenkeel",
    );
    expect(of("cpus: 0.5", |_, _| {}), Warning, "cpus is 0.5", "cpus: 2");
    let quota: fn(&mut SetupFacts, &mut ServerFacts) = |facts, _| {
        facts.backends[0].quota = Some(0.5);
    };
    expect(of("cpus: 2", quota), Problem, "the cgroup of the backend has 0.5", "cpus: 0.5");
    let remote: fn(&mut SetupFacts, &mut ServerFacts) = |facts, _| {
        facts.backends[0].is_local = false;
        facts.file.names_cpus = false;
    };
    expect(of("cpus: 2", remote), Warning, "the backend is on another one", "cpus: N");
    expect(of("cpus: 6", remote), Fine, "cannot be seen from here", "");
    let searched: fn(&mut SetupFacts, &mut ServerFacts) = |facts, server| {
        facts.host.cpus = 8.0;
        facts.host.cores = 8.0;
        server.top.load = vec![load(9, 2)];
    };
    expect(of("cpus: 8", searched), Warning, "more than 2 requests at once", "nproc");
    assert_eq!(of("cost: tokens", |_, _| {}), None);
}

#[test]
fn queue_debts_and_tables() {
    let tiny = YAML.replace("cpus: 2", "queue: {wait_max: 50ms}");
    let of = |yaml: &str, late, crowded| {
        let settings = settings(yaml);
        found("queue", move |facts, server| {
            facts.settings = Some(settings);
            server.setup.requests = RequestFacts { all: 1_000, late, crowded };
        })
    };
    let says =
        "210 of 1000 requests were refused by the queue, 200 because queue.wait_max is 50 ms";
    expect(of(&tiny, 200, 10), Problem, says, "wait_max: 30s");
    expect(of(&tiny, 0, 0), Warning, "50 ms", "wait_max: 30s");
    let says = "(21.0 %): 200 waited for 30 s, 10 found it full";
    expect(of(YAML, 200, 10), Warning, says, "evenkeel clients");
    expect(of(YAML, 0, 0), Fine, "0 of 1000", "");

    let rows = |levels: [f64; 6]| levels.map(|level| row("192.0.2.1", level)).to_vec();
    let debts = |levels, waiting| {
        found("debts", move |_, server| {
            server.top.limits = vec![limit(rows(levels))];
            server.top.load = vec![load(waiting, 4)];
        })
    };
    expect(debts([-1.0; 6], 0), Warning, "6 of 6 clients", "costs are too high");
    expect(debts([1.0; 6], 9), Warning, "0 of 6", "swarms.md");
    expect(debts([1.0; 6], 0), Fine, "0 of 6", "");
    let busy = found("debts", |_, server| {
        server.top.limits = vec![limit(rows([1.0; 6]))];
        server.recent.used = 0.97;
    });
    expect(busy, Warning, "the capacity is used up", "swarms.md");
    let long = |seconds| {
        let longest = Some(("203.0.113.7".to_owned(), seconds));
        found("debts", move |_, server| server.longest_debt = longest)
    };
    expect(long(2_700.0), Warning, "203.0.113.7 without a pause for 45 min", "deny");
    expect(long(60.0), Fine, "1 of 2", "");

    let full = "evenkeel_table_keys_dropped_total{door=\"proxy\",limit=\"ip\"} 5\n\
                evenkeel_table_keys_max{door=\"proxy\",limit=\"net\"} 100\n\
                evenkeel_table_keys_used{door=\"proxy\",limit=\"net\"} 90\n";
    let full = found("tables", |_, server| server.metrics = metrics(full));
    expect(full, Warning, "limit net: 90 of 100 keys (90 %), 5 dropped", "keys_max: 200");
}

#[test]
fn limits_that_refuse() {
    let of = |key: &'static str, clients, passed, shadow| {
        found("refusals", move |_, server| {
            let refused = ClientRow { cpu_per_second: passed, ..row(key, 0.0) };
            let table = LimitTable {
                name: "r".to_owned(),
                unit: "hits".to_owned(),
                action: "reject".to_owned(),
                shadow,
                ..limit(vec![refused; clients])
            };
            server.top.limits.push(table);
            let decisions = |verdict: &str, limit: &str, count| {
                format!(
                    "evenkeel_decisions_total{{verdict=\"{verdict}\",limit=\"{limit}\",\
                     shadow=\"false\"}} {count}\n"
                )
            };
            let lines = decisions("reject", "r", 990) + &decisions("allow", "", 10);
            server.metrics = metrics(&lines);
        })
    };
    let says = "limit r has refused 990 of 1000 requests (99 %)";
    expect(of("all", 1, 0.01, false), Warning, says, "`rate` or `burst` of r");
    expect(of("192.0.2.1", 5, 0.01, false), Warning, says, "evenkeel reload");
    // A single crawler, a limit that lets most requests pass, and one that only watches.
    expect(of("192.0.2.1", 1, 0.01, false), Fine, says, "");
    expect(of("all", 1, 0.9, false), Fine, says, "");
    assert_eq!(of("all", 1, 0.01, true), None);
    assert_eq!(found("refusals", |_, _| {}), None);
}

#[test]
fn connections_files_and_the_kernel() {
    let busy = "evenkeel_connections_open{door=\"proxy\"} 9990\n\
                evenkeel_connections_accepted_total{door=\"proxy\"} 20000\n";
    let busy = found("connections", |_, server| server.metrics = metrics(busy));
    expect(busy, Problem, "9990 of 10000 connections", "bounds: {connections: 20000}");
    let few = found("open-files", |facts, _| facts.host.files_max = Some(1_024));
    expect(
        few,
        Warning,
        "the limit is 1024, and all connections may need 20256",
        "LimitNOFILE=65536",
    );
    let used = found("open-files", |facts, _| facts.host.files_used = Some(520_000));
    expect(used, Problem, "520000 are open", "LimitNOFILE=");
    let short = found("listen-queue", |facts, _| facts.host.somaxconn = Some(128));
    expect(short, Warning, "somaxconn is 128", "sysctl -w net.core.somaxconn=4096");
    let full = found("listen-queue", |_, server| server.setup.listen_overflows = Some(7));
    expect(full, Warning, "7 connections", "nstat");
    let spent = found("ports", |facts, _| facts.host.time_wait = Some(28_000));
    expect(spent, Warning, "28000 sockets of this machine are in TIME_WAIT", "keep-alive");
    let narrow = found("ports", |facts, _| facts.host.ports = Some(1_000));
    expect(narrow, Warning, "bounds.connections is 10000", "ip_local_port_range");
}

#[test]
fn clock_memory_and_disk() {
    let free = found("clock", |facts, _| facts.host.clock_follows = Some(false));
    expect(free, Warning, "follows no time server", "set-ntp true");
    let ahead = found("clock", |facts, _| {
        facts.backends[0].answer = Some(Ok(BackendAnswer { clock_ahead: Some(-90.0), ..answer() }));
    });
    expect(ahead, Warning, "http://127.0.0.1:8080 is 90 s behind", "on both");
    let step = found("clock", |_, server| server.setup.clock_step = 3_600.0);
    expect(step, Warning, "changed by 3600 s", "set-ntp");
    let full = found("memory", |facts, _| facts.host.memory_used = Some(1_060_000_000));
    expect(full, Problem, "of its cgroup (99 %)", "MemoryMax=");
    let folder = |unwritable: Option<&str>, free| {
        let unwritable = unwritable.map(str::to_owned);
        let folder = StateFolder { file: "/x/state".to_owned(), unwritable, free: Some(free) };
        found("state", |_, server| server.setup.state = Some(folder))
    };
    expect(
        folder(Some("Permission denied"), 1 << 40),
        Problem,
        "Permission denied",
        "StateDirectory=",
    );
    expect(folder(None, 4_096), Problem, "is full", "df -h");
    expect(folder(None, 50 << 20), Warning, "50 MiB left", "df -h");
    let failed = "evenkeel_state_writes_total{result=\"failed\"} 3";
    let failed = found("state", |_, server| server.metrics = metrics(failed));
    expect(failed, Warning, "3 snapshots", "journalctl");
}

#[test]
fn backends() {
    let with = |change: fn(&mut BackendFacts)| {
        move |facts: &mut SetupFacts, _: &mut ServerFacts| change(&mut facts.backends[0])
    };
    let gone = found("backend", with(|one| one.answer = Some(Err("connect: refused".to_owned()))));
    expect(
        gone,
        Problem,
        "1 of 1 do not answer: http://127.0.0.1:8080: connect: refused",
        "curl -I",
    );
    let itself = with(|one| one.loops_to = "0.0.0.0:8080".parse().ok());
    expect(
        found("backend", itself),
        Problem,
        "is the proxy itself, which listens on 0.0.0.0",
        "backend:",
    );
    let slow = |one: &mut BackendFacts| {
        one.answer = Some(Ok(BackendAnswer { took: Duration::from_secs(3), ..answer() }));
    };
    expect(found("backend", with(slow)), Warning, "status 200 in 3000 ms", "evenkeel clients");
    let far = |one: &mut BackendFacts| {
        one.answer = Some(Ok(BackendAnswer { connect: Duration::from_secs(1), ..answer() }));
    };
    expect(found("backend", with(far)), Warning, "connected in 1000 ms", "ss -ltn");
    let broken = |one: &mut BackendFacts| {
        one.answer = Some(Ok(BackendAnswer { status: 503, ..answer() }));
    };
    expect(found("backend", with(broken)), Warning, "answers with status 503", "curl -I");
    let closes = |one: &mut BackendFacts| {
        one.answer = Some(Ok(BackendAnswer { keeps_alive: false, ..answer() }));
    };
    expect(found("keep-alive", with(closes)), Warning, "closes the conn", "keepalive_timeout");
    let no_head = |one: &mut BackendFacts| {
        let answer = BackendAnswer { status: 501, keeps_alive: false, ..answer() };
        one.answer = Some(Ok(answer));
    };
    expect(found("keep-alive", with(no_head)), Unknown, "answers HEAD with status 501", "");
    expect(found("backend", with(|one| one.answer = None)), Unknown, "--no-probe", "");
    let failures = "evenkeel_backend_failures_total{kind=\"connect\"} 90\n\
                    evenkeel_backend_failures_total{kind=\"closed\"} 10";
    let failures = |failed| {
        found("backend-failures", move |_, server| {
            server.metrics = metrics(failures);
            server.recent.failed = failed;
        })
    };
    let says = "100 of 1000 requests since the start (connect 90, closed 10); 100 of 900 in the \
                last 10 min";
    expect(failures(100.0), Problem, says, "journalctl");
    expect(failures(9.0), Warning, "9 of 900", "journalctl");
    expect(failures(0.0), Fine, "0 of 900 in the last 10 min", "");
}

#[test]
fn stores_and_peers() {
    let store = |good, failed| {
        let store = StoreSummary { good, failed, owed: 0 };
        found("store", |_, server| server.top.store = Some(store))
    };
    expect(store(3, 0), Fine, "3 of 3", "");
    expect(store(2, 1), Warning, "2 of 3", "redis-cli");
    expect(store(0, 3), Problem, "0 of 3", "redis-cli");
    let peers = |live, known, apart: &[&str]| {
        let apart = apart.iter().map(|why| ApartPeer { peer: "b".into(), why: (*why).into() });
        let peers = PeersSummary { live, known, behind: 0.0, apart: apart.collect() };
        found("peers", |_, server| server.top.peers = Some(peers))
    };
    expect(peers(3, 3, &[]), Fine, "3 of 3 live", "");
    expect(peers(2, 3, &[]), Warning, "2 of 3 live", "peers.md");
    expect(peers(1, 3, &[]), Problem, "1 of 3 live", "peers.md");
    expect(peers(1, 1, &[]), Warning, "no other instance", "join:");
    expect(peers(3, 3, &["it differs"]), Warning, "it differs", "peers.md");
}

/// Commands can be copied, whatever the admin address is.
#[test]
fn commands_name_the_server_that_was_asked() {
    let found = |admin: &str| {
        let lines = vec!["file has `cpus: 4`".to_owned()];
        found("reload", |facts, _| {
            facts.file.differences = Some(lines);
            facts.admin = admin.to_owned();
        })
    };
    let todo = |admin| found(admin).expect("a finding").todo;
    assert_eq!(todo("127.0.0.1:9970"), ["evenkeel reload"]);
    assert_eq!(todo("127.0.0.1:9971"), ["evenkeel reload --admin 127.0.0.1:9971"]);
}

/// The guide has a paragraph for each check, in the same order, with the same reason.
#[test]
fn the_guide_explains_every_check() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/doctor.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let checks: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
    assert_eq!(headings, checks);
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for Check { name, why, .. } in CHECKS {
        assert!(words.contains(&format!("### {name} {why}")), "{name}: {why}");
    }
}

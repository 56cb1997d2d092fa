//! Evenkeel in Tempomat's place: its file, its Graphite lines, its doctor and its SIGHUP, with a
//! real site.

use crate::gate::{Gate, evenkeel};
use crate::site::Site;
use evenkeel_testing::port::free_port;
use evenkeel_testing::program::Program;
use evenkeel_testing::wait::wait_for;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Command;

const CRAWLER: &str = "127.1.0.1";
const HUMAN: &str = "127.2.0.1";

/// A file in the form that Puppet would write, with the keys `more`.
fn file(site: u16, port: u16, admin: u16, more: &Value) -> String {
    let mut file = json!({
        "backend": format!("http://127.0.0.1:{site}"),
        "listenPort": port,
        "cpuCount": 1,
        "slash32Share": 0.5,
        "slash24Share": 1,
        "trustedProxies": "127.0.0.1",
        "hashMaxLen": 100,
        "dummy": "dummy",
        "admin": {"listen": format!("127.0.0.1:{admin}")},
        "log": {"format": "json"},
    });
    for (key, value) in more.as_object().expect("keys") {
        file[key] = value.clone();
    }
    file.to_string()
}

fn start(site: &Site, more: Value) -> Gate {
    Gate::start_with(site, "tempomat.json", |port, admin| file(site.port, port, admin, &more))
}

/// Sends a request through a trusted proxy, as clients reach a Tempomat behind a load balancer.
fn ask(gate: &Gate, client: &str, page: &str) -> u16 {
    let from = format!("X-Forwarded-For: {client}\r\nUser-Agent: crawler\r\n");
    gate.client("127.0.0.1").get_with(page, &from).status
}

/// On the wire, including T3 and T8.
#[test]
fn t24_t25_t27_t29_its_file_runs_unchanged_with_graphite_doctor_and_sighup() {
    let site = Site::start(40);
    let sink = TcpListener::bind("127.0.0.1:0").expect("a port");
    let more = json!({
        "graphite": format!("tcp://{}", sink.local_addr().expect("an address")),
        "graphitePrefix": "a.{hostname}",
        "delayThresholdSec": 0,
    });
    let gate = start(&site, more.clone());
    let mut lines = BufReader::new(sink.accept().expect("a connection").0).lines();
    let mut next = || lines.next().expect("a line").expect("a line");
    let host = rustix::system::uname().nodename().to_str().expect("a name").to_owned();
    for name in ["Slash32", "Slash24", "Slash16", "UserAgent"] {
        let line = next();
        assert!(line.starts_with(&format!("a.{host}.{name} 0 ")), "{line}");
    }

    // Requests are not held while there is credit: 30 CPU-seconds.
    assert_eq!(ask(&gate, CRAWLER, "/page?sleep=50"), 200);
    gate.wait_until_idle();
    assert_eq!(gate.decisions().len(), 0);
    crawl(&gate);
    assert_eq!(ask(&gate, HUMAN, "/page?sleep=50"), 200);
    assert_eq!(gate.decisions_about(HUMAN, 0).len(), 0);

    let changed = json!({"slash32Share": 0.25});
    let more: Value = more
        .as_object()
        .into_iter()
        .chain(changed.as_object())
        .flatten()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    fs::write(&gate.config, file(site.port, gate.port, gate.admin, &more)).expect("saved");
    gate.process.signal(Signal::HUP);
    gate.wait_for_metric("evenkeel_config_reloads_total", &[("result", "ok")], 1.0);
    assert!(gate.admin_page("/api/config").contains("share: 0.25\n"));
    let line = wait_for("the client in Graphite's lines, SIGHUP or not", || {
        Some(next()).filter(|line| line.starts_with(&format!("a.{host}.Slash32 1 ")))
    });
    assert_eq!(line.split(' ').count(), 3, "{line}");
    // The client exceeds the share of an address, but not that of a user agent.
    let agent = wait_for("the agents of that second", || {
        Some(next()).filter(|line| line.contains(".UserAgent "))
    });
    assert!(agent.starts_with(&format!("a.{host}.UserAgent 0 ")), "{agent}");
    doctor_has_its_columns(&gate);
}

/// A larger share for clients with a session, in place of the share of their address.
#[test]
fn a_session_has_a_share_of_its_own_in_place_of_its_address() {
    let site = Site::start(2);
    let text = |port, admin| {
        format!(
            "admin: {{listen: '127.0.0.1:{admin}'}}\nlog: {{format: json}}\nproxy:\n  \
             listen: 127.0.0.1:{port}\n  backend: http://127.0.0.1:{}\n  cpus: 1\n  \
             cost: wall\n  action: hold\n  exempt: ['cookie:staff']\n  limits:\n    \
             - {{name: ip, by: ip/32, share: 10%, burst: 100ms, \
             when: {{not: {{cookie: session}}}}}}\n    \
             - {{name: session, by: 'cookie:session', share: 50%, burst: 60s, \
             when: {{cookie: session}}}}\n",
            site.port
        )
    };
    let gate = Gate::start_with(&site, "t.yaml", text);
    let mut client = gate.client(CRAWLER);
    assert_eq!(client.get("/page?sleep=200").status, 200);
    assert_eq!(client.get("/page?sleep=1").status, 200);
    let held = gate.decisions_about(CRAWLER, 1);
    assert_eq!((held[0].text("verdict"), held[0].text("limit")), ("hold", "ip"));
    let held = gate.decisions().len();
    for cookie in ["session=ann", "staff=1"] {
        let cookie = format!("Cookie: {cookie}\r\n");
        let answers = [(); 3].map(|()| client.get_with("/page?sleep=300", &cookie).status);
        assert_eq!(answers, [200; 3]);
    }
    gate.wait_until_idle();
    assert_eq!(gate.decisions().len(), held, "nobody else was held");
    let counted = |limit| gate.metric("evenkeel_table_keys_used", &[("limit", limit)]);
    assert_eq!((counted("ip"), counted("session")), (1.0, 1.0));
}

/// Requests forty pages at once, each of nine tenths of a second: more than the credit.
fn crawl(gate: &Gate) {
    let page = format!(
        "GET /page?sleep=900 HTTP/1.1\r\nHost: site\r\nUser-Agent: crawler\r\n\
         X-Forwarded-For: {CRAWLER}\r\n\r\n"
    );
    let mut clients: Vec<_> = (0..40).map(|_| gate.client("127.0.0.1")).collect();
    clients.iter_mut().for_each(|client| client.send(&page));
    for held in gate.decisions_about(CRAWLER, 3) {
        assert_eq!((held.text("verdict"), held.text("limit")), ("hold", "Slash32"));
        assert_eq!(held.text("measured"), "wall");
    }
}

fn doctor_has_its_columns(gate: &Gate) {
    let doctor = gate.doctor_with(&["--bucket", "Slash32"]);
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Bucket: Slash32"), "{text}");
    let head = lines.nth(1).expect("a head");
    assert!(head.starts_with("| Wait[s] | Cpu[s] | Req/s | Last[s] | "), "{text}");
    assert!(lines.any(|line| line.contains(&format!("| {CRAWLER}/32 "))), "{text}");
    let waits = |bucket: &str| {
        let doctor = gate.doctor_with(&["--bucket", bucket]);
        let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
        let row = text.lines().find(|line| line.contains(CRAWLER) || line.contains(" crawler "));
        let wait = row.and_then(|row| row.split('|').nth(1)?.trim().parse::<f64>().ok());
        wait.unwrap_or_else(|| panic!("{text}"))
    };
    assert!(waits("Slash32") > 0.0);
    assert_eq!(waits("UserAgent"), 0.0);
    let unknown = gate.doctor_with(&["--bucket", "Slash8"]);
    let text = String::from_utf8_lossy(&unknown.stdout).into_owned();
    assert_eq!(text.lines().count(), 5, "an empty table: {text}");
}

#[test]
fn t22_a_flood_of_clients_stays_within_hash_max_len() {
    let site = Site::start(4);
    let gate = start(&site, json!({}));
    let mut proxy = gate.client("127.0.0.1");
    for n in 0..600 {
        let from = format!("X-Forwarded-For: 10.{}.{}.1\r\n", n / 250, n % 250);
        assert_eq!(proxy.get_with("/page?sleep=1", &from).status, 200);
    }
    gate.wait_until_idle();
    for limit in ["Slash32", "Slash24", "Slash16", "UserAgent"] {
        let labels = [("limit", limit)];
        assert_eq!(gate.metric("evenkeel_table_keys_max", &labels), 100.0);
        assert!(gate.metric("evenkeel_table_keys_used", &labels) <= 100.0);
        let shown = gate.doctor_with(&["--bucket", limit]).stdout;
        assert!(String::from_utf8_lossy(&shown).lines().count() <= 105);
    }
}

/// A server that only accepts connections, in place of Graphite.
#[test]
fn a_black_hole_in_place_of_graphite_stalls_nobody() {
    let site = Site::start(2);
    let black_hole = TcpListener::bind("127.0.0.1:0").expect("a port");
    let graphite = black_hole.local_addr().expect("an address").to_string();
    let gate = start(&site, json!({"graphite": graphite, "graphitePrefix": "a"}));
    let _taken = black_hole.accept().expect("it connects");
    for _ in 0..20 {
        assert_eq!(ask(&gate, HUMAN, "/page?sleep=1"), 200);
    }
    gate.process.signal(Signal::HUP);
    gate.wait_for_metric("evenkeel_config_reloads_total", &[("result", "ok")], 1.0);
    assert_eq!(ask(&gate, HUMAN, "/page?sleep=1"), 200);
}

/// The doctor under `watch`, with one client from the start and one that comes later. `watch`
/// writes only the changed characters of a line, so the two names have no letter in common.
#[test]
fn watch_shows_the_doctor_again_and_again() {
    let site = Site::start(2);
    let gate = start(&site, json!({}));
    let ask_as = |agent: &str| {
        let agent = format!("User-Agent: {agent}\r\n");
        assert_eq!(gate.client(HUMAN).get_with("/page?sleep=20", &agent).status, 200);
    };
    ask_as("aaaaaaaaaaaa");
    let mut watch = Command::new("watch");
    watch.envs([("TERM", "vt100"), ("LINES", "24"), ("COLUMNS", "100")]).args(["-n", "1", "-t"]);
    watch.arg(evenkeel().get_program()).args(["clients", "--bucket", "UserAgent", "--admin"]);
    watch.arg(format!("127.0.0.1:{}", gate.admin));
    let watch = Program::listening(watch, gate.admin);
    let shows = |what: &str| wait_for(what, || watch.log().contains(what).then_some(()));
    ["Bucket: UserAgent", "Wait[s]", "Req/s", "aaaaaaaaaaaa"].into_iter().for_each(shows);
    assert!(!watch.log().contains("ZZZZZZZZZZZZ"));
    ask_as("ZZZZZZZZZZZZ");
    shows("ZZZZZZZZZZZZ");
}

/// Graphite's own receiver stores the lines, and Graphite's own tool reads them.
#[test]
fn carbon_keeps_its_lines() {
    let site = Site::start(2);
    let folder = site.folder.path();
    let port = free_port();
    let conf = format!(
        "[cache]\nSTORAGE_DIR = {0}/\nLOCAL_DATA_DIR = {0}/whisper/\nCONF_DIR = {0}/\nPID_DIR = \
         {0}/\nUSER =\nLINE_RECEIVER_INTERFACE = 127.0.0.1\nLINE_RECEIVER_PORT = {port}\n\
         PICKLE_RECEIVER_PORT = 0\nCACHE_QUERY_PORT = 0\nMAX_CREATES_PER_MINUTE = inf\n",
        folder.display()
    );
    fs::write(folder.join("carbon.conf"), conf).expect("written");
    let schemas = "[all]\npattern = .*\nretentions = 1s:1h\n";
    fs::write(folder.join("storage-schemas.conf"), schemas).expect("written");
    let mut carbon = Command::new("carbon-cache");
    carbon.arg(format!("--config={}", folder.join("carbon.conf").display()));
    carbon.arg(format!("--logdir={}", folder.display())).args(["--nodaemon", "start"]);
    let _carbon = Program::listening(carbon, port);
    let graphite = format!("127.0.0.1:{port}");
    let _gate = start(&site, json!({"graphite": graphite, "graphitePrefix": "a.b"}));
    for name in ["Slash32", "Slash24", "Slash16", "UserAgent"] {
        let file = folder.join(format!("whisper/a/b/{name}.wsp"));
        wait_for("three seconds in Graphite's file", || {
            let fetch = Command::new("whisper-fetch").arg(&file).output().expect("whisper-fetch");
            let text = String::from_utf8_lossy(&fetch.stdout).into_owned();
            (text.lines().filter(|line| line.ends_with("0.000000")).count() >= 3).then_some(())
        });
    }
}

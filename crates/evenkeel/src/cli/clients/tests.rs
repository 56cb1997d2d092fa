use super::*;
use evenkeel_telemetry::snapshot::{
    ApartPeer, BurningGroupRow, ClientAbout, ClientTimesLoad, EngineLoadRow, LoadUnit,
    PeersSummary, QueueLoad, RefusedConfig, SharedQueueLoad, SwarmLoad,
};

fn row(key: &str, cpu: f64, level: Option<f64>, last_seen: f64) -> ClientRow {
    ClientRow {
        key: key.to_owned(),
        id: String::new(),
        level,
        wait: 4.5,
        cpu_per_second: cpu,
        requests_per_second: 12.345,
        wait_average: 2.0,
        last_seen,
        cpu_total: 100.0,
        about: ClientAbout::default(),
    }
}

fn snapshot() -> TopSnapshot {
    let rows = vec![
        row("203.0.113.7", 0.25, Some(-1.5), 0.2),
        row("198.51.100.1", 0.0, None, 61.4),
        row("evil\x1b[2J\u{202e}", 1.5, Some(29.0), 3.0),
        row("198.51.100.2", 0.0, None, 2.0),
    ];
    let limit = |name: &str, rows| LimitTable {
        door: "proxy".to_owned(),
        name: name.to_owned(),
        unit: "cpu".to_owned(),
        action: "hold".to_owned(),
        shadow: false,
        would: 0,
        rows,
    };
    TopSnapshot {
        now: 1_790_000_000.0,
        load: Vec::new(),
        known: vec!["ip".to_owned(), "agent".to_owned()],
        limits: vec![limit("ip", rows), limit("agent", Vec::new())],
        peers: None,
        store: None,
        master: None,
        gatekeepers: Vec::new(),
        robots: Vec::new(),
        refused_config: None,
    }
}

#[test]
fn t29_a_table_of_each_limit_the_heaviest_first() {
    let expected = "\
Limit: ip
  Wait[s]    Cpu[s]     Req/s  Last[s]      Level  Title
     2.00      1.50     12.35        3      29.00  evil\\u001b[2J\\u202e
     2.00      0.25     12.35        0      -1.50  203.0.113.7
     2.00      0.00     12.35        2          -  198.51.100.2
     2.00      0.00     12.35       61          -  198.51.100.1

Limit: agent
  Wait[s]    Cpu[s]     Req/s  Last[s]      Level  Title
";
    assert_eq!(tables(&snapshot(), None), expected);
    let peers = Some(PeersSummary { live: 2, known: 3, behind: 0.25, apart: Vec::new() });
    let together = tables(&TopSnapshot { peers, ..snapshot() }, None);
    assert_eq!(together, format!("{expected}\npeers: 2 of 3 live, 0.2 s behind\n"));
}

/// A door without requests.
fn idle() -> LoadSnapshot {
    LoadSnapshot {
        door: "proxy".to_owned(),
        working: 2,
        work_unit: LoadUnit::Cpu,
        cpus: 2.0,
        measures_rate: false,
        work_rate: None,
        busy_seconds: 1.0,
        crowd: None,
        shared_queue: None,
        swarm: None,
        client_times: ClientTimesLoad::default(),
        engines: Vec::new(),
        running: Vec::new(),
        oldest_waiting: None,
    }
}

/// A door in tokens, without requests.
fn of_tokens() -> LoadSnapshot {
    LoadSnapshot { work_unit: LoadUnit::Tokens, cpus: 4.0, work_rate: Some(4.125), ..idle() }
}

#[test]
fn tokens_and_money_are_shown_as_such() {
    let rows = || vec![row("hash:1", 1.25, Some(-2.5), 1.0)];
    let limit = |unit: &str| LimitTable {
        name: unit.to_owned(),
        unit: unit.to_owned(),
        rows: rows(),
        ..snapshot().limits[0].clone()
    };
    let limits = ["cpu", "tokens", "money", "hits"].map(limit).to_vec();
    let engine = EngineLoadRow {
        backend: "10.0.0.1:8000".to_owned(),
        running: 8,
        waiting: 3,
        cache_used: Some(0.45),
        room: None,
    };
    let load = LoadSnapshot { engines: vec![engine], ..of_tokens() };
    let shown = TopSnapshot { limits, load: vec![load], ..snapshot() };
    let expected = "\
Limit: cpu (weighted tokens)
  Wait[s]  Tokens/s     Req/s  Last[s]      Level  Title
     2.00      1250     12.35        1      -2500  hash:1

Limit: tokens (tokens)
  Wait[s]  Tokens/s     Req/s  Last[s]      Level  Title
     2.00      1250     12.35        1      -2500  hash:1

Limit: money (money)
  Wait[s]   Money/s     Req/s  Last[s]      Level  Title
     2.00    1.2500     12.35        1    -2.5000  hash:1

Limit: hits
  Wait[s]    Hits/s     Req/s  Last[s]      Level  Title
     2.00      1.25     12.35        1      -2.50  hash:1

Capacity of proxy: 4000 weighted tokens per second, as configured; 4125 measured

Engines of proxy:
10.0.0.1:8000 runs 8, 3 wait inside, cache 45 % full
";
    assert_eq!(tables(&shown, None), expected);
    let mut refusing = shown.clone();
    refusing.limits.iter_mut().for_each(|limit| limit.action = "reject".to_owned());
    let row = "     2.00      1.25     12.35        1      -2.50  hash:1";
    let refused = expected.replace(row, &format!("{row} (11.1 requests/s refused)"));
    assert_eq!(tables(&refusing, None), refused);
    let load = LoadSnapshot { measures_rate: true, work_rate: None, ..of_tokens() };
    let shown = TopSnapshot { limits: Vec::new(), load: vec![load], ..snapshot() };
    assert!(tables(&shown, None).contains("Capacity of proxy: not measured yet"));
}

#[test]
fn a_refused_configuration_comes_first() {
    let expected = tables(&snapshot(), None);
    let mut refused = RefusedConfig {
        fault: "live.yaml:10:3: unknown key `limit`; `limits` is meant".to_owned(),
        faults: 1,
        meanwhile: "the previous one is in force".to_owned(),
        since: 1_789_999_760.0,
        seconds: 240.0,
    };
    let line = "configuration on disk refused for 4 min, the previous one is in force: \
                live.yaml:10:3: unknown key `limit`; `limits` is meant";
    let told = TopSnapshot { refused_config: Some(refused.clone()), ..snapshot() };
    assert_eq!(tables(&told, None), format!("{line}\n\n{expected}"));
    refused.faults = 3;
    let told = TopSnapshot { refused_config: Some(refused), ..snapshot() };
    assert_eq!(tables(&told, None), format!("{line} (and 2 more)\n\n{expected}"));
}

#[test]
fn a_swarm_has_a_line() {
    let expected = tables(&snapshot(), None);
    let swarm = SwarmLoad {
        since: 1_789_999_400.0,
        seconds: 600.0,
        strangers: 12,
        strangers_cost: 80.5,
        visitors: 3,
        waiting_room_new: 31,
        waiting_room_returned: 9,
        newcomer_wait: None,
        groups: Vec::new(),
    };
    let door = LoadSnapshot { swarm: Some(swarm.clone()), ..idle() };
    let line = "proxy: swarm for 10 min (80.5 CPU-s): 12 strangers wait, 40 in the waiting room";
    let in_swarm = TopSnapshot { load: vec![door.clone()], ..snapshot() };
    assert_eq!(tables(&in_swarm, None), format!("{line}\n\n{expected}"));
    let group = BurningGroupRow {
        id: "5b0a63c2b9d84e57".to_owned(),
        name: "User-Agent 'swarm/1'".to_owned(),
        when: "{user_agent: 'swarm/1'}".to_owned(),
        percent_of_strangers: 97.0,
        percent_of_clients: 4.8,
        seconds: 120.0,
    };
    let groups = vec![group.clone(), BurningGroupRow { when: String::new(), ..group }];
    let in_groups = SwarmLoad { groups, ..swarm.clone() };
    let burning = LoadSnapshot { swarm: Some(in_groups), ..door.clone() };
    let last = "  last in line: User-Agent 'swarm/1' (97 % of strangers)";
    let lines = format!("{line}\n{last}\n    when: {{user_agent: 'swarm/1'}}\n{last}\n");
    let in_swarm = TopSnapshot { load: vec![burning], ..snapshot() };
    assert_eq!(tables(&in_swarm, None), format!("{lines}\n{expected}"));
    let newcomer_wait = Some(3.25);
    let swarm = SwarmLoad { newcomer_wait, ..swarm };
    let door = LoadSnapshot { swarm: Some(swarm), ..door };
    let in_swarm = TopSnapshot { load: vec![door], ..snapshot() };
    assert_eq!(tables(&in_swarm, None), format!("{line}, newcomers wait 3.2 s\n\n{expected}"));
}

#[test]
fn the_requests_with_the_backend_stand_below_the_tables() {
    let request = |client: &str, route: &str, age, stalled| OpenRequestRow {
        client: client.to_owned(),
        route: route.to_owned(),
        age,
        stalled,
    };
    let mut load = LoadSnapshot {
        crowd: Some(QueueLoad { waiting: 14, running: 2, concurrency: 2 }),
        running: vec![
            request("203.0.113.7", "GET /x", 27.04, false),
            request("2001:db8::1", "POST /\x1b[2J", 0.5, true),
        ],
        oldest_waiting: Some(request("198.51.100.1", "GET /", 12.34, false)),
        ..idle()
    };
    let text = |load: &LoadSnapshot| {
        let load = vec![load.clone()];
        tables(&TopSnapshot { load, limits: Vec::new(), ..snapshot() }, None)
    };
    let expected = "
Backend of proxy: 14 waiting, the oldest for 12.3 s
   Age[s]  Client                                   Request
     27.0  203.0.113.7                              GET /x
      0.5  2001:db8::1                              POST /\\u001b[2J (waits for its client)
1 request to /x has been with the backend for 27 s while 14 wait
";
    assert_eq!(text(&load), expected);
    (load.running, load.oldest_waiting) = (Vec::new(), None);
    assert_eq!(text(&load), "");
}

#[test]
fn a_shared_queue_has_a_line_for_each_instance() {
    let row = |name: &str, waiting| QueueInstanceRow {
        name: name.to_owned(),
        here: name == "b:8080",
        owns: name == "a\x1b:8080",
        silent: name == "c",
        apart: name == "d",
        waiting,
        running: 4,
        kept: (name == "b:8080").then_some(5),
    };
    let queue = SharedQueueLoad {
        owner: "a\x1b:8080".to_owned(),
        owns: false,
        seconds: 300.0,
        term: 3,
        takeovers: 0,
        slots: 12,
        waiting: 40,
        running: 8,
        instances: [("b:8080", 12), ("a\x1b:8080", 28), ("c", 0), ("d", 1)]
            .map(|(name, waiting)| row(name, waiting))
            .to_vec(),
    };
    let swarm = SwarmLoad {
        since: 1_789_999_400.0,
        seconds: 600.0,
        strangers: 0,
        strangers_cost: 0.0,
        visitors: 0,
        waiting_room_new: 0,
        waiting_room_returned: 0,
        newcomer_wait: None,
        groups: Vec::new(),
    };
    let load = LoadSnapshot {
        working: 4,
        crowd: Some(QueueLoad { waiting: 12, running: 4, concurrency: 12 }),
        shared_queue: Some(queue),
        swarm: Some(swarm),
        ..idle()
    };
    let why = "its version exchanges other messages about queues".to_owned();
    let apart = vec![ApartPeer { peer: "d".to_owned(), why }];
    let peers = Some(PeersSummary { live: 4, known: 4, behind: 0.0, apart });
    let shown = TopSnapshot { load: vec![load], peers, limits: Vec::new(), ..snapshot() };
    let expected = "\
proxy: swarm for 10 min: a\\u001b:8080 owns the queue and has the figures

Queue of proxy: one queue for 2 instances; a\\u001b:8080 owns it for 5 min; c is silent; \
        d has not joined
here 12 wait and 4 run; in all 40 wait and 8 run on 12 slots
  Waiting   Running      Kept  Instance
       12         4         5  b:8080 (this one)
       28         4         -  a\\u001b:8080 (owns the queue)
        0         4         -  c (silent)
        1         4         -  d (has not joined)

peers: 4 of 4 live, 0.0 s behind

d does not share the queue: its version exchanges other messages about queues
";
    assert_eq!(tables(&shown, None), expected);
}

#[test]
fn t29_the_table_of_an_unknown_limit_is_empty() {
    let empty = TopSnapshot { limits: Vec::new(), ..snapshot() };
    let expected = "\
Limit: x\\u0007
  Wait[s]    Cpu[s]     Req/s  Last[s]      Level  Title
";
    assert_eq!(tables(&empty, Some("x\x07")), expected);
    let note = unknown("x\x07", &empty.known);
    assert_eq!(note, "there is no limit x\\u0007; known are: ip, agent");
}

/// The output equals that of tempomat-doctor 0.3, byte for byte.
#[test]
fn t29_scripts_get_the_tables_of_tempomats_doctor() {
    let expected = "\
Bucket: ip
+---------+--------+-------+---------+------------------------+
| Wait[s] | Cpu[s] | Req/s | Last[s] |         Title          |
+---------+--------+-------+---------+------------------------+
|    2.00 |   1.50 | 12.35 |       3 | evil\\u001b[2J\\u202e    |
|    2.00 |   0.25 | 12.35 |       0 | 203.0.113.7/32         |
|    2.00 |   0.00 | 12.35 |       2 | 198.51.100.2/32        |
|    2.00 |   0.00 | 12.35 |      61 | 198.51.100.0/24 shared |
+---------+--------+-------+---------+------------------------+

Bucket: agent
+---------+--------+-------+---------+-------+
| Wait[s] | Cpu[s] | Req/s | Last[s] | Title |
+---------+--------+-------+---------+-------+
+---------+--------+-------+---------+-------+
";
    let mut shown = snapshot();
    shown.limits[0].rows[1].key = "198.51.100.0/24 shared".to_owned();
    assert_eq!(buckets(&shown, None), expected);
    let empty = TopSnapshot { limits: Vec::new(), ..snapshot() };
    assert_eq!(buckets(&empty, Some("Slash8")).lines().count(), 5);
}

#[test]
fn when_nothing_listens_the_error_says_so() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    drop(listener);
    let remote = AdminClient { address: &address, token: None };
    let asked = clients(&remote, None, ClientsFormat::Tables);
    let error = asked.expect_err("nobody is there").to_string();
    assert!(error.starts_with(&format!("no server answers at {address}: ")), "{error}");
    assert!(error.contains("--admin"), "{error}");
}

/// The result of `clients` with a server that answers `bytes`, and the request that it sent.
fn exchange(
    bytes: &'static [u8],
    token: Option<&str>,
) -> (Result<ClientsReport, AdminClientError>, String) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a caller");
        let mut head = [0; 4096];
        let count = stream.read(&mut head).expect("a question");
        stream.write_all(bytes).expect("an answer");
        String::from_utf8_lossy(&head[..count]).into_owned()
    });
    let remote = AdminClient { address: &address, token };
    let result = clients(&remote, Some("a b"), ClientsFormat::Tables);
    (result, server.join().expect("the server ends"))
}

fn answered(bytes: &'static [u8]) -> Result<ClientsReport, AdminClientError> {
    exchange(bytes, None).0
}

#[test]
fn a_token_is_sent_if_there_is_one() {
    let refused = b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n";
    let sent = exchange(refused, Some("0123456789abcdef")).1.to_ascii_lowercase();
    assert!(sent.contains("\r\nauthorization: bearer 0123456789abcdef\r\n"), "{sent}");
    assert!(!exchange(refused, None).1.to_ascii_lowercase().contains("authorization"));
}

#[test]
fn whatever_else_answers_there_is_no_table() {
    let refused = answered(b"HTTP/1.1 401 No\r\ncontent-length: 8\r\n\r\ntoken\x1b[1");
    let refused = refused.expect_err("refused").to_string();
    assert!(refused.ends_with("responds with 401 Unauthorized: token\\u001b[1"), "{refused}");
    for bytes in [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".as_slice(),
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 6\r\n\r\n<html>",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n[]",
    ] {
        let error = answered(bytes).expect_err("no snapshot").to_string();
        assert!(error.contains("not an admin door"), "{error}");
    }
}

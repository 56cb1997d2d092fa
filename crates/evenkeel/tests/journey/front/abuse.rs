//! Invalid input for the check door and its access log: the door keeps working, and charges no
//! client for it.

use crate::client::Client;
use crate::door::Door;
use evenkeel_testing::wait::wait_for;
use std::net::UdpSocket;

const LIMIT: &str = "  cpus: 1\n  action: reject\n  limits:\n    \
                     - {name: ip, by: ip/32, share: 10%, burst: 1s}\n";

/// Sends log lines over syslog.
struct Log(UdpSocket);

impl Log {
    fn to(door: &Door) -> Log {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.connect(("127.0.0.1", door.syslog)).expect("loopback");
        Log(socket)
    }

    fn send(&self, line: &[u8]) {
        self.0.send(line).expect("sent");
    }
}

/// The number of lines read so far, valid or not.
fn lines_read(door: &Door) -> f64 {
    door.metric("evenkeel_check_reports_total", &[])
}

/// Meaningless bytes, the same in each run.
fn noise(length: usize, seed: &mut u64) -> Vec<u8> {
    let mut next = || {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn garbage_in_the_access_log_settles_nothing() {
    let door = Door::start(LIMIT);
    let log = Log::to(&door);
    let id = door.pass("192.0.2.1");
    let (number, _) = id.split_once('-').expect("a number and a secret");
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let mut lines: Vec<Vec<u8>> = (0..100).map(|n| noise(n * 13 % 1_400, &mut seed)).collect();
    lines.extend((1..100_u64).map(|n| format!("id={number}-{n:016x} cost=3600s").into_bytes()));
    lines.extend([
        format!("evenkeel id={id} time=NaN cost=\"-1\"").into_bytes(),
        format!("evenkeel id={id} time=1e400").into_bytes(),
        [b"{\"a\":".to_vec(), b"[".repeat(60_000)].concat(),
        vec![0; 65_000],
        vec![b'='; 65_000],
        format!("{}id={id}", "id=".repeat(20_000)).into_bytes(),
    ]);
    // Each line is read before the next is sent, so that none is lost.
    for (read, line) in (1_i32..).zip(&lines) {
        log.send(line);
        wait_for("a line to be read", || (lines_read(&door) >= read.into()).then_some(()));
    }
    assert_eq!(door.metric("evenkeel_check_open", &[]), 1.0);
    assert_eq!(door.metric("evenkeel_check_reports_total", &[("result", "settled")]), 0.0);
    assert_eq!(door.metric("evenkeel_cost_seconds_total", &[]), 0.0);

    // A valid line counts, and only once.
    for _ in 0..5 {
        log.send(format!("evenkeel id={id} time=0.5 cost=\"12ms\"").as_bytes());
    }
    let all = lines.len() as f64 + 5.0;
    wait_for("the last line", || (lines_read(&door) >= all).then_some(()));
    assert_eq!(door.metric("evenkeel_check_reports_total", &[("result", "settled")]), 1.0);
    assert_eq!(door.metric("evenkeel_cost_seconds_total", &[]), 0.012);
    assert_eq!(door.ask("192.0.2.1").status, 204);
}

/// A client determines the length of its headers, and thus that of a log line with all of them.
#[test]
fn a_line_as_long_as_a_datagram_can_be_is_read_to_its_end() {
    let door = Door::start(LIMIT);
    let id = door.pass("192.0.2.1");
    let headers = "x".repeat(64_000);
    let line = format!(
        "{{\"request\":{{\"headers\":{{\"A\":[\"{headers}\"]}}}},\"duration\":0.25,\
         \"resp_headers\":{{\"X-Evenkeel-Id\":[\"{id}\"],\"Server-Timing\":[\"cpu;dur=3000\"]}}}}\n"
    );
    Log::to(&door).send(line.as_bytes());
    door.wait_for_metric("evenkeel_check_reports_total", &[("result", "settled")], 1.0);
    assert_eq!(door.ask("192.0.2.1").status, 403, "it owes three CPU-seconds");
}

#[test]
fn who_sends_half_a_question_or_none_keeps_nobody_from_asking() {
    let door = Door::start(LIMIT);
    let mut slow: Vec<Client> = (0..200)
        .map(|_| {
            let mut client = Client::new("127.0.0.1", door.port);
            client.send("GET /check HTTP/1.1\r\nX-Real-IP: 192.0.2.");
            client
        })
        .collect();
    door.wait_for_metric("evenkeel_connections_open", &[("door", "check")], 200.0);
    assert_eq!(door.ask("192.0.2.1").status, 204);
    for garbage in [
        "\0\0\0\0\r\n\r\n",
        "GET\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}",
        "PRI * HTTP/2.0\r\n\r\n",
    ] {
        Client::new("127.0.0.1", door.port).send(garbage);
    }
    let name = "evenkeel_bad_requests_total";
    door.wait_for_metric(name, &[("door", "check")], 4.0);
    let huge =
        format!("GET /check HTTP/1.1\r\nX-Real-IP: 192.0.2.1\r\nA: {}\r\n", "x".repeat(70_000));
    let answer = Client::new("127.0.0.1", door.port).try_ask(&huge);
    assert!(answer.is_none_or(|answer| answer.status == 431), "it is beyond a bound");
    // A slow client is not an error: it completes its question and gets an answer.
    let last = slow.last_mut().expect("one of them");
    let answered = last.ask("9\r\nHost: t\r\n\r\n");
    assert_eq!(answered.status, 204);
}

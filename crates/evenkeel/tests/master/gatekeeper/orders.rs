//! Messages between Evenkeel's gatekeeper and a master that uses libzmq, frame by frame.

use super::site::{Answer, Keeper, now};
use evenkeel_testing::wait::until;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The master's libzmq sockets, controlled by lines: `subscribed`, `order` with frames in
/// hexadecimal, and `hear` with a time in milliseconds.
const MASTER: &str = r#"
import sys, zmq
context = zmq.Context()
accounts = context.socket(zmq.SUB)
accounts.subscribe(b'')
orders = context.socket(zmq.XPUB)
def said(text):
    print(text, flush=True)
ports = [socket.bind_to_random_port('tcp://127.0.0.1') for socket in (accounts, orders)]
said(' '.join('127.0.0.1:%d' % port for port in ports))
for line in sys.stdin:
    word, *frames = line.rstrip('\n').split(' ')
    if word == 'subscribed':
        said(orders.recv().hex())
    elif word == 'order':
        orders.send_multipart([bytes.fromhex(frame) for frame in frames])
    elif word == 'hear':
        there = accounts.poll(int(frames[0]))
        said(' '.join('-' + f.hex() for f in accounts.recv_multipart()) if there else 'none')
"#;

/// The identifier of requests by which a test checks that they are reported.
const PROBE: &str = "probe";

/// A master: libzmq in a program of its own, which ends when this is dropped.
struct Master {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The expected last frame of every message.
    log_info: &'static str,
}

impl Master {
    fn start() -> (Master, [SocketAddr; 2]) {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", MASTER]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 runs");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut master = Master { child, input, output, log_info: "" };
        let line = master.line();
        let addresses: Vec<_> = line.split(' ').map(|word| word.parse().expect(word)).collect();
        (master, addresses.try_into().expect("two addresses"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes");
        assert!(!line.is_empty(), "python3 needs zmq (Debian: python3-zmq)");
        line.trim_end().to_owned()
    }

    /// A master with a gatekeeper, connected in both directions.
    fn with_keeper(keys: &str) -> (Master, Keeper) {
        let (mut master, addresses) = Master::start();
        let keeper = Keeper::start(addresses, keys);
        writeln!(master.input, "subscribed").expect("it reads");
        assert_eq!(master.line(), "01616200", "S13: `ab`, its NUL, and nothing else");
        until("it is heard", || {
            assert_eq!(keeper.get(PROBE).status, 200);
            master.hear_within(50).is_some()
        });
        (master, keeper)
    }

    fn order(&mut self, frames: &[&[u8]]) {
        let hex = |frame: &&[u8]| frame.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let frames: Vec<String> = frames.iter().map(hex).collect();
        writeln!(self.input, "order {}", frames.join(" ")).expect("it reads");
    }

    /// Orders an identifier to wait, and waits until the gatekeeper has the order.
    fn hold(&mut self, keeper: &Keeper, identifier: &str, until_ms: u64) {
        let before = keeper.orders();
        let time = until_ms.to_string();
        self.order(&[b"ab\0", b"DELAY_UNTIL", identifier.as_bytes(), time.as_bytes()]);
        until("the order is taken", || keeper.orders() > before);
    }

    fn hear_within(&mut self, millis: u32) -> Option<Vec<String>> {
        writeln!(self.input, "hear {millis}").expect("it reads");
        let line = self.line();
        let unhex = |frame: &str| {
            let hex = frame.trim_start_matches('-').as_bytes();
            let byte = |pair: &[u8]| {
                let text = std::str::from_utf8(pair).expect("hexadecimal");
                u8::from_str_radix(text, 16).expect("hexadecimal")
            };
            hex.chunks(2).map(byte).collect::<Vec<u8>>().escape_ascii().to_string()
        };
        (line != "none").then(|| line.split(' ').map(unhex).collect())
    }

    /// The next message that is no probe; it must have six frames, with this domain and identifier.
    /// Returns its status, its arrival time, and the time until which the request is held.
    fn hear(&mut self, identifier: &str) -> (String, u64, String) {
        let mut frames = self.hear_within(60_000).expect("a message");
        while frames.get(2).is_some_and(|who| who == PROBE) {
            frames = self.hear_within(60_000).expect("a message");
        }
        let [domain, status, who, came, until, log] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!((&**domain, &**who, &**log), ("ab\\x00", identifier, self.log_info));
        let came: u64 = came.parse().expect("plain decimal milliseconds");
        assert!(came.abs_diff(now()) < 3_600_000);
        (status.clone(), came, until.clone())
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn s13_s14_s16_every_message_has_six_frames_and_any_identifier() {
    let (mut master, keeper) = Master::with_keeper("domain: ab");
    let long = "x".repeat(300);
    for identifier in ["c", "constructor", "__proto__", "", "a;b", &long] {
        let before = now();
        assert_eq!(keeper.get(identifier).status, 200);
        let (status, came, until) = master.hear(identifier);
        assert_eq!((&*status, &*until), ("ACCEPTED", ""));
        assert!((before..=now()).contains(&came), "{before} {came}");
        // Each of these identifiers can be held.
        master.hold(&keeper, identifier, now() + 3_600_000);
        assert_eq!(keeper.get(identifier).status, 503, "{identifier}");
        assert_eq!(master.hear(identifier).0, "REJECTED");
    }
    // An order for another domain with the same beginning does not arrive, because it is not
    // subscribed to.
    let hour = (now() + 3_600_000).to_string();
    master.order(&[b"abc\0", b"DELAY_UNTIL", b"free", hour.as_bytes()]);
    master.hold(&keeper, "mark", now() + 3_600_000);
    assert_eq!(keeper.get("free").status, 200);
}

#[test]
fn the_last_frame_has_what_is_configured_for_the_log() {
    let log_info = "log_info: [method, path, 'header:x-id', 'header:authorization']";
    let (mut master, keeper) = Master::with_keeper(&format!("domain: ab, {log_info}"));
    master.log_info = "GET / c ";
    assert_eq!(keeper.get("c").status, 200);
    assert_eq!(master.hear("c").0, "ACCEPTED");
    master.hold(&keeper, "c", now() + 3_600_000);
    assert_eq!(keeper.get("c").status, 503);
    assert_eq!(master.hear("c").0, "REJECTED");
}

#[test]
fn s7_s8_s9_a_request_is_held_until_then_and_the_site_hears_of_it_no_earlier() {
    let (mut master, keeper) = Master::with_keeper("domain: ab, max_delay: 30s");
    // If the machine is too slow for the wait to show, it is tried again.
    loop {
        let time = now() + 1_500;
        master.hold(&keeper, "c", time);
        master.hold(&keeper, "c", time - 1_000);
        assert_eq!(keeper.get("c").status, 200);
        let (status, came, told) = master.hear("c");
        if status == "ACCEPTED" {
            assert!(came >= time, "let in {} ms too early", time - came);
            continue;
        }
        assert_eq!(
            (&*status, &*told),
            ("DELAYED", &*time.to_string()),
            "the earlier order changed nothing"
        );
        assert!(came < time && keeper.site.last() >= time, "{}", keeper.site.last());
        break;
    }
    // The order has expired, so it is forgotten.
    until("nobody waits", || keeper.metric("evenkeel_gatekeeper_identifiers") == 0);
    assert_eq!(keeper.get("c").status, 200);
    assert_eq!(master.hear("c").0, "ACCEPTED");
    assert!(keeper.requests("delayed") >= 1 && keeper.requests("rejected") == 0);
    master.hold(&keeper, "c", now() + 3_600_000);
    assert_eq!(keeper.get("c").status, 503);
}

#[test]
fn s15_what_is_no_order_changes_nothing_and_later_ones_work() {
    let (mut master, keeper) = Master::with_keeper("domain: ab");
    let hour = (now() + 3_600_000).to_string();
    let hour = hour.as_bytes();
    for faulty in [
        &[&b"ab\0"[..], b"DELAY_UNTIL", b"c"][..],
        &[b"ab\0", b"RELEASE", b"c", hour],
        &[b"ab\0", b"DELAY_UNTIL", b"c", b"soon"],
        &[b"ab\0", b"DELAY_UNTIL", b"c", b"1e300"],
        &[b"ab\0", b"DELAY_UNTIL", b"c", &[b'1'; 300_000]],
        &[b"ab\0c", b"DELAY_UNTIL", b"c", hour],
        &[b"ab\0", b"\xff\xfe", b"\0"],
    ] {
        master.order(faulty);
    }
    let faulty = || keeper.metric("evenkeel_gatekeeper_orders_total{result=\"faulty\"}");
    until("all are counted", || faulty() == 7);
    assert_eq!(keeper.get("c").status, 200);
    master.hold(&keeper, "c", now() + 3_600_000);
    assert_eq!(keeper.get("c").status, 503);
}

#[test]
fn places_are_bounded_and_a_client_that_goes_away_frees_its_own() {
    let (mut master, keeper) = Master::with_keeper("domain: ab, max_delay: 1h, held_max: 1");
    master.hold(&keeper, "c", now() + 3_000_000);
    let before = keeper.site.requests();
    let held = keeper.ask("c");
    until("it is held", || keeper.metric("evenkeel_gatekeeper_held") == 1);
    assert_eq!(master.hear("c").0, "DELAYED");
    let crowded: Answer = keeper.get("c");
    let after: u64 = crowded.header("retry-after").expect("it says when").parse().expect("seconds");
    assert!(crowded.status == 503 && (2_000..=3_000).contains(&after), "{crowded:?}");
    assert_eq!(master.hear("c").0, "REJECTED");
    assert_eq!((keeper.requests("crowded"), keeper.get("another").status), (1, 200));
    drop(held);
    until("its place is free", || keeper.metric("evenkeel_gatekeeper_held") == 0);
    let again = keeper.ask("c");
    until("it is held", || keeper.metric("evenkeel_gatekeeper_held") == 1);
    drop(again);
    assert_eq!(keeper.site.requests(), before + 1, "the site heard of one, which was not held");
}

//! Orders that gatekeepers get, with libzmq as the peer.

use crate::gatekeeper::site::now;
use crate::stage::{Gatekeeper, HOUR, MasterServer, ahead, order, text};
use evenkeel_testing::wait::until;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

const THREE: &str = "domains: {d: [{rate: 1/h, burst: 3}], ab: [{rate: 1/h, burst: 1}], \
                     abc: [{rate: 1/h, burst: 1}], k: [{rate: 1/h, burst: 3, algorithm: gcra}]}";

#[test]
fn s1_s2_the_burst_is_free_and_then_all_gatekeepers_hold() {
    let program = MasterServer::start(THREE);
    let mut one = Gatekeeper::new(&program, &["d\0", "k\0"]);
    let mut two = Gatekeeper::new(&program, &["d\0"]);
    let t = ahead();
    (0..3).for_each(|_| one.request("d", "c", t));
    assert_eq!(one.hear(), order("d", "c", t + HOUR));
    assert_eq!(two.hear(), order("d", "c", t + HOUR), "S19");
    two.request("d", "c", t + 5);
    assert_eq!(two.hear(), order("d", "c", t + 5 + HOUR));
    assert_eq!(one.hear(), order("d", "c", t + 5 + HOUR));
    (0..4).for_each(|_| one.request("k", "c", t));
    // The first three are paid at `t`, when they run; the fourth exceeds them.
    assert_eq!(one.hear(), order("k", "c", t), "gcra");
    assert_eq!(one.hear(), order("k", "c", t + HOUR), "gcra");
}

#[test]
fn s26_the_configuration_of_smockron_runs_and_counts_as_its_master_did() {
    let text = "server: {listen: '127.0.0.1:0'}\ndatastore: {host: localhost}\n\
                domains: {d: {rate: 2/sec, burst: 3}}\n";
    let program = MasterServer::start_with(text);
    let mut gatekeeper = Gatekeeper::new(&program, &["d\0"]);
    let t = ahead();
    // S2: the reports of Smockron's gatekeepers, and the time until which the next request has to
    // wait by then.
    let told = [(0, 0), (20, 0), (40, 0), (60, 500), (500, 1000), (1000, 1500), (1500, 2000)];
    let mut until = 0;
    for (at, expected) in told {
        gatekeeper.request("d", "c", t + at);
        let heard = gatekeeper.hear();
        let last = heard.rsplit('|').next().expect("a time").parse::<u64>().expect("a number");
        until = until.max(last);
        // An earlier time is over when the next request comes.
        assert!(until <= t + at.max(expected), "{at}: {heard}");
        assert!(expected == 0 || until == t + expected, "{at}: {heard} {t}");
    }
}

#[test]
fn s10_s11_delayed_requests_count_when_they_run_and_refused_ones_do_not() {
    let program = MasterServer::start(THREE);
    let mut gatekeeper = Gatekeeper::new(&program, &["ab\0"]);
    let t = ahead();
    (0..5).for_each(|_| gatekeeper.send(&[b"ab\0", b"REJECTED", b"c", &text(t), b"", b""]));
    gatekeeper.send(&[b"ab\0", b"DELAYED", b"c", &text(t), &text(t + 540), b""]);
    assert_eq!(gatekeeper.hear(), order("ab", "c", t + 540 + HOUR));
    assert_eq!((program.messages("rejected"), program.messages("delayed")), (5, 1));
    assert_eq!(program.metric("evenkeel_master_delayed_seconds_count"), 1);
}

#[test]
fn s12_s13_domains_are_told_apart_and_unknown_ones_change_nothing() {
    let program = MasterServer::start(THREE);
    let mut short = Gatekeeper::new(&program, &["ab\0"]);
    let t = ahead();
    short.request("nobody", "c", t);
    short.request("abc", "c", t);
    short.request("ab", "c", t);
    assert_eq!(short.hear(), order("ab", "c", t + HOUR));
    assert_eq!(program.messages("unknown"), 1);
}

#[test]
fn s14_messages_of_other_forms() {
    let program = MasterServer::start(THREE);
    let mut gatekeeper = Gatekeeper::new(&program, &["ab\0"]);
    let t = ahead();
    for faulty in [
        &[&b"ab\0"[..], b"ACCEPTED", b"c", b"1"][..],
        &[b"ab\0"],
        &[b"ab\0", b"accepted", b"c", &text(t), b"", b""],
        &[b"ab\0", b"ACCEPTED", b"c", b"soon", b"", b""],
        &[b"ab\0", b"ACCEPTED", b"c", b"NaN", b"", b""],
        &[b"ab\0", b"ACCEPTED", b"c", b"-5", b"", b""],
        &[b"ab\0", b"DELAYED", b"c", &text(t), b"", b""],
        &[b"\xff\xfe", b"\0", b"\xff", b"\xff", b"\xff", b"\xff"],
        &[b"ab\0", b"ACCEPTED", b"c", &[b'1'; 300_000], b"", b""],
        &[&b"x"[..]; 20],
    ] {
        gatekeeper.send(faulty);
    }
    gatekeeper.send(&[b"ab\0", b"ACCEPTED", b"five", &text(t), b""]);
    assert_eq!(gatekeeper.hear(), order("ab", "five", t + HOUR));
    gatekeeper.send(&[
        b"ab\0",
        b"ACCEPTED",
        b"exact",
        format!("{t}.5").as_bytes(),
        b"",
        b"1",
        b"2",
    ]);
    assert_eq!(gatekeeper.hear(), order("ab", "exact", t + 1 + HOUR), "nobody comes too early");
    assert_eq!(program.messages("faulty"), 10);
}

#[test]
fn the_text_of_a_message_is_logged_and_a_flood_of_them_is_thinned_out() {
    let mut program = MasterServer::start(THREE);
    let mut gatekeeper = Gatekeeper::new(&program, &["ab\0"]);
    let t = ahead();
    gatekeeper.send(&[b"ab\0", b"DELAYED", b"c\x1b", &text(t), &text(t + 5), b"GET /a\nb"]);
    let line = program.told("a gatekeeper reported a request");
    for part in ["INFO", "domain=\"ab\"", "status=\"DELAYED\"", "peer=127.0.0.1", "GET /a"] {
        assert!(line.contains(part), "no {part} in {line}");
    }
    assert!(!line.contains('\x1b') && line.trim_end().contains("b\""), "{line:?}");
    // A report without a text is not logged, so the next line is about the flood.
    gatekeeper.request("ab", "silent", t);
    for n in 0..1_000 {
        let log = format!("number {n}");
        gatekeeper.send(&[b"ab\0", b"REJECTED", b"c", &text(t), b"", log.as_bytes()]);
    }
    assert!(program.told("a gatekeeper reported a request").contains("number 0"));
    until("all have come", || program.messages("rejected") == 1_000);
    // Messages left out in one second are reported with the next one.
    let start = now();
    until("the second is over", || {
        gatekeeper.send(&[b"ab\0", b"REJECTED", b"c", &text(t), b"", b"end"]);
        now() > start + 2_000
    });
    assert!(program.told("were omitted from the log").contains("left_out="));
}

#[test]
fn statsd_gets_the_figures_of_smockrons_master_under_its_prefix() {
    let sink = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    sink.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let port = sink.local_addr().expect("an address").port();
    let program = MasterServer::start_with(&format!(
        "server: {{listen: '127.0.0.1:0'}}\ndomains: {{d: {{rate: 2/sec, burst: 3}}}}\n\
         stats: {{host: 127.0.0.1, port: {port}, prefix: gate.}}\n"
    ));
    let mut gatekeeper = Gatekeeper::new(&program, &[]);
    let t = ahead();
    for delay in [540, 1_000] {
        gatekeeper.send(&[b"d\0", b"DELAYED", b"c", &text(t), &text(t + delay), b""]);
    }
    gatekeeper.request("d", "c", t);
    let mut lines: Vec<String> = Vec::new();
    let mut hear = |what: &str, is_there: &dyn Fn(&[String]) -> bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_there(&lines) {
            assert!(Instant::now() < end, "never: {what} in {lines:?}");
            let mut datagram = [0; 2_000];
            let count = sink.recv(&mut datagram).unwrap_or_else(|_| panic!("{what}: {lines:?}"));
            let text = String::from_utf8_lossy(&datagram[..count]).into_owned();
            let of_interest = |line: &&str| line.contains("delayed") || line.contains("request.");
            lines.extend(text.lines().filter(of_interest).map(str::to_owned));
        }
    };
    for expected in [
        "gate.request.delayed_by:540|ms",
        "gate.request.delayed_by:1000|ms",
        "evenkeel.master_delayed:540|ms",
        "gate.request.status.ACCEPTED:1|c",
    ] {
        hear(expected, &|lines| lines.iter().any(|line| line == expected));
    }
    // Three messages, within one second or two.
    hear("three in all", &|lines| {
        let value = |line: &String| {
            let value = line.strip_prefix("gate.request.total:")?.strip_suffix("|c")?;
            value.parse::<u64>().ok()
        };
        lines.iter().filter_map(value).sum::<u64>() == 3
    });
}

#[test]
fn s16_identifiers_of_any_bytes() {
    let program = MasterServer::start(THREE);
    let mut gatekeeper = Gatekeeper::new(&program, &["ab\0"]);
    let t = ahead();
    let long = "x".repeat(65_536);
    for identifier in ["constructor", "__proto__", "", "a;b", &long] {
        gatekeeper.request("ab", identifier, t);
        assert_eq!(gatekeeper.hear(), order("ab", identifier, t + HOUR));
    }
}

#[test]
fn s18_who_comes_late_is_told_what_is_in_force() {
    let program = MasterServer::start(THREE);
    let mut early = Gatekeeper::new(&program, &["ab\0"]);
    let t = ahead();
    early.request("ab", "c", t);
    assert_eq!(early.hear(), order("ab", "c", t + HOUR));
    let mut late = Gatekeeper::plain(&program, &["ab\0"]);
    assert_eq!(late.hear(), order("ab", "c", t + HOUR));
}

#[test]
fn s17_the_master_is_killed_and_comes_back() {
    let keys = "domains: {d: [{rate: 1/h, burst: 1}]}";
    let program = MasterServer::start(keys);
    let mut gatekeeper = Gatekeeper::plain(&program, &["d\0"]);
    let t = ahead();
    let held = |gatekeeper: &mut Gatekeeper| loop {
        // While the gatekeeper is not connected, its reports are lost, which is correct.
        gatekeeper.request("d", "c", t);
        if let Some(order) = gatekeeper.hear_soon() {
            return order;
        }
    };
    assert_eq!(held(&mut gatekeeper), order("d", "c", t + HOUR));
    let program = program.killed_and_started(keys);
    assert_eq!(held(&mut gatekeeper), order("d", "c", t + HOUR));
    drop(program);
}

#[test]
fn rules_are_reloaded_and_what_was_counted_stays() {
    let rules = |burst| format!("domains: {{d: [{{rate: 1/h, burst: {burst}, algorithm: gcra}}]}}");
    let mut program = MasterServer::start(&rules(2));
    let mut gatekeeper = Gatekeeper::new(&program, &[]);
    let t = ahead();
    gatekeeper.request("d", "c", t);
    while program.messages("accepted") == 0 {}
    program.reload(&rules(0));
    let mut gatekeeper = Gatekeeper::new(&program, &["d\0"]);
    gatekeeper.request("d", "c", t);
    // The debt is kept in hits, and may be rounded up to the next millisecond.
    let told = gatekeeper.hear();
    assert!([0, 1].iter().any(|more| told == order("d", "c", t + 2 * HOUR + more)), "{told} {t}");
}

//! Bytes on the wire: the cases of docs/spec/dthrottle.md about bytes and connections.

use crate::stage::{Client, LineServer, ONCE};
use evenkeel_testing::evenkeel;
use std::io::Write;
use std::thread;

#[test]
fn d12_to_d18_bytes_in_bytes_out() {
    let program = LineServer::start(ONCE);
    let mut client = Client::tcp(program.lines);
    client.send("C\nC\nD\n");
    assert_eq!(client.take(9), "OK\nNO\nOK\n", "three replies, in order");

    for byte in b"slow\n" {
        client.send([*byte]);
    }
    assert_eq!(client.take(3), "OK\n");
    assert_eq!(client.ask("slow\n"), "NO\n");
    assert_eq!(client.ask("C\r\n\n\n"), "OK\nOK\nNO\n", "other bytes, other tag");

    let long = format!("{}\n", "x".repeat(1_025));
    assert_eq!(client.ask(&long.repeat(3)), "OK\nOK\nOK\n", "too long: never refused");
    assert_eq!(client.ask("C\n"), "NO\n", "and the connection goes on");

    let mut half = Client::tcp(program.lines);
    half.send("a\nb\nunfinished");
    half.half_close();
    assert_eq!(half.rest(), "OK\nOK\n", "whole lines are answered, half a line is none");
    assert_eq!(client.ask("unfinished\n"), "OK\n", "and was not counted");
    assert_eq!(program.metric("evenkeel_bad_requests_total{door=\"line\"}"), 3);
    assert_eq!(program.metric("evenkeel_requests_total{door=\"line\"}"), 15);
}

#[test]
fn d20_twenty_connections_share_one_bucket() {
    let program = LineServer::start("rate: 1 per 365d, burst: 10");
    let address = program.lines;
    let asked = (0..20).map(|_| thread::spawn(move || Client::tcp(address).ask("C\nC\nC\n")));
    let asked: Vec<_> = asked.collect();
    let served: usize =
        asked.into_iter().map(|one| one.join().expect("answers").matches("OK").count()).sum();
    assert_eq!(served, 10);
}

#[test]
fn a_socket_that_is_a_file_asks_the_same_engine() {
    let program = LineServer::start(ONCE);
    assert_eq!(Client::unix(&program).ask("C\nD\n"), "OK\nOK\n");
    assert_eq!(Client::tcp(program.lines).ask("C\n"), "NO\n");
    let mut resp = Client::tcp(program.resp);
    resp.send("THROTTLE C\r\n");
    assert!(resp.take(8).ends_with(":1\r\n"));
}

#[test]
fn a_long_pipeline_is_answered_in_order() {
    // The number of tags that a table never loses by chance. No step of their refill comes before
    // 2070.
    const TAGS: usize = 4_096;
    let program = LineServer::start("rate: 1 per 36500d, burst: 3, keys_max: 4096");
    let client = Client::tcp(program.lines);
    let mut writer = client.stream.try_clone().expect("a handle");
    // At any moment, some tags come for the first time and others for the tenth, in a pattern that
    // does not repeat soon.
    let tags = (0..200_000_usize).map(|n| n / 50 - (n * n / 7) % 53 % (1 + n / 50));
    let sent = tags.clone();
    let sender = thread::spawn(move || {
        for tag in sent {
            writer.write_all(format!("{tag}\n").as_bytes()).expect("sent");
        }
    });
    let (mut asked, mut expected) = ([0; TAGS], String::new());
    for tag in tags {
        asked[tag] += 1;
        expected += if asked[tag] > 3 { "NO\n" } else { "OK\n" };
    }
    let mut reader = client;
    let replies = reader.take(expected.len());
    sender.join().expect("all sent");
    let wrong = replies.lines().zip(expected.lines()).position(|(told, expected)| told != expected);
    assert_eq!(wrong, None, "the first line that is not answered as it should be");
}

#[test]
fn doctor_shows_the_heaviest_tags_and_the_log_who_was_refused() {
    let mut program =
        LineServer::start("rate: 1 per 365d, burst: 2, limits: [{prefix: 'p:', rate: 1 per 365d}]");
    let mut client = Client::tcp(program.lines);
    assert_eq!(client.ask("heavy\nheavy\nheavy\nlight\np:1\n"), "OK\nOK\nNO\nOK\nOK\n");
    let told = program.told("request refused");
    assert!(told.contains("limit=\"line\" key=\"heavy\" client=127.0.0.1 level=0.0"), "{told}");
    let doctor = evenkeel!()
        .args(["clients", "--admin", &program.admin.to_string()])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let (heavy, light) = (text.find("heavy").expect("listed"), text.find("light").expect("listed"));
    assert!(heavy < light && text.contains("p:1"), "{text}");
    assert!(text.contains("Limit: cl.throttle"), "{text}");
    let refused = "evenkeel_decisions_total{verdict=\"reject\",limit=\"line\",shadow=\"false\"}";
    assert_eq!(program.metric(refused), 1);
    assert_eq!(program.metric("evenkeel_table_keys_used{door=\"line\",limit=\"line\"}"), 2);
}

//! A rule for each of many prefixes, and exempt prefixes, with the real program.

use crate::stage::{Client, LineServer, ONCE};
use std::fmt::Write;
use std::fs;

/// A thousand prefixes, each with a burst of its own.
fn thousand() -> String {
    let limit =
        |at: usize| format!("{{prefix: 'p{at}:', rate: 1 per 365d, burst: {}}}", 1 + at % 3);
    let limits: Vec<String> = (0..1_000).map(limit).collect();
    format!("{ONCE}, limits: [{}]", limits.join(", "))
}

/// Checks that `burst` questions are answered with `OK`, and the next with `NO`.
fn spends(client: &mut Client<std::net::TcpStream>, tag: &str, burst: usize) {
    let answers = client.ask(&format!("{tag}\n").repeat(burst + 1));
    assert_eq!(answers, format!("{}NO\n", "OK\n".repeat(burst)), "{tag}");
}

#[test]
fn each_of_a_thousand_prefixes_has_numbers_of_its_own() {
    let mut program = LineServer::start(&thousand());
    let mut client = Client::tcp(program.lines);
    for at in [0, 1, 2, 500, 997, 998, 999] {
        spends(&mut client, &format!("p{at}:a"), 1 + at % 3);
    }
    spends(&mut client, "other", 1);
    let refused = |limit| {
        format!("evenkeel_decisions_total{{verdict=\"reject\",limit=\"{limit}\",shadow=\"false\"}}")
    };
    assert_eq!(program.metric(&refused("prefixes")), 7);
    assert_eq!(program.metric(&refused("line")), 1);
    // A reload changes one rule; the debts of tags stay.
    let changed = thousand()
        .replace("'p998:', rate: 1 per 365d, burst: 3", "'p998:', rate: 1 per 365d, burst: 9");
    program.reload(&changed);
    let mut client = Client::tcp(program.lines);
    assert_eq!(client.ask("p998:a\np999:a\n"), "OK\nNO\n");
}

#[test]
fn a_hundred_thousand_prefixes_of_a_file_and_what_it_exempts() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = folder.path().join("tokens");
    let mut text = String::from("inner: exempt\ninner:not 1/365d\n");
    (0..100_000).for_each(|at| writeln!(text, "t{at}: 1/365d {}", 1 + at % 2).expect("written"));
    fs::write(&list, text).expect("written");
    let mut program = LineServer::start(&format!("{ONCE}, limits_file: '{}'", list.display()));
    let mut client = Client::tcp(program.lines);
    for at in [0, 1, 77_777, 99_999] {
        spends(&mut client, &format!("t{at}:a"), 1 + at % 2);
    }
    assert_eq!(client.ask(&"inner:a\n".repeat(100)), "OK\n".repeat(100));
    spends(&mut client, "inner:not", 1);
    fs::write(&list, "t0: 1/365d 5\n").expect("written");
    program.told("configuration reloaded");
    let mut client = Client::tcp(program.lines);
    assert_eq!(client.ask("t0:a\nt1:new\nt1:new\n"), "OK\nOK\nNO\n", "t1: has no rule now");
}

#[test]
fn what_is_exempt_is_neither_counted_nor_logged_even_in_shadow() {
    let mut program = LineServer::start(&format!("{ONCE}, shadow: true, exempt: 'inner:'"));
    let mut client = Client::tcp(program.lines);
    assert_eq!(client.ask("inner:a\ninner:a\ninner:a\na\na\n"), "OK\n".repeat(5));
    let line = program.told("request would be refused");
    assert!(line.contains("key=\"a\"") && line.contains("shadow=true"), "{line}");
    let refused = "evenkeel_decisions_total{verdict=\"reject\",limit=\"line\",shadow=\"true\"}";
    assert_eq!(program.metric(refused), 1);
    assert!(!program.get("/api/top").contains("inner:a"));
    // A client of the Redis protocol gets the same answers.
    let mut redis = Client::tcp(program.resp);
    redis.send("THROTTLE inner:a\r\n");
    assert_eq!(redis.take(8), "*5\r\n:0\r\n");
}

//! The line door, for both its protocols.

use super::{Instance, ask, calls, connect};
use crate::store::redis::Redis;
use evenkeel_testing::wait::wait_for;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// A limit whose capacity does not return during a test, at any time of day.
const SECTION: &str = "line: {listen: 'tcp://127.0.0.1:0', resp: '127.0.0.1:0', rate: 1 per \
                       365d, burst: 3, limits: [{prefix: 'slow:', rate: 1/d, burst: 1, refill: \
                       continuous}]}";

fn program(redis: &Redis, store: &str) -> Instance {
    Instance::start(SECTION, store, redis, "line open")
}

fn lines(program: &Instance) -> TcpStream {
    connect(program.doors[0])
}

fn resp(program: &Instance) -> TcpStream {
    connect(program.doors[1])
}

/// The replies to some lines.
fn said(stream: &mut TcpStream, lines: &str) -> String {
    ask(stream, lines, 3 * lines.matches('\n').count())
}

#[test]
fn two_doors_have_one_count_whatever_they_are_asked_in() {
    let redis = Redis::start(&[]);
    let two = [program(&redis, ""), program(&redis, "")];
    let mut streams = two.each_ref().map(lines);
    assert_eq!(said(&mut streams[0], "C\nC\n"), "OK\nOK\n");
    assert_eq!(said(&mut streams[1], "C\nC\nD\n"), "OK\nNO\nOK\n");
    let mut cells = two.each_ref().map(resp);
    let reply = ask(&mut cells[0], "THROTTLE C\r\n", 16);
    assert!(reply.starts_with("*5\r\n:1\r\n:3\r\n:0\r\n"), "{reply}");
    assert!(ask(&mut cells[1], "THROTTLE slow:x\r\n", 8).ends_with(":0\r\n"));
    assert_eq!(said(&mut streams[0], "slow:x\nslow:y\n"), "NO\nOK\n");
    let mut keys: Vec<String> = redis.text(&["KEYS", "*"]).lines().map(str::to_owned).collect();
    keys.sort();
    let prefix = "evenkeel:";
    let names = ["debt:line:slow:slow:x", "debt:line:slow:slow:y", "grid:line:line:C"];
    assert_eq!(keys[..3], names.map(|name| format!("{prefix}{name}")));
    for key in keys {
        let ttl: i64 = redis.text(&["PTTL", &key]).parse().expect("a number");
        assert!((0..=3 * 365 * 86_400_000 + 1_000).contains(&ttl), "{key}: {ttl}");
    }
}

#[test]
fn keys_that_bring_their_numbers_have_one_count_too() {
    let redis = Redis::start(&[]);
    let two = [program(&redis, ""), program(&redis, "")];
    let mut cells = two.each_ref().map(resp);
    let began = Instant::now();
    for (which, expected) in
        [(0, [0, 2, 1, -1, 86_400]), (1, [0, 2, 0, -1, 172_800]), (0, [1, 2, 0, 86_400, 172_800])]
    {
        let reply = first(&mut cells[which], "CL.THROTTLE k 1 1 86400\r\n");
        let (head, numbers) = reply.split_once("\r\n").expect("an array");
        let numbers = numbers.lines().map(|line| line[1..].parse::<i64>().expect("a number"));
        let numbers: Vec<i64> = numbers.collect();
        assert_eq!((head, &numbers[..3]), ("*5", &expected[..3]));
        // The wait in a later reply is shorter by the seconds that have passed.
        let passed = began.elapsed().as_secs().cast_signed();
        for (found, most) in numbers[3..].iter().zip(&expected[3..]) {
            let least = if *most < 0 { *most } else { most - passed };
            assert!((least..=*most).contains(found), "{numbers:?}, not {expected:?}");
        }
    }
}

/// Other commands between the questions, transactions, and input in pieces.
#[test]
fn what_is_said_is_replied_to_in_order() {
    let redis = Redis::start(&[]);
    let program = program(&redis, "");
    let mut cell = resp(&program);
    let text = "PING\r\nTHROTTLE a 3\r\nECHO x\r\nMULTI\r\nTHROTTLE a\r\nPING\r\nEXEC\r\n\
                CLIENT SETNAME me\r\nGET a\r\nCLIENT GETNAME\r\nTHROT";
    let heads = ask(&mut cell, text, 20);
    assert_eq!(heads, "+PONG\r\n*5\r\n:0\r\n:3\r\n:");
    let mut rest = ask(&mut cell, "TLE b\r\nPING end\r\n", 1);
    while !rest.ends_with("$3\r\nend\r\n") {
        rest += &ask(&mut cell, "", 1);
    }
    let order =
        ["x\r\n", "+OK", "+QUEUED", "+QUEUED", "*2", ":1\r\n:3", "+PONG", "+OK", "-ERR", "me"];
    let mut left = &*rest;
    for part in order {
        let at = left.find(part).unwrap_or_else(|| panic!("{part} in {rest}"));
        left = &left[at + part.len()..];
    }
    assert!(left.contains("*5\r\n:0\r\n:3\r\n:2\r\n"), "{rest}");
}

/// The questions of a pipeline are not sent to the store one by one.
#[test]
fn what_was_read_at_once_is_one_round_trip() {
    let redis = Redis::start(&[]);
    let program = program(&redis, "");
    let mut stream = lines(&program);
    redis.text(&["CONFIG", "RESETSTAT"]);
    let many: String = (0..1_000).map(|n| format!("t{n}\n")).collect();
    assert_eq!(said(&mut stream, &many), "OK\n".repeat(1_000));
    let calls = calls(&redis, "evalsha");
    // One round trip for each read: loopback delivers some ten kilobytes in a few pieces.
    assert!((1..=20).contains(&calls), "{calls}");
}

#[test]
fn nobody_waits_for_a_store_that_is_away_and_it_is_told_when_it_is_back() {
    let redis = Redis::start(&[]);
    let two = [program(&redis, ""), program(&redis, "")];
    let mut streams = two.each_ref().map(lines);
    assert_eq!(said(&mut streams[0], "C\n"), "OK\n");
    redis.kill();
    for program in &two {
        let good = || program.metric("evenkeel_store_connections{state=\"good\"}");
        wait_for("the loss to be noticed", || (good() == 0).then_some(()));
    }
    // The one hit that it knows of is counted. It cannot know of the other instance's hit.
    assert_eq!(said(&mut streams[0], "C\nC\nC\n"), "OK\nOK\nNO\n");
    assert_eq!(said(&mut streams[1], "D\nD\n"), "OK\nOK\n");
    redis.restart();
    let owed = |program: &Instance| program.metric("evenkeel_store_owed");
    wait_for("the store to be told", || {
        let keys = redis.text(&["KEYS", "evenkeel:*"]);
        (keys.lines().count() == 2 && two.iter().all(|one| owed(one) == 0)).then_some(())
    });
    for program in &two {
        wait_for("the return", || good_all(program).then_some(()));
    }
    assert_eq!(said(&mut streams[0], "D\nD\n"), "OK\nNO\n");
    assert_eq!(said(&mut streams[1], "C\n"), "NO\n", "it heard of the hit that it forgot");
    assert_eq!(said(&mut streams[0], "C\n"), "NO\n");
}

/// The number of hits admitted for a tag or for a key with numbers of its own, sent one by one.
fn served(program: &Instance, which: usize, hits: usize) -> usize {
    let ask_for = |text: &str, good: &str| -> usize {
        let mut stream = connect(program.doors[usize::from(which != 0)]);
        (0..hits).map(|_| usize::from(first(&mut stream, text).starts_with(good))).sum()
    };
    match which {
        0 => ask_for("past:C\n", "OK"),
        _ => ask_for("CL.THROTTLE past 199 1 86400\r\n", "*5\r\n:0"),
    }
}

/// The reply to one question.
pub fn first(stream: &mut TcpStream, text: &str) -> String {
    stream.write_all(text.as_bytes()).expect("sent");
    let mut reply = String::new();
    while !reply.ends_with('\n') || (reply.starts_with('*') && reply.matches('\n').count() < 6) {
        let mut bytes = [0; 256];
        let count = stream.read(&mut bytes).expect("a reply");
        assert!(count > 0, "{reply}");
        reply += &String::from_utf8_lossy(&bytes[..count]);
    }
    reply
}

/// Two instances, one of which knows more of the past than the other. Whichever returns first, the
/// past is counted once, with all hits during the outage.
#[test]
fn a_store_that_comes_back_empty_hears_the_past_with_what_it_is_owed() {
    let more = "limits: [{prefix: 'past:', rate: 1/d, burst: 200, refill: continuous}]";
    let section = SECTION.split("limits:").next().expect("it is there").to_owned() + more + "}";
    for outage in [[10, 50], [1, 0], [0, 1], [3, 3]] {
        let redis = Redis::start(&[]);
        let two = [0, 1].map(|_| Instance::start(&section, "", &redis, "line open"));
        for door in [0, 1] {
            assert_eq!(served(&two[0], door, 50) + served(&two[1], door, 50), 100);
        }
        redis.kill();
        for program in &two {
            let good = || program.metric("evenkeel_store_connections{state=\"good\"}");
            wait_for("the loss to be noticed", || (good() == 0).then_some(()));
        }
        for door in [0, 1] {
            for (program, hits) in two.iter().zip(outage) {
                assert_eq!(served(program, door, hits), hits);
            }
        }
        redis.restart();
        for program in &two {
            let good = || program.metric("evenkeel_store_connections{state=\"good\"}");
            wait_for("the return", || (good() > 1 && good_all(program)).then_some(()));
            let owed = || program.metric("evenkeel_store_owed");
            wait_for("the store to be told", || (owed() == 0).then_some(()));
        }
        for door in [0, 1] {
            let left = served(&two[1], door, 1) + served(&two[0], door, 200);
            let (exact, all) = (100 - outage[0] - outage[1], outage[0] + outage[1]);
            // A question with an answer after the deadline may or may not be counted. An instance
            // that learns late of the return knows the past, but not when the other instance's hits
            // arrived.
            let late = 3;
            let bounds = exact - late..=exact + all + late;
            assert!(bounds.contains(&left), "{left}, not {exact}");
        }
    }
}

fn good_all(program: &Instance) -> bool {
    program.metric("evenkeel_store_connections{state=\"failed\"}") == 0
}

#[test]
fn a_program_that_is_started_again_finds_the_count() {
    let redis = Redis::start(&[]);
    let first = program(&redis, "");
    assert_eq!(said(&mut lines(&first), "C\nC\nC\n"), "OK\nOK\nOK\n");
    drop(first);
    let second = program(&redis, "");
    assert_eq!(said(&mut lines(&second), "C\nD\n"), "NO\nOK\n");
}

#[test]
fn batches_are_settled_behind_the_replies() {
    let redis = Redis::start(&[]);
    let two = [program(&redis, "mode: batched"), program(&redis, "mode: batched")];
    let mut streams = two.each_ref().map(lines);
    assert_eq!(said(&mut streams[0], "C\nC\n"), "OK\nOK\n");
    wait_for("the store to be told", || {
        (!redis.text(&["KEYS", "*line:C"]).is_empty()).then_some(())
    });
    // It does not know of other instances' hits before it has reported its own.
    assert_eq!(said(&mut streams[1], "C\n"), "OK\n");
    wait_for("the others' hits", || (said(&mut streams[1], "C\n") == "NO\n").then_some(()));
}

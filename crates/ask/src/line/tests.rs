//! Tests of both protocols with the real engine, at times that the test chooses: the cases of
//! docs/spec/dthrottle.md as bytes, and the documented replies of redis-cell.

use super::commands::RedisSession;
use super::connection::LineCodec;
use super::outcome::{InputOutcome, NextStep};
use super::splitter::TagSplitter;
use evenkeel_config::settings::LineSettings;
use evenkeel_core::key::KeySeed;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::tags::{TagEngine, TagLane};
use evenkeel_engine::view::EngineView;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::metrics::DECISIONS;
use std::sync::{Arc, Mutex};

/// One instance, which can be asked at any time from zero on.
struct Stage {
    tags: Arc<TagEngine>,
    lane: TagLane,
    watch: Arc<Watch>,
    speech: LineCodec,
    kept: Vec<u8>,
}

fn settings(text: &str) -> LineSettings {
    let config = evenkeel_config::parse("t.yaml", format!("line: {{{text}}}").as_bytes(), 1.0);
    config.expect("good").settings.line.expect("open")
}

fn moment(seconds: f64) -> Time {
    // Far from the epoch, like real times, and on a whole second.
    Time(1_700_000_000_000_000_000).plus(Nanos::from_secs_f64(seconds))
}

impl Stage {
    fn new(text: &str, speech: LineCodec) -> Stage {
        let watch = Arc::new(Watch::new(moment(0.0)));
        let tags = TagEngine::new(
            &settings(text),
            1,
            KeySeed([9; 16]),
            Clock::start(),
            Arc::clone(&watch),
        );
        Stage { lane: tags.lane(0), tags, watch, speech, kept: Vec::new() }
    }

    fn lines(text: &str) -> Stage {
        Stage::new(text, LineCodec::Lines(TagSplitter::new(settings(text).tag_bytes), false))
    }

    fn resp(text: &str) -> Stage {
        Stage::new(
            &format!("resp: '127.0.0.1:6380', {text}"),
            LineCodec::Resp(RedisSession::new(7)),
        )
    }

    /// The reply to `input` at a time.
    fn at(&mut self, seconds: f64, input: &str) -> String {
        self.kept.extend_from_slice(input.as_bytes());
        let mut out = Vec::new();
        loop {
            let mut batch = self.lane.batch_at(None, moment(seconds));
            let InputOutcome { used, then, .. } =
                self.speech.take(&self.kept, &mut batch, &mut out);
            self.kept.drain(..used);
            if then != NextStep::Resume {
                return String::from_utf8(out).expect("text");
            }
        }
    }

    fn level(&self, name: &str, index: usize) -> Option<i64> {
        let rows = self.tags.top(index);
        rows.iter().find(|standing| standing.row.name == name).and_then(|standing| standing.level)
    }

    fn decided(&self, verdict: &str, limit: &str) -> u64 {
        self.watch.registry().counter(&DECISIONS, &[verdict, limit, "false"]).get()
    }
}

#[test]
fn the_table_of_the_original_as_one_instance_replies_it() {
    let mut stage = Stage::lines("rate: 1/s, burst: 10");
    assert_eq!(stage.at(0.1, &"C\n".repeat(9)), "OK\n".repeat(9));
    assert_eq!(stage.at(0.2, "C\nC\n"), "OK\nNO\n");
    assert_eq!(stage.at(0.9, "C\n"), "NO\n", "no part of a token");
    assert_eq!(stage.at(1.0, "C\nC\n"), "OK\nNO\n");
    assert_eq!(stage.at(5.1, "C\n"), "OK\n");
    assert_eq!((stage.decided("reject", "line"), stage.decided("allow", "")), (3, 12));
}

#[test]
fn d16_d17_tags_are_bytes() {
    let mut stage = Stage::lines("rate: 1/d, burst: 1");
    assert_eq!(stage.at(0.0, "C\nC\r\n\n\nc\nC\n"), "OK\nOK\nOK\nNO\nOK\nNO\n");
}

#[test]
fn d13_d18_however_it_comes_and_however_long_it_is() {
    let mut stage = Stage::lines("rate: 1/d, burst: 1, tag_bytes: 4");
    assert_eq!(stage.at(0.0, "abc"), "");
    assert_eq!(stage.at(0.0, "d"), "");
    assert_eq!(stage.at(0.0, "\nabcd\n"), "OK\nNO\n");
    for _ in 0..3 {
        assert_eq!(stage.at(0.0, "abcde\n"), "OK\n", "too long, so not counted");
    }
    assert_eq!(stage.at(0.0, &"x".repeat(100_000)), "");
    assert!(stage.kept.is_empty(), "nothing of it is kept");
    assert_eq!(stage.at(0.0, "\nabcd\n"), "OK\nNO\n");
}

#[test]
fn d22_half_a_token_a_second() {
    let mut stage = Stage::lines("rate: 0.5/s, burst: 1");
    let replies = (0..60).map(|n| stage.at(f64::from(n) / 10.0, "C\n")).collect::<Vec<_>>();
    let served: Vec<_> = (0..60).filter(|n| replies[*n] == "OK\n").collect();
    assert_eq!(served, [0, 20, 40]);
}

#[test]
fn continuous_refill_serves_as_soon_as_a_token_is_there() {
    let mut stage = Stage::lines("rate: 1/s, burst: 1, refill: continuous");
    assert_eq!(stage.at(0.5, "C\nC\n"), "OK\nNO\n");
    assert_eq!((stage.at(1.4, "C\n"), stage.at(1.5, "C\n")), ("NO\n".into(), "OK\n".into()));
}

/// No token is added before 2071, because levels are read, and limits changed, at the real time.
#[test]
fn each_prefix_has_a_limit_of_its_own() {
    let mut stage = Stage::lines(
        "rate: 1 per 18518d, burst: 2, limits: [{prefix: 'login:', rate: 1 per 18518d, burst: 1}, \
         {prefix: 'login:admin', rate: 1 per 18518d, burst: 3, name: admins}]",
    );
    assert_eq!(stage.at(0.0, "login:a\nlogin:a\nlogin:b\n"), "OK\nNO\nOK\n");
    assert_eq!(stage.at(0.0, &"login:admin\n".repeat(4)), "OK\nOK\nOK\nNO\n");
    assert_eq!(stage.at(0.0, &"log\n".repeat(3)), "OK\nOK\nNO\n");
    let refused = ["line", "login", "admins"].map(|limit| stage.decided("reject", limit));
    assert_eq!(refused, [1, 1, 1]);
    assert_eq!(stage.level("login:a", 1), Some(0));
    assert_eq!(stage.tags.top(2)[0].row.name, "login:admin");
}

#[test]
fn other_numbers_leave_what_was_served_served() {
    let mut stage = Stage::lines("rate: 1 per 18518d, burst: 10");
    assert_eq!(stage.at(0.0, &"C\n".repeat(8)), "OK\n".repeat(8));
    stage.tags.reload(&settings(
        "rate: 1 per 18518d, burst: 9, limits: [{prefix: x, rate: 1 per 18518d, burst: 1}]",
    ));
    assert_eq!(stage.at(0.0, "C\nC\nx\nx\n"), "OK\nNO\nOK\nNO\n");
}

/// The arguments of `CL.THROTTLE`, the time, and the five integers that the module's documentation
/// states.
const CELL: [(f64, &str, [i64; 5]); 19] = [
    // The example of its documentation, and similar calls.
    (0.0, "user123 15 30 60", [0, 16, 15, -1, 2]),
    (0.0, "user123 15 30 60 1", [0, 16, 14, -1, 4]),
    (0.5, "user123 15 30 60", [0, 16, 13, -1, 6]),
    (4.0, "user123 15 30 60", [0, 16, 14, -1, 4]),
    // One token in two seconds, no burst: the module's own test.
    (0.0, "tight 0 1 2 1", [0, 1, 0, -1, 2]),
    (0.001, "tight 0 1 2 1", [1, 1, 0, 2, 2]),
    (2.0, "tight 0 1 2 1", [0, 1, 0, -1, 2]),
    // A refused call is charged nothing. Seconds are rounded up.
    (3.5, "tight 0 1 2", [1, 1, 0, 1, 1]),
    (4.0, "tight 0 1 2", [0, 1, 0, -1, 2]),
    // Several tokens at once: all or none. If they never fit, there is no time for a retry.
    (0.0, "many 9 10 1 10", [0, 10, 0, -1, 1]),
    (0.0, "many 9 10 1 1", [1, 10, 0, 1, 1]),
    (0.5, "many 9 10 1 6", [1, 10, 5, 1, 1]),
    (0.5, "many 9 10 1 5", [0, 10, 0, -1, 1]),
    (9.0, "many 9 10 1 11", [1, 10, 10, -1, 0]),
    // A quantity of zero only reads the state.
    (0.0, "look 2 1 1 0", [0, 3, 3, -1, 0]),
    (0.0, "look 2 1 1 3", [0, 3, 0, -1, 3]),
    (0.0, "look 2 1 1 0", [0, 3, 0, -1, 3]),
    // The numbers may change from call to call, because the debt is stored as a time.
    (0.0, "change 0 1 10", [0, 1, 0, -1, 10]),
    (0.0, "change 19 2 1", [0, 20, 0, -1, 11]),
];

fn integers(numbers: [i64; 5]) -> String {
    let lines: String = numbers.iter().map(|number| format!(":{number}\r\n")).collect();
    format!("*5\r\n{lines}")
}

#[test]
fn golden_what_redis_cell_is_documented_to_reply() {
    for command in ["CL.THROTTLE", "THROTTLE", "cl.throttle"] {
        let mut stage = Stage::resp("rate: 1/d");
        for (seconds, call, reply) in CELL {
            let got = stage.at(seconds, &format!("{command} {call}\r\n"));
            if call == "change 19 2 1" {
                // Ten seconds of debt are twenty of its hits, so there is no room for another.
                assert_eq!(got, integers([1, 20, 0, 1, 10]), "{call}");
                continue;
            }
            assert_eq!(got, integers(reply), "{command} {call} at {seconds}");
        }
    }
}

#[test]
fn a_key_alone_is_asked_by_the_limits_of_the_door() {
    let mut stage = Stage::resp("rate: 1/s, burst: 10, limits: [{prefix: x, rate: 1/m}]");
    assert_eq!(stage.at(0.1, "THROTTLE C\r\n"), integers([0, 10, 9, -1, 1]));
    assert_eq!(stage.at(0.1, "THROTTLE C 9\r\n"), integers([0, 10, 0, -1, 10]));
    assert_eq!(stage.at(0.1, "THROTTLE C 2\r\n"), integers([1, 10, 0, 2, 10]));
    assert_eq!(stage.at(0.1, "THROTTLE C 11\r\n"), integers([1, 10, 0, -1, 10]));
    assert_eq!(stage.at(0.1, "THROTTLE x1\r\n"), integers([0, 1, 0, -1, 40]));
    // The same tag over the other protocol uses the same bucket.
    stage.speech = LineCodec::Lines(TagSplitter::new(100), false);
    assert_eq!(stage.at(0.2, "C\nx1\nx2\n"), "NO\nNO\nOK\n");
}

#[test]
fn what_redis_clients_say_is_answered() {
    let mut stage = Stage::resp("rate: 1/s");
    let version = env!("CARGO_PKG_VERSION");
    for (said, reply) in [
        ("PING", "+PONG\r\n".to_owned()),
        ("ping hello", "$5\r\nhello\r\n".into()),
        ("ECHO x", "$1\r\nx\r\n".into()),
        ("SELECT 0", "+OK\r\n".into()),
        ("SELECT 1", "-ERR DB index is out of range\r\n".into()),
        ("CLIENT SETINFO LIB-NAME redis-py", "+OK\r\n".into()),
        ("CLIENT GETNAME", "$-1\r\n".into()),
        ("CLIENT SETNAME me", "+OK\r\n".into()),
        ("CLIENT GETNAME", "$2\r\nme\r\n".into()),
        ("CLIENT ID", ":7\r\n".into()),
        ("AUTH default any", "+OK\r\n".into()),
        ("AUTH any", "-ERR AUTH called, but no password is configured here\r\n".into()),
        ("COMMAND COUNT", ":18\r\n".into()),
        ("COMMAND DOCS", "*0\r\n".into()),
        (
            "COMMAND INFO ping get",
            "*2\r\n*6\r\n$4\r\nping\r\n:-1\r\n*1\r\n+fast\r\n:0\r\n:0\r\n:0\r\n$-1\r\n".into(),
        ),
        ("CONFIG GET save", "*0\r\n".into()),
        ("HELLO 4", "-NOPROTO unsupported protocol version\r\n".into()),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command\r\n".into()),
        ("THROTTLE a 1 2", "-ERR wrong number of arguments for 'throttle' command\r\n".into()),
        (
            "CL.THROTTLE a x 1 1",
            "-ERR max_burst must be a whole number from 0 to 1000000000\r\n".into(),
        ),
        (
            "CL.THROTTLE a 1 0 1",
            "-ERR count must be a whole number from 1 to 1000000000\r\n".into(),
        ),
        (
            "CL.THROTTLE a 1 1 0",
            "-ERR period must be a whole number from 1 to 3155760000\r\n".into(),
        ),
        (
            "CL.THROTTLE a 1 1 1 -1",
            "-ERR quantity must be a whole number from 0 to 1000000000\r\n".into(),
        ),
        (
            "HELLO 3 SETNAME you",
            format!(
                "%7\r\n$6\r\nserver\r\n$8\r\nevenkeel\r\n$7\r\nversion\r\n\
             ${}\r\n{version}\r\n$5\r\nproto\r\n:3\r\n\
             $2\r\nid\r\n:7\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n\
             $7\r\nmodules\r\n*0\r\n",
                version.len()
            ),
        ),
        ("COMMAND DOCS", "%0\r\n".into()),
        ("CLIENT GETNAME", "$3\r\nyou\r\n".into()),
        ("RESET", "+RESET\r\n".into()),
        ("CLIENT GETNAME", "$-1\r\n".into()),
        ("QUIT", "+OK\r\n".into()),
    ] {
        assert_eq!(stage.at(0.0, &format!("{said}\r\n")), reply, "{said}");
    }
    assert!(stage.at(0.0, "SET a b\r\n").starts_with("-ERR unknown command 'SET'"));
}

#[test]
fn a_transaction_runs_whole_or_not_at_all() {
    let mut stage = Stage::resp("rate: 1/d, burst: 3");
    let both = format!("*2\r\n{}{}", integers([0, 3, 2, -1, 43_200]), "+PONG\r\n");
    let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n";
    // Half a day after midnight: the next tokens come at midnights.
    let noon = 43_200.0 - 1_700_000_000.0 % 86_400.0;
    let noon = if noon < 0.0 { noon + 86_400.0 } else { noon };
    let replies = stage.at(noon, "MULTI\r\nTHROTTLE C\r\nPING\r\nEXEC\r\n");
    assert_eq!(replies, format!("{queued}{both}"));
    let discarded = stage.at(noon, "MULTI\r\nTHROTTLE C\r\nTHROTTLE C\r\nDISCARD\r\n");
    assert_eq!(discarded, format!("{queued}+OK\r\n"));
    let spoiled = stage.at(noon, "MULTI\r\nTHROTTLE C\r\nGET x\r\nEXEC\r\n");
    assert!(spoiled.ends_with("-EXECABORT Transaction discarded because of previous errors.\r\n"));
    assert!(stage.at(noon, "THROTTLE C 0\r\n").starts_with("*5\r\n:0\r\n:3\r\n:2\r\n"));
    let long = "PING\r\n".repeat(1_025);
    let replies = stage.at(noon, &format!("MULTI\r\n{long}EXEC\r\n"));
    assert!(replies.contains("-ERR the transaction is too long\r\n-EXECABORT"));
}

#[test]
fn replies_wait_for_their_reader_and_none_is_lost() {
    let mut stage = Stage::resp("rate: 1/s");
    let many = "HELLO 3\r\n".repeat(2_000);
    let mut out = Vec::new();
    let mut batch = stage.lane.batch_at(None, moment(0.0));
    let taken = stage.speech.take(many.as_bytes(), &mut batch, &mut out);
    drop(batch);
    assert_eq!(taken.then, NextStep::Resume);
    assert!(out.len() < 66_000, "{} bytes for somebody who may not read them", out.len());
    stage.kept = many.as_bytes()[taken.used..].to_vec();
    let rest = stage.at(0.0, "PING\r\n");
    let count =
        String::from_utf8_lossy(&out).matches("proto").count() + rest.matches("proto").count();
    assert_eq!((count, rest.ends_with("+PONG\r\n")), (2_000, true));
}

#[test]
fn fuzz_any_bytes_are_answered_by_either_protocol() {
    let stages = Mutex::new([Stage::lines("rate: 1/s"), Stage::resp("rate: 1/s")]);
    let shells = ["", "*3\r\n$8\r\nTHROTTLE\r\n", "CL.THROTTLE ", "MULTI\r\n", "CLIENT "];
    evenkeel_fuzz::fuzz().with_type::<(u8, Vec<u8>)>().for_each(|(shell, bytes)| {
        let input = [shells[usize::from(*shell) % shells.len()].as_bytes(), bytes].concat();
        let mut stages = stages.lock().expect("no harness before failed");
        for stage in &mut *stages {
            let mut out = Vec::new();
            let mut batch = stage.lane.batch_at(None, moment(0.0));
            let taken = stage.speech.take(&input, &mut batch, &mut out);
            assert!(taken.used <= input.len());
            assert!(taken.asked >= taken.faults);
            assert!(out.len() <= 66_000 + 64 * 1024 + 16 * 1024);
            assert!(out.is_empty() || out.ends_with(b"\n"));
        }
        stages[0].speech = LineCodec::Lines(TagSplitter::new(1_024), false);
        stages[1].speech = LineCodec::Resp(RedisSession::new(1));
    });
}

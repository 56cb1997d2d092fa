//! Lines of each format as their programs write them, and fuzzing of all parsers.

use super::*;
use crate::replay::entry::LogEntry;
use evenkeel_config::settings::ClientAddress;
use evenkeel_core::classify::{RequestAttributes, host_name};
use evenkeel_core::units::{Nanos, SECOND, Time};
use evenkeel_identity::address::ProxyTrust;

/// A line as its program writes it, by its name in `tests.log`.
fn sample(name: &str) -> &'static str {
    let mut lines = include_str!("tests.log").lines().filter_map(|line| line.split_once(' '));
    lines.find(|(known, _)| *known == name).expect("a line of that name").1
}

fn trust() -> ProxyTrust {
    let net = "192.0.2.0/24".parse().expect("a network");
    ProxyTrust::new(&[net], &ClientAddress::XForwardedFor)
}

fn read(lines: &[&str]) -> (&'static str, LogEntry) {
    let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    let mut format = AccessLogFormat::of(&lines).expect("a format");
    let mut last = None;
    for line in &lines {
        last = format.read(line).ok().map(|draft| draft.entry(&trust()).expect("an address"));
    }
    (format.name(), last.expect("a request"))
}

/// The time `millis` milliseconds after 2023-11-14T22:13:20Z.
fn at(millis: u64) -> Time {
    Time(1_700_000_000 * SECOND).plus(Nanos::from_millis(millis))
}

#[test]
fn each_format_is_recognised_and_read() {
    for (lines, name, start, took) in [
        (vec![sample("NGINX")], "common or combined (nginx, Apache)", -250, Some(250)),
        (vec![sample("HAPROXY")], "HAProxy", 655, Some(269)),
        (vec![sample("CADDY")], "JSON (Caddy, nginx, Traefik)", 0, Some(250)),
        (vec![sample("JSON")], "JSON (Caddy, nginx, Traefik)", -250, Some(250)),
        (vec![sample("ENVOY")], "Envoy", 310, Some(250)),
        (vec![sample("ISTIO")], "Envoy", 310, Some(250)),
        (vec![sample("ALB")], "AWS load balancer", 150, Some(250)),
        (vec![sample("ELB")], "AWS load balancer", 500, Some(250)),
        (vec![sample("FIELDS"), sample("FRONT")], "CloudFront", -250, Some(250)),
    ] {
        let (found, entry) = read(&lines);
        assert_eq!(found, name, "{lines:?}");
        let start = at((1_000 + start) as u64).minus(Nanos::from_millis(1_000));
        assert_eq!(entry.start, start, "{lines:?}");
        assert_eq!(entry.took, took.map(Nanos::from_millis), "{lines:?}");
        assert_eq!((entry.method(), entry.status, entry.query()), ("GET", 200, "b=c"));
        assert!(entry.path().starts_with("/a"), "{lines:?}");
        assert!(entry.agent().starts_with("Mozilla/5.0"), "{lines:?}");
        if name != "common or combined (nginx, Apache)" {
            assert_eq!(host_name(entry.vhost()), "shop.example.com", "{lines:?}");
        }
        let address = if name == "Envoy" { "198.51.100.9" } else { "192.0.2.7" };
        assert_eq!(entry.address.to_string(), address, "{lines:?}");
    }
}

#[test]
fn what_stands_behind_a_common_line_is_understood() {
    let (_, apache) = read(&[sample("APACHE")]);
    assert_eq!((apache.start, apache.took), (at(0), Some(Nanos::from_millis(250))));
    assert_eq!((apache.status, apache.agent(), apache.method()), (302, "", "POST"));
    assert_eq!(apache.address.to_string(), "2001:db8::7");
    let (_, common) = read(&[sample("COMMON")]);
    assert_eq!((common.start, common.took, common.status), (at(0), None, 404));
    let (_, vhost) = read(&[sample("VHOST")]);
    assert_eq!(vhost.vhost(), "shop.example.com:443");
    assert_eq!(
        (vhost.start, vhost.took),
        (at(0).minus(Nanos::from_millis(300)), Some(Nanos::from_millis(200)))
    );
    assert_eq!(vhost.address.to_string(), "198.51.100.9");
    let common = sample("COMMON");
    // If all whole numbers are small, they are seconds and of no use.
    let (_, seconds) =
        read(&[&format!("{common} \"-\" \"x\" 2"), &format!("{common} \"-\" \"x\" 1")]);
    assert_eq!(seconds.took, None);
    let (_, msec) = read(&[&format!("{common} \"-\" \"x\" 1700000000.250 0.125")]);
    assert_eq!((msec.start, msec.coarse), (at(125), false));
}

#[test]
fn what_a_json_log_has_beyond_others_is_kept() {
    let (_, caddy) = read(&[sample("CADDY")]);
    assert_eq!(caddy.header("x-team"), Some(&b"red"[..]));
    assert_eq!((caddy.header("cookie"), caddy.cost.as_deref()), (None, Some("12ms")));
}

/// Each server on the way may add a line.
#[test]
fn all_lines_of_server_timing_are_read() {
    let with = |lines: &str| sample("CADDY").replace(r#""X-Cost":["12ms"]"#, lines);
    for (lines, cost) in [
        (
            r#""Server-Timing":["cache;desc=miss","db;dur=5, cpu;dur=7","cpu;dur=9"]"#,
            Some("db;dur=5, cpu;dur=7"),
        ),
        (r#""X-Cost":[],"Server-Timing":["cpu;dur=9"]"#, Some("cpu;dur=9")),
        (r#""Server-Timing":["cache;desc=miss"]"#, None),
    ] {
        assert_eq!(read(&[&with(lines)]).1.cost.as_deref(), cost, "{lines}");
    }
}

#[test]
fn what_the_cache_answered_is_marked() {
    let lines = [sample("FIELDS").to_owned(), sample("FRONT").replace("\tMiss\t", "\tHit\t")];
    let mut format = AccessLogFormat::of(&lines).expect("a format");
    assert_eq!(format.read(&lines[0]), Err(LineReadError::Nothing));
    assert!(format.read(&lines[1]).expect("a request").cached);
}

#[test]
fn what_is_no_log_is_not_taken_for_one() {
    for text in ["", "hello", "{}", "# a comment", "[2023-11-14T22:13:20Z]", "a b c d e f g h"] {
        assert_eq!(AccessLogFormat::of(&[text.to_owned()]), None, "{text}");
    }
}

#[test]
fn fuzz_lines_of_logs() {
    let seeds = [
        sample("NGINX"),
        sample("APACHE"),
        sample("COMMON"),
        sample("VHOST"),
        sample("HAPROXY"),
        sample("CADDY"),
        sample("JSON"),
        sample("ENVOY"),
        sample("ISTIO"),
        sample("ALB"),
        sample("ELB"),
        sample("FRONT"),
        sample("FIELDS"),
    ];
    evenkeel_fuzz::fuzz().with_type::<(u8, Vec<(u16, u8)>, Vec<u8>)>().for_each(
        |(seed, edits, tail)| {
            let mut bytes = seeds[usize::from(*seed) % seeds.len()].as_bytes().to_vec();
            for (place, byte) in edits {
                let place = usize::from(*place) % (bytes.len() + 1);
                match byte % 3 {
                    0 => bytes.insert(place, *byte),
                    1 if place < bytes.len() => drop(bytes.remove(place)),
                    _ if place < bytes.len() => bytes[place] = *byte,
                    _ => {}
                }
            }
            bytes.extend(tail);
            let line = String::from_utf8_lossy(&bytes).into_owned();
            let all = [sample("FIELDS").to_owned(), line.clone()];
            let mut formats: Vec<AccessLogFormat> = seeds
                .iter()
                .filter_map(|seed| {
                    AccessLogFormat::of(&[sample("FIELDS").to_owned(), (*seed).to_owned()])
                })
                .chain(AccessLogFormat::of(&all))
                .collect();
            for format in &mut formats {
                if let Ok(draft) = format.read(&line)
                    && let Ok(entry) = draft.entry(&trust())
                {
                    let _ = (entry.path(), entry.agent(), entry.header("x-team"), entry.end());
                    assert!(entry.start.0 < u64::MAX / 2);
                }
            }
        },
    );
}

//! `evenkeel replay --swarm`: a swarm that is in the log is found, with its times and its cost, and
//! the readers beside it are no swarm.

use super::program::{evenkeel, json, save};
use std::fmt::Write;

/// Six hours of thirty readers, with a page and four of its files each hour, on a site with a tenth
/// of a processor. With `swarm`, two new addresses a second ask for a page from 02:05 to 02:35.
fn log(swarm: bool) -> String {
    let mut log = String::new();
    for second in 0..6 * 3_600_u32 {
        let (hour, minute) = (second / 3_600, second / 60 % 60);
        let mut line = |address: [u32; 4], path: &str| {
            let [a, b, c, d] = address;
            writeln!(
                log,
                "{a}.{b}.{c}.{d} - - [01/Oct/2026:{hour:02}:{minute:02}:{:02} +0000] \"GET {path} \
                 HTTP/1.1\" 200 1 \"-\" \"Mozilla/5.0\"",
                second % 60
            )
            .expect("memory");
        };
        if second % 120 == 0 {
            let reader = [192, 0, 2, second / 120 % 30];
            for path in ["/", "/a.css", "/b.js", "/c.png", "/d.png"] {
                line(reader, path);
            }
        }
        if swarm && (7_500..9_300).contains(&second) {
            let number = second - 7_500;
            for network in [21, 22] {
                line([network, 0, number / 250, number % 250], "/page");
            }
        }
    }
    log
}

const FOUND: &str = include_str!("swarm.txt");

fn shown(log: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = save(folder.path(), "access.log", log.as_bytes());
    let output = evenkeel(&["replay", "--swarm", "--cpus", "0.1", &path], None);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*errors), (Some(0), ""));
    String::from_utf8_lossy(&output.stdout).replace(&path, "access.log")
}

#[test]
fn a_swarm_is_found_with_its_times_and_its_cost() {
    assert_eq!(shown(&log(true)), FOUND);
}

#[test]
fn readers_are_no_swarm() {
    let shown = shown(&log(false));
    assert!(shown.contains("\nNo swarm: in no 10 minutes"), "{shown}");
}

#[test]
fn the_same_is_there_as_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = save(folder.path(), "access.log", log(true).as_bytes());
    let report = json(&evenkeel(&["replay", "--swarm", "--cpus", "0.1", "--json", &path], None));
    assert_eq!((&report["schema"], &report["costs"]), (&1.into(), &"estimated".into()));
    let swarms = report["swarms"].as_array().expect("a list");
    assert_eq!(swarms.len(), 1);
    assert_eq!(
        (&swarms[0]["strangers"], &swarms[0]["stranger_requests"]),
        (&3_600.into(), &3_600.into())
    );
    assert_eq!(swarms[0]["stranger_cpu_seconds"], 180.0);
    assert_eq!(report["periods"].as_array().map(Vec::len), Some(6));
    assert_eq!(report["logs"][0]["requests"], 4_500);
}

#[test]
fn what_belongs_to_the_limits_is_refused_beside_it() {
    for other in [["--action", "hold"], ["--html", "x"]] {
        let output = evenkeel(&["replay", "--swarm", other[0], other[1], "a.log"], None);
        assert_eq!(output.status.code(), Some(2), "{other:?}");
    }
}

//! The picture and the table of README.md have the figures of docs/performance.md.

use super::root;
use std::fs;
use std::process::Command;

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect(path)
}

#[test]
fn the_picture_is_drawn_from_the_measurements() {
    let run = Command::new("python3").arg(root().join("docs/pictures/page-time")).output();
    let run = run.expect("python3 runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let current = run.stdout == read("docs/pictures/page-time.svg").into_bytes();
    assert!(current, "run docs/pictures/page-time >docs/pictures/page-time.svg");
}

/// The contestants of the README's table, as it and as the measurements name them.
const ROWS: [(&str, &str); 4] = [
    ("| nothing |", "| 50 addresses of one /24 | nothing |"),
    ("| nginx `limit_req`,", "|  | nginx `limit_req` 1 r/s |"),
    ("| HAProxy stick table,", "|  | HAProxy, 30 in 10 s |"),
    ("| **Evenkeel,", "|  | Evenkeel `queue` |"),
];

#[test]
fn the_table_of_the_readme_has_the_measured_figures() {
    let (readme, measured) = (read("README.md"), read("docs/performance.md"));
    let (_, scene) = measured.split_once("| 50 addresses of one /24 |").expect("the scene");
    let scene = format!("| 50 addresses of one /24 |{scene}");
    let line = |text: &str, begin: &str| {
        let found = text.lines().find(|line| line.starts_with(begin));
        found.unwrap_or_else(|| panic!("no row {begin}")).replace("**", "")
    };
    for (shown, source) in ROWS {
        let (shown, source) = (line(&readme, shown), line(&scene, source));
        let cells: Vec<&str> = shown.split('|').map(str::trim).collect();
        let figures: Vec<&str> = source.split('|').map(str::trim).collect();
        let p95 = figures[3].split(" / ").nth(1).expect("three figures");
        assert_eq!(cells[2], format!("{p95} ms"), "{shown}");
        assert_eq!(cells[3], figures[5], "{shown}");
        let part = figures[6].split(['(', '%']).nth(1).expect("a part");
        assert!(cells[4].starts_with(&format!("{part} %")), "{shown}: {part}");
    }
}

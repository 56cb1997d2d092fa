//! Crawlers, swarms and people in a synthetic log: the report finds and names robots, and leaves
//! people alone.

use evenkeel_core::units::Nanos;
use evenkeel_lab::replay::sample::{self, PLANTED, SAMPLE_CPUS};
use evenkeel_lab::replay::{self, ClientKind, ReplayOptions, ReplayReport};
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The options of a replay of these logs.
pub fn options(logs: Vec<PathBuf>) -> ReplayOptions {
    ReplayOptions {
        logs,
        config: None,
        cpus: Some(SAMPLE_CPUS.to_string()),
        action: None,
        trusted_proxies: Vec::new(),
        page_cost: Nanos::from_millis(50),
        rows: 1_000,
        swarm: false,
        json: true,
        html: None,
    }
}

/// The report on one log, which is computed once because it takes a while.
fn planted() -> &'static ReplayReport {
    static REPORT: OnceLock<ReplayReport> = OnceLock::new();
    REPORT.get_or_init(play)
}

fn play() -> ReplayReport {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("access.log");
    let out = BufWriter::new(File::create(&path).expect("a file"));
    let about = sample::SampleLogOptions { lines: 40_000, days: 1, seed: 5 };
    let lines = sample::make(about, out).expect("it is written");
    assert!((25_000..50_000).contains(&lines), "{lines}");
    let (report, read) = replay::play(&options(vec![path])).expect("it is read");
    assert_eq!((read, report.all.requests), (lines, lines));
    report
}

#[test]
fn who_was_planted_is_found_and_people_are_left_alone() {
    let report = planted();
    assert_eq!((report.site.costs, report.site.guessed), ("measured", 0));
    let row = |kind| report.kinds.iter().find(|row| row.kind == kind).expect("a row");
    for single in PLANTED.iter().filter(|planted| planted.addresses == 1) {
        let found = report.heaviest.iter().find(|one| one.address.to_string() == single.name);
        let found = found.unwrap_or_else(|| panic!("{} is not there", single.name));
        assert_eq!(
            (found.kind, found.agent.as_str()),
            (ClientKind::Robot, single.agent),
            "{found:?}"
        );
    }
    for swarm in PLANTED.iter().filter(|planted| planted.addresses > 1) {
        let found = report.swarms.iter().find(|one| one.name == swarm.name);
        let found = found.unwrap_or_else(|| panic!("{} is not there", swarm.name));
        let members = swarm.addresses as usize;
        assert!((members * 9 / 10..=members).contains(&found.addresses), "{found:?}");
        assert_eq!(found.agent, swarm.agent);
    }
    assert_eq!(report.swarms.len(), 2, "{:?}", report.swarms);
    // The crawler with many connections keeps the site busy, and its requests are the ones that
    // wait.
    let storm = report.clients.iter().find(|one| one.address.to_string() == PLANTED[0].name);
    let storm = storm.expect("it would have waited");
    assert!(storm.fate.queued > 1_000 && storm.fate.waited_seconds > 100.0, "{storm:?}");
    let people = row(ClientKind::People);
    assert!(people.clients > 300, "{people:?}");
    assert_eq!((people.affected, people.fate.refused), (0, 0), "{people:?}");
    // The effect on people: in the busiest minute, their pages come earlier than they did.
    let busiest = &report.busiest;
    assert!(busiest.load > 0.7 && busiest.people.requests > 5, "{busiest:?}");
    assert!(busiest.people.with.p95 * 3.0 < busiest.people.without.p95, "{busiest:?}");
}

#[test]
fn shares_are_suggested_that_people_get_along_with() {
    let report = planted();
    let yaml = &report.suggestion.yaml;
    let config =
        evenkeel_config::parse("suggestion", yaml.as_bytes(), SAMPLE_CPUS).expect("it is good");
    let limits = config.settings.proxy.expect("a proxy").limits;
    assert_eq!(limits.len(), 3, "{yaml}");
    let suggested: Vec<_> = report.suggestion.tried.iter().filter(|one| one.suggested).collect();
    assert_eq!(suggested.len(), 3);
    for one in suggested {
        assert!(one.people_short * 1_000 <= one.people, "{one:?}");
    }
    let smallest = &report.suggestion.tried[0];
    assert!(smallest.others_short > 0, "robots run out of the smallest share: {smallest:?}");
}

#[test]
fn the_same_log_gives_the_same_report() {
    let make = |seed| {
        let mut log = Vec::new();
        let about = sample::SampleLogOptions { lines: 2_000, days: 1, seed };
        sample::make(about, &mut log).expect("memory");
        log
    };
    assert_eq!(make(1), make(1));
    assert_ne!(make(1), make(2));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("access.log");
    std::fs::write(&path, make(1)).expect("a file");
    let report = || replay::play(&options(vec![path.clone()])).expect("it is read").0.json();
    assert_eq!(report(), report());
}

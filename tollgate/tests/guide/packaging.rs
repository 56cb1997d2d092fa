//! The unit in `packaging` starts what the program has, and the guide says where it is.
//!
//! It is read as text here; whether the service manager likes it, `systemd-analyze verify` says.

use std::process::Command;

const UNIT: &str = include_str!("../../../packaging/tollgate.service");

fn setting(name: &str) -> &'static str {
    let mut lines = UNIT.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    lines.next().unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn the_unit_starts_a_command_that_there_is() {
    let mut words = setting("ExecStart").split(' ');
    assert!(words.next().is_some_and(|path| path.ends_with("/tollgate")));
    let arguments: Vec<&str> = words.collect();
    assert_eq!(arguments, ["serve", "--config", "/etc/tollgate/tollgate.yaml"]);
    let help = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["serve", "--help"]).output();
    let help = help.expect("it runs");
    assert!(String::from_utf8_lossy(&help.stdout).contains("--config <FILE>"));
    assert!(setting("ExecReload").contains("-HUP $MAINPID"));
}

#[test]
fn the_unit_leaves_time_to_drain_and_descriptors_for_every_connection() {
    let defaults = tollgate::config::parse("empty", b"proxy:", 1.0).expect("good");
    let proxy = defaults.settings.proxy.expect("open");
    let number = |name| setting(name).parse::<u64>().expect("a number");
    assert!(number("TimeoutStopSec") > proxy.timeouts.drain.as_secs());
    assert!(number("LimitNOFILE") > 2 * proxy.bounds.connections as u64);
}

#[test]
fn the_guide_names_the_unit() {
    let guide = include_str!("../../../docs/guide/five-minutes.md");
    assert!(guide.contains("packaging/tollgate.service"));
    assert!(guide.contains(setting("ExecStart").split(' ').next().unwrap_or_default()));
}

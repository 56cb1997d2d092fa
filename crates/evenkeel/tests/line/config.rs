//! The `line` section of a configuration: its defaults, its forms and its errors.

use evenkeel_config::settings::tags::{RULES_MAX, TagRule};
use evenkeel_config::settings::{LineSettings, StreamAddress};
use evenkeel_config::source::{ConfigChange, ConfigSource};
use evenkeel_config::{Config, parse};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::grid::GridBucket;
use evenkeel_core::units::Cost;
use std::fmt::Write;
use std::fs;

fn good(text: &str) -> LineSettings {
    let config = parse("t.yaml", text.as_bytes(), 1.0);
    config.unwrap_or_else(|faults| panic!("{text}\n{faults}")).settings.line.expect("open")
}

#[test]
fn an_empty_line_section_opens_the_door_of_the_contract() {
    for text in ["line:", "line: {}", "line: {resp: []}"] {
        let line = good(text);
        assert_eq!(
            line.listen,
            [StreamAddress::Tcp("127.0.0.1:7070".parse().expect("an address"))]
        );
        assert_eq!((line.socket_mode, line.resp.len(), line.tag_bytes), (0o666, 0, 1_024));
        let [limit] = &line.limits[..] else { panic!("one limit") };
        let one = "1/s".parse().expect("a pace");
        assert_eq!(limit.algorithm, Algorithm::Grid(GridBucket::new(one, 10)));
        assert_eq!((&*limit.name, line.rules.find(b"any")), ("line", Some(TagRule::Own(0))));
    }
    let line = good(
        "line: {listen: ['unix:///run/a.sock', ':7071'], refill: continuous, limits: \
         [{prefix: 'login:', rate: 5/m, refill: grid}, {prefix: '::', rate: 9/s, name: x}]}",
    );
    assert_eq!(line.listen[0], StreamAddress::Unix("/run/a.sock".into()));
    assert!(matches!(line.limits[0].algorithm, Algorithm::Debt(_)));
    let five = GridBucket::new("5/m".parse().expect("a pace"), 5);
    assert_eq!(line.limits[1].algorithm, Algorithm::Grid(five));
    assert_eq!((&*line.limits[1].name, &*line.limits[2].name), ("login", "x"));
    assert!(matches!(&line.limits[2].algorithm,
        Algorithm::Debt(debt) if debt.burst() == Cost::hits(9)));
}

#[test]
fn shadow_is_for_all_limits_or_for_one() {
    let limits = "limits: [{prefix: a, rate: 1/s, shadow: true}, {prefix: b, rate: 1/s}]";
    let shadows =
        |text: &str| good(text).limits.iter().map(|limit| limit.shadow).collect::<Vec<_>>();
    assert_eq!(shadows(&format!("line: {{{limits}}}")), [false, true, false]);
    assert_eq!(shadows(&format!("line: {{shadow: true, {limits}}}")), [true, true, true]);
}

#[test]
fn a_rate_is_written_as_in_every_section() {
    for rate in ["1/2s", "10/2min", "7 per min", "1 per 5s"] {
        let text = format!(
            "{{line: {{rate: {rate}}}, master: {{domains: {{d: {{rate: {rate}, burst: 1}}}}}}}}"
        );
        parse("t.yaml", text.as_bytes(), 1.0).unwrap_or_else(|faults| panic!("{rate}: {faults}"));
    }
}

#[test]
fn faults_of_the_line_section() {
    for (text, told) in [
        ("listen: 'unix://run/a'", "a socket's path begins with /, so there are three"),
        ("listen: 'udp://127.0.0.1:1'", "write tcp://127.0.0.1:7070 or unix:///run/line.sock"),
        ("socket_mode: 888", "write them as 660 or 666"),
        ("burst: 0", "the minimum is 1"),
        ("rate: 0/s", "not a rate"),
        ("refill: smooth", "must be one of: grid, continuous"),
        ("tag_bytes: 9000", "must be from 1 to 8192"),
        ("resp: 127.0.0.1:7070", "two listeners use 127.0.0.1:7070"),
        ("limits: [{rate: 1/s}]", "a limit of the line door needs `prefix`"),
        ("limits: [{prefix: a}]", "a limit of the line door needs `rate`"),
        ("limits: [{prefix: a, rate: 1/s}, {prefix: a, rate: 2/s}]", "have the prefix `a`"),
        ("limits: [{prefix: 'a:', rate: 1/s}, {prefix: a, rate: 2/s}]", "are named `a`"),
        ("limits: [{prefix: line, rate: 1/s}]", "two limits are named `line`"),
        ("limits: [{prefix: a, rate: 1/s, share: 1%}]", "unknown key `share`"),
        ("busrt: 1", "did you mean `burst`?"),
        ("exempt: ['']", "a prefix has 1 to 256 bytes"),
        ("exempt: [a, a]", "the prefix `a` has a rule already"),
        ("limits: [{prefix: a, rate: 1/s}], exempt: a", "the prefix `a` has a rule already"),
        ("limits: [{prefix: prefixes, rate: 1/s}]", "two limits are named `prefixes`"),
    ] {
        let text = format!("line: {{{text}}}");
        let all = parse("t.yaml", text.as_bytes(), 1.0).expect_err("a fault").to_string();
        assert!(all.contains(told), "{text}:\n{all}");
    }
}

/// A `limits` key with `count` prefixes, from `p0:` on, each with these keys.
fn many(count: usize, keys: &str) -> String {
    let limits = (0..count).map(|at| format!("{{prefix: 'p{at}:', {keys}}}"));
    format!("line: {{limits: [{}]}}", limits.collect::<Vec<_>>().join(", "))
}

#[test]
fn more_prefixes_than_tables_share_one() {
    let line = good(&many(29, "rate: 2/s"));
    assert_eq!((line.limits.len(), line.rules.find(b"p28:x")), (30, Some(TagRule::Own(29))));
    let line = good(&many(1_000, "rate: 2/s"));
    assert_eq!((line.limits.len(), &*line.limits[1].name), (2, "prefixes"));
    assert_eq!(line.rules.find(b"p999:x"), line.rules.find(b"p0:x"));
    let Some(TagRule::Shared(place)) = line.rules.find(b"p999:x") else { panic!("shared") };
    let counting = line.rules.counting(place).expect("numbers");
    let two = GridBucket::new("2/s".parse().expect("a pace"), 2);
    assert_eq!((&counting.algorithm, counting.interval.0), (&Algorithm::Grid(two), 500_000_000));

    for (text, told) in [
        (many(30, "rate: 1/s, shadow: true"), "`shadow` needs a `name` here"),
        (many(30, "rate: 1/s, keys_max: 5"), "`keys_max` needs a `name` here"),
    ] {
        let all = parse("t.yaml", text.as_bytes(), 1.0).expect_err("a fault").to_string();
        assert!(all.contains(told), "{all}");
    }
    let named = (0..30).map(|at| format!("{{prefix: 'p{at}:', rate: 1/s, name: n{at}}}"));
    let named = format!("line: {{limits: [{}]}}", named.collect::<Vec<_>>().join(", "));
    let all = parse("t.yaml", named.as_bytes(), 1.0).expect_err("a fault").to_string();
    assert!(all.contains("30 limits have a `name`; at most 29 can have one"), "{all}");
}

/// A configuration with a file of limits beside it, in a folder.
struct Beside {
    folder: tempfile::TempDir,
    source: ConfigSource,
}

impl Beside {
    fn new(limits: &str) -> Beside {
        let folder = tempfile::tempdir().expect("a folder");
        let (config, list) = (folder.path().join("t.yaml"), folder.path().join("limits"));
        let text = format!("line: {{limits_file: {}, burst: 3}}", list.display());
        fs::write(&config, text).expect("written");
        fs::write(list, limits).expect("written");
        Beside { source: ConfigSource::new(&config), folder }
    }

    fn load(&mut self) -> Result<Config, String> {
        self.source.load(1.0).map_err(|faults| faults.to_string())
    }

    fn line(&mut self) -> LineSettings {
        self.load().expect("good").settings.line.expect("open")
    }
}

#[test]
fn a_file_has_a_rule_in_each_line() {
    let text = "# tokens\n\na: 10/s\nab 5/m 7\n  inner: exempt\n";
    let mut beside = Beside::new(text);
    let line = beside.line();
    assert_eq!((line.rules.len(), line.limits.len()), (4, 2));
    assert_eq!(line.rules.find(b"inner:x"), Some(TagRule::Exempt));
    assert_eq!(line.rules.find(b"b"), Some(TagRule::Own(0)));
    let Some(TagRule::Shared(place)) = line.rules.find(b"abc") else { panic!("shared") };
    let seven = GridBucket::new("5/m".parse().expect("a pace"), 7);
    let counting = line.rules.counting(place).expect("numbers");
    assert_eq!(counting.algorithm, Algorithm::Grid(seven));

    for (text, told) in [
        ("a 1/s\na 2/s", "limits:2:1: `a` has a rule already"),
        ("a", "limits:1:1: a line is `PREFIX RATE`"),
        ("a 1/s 5 6", "a line is `PREFIX RATE`"),
        ("a fast", "the rate is `fast`: "),
        ("\na 1/s 0", "limits:2:1: the burst is `0`: "),
    ] {
        let told_is = Beside::new(text).load().expect_err(text);
        assert!(told_is.contains(told), "{text}: {told_is}");
    }
    let mut beside = Beside::new("");
    fs::write(beside.folder.path().join("limits"), b"a 1/s\n\xff 1/s\n").expect("written");
    assert!(beside.load().expect_err("no text").contains("limits:2:1: this is not UTF-8"));
    fs::remove_file(beside.folder.path().join("limits")).expect("gone");
    assert!(beside.load().expect_err("gone").contains("limits: cannot be read"));
}

#[test]
fn a_hundred_thousand_rules_are_read_and_more_than_a_million_are_refused() {
    let mut text = String::new();
    let mut write = |from: usize, to: usize| {
        (from..to).for_each(|at| writeln!(text, "t{at}: 1/s").expect("written"));
        text.clone()
    };
    let line = Beside::new(&write(0, 100_000)).line();
    assert_eq!(line.rules.len(), 100_001);
    assert!(matches!(line.rules.find(b"t99999:call"), Some(TagRule::Shared(0))));
    let told = Beside::new(&write(100_000, RULES_MAX + 1)).load().expect_err("too many");
    assert!(told.contains("limits:1000001:1: there are more than 1000000 rules"), "{told}");
}

#[test]
fn a_file_of_limits_that_changes_is_read_again() {
    let mut beside = Beside::new("a 1/s");
    beside.line();
    let mut change = |text: &str| {
        fs::write(beside.folder.path().join("limits"), text).expect("written");
        // The first check notes that the file has changed, the second one that it has stopped
        // changing.
        let _ = beside.source.look(1.0);
        beside.source.look(1.0)
    };
    let ConfigChange::Good(config) = change("a 1/s\nb 2/s") else { panic!("it has changed") };
    assert_eq!(config.settings.line.expect("open").rules.len(), 3);
    assert_eq!(change("a 1/s\nb 2/s"), ConfigChange::None);
    assert!(matches!(change("a"), ConfigChange::Faulty(_)));
    let ConfigChange::Good(config) = change("c 1/s") else { panic!("it has changed") };
    // After a reload the settings still have the rules of the file, which are not in the
    // configuration tree.
    let (config, _) = config.reloaded(&config).expect("the same");
    assert_eq!(config.settings.line.expect("open").rules.len(), 2);
}

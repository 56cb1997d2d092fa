//! The `line` section of a configuration: its defaults, its forms and its faults.

use tollgate::config::parse;
use tollgate::config::settings::{Line, Listen};
use tollgate_core::bucket::Algorithm;
use tollgate_core::bucket::grid::Grid;
use tollgate_core::units::Cost;

fn good(text: &str) -> Line {
    let config = parse("t.yaml", text.as_bytes(), 1.0);
    config.unwrap_or_else(|faults| panic!("{text}\n{faults}")).settings.line.expect("open")
}

#[test]
fn an_empty_line_section_opens_the_door_of_the_contract() {
    for text in ["line:", "line: {}", "line: {resp: []}"] {
        let line = good(text);
        assert_eq!(line.listen, [Listen::Tcp("127.0.0.1:7070".parse().expect("an address"))]);
        assert_eq!((line.socket_mode, line.resp.len(), line.tag_bytes), (0o666, 0, 1_024));
        let [policy] = &line.policies[..] else { panic!("one limit") };
        let one = "1/s".parse().expect("a pace");
        assert_eq!(policy.limit.algorithm, Algorithm::Grid(Grid::new(one, 10)));
        assert_eq!((&*policy.prefix, &*policy.limit.name), ("", "line"));
    }
    let line = good(
        "line: {listen: ['unix:///run/a.sock', ':7071'], refill: continuous, limits: \
         [{prefix: 'login:', rate: 5/m, refill: grid}, {prefix: '::', rate: 9/s, name: x}]}",
    );
    assert_eq!(line.listen[0], Listen::Unix("/run/a.sock".into()));
    assert!(matches!(line.policies[0].limit.algorithm, Algorithm::Debt(_)));
    let five = Grid::new("5/m".parse().expect("a pace"), 1);
    assert_eq!(line.policies[1].limit.algorithm, Algorithm::Grid(five));
    assert_eq!((&*line.policies[1].limit.name, &*line.policies[2].limit.name), ("login", "x"));
    assert!(matches!(&line.policies[2].limit.algorithm,
        Algorithm::Debt(debt) if debt.burst() == Cost::hits(9)));
}

#[test]
fn shadow_is_for_all_limits_or_for_one() {
    let limits = "limits: [{prefix: a, rate: 1/s, shadow: true}, {prefix: b, rate: 1/s}]";
    let shadows = |text: &str| {
        let policies = good(text).policies;
        policies.iter().map(|policy| policy.limit.shadow).collect::<Vec<_>>()
    };
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
        ("burst: 0", "1 is the least"),
        ("rate: 0/s", "not a rate"),
        ("refill: smooth", "must be one of: grid, continuous"),
        ("tag_bytes: 9000", "must be from 1 to 8192"),
        ("resp: 127.0.0.1:7070", "two listeners want 127.0.0.1:7070"),
        ("limits: [{rate: 1/s}]", "a limit of the line door needs `prefix`"),
        ("limits: [{prefix: a}]", "a limit of the line door needs `rate`"),
        ("limits: [{prefix: a, rate: 1/s}, {prefix: a, rate: 2/s}]", "have the prefix `a`"),
        ("limits: [{prefix: 'a:', rate: 1/s}, {prefix: a, rate: 2/s}]", "are named `a`"),
        ("limits: [{prefix: line, rate: 1/s}]", "two limits are named `line`"),
        ("limits: [{prefix: a, rate: 1/s, share: 1%}]", "there is no key `share`"),
        ("busrt: 1", "did you mean `burst`?"),
    ] {
        let text = format!("line: {{{text}}}");
        let all = parse("t.yaml", text.as_bytes(), 1.0).expect_err("a fault").to_string();
        assert!(all.contains(told), "{text}:\n{all}");
    }
}

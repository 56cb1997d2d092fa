//! Patterns, precedence and shared counters: cases 36 to 47.

use crate::ask::Service;
use evenkeel_config::settings::RatelimitAnswers;
use evenkeel_ratelimit::rules::read::RuleOptions;

/// Rules with one level, from keys, values and requests per day.
fn flat(nodes: &[(&str, &str, u32)]) -> String {
    let node = |(key, value, requests): &(&str, &str, u32)| {
        format!(
            "- {{key: '{key}', value: '{value}', rate_limit: {{unit: day, \
             requests_per_unit: {requests}}}}}\n"
        )
    };
    format!("domain: d\ndescriptors:\n{}", nodes.iter().map(node).collect::<String>())
}

fn limit(rules: &[(&str, &str, u32)], asked: &str) -> String {
    Service::new(&flat(rules)).ask(asked)
}

#[test]
fn c36_to_c39_exact_then_the_first_pattern_then_the_key() {
    let (a, ab, any) = (("w", "a*", 10), ("w", "ab*", 20), ("w", "", 30));
    for (case, rules, asked, told) in [
        (36, &[a, ab][..], "d: w=abz", "OK [10/DAY 9]"),
        (36, &[ab, a], "d: w=abz", "OK [20/DAY 19]"),
        (37, &[a, ("w", "abc", 40)], "d: w=abc", "OK [40/DAY 39]"),
        (38, &[a, any], "d: w=zzz", "OK [30/DAY 29]"),
        (39, &[("w", "*", 50), a], "d: w=a*", "OK [10/DAY 9]"),
        (42, &[("w", "*", 50)], "d: w=", "OK [50/DAY 49]"),
        (42, &[("w", "*", 50)], "d: w=x", "OK [50/DAY 49]"),
        (45, &[("w", "bar*b", 60)], "d: w=bar123b", "OK [60/DAY 59]"),
        (45, &[("w", "bar*b", 60)], "d: w=xbarb", "OK [-]"),
    ] {
        assert_eq!(limit(rules, asked), told, "case {case}: {asked}");
    }
}

#[test]
fn c40_no_step_is_taken_back() {
    let rules = "
domain: d
descriptors:
- key: nb
  value: x
  descriptors: [{key: only, value: one, rate_limit: {unit: day, requests_per_unit: 1}}]
- key: nb
  descriptors: [{key: other, rate_limit: {unit: day, requests_per_unit: 2}}]
";
    let service = Service::new(rules);
    assert_eq!(service.ask("d: nb=x,other=1"), "OK [-]");
    assert_eq!(service.ask("d: nb=y,other=1"), "OK [2/DAY 1]");
}

#[test]
fn c41_a_star_in_a_key_is_a_pattern_only_with_the_switch() {
    let rules = flat(&[("wk*", "", 5)]);
    assert_eq!(Service::new(&rules).ask("d: wkfoo=1"), "OK [-]");
    assert_eq!(Service::new(&rules).ask("d: wk*=1"), "OK [5/DAY 4]");
    let options = RuleOptions { compat_keys: true, ..RuleOptions::default() };
    let service = Service::with(&rules, Default::default(), options);
    assert_eq!(service.ask("d: wkfoo=1"), "OK [5/DAY 4]");
}

const SHARED: &str = "
domain: d
descriptors:
- {key: sh, value: 'f/*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: apart, value: 'f/*', rate_limit: {unit: day, requests_per_unit: 3}}
- {key: mix, value: test1, rate_limit: {unit: minute, requests_per_unit: 50}}
- {key: mix, value: 'test*', share_threshold: true,
   rate_limit: {unit: minute, requests_per_unit: 20}}
- key: files
  value: 'top/*'
  share_threshold: true
  descriptors:
  - {key: files, value: 'nested/*', share_threshold: true,
     rate_limit: {unit: day, requests_per_unit: 2}}
";

#[test]
fn c42_a_star_alone_meets_every_value() {
    let service = Service::new(
        "{domain: d, descriptors: [{key: k, value: '*', rate_limit: {unit: hour, \
         requests_per_unit: 5}}]}",
    );
    for asked in ["d: k=", "d: k=x", "d: k=*"] {
        assert_eq!(service.ask(asked), "OK [5/HOUR 4]", "{asked}");
    }
}

#[test]
fn c43_values_under_one_pattern_can_share_a_counter() {
    let service = Service::new(SHARED);
    for (value, told) in
        [(1, "OK [3/DAY 2]"), (2, "OK [3/DAY 1]"), (3, "OK [3/DAY 0]"), (4, "OVER [OVER 3/DAY 0]")]
    {
        assert_eq!(service.ask(&format!("d: sh=f/{value}")), told);
    }
}

#[test]
fn c44_without_it_they_are_counted_apart() {
    let service = Service::new(SHARED);
    for value in 1..=4 {
        assert_eq!(service.ask(&format!("d: apart=f/{value}")), "OK [3/DAY 2]");
    }
}

#[test]
fn c46_an_exact_value_goes_before_a_shared_pattern() {
    let service = Service::new(SHARED);
    assert_eq!(service.ask("d: mix=test1"), "OK [50/MINUTE 49]");
    assert_eq!(service.ask("d: mix=test2"), "OK [20/MINUTE 19]");
    assert_eq!(service.ask("d: mix=test3"), "OK [20/MINUTE 18]");
}

#[test]
fn c47_patterns_are_shared_level_by_level() {
    let service = Service::new(SHARED);
    assert_eq!(service.ask("d: files=top/1,files=nested/1"), "OK [2/DAY 1]");
    assert_eq!(service.ask("d: files=top/2,files=nested/2"), "OK [2/DAY 0]");
}

/// With joined keys, a key may be a pattern, and all values that match it may share one counter,
/// named by the requested key.
#[test]
fn c41_a_key_that_is_a_pattern_can_share_its_counter() {
    let compat = RuleOptions { compat_keys: true, ..RuleOptions::default() };
    let rules = "
domain: d
descriptors:
- {key: 'k*', share_threshold: true, detailed_metric: true,
   rate_limit: {unit: day, requests_per_unit: 3}}
- {key: f, value: 'a/*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: g_h, value: '*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 7}}
";
    let service = Service::with(rules, RatelimitAnswers::default(), compat);
    for (asked, told) in [
        ("k1=a", "3/DAY 2"),
        ("k1=b", "3/DAY 1"),
        ("k2=a", "3/DAY 2"),
        ("f=a/1", "5/DAY 4"),
        ("f=a/2", "5/DAY 3"),
        ("g=h_1", "7/DAY 6"),
        ("g=h_2", "7/DAY 5"),
        ("g_h=1", "7/DAY 6"),
    ] {
        assert_eq!(service.ask(&format!("d: {asked}")), format!("OK [{told}]"), "{asked}");
    }
    assert_eq!(service.figure("d.k1_k*", "total_hits"), 2);
}

//! `when` and `exempt`: the requests that a limit applies to, and those that no limit applies to.

use super::good;
use evenkeel_config::{StartProblems, check, parse};
use evenkeel_core::limit::LimitCondition;

fn limit(when: &str) -> String {
    format!("proxy: {{limits: [{{name: a, by: ip/32, share: 10%, when: {when}}}]}}")
}

fn faults(text: &str) -> String {
    parse("t.yaml", text.as_bytes(), 4.0).expect_err(text).to_string()
}

#[test]
fn a_condition_may_say_what_a_request_does_not_have() {
    let settings = good(&limit("{not: {cookie: session}}")).settings;
    let cookie = LimitCondition { cookie: vec!["session".into()], ..LimitCondition::default() };
    let when = LimitCondition { not: Some(Box::new(cookie)), ..LimitCondition::default() };
    assert_eq!(settings.proxy.expect("open").limits[0].when, when);
    for (when, told) in [
        ("{not: {}}", "`not` is empty"),
        ("{not: {path: /a}}", "unknown key `path` in `not`"),
        ("{not: {not: {cookie: a}}}", "unknown key `not` in `not`"),
    ] {
        assert!(faults(&limit(when)).contains(told), "{when}: {}", faults(&limit(when)));
    }
}

#[test]
fn only_names_of_headers_and_cookies_are_compared_and_the_fault_says_so() {
    let map = faults(&limit("{header: {accept-language: absent}}"));
    let told = "`header` takes names that must be present; values cannot be compared. Names that \
                must be absent are written as `not: {header: NAME}`";
    assert!(map.contains(told) && map.lines().count() == 1, "{map}");
    for when in ["{header: 'x-a: b'}", "{cookie: 'a=b'}"] {
        let told = faults(&limit(when));
        assert!(told.contains("Only names are allowed here, not values"), "{told}");
    }
}

#[test]
fn a_cookie_exempts_and_check_says_what_that_means() {
    let text = "proxy: {exempt: ['cookie:session', 'ip:192.0.2.1']}";
    let proxy = good(text).settings.proxy.expect("open");
    assert_eq!((proxy.exempt.len(), proxy.exempt_when.len()), (1, 1));
    let warned = check("t.yaml", text.as_bytes(), 4.0, |_| StartProblems::default()).expect("good");
    let warned = warned.join("\n");
    let told = "t.yaml:1:17: each request with a cookie of the exempt name is exempt";
    assert!(warned.starts_with(told), "{warned}");
    assert!(faults("proxy: {exempt: 'cookie:a b'}").contains("a name has 1 to 64"));
}

//! Shadow mode, quotas, replacements, headers, hits that are not counted, metadata and old
//! packages: cases 48 to 64, 89 and 90.

use crate::ask::{C1, Service, request, shown};
use evenkeel_config::settings::RatelimitAnswers;
use evenkeel_core::windows::WindowPolicy;
use evenkeel_ratelimit::decide::DecisionError;
use evenkeel_ratelimit::wire::ProtoPackage;

const MODES: &str = "
domain: d
descriptors:
- {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: zero, rate_limit: {unit: minute, requests_per_unit: 0}}
- {key: one, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: many, rate_limit: {unit: minute, requests_per_unit: 100}}
- {key: s1, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: s2, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: un, rate_limit: {unlimited: true}}
";

#[test]
fn c48_c49_a_shadow_rule_counts_and_refuses_nothing() {
    let service = Service::new(MODES);
    for left in [2, 1, 0, 0, 0] {
        assert_eq!(service.ask("d: shadow=1"), format!("OK [3/MINUTE {left}]"));
    }
    assert_eq!(service.figure("d.shadow", "shadow_mode"), 2);
    assert_eq!(service.ask("d: shadow=1 | zero=1"), "OVER [3/MINUTE 0, OVER 0/MINUTE 0]");
}

#[test]
fn c50_in_shadow_mode_for_all_everything_passes_and_statuses_tell() {
    let answers = RatelimitAnswers { shadow: true, ..RatelimitAnswers::default() };
    let service = Service::answering(MODES, answers);
    assert_eq!(service.ask("d: zero=1"), "OK [OVER 0/MINUTE 0]");
    service.ask("d: many=1");
    let events = &service.decider.events;
    assert_eq!(events.global_shadow_mode.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn c51_quotas_refuse_only_when_all_are_over() {
    let service = Service::new(MODES);
    for told in [
        "OK [1/MINUTE 0, 2/MINUTE 1]",
        "OK [OVER 1/MINUTE 0, 2/MINUTE 0]",
        "OVER [OVER 1/MINUTE 0, OVER 2/MINUTE 0]",
    ] {
        assert_eq!(service.ask("d: s1=a | s2=a"), told);
    }
}

#[test]
fn c52_c53_quotas_beside_other_limits() {
    let service = Service::new(MODES);
    service.ask("d: s1=a");
    let over = service.ask("d: s1=a | many=a");
    assert_eq!(over, "OVER [OVER 1/MINUTE 0, 100/MINUTE 99]", "all quotas are over, one of one");
    assert!(service.ask("d: s1=a | un=a").starts_with("OVER "), "an unlimited rule is no quota");
    assert_eq!(service.ask("d: s2=b | zero=b"), "OVER [2/MINUTE 1, OVER 0/MINUTE 0]");
}

#[test]
fn c54_c55_quota_mode_for_all() {
    let answers = RatelimitAnswers { quota: true, ..RatelimitAnswers::default() };
    let service = Service::answering(MODES, answers.clone());
    assert_eq!(service.ask("d: zero=1 | zz=1"), "OK [OVER 0/MINUTE 0, -]");
    assert_eq!(service.ask("d: zero=1"), "OVER [OVER 0/MINUTE 0]");
    let service = Service::answering(MODES, RatelimitAnswers { shadow: true, ..answers });
    assert_eq!(service.ask("d: zero=1 | zero=2"), "OK [OVER 0/MINUTE 0, OVER 0/MINUTE 0]");
}

/// Rules in the form of the reference server's example, written for Evenkeel.
const REPLACES: &str = "
domain: rl
descriptors:
- key: category
  value: account
  rate_limit: {replaces: [{name: bkthomps}, {name: fake_name}], unit: minute, requests_per_unit: 4}
- key: source_cluster
  value: proxy
  descriptors:
  - {key: destination_cluster, value: bkthomps,
     rate_limit: {replaces: [{name: bkthomps}], unit: minute, requests_per_unit: 2}}
  - {key: destination_cluster, value: override,
     rate_limit: {replaces: [{name: banned_limit}], unit: minute, requests_per_unit: 2}}
  - {key: destination_cluster, value: fake,
     rate_limit: {name: fake_name, unit: minute, requests_per_unit: 2}}
- key: foo
  rate_limit: {unit: minute, requests_per_unit: 2}
  descriptors:
  - {key: bar, value: bkthomps,
     rate_limit: {name: bkthomps, unit: minute, requests_per_unit: 1}}
  - {key: bar, value: banned,
     rate_limit: {name: banned_limit, unit: minute, requests_per_unit: 0}}
";

#[test]
fn c56_to_c58_a_rule_can_stand_in_for_others() {
    let service = Service::new(REPLACES);
    let replaced =
        service.ask("rl: foo=f,bar=banned | source_cluster=proxy,destination_cluster=override");
    assert_eq!(replaced, "OK [-, 2/MINUTE 1]");
    let alone = service.response("rl: foo=f,bar=banned");
    assert_eq!(shown(&alone), "OVER [OVER 0/MINUTE 0]");
    assert_eq!(alone.statuses[0].current_limit.as_ref().expect("a limit").name, "banned_limit");
    let three = "rl: category=account | foo=f,bar=bkthomps | \
                 source_cluster=proxy,destination_cluster=fake";
    for left in (0..4).rev() {
        assert_eq!(service.ask(three), format!("OK [4/MINUTE {left}, -, -]"));
    }
    assert_eq!(service.ask(three), "OVER [OVER 4/MINUTE 0, -, -]");
}

fn headers(service: &Service, asked: &str) -> Vec<(String, String)> {
    let response = service.response(asked);
    response.response_headers_to_add.into_iter().map(|h| (h.key, h.value)).collect()
}

#[test]
fn c59_to_c61_headers_tell_of_the_limit_that_matters() {
    let names = ["Limit", "Remaining", "Reset"].map(str::to_owned);
    let answers = RatelimitAnswers { headers: Some(names), ..RatelimitAnswers::default() };
    let service = Service::answering(C1, answers);
    let told = |limit: &str, remaining: &str, reset: &str| {
        vec![
            ("Limit".to_owned(), limit.to_owned()),
            ("Remaining".to_owned(), remaining.to_owned()),
            ("Reset".to_owned(), reset.to_owned()),
        ]
    };
    assert_eq!(headers(&service, "t: k=h +2 | mid=x,leaf=1"), told("3", "2", "1378"));
    assert_eq!(headers(&service, "t: zz=1 | un=1"), []);
    service.ask("t: k=over +9");
    assert_eq!(headers(&service, "t: zero=1 | k=over"), told("5", "0", "1378"));
    assert_eq!(headers(&service, "t: k=over | zero=1"), told("0", "0", "58"));
    assert_eq!(Service::new(C1).response("t: k=1").response_headers_to_add, []);
}

#[test]
fn c63_with_a_stop_only_what_would_go_over_is_counted() {
    let policy = WindowPolicy { stop_when_over: true, spare_over: false };
    let service =
        Service::answering(C1, RatelimitAnswers { policy, ..RatelimitAnswers::default() });
    for told in [
        "OK [5/HOUR 4, 2/HOUR 1]",
        "OK [5/HOUR 3, 2/HOUR 0]",
        "OVER [5/HOUR 3, OVER 2/HOUR 0]",
        "OVER [5/HOUR 3, OVER 2/HOUR 0]",
        "OVER [5/HOUR 3, OVER 2/HOUR 0]",
    ] {
        assert_eq!(service.ask("t: k=s | mid=x"), told);
    }
    let figures =
        ["total_hits", "within_limit", "over_limit"].map(|name| service.figure("t.k", name));
    assert_eq!(figures, [5, 2, 0], "also hits that were not counted are hits");
}

#[test]
fn c64_what_is_over_is_answered_without_counting() {
    let policy = WindowPolicy { stop_when_over: false, spare_over: true };
    let answers = RatelimitAnswers { policy, ..RatelimitAnswers::default() };
    let service = Service::answering(C1, answers);
    for _ in 0..4 {
        assert_eq!(service.ask("t: zero=l"), "OVER [OVER 0/MINUTE 0]");
    }
    assert_eq!(service.ask("t: zero=l +0"), "OVER [OVER 0/MINUTE 0]");
    assert_eq!(service.figure("t.zero", "over_limit"), 4);
    assert_eq!(service.figure("t.zero", "over_limit_with_local_cache"), 3);
    service.load(&C1.replace("requests_per_unit: 0", "requests_per_unit: 9"));
    assert_eq!(service.ask("t: zero=l +0"), "OK [9/MINUTE 8]", "the counter stayed at 1");
}

const METADATA: &str = "
domain: d
descriptors:
- key: a
  metadata: {name: first, deep: {x: 1, list: [1, two, true, null]}}
  rate_limit: {unit: minute, requests_per_unit: 5}
- key: b
  metadata: {name: second, deep: {z: 2.5}, '404': \"404\"}
  rate_limit: {unit: minute, requests_per_unit: 5}
- {key: c, metadata: {name: third, c: c}, rate_limit: {unit: minute, requests_per_unit: 0}}
- {key: e, detailed_metric: true, metadata: {e: 1}, rate_limit: {unit: day, requests_per_unit: 1}}
";

#[test]
fn c89_metadata_of_rules_that_are_not_over_is_merged() {
    let answers = RatelimitAnswers { dynamic_metadata: true, ..RatelimitAnswers::default() };
    let service = Service::answering(METADATA, answers);
    let metadata = |asked: &str| {
        let response = service.response(asked);
        evenkeel_ratelimit::json::metadata(&response.dynamic_metadata.expect("there"))
    };
    let told = metadata("d+2: c=1 | a=1 | b=2,nothing=3 | b=2 +1 limit 9/HOUR | b=1");
    let expected = serde_json::json!({
        "domain": "d",
        "hitsAddend": 2.0,
        "descriptors": [
            {"entries": ["c=1"]},
            {"entries": ["a=1"]},
            {"entries": ["b=2", "nothing=3"]},
            {"entries": ["b=2"], "hitsAddend": 1.0, "limit": "requests_per_unit:9 unit:HOUR"},
            {"entries": ["b=1"]},
        ],
        "metadata": {
            "name": "first",
            "deep": {"x": 1.0, "z": 2.5, "list": [1.0, "two", true, null]},
            "404": "404",
        },
    });
    assert_eq!(told, expected);
    assert_eq!(metadata("d: e=1")["metadata"]["e"], 1.0, "also beside detailed figures");
    assert_eq!(Service::new(METADATA).response("d: a=1").dynamic_metadata, None);
}

#[test]
fn c90_the_old_packages_know_less() {
    let service = Service::new(C1);
    let old = |asked: &str| service.decide(&request(asked), ProtoPackage::Old);
    assert_eq!(old(": k=v"), Err(DecisionError::NoDomain));
    assert_eq!(old("t:"), Err(DecisionError::NoDescriptors));
    for (asked, told) in [
        ("nope: k=v", "OK [-]"),
        ("t: ()", "OK [-]"),
        ("t: zz=v", "OK [-]"),
        ("t: k=v,x=y", "OK [-]"),
        ("t: mid=x,leaf=1", "OK [3/HOUR 2]"),
        ("t: mid=x,other=1", "OK [-]"),
        ("t: k=1", "OK [5/HOUR 4]"),
        ("t+3: k=1", "OK [5/HOUR 1]"),
        ("t+3: k=1", "OVER [OVER 5/HOUR 0]"),
    ] {
        let response = old(asked).expect("an answer");
        assert_eq!(shown(&response), told);
        assert!(response.statuses.iter().all(|status| status.duration_until_reset.is_none()));
    }
    service.decider.rules.store(None);
    assert_eq!(old(": k=v"), Err(DecisionError::NoRules), "it is looked at first");
}

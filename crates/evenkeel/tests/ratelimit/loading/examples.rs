//! Rules in the form of the examples of the reference server and of Fencer, and the steps of the
//! reference server's own integration scripts. The texts were written for Evenkeel; the keys are
//! the original ones.

use crate::ask::{Service, request, shown};
use evenkeel_config::settings::RatelimitAnswers;
use evenkeel_core::units::{SECOND, Time};
use evenkeel_ratelimit::wire::ProtoPackage;

/// The rules by which both projects explain the format.
const MONGO: &str = "
domain: mongo_cps
descriptors:
- {key: database, value: users, rate_limit: {unit: second, requests_per_unit: 500}}
- {key: database, value: default, rate_limit: {unit: second, requests_per_unit: 500}}
";

/// The rules for the reference server's Envoy example.
const EXAMPLE: &str = "
domain: rl
descriptors:
- key: category
  value: account
  rate_limit: {replaces: [{name: bkthomps}, {name: fake_name}], unit: minute, requests_per_unit: 4}
- key: source_cluster
  value: proxy
  descriptors:
  - {key: destination_cluster, value: mock, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: destination_cluster
    value: override
    rate_limit: {replaces: [{name: banned_limit}], unit: minute, requests_per_unit: 2}
- key: foo
  rate_limit: {unit: minute, requests_per_unit: 2}
  descriptors:
  - {key: bar, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: bar, value: banned,
     rate_limit: {name: banned_limit, unit: minute, requests_per_unit: 0}}
  - {key: baz, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: baz, value: not-so-shady, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: baz, value: shady, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: bay, rate_limit: {unlimited: true}}
- {key: unspec, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: qux, rate_limit: {unlimited: true}}
- {key: service_1, quota_mode: true, metadata: {service_with_quota: {name: service_1}},
   rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: service_2, quota_mode: true, metadata: {service_with_quota: {name: service_2}},
   rate_limit: {unit: minute, requests_per_unit: 2}}
";

/// The rules of both test suites, which also load a file with an empty domain.
const BASIC: &str = "
domain: basic
descriptors:
- {key: key1, rate_limit: {unit: second, requests_per_unit: 50}}
";
const ANOTHER: &str = "
domain: another
descriptors:
- {key: key2, rate_limit: {unit: minute, requests_per_unit: 20}}
- {key: key3, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: key4, rate_limit: {unit: day, requests_per_unit: 20}}
";

#[test]
fn the_rules_that_both_projects_explain_limit_each_database() {
    for package in [ProtoPackage::V3, ProtoPackage::Old] {
        let service = Service::new(MONGO);
        let ask = |text: &str| shown(&service.decide(&request(text), package).expect("an answer"));
        assert_eq!(ask("mongo_cps: database=users"), "OK [500/SECOND 499]");
        assert_eq!(ask("mongo_cps+500: database=users"), "OVER [OVER 500/SECOND 0]");
        assert_eq!(ask("mongo_cps: database=default"), "OK [500/SECOND 499]");
        assert_eq!(ask("mongo_cps: database=other"), "OK [-]");
        assert_eq!(ask("mongo: database=users"), "OK [-]", "domains are compared whole");
    }
}

#[test]
fn the_journeys_of_the_references_scripts_with_its_example() {
    let mut service = Service::new(EXAMPLE);
    // One header is limited, the other one only counted.
    for over in [false, false, false, true] {
        let told = service.ask("rl: foo=a,baz=not-so-shady");
        assert_eq!(told.starts_with("OVER"), over, "{told}");
    }
    for _ in 0..10 {
        assert!(service.ask("rl: foo=a,baz=shady").starts_with("OK"));
    }
    assert_eq!(service.ask("rl: foo=a,bay=any"), "OK [max]");
    assert_eq!(service.ask("rl: source_cluster=proxy,destination_cluster=mock"), "OK [1/MINUTE 0]");
    // Metrics show a value that the rules do not name.
    for told in ["OK", "OK", "OVER"] {
        assert!(service.ask("rl: unspec=unspecified_value").starts_with(told));
    }
    assert_eq!(service.figure("rl.unspec_unspecified_value", "over_limit"), 1);
    // Two quotas: a request is refused once both are used up, until the next minute.
    for told in ["OK", "OK", "OVER"] {
        let shown = service.ask("rl: service_1=a | service_2=a");
        assert!(shown.starts_with(told), "{shown}");
    }
    service.now = Time(service.now.0 + 60 * SECOND);
    assert!(service.ask("rl: service_1=a | service_2=a").starts_with("OK"));
}

/// A quota of tokens: each request first checks whether any are left, and pays when it knows how
/// many it used.
#[test]
fn tokens_are_paid_afterwards_and_metadata_says_which_service_has_some() {
    let answers = RatelimitAnswers { dynamic_metadata: true, ..RatelimitAnswers::default() };
    let service = Service::answering(EXAMPLE, answers);
    assert_eq!(service.ask("rl: service_2=t +0"), "OK [2/MINUTE 2]");
    assert_eq!(service.ask("rl: service_2=t +5"), "OVER [OVER 2/MINUTE 0]");
    assert_eq!(service.ask("rl: service_2=t +0"), "OVER [OVER 2/MINUTE 0]");
    let chosen = |asked: &str| {
        let metadata = service.response(asked).dynamic_metadata.expect("there");
        let told = evenkeel_ratelimit::json::metadata(&metadata);
        told["metadata"]["service_with_quota"]["name"].as_str().map(str::to_owned)
    };
    let both = "rl: service_1=m +0 | service_2=m +0";
    assert_eq!(chosen(both).as_deref(), Some("service_1"));
    service.ask("rl: service_1=m +2");
    assert_eq!(chosen(both).as_deref(), Some("service_2"), "the first that has some left");
    service.ask("rl: service_2=m +3");
    assert_eq!(chosen(both), None);
}

#[test]
fn the_script_that_both_suites_run() {
    for package in [ProtoPackage::V3, ProtoPackage::Old] {
        let ask = |service: &Service, text: &str| {
            shown(&service.decide(&request(text), package).expect("an answer"))
        };
        let basic = Service::new(BASIC);
        assert_eq!(ask(&basic, "foo: hello=world"), "OK [-]");
        assert_eq!(ask(&basic, "basic: key1=foo"), "OK [50/SECOND 49]");
        let another = Service::new(ANOTHER);
        for hit in 1..=25_u32 {
            let left = 20_u32.saturating_sub(hit);
            let told = match hit <= 20 {
                true => format!("OK [20/MINUTE {left}]"),
                false => "OVER [OVER 20/MINUTE 0]".to_owned(),
            };
            assert_eq!(ask(&another, "another: key2=random"), told);
        }
        for hit in 1..=15_u32 {
            let told = match hit <= 10 {
                true => format!("OK [20/MINUTE {}, 10/HOUR {}]", 20 - hit, 10 - hit),
                false => format!("OVER [20/MINUTE {}, OVER 10/HOUR 0]", 20 - hit),
            };
            assert_eq!(ask(&another, "another: key2=other | key3=other"), told);
        }
        for (name, figure) in [("total_hits", 15), ("over_limit", 5), ("within_limit", 10)] {
            assert_eq!(another.figure("another.key3", name), figure, "{name}");
        }
    }
}

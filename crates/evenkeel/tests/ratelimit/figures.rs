//! Metrics and their names: cases 4, 66 and 86 to 88. Case 67 is in `tally`.

use crate::ask::{C1, Service};
use evenkeel_ratelimit::metrics::{escaped, for_each, prometheus};
use evenkeel_ratelimit::wire::{Descriptor, Entry, ProtoPackage, Request};
use std::collections::BTreeMap;

#[test]
fn c04_requests_for_unknown_domains_are_counted() {
    let service = Service::new(C1);
    service.ask("nope: k=v");
    service.ask("nope: k=v | k=w");
    let unknown = service.decider.unknown_domains.all();
    assert_eq!(unknown.len(), 1);
    assert_eq!((&*unknown[0].0, unknown[0].1.figures()[0].1), ("nope", 3), "one a descriptor");
}

/// Of a request that crosses the limit, only the hits over it are counted, as in `over_limit`.
#[test]
fn c48_shadow_counts_the_hits_that_went_over() {
    let service = Service::new(
        "{domain: d, descriptors: [{key: s, shadow_mode: true, rate_limit: {unit: day, \
         requests_per_unit: 3}}]}",
    );
    for (asked, sum) in [("d+5: s=1", 2), ("d+4: s=1", 6), ("d: s=2", 6)] {
        service.ask(asked);
        assert_eq!(service.figure("d.s", "shadow_mode"), sum, "{asked}");
        assert_eq!(service.figure("d.s", "over_limit"), sum, "{asked}");
    }
}

/// Labels are taken from the path in StatsD's form: dots in an address become `_`, and levels
/// beyond the second key are counted with it.
#[test]
fn prometheus_labels_are_those_of_the_references_mapping() {
    let service = Service::new(
        "
domain: d
descriptors:
- {key: remote_address, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: 'k|2', value: 'a:b', rate_limit: {unit: day, requests_per_unit: 9}}
- {key: v, value: 1.2.3, rate_limit: {unit: day, requests_per_unit: 9}}
- key: a
  descriptors:
  - key: b
    descriptors:
    - {key: c, rate_limit: {unit: day, requests_per_unit: 9}}
    - {key: d, rate_limit: {unit: day, requests_per_unit: 9}}
",
    );
    service.ask("d: remote_address=10.1.2.3 | v=1.2.3");
    let two = Request {
        domain: "d".into(),
        descriptors: vec![Descriptor {
            entries: vec![Entry { key: "k|2".into(), value: "a:b".into() }],
            ..Descriptor::default()
        }],
        hits_addend: 0,
    };
    service.decide(&two, ProtoPackage::V3).expect("an answer");
    service.ask("d: a=1,b=2,c=3 | a=1,b=2,d=3 | a=1,b=2,d=3");
    let shown = prometheus(&service.decider);
    for line in [
        "total_hits{domain=\"d\",key1=\"remote_address_10_1_2_3\"} 1",
        "total_hits{domain=\"d\",key1=\"k_2_a_b\"} 1",
        "total_hits{domain=\"d\",key1=\"v_1\",key2=\"2\"} 1",
        "total_hits{domain=\"d\",key1=\"a\",key2=\"b\"} 3",
    ] {
        let line = format!("ratelimit_service_rate_limit_{line}");
        assert_eq!(shown.lines().filter(|shown| **shown == line).count(), 1, "{line}\n{shown}");
    }
    let mut series: Vec<_> = shown.lines().filter_map(|line| line.rsplit_once(' ')).collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup_by_key(|(name, _)| *name);
    assert_eq!(series.len(), all, "Prometheus refuses a series that comes twice\n{shown}");
}

#[test]
fn c66_hits_near_the_limit_are_counted_so() {
    let service = Service::new(
        "{domain: d, descriptors: [{key: near, rate_limit: {unit: day, requests_per_unit: 10}}]}",
    );
    for _ in 0..12 {
        service.ask("d: near=1");
    }
    for (name, figure) in
        [("near_limit", 2), ("within_limit", 10), ("over_limit", 2), ("total_hits", 12)]
    {
        assert_eq!(service.figure("d.near", name), figure, "{name}");
    }
}

#[test]
fn c86_what_statsd_would_misread_is_escaped() {
    assert_eq!(escaped("path_/foo:bar|baz"), "path_/foo_bar_baz");
    assert_eq!(escaped("d.ip_10.0.0.1"), "d.ip_10_0_0_1");
    assert_eq!(escaped("ip_10.0.0.1:80.x"), "ip_10_0_0_1_80.x");
    assert_eq!(escaped("d.v_1.2.3"), "d.v_1.2.3");
    assert_eq!(escaped("1.2.3.4"), "1_2_3_4");
    assert_eq!(escaped("d.v_1.2.3.4.5"), "d.v_1_2_3_4.5");
}

/// The values `a:b` and `a|b` have one name in StatsD. A path that requests made before a rule
/// had it is counted at both.
#[test]
fn paths_that_are_escaped_to_one_name_are_added_up() {
    let detailed = "{domain: d, descriptors: [{key: k, detailed_metric: true, \
                    rate_limit: {unit: day, requests_per_unit: 9}}]}";
    let service = Service::new(detailed);
    let asked = |value: &str, hits: u64| Request {
        domain: "d".into(),
        descriptors: vec![Descriptor {
            entries: vec![Entry { key: "k".into(), value: value.into() }],
            hits_addend: Some(hits),
            ..Descriptor::default()
        }],
        hits_addend: 0,
    };
    for (value, hits) in [("a:b", 5), ("a|b", 3), ("c", 2)] {
        service.decide(&asked(value, hits), ProtoPackage::V3).expect("an answer");
    }
    service.load(&detailed.replace("key: k,", "key: k, value: c,"));
    let mut figures = BTreeMap::new();
    for_each(&service.decider, |name, figure| {
        assert_eq!(figures.insert(name.to_owned(), figure), None, "{name} occurs twice");
    });
    assert_eq!(figures["ratelimit.service.rate_limit.d.k_a_b.total_hits"], 8);
    assert_eq!(figures["ratelimit.service.rate_limit.d.k_c.total_hits"], 2);
}

const DETAILED: &str = "
domain: test-domain
descriptors:
- {key: key7, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: plain, rate_limit: {unit: day, requests_per_unit: 9}}
- key: route
  value_to_metric: true
  descriptors:
  - key: http_method
    value_to_metric: true
    descriptors: [{key: subject_id, rate_limit: {unit: day, requests_per_unit: 9}}]
- {key: file, value: 'f/*', share_threshold: true, value_to_metric: true,
   rate_limit: {unit: day, requests_per_unit: 9}}
- {key: some, value: 'f/*', value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: wild, value: 'f/*', rate_limit: {unit: day, requests_per_unit: 9}}
";

#[test]
fn c87_c88_figures_can_tell_values() {
    let service = Service::new(DETAILED);
    for (asked, path) in [
        ("key7=x", "key7_x"),
        ("key7=", "key7"),
        ("plain=x", "plain"),
        ("route=api,http_method=GET,subject_id=7", "route_api.http_method_GET.subject_id"),
        ("file=f/1", "file_f/*"),
        ("some=f/1", "some_f/1"),
        ("wild=f/1", "wild_f/*"),
    ] {
        service.ask(&format!("test-domain: {asked}"));
        assert_eq!(service.figure(&format!("test-domain.{path}"), "total_hits"), 1, "{asked}");
    }
}

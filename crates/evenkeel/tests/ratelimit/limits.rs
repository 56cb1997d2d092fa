//! The limit that applies and the hits that are left: cases 1 to 35, 65 and 91.

mod memory;

use crate::ask::{C1, Service, request, shown};
use evenkeel_core::units::{SECOND, Time};
use evenkeel_ratelimit::decide::DecisionError;
use evenkeel_ratelimit::wire::ProtoPackage;

#[test]
fn c01_to_c03_what_cannot_be_decided_is_told_as_the_reference_does() {
    let service = Service::new(C1);
    for (asked, refusal, text) in [
        (": k=v", DecisionError::NoDomain, "rate limit domain must not be empty"),
        ("t:", DecisionError::NoDescriptors, "rate limit descriptor list must not be empty"),
    ] {
        assert_eq!(service.decide(&request(asked), ProtoPackage::V3), Err(refusal));
        assert_eq!(refusal.to_string(), text);
    }
    service.decider.rules.store(None);
    let refused = service.decide(&request("t: k=v"), ProtoPackage::V3).expect_err("no rules");
    assert_eq!(refused.to_string(), "no rate limit configuration loaded");
    let refused = service.decide(&request(": k=v"), ProtoPackage::V3);
    assert_eq!(refused, Err(DecisionError::NoDomain), "it is looked at last");
}

/// One case on each line, each with a new service.
#[test]
fn c04_to_c31_one_request_each() {
    for (case, asked, told) in [
        (4, "nope: k=v", "OK [-]"),
        (5, "t: ()", "OK [-]"),
        (6, "t: zz=v", "OK [-]"),
        (7, "t: k=whitelisted", "OK [-]"),
        (8, "t: k=v,x=y", "OK [-]"),
        (9, "t: mid=x", "OK [2/HOUR 1]"),
        (10, "t: mid=x,leaf=1", "OK [3/HOUR 2]"),
        (11, "t: mid=x,other=1", "OK [-]"),
        (14, "t: k=p +0", "OK [5/HOUR 5]"),
        (15, "t+9: k=p +2", "OK [5/HOUR 3]"),
        (16, "t: zero=x", "OVER [OVER 0/MINUTE 0]"),
        (17, "t: zero=y +0", "OK [0/MINUTE 0]"),
        // Evenkeel compares keys and values separately.
        (18, "t: a=b", "OK [-]"),
        (19, "t: a_b=v", "OK [7/DAY 6]"),
        (20, "t: w=foo1", "OK [3/WEEK 2]"),
        (21, "t: w=bar", "OK [9/MONTH 8]"),
        (23, "t: up=1", "OK [4/MINUTE 3]"),
        (24, "t: un=1", "OK [max]"),
        (25, "t: anything=q limit 2/HOUR", "OK [2/HOUR 1]"),
        (26, "nope: k=q limit 2/HOUR", "OK [-]"),
        (27, "t: k=whitelisted limit 2/DAY", "OK [2/DAY 1]"),
        (28, "t: k=q limit 3/7", "OK [3/WEEK 2]"),
        // An unknown unit: the rules decide, and the service does not crash.
        (29, "t: k=q limit 2/0", "OK [5/HOUR 4]"),
        (29, "t: k=q limit 2/99", "OK [5/HOUR 4]"),
        (30, "t: k=dup | k=dup", "OK [5/HOUR 4, 5/HOUR 3]"),
        (31, "t: k=", "OK [5/HOUR 4]"),
        (32, "t: =", "OK [-]"),
        (33, "t: k=m | zero=m | zz=m | un=m", "OVER [5/HOUR 4, OVER 0/MINUTE 0, -, max]"),
    ] {
        assert_eq!(Service::new(C1).ask(asked), told, "case {case}: {asked}");
    }
}

#[test]
fn c12_hits_count_down_and_then_over() {
    let service = Service::new(C1);
    for left in (0..5).rev() {
        assert_eq!(service.ask("t: k=seq"), format!("OK [5/HOUR {left}]"));
    }
    for _ in 0..2 {
        assert_eq!(service.ask("t: k=seq"), "OVER [OVER 5/HOUR 0]");
    }
    service
        .load(&C1.replace("unit: hour, requests_per_unit: 5", "unit: hour, requests_per_unit: 9"));
    assert_eq!(service.ask("t: k=seq +0"), "OK [9/HOUR 2]", "the counter is at 7");
}

#[test]
fn c13_an_addend_counts_as_so_many_hits() {
    let service = Service::new(C1);
    assert_eq!(service.ask("t+3: k=add"), "OK [5/HOUR 2]");
    assert_eq!(service.ask("t+3: k=add"), "OVER [OVER 5/HOUR 0]");
    assert_eq!(service.ask("t: k=add"), "OVER [OVER 5/HOUR 0]");
    assert_eq!(service.ask("t: k=big +18446744073709551615"), "OVER [OVER 5/HOUR 0]");
}

#[test]
fn c14_asking_for_nothing_is_over_only_when_the_counter_is() {
    let service = Service::new(C1);
    service.ask("t: k=p +5");
    assert_eq!(service.ask("t: k=p +0"), "OK [5/HOUR 0]");
    service.ask("t: k=p");
    assert_eq!(service.ask("t: k=p +0"), "OVER [OVER 5/HOUR 0]");
}

#[test]
fn c18_c19_c41_joined_keys_come_back_with_the_switch() {
    let service = Service::new(C1);
    service.ask("t: a_b=v");
    assert_eq!(service.ask("t: a_b=v"), "OK [7/DAY 5]");
    let options =
        evenkeel_ratelimit::rules::read::RuleOptions { compat_keys: true, ..Default::default() };
    let service = Service::with(C1, Default::default(), options);
    assert_eq!(service.ask("t: a=b"), "OK [7/DAY 6]");
    assert_eq!(service.ask("t: a_b=v"), "OK [7/DAY 6]", "on another counter");
}

#[test]
fn c20_values_under_one_pattern_are_counted_apart() {
    let service = Service::new(C1);
    for value in ["foo1", "foo2", "foo"] {
        assert_eq!(service.ask(&format!("t: w={value}")), "OK [3/WEEK 2]", "{value}");
    }
}

#[test]
fn c22_the_name_of_a_limit_is_told() {
    let response = Service::new(C1).response("t: nm=1");
    assert_eq!(shown(&response), "OK [4/YEAR 3]");
    assert_eq!(response.statuses[0].current_limit.as_ref().expect("a limit").name, "mylimit");
}

#[test]
fn c23_units_are_written_in_any_case() {
    for (unit, told) in [("MINUTE", "MINUTE"), ("WeEk", "WEEK"), ("year", "YEAR")] {
        let rules = format!(
            "{{domain: d, descriptors: [{{key: k, rate_limit: {{unit: {unit}, \
             requests_per_unit: 2}}}}]}}"
        );
        assert_eq!(Service::new(&rules).ask("d: k=1"), format!("OK [2/{told} 1]"));
    }
}

#[test]
fn c34_c35_every_limited_status_says_when_its_window_ends() {
    let mut service = Service::new(C1);
    service.now = Time(1_795_204_800 * SECOND + 5);
    let response = service.response("t: k=1 | zero=1 | w=foo1 | un=1 | zz=1");
    let seconds = |at: usize| response.statuses[at].duration_until_reset.map(|d| d.seconds);
    // Both windows begin at this second.
    assert_eq!((seconds(0), seconds(1)), (Some(3_600), Some(60)));
    let week = seconds(2).expect("a window");
    // The epoch was a Thursday.
    assert_eq!((1_795_204_800 + week) / 86_400 % 7, 0);
    assert_eq!((1_795_204_800 + week) % 86_400, 0);
    assert_eq!((seconds(3), seconds(4)), (None, None));
}

#[test]
fn c62_at_2222_a_minute_has_58_seconds_left() {
    let service = Service::new(C1);
    let status = service.response("t: up=1").statuses[0].clone();
    assert_eq!(status.duration_until_reset.expect("a window").seconds, 58);
}

#[test]
fn c65_a_limit_that_changes_keeps_its_counter_and_a_unit_that_changes_does_not() {
    let rules = |unit, requests| {
        format!(
            "{{domain: d, descriptors: [{{key: k, rate_limit: {{unit: {unit}, \
             requests_per_unit: {requests}}}}}]}}"
        )
    };
    let service = Service::new(&rules("day", 10));
    service.ask("d: k=1 +13");
    service.load(&rules("day", 100));
    assert_eq!(service.ask("d: k=1"), "OK [100/DAY 86]");
    service.load(&rules("hour", 100));
    assert_eq!(service.ask("d: k=1"), "OK [100/HOUR 99]");
    service.load(&rules("day", 100));
    assert_eq!(service.ask("d: k=1"), "OK [100/DAY 85]", "the old counter is there still");
}

#[test]
fn c91_hits_are_given_back_down_to_none() {
    let service = Service::new(C1);
    service.ask("t: k=back +7");
    assert_eq!(service.ask("t: k=back -4"), "OK [5/HOUR 2]");
    assert_eq!(service.ask("t: k=back"), "OK [5/HOUR 1]");
    assert_eq!(service.ask("t: k=back -100"), "OK [5/HOUR 5]");
    assert_eq!(service.figure("t.k", "total_negative_hits"), 104);
    service.ask("t: zero=z +3");
    assert_eq!(service.ask("t: zero=z -1"), "OK [0/MINUTE 0]", "who gives back is never over");
}

#[test]
fn the_window_of_a_limit_can_be_several_units_or_a_month_of_the_calendar() {
    let mut service = Service::new(
        "{domain: d, descriptors: [\
         {key: five, rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 2}}, \
         {key: month, rate_limit: {unit: month, calendar: true, requests_per_unit: 2}}]}",
    );
    let reset = |service: &Service, asked: &str| {
        let response = service.response(asked);
        response.statuses[0].duration_until_reset.expect("a window").seconds
    };
    assert_eq!(reset(&service, "d: five=1"), 300 - 2222 % 300);
    // The last second of February 2028, a leap year.
    service.now = Time(1_835_481_599 * SECOND);
    assert_eq!(reset(&service, "d: month=1"), 1);
    service.now = Time(1_835_481_600 * SECOND);
    assert_eq!(reset(&service, "d: month=1"), 31 * 86_400);
}

#[test]
fn a_rule_can_slide_or_be_a_bucket() {
    let mut service = Service::new(
        "{domain: d, descriptors: [\
         {key: slide, rate_limit: {unit: minute, requests_per_unit: 10, \
          algorithm: sliding_window}}, \
         {key: bucket, rate_limit: {unit: minute, requests_per_unit: 10, \
          algorithm: token_bucket}}]}",
    );
    // The last second of a minute, and the first of the next.
    service.now = Time(2_279 * SECOND);
    assert_eq!(service.ask("d+10: slide=1 | bucket=1"), "OK [10/MINUTE 0, 10/MINUTE 0]");
    service.now = Time(2_280 * SECOND);
    let response = service.response("d: slide=1 | bucket=1");
    assert_eq!(shown(&response), "OVER [OVER 10/MINUTE 0, OVER 10/MINUTE 0]");
    let reset = |at: usize| response.statuses[at].duration_until_reset.expect("told").seconds;
    assert_eq!((reset(0), reset(1)), (60, 6), "a bucket gets one back every 6 s");
    service.now = Time(2_310 * SECOND);
    assert_eq!(service.ask("d+0: slide=1 +0 | bucket=1 +0"), "OK [10/MINUTE 5, 10/MINUTE 5]");
}

#[test]
fn a_flood_of_descriptors_takes_no_memory_and_forgives_nobody() {
    let service = Service::new(C1);
    for user in 0..20 {
        assert_eq!(service.ask(&format!("t: k=heavy{user} +9")), "OVER [OVER 5/HOUR 0]");
    }
    let table = service.decider.counters.windows.table();
    let before = table.bytes();
    for user in 0..3_000 {
        service.ask(&format!("t: k=light{user}"));
    }
    assert_eq!((table.bytes(), table.used()), (before, 1_000));
    assert!(table.dropped() > 1_500);
    for user in 0..20 {
        assert_eq!(service.ask(&format!("t: k=heavy{user} +0")), "OVER [OVER 5/HOUR 0]");
    }
}

#[test]
fn too_much_in_one_request_is_refused() {
    let service = Service::new(C1);
    let many = format!("t: {}", vec!["k=v"; 1_001].join("|"));
    assert_eq!(service.decide(&request(&many), ProtoPackage::V3), Err(DecisionError::TooMany));
    let long = format!("t: {}", vec!["k=v"; 101].join(","));
    assert_eq!(service.decide(&request(&long), ProtoPackage::V3), Err(DecisionError::TooMany));
    let many = format!("t: {}", vec!["zero=v"; 1_000].join("|"));
    assert_eq!(service.response(&many).statuses.len(), 1_000);
}

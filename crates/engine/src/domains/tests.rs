use super::*;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::history::RequestHistory;
use evenkeel_core::condition::Condition;
use evenkeel_core::limit::{KeyPart, LimitUnit};
use evenkeel_core::units::{Rate, Weight};

pub(super) const MS: u64 = 1_000_000;
const START: Time = Time(1_790_000_000_000 * MS);

pub(super) fn at(ms: u64) -> Time {
    START.plus(Nanos::from_millis(ms))
}

pub(super) fn h(interval: u64, burst: usize) -> Algorithm {
    Algorithm::History(RequestHistory::new(burst, Nanos::from_millis(interval)).expect("a history"))
}

pub(super) fn k(interval: u64, burst: u64) -> Algorithm {
    let rate = Rate::per(Cost::hits(1), Nanos::from_millis(interval)).expect("a rate");
    Algorithm::Debt(DebtBucket::new(rate, Cost::hits(burst)))
}

pub(super) fn domain(rules: &[Algorithm]) -> MasterDomain {
    let rule = |algorithm: &Algorithm| Limit {
        name: "d".into(),
        by: vec![KeyPart::Tag],
        when: Condition::default(),
        unit: LimitUnit::Hits,
        algorithm: algorithm.clone(),
        action: None,
        weight: Weight::ONE,
        keys_max: 100,
        shadow: false,
    };
    let rules = rules.iter().map(rule).collect();
    let settings = MasterSettings {
        accounting: ([127, 0, 0, 1], 0).into(),
        control: ([127, 0, 0, 1], 0).into(),
        allow: Vec::new(),
        ahead_max: Nanos::from_secs(60),
        connections: 1,
        told_max: 3,
        drain: std::time::Duration::ZERO,
        domains: Vec::new(),
    };
    let named = master::DomainSettings { name: "d".to_owned(), rules };
    MasterDomain::new(&named, &settings, Arc::default(), KeySeed([7; 16]), Clock::start())
}

/// The decisions of a gatekeeper without latency on requests at these times: `A` (passes), `D` and
/// until when (delayed), or `R` (refused, beyond five seconds). Also the last order.
fn gate(domain: &MasterDomain, times: &[u64]) -> String {
    let (mut until, mut all) = (at(0), Vec::new());
    for ms in times {
        let now = at(*ms);
        if until > now.plus(Nanos::from_secs(5)) {
            all.push("R".to_owned());
            continue;
        }
        let start = until.max(now);
        all.push(match start.since(now).0 {
            0 => "A".to_owned(),
            _ => format!("D{}", start.since(at(0)).0 / MS),
        });
        if let RecordOutcome::Until(told) = domain.record_request(b"c", start, now) {
            until = until.max(told);
        }
    }
    all.join(" ")
}

/// The order after each request, in milliseconds; a dash if there is none.
fn told(domain: &MasterDomain, times: &[(u64, u64)]) -> String {
    let one = |(start, now): &(u64, u64)| match domain.record_request(b"c", at(*start), at(*now)) {
        RecordOutcome::Until(until) => (until.since(at(0)).0 / MS).to_string(),
        RecordOutcome::Free => "-".to_owned(),
        RecordOutcome::Stale => "stale".to_owned(),
    };
    times.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn s1_s2_ten_requests_under_both_algorithms() {
    let times = [0, 20, 40, 60, 80, 100, 120, 140, 3000, 6000];
    let history = domain(&[h(500, 3)]);
    assert_eq!(gate(&history, &times), "A A A D540 D1040 D1540 D2040 D2540 D3040 A");
    let gcra = domain(&[k(500, 3)]);
    assert_eq!(gate(&gcra, &times), "A A A A D500 D1000 D1500 D2000 A A");
}

#[test]
fn s3_s4_twenty_requests_of_which_the_last_are_refused() {
    let times: Vec<u64> = (0..20).map(|n| n * 10).collect();
    let accepted = |count: usize| "A ".repeat(count);
    let history = domain(&[h(1000, 10)]);
    let expected = format!("{}D1090 D2090 D3090 D4090 D5090 R R R R R", accepted(10));
    assert_eq!(gate(&history, &times), expected);
    let gcra = domain(&[k(1000, 10)]);
    let expected = format!("{}D1000 D2000 D3000 D4000 D5000 R R R R", accepted(11));
    assert_eq!(gate(&gcra, &times), expected);
}

#[test]
fn s5_steady_requests_at_the_rate() {
    let times = [(0, 0), (500, 500), (1000, 1000), (1500, 1500), (2000, 2000)];
    assert_eq!(told(&domain(&[h(500, 3)]), &times), "- - 1500 2000 2500");
    assert_eq!(told(&domain(&[k(500, 3)]), &times), "- - - - -");
}

#[test]
fn s6_six_accepted_at_once_because_the_word_came_too_late() {
    let times = [(0, 0); 6];
    assert_eq!(told(&domain(&[k(500, 3)]), &times), "- - - 500 1000 1500");
    assert_eq!(told(&domain(&[h(500, 3)]), &times), "- - 500 500 500 500");
}

#[test]
fn s20_s21_the_latest_of_all_rules_and_no_rule_never_delays() {
    let two = domain(&[h(500, 3), h(6_000, 10)]);
    let times: Vec<(u64, u64)> = (0..10).map(|_| (0, 0)).collect();
    assert_eq!(told(&two, &times), "- - 500 500 500 500 500 500 500 6000");
    let none = domain(&[]);
    assert_eq!(told(&none, &times), "- ".repeat(10).trim());
}

#[test]
fn s25_requests_that_were_released_together_are_spaced_again() {
    let times: Vec<(u64, u64)> = (0..3).map(|_| (1_000, 1_000)).collect();
    let history = domain(&[h(500, 3)]);
    assert_eq!(gate(&history, &[0, 0, 0]), "A A A");
    assert_eq!(told(&history, &times), "1500 1500 1500");
    let gcra = domain(&[k(500, 3)]);
    assert_eq!(gate(&gcra, &[0, 0, 0, 0]), "A A A A");
    // In debt by one at 0, no debt at 500, two in credit at 1000 less three.
    assert_eq!(told(&gcra, &times), "- 1500 2000");
}

#[test]
fn what_is_old_changes_nothing_and_what_lies_far_ahead_is_brought_near() {
    let history = domain(&[h(500, 3)]);
    assert_eq!(told(&history, &[(0, 1_501), (0, 9_000), (7_000, 7_000)]), "stale stale -");
    let gcra = domain(&[k(500, 0)]);
    assert_eq!(told(&gcra, &[(0, 5_001), (0, 5_000)]), "stale 5500");
    let far = domain(&[h(500, 1)]);
    assert_eq!(told(&far, &[(10_000_000, 0)]), "60500");
}

#[test]
fn identifiers_of_any_bytes_are_limited_apart() {
    let domain = domain(&[h(500, 1)]);
    let names: [&[u8]; 6] =
        [b"", b"constructor", b"__proto__", b"a;b", &[b'x'; 300], &[0xff; 65_536]];
    for name in names {
        assert_eq!(domain.record_request(name, at(0), at(0)), RecordOutcome::Until(at(500)));
    }
    let rows = domain.top(0);
    assert!(rows.iter().any(|standing| standing.row.name == "constructor"), "{}", rows.len());
}

#[test]
fn the_list_sees_a_fair_part_of_a_flood() {
    let domain = domain(&[k(500, 3)]);
    let count = 64_000;
    for n in 0..count {
        domain.record_request(b"heavy", at(0), at(0));
        domain.record_request(format!("other-{n}").as_bytes(), at(0), at(0));
    }
    let rows = domain.top(0);
    assert_eq!(rows[0].row.name, "heavy");
    let told = rows[0].row.total.0 as f64 / Cost::hits(count).0 as f64;
    assert!((0.9..1.1).contains(&told), "{told}");
    assert!(rows[0].row.wait > Nanos::ZERO);
}

#[test]
fn a_reload_keeps_the_list_of_a_rule_that_stays() {
    let domain = domain(&[k(500, 3)]);
    domain.record_request(b"heavy", at(0), at(0));
    let mut rules = domain.held().limits().to_vec();
    rules[0].algorithm = k(500, 30);
    let other = Limit { name: "d2".into(), ..rules[0].clone() };
    rules.insert(0, other);
    domain.reload(&rules);
    let names = |index| domain.top(index).into_iter().map(|standing| standing.row.name);
    assert_eq!((names(0).count(), names(1).collect::<Vec<_>>()), (0, vec!["heavy".to_owned()]));
}

#[test]
fn newcomers_are_told_what_is_in_force_within_a_bound() {
    let domain = domain(&[h(500, 1)]);
    for (name, ms) in [(b"a", 0), (b"b", 100), (b"c", 100), (b"d", 100)] {
        domain.record_request(name, at(ms), at(ms));
    }
    let told = |now| {
        let mut all = Vec::new();
        domain.in_force(now, |name, until| {
            all.push((name.to_vec(), until.since(at(0)).0 / MS));
            true
        });
        all.sort();
        all
    };
    assert_eq!(told(at(100)).len(), 3, "there is room for three");
    assert_eq!(told(at(500)), [(b"b".to_vec(), 600), (b"c".to_vec(), 600)]);
    domain.record_request(b"d", at(10_000), at(10_000));
    assert_eq!(told(at(10_000)), [(b"d".to_vec(), 10_500)], "those that are over make room");
}

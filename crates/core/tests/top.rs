//! Compares the list of the heaviest clients with a naive one that keeps all clients.

use evenkeel_core::key::KeyHash;
use evenkeel_core::key::NAME_BYTES_MAX;
use evenkeel_core::top::{AnsweredRequest, TopClient, TopClients};
use evenkeel_core::units::{Cost, Nanos, SECOND, Time};
use proptest::prelude::*;
use std::collections::HashMap;

/// A weight may be a millisecond old, relative to the time constant of ten seconds: an error of a
/// ten-thousandth.
const WEIGHT_ERROR: f64 = 1.000_101;
const START: u64 = 1_700_000_000 * SECOND;

fn key(n: u64) -> KeyHash {
    KeyHash::from_bits(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn find(rows: &[TopClient], n: u64) -> Option<&TopClient> {
    rows.iter().find(|row| row.hash == key(n))
}

proptest! {
    #[test]
    fn whoever_has_more_than_a_part_in_capacity_is_listed_with_a_true_error(
        capacity in 1..12_usize,
        events in prop::collection::vec((0..40_u64, 0..SECOND, 0..9 * SECOND), 1..500),
    ) {
        let mut top = TopClients::new(capacity);
        let mut all: HashMap<u64, f64> = HashMap::new();
        let mut now = START;
        for (who, cost, step) in events {
            let who = who * who / 40;
            now += step;
            all.values_mut().for_each(|rate| *rate *= (-(step as f64) / 1e10).exp());
            *all.entry(who).or_default() += cost as f64 / 1e10;
            top.touch(key(who), Time(now), || who.to_string());
            top.add(key(who), Cost(cost), Nanos::ZERO, Time(now));
        }
        let rows = top.rows(Time(now));
        prop_assert!(rows.len() <= capacity);
        prop_assert!(rows.is_sorted_by(|a, b| a.cost_per_second >= b.cost_per_second));
        let sum: f64 = all.values().sum();
        for (who, rate) in &all {
            match find(&rows, *who) {
                Some(row) => {
                    prop_assert!(row.cost_per_second <= rate * WEIGHT_ERROR);
                    let most = row.cost_per_second + row.error_per_second;
                    prop_assert!(most * WEIGHT_ERROR >= *rate, "{most} {rate}");
                    prop_assert_eq!(&row.name, &who.to_string());
                }
                None => prop_assert!(*rate <= sum / capacity as f64 * WEIGHT_ERROR),
            }
        }
    }
}

#[test]
fn a_flood_of_keys_seen_once_does_not_wash_out_the_heavy_one() {
    let mut top = TopClients::new(100);
    let mut now = START;
    for i in 0..200_000 {
        now += 100_000;
        top.touch(key(1_000 + i), Time(now), || String::from("once"));
        top.add(key(1_000 + i), Cost(10_000), Nanos::ZERO, Time(now));
        if i % 1_000 == 0 {
            top.touch(key(1), Time(now), || String::from("heavy"));
        }
        // The request ends long after the flood took the place of its client.
        if i % 1_000 == 500 {
            top.add(key(1), Cost(20_000_000), Nanos::from_millis(700), Time(now));
        }
    }
    let rows = top.rows(Time(now));
    assert_eq!(rows.len(), 100);
    assert_eq!(rows[0].name, "heavy");
    assert!((rows[0].cost_per_second - 0.173).abs() < 0.01, "{}", rows[0].cost_per_second);
    assert!((rows[0].requests_per_second - 8.65).abs() < 0.5, "{}", rows[0].requests_per_second);
    assert!(rows[0].wait > Nanos::from_millis(690) && rows[0].wait <= Nanos::from_millis(700));
}

#[test]
fn who_was_pushed_out_and_comes_back_at_its_end_can_be_called_again() {
    let mut top = TopClients::new(2);
    top.touch(key(1), Time(START), || String::from("slow"));
    for i in 10..20 {
        top.touch(key(i), Time(START), || String::from("quick"));
        assert!(!top.add(key(i), Cost(1), Nanos::ZERO, Time(START)), "it has a name");
    }
    assert!(top.add(key(1), Cost(SECOND), Nanos::ZERO, Time(START)), "its name went with it");
    assert_eq!(top.name(key(1)), None);
    top.set_name(key(1), String::from("slow"));
    assert_eq!(top.name(key(1)).as_deref(), Some("slow"));
    assert!(!top.add(key(1), Cost(SECOND), Nanos::ZERO, Time(START)));
    top.set_name(key(2), String::from("who is not there"));
    assert_eq!(top.name(key(2)), None);
}

#[test]
fn rates_settle_at_what_happens_and_fade_when_it_stops() {
    let mut top = TopClients::new(10);
    let mut now = START;
    for _ in 0..200_000 {
        now += SECOND / 10;
        top.touch(key(1), Time(now), || String::from("a"));
        top.add(key(1), Cost(SECOND / 100), Nanos::ZERO, Time(now));
    }
    let row = &top.rows(Time(now))[0];
    assert!((row.requests_per_second - 10.0).abs() < 0.1, "{}", row.requests_per_second);
    assert!((row.cost_per_second - 0.1).abs() < 0.001, "{}", row.cost_per_second);
    assert_eq!(row.total, Cost(2_000 * SECOND));
    assert_eq!(row.last_seen, Time(now));
    let later = &top.rows(Time(now + 10 * SECOND))[0];
    assert!((later.cost_per_second - 0.1 / 1_f64.exp()).abs() < 0.001);
    let long_after = &top.rows(Time(now + 1_000_000 * SECOND))[0];
    assert!(long_after.cost_per_second < 1e-100);
    top.add(key(2), Cost(1), Nanos::ZERO, Time(now + 1_000_000 * SECOND));
    let rows = top.rows(Time(now + 1_000_000 * SECOND));
    assert_eq!(rows[0].hash, key(2));
}

#[test]
fn lists_of_several_threads_become_one() {
    let mut tops = [TopClients::new(3), TopClients::new(3)];
    for (n, top) in tops.iter_mut().enumerate() {
        top.add(key(1), Cost(SECOND), Nanos::from_secs(10), Time(START));
        top.touch(key(2), Time(START), || String::from("two"));
        top.add(key(2), Cost(SECOND / 4 + n as u64), Nanos::ZERO, Time(START + n as u64));
    }
    tops[1].touch(key(1), Time(START), || String::from("one"));
    assert_eq!(tops[1].name(key(1)).as_deref(), Some("one"));
    assert_eq!(tops[0].name(key(1)), None);
    let rows = TopClients::merge(tops.iter().map(|top| top.rows(Time(START + 1))).collect());
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["one", "two"]);
    assert_eq!(rows[0].total, Cost(2 * SECOND));
    assert_eq!(rows[0].wait, Nanos::from_secs(1));
    assert!((rows[0].cost_per_second - 0.2).abs() < 1e-6);
    assert_eq!(rows[1].last_seen, Time(START + 1));
}

#[test]
fn names_are_cut_between_characters() {
    let mut top = TopClients::new(0);
    top.touch(key(1), Time(START), || "ß".repeat(200) + "x");
    assert_eq!(top.len(), 1);
    assert_eq!(top.rows(Time(START))[0].name, "ß".repeat(NAME_BYTES_MAX / 2));
}

#[test]
fn many_requests_counted_at_once_are_as_many_counted_singly() {
    let (mut at_once, mut singly) = (TopClients::new(4), TopClients::new(4));
    let now = Time(START);
    at_once.count(key(1), 64, Cost::hits(64), now, || "a".to_owned());
    for _ in 0..64 {
        singly.touch(key(1), now, || "a".to_owned());
        singly.add(key(1), Cost::hits(1), Nanos::ZERO, now);
    }
    at_once.count(key(2), 1, Cost::hits(65), now, || "b".to_owned());
    let (at_once, singly) = (at_once.rows(now), singly.rows(now));
    assert_eq!(at_once[1], singly[0]);
    assert_eq!(at_once[0].name, "b", "the heaviest first");
}

/// T30 in the column "ours". Waits are averaged as in Tempomat, with a weight of a tenth for the
/// last request. Tempomat derived requests a second from gaps averaged from zero on, so two
/// requests looked like ten a second. Evenkeel's value rises from below: after the second of one
/// request each second it is a fifth of the true rate.
#[test]
fn t30_averages_come_from_below() {
    let mut top = TopClients::new(10);
    let client = KeyHash::from_bits(5);
    let mut seen = Vec::new();
    for n in 0..60 {
        let now = Time::ZERO.plus(Nanos::from_secs(1_000 + n));
        top.touch(client, now, || "1.2.3.4".into());
        top.add(client, Cost::ZERO, Nanos::from_secs(1), now);
        let row = &top.rows(now)[0];
        seen.push((row.wait.as_secs_f64(), row.requests_per_second));
    }
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 5e-4, "{found}");
    for (row, (wait, rate)) in [(0.1, 0.1), (0.19, 0.1905), (0.271, 0.2724)].iter().enumerate() {
        near(seen[row].0, *wait);
        near(seen[row].1, *rate);
    }
    assert!((seen[59].1 - 1.0).abs() < 0.06, "a minute later: {}", seen[59].1);
    assert!((seen[59].0 - 1.0).abs() < 0.01, "a minute later: {}", seen[59].0);
}

#[test]
fn the_first_of_many_are_the_same_as_of_all() {
    let mut top = TopClients::new(300);
    let now = Time(START);
    for n in 0..500 {
        let cost = Cost::hits(1 + n * 7_919 % 1_000);
        top.count(key(n), 1, cost, now, || format!("client {n}"));
    }
    let all = top.rows(now);
    for max in [0, 1, 7, 299, 300, 1_000] {
        let first = top.heaviest(max, now);
        assert_eq!(first.len(), max.min(300));
        let cost =
            |rows: &[TopClient]| rows.iter().map(|row| row.cost_per_second).collect::<Vec<_>>();
        assert_eq!(cost(&first), cost(&all[..first.len()]), "{max}");
    }
}

#[test]
fn a_client_has_the_times_and_the_usual_requests_of_its_own() {
    let mut top = TopClients::new(3);
    let second = |n: u64| Time(START + n * SECOND);
    let answer = |millis, in_debt, route| AnsweredRequest {
        took: Some(Nanos::from_millis(millis)),
        in_debt,
        usual: [key(route), key(9)],
    };
    for n in 0..9 {
        top.touch(key(1), second(n), || String::from("person"));
        // One slow answer of five is not typical.
        let slow = if n == 6 { 900 } else { 7 };
        let answer = Some(answer(slow, false, 100 + n % 2 * (n % 3)));
        top.add_answered(key(1), Cost(1), Nanos::ZERO, second(n), answer);
    }
    top.touch(key(2), second(0), || String::from("crawler"));
    top.add_answered(key(2), Cost(SECOND), Nanos::ZERO, second(8), Some(answer(4_800, true, 50)));
    // Nothing is known of its answers.
    top.add(key(3), Cost(1), Nanos::ZERO, second(8));
    let answers: HashMap<_, _> = top
        .answers(second(0), second(9))
        .map(|answer| (answer.hash, (answer.took, answer.in_debt)))
        .collect();
    let expected = HashMap::from([
        (key(1), (Nanos::from_millis(7), false)),
        (key(2), (Nanos::from_millis(4_800), true)),
    ]);
    assert_eq!(answers, expected);
    assert_eq!(top.answers(second(9), second(9)).count(), 0, "not seen since");
    let rows = TopClients::merge(vec![top.rows(second(9)), vec![]]);
    let person = find(&rows, 1).expect("listed");
    assert_eq!((person.first_seen, person.last_seen), (second(0), second(8)));
    assert_eq!(person.answered, Some(Nanos::from_millis(7)));
    assert_eq!(person.usual, [Some(key(100)), Some(key(9))]);
    assert_eq!(find(&rows, 3).map(|row| row.answered), Some(None));
}

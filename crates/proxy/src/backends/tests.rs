//! The choice by load, the effects of failures, and reloads. By the prefixes of prompts: `prompts`.

mod prompts;

use super::*;

fn three() -> UpstreamPool {
    let at = |place: &str| settings::BackendAddress::http(place);
    UpstreamPool::new(&[at("a:1"), at("b:1"), at("c:1")], &None, None, &SharedBackends::default())
}

fn chosen(backends: &UpstreamPool, now: u64) -> String {
    backends.choose(&mut TriedBackends::default(), now, false).expect("one").name.to_string()
}

#[test]
fn those_with_the_fewest_take_turns() {
    let backends = three();
    let turns: Vec<String> = (0..4).map(|_| chosen(&backends, 0)).collect();
    assert_eq!(turns, ["a:1", "b:1", "c:1", "a:1"]);
    let at_b = Rc::clone(&backends.all[1].running);
    let _at_a = Rc::clone(&backends.all[0].running);
    assert_eq!(chosen(&backends, 0), "c:1");
    assert_eq!(chosen(&backends, 0), "c:1");
    drop(at_b);
    assert_eq!(chosen(&backends, 0), "b:1");
}

#[test]
fn each_is_tried_once_for_a_request() {
    let backends = three();
    let mut tried = TriedBackends::default();
    let mut names: Vec<_> = (0..3)
        .map(|_| backends.choose(&mut tried, 0, false).expect("another").name.to_string())
        .collect();
    names.sort();
    assert_eq!(names, ["a:1", "b:1", "c:1"]);
    assert!(backends.choose(&mut tried, 0, false).is_none() && !backends.has_more(tried));
}

#[test]
fn what_asks_for_another_protocol_goes_where_one_may_follow() {
    let h2c = |place: &str| {
        let place = place.to_owned();
        settings::BackendAddress { scheme: BackendScheme::H2c, place }
    };
    let all = [h2c("a:1"), settings::BackendAddress::http("b:1"), h2c("c:1")];
    let backends = UpstreamPool::new(&all, &None, None, &SharedBackends::default());
    let switches = |now| {
        let mut tried = TriedBackends::default();
        let name = backends.choose(&mut tried, now, true).expect("one").name.to_string();
        (name, backends.choose(&mut tried, now, true).is_some())
    };
    assert_eq!(switches(0), ("b:1".to_owned(), true));
    assert_eq!(switches(0), ("b:1".to_owned(), true), "again");
    let _busy = Rc::clone(&backends.all[1].running);
    assert_eq!(switches(0), ("b:1".to_owned(), true), "though it has more to do");
    backends.all[1].note_failure(true, 0);
    assert_eq!(switches(0), ("b:1".to_owned(), true), "and though it has failed");
    assert_ne!(chosen(&backends, 0), "b:1");
}

#[test]
fn who_fails_is_left_out_for_longer_each_time_and_asked_if_all_are() {
    let backends = three();
    let first = &backends.all[0];
    first.note_failure(false, 0);
    first.note_failure(false, 0);
    assert_eq!(first.out_until(0), 0, "two may be chance");
    first.note_failure(false, 0);
    assert_eq!(first.out_until(0), 1_000);
    first.note_failure(true, 500);
    assert_eq!(first.out_until(500), 1_000, "what still ran there says nothing more");
    assert_eq!(first.out_until(1_000), 0, "it is tried again");
    let mut now = 1_000;
    for long in [2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
        first.note_failure(true, now);
        assert_eq!(first.out_until(now), now + long);
        now += long;
    }
    first.note_failure(true, now);
    assert_ne!(chosen(&backends, now), "a:1");
    backends.all[1].note_failure(true, now);
    backends.all[2].note_failure(true, now + 500);
    assert_eq!(chosen(&backends, now + 500), "b:1", "the first to come back");
    first.note_success();
    assert_eq!(first.out_until(now), 0);
    first.note_failure(true, now);
    assert_eq!(first.out_until(now), now + 1_000, "it begins anew");
}

#[test]
fn what_stays_is_kept_over_a_reload() {
    let before = three();
    let _busy = Rc::clone(&before.all[1].running);
    let at = |place: &str| settings::BackendAddress::http(place);
    let shared = SharedBackends::default();
    let after = UpstreamPool::new(&[at("b:1"), at("d:1")], &None, Some(&before), &shared);
    assert!(Rc::ptr_eq(&after.all[0], &before.all[1]));
    let retired: Vec<bool> = before.all.iter().map(|backend| backend.retired.get()).collect();
    assert_eq!(retired, [true, false, true]);
}

//! The fixed window: the rate limit service's arithmetic, and a model that keeps every hit.

use crate::second;
use evenkeel_core::bucket::AlgorithmError;
use evenkeel_core::bucket::fixed::FixedWindow;
use evenkeel_core::units::{Cost, Nanos, SECOND, Time};
use proptest::prelude::*;

fn fixed(limit: u32, seconds: u32) -> FixedWindow {
    FixedWindow::new(limit, seconds).expect("a window")
}

fn wait(fixed: &FixedWindow, state: u64, hits: u64, at: u64) -> Nanos {
    fixed.wait(state, Cost::hits(hits), second(at))
}

#[test]
fn the_hit_after_the_limit_is_over_it() {
    let fixed = fixed(20, 60);
    let mut state = 0;
    for hit in 1..=25_u32 {
        let expected = if hit > 20 { Nanos::from_secs(60 - 10) } else { Nanos::ZERO };
        assert_eq!(wait(&fixed, state, 1, 610), expected, "hit {hit}");
        state = fixed.charge(state, Cost::hits(1), second(610));
        assert_eq!(fixed.count(state, second(610)), hit, "it grows while over");
        assert_eq!(fixed.remaining(state, second(610)), 20_u32.saturating_sub(hit));
    }
    assert_eq!(fixed.count(state, second(660)), 0, "aligned to the epoch");
    assert_eq!(wait(&fixed, state, 20, 660), Nanos::ZERO);
}

#[test]
fn asking_for_nothing_is_over_only_when_the_count_is() {
    let fixed = fixed(2, 60);
    let full = fixed.charge(0, Cost::hits(2), second(600));
    assert_eq!(wait(&fixed, full, 0, 600), Nanos::ZERO);
    let over = fixed.charge(full, Cost::hits(1), second(600));
    assert_eq!(wait(&fixed, over, 0, 600), Nanos::from_secs(60));
    let none = FixedWindow::new(0, 1).expect("a limit of none");
    assert_eq!(wait(&none, 0, 0, 600), Nanos::ZERO);
    assert_eq!(wait(&none, 0, 1, 600), Nanos::from_secs(1));
}

#[test]
fn the_reset_is_whole_seconds_to_the_boundary() {
    for (seconds, now, reset) in [(60, 2222, 58), (1, 2222, 1), (60, 600, 60), (60, 659, 1)] {
        assert_eq!(fixed(1, seconds).reset_secs(second(now)), reset, "{seconds} s at {now}");
    }
    let late_in_the_second = Time(659 * SECOND + 999_999_999);
    assert_eq!(fixed(1, 60).reset_secs(late_in_the_second), 1);
}

#[test]
fn who_writes_just_after_the_boundary_was_passed_undoes_nothing() {
    let fixed = fixed(5, 60);
    let after = fixed.charge(0, Cost::hits(3), second(660));
    let before = fixed.charge(after, Cost::hits(1), second(659));
    assert_eq!(fixed.count(before, second(660)), 4);
}

#[test]
fn a_clock_set_back_begins_anew() {
    let fixed = fixed(5, 60);
    let state = fixed.charge(0, Cost::hits(9), second(7_200));
    assert_eq!((fixed.count(state, second(3_600)), fixed.worth(state, second(3_600))), (0, 0));
    let state = fixed.charge(state, Cost::hits(1), second(3_600));
    assert_eq!(fixed.count(state, second(3_600)), 1);
}

#[test]
fn a_count_stays_at_its_bound_and_over_the_largest_limit() {
    let fixed = fixed(u32::MAX, 60);
    let full = fixed.charge(0, Cost(u64::MAX), second(600));
    let full = (0..3).fold(full, |state, _| fixed.charge(state, Cost(u64::MAX), second(600)));
    assert_eq!(fixed.count(full, second(600)), u32::MAX);
    assert_eq!(wait(&fixed, full, 1, 600), Nanos::from_secs(60));
}

#[test]
fn numbers_are_checked_and_kept() {
    assert_eq!(FixedWindow::new(1, 0), Err(AlgorithmError::Window));
    let day = fixed(7, 86_400);
    assert_eq!((day.limit(), day.window()), (7, Nanos::from_secs(86_400)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn it_is_what_a_full_log_says(
        limit in 0..30_u32,
        seconds in prop_oneof![Just(1), Just(60), Just(3_600), Just(86_400), 1..100_000_u32],
        steps in prop::collection::vec((0..1_500_u64, 0..5_u64), 1..100),
    ) {
        let fixed = fixed(limit, seconds);
        let window = u64::from(seconds) * SECOND;
        let mut log: Vec<(u64, u64)> = Vec::new();
        let (mut state, mut now) = (0, 1_700_000_000 * SECOND);
        for (step, hits) in steps {
            // Steps are in thousandths of the window; some of them cross its end.
            now += if step < 1_200 { step / 12 * (window / 1_000) } else { step * window / 1_000 };
            let number = now / window;
            let before: u64 = log.iter().filter(|(w, _)| *w == number).map(|(_, n)| n).sum();
            let over = before + hits > u64::from(limit);
            let expected = if over { (number + 1) * window - now } else { 0 };
            prop_assert_eq!(fixed.wait(state, Cost::hits(hits), Time(now)).0, expected);
            state = fixed.charge(state, Cost::hits(hits), Time(now));
            log.push((number, hits));
            let after = before + hits;
            prop_assert_eq!(u64::from(fixed.count(state, Time(now))), after);
            prop_assert_eq!(fixed.worth(state, Time(now)), after);
            let remaining = u64::from(limit).saturating_sub(after);
            prop_assert_eq!(u64::from(fixed.remaining(state, Time(now))), remaining);
            let reset = u64::from(fixed.reset_secs(Time(now)));
            prop_assert_eq!((now / SECOND + reset) % u64::from(seconds), 0);
        }
    }
}

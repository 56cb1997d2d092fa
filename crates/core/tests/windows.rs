//! Counters of windows: a model that keeps every hit, and threads that count concurrently.

use evenkeel_core::key::KeyHash;
use evenkeel_core::units::{SECOND, Time};
use evenkeel_core::windows::{Hit, WindowAlgorithm, WindowCounters, WindowLength, WindowPolicy};
use proptest::prelude::*;
use std::collections::HashMap;
use std::thread;

fn at(second: u64) -> Time {
    Time(second * SECOND)
}

fn key(n: u64) -> KeyHash {
    // Spreads keys over the table as hashes are.
    KeyHash::from_bits(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn hit(n: u64, limit: u32, hits: u32, now: Time) -> Hit {
    Hit::new(key(n), WindowLength::Seconds(60).window(now), limit, hits)
}

fn count(windows: &WindowCounters, hits: &mut [Hit], policy: WindowPolicy, now: Time) {
    windows.count(hits, &mut Vec::new(), policy, now);
}

#[test]
fn hits_grow_over_the_limit_and_start_anew_in_the_next_window() {
    let windows = WindowCounters::new(10);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let mut hits = [hit(1, 2, 1, at(600))];
        count(&windows, &mut hits, WindowPolicy::default(), at(600));
        seen.push((hits[0].before, hits[0].after, hits[0].remaining(), hits[0].is_over()));
    }
    assert_eq!(seen, [(0, 1, 1, false), (1, 2, 0, false), (2, 3, 0, true), (3, 4, 0, true)]);
    let mut hits = [hit(1, 2, 0, at(660))];
    count(&windows, &mut hits, WindowPolicy::default(), at(660));
    assert_eq!(hits[0].after, 0);
}

/// The use of a snapshot: counters of every kind continue with their values, and ended windows are
/// left out.
#[test]
fn counters_that_are_put_back_count_on() {
    let kinds = [WindowAlgorithm::Fixed, WindowAlgorithm::Sliding, WindowAlgorithm::Bucket];
    let ask = |windows: &WindowCounters, now: Time| {
        let numbered = kinds.into_iter().zip(1..);
        let mut hits: Vec<Hit> =
            numbered.map(|(algorithm, n)| Hit { algorithm, ..hit(n, 9, 2, now) }).collect();
        count(windows, &mut hits, WindowPolicy::default(), now);
        hits.iter().map(|hit| hit.after).collect::<Vec<_>>()
    };
    let before = WindowCounters::new(10);
    assert_eq!(ask(&before, at(600)), [2, 2, 2]);
    assert_eq!(ask(&before, at(601)), [4, 4, 4]);
    let kept = |now| {
        let mut words = Vec::new();
        before.for_each(now, |key, word| words.push((key, word)));
        words
    };
    let words = kept(at(602));
    assert_eq!(words.len(), 3);
    let after = WindowCounters::new(10);
    assert!(words.iter().all(|(key, word)| after.restore(*key, *word, at(602))));
    assert_eq!(ask(&after, at(602)), ask(&before, at(602)));
    // The fixed window has ended; the sliding one still affects the next window.
    assert_eq!(kept(at(660)).len(), 1);
    let later = WindowCounters::new(10);
    let restored = words.iter().filter(|(key, word)| later.restore(*key, *word, at(660))).count();
    assert_eq!((restored, ask(&later, at(660))), (1, vec![2, 6, 2]));
}

#[test]
fn who_writes_just_after_the_boundary_was_passed_undoes_nothing() {
    let windows = WindowCounters::new(10);
    for (now, after) in [(660, 1), (659, 2), (660, 3)] {
        let mut hits = [hit(1, 9, 1, at(now))];
        count(&windows, &mut hits, WindowPolicy::default(), at(now));
        assert_eq!(hits[0].after, after, "{now}");
    }
    let mut hits = [hit(1, 9, 1, at(60))];
    count(&windows, &mut hits, WindowPolicy::default(), at(60));
    assert_eq!(hits[0].after, 1, "the clock was set back, and what is far ahead is void");
}

#[test]
fn with_a_stop_only_what_would_go_over_is_counted() {
    let windows = WindowCounters::new(10);
    let policy = WindowPolicy { stop_when_over: true, spare_over: false };
    let mut seen = Vec::new();
    for _ in 0..5 {
        let mut hits = [hit(1, 5, 1, at(0)), hit(2, 2, 1, at(0))];
        count(&windows, &mut hits, policy, at(0));
        seen.push((hits[0].remaining(), hits[1].after));
    }
    assert_eq!(seen, [(4, 1), (3, 2), (3, 3), (3, 4), (3, 5)]);
}

#[test]
fn what_is_spared_is_over_and_grows_no_more() {
    let windows = WindowCounters::new(10);
    let policy = WindowPolicy { stop_when_over: false, spare_over: true };
    for look in [(1, 1, false), (1, 1, true), (0, 1, true), (1, 1, true)] {
        let mut hits = [hit(1, 0, look.0, at(0)), hit(2, 9, 1, at(0))];
        count(&windows, &mut hits, policy, at(0));
        assert_eq!((hits[0].after, hits[0].spared), (look.1, look.2));
        assert!(hits[0].is_over());
    }
    let mut hits = [hit(2, 9, 0, at(0))];
    count(&windows, &mut hits, policy, at(0));
    assert_eq!(hits[0].after, 4, "the others are counted");
    let both = WindowPolicy { stop_when_over: true, spare_over: true };
    let mut hits = [hit(1, 0, 1, at(0)), hit(2, 9, 1, at(0)), hit(3, 0, 1, at(0))];
    count(&windows, &mut hits, both, at(0));
    assert_eq!([hits[0].after, hits[1].after, hits[2].after], [1, 4, 0], "nothing is counted");
}

#[test]
fn ended_windows_make_room_and_then_those_with_the_fewest_hits() {
    let windows = WindowCounters::new(4);
    for (n, hits) in [(1, 5), (2, 1), (3, 9), (4, 2)] {
        count(&windows, &mut [hit(n, 9, hits, at(0))], WindowPolicy::default(), at(0));
    }
    count(&windows, &mut [hit(5, 9, 1, at(0))], WindowPolicy::default(), at(0));
    let look = |n| {
        let mut hits = [hit(n, 9, 0, at(0))];
        count(&windows, &mut hits, WindowPolicy::default(), at(0));
        hits[0].after
    };
    assert_eq!([1, 2, 3, 4, 5].map(look), [5, 0, 9, 2, 1]);
    assert_eq!(windows.table().dropped(), 1);
}

fn one(windows: &WindowCounters, algorithm: WindowAlgorithm, hits: u32, now: u64) -> (u32, bool) {
    let mut hits = [Hit { algorithm, ..hit(1, 10, hits, at(now)) }];
    count(windows, &mut hits, WindowPolicy::default(), at(now));
    (hits[0].remaining(), hits[0].is_over())
}

#[test]
fn a_sliding_window_lets_no_second_burst_pass_at_the_boundary() {
    let windows = WindowCounters::new(10);
    assert_eq!(one(&windows, WindowAlgorithm::Sliding, 10, 659), (0, false));
    assert_eq!(
        one(&windows, WindowAlgorithm::Sliding, 1, 660),
        (0, true),
        "all of them still reach in"
    );
    assert_eq!(one(&windows, WindowAlgorithm::Sliding, 5, 690), (0, false), "half of them do");
    assert_eq!(one(&windows, WindowAlgorithm::Sliding, 1, 690), (0, true));
    assert_eq!(
        one(&windows, WindowAlgorithm::Sliding, 0, 719),
        (4, false),
        "one sixtieth, and the five"
    );
    assert_eq!(one(&windows, WindowAlgorithm::Sliding, 0, 720), (5, false));
    assert_eq!(one(&windows, WindowAlgorithm::Sliding, 0, 780), (10, false), "and then none");
}

#[test]
fn a_bucket_is_refilled_evenly_and_refusals_cost_nothing() {
    let windows = WindowCounters::new(10);
    assert_eq!(one(&windows, WindowAlgorithm::Bucket, 10, 600), (0, false));
    for _ in 0..5 {
        assert_eq!(one(&windows, WindowAlgorithm::Bucket, 1, 600), (0, true));
    }
    assert_eq!(
        one(&windows, WindowAlgorithm::Bucket, 1, 605),
        (0, true),
        "one comes back every 6 s"
    );
    assert_eq!(one(&windows, WindowAlgorithm::Bucket, 1, 606), (0, false));
    assert_eq!(one(&windows, WindowAlgorithm::Bucket, 0, 636), (5, false));
    assert_eq!(one(&windows, WindowAlgorithm::Bucket, 6, 636), (0, true), "all or nothing");
    assert_eq!(one(&windows, WindowAlgorithm::Bucket, 5, 636), (0, false));
    let mut back =
        [Hit { algorithm: WindowAlgorithm::Bucket, give_back: true, ..hit(1, 10, 3, at(636)) }];
    count(&windows, &mut back, WindowPolicy::default(), at(636));
    assert_eq!(one(&windows, WindowAlgorithm::Bucket, 0, 636), (3, false));
    assert_eq!(one(&windows, WindowAlgorithm::Bucket, 0, 9_999), (10, false));
    let mut none = [Hit { algorithm: WindowAlgorithm::Bucket, ..hit(2, 0, 1, at(0)) }];
    count(&windows, &mut none, WindowPolicy::default(), at(0));
    assert!(none[0].is_over(), "a limit of none");
}

#[test]
fn the_end_of_a_window_may_lie_beyond_2106() {
    let windows = WindowCounters::new(10);
    for now in [(1_u64 << 31) - 30, (1 << 31) + 30, (1 << 32) - 100] {
        let hits = |amount| {
            let mut hits = [hit(1, 9, amount, at(now))];
            count(&windows, &mut hits, WindowPolicy::default(), at(now));
            hits[0].after
        };
        assert_eq!((hits(2), hits(1), hits(0)), (2, 3, 3), "{now}");
    }
}

proptest! {
    /// In any window of time less than twice the limit passes. A bucket is full at first, and a
    /// sliding window assumes that the hits of the previous window were evenly distributed.
    #[test]
    fn no_window_anywhere_has_more_than_twice_its_limit(
        steps in proptest::collection::vec((0_u64..20, 1_u32..4), 1..200),
    ) {
        for algorithm in [WindowAlgorithm::Sliding, WindowAlgorithm::Bucket] {
            let windows = WindowCounters::new(10);
            let mut passed: Vec<(u64, u32)> = Vec::new();
            let mut now = 600;
            for (wait, amount) in &steps {
                now += wait;
                if !one(&windows, algorithm, *amount, now).1 {
                    passed.push((now, *amount));
                }
                let window = passed.iter().filter(|(at, _)| at + 60 > now);
                prop_assert!(window.map(|(_, amount)| amount).sum::<u32>() < 20);
            }
            prop_assert!(!passed.is_empty());
        }
    }

    #[test]
    fn counts_as_a_model_that_keeps_every_hit(
        requests in proptest::collection::vec(
            (0_u64..200, proptest::collection::vec((0_u64..6, 0_u32..4, any::<bool>()), 1..6)),
            1..60,
        ),
        keys_max in prop::sample::select(vec![100_usize, 5_000]),
    ) {
        let windows = WindowCounters::new(keys_max);
        let mut model: HashMap<(u64, u64), u32> = HashMap::new();
        let mut sets = Vec::new();
        let mut now = 0;
        for (wait, asked) in requests {
            now += wait / 4;
            let mut hits: Vec<Hit> = asked.iter().map(|(n, hits, back)| {
                Hit { give_back: *back, ..hit(*n, 3, *hits, at(now)) }
            }).collect();
            windows.count(&mut hits, &mut sets, WindowPolicy::default(), at(now));
            for ((n, amount, back), hit) in asked.iter().zip(&hits) {
                let count = model.entry((*n, now / 60)).or_default();
                prop_assert_eq!(hit.before, *count);
                *count = if *back { count.saturating_sub(*amount) } else { *count + *amount };
                prop_assert_eq!(hit.after, *count);
            }
        }
    }
}

/// All counters of a request change together: concurrent readers see equal counts.
#[test]
fn threads_lose_no_hit_and_never_see_half_a_request() {
    const ROUNDS: u32 = 2_000;
    for keys_max in [64, 5_000] {
        let windows = WindowCounters::new(keys_max);
        let request = |hits: u32| [1, 2, 3].map(|n| hit(n, u32::MAX, hits, at(0)));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut sets = Vec::new();
                    for _ in 0..ROUNDS {
                        let mut hits = request(1);
                        windows.count(&mut hits, &mut sets, WindowPolicy::default(), at(0));
                        assert_eq!(hits[0].after, hits[1].after);
                        assert_eq!(hits[0].after, hits[2].after);
                    }
                });
            }
        });
        let mut hits = request(0);
        count(&windows, &mut hits, WindowPolicy::default(), at(0));
        assert_eq!(hits.map(|hit| hit.after), [4 * ROUNDS; 3]);
    }
}

/// A counter continues from the value that a store returns, whatever was counted locally.
#[test]
fn counters_stand_where_they_are_told_to() {
    for algorithm in [WindowAlgorithm::Fixed, WindowAlgorithm::Sliding, WindowAlgorithm::Bucket] {
        let windows = WindowCounters::new(10);
        let ask = |hits: u32, now: Time| {
            let mut one = [Hit { algorithm, ..hit(1, 9, hits, now) }];
            count(&windows, &mut one, WindowPolicy::default(), now);
            one[0]
        };
        ask(3, at(590));
        ask(2, at(605));
        let said = Hit { algorithm, before: 4, after: 5, ..hit(1, 9, 1, at(606)) };
        windows.learn(&said, at(606));
        assert_eq!(ask(0, at(606)).before, 5, "{algorithm:?}");
        assert_eq!(ask(4, at(606)).after, 9, "{algorithm:?}");
        // Refused by the store: a fixed window counts the hits nevertheless, the others do not.
        let over = Hit { algorithm, before: 7, after: 10, ..hit(1, 9, 3, at(606)) };
        windows.learn(&over, at(606));
        let stands = if algorithm == WindowAlgorithm::Fixed { 10 } else { 7 };
        assert_eq!(ask(0, at(606)).before, stands, "{algorithm:?}");
    }
}

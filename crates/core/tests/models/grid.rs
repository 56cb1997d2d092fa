//! The grid: the table of docs/spec/dthrottle.md line by line, its single cases, and a naive bucket
//! that adds tokens step by step.

use crate::at;
use evenkeel_core::bucket::grid::GridBucket;
use evenkeel_core::units::{Nanos, Time};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn grid(rate: &str, burst: u64) -> GridBucket {
    GridBucket::new(rate.parse().expect("a pace"), burst)
}

/// One instance with the buckets of the original system, where a refused request is not counted.
struct Node {
    grid: GridBucket,
    buckets: BTreeMap<&'static str, Time>,
    served: BTreeMap<&'static str, u64>,
}

impl Node {
    fn new(rate: &str, burst: u64) -> Node {
        Node { grid: grid(rate, burst), buckets: BTreeMap::new(), served: BTreeMap::new() }
    }

    fn bucket(&mut self, tag: &'static str) -> &mut Time {
        self.buckets.entry(tag).or_insert(Time::ZERO)
    }

    fn ask(&mut self, tag: &'static str, seconds: f64) -> bool {
        let (grid, now) = (self.grid, at(seconds));
        let bucket = self.bucket(tag);
        let ok = grid.wait(*bucket, 1, now) == Nanos::ZERO;
        if ok {
            *bucket = grid.charge(*bucket, 1, now);
            *self.served.entry(tag).or_default() += 1;
        }
        ok
    }

    fn report(&mut self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut self.served)
    }

    fn hear(&mut self, report: &BTreeMap<&'static str, u64>, seconds: f64) {
        let grid = self.grid;
        for (tag, hits) in report {
            let bucket = self.bucket(tag);
            *bucket = grid.charge(*bucket, *hits, at(seconds));
        }
    }

    fn level(&mut self, tag: &'static str, seconds: f64) -> i64 {
        let grid = self.grid;
        grid.level(*self.bucket(tag), at(seconds))
    }
}

fn levels(nodes: &mut [Node; 2], seconds: f64) -> (i64, i64) {
    (nodes[0].level("C", seconds), nodes[1].level("C", seconds))
}

#[test]
fn d1_d2_d3_d7_the_example_of_the_original_value_for_value() {
    let mut nodes = [Node::new("1/s", 10), Node::new("1/s", 10)];
    assert_eq!(levels(&mut nodes, 0.0), (10, 10));
    assert!((0..9).all(|_| nodes[0].ask("C", 0.1)));
    assert!((0..8).all(|_| nodes[1].ask("C", 0.1)));
    assert_eq!(levels(&mut nodes, 0.1), (1, 2));
    assert_eq!((nodes[0].ask("C", 0.2), nodes[0].ask("C", 0.2)), (true, false));
    assert_eq!(levels(&mut nodes, 0.2), (0, 2));
    let (a, b) = (nodes[0].report(), nodes[1].report());
    assert_eq!((a["C"], b["C"]), (10, 8), "who was refused is not reported");
    nodes[0].hear(&b, 5.1);
    nodes[1].hear(&a, 5.1);
    assert_eq!(levels(&mut nodes, 5.1), (-3, -3));
    assert_eq!((nodes[0].ask("C", 5.2), nodes[1].ask("C", 5.2)), (false, false));
    for (seconds, level) in [(5.2, -3), (6.0, -2), (7.0, -1), (8.0, 0), (9.0, 1)] {
        assert_eq!(levels(&mut nodes, seconds), (level, level), "at {seconds}");
    }
    assert!(!nodes[0].ask("C", 8.9));
    assert!(nodes[0].ask("C", 9.0));
    assert_eq!(nodes[0].level("C", 9.0), 0);
    assert_eq!(nodes[0].report().get("C"), Some(&1));
    assert!(nodes[1].report().is_empty(), "nothing served, nothing to say");
}

#[test]
fn d4_a_tag_known_from_a_report_alone_begins_full() {
    let mut node = Node::new("1/s", 10);
    node.hear(&BTreeMap::from([("X", 4)]), 0.5);
    assert_eq!(node.level("X", 0.5), 6);
}

#[test]
fn d8_nothing_is_saved_up_beyond_the_burst() {
    let mut node = Node::new("1/s", 10);
    assert!(node.ask("C", 0.1));
    assert_eq!(node.level("C", 3_600.0), 10);
    assert_eq!((0..20).filter(|_| node.ask("C", 3_600.0)).count(), 10);
}

#[test]
fn d9_three_bursts_at_once_are_paid_back() {
    let mut nodes = [(); 3].map(|()| Node::new("1/s", 10));
    assert!(nodes.iter_mut().all(|node| (0..10).all(|_| node.ask("C", 0.1))));
    let reports = nodes.each_mut().map(Node::report);
    for (here, node) in nodes.iter_mut().enumerate() {
        for (there, report) in reports.iter().enumerate() {
            if here != there {
                node.hear(report, 0.2);
            }
        }
        assert_eq!(node.level("C", 0.2), -20);
        assert!(!node.ask("C", 20.9), "twenty seconds of refill, and not one token yet");
        assert!(node.ask("C", 21.0));
    }
}

#[test]
fn d22_half_a_token_a_second_is_one_on_each_even_second() {
    let mut node = Node::new("0.5/s", 1);
    let served: Vec<u32> = (0..100).filter(|n| node.ask("C", f64::from(*n) / 10.0)).collect();
    assert_eq!(served, [0, 20, 40, 60, 80]);
}

/// A model that keeps a level and the last step, and recalculates `floor(t * rate)` for every
/// result in 128-bit numbers.
struct Naive {
    tokens: u128,
    period: u128,
    burst: i128,
    level: i128,
    last: u128,
}

impl Naive {
    fn refill(&mut self, now: Time) {
        let step = u128::from(now.0) * self.tokens / self.period;
        self.level = (self.level + (step - self.last) as i128).min(self.burst.max(self.level));
        self.last = step;
    }
}

proptest! {
    #[test]
    fn as_the_naive_one(
        tokens in 1..1_000_u64,
        period in prop_oneof![Just(1_u64), Just(60), Just(7), Just(86_400)],
        burst in 1..50_u64,
        events in prop::collection::vec((0..3_000_000_000_u64, 0..8_u64, any::<bool>()), 1..100),
    ) {
        let pace = format!("{tokens} per {period}s");
        let grid = grid(&pace, burst);
        let mut now = Time(1_700_000_000_000_000_000);
        let wide = u128::from(period) * 1_000_000_000;
        let step = u128::from(now.0) * u128::from(tokens) / wide;
        let mut naive = Naive {
            tokens: tokens.into(), period: wide, burst: burst.into(), level: burst.into(),
            last: step,
        };
        let mut state = Time::ZERO;
        for (later, hits, heard) in events {
            now = now.plus(Nanos(later));
            naive.refill(now);
            prop_assert_eq!(i128::from(grid.level(state, now)), naive.level);
            let wait = grid.wait(state, hits, now);
            prop_assert_eq!(wait == Nanos::ZERO, naive.level >= hits.into());
            if wait > Nanos::ZERO && hits <= burst {
                prop_assert!(grid.wait(state, hits, now.plus(wait)) == Nanos::ZERO);
                prop_assert!(grid.wait(state, hits, now.plus(wait).minus(Nanos(1))) > Nanos::ZERO);
            }
            if heard || wait == Nanos::ZERO {
                state = grid.charge(state, hits, now);
                naive.level -= i128::from(hits);
            }
        }
    }
}

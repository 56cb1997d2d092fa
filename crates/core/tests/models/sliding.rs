//! The sliding window: Stonehenge's cases, and a model that keeps every charge.

use crate::{second, secs};
use evenkeel_core::bucket::AlgorithmError;
use evenkeel_core::bucket::sliding::{SlidingWindow, WINDOW_MAX};
use evenkeel_core::units::{Cost, Nanos, SECOND, Time};
use proptest::prelude::*;

/// A cost in hundredths of a CPU-second.
const fn cs(hundredths: u64) -> Cost {
    Cost(hundredths * SECOND / 100)
}

/// A host under a limit of 7 % of a CPU over 15 seconds.
struct Host {
    sliding: SlidingWindow,
    state: Vec<u64>,
}

impl Host {
    fn new() -> Host {
        let sliding = SlidingWindow::new(Nanos::from_secs(15), cs(105)).expect("a window");
        Host { sliding, state: vec![0; sliding.words()] }
    }

    /// Records a cost at a second. Returns whether this starts a block.
    fn record(&mut self, at: u64, hundredths: u64) -> bool {
        self.sliding.record(&mut self.state, cs(hundredths), second(at))
    }

    fn sum(&self, at: u64) -> Cost {
        self.sliding.sum(&self.state, second(at))
    }

    /// Seconds until the end of the block.
    fn blocked(&self, at: u64) -> u64 {
        self.sliding.wait(&self.state, second(at)).0 / SECOND
    }
}

/// A host that is blocked at 109, as in P1 and P2.
fn blocked_at_109() -> Host {
    let mut host = Host::new();
    for (at, cost, sum) in [(100, 40, 40), (104, 40, 80), (108, 24, 104)] {
        assert!(!host.record(at, cost), "P1 at {at}");
        assert_eq!(host.sum(at), cs(sum), "P1 at {at}");
        assert_eq!(host.blocked(at), 0, "P1 at {at}");
    }
    assert!(host.record(109, 1), "P2: the notice");
    host
}

#[test]
fn p1_p2_the_sum_that_is_reached_blocks() {
    let host = blocked_at_109();
    assert_eq!(host.sum(109), cs(105));
    assert_eq!(host.blocked(109), 15);
}

#[test]
fn p3_p4_a_block_is_not_extended_and_what_it_refuses_is_recorded() {
    let mut host = blocked_at_109();
    for at in 110..=123 {
        assert_eq!(host.blocked(at), 124 - at, "P3 at {at}");
        assert!(!host.record(at, 1), "P3 at {at}: no second notice");
    }
    assert_eq!(host.blocked(124), 0, "P4");
    assert_eq!(host.sum(124), cs(15), "P4: the window begins at 109");
}

#[test]
fn p5_who_comes_back_to_the_second_is_blocked_again() {
    let mut host = Host::new();
    assert!(host.record(100, 200));
    assert_eq!((host.blocked(114), host.blocked(115)), (1, 0));
    assert!(host.record(115, 1), "the second 100 is still inside");
    assert_eq!(host.blocked(116), 14);

    let mut later = Host::new();
    assert!(later.record(100, 200));
    assert!(!later.record(116, 1));
    assert_eq!((later.sum(116), later.blocked(116)), (cs(1), 0));
}

#[test]
fn p6_both_ends_of_the_window_count() {
    for (silence, blocks) in [(15, true), (16, false)] {
        let mut host = Host::new();
        assert!(!host.record(100, 104));
        assert_eq!(host.record(100 + silence, 104), blocks, "after {silence} s");
    }
}

#[test]
fn p9_what_ends_during_a_block_is_only_recorded() {
    let mut host = blocked_at_109();
    assert!(!host.record(112, 50));
    assert_eq!((host.sum(112), host.blocked(112)), (cs(155), 12));
}

#[test]
fn p10_an_idle_host_equals_an_absent_one() {
    let host = blocked_at_109();
    assert_eq!(host.sliding.worth(&host.state, second(109)), cs(105).0);
    assert!(host.sliding.worth(&host.state, second(124)) > 0);
    assert_eq!(host.sliding.worth(&host.state, second(125)), 0);
    assert_eq!(host.sliding.worth(&host.state, second(469)), 0);
}

#[test]
fn p12_hosts_have_sums_of_their_own() {
    let blocked = blocked_at_109();
    let other = Host::new();
    assert_eq!((blocked.blocked(110), other.blocked(110)), (14, 0));
    assert_eq!(other.sum(110), Cost::ZERO);
}

#[test]
fn requests_that_cost_nothing_do_no_harm() {
    let mut host = Host::new();
    (100..1_000).for_each(|at| assert!(!host.record(at, 0)));
    assert_eq!(host.sliding.worth(&host.state, second(1_000)), 0);
}

#[test]
fn a_clock_that_goes_back_a_little_blocks_no_longer_than_the_window() {
    let host = blocked_at_109();
    assert_eq!(host.blocked(107), 15);
    assert_eq!(host.sum(107), cs(105));
}

#[test]
fn a_clock_that_was_wrong_by_years_is_forgotten() {
    let mut host = Host::new();
    assert!(host.record(4_000_000_000, 200));
    assert_eq!((host.blocked(100), host.sum(100)), (0, Cost::ZERO));
    assert!(!host.record(100, 104));
    assert_eq!(host.sum(100), cs(104));
}

#[test]
fn windows_are_checked() {
    let one = Cost(1);
    for window in [Nanos::ZERO, Nanos(1), secs(0.5), secs(1.5), WINDOW_MAX.plus(secs(1.0))] {
        assert_eq!(SlidingWindow::new(window, one), Err(AlgorithmError::Window), "{window:?}");
    }
    assert_eq!(SlidingWindow::new(secs(15.0), Cost::ZERO), Err(AlgorithmError::Max));
    for (window, words) in [(1, 4), (15, 18), (60, 63), (61, 63), (86_400, 63)] {
        let sliding = SlidingWindow::new(Nanos::from_secs(window), one).expect("a window");
        assert_eq!(sliding.words(), words, "{window} s");
        assert_eq!((sliding.window(), sliding.max()), (Nanos::from_secs(window), one));
    }
    assert!(SlidingWindow::new(WINDOW_MAX, one).is_ok());
}

/// A model that keeps every charge and adds them up for each result.
struct Log {
    window: u64,
    /// Times are truncated to multiples of this.
    part: u64,
    max: u64,
    charges: Vec<(u64, u64)>,
    block: Option<u64>,
}

impl Log {
    fn new(window: u64, max: u64) -> Log {
        let part = if window <= 60 { SECOND } else { (window * SECOND).div_ceil(60) };
        Log { window: window * SECOND, part, max, charges: Vec::new(), block: None }
    }

    /// The clock of a bucket never moves back.
    fn clock(&self, now: u64) -> u64 {
        self.charges.iter().map(|(at, _)| *at).max().unwrap_or(0).max(now)
    }

    fn sum(&self, now: u64) -> u64 {
        let newest = self.clock(now) / self.part;
        let cuts = (self.window / SECOND).min(60);
        let inside = self.charges.iter().filter(|(at, _)| at / self.part + cuts >= newest);
        inside.map(|(_, cost)| cost).sum()
    }

    fn wait(&self, now: u64) -> u64 {
        let end = self.block.map_or(0, |start| start + self.window);
        end.saturating_sub(now).min(self.window)
    }

    fn record(&mut self, cost: u64, now: u64) -> bool {
        self.charges.push((self.clock(now), cost));
        if self.wait(now) > 0 {
            return false;
        }
        let starts = self.sum(now) >= self.max;
        self.block = starts.then_some(now);
        starts
    }
}

/// Movements of the clock in thousandths of the window (some of them back), each with a cost.
fn steps() -> impl Strategy<Value = Vec<(i64, u64)>> {
    let step = prop_oneof![
        2 => Just(0_i64),
        6 => 0..100_i64,
        2 => 0..1_200_i64,
        1 => -30..0_i64,
    ];
    let cost = prop_oneof![1 => Just(0_u64), 4 => 0..200_u64];
    prop::collection::vec((step, cost), 1..120)
}

fn windows() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 1..=60_u64, 1 => 61..5_000_u64, 1 => Just(86_400)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn it_is_what_a_full_log_says(
        window in windows(), max in 1..1_500_u64, steps in steps(), fraction in 0..SECOND,
    ) {
        let sliding = SlidingWindow::new(Nanos::from_secs(window), Cost(max)).expect("a window");
        let mut state = vec![0; sliding.words()];
        let mut log = Log::new(window, max);
        let mut now = 1_700_000_000 * SECOND + fraction;
        for (step, cost) in steps {
            now = now.saturating_add_signed(step * (window * SECOND / 1_000) as i64);
            prop_assert_eq!(sliding.wait(&state, Time(now)).0, log.wait(now));
            let started = sliding.record(&mut state, Cost(cost), Time(now));
            prop_assert_eq!(started, log.record(cost, now));
            prop_assert_eq!(sliding.sum(&state, Time(now)).0, log.sum(now));
            prop_assert_eq!(sliding.wait(&state, Time(now)).0, log.wait(now));
            let worth = sliding.worth(&state, Time(now));
            prop_assert_eq!(worth == 0, log.sum(now) == 0 && log.wait(now) == 0);
        }
    }

    /// A client is never blocked if its charges within any window and a part stay below `max`.
    #[test]
    fn nobody_below_the_limit_is_blocked(window in windows(), steps in steps()) {
        let total: u64 = steps.iter().map(|(_, cost)| cost).sum();
        let length = Nanos::from_secs(window);
        let sliding = SlidingWindow::new(length, Cost(total + 1)).expect("a window");
        let mut state = vec![0; sliding.words()];
        let mut now = second(1_700_000_000);
        for (step, cost) in steps {
            now = now.plus(Nanos(step.unsigned_abs() * (window * SECOND / 1_000)));
            prop_assert!(!sliding.record(&mut state, Cost(cost), now));
        }
    }
}

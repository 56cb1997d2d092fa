//! The history: Smockron's cases with a gatekeeper that learns of every decision at once, and a
//! model that keeps every request.

use evenkeel_core::bucket::AlgorithmError;
use evenkeel_core::bucket::history::{BURST_MAX, RequestHistory};
use evenkeel_core::units::{Cost, Nanos, Rate, Time};
use proptest::prelude::*;

/// The start of the cases, in milliseconds since the epoch.
const START_MILLIS: u64 = 1_795_206_188_293;

fn history(interval_ms: u64, burst: usize) -> RequestHistory {
    RequestHistory::new(burst, Nanos::from_millis(interval_ms)).expect("a history")
}

/// The decision of a gatekeeper on a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Accepted,
    /// Delayed until this number of milliseconds after the start.
    Delayed(u64),
    Rejected,
}
use Answer::{Accepted, Delayed, Rejected};

/// A gatekeeper that rejects requests that would wait for more than five seconds.
struct Gate {
    history: RequestHistory,
    state: Vec<u64>,
}

impl Gate {
    fn new(history: RequestHistory) -> Gate {
        Gate { history, state: vec![0; history.words()] }
    }

    fn request(&mut self, at_ms: u64) -> Answer {
        let now = ms(at_ms);
        let wait = self.history.wait(&self.state, now);
        if wait > Nanos::from_millis(5_000) {
            return Rejected;
        }
        self.history.record(&mut self.state, now.plus(wait), now);
        if wait == Nanos::ZERO { Accepted } else { Delayed(at_ms + wait.0 / 1_000_000) }
    }

    fn requests(&mut self, at_ms: &[u64]) -> Vec<Answer> {
        at_ms.iter().map(|at| self.request(*at)).collect()
    }

    /// The time until which the next request is delayed.
    fn until(&self) -> Time {
        Time(self.state[0])
    }
}

/// The point in time `after` milliseconds after the start.
fn ms(after: u64) -> Time {
    Time(Nanos::from_millis(START_MILLIS + after).0)
}

#[test]
fn s1_s10_delays_are_recorded_at_the_time_delayed_to() {
    let mut gate = Gate::new(history(500, 3));
    let answers = gate.requests(&[0, 20, 40, 60, 80, 100, 120, 140, 3_000, 6_000]);
    let delayed = [540, 1_040, 1_540, 2_040, 2_540, 3_040].map(Delayed);
    assert_eq!(answers[..3], [Accepted; 3]);
    assert_eq!(answers[3..9], delayed);
    assert_eq!(answers[9], Accepted);
}

#[test]
fn s3_what_would_wait_too_long_is_rejected() {
    let mut gate = Gate::new(history(1_000, 10));
    let times: Vec<u64> = (0..20).map(|nth| nth * 10).collect();
    let answers = gate.requests(&times);
    assert_eq!(answers[..10], [Accepted; 10]);
    assert_eq!(answers[10..15], [1_090, 2_090, 3_090, 4_090, 5_090].map(Delayed));
    assert_eq!(answers[15..], [Rejected; 5]);
}

#[test]
fn s5_steady_traffic_at_the_rate_passes() {
    let mut gate = Gate::new(history(500, 3));
    assert_eq!(gate.requests(&[0, 500]), [Accepted; 2]);
    assert_eq!(gate.until(), Time::ZERO);
    assert_eq!(gate.request(1_000), Accepted);
    assert_eq!(gate.until(), ms(1_500));
    assert_eq!(gate.request(1_500), Accepted);
    assert_eq!(gate.until(), ms(2_000));
}

#[test]
fn s6_what_was_let_in_too_much_is_not_paid_back() {
    let mut gate = Gate::new(history(500, 3));
    for _ in 0..6 {
        gate.history.record(&mut gate.state, ms(0), ms(0));
    }
    assert_eq!(gate.until(), ms(500));
}

#[test]
fn s8_a_delay_is_never_shortened() {
    let mut gate = Gate::new(history(500, 2));
    gate.history.record(&mut gate.state, ms(1_500), ms(1_000));
    gate.history.record(&mut gate.state, ms(1_500), ms(1_000));
    assert_eq!(gate.until(), ms(2_000));
    gate.history.record(&mut gate.state, ms(900), ms(1_000));
    assert_eq!(gate.until(), ms(2_000));
}

#[test]
fn s25_requests_released_together_leave_one_interval_behind_them() {
    let mut gate = Gate::new(history(500, 3));
    gate.requests(&[0, 0, 0]);
    for _ in 0..4 {
        gate.history.record(&mut gate.state, ms(500), ms(100));
    }
    assert_eq!(gate.until(), ms(1_000));
}

#[test]
fn a_late_message_does_not_take_the_place_of_a_newer_one() {
    let mut gate = Gate::new(history(500, 2));
    for (at, now) in [(1_000, 1_000), (1_400, 1_400), (600, 1_500), (100, 1_900)] {
        gate.history.record(&mut gate.state, ms(at), ms(now));
    }
    assert_eq!(gate.until(), ms(2_400));
}

#[test]
fn two_requests_at_the_same_time_count_twice() {
    let mut gate = Gate::new(history(500, 2));
    assert_eq!(gate.requests(&[0, 0, 0]), [Accepted, Accepted, Delayed(500)]);
}

#[test]
fn a_client_that_stays_away_begins_anew() {
    let mut gate = Gate::new(history(500, 3));
    assert_eq!(gate.requests(&[0, 0, 0]), [Accepted; 3]);
    assert!(gate.history.worth(&gate.state, ms(1_500)) > 0);
    assert_eq!(gate.history.worth(&gate.state, ms(1_501)), 0);
    assert_eq!(gate.requests(&[1_501, 1_501, 1_501]), [Accepted; 3]);
}

#[test]
fn numbers_are_checked_and_kept() {
    let second = Nanos::from_secs(1);
    for burst in [0, BURST_MAX + 1] {
        assert_eq!(RequestHistory::new(burst, second), Err(AlgorithmError::Burst));
    }
    for interval in [Nanos::ZERO, Nanos(u64::MAX)] {
        assert_eq!(RequestHistory::new(2, interval), Err(AlgorithmError::Interval));
    }
    let widest = RequestHistory::new(BURST_MAX, second).expect("a history");
    assert_eq!((widest.burst(), widest.interval()), (BURST_MAX, second));
    assert!(widest.words() <= evenkeel_core::bucket::STATE_WORDS_MAX);
    let fast = "5000/s".parse::<Rate>().expect("a rate").time_for(Cost::hits(1));
    assert_eq!(RequestHistory::new(10, fast).map(|h| h.interval()), Ok(Nanos(200_000)));
}

/// Processes all requests, each with its decision time, and returns the delay after them.
fn naive(history: &RequestHistory, requests: &[(u64, u64)]) -> u64 {
    let window = history.interval().0 * history.burst() as u64;
    let (mut kept, mut until): (Vec<u64>, u64) = (Vec::new(), 0);
    for (at, now) in requests {
        kept.push(*at);
        kept.sort_unstable();
        kept.drain(..kept.len().saturating_sub(history.burst()));
        kept.retain(|time| time + window >= *now);
        if kept.len() == history.burst() {
            until = until.max(kept[kept.len() - 1].max(*now) + history.interval().0);
        }
    }
    until
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// With delayed, late and simultaneous requests, whether or not the gate obeys.
    #[test]
    fn it_is_what_a_full_log_says(
        burst in 1..=BURST_MAX,
        interval in 1..1_000_u64,
        steps in prop::collection::vec((0..1_500_u64, -300..800_i64, any::<bool>()), 1..150),
    ) {
        let history = RequestHistory::new(burst, Nanos(interval)).expect("a history");
        let mut state = vec![0; history.words()];
        let mut log = Vec::new();
        let mut now = 10_000_000_u64;
        for (step, off, obeys) in steps {
            now += if step < 1_000 { step % 50 } else { (step - 1_000) * interval / 10 };
            let wait = history.wait(&state, Time(now));
            prop_assert_eq!(wait.0, naive(&history, &log).saturating_sub(now));
            let at = if obeys { now + wait.0 } else { now.saturating_add_signed(off) };
            history.record(&mut state, Time(at), Time(now));
            log.push((at, now));
        }
    }

    /// For any sequence of requests, a gate that obeys admits `burst` requests and then the rate.
    #[test]
    fn no_more_than_the_burst_and_the_rate_pass(
        burst in 1..20_usize, steps in prop::collection::vec(0..400_u64, 1..300),
    ) {
        let history = history(100, burst);
        let mut gate = Gate::new(history);
        let (mut now, mut passed) = (0, Vec::new());
        for step in steps {
            now += step % 90;
            match gate.request(now) {
                Accepted => passed.push(now),
                Delayed(until) => passed.push(until),
                Rejected => {}
            }
        }
        // Any window of burst * interval has at most twice the burst: an old one and a new one.
        for (index, first) in passed.iter().enumerate() {
            let window = 100 * burst as u64;
            let inside = passed[index..].iter().filter(|at| **at < first + window).count();
            prop_assert!(inside <= 2 * burst, "{} in {} ms", inside, window);
        }
    }
}

//! Properties of every algorithm: decisions never panic, whatever the state and the clock are, and
//! a bucket worth nothing equals an absent one.

use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::fixed::FixedWindow;
use evenkeel_core::bucket::grid::GridBucket;
use evenkeel_core::bucket::history::{BURST_MAX, RequestHistory};
use evenkeel_core::bucket::quota::QuotaBucket;
use evenkeel_core::bucket::sliding::SlidingWindow;
use evenkeel_core::bucket::{Algorithm, STATE_WORDS_MAX};
use evenkeel_core::units::{Cost, ExactRate, Nanos, Rate, Time};
use proptest::prelude::*;

/// An arbitrary word, with a preference for the ends of the range.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        Just(1 << 63),
        0..5_u64,
        (0..5_u64).prop_map(|below| u64::MAX - below),
        1_700_000_000_000_000_000..1_700_000_100_000_000_000_u64,
        0..30_000_000_000_u64,
        any::<u64>(),
    ]
}

fn debts() -> impl Strategy<Value = DebtBucket> {
    let rate = (1_u64.., 1_u64..)
        .prop_filter_map("a rate", |(cost, period)| Rate::per(Cost(cost), Nanos(period)));
    (rate, word()).prop_map(|(rate, burst)| DebtBucket::new(rate, Cost(burst)))
}

fn grids() -> impl Strategy<Value = GridBucket> {
    let pace = (1_u64.., 1_u64..)
        .prop_filter_map("a pace", |(cost, period)| ExactRate::new(Cost(cost), Nanos(period)));
    (pace, word()).prop_map(|(pace, burst)| GridBucket::new(pace, burst))
}

/// Every algorithm, with all kinds of parameters that its constructor accepts.
fn algorithms() -> impl Strategy<Value = Algorithm> {
    let interval = prop_oneof![1..1_000_000_000_u64, Just(u64::MAX / BURST_MAX as u64)];
    prop_oneof![
        debts().prop_map(Algorithm::Debt),
        debts().prop_map(|debt| Algorithm::Quota(QuotaBucket::new(debt))),
        grids().prop_map(Algorithm::Grid),
        (1..=2_592_000_u64, 1_u64..).prop_map(|(window, max)| {
            let sliding = SlidingWindow::new(Nanos::from_secs(window), Cost(max));
            Algorithm::Sliding(sliding.expect("a window"))
        }),
        (1..=60_u64, 1..2_000_u64).prop_map(|(window, max)| {
            let sliding = SlidingWindow::new(Nanos::from_secs(window), Cost(max));
            Algorithm::Sliding(sliding.expect("a window"))
        }),
        (any::<u32>(), 1_u32..).prop_map(|(limit, seconds)| {
            Algorithm::Fixed(FixedWindow::new(limit, seconds).expect("a window"))
        }),
        (1..=BURST_MAX, interval).prop_map(|(burst, interval)| {
            Algorithm::History(RequestHistory::new(burst, Nanos(interval)).expect("a history"))
        }),
    ]
}

/// Calls the methods that are specific to one algorithm.
fn ask_all(algorithm: &Algorithm, state: &[u64], now: Time) -> Result<(), TestCaseError> {
    let wait = algorithm.wait(state, Cost::ZERO, now);
    match algorithm {
        Algorithm::Debt(debt) => {
            let _ = debt.level(Time(state[0]), now);
        }
        Algorithm::Grid(grid) => {
            let missing = grid.missing(Time(state[0]), now);
            // The values are equal except beyond the end of the time range.
            prop_assert!(grid.missing(grid.short_of(missing, now), now) <= missing);
            let most = i64::try_from(grid.burst()).unwrap_or(i64::MAX);
            prop_assert!(grid.level(Time(state[0]), now) <= most);
        }
        Algorithm::Sliding(sliding) => {
            let _ = sliding.sum(state, now);
            prop_assert!(wait <= sliding.window());
        }
        Algorithm::Fixed(fixed) => {
            prop_assert!(fixed.remaining(state[0], now) <= fixed.limit());
            let reset = Nanos::from_secs(fixed.reset_secs(now).into());
            prop_assert!(reset > Nanos::ZERO && reset <= fixed.window());
            prop_assert!(wait <= fixed.window());
        }
        Algorithm::Quota(quota) => {
            let _ = quota.level(state, now);
            let mut state = [state[0], state[1]];
            quota.reserve(&mut state, Cost(u64::MAX));
            quota.release(&mut state, Cost(u64::MAX));
        }
        Algorithm::History(_) => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn deciding_never_fails(
        algorithm in algorithms(),
        words in prop::collection::vec(word(), STATE_WORDS_MAX),
        steps in prop::collection::vec((word(), word(), word()), 1..20),
    ) {
        prop_assert!(algorithm.words() <= STATE_WORDS_MAX);
        let mut state = words[..algorithm.words()].to_vec();
        for (cost, at, now) in steps {
            let (cost, at, now) = (Cost(cost), Time(at), Time(now));
            let _ = algorithm.wait(&state, cost, now);
            ask_all(&algorithm, &state, now)?;
            let _ = algorithm.charge(&mut state, cost, at, now);
            ask_all(&algorithm, &state, now)?;
            let _ = algorithm.worth(&state, now);
        }
    }

    #[test]
    fn nor_does_taking_back_or_converting(
        debt in debts(), old in debts(), full_at in word(), cost in word(), moved in word(),
        at in word(), now in word(),
    ) {
        let (full_at, at, now) = (Time(full_at), Time(at), Time(now));
        prop_assert!(debt.refund(full_at, Cost(cost), Nanos(moved), at, now) <= full_at);
        prop_assert!(debt.refund(full_at, Cost(cost), Nanos(moved), at, now).0
            >= full_at.0.saturating_sub(moved));
        let _ = debt.short_of(old.missing(full_at, now), now);
    }

    /// A table may therefore evict such a bucket. All charges are for requests that start at once.
    #[test]
    fn a_bucket_worth_nothing_equals_an_absent_one(
        algorithm in algorithms(),
        before in prop::collection::vec((0..2_000_u64, 0..40_u64), 1..30),
        after in prop::collection::vec((0..2_000_u64, 0..40_u64), 1..30),
    ) {
        let mut now = Time(1_700_000_000_000_000_000);
        let mut lived = vec![0; algorithm.words()];
        // Some algorithms count hits, others nanoseconds, so costs alternate between both.
        let cost = |n: u64| if n.is_multiple_of(2) { Cost(n * 50) } else { Cost::hits(n) };
        for (n, tenths) in before {
            now = now.plus(Nanos::from_millis(100 * tenths * tenths));
            algorithm.charge(&mut lived, cost(n), now, now);
        }
        let forgotten = (0..64).map(|doubling| now.plus(Nanos(1 << doubling)));
        let Some(then) = forgotten.into_iter().find(|then| algorithm.worth(&lived, *then) == 0)
        else {
            return Ok(());
        };
        now = then;
        let mut absent = vec![0; algorithm.words()];
        for (n, tenths) in after {
            now = now.plus(Nanos::from_millis(100 * tenths));
            prop_assert_eq!(
                algorithm.wait(&lived, cost(n), now), algorithm.wait(&absent, cost(n), now)
            );
            algorithm.charge(&mut lived, cost(n), now, now);
            algorithm.charge(&mut absent, cost(n), now, now);
        }
    }
}

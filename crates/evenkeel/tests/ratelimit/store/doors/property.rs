//! Redis charges the same as memory at the same moment, and two instances together never admit more
//! than a limit allows, over thousands of random schedules.
//!
//! The store's clock cannot be set, so memory follows it: a model of the core's own functions gets
//! each request at the time that the store reports in its answer.

use crate::store::property::{Dice, lane, local, schedule};
use crate::store::redis::Redis;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::grid::GridBucket;
use evenkeel_core::bucket::history::RequestHistory;
use evenkeel_core::bucket::sliding::SlidingWindow;
use evenkeel_core::classify::LimitKey;
use evenkeel_core::condition::Condition;
use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
use evenkeel_core::limiter::{Limiter, LimiterPolicy};
use evenkeel_core::units::{Cost, ExactRate, Nanos, Time, Weight};
use evenkeel_runtime::clock::Clock;
use evenkeel_store::redis::{StoreAccount, StoreLane};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

fn pace(text: &str) -> ExactRate {
    text.parse().expect("a pace")
}

fn debt(rate: &str, burst: u64) -> Algorithm {
    Algorithm::Debt(DebtBucket::new(pace(rate).rate(), Cost::hits(burst)))
}

fn grid(rate: &str, burst: u64) -> Algorithm {
    Algorithm::Grid(GridBucket::new(pace(rate), burst))
}

fn sliding(window: u64, max_ms: u64, round_ms: u64) -> Algorithm {
    let max = Cost(max_ms * 1_000_000);
    let sliding = SlidingWindow::new(Nanos::from_secs(window), max).expect("a window");
    Algorithm::Sliding(sliding.rounded(Cost(round_ms * 1_000_000)))
}

fn history(burst: usize, interval_us: u64) -> Algorithm {
    Algorithm::History(RequestHistory::new(burst, Nanos(interval_us * 1_000)).expect("a history"))
}

/// One limit for each algorithm, named by a number.
fn limiter(algorithms: &[Algorithm]) -> Arc<Limiter> {
    let limit = |(index, algorithm): (usize, &Algorithm)| Limit {
        name: format!("l{index}").into(),
        by: vec![KeyPart::All],
        when: Condition::default(),
        unit: LimitUnit::Hits,
        algorithm: algorithm.clone(),
        action: None,
        weight: Weight::ONE,
        keys_max: 1_000,
        shadow: false,
    };
    let limits = algorithms.iter().enumerate().map(limit).collect();
    let policy = LimiterPolicy { action: LimitAction::Reject, max_delay: Nanos::ZERO };
    Arc::new(Limiter::new(policy, limits, KeySeed([3; 16])))
}

fn account(limiter: &Arc<Limiter>, limit: u8, key: u64, cost: Cost, now: Time) -> StoreAccount {
    let key = LimitKey { limit, hash: KeyHash::from_bits(key + 1) };
    let name = format!("evenkeel:{limit}:{key:?}");
    StoreAccount::new(name, limiter, key, cost, now)
}

/// Algorithms with steps so short that they begin and end during the test, and with long ones.
pub fn all_kinds() -> Vec<Algorithm> {
    let capped = DebtBucket::new(pace("20/s").rate(), Cost::hits(2)).capped(Cost::hits(3));
    vec![
        debt("100/s", 3),
        debt("1/d", 5),
        debt("7/m", 1),
        Algorithm::Debt(capped),
        grid("100/s", 3),
        grid("7/s", 5),
        grid("3333/m", 2),
        grid("1/d", 4),
        grid("0.333333333/d", 2),
        sliding(1, 40, 0),
        sliding(15, 200, 10),
        sliding(100, 100, 0),
        history(3, 10_000),
        history(5, 333),
        history(2, 86_400_000_000),
    ]
}

/// The value that a store returns for a bucket in this state.
fn standing(algorithm: &Algorithm, state: &[u64], now: Time) -> Nanos {
    match algorithm {
        Algorithm::Sliding(_) => algorithm.wait(state, Cost::ZERO, now),
        _ => algorithm.ahead(state, now),
    }
}

/// Whether two durations are equal within the precision of Lua's numbers, which have 53 bits;
/// beyond 104 days some digits are lost.
fn alike(one: Nanos, other: Nanos) -> bool {
    one.0.abs_diff(other.0) <= (one.0 >> 53) * 2
}

/// The longest time for an answer that the model can be compared with. A store accepts for a while
/// the state of an instance that is ahead of its own by more than a tenth of a second. The
/// instance's state is as old as the last answer and the current request took together.
const PROMPT: Nanos = Nanos::from_millis(40);

/// Sends one random request about one bucket of this era, which the model answers at the store's
/// time. Returns `None` if the store was so late that the model may rightly differ.
async fn ask_both(
    lane: &Rc<StoreLane>,
    home: &Arc<Limiter>,
    model: &mut HashMap<(u8, u64), Vec<u64>>,
    dice: &mut Dice,
    (clock, era): (Clock, u64),
) -> Option<bool> {
    let now = clock.now();
    let limit = dice.below(home.limits().len() as u64) as u8;
    let algorithm = &home.limits()[usize::from(limit)].algorithm;
    let cost = match algorithm {
        Algorithm::Sliding(_) => Cost(dice.below(30_000_000)),
        Algorithm::History(_) => Cost::hits(1),
        _ => Cost::hits(dice.below(3)),
    };
    let key = 3 * era + dice.below(3);
    let mut accounts = [account(home, limit, key, cost, now)];
    // A debt is charged for a past moment, a history for a past or a future one.
    let offset = Nanos(dice.below(40_000_000));
    let history = matches!(algorithm, Algorithm::History(_));
    let (late, early) = match (algorithm, dice.below(4)) {
        (Algorithm::Debt(_) | Algorithm::Grid(_), 0) | (Algorithm::History(_), 0 | 1) => {
            (offset, Nanos::ZERO)
        }
        (Algorithm::History(_), _) => (Nanos::ZERO, offset),
        _ => (Nanos::ZERO, Nanos::ZERO),
    };
    accounts[0].at = now.plus(early).minus(late);
    if late > Nanos::ZERO || history {
        accounts[0].patience = None;
    }
    let patient = accounts[0].patience;
    lane.decide(&mut accounts, false, now).await;
    if clock.now().since(now) > PROMPT {
        return None;
    }
    let word = accounts[0].word.expect("an answer");
    let state = model.entry((limit, key)).or_insert_with(|| vec![0; algorithm.words()]);
    let clock = word.clock;
    let what = format!("{algorithm:?} of {cost:?}, late {late:?}, early {early:?}: {word:?}");
    assert!(alike(standing(algorithm, state, clock), word.before), "before: {what}");
    let charged = patient.is_none() || algorithm.wait(state, cost, clock) == Nanos::ZERO;
    assert_eq!(charged, word.charged, "{what}");
    // A request without cost only reads the bucket and does not change it.
    if charged && cost > Cost::ZERO {
        algorithm.charge(state, cost, clock.plus(early).minus(late), clock);
    }
    assert!(alike(standing(algorithm, state, clock), word.after), "after: {what}");
    Some(charged)
}

/// Sends random requests, at least `least` of them and for some seconds, and returns the number
/// refused.
pub async fn charges_as_memory(lane: &Rc<StoreLane>, kinds: &[Algorithm], least: u32) -> u32 {
    let home = limiter(kinds);
    let (mut dice, mut model) = (Dice::new(), HashMap::new());
    let (mut refused, mut asked, mut era) = (0, 0, 0);
    let clock = Clock::start();
    let begin = clock.now();
    while clock.now().since(begin) < Nanos::from_secs(5) || asked < least {
        match ask_both(lane, &home, &mut model, &mut dice, (clock, era)).await {
            Some(charged) => {
                asked += 1;
                refused += u32::from(!charged);
            }
            None => era += 1,
        }
    }
    refused
}

#[test]
fn the_store_charges_as_memory_does() {
    let redis = Redis::start(&[]);
    local(async {
        let lane = lane(&redis).await;
        assert!(charges_as_memory(&lane, &all_kinds(), 2_000).await > 0);
    });
}

#[test]
fn two_instances_never_let_in_more_than_the_limit() {
    let redis = Redis::start(&[]);
    local(async {
        let lanes = [lane(&redis).await, lane(&redis).await];
        let (mut dice, clock) = (Dice::new(), Clock::start());
        for number in 0..2_000 {
            let now = clock.now();
            let burst = 1 + dice.below(8);
            let kind = if dice.below(2) == 0 { debt("1/d", burst) } else { grid("1/d", burst) };
            let homes =
                [limiter(std::slice::from_ref(&kind)), limiter(std::slice::from_ref(&kind))];
            let decide = |which: usize, hits: u64| {
                let lane = Rc::clone(&lanes[which]);
                let mut accounts =
                    [account(&homes[which], 0, 1_000 + number, Cost::hits(hits), now)];
                async move {
                    lane.decide(&mut accounts, false, now).await;
                    accounts[0].word.expect("an answer").charged
                }
            };
            schedule(&mut dice, burst, &format!("{kind:?}"), decide).await;
        }
    });
}

/// Of several buckets in one request, none is charged if one refuses.
#[test]
fn all_buckets_of_a_request_are_charged_or_none_is() {
    let redis = Redis::start(&[]);
    local(async {
        let lane = lane(&redis).await;
        let bursts = [2, 3, 5];
        let home = limiter(&bursts.map(|burst| debt("1/d", burst)));
        let (mut dice, clock) = (Dice::new(), Clock::start());
        for number in 0..300 {
            let mut left = bursts;
            for _ in 0..10 {
                // The state of an instance is as old as the request.
                let now = clock.now();
                let among: Vec<u8> = (0..3).filter(|_| dice.below(3) > 0).collect();
                let one = |limit: &u8| account(&home, *limit, number, Cost::hits(1), now);
                let mut accounts: Vec<StoreAccount> = among.iter().map(one).collect();
                lane.decide(&mut accounts, true, now).await;
                let fits = among.iter().all(|limit| left[usize::from(*limit)] > 0);
                for (limit, account) in among.iter().zip(accounts) {
                    let word = account.word.expect("an answer");
                    assert_eq!(word.charged, fits);
                    left[usize::from(*limit)] -= u64::from(fits);
                    let used = bursts[usize::from(*limit)] - left[usize::from(*limit)];
                    let days = word.after.0 as f64 / 86_400e9;
                    assert!((days - used as f64).abs() < 0.01, "{days} for {used}");
                }
            }
        }
    });
}

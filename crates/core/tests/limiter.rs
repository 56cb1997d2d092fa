//! Decisions over several limits at once: which charges and refusals happen together, and which
//! debts remain when the configuration changes.

use evenkeel_core::bucket::Algorithm;
use evenkeel_core::bucket::debt::DebtBucket;
use evenkeel_core::bucket::fixed::FixedWindow;
use evenkeel_core::bucket::grid::GridBucket;
use evenkeel_core::bucket::quota::QuotaBucket;
use evenkeel_core::classify::{LimitKey, LimitKeys};
use evenkeel_core::condition::Condition;
use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::limit::{KeyPart, Limit, LimitAction, LimitUnit};
use evenkeel_core::limiter::{Limiter, LimiterPolicy, Ticket, Verdict};
use evenkeel_core::units::{Cost, Nanos, Rate, Time, Weight};

const SEED: KeySeed = KeySeed([3; 16]);
const T0: Time = Time(1_000_000_000_000);

fn seconds(n: u64) -> Cost {
    Cost::cpu(Nanos::from_secs(n))
}

fn after(n: u64) -> Time {
    T0.plus(Nanos::from_secs(n))
}

fn limit(name: &str, unit: LimitUnit, per_second: u64, burst: Cost) -> Limit {
    let rate = Rate::per(seconds(per_second), Nanos::from_secs(1)).expect("a rate");
    let limit = Limit {
        name: name.into(),
        by: vec![KeyPart::All],
        when: Condition::default(),
        unit,
        algorithm: Algorithm::Debt(DebtBucket::new(rate, burst)),
        action: None,
        weight: Weight::ONE,
        keys_max: 100,
        shadow: false,
    };
    limit.checked().expect("a sound limit")
}

fn limiter(action: LimitAction, limits: Vec<Limit>) -> Limiter {
    Limiter::new(LimiterPolicy { action, max_delay: Nanos::from_secs(30) }, limits, SEED)
}

fn keys(count: u8) -> LimitKeys {
    let mut keys = LimitKeys::default();
    (0..count).for_each(|limit| keys.push(LimitKey { limit, hash: KeyHash::from_bits(9) }));
    keys
}

fn spend(limiter: &Limiter, keys: &LimitKeys, cost: Cost, now: Time) -> Ticket {
    let (_, ticket) = limiter.ask(keys, Cost::ZERO, now);
    limiter.settle(&ticket, cost, now);
    ticket
}

fn level(limiter: &Limiter, index: usize, now: Time) -> i64 {
    limiter.standing_of(index, KeyHash::from_bits(9), now).level.expect("a debt bucket")
}

#[test]
fn if_one_limit_refuses_none_is_charged() {
    let cpu = limit("cpu", LimitUnit::Cpu, 1, seconds(10));
    let hits = limit("hits", LimitUnit::Hits, 1, Cost::hits(1));
    let limiter = limiter(LimitAction::Hold, vec![cpu, hits]);
    let both = keys(2);
    assert_eq!(limiter.ask(&both, seconds(1), T0).0, Verdict::Allow);
    let before = level(&limiter, 0, T0);
    let (verdict, _) = limiter.ask(&both, seconds(1), T0);
    let Verdict::Deny { reason, retry_after } = verdict else { panic!("{verdict:?}") };
    assert_eq!((reason.key.limit, retry_after), (1, Nanos::from_secs(1)));
    assert_eq!(level(&limiter, 0, T0), before, "the estimate was not charged");
    assert_eq!(limiter.ask(&both, Cost::ZERO, after(1)).0, Verdict::Allow, "as told");
}

#[test]
fn a_delayed_request_that_is_cancelled_gives_back_no_more_than_it_took() {
    let limiter = limiter(LimitAction::Delay, vec![limit("cpu", LimitUnit::Cpu, 1, seconds(30))]);
    let one = keys(1);
    spend(&limiter, &one, seconds(32), T0);
    let (verdict, ticket) = limiter.ask(&one, seconds(3), T0);
    assert!(matches!(verdict, Verdict::Delay(reason) if reason.wait == Nanos::from_secs(2)));
    // Without further charges the bucket is full at 32, so the 3 of the hold are refilled by 35.
    spend(&limiter, &one, seconds(1), after(40));
    let owed = level(&limiter, 0, after(40));
    limiter.settle(&ticket, Cost::ZERO, after(40));
    assert_eq!(level(&limiter, 0, after(40)), owed);
}

#[test]
fn who_would_wait_too_long_is_refused_before_the_request_runs() {
    for action in [LimitAction::Hold, LimitAction::Delay] {
        let limiter = limiter(action, vec![limit("cpu", LimitUnit::Cpu, 1, seconds(5))]);
        spend(&limiter, &keys(1), seconds(45), T0);
        let (verdict, _) = limiter.ask(&keys(1), Cost::ZERO, T0);
        assert!(
            matches!(verdict, Verdict::Deny { retry_after, .. } if retry_after.0 == 10_000_000_000),
            "{action:?}: {verdict:?}"
        );
        let (verdict, _) = limiter.ask(&keys(1), Cost::ZERO, after(10));
        assert!(!matches!(verdict, Verdict::Deny { .. }), "{action:?}: let in as told");
    }
}

#[test]
fn the_longest_wait_wins_and_is_no_longer_than_allowed() {
    let limits = vec![
        limit("slow", LimitUnit::Cpu, 1, seconds(1)),
        limit("fast", LimitUnit::Cpu, 4, seconds(1)),
    ];
    let limiter = limiter(LimitAction::Hold, limits);
    let (_, mut ticket) = limiter.ask(&keys(2), Cost::ZERO, T0);
    let reason = limiter.charge(&mut ticket, seconds(9), after(9)).expect("a hold");
    assert_eq!((reason.key.limit, reason.wait), (0, Nanos::from_secs(8)));
    let reason = limiter.charge(&mut ticket, seconds(99), after(9)).expect("a hold");
    assert_eq!(reason.wait, Nanos::from_secs(30), "an answer is never thrown away");
}

#[test]
fn t24_what_is_owed_stays_owed_under_new_numbers() {
    let old = limiter(LimitAction::Hold, vec![limit("cpu", LimitUnit::Cpu, 1, seconds(5))]);
    spend(&old, &keys(1), seconds(15), T0);
    assert_eq!(level(&old, 0, T0), -10_000_000_000);
    let other = limit("other", LimitUnit::Cpu, 1, seconds(5));
    let faster = limit("cpu", LimitUnit::Cpu, 4, seconds(5));
    let new = old.reconfigured(old.policy(), vec![other, faster], T0);
    assert_eq!(level(&new, 0, T0), 5_000_000_000, "another limit starts full");
    assert_eq!(level(&new, 1, T0), -10_000_000_000);
    assert_eq!(level(&new, 1, after(1)), -6_000_000_000, "and is paid back at the new rate");
}

/// A limit on tags, refilled in whole tokens.
fn tags(rate: &str, burst: u64) -> Limit {
    let pace = rate.parse().expect("a pace");
    let algorithm = Algorithm::Grid(GridBucket::new(pace, burst));
    let limit =
        Limit { by: vec![KeyPart::Tag], algorithm, ..limit("t", LimitUnit::Hits, 1, seconds(1)) };
    limit.checked().expect("a sound limit")
}

#[test]
fn a_tag_is_served_its_burst_and_then_at_its_rate() {
    let limiter = limiter(LimitAction::Reject, vec![tags("1/s", 10)]);
    let key = LimitKey { limit: 0, hash: KeyHash::from_bits(9) };
    let served = |now| (0..20).filter(|_| limiter.hit(key, 1, now) == Nanos::ZERO).count();
    assert_eq!((served(T0), served(T0), served(after(1)), served(after(4))), (10, 0, 1, 3));
    assert_eq!(limiter.hit(key, 3, after(4)), Nanos::from_secs(3), "all of them or none");
    assert_eq!(limiter.hit(key, 11, after(99)), Nanos::from_secs(1), "more than ever fits");
    assert_eq!(limiter.standing_of(0, key.hash, after(5)).level, Some(1_000_000_000));
    let other = DebtBucket::new("1/s".parse().expect("a rate"), Cost::hits(2));
    let own = LimitKey { limit: 0, hash: KeyHash::from_bits(7) };
    let by = || limiter.hit_by(&Algorithm::Debt(other), own, 1, T0);
    assert_eq!([by(), by(), by()], [Nanos::ZERO, Nanos::ZERO, Nanos::from_secs(1)]);
}

#[test]
fn what_a_tag_owes_stays_owed_under_other_numbers() {
    let key = LimitKey { limit: 0, hash: KeyHash::from_bits(9) };
    let old = limiter(LimitAction::Reject, vec![tags("1/s", 10)]);
    assert_eq!(old.hit(key, 8, T0), Nanos::ZERO);
    let faster = old.reconfigured(old.policy(), vec![tags("4/s", 20)], T0);
    assert_eq!(level(&faster, 0, T0), 12_000_000_000);
    assert_eq!(level(&faster, 0, after(1)), 16_000_000_000);
    let pace = Rate::per(seconds(1), Nanos::from_secs(1)).expect("a rate");
    let continuous = Algorithm::Debt(DebtBucket::new(pace, Cost::hits(10)));
    let smooth = Limit { algorithm: continuous, ..tags("1/s", 10) };
    let smooth = old.reconfigured(old.policy(), vec![smooth], T0);
    assert_eq!(level(&smooth, 0, T0.plus(Nanos::from_millis(500))), 2_500_000_000);
}

#[test]
fn what_is_put_back_is_owed_again_under_the_numbers_of_today() {
    let old = limiter(LimitAction::Hold, vec![limit("cpu", LimitUnit::Cpu, 1, seconds(5))]);
    spend(&old, &keys(1), seconds(15), T0);
    let new = limiter(LimitAction::Hold, vec![limit("cpu", LimitUnit::Cpu, 4, seconds(5))]);
    let was = &old.limits()[0].algorithm;
    let mut seen = 0;
    old.tables()[0].for_each(|hash, state| {
        seen += 1;
        assert!(new.restore(0, was, hash, state, after(1)));
        assert!(!new.restore(0, was, hash, &[state[0], 0], after(1)), "another shape");
        assert!(!new.restore(1, was, hash, state, after(1)), "there is no such limit");
        assert!(!new.restore(0, was, hash, state, after(99)), "it is full again");
        let fixed = Algorithm::Fixed(FixedWindow::new(1, 1).expect("a window"));
        assert!(!new.restore(0, &fixed, hash, state, after(1)), "another algorithm");
    });
    assert_eq!(seen, 1);
    assert_eq!(level(&new, 0, after(1)), -9_000_000_000, "a second was refilled at the old rate");
    assert_eq!(level(&new, 0, after(2)), -5_000_000_000);
}

/// 2000 clients within a minute, with a table for 100. Each client owes more than the one before,
/// so the last hundred remain.
#[test]
fn t22_a_small_table_keeps_the_most_indebted_and_never_more_than_it_is_for() {
    let limiter = limiter(LimitAction::Hold, vec![limit("cpu", LimitUnit::Cpu, 1, seconds(30))]);
    let table = &limiter.tables()[0];
    assert_eq!(table.keys_max(), 100);
    let hash = |n: u64| KeyHash::from_bits(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let end = after(60);
    for n in 1..=2_000 {
        let mut one = LimitKeys::default();
        one.push(LimitKey { limit: 0, hash: hash(n) });
        let now = T0.plus(Nanos::from_millis(30 * n));
        spend(&limiter, &one, Cost::cpu(Nanos::from_secs(100 + n)), now);
        assert!(table.used() <= 100);
    }
    let mut left: Vec<KeyHash> = Vec::new();
    table.for_each(|hash, _| left.push(hash));
    left.sort_unstable();
    let mut expected: Vec<KeyHash> = (1_901..=2_000).map(hash).collect();
    expected.sort_unstable();
    assert_eq!(left, expected);
    let owed = limiter.standing_of(0, hash(2_000), end).level;
    assert_eq!(owed, Some(30_000_000_000 - 2_100_000_000_000));
}

/// Many clients with one request each, and one client in debt: the client in debt is not evicted.
fn flood(clients: u64) {
    let mut cpu = limit("cpu", LimitUnit::Cpu, 1, seconds(30));
    cpu.keys_max = 100_000;
    let limiter = limiter(LimitAction::Hold, vec![cpu]);
    let debtor = keys(1);
    spend(&limiter, &debtor, seconds(90), T0);
    let bytes = limiter.tables()[0].bytes();
    let owed = limiter.standing_of(0, KeyHash::from_bits(9), after(10));
    for n in 0..clients {
        let mut one = LimitKeys::default();
        let spread = KeyHash::from_bits((n + 10).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        one.push(LimitKey { limit: 0, hash: spread });
        let now = T0.plus(Nanos(n * 1_000));
        let (verdict, ticket) = limiter.ask(&one, Cost::ZERO, now);
        assert_eq!(verdict, Verdict::Allow, "a newcomer owes nothing");
        limiter.settle(&ticket, seconds(1), now);
    }
    assert_eq!(limiter.standing_of(0, KeyHash::from_bits(9), after(10)), owed);
    assert_eq!(limiter.tables()[0].bytes(), bytes);
    assert!(limiter.tables()[0].dropped() > clients / 2, "the table was full");
}

#[test]
fn a_flood_of_new_clients_forgives_no_debt() {
    flood(500_000);
}

#[test]
#[ignore = "the long suite runs it"]
fn a_flood_of_ten_million_new_clients_forgives_no_debt() {
    flood(10_000_000);
}

/// The bucket that is furthest in debt relative to its own burst defines where a request waits. It
/// is not always the bucket that takes longest to pay.
#[test]
fn the_latest_bucket_is_so_by_its_own_burst() {
    let limits = vec![
        limit("long", LimitUnit::Cpu, 1, seconds(100)),
        limit("short", LimitUnit::Cpu, 2, seconds(10)),
    ];
    let limiter = limiter(LimitAction::Queue, limits);
    let both = keys(2);
    assert_eq!(limiter.furthest_in_debt(&both, T0), None);
    spend(&limiter, &both, seconds(100), T0);
    let latest = |now| limiter.furthest_in_debt(&both, now).map(|key| key.limit);
    assert_eq!(latest(T0), Some(1), "90 of 10, and 0 of 100");
    spend(&limiter, &both, seconds(50), T0);
    let wait = |index| limiter.standing_of(index, KeyHash::from_bits(9), after(50)).wait;
    assert!(wait(0) < wait(1) && latest(after(50)) == Some(1));
    assert_eq!(latest(after(69)), Some(1));
    assert_eq!(latest(after(70)), None, "all is paid");
    let owes = |key, now| limiter.is_in_debt(1, KeyHash::from_bits(key), now);
    assert!(owes(9, after(69)) && !owes(9, after(70)) && !owes(8, T0));
    let (verdict, _) = limiter.ask(&both, seconds(1), T0);
    assert_eq!(verdict, Verdict::Allow, "who owes is let in, to wait");
}

#[test]
fn two_buckets_that_turn_out_to_be_one_owe_what_both_did() {
    let cpu = limit("cpu", LimitUnit::Cpu, 1, seconds(10));
    let limiter = limiter(LimitAction::Hold, vec![cpu]);
    let hashes = [5, 6].map(KeyHash::from_bits);
    for (hash, cost) in hashes.into_iter().zip([7, 12]) {
        let mut keys = LimitKeys::default();
        keys.push(LimitKey { limit: 0, hash });
        spend(&limiter, &keys, seconds(cost), T0);
    }
    let level = |hash, now| limiter.standing_of(0, hash, now).level.expect("a debt bucket");
    let second = 1_000_000_000;
    limiter.merge(0, hashes[0], hashes[1], after(2));
    assert_eq!(level(hashes[0], after(2)), 10 * second, "as if it had never been");
    // 10 - (7 - 2) - (12 - 2): both debts are reduced by the refill of two seconds.
    assert_eq!(level(hashes[1], after(2)), -5 * second);
    limiter.merge(0, hashes[1], hashes[1], after(2));
    assert_eq!(level(hashes[1], after(2)), -5 * second, "itself");
    limiter.merge(7, hashes[0], hashes[1], after(2));
}

fn in_shadow(limit: Limit) -> Limit {
    Limit { shadow: true, ..limit }
}

#[test]
fn a_limit_in_shadow_says_what_it_would_refuse_and_counts_as_if_it_had() {
    let hits = limit("hits", LimitUnit::Hits, 1, Cost::hits(1));
    let cpu = limit("cpu", LimitUnit::Cpu, 1, seconds(9));
    let shadow = limiter(LimitAction::Delay, vec![in_shadow(hits.clone()), cpu.clone()]);
    let real = limiter(LimitAction::Delay, vec![hits, cpu]);
    for tenth in 0..60 {
        let now = T0.plus(Nanos::from_millis(100 * tenth));
        let refused = matches!(real.ask(&keys(2), Cost::ZERO, now).0, Verdict::Deny { .. });
        let (verdict, ticket) = shadow.ask(&keys(2), Cost::ZERO, now);
        assert_eq!(verdict, Verdict::Allow);
        let said = ticket.shadowed().map(|said| (said.action, said.reason.key.limit));
        assert_eq!(said, refused.then_some((LimitAction::Reject, 0)), "{tenth}");
        assert_eq!(level(&shadow, 0, now), level(&real, 0, now), "{tenth}");
    }
    let now = after(6);
    let (_, ticket) = shadow.ask(&keys(2), Cost::ZERO, now);
    shadow.settle(&ticket, seconds(3), now);
    assert_eq!(level(&shadow, 1, now), level(&real, 1, now) - 3_000_000_000, "others are charged");
}

#[test]
fn a_limit_in_shadow_delays_and_holds_nobody_and_says_for_how_long_it_would() {
    for action in [LimitAction::Delay, LimitAction::Hold] {
        let limits = vec![in_shadow(limit("cpu", LimitUnit::Cpu, 1, seconds(5)))];
        let limiter = limiter(action, limits);
        spend(&limiter, &keys(1), seconds(12), T0);
        let (verdict, mut ticket) = limiter.ask(&keys(1), Cost::ZERO, T0);
        assert_eq!((verdict, ticket.starts_at()), (Verdict::Allow, T0), "{action:?}");
        assert_eq!(limiter.charge(&mut ticket, seconds(1), T0), None, "{action:?}");
        let said = ticket.shadowed().expect("it says something");
        let wait = if action == LimitAction::Hold { 8 } else { 7 };
        assert_eq!((said.action, said.reason.wait), (action, Nanos::from_secs(wait)));
        assert_eq!(limiter.debt(&ticket, action, false, T0), None);
        assert!(limiter.debt(&ticket, action, true, T0).is_some());

        spend(&limiter, &keys(1), seconds(60), T0);
        let (verdict, ticket) = limiter.ask(&keys(1), Cost::ZERO, T0);
        let said = ticket.shadowed().map(|said| said.action);
        assert_eq!(
            (verdict, said),
            (Verdict::Allow, Some(LimitAction::Reject)),
            "too long to wait"
        );
        let owed = level(&limiter, 0, T0);
        limiter.settle(&ticket, seconds(2), T0);
        assert_eq!(level(&limiter, 0, T0), owed, "it would not have run");
    }
}

#[test]
fn how_a_client_stands_beside_a_request_is_without_that_request() {
    let limiter = limiter(LimitAction::Queue, vec![limit("cpu", LimitUnit::Cpu, 1, seconds(2))]);
    let key = keys(1).as_slice()[0];
    let beside = |ticket: &Ticket, now| {
        let reason = limiter.standing_without_own(ticket, key, now);
        (reason.level, reason.wait, limiter.owes(ticket, now))
    };
    let (_, first) = limiter.ask(&keys(1), seconds(5), T0);
    assert_eq!(level(&limiter, 0, T0), -3_000_000_000, "an estimate of five");
    assert_eq!(beside(&first, T0), (Some(2_000_000_000), Nanos::ZERO, false));
    let (_, second) = limiter.ask(&keys(1), seconds(4), T0);
    let owed = (Some(-3_000_000_000), Nanos::from_secs(3), true);
    assert_eq!(beside(&second, T0), owed, "for the first");
    assert_eq!(beside(&second, after(9)), (Some(2_000_000_000), Nanos::ZERO, false), "paid");
}

#[test]
fn what_is_counted_nowhere_holds_and_charges_nothing() {
    let limits = vec![
        limit("cpu", LimitUnit::Cpu, 1, seconds(5)),
        limit("ip", LimitUnit::Cpu, 1, seconds(9)),
    ];
    let limiter = limiter(LimitAction::Hold, limits);
    spend(&limiter, &keys(2), seconds(45), T0);
    let (verdict, mut ticket) = limiter.ask(&keys(2), seconds(1), T0);
    assert!(matches!(verdict, Verdict::Deny { .. }), "{verdict:?}");
    ticket.exclude_from_charges();
    let owed = [level(&limiter, 0, T0), level(&limiter, 1, T0)];
    assert_eq!(limiter.charge(&mut ticket, seconds(2), T0), None);
    limiter.settle(&ticket, seconds(3), T0);
    assert_eq!([level(&limiter, 0, T0), level(&limiter, 1, T0)], owed);
    assert!(ticket.counted().as_slice().is_empty());
}

#[test]
fn a_limit_in_shadow_sends_nobody_to_the_back_of_the_queue_and_weighs_nothing() {
    let shadow = in_shadow(limit("shadow", LimitUnit::Cpu, 1, seconds(1)));
    let shadow = Limit { weight: Weight::new(5_000), ..shadow };
    let limits = vec![limit("real", LimitUnit::Cpu, 4, seconds(20)), shadow];
    let weight = evenkeel_core::classify::weight(&limits, &keys(2));
    assert_eq!(weight, Weight::ONE);
    let limiter = limiter(LimitAction::Queue, limits);
    spend(&limiter, &keys(2), seconds(10), T0);
    assert_eq!(limiter.furthest_in_debt(&keys(2), T0), None);
    assert_eq!(limiter.furthest_in_shadow_debt(&keys(2), T0).map(|key| key.limit), Some(1));
    spend(&limiter, &keys(2), seconds(20), T0);
    assert_eq!(limiter.furthest_in_debt(&keys(2), T0).map(|key| key.limit), Some(0));
}

#[test]
fn a_cleared_bucket_is_full_and_what_runs_is_settled_all_the_same() {
    let limiter = limiter(LimitAction::Delay, vec![limit("cpu", LimitUnit::Cpu, 1, seconds(5))]);
    spend(&limiter, &keys(1), seconds(12), T0);
    let (_, runs) = limiter.ask(&keys(1), Cost::ZERO, T0);
    assert!(limiter.forgive(0, KeyHash::from_bits(9)));
    assert_eq!(level(&limiter, 0, T0), 5_000_000_000);
    limiter.settle(&runs, seconds(2), after(7));
    assert!(level(&limiter, 0, after(7)) < 5_000_000_000);
    assert!(!limiter.forgive(1, KeyHash::from_bits(9)), "there is no such limit");
}

/// Requests that were admitted to the queue learn before they run that those before them have cost
/// more than was reserved for them. Reservations alone refuse nobody a second time.
#[test]
fn a_quota_that_others_have_used_up_is_found_before_a_request_runs() {
    let of = |shadow| {
        let one = limit("tokens", LimitUnit::Cpu, 1, seconds(10));
        let Algorithm::Debt(bucket) = one.algorithm else { unreachable!("it is one") };
        let algorithm = Algorithm::Quota(QuotaBucket::new(bucket));
        limiter(LimitAction::Reject, vec![Limit { algorithm, shadow, ..one }])
    };
    for shadow in [false, true] {
        let (limiter, keys) = (of(shadow), keys(1));
        let [mut running, waiting, last] = [4, 4, 4].map(|estimate| {
            let (verdict, ticket) = limiter.ask(&keys, seconds(estimate), T0);
            assert_eq!(verdict, Verdict::Allow);
            ticket
        });
        assert_eq!(limiter.used_up(&waiting, T0), None, "all is reserved, nothing is used");
        limiter.charge_so_far(&mut running, seconds(9).into(), T0);
        assert_eq!(limiter.used_up(&waiting, T0), None);
        limiter.charge_so_far(&mut running, seconds(12).into(), T0);
        for ticket in [&waiting, &last] {
            let found = limiter.used_up(ticket, T0).map(|reason| reason.wait);
            assert_eq!(found.is_some(), !shadow);
            assert!(found.is_none_or(|wait| wait > Nanos::from_secs(1)));
            assert_eq!(limiter.used_up(ticket, after(3)), None, "refilled");
        }
    }
}

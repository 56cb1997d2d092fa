//! Compares the table with a map that keeps everything, and tests it under a flood.
//!
//! Orders of loads and stores are tested in `tests/loom_table.rs`, speed in `benches/decision.rs`.
#![cfg(not(loom))]

use evenkeel_core::key::KeyHash;
use evenkeel_core::table::{BucketTable, EXACT_KEYS_MAX};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::thread;

/// Number of slots in a set of a large table.
const WAYS: usize = 8;

/// The only word of a bucket is a time, and its worth is the time until then.
fn worth_at(now: u64) -> impl Fn(&[u64]) -> u64 {
    move |state| state[0].saturating_sub(now)
}

#[derive(Clone, Debug)]
enum Step {
    /// Adds an amount to the bucket of a key.
    Charge(u64, u64),
    /// Lets time pass.
    Wait(u64),
}

/// Keys in few groups, so that they compete for slots, including both ends of the range.
fn keys() -> impl Strategy<Value = u64> {
    (prop_oneof![Just(0), Just(1u64 << 61), Just(1 << 62), Just((1 << 63) - 64)], 1..20u64)
        .prop_map(|(neighbourhood, n)| neighbourhood + n)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let charge = (keys(), 1..1000u64).prop_map(|(key, amount)| Step::Charge(key, amount));
    let wait = (1..2000u64).prop_map(Step::Wait);
    prop::collection::vec(prop_oneof![8 => charge, 1 => wait], 1..200)
}

/// The expected contents of the table: every bucket with a worth above zero, by group. A full group
/// evicts the bucket that is worth least.
struct Model {
    now: u64,
    buckets: BTreeMap<u64, u64>,
    group_max: usize,
    group: fn(u64) -> u64,
    dropped: u64,
}

impl Model {
    fn charge(&mut self, key: u64, state: u64) {
        let now = self.now;
        self.buckets.retain(|_, state| *state > now);
        let group = (self.group)(key);
        let others = self.buckets.iter().filter(|(other, _)| (self.group)(**other) == group);
        let full = others.clone().count() == self.group_max;
        if full && !self.buckets.contains_key(&key) {
            let least = others.min_by_key(|(_, state)| **state).map(|(other, _)| *other);
            self.buckets.remove(&least.expect("a full group has a least"));
            self.dropped += 1;
        }
        self.buckets.insert(key, state);
    }
}

/// Runs the same steps on the table and the model. No two states are equal, so the least one is
/// unique.
fn agree(table: &BucketTable, mut model: Model, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let words = table.words();
    for (index, step) in steps.into_iter().enumerate() {
        match step {
            Step::Wait(time) => model.now += time,
            Step::Charge(key, amount) => {
                let mut entry = table.take(KeyHash::from_bits(key));
                let before = entry.get(0).max(model.now);
                let state = (before + amount) / 1000 * 1000 + 1000 + index as u64;
                let mut wide = vec![key; words];
                wide[0] = state;
                entry.put(&wide, worth_at(model.now));
                drop(entry);
                model.charge(key, state);
            }
        }
        let mut held = BTreeMap::new();
        let mut whole = true;
        table.for_each(|hash, state| {
            whole &= state[1..].iter().all(|word| *word == hash.bits());
            whole &= state[0] <= model.now || held.insert(hash.bits(), state[0]).is_none();
        });
        model.buckets.retain(|_, state| *state > model.now);
        prop_assert!(whole, "a bucket is torn or there twice");
        prop_assert_eq!(&held, &model.buckets);
        for (key, state) in &held {
            let hash = KeyHash::from_bits(*key);
            prop_assert_eq!(table.take(hash).get(0), *state);
            prop_assert_eq!(table.peek(hash), (words == 1).then_some(*state));
        }
    }
    prop_assert_eq!(table.dropped(), model.dropped);
    Ok(())
}

proptest! {
    #[test]
    fn a_small_table_drops_exactly_the_least(
        keys_max in 1..30usize, words in 1..4usize, steps in steps(),
    ) {
        let table = BucketTable::new(keys_max, words);
        let group = |_| 0;
        let model =
            Model { now: 0, buckets: BTreeMap::new(), group_max: keys_max, group, dropped: 0 };
        agree(&table, model, steps)?;
        prop_assert!(table.used() <= keys_max as u64);
    }

    #[test]
    fn a_large_table_drops_the_least_of_a_set(words in 1..4usize, steps in steps()) {
        let table = BucketTable::new(EXACT_KEYS_MAX + 1, words);
        let group = |key: u64| key >> 60;
        let model = Model { now: 0, buckets: BTreeMap::new(), group_max: WAYS, group, dropped: 0 };
        agree(&table, model, steps)?;
    }
}

/// A sequence of hashes as uniform as those of keyed hashing (splitmix64's finisher).
fn hash(n: u64) -> KeyHash {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    KeyHash::from_bits(x ^ (x >> 31))
}

#[test]
fn of_2000_debtors_a_table_for_100_remembers_the_greatest() {
    let table = BucketTable::new(100, 1);
    for n in 0..2000 {
        // 7 and 2000 have no common divisor: every debt from 1 to 2000 occurs once, in mixed order.
        let debt = n * 7 % 2000 + 1;
        table.take(hash(debt)).put(&[debt], |state| state[0]);
        assert!(table.used() <= 100);
    }
    let mut debts = BTreeSet::new();
    table.for_each(|_, state| assert!(debts.insert(state[0])));
    let least_of_99 = debts.iter().rev().nth(98).copied();
    assert_eq!((debts.len(), least_of_99), (100, Some(1902)));
}

#[test]
fn threads_lose_no_charge() {
    for keys_max in [64, EXACT_KEYS_MAX + 1] {
        let table = BucketTable::new(keys_max, 1);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..20_000 {
                        let mut entry = table.take(hash(n % 40));
                        let state = [entry.get(0) + 1];
                        entry.put(&state, |state| state[0]);
                    }
                });
            }
        });
        let mut sums = Vec::new();
        table.for_each(|_, state| sums.push(state[0]));
        assert_eq!(sums, [2000; 40]);
        assert_eq!((table.used(), table.dropped()), (40, 0));
    }
}

#[test]
fn threads_that_push_each_other_out_never_see_a_foreign_bucket() {
    for keys_max in [16, EXACT_KEYS_MAX + 1] {
        let table = BucketTable::new(keys_max, 3);
        let narrow = BucketTable::new(keys_max, 1);
        thread::scope(|scope| {
            for thread in 0..4u64 {
                let (table, narrow) = (&table, &narrow);
                scope.spawn(move || {
                    for n in 0..20_000u64 {
                        let hash = KeyHash::from_bits((n * 31 + thread * 7) % 64 + 1);
                        let seen = narrow.peek(hash).filter(|state| *state > 0);
                        assert!(seen.is_none_or(|state| state >> 32 == hash.bits()));
                        let mut entry = table.take(hash);
                        let charge = |state: &mut [u64]| {
                            assert!(state == [0; 3] || state[1..] == [hash.bits(); 2]);
                            state.copy_from_slice(&[n + 1, hash.bits(), hash.bits()]);
                        };
                        entry.change(charge, |state| state[0]);
                        let mut entry = narrow.take(hash);
                        entry.put(&[hash.bits() << 32 | (n + 1)], |state| state[0] & 0xffff_ffff);
                    }
                });
            }
        });
    }
}

/// A million or more clients with one request each cannot evict one with a large debt, and the
/// table does not grow.
fn flood(clients: u64) {
    let second = 1_000_000_000;
    // A small table scans all its slots for each client, so it gets fewer clients.
    for (keys_max, clients) in [(100, clients / 10), (100_000, clients)] {
        let table = BucketTable::new(keys_max, 1);
        let (bytes, debtor) = (table.bytes(), hash(u64::MAX));
        let debt = 3600 * second;
        table.take(debtor).put(&[debt], worth_at(0));
        for n in 0..clients {
            let now = n * 1000;
            let mut entry = table.take(hash(n));
            let state = [entry.get(0).max(now) + 10 * second];
            entry.put(&state, worth_at(now));
        }
        assert_eq!(table.peek(debtor), Some(debt));
        assert_eq!(table.bytes(), bytes);
        let slots = table.bytes() as u64 / 16;
        assert!(table.used() <= slots && table.dropped() >= clients - slots);
    }
}

#[test]
fn a_flood_of_new_keys_washes_no_debt_away() {
    flood(1_000_000);
}

#[test]
#[ignore = "the long suite runs it"]
fn a_flood_of_ten_million_new_keys_washes_no_debt_away() {
    flood(10_000_000);
}

#[test]
fn a_key_costs_24_bytes() {
    let table = BucketTable::new(1_000_000, 1);
    assert_eq!(table.bytes() / 1_000_000, 24);
}

/// Memory of this process that the system has provided, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096
}

#[test]
fn room_that_no_key_uses_takes_no_memory() {
    let before = resident();
    let table = BucketTable::new(40_000_000, 1);
    (0..1_000).for_each(|n| table.take(hash(n)).put(&[n + 1], |state| state[0]));
    let mut found = 0;
    table.for_each(|_, _| found += 1);
    assert_eq!((table.bytes() / 40_000_000, found), (24, 1_000));
    // Other tests of this file run at the same time.
    let grown = resident().saturating_sub(before) >> 20;
    assert!(grown < 200, "{grown} MiB of 915");
}

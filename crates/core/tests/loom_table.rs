//! The table under every order of its loads and stores that the memory model allows.
//!
//! Runs only under loom: `RUSTFLAGS="--cfg loom" cargo test -p evenkeel-core --test loom_table`.
//! Tables are tiny there: up to 2 keys are one exact set, more are a single set of 8. See
//! `tests/table.rs` for the table's behaviour over time.
#![cfg(loom)]

use evenkeel_core::key::KeyHash;
use evenkeel_core::table::BucketTable;
use loom::sync::Arc;
use loom::thread;

/// The value of the only word of a bucket is its worth.
fn worth(state: &[u64]) -> u64 {
    state[0]
}

fn key(bits: u64) -> KeyHash {
    KeyHash::from_bits(bits)
}

fn charge(table: &BucketTable, hash: KeyHash, amount: u64) {
    let mut entry = table.take(hash);
    let state = [entry.get(0) + amount];
    entry.put(&state, worth);
}

fn contents(table: &BucketTable) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    table.for_each(|hash, state| all.push((hash.bits(), state[0])));
    all.sort_unstable();
    all
}

/// Explores every order with up to four preemptions. Without a bound, the searches of eight slots
/// alone would take hours.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Runs `one` beside `other` on one table, then checks its contents. Each pair runs in both roles:
/// loom tries another order only where the thread that ran first wrote last.
fn race(
    table: fn() -> BucketTable,
    one: fn(&BucketTable),
    other: fn(&BucketTable),
    check: fn(&BucketTable, Vec<(u64, u64)>),
) {
    for (ours, theirs) in [(one, other), (other, one)] {
        explore(move || {
            let table = Arc::new(table());
            let thread = {
                let table = Arc::clone(&table);
                thread::spawn(move || theirs(&table))
            };
            ours(&table);
            thread.join().expect("the other thread ends");
            check(&table, contents(&table));
        });
    }
}

fn large() -> BucketTable {
    BucketTable::new(3, 1)
}

fn exact() -> BucketTable {
    BucketTable::new(2, 1)
}

/// A table with all eight slots in use; key 1 is worth least.
fn full() -> BucketTable {
    let table = large();
    (1..=8).for_each(|n| charge(&table, key(n), 10 * n));
    table
}

#[test]
fn one_key_is_inserted_once() {
    for table in [large, exact] {
        let add = |table: &BucketTable| charge(table, key(7), 1);
        race(table, add, add, |table, contents| {
            assert_eq!(contents, [(7, 2)]);
            assert_eq!(table.used(), 1);
        });
    }
}

#[test]
fn sums_are_exact() {
    fn both(table: &BucketTable) {
        charge(table, key(1), 1);
        charge(table, key(2), 10);
    }
    for table in [large, exact] {
        race(table, both, both, |_, contents| assert_eq!(contents, [(1, 2), (2, 20)]));
    }
}

#[test]
fn a_charge_never_lands_on_the_key_that_takes_the_slot() {
    let keep = |table: &BucketTable| charge(table, key(1), 1);
    let push_out = |table: &BucketTable| charge(table, key(9), 1000);
    race(full, keep, push_out, |table, contents| {
        let of = |bits| contents.iter().find(|(hash, _)| *hash == bits).map(|(_, state)| *state);
        assert_eq!(contents.len(), 8);
        assert_eq!(of(9), Some(1000));
        // Either charged and then evicted, or evicted and then added again with only the new
        // charge.
        assert!(of(1).is_none() || (of(1) == Some(1) && of(2).is_none()), "{contents:?}");
        assert_eq!(table.dropped(), if of(1).is_none() { 1 } else { 2 });
    });
}

#[test]
fn a_reader_without_the_bit_sees_its_own_key_or_none() {
    let read = |table: &BucketTable| {
        assert!(matches!(table.peek(key(1)), None | Some(0 | 10)));
        assert!(matches!(table.peek(key(9)), None | Some(0 | 1000)));
    };
    race(full, read, |table| charge(table, key(9), 1000), |_, _| ());
}

#[test]
fn a_reader_without_the_bit_always_sees_a_key_that_stays() {
    fn write(table: &BucketTable) {
        charge(table, key(9), 1000);
        charge(table, key(5), 1);
    }
    let read = |table: &BucketTable| {
        assert_eq!(table.peek(key(2)), Some(20));
        assert!(matches!(table.peek(key(5)), Some(50 | 51)));
    };
    race(full, read, write, |_, _| ());
}

#[test]
fn a_reader_of_an_exact_table_is_not_misled_by_what_moves() {
    // 1 and 2 have the same home slot; when 1 is evicted for 3, 2 moves into its slot.
    fn crowded() -> BucketTable {
        let table = exact();
        charge(&table, key(1), 1);
        charge(&table, key(2), 2);
        table
    }
    let read = |table: &BucketTable| {
        assert!(matches!(table.peek(key(1)), None | Some(1)));
        assert!(matches!(table.peek(key(2)), None | Some(2)));
    };
    let push_out = |table: &BucketTable| charge(table, key(3), 3);
    race(crowded, read, push_out, |_, contents| assert_eq!(contents, [(2, 2), (3, 3)]));
}

#[test]
fn an_exact_table_never_holds_more_than_its_keys() {
    let ours = |table: &BucketTable| (1..=2).for_each(|n| charge(table, key(n), n));
    let theirs = |table: &BucketTable| charge(table, key(3), 3);
    race(exact, ours, theirs, |table, contents| {
        assert_eq!(contents.len(), 2);
        assert_eq!(table.used(), 2);
    });
}

#[test]
fn what_two_limits_allow_once_is_taken_once() {
    explore(|| {
        let tables = Arc::new([large(), exact()]);
        let ask = |tables: &[BucketTable; 2]| {
            let mut first = tables[0].take(key(5));
            let mut second = tables[1].take(key(6));
            let passes = first.get(0) == 0 && second.get(0) == 0;
            if passes {
                first.put(&[1], worth);
                second.put(&[1], worth);
            }
            passes
        };
        let other = {
            let tables = Arc::clone(&tables);
            thread::spawn(move || ask(&tables))
        };
        let passed = [ask(&tables), other.join().expect("the other thread ends")];
        assert_eq!(passed.iter().filter(|passed| **passed).count(), 1);
        assert_eq!((contents(&tables[0]), contents(&tables[1])), (vec![(5, 1)], vec![(6, 1)]));
    });
}

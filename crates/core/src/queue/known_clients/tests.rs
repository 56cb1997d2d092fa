//! Who counts as having been here, what a flood of names displaces, and what stamps are charged.

use super::*;
use crate::units::{Cost, Weight};

fn at(seconds: u64) -> Time {
    Time(Nanos::from_secs(1_700_000_000 + seconds).0)
}

fn client(n: u64) -> KeyHash {
    KeyHash::from_bits((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn serve(known: &Known, n: u64, milli: u64, now: Time) {
    let cost = Cost::cpu(Nanos::from_millis(27));
    let at = Charged { known_as: client(n), cost, weight: Weight::ONE, milli };
    let base = known.stamp(client(n)).unwrap_or(now);
    known.handle_dispatch(&at, base, now);
}

fn auto(clients_max: usize) -> Known {
    Known::new(KnownClients::Auto { clients_max }).expect("not off")
}

fn begin_pressure(known: &mut Known, now: Time) {
    assert!(known.pressure.handle_work(Nanos::from_secs(2), now));
}

#[test]
fn two_requests_before_the_pressure_make_a_history() {
    let mut known = auto(100);
    serve(&known, 1, 0, at(0));
    serve(&known, 1, 0, at(1));
    serve(&known, 2, 0, at(1));
    begin_pressure(&mut known, at(2));
    let place = |n| known.standing_at_onset(client(n), at(2), at(2)).0;
    assert_eq!(place(1), Place::Credit);
    assert_eq!((place(2), place(3)), (STRANGERS, STRANGERS));
    // What is served later does not count.
    // What is served later does not count, until the next pressure.
    serve(&known, 2, PASS_MILLI_CPUS, at(3));
    serve(&known, 3, PASS_MILLI_CPUS, at(3));
    serve(&known, 3, PASS_MILLI_CPUS, at(3));
    let place = |n| known.standing_at_onset(client(n), at(4), at(4)).0;
    assert_eq!((place(2), place(3)), (STRANGERS, STRANGERS));
    known.pressure.handle_work(Nanos::ZERO, at(5));
    begin_pressure(&mut known, at(20));
    let place = |n| known.standing_at_onset(client(n), at(21), at(21)).0;
    assert_eq!((place(2), place(3), place(4)), (Place::Credit, Place::Credit, STRANGERS));
}

#[test]
fn a_million_names_make_no_regular_forgotten() {
    for clients_max in [4_096, 16_384] {
        let known = auto(clients_max);
        let regulars = 0..64;
        for second in 0..8 {
            regulars.clone().for_each(|n| serve(&known, n, 0, at(second)));
        }
        for n in 0..1_000_000 {
            serve(&known, 1_000 + n, PASS_MILLI_CPUS, at(10 + n / 30));
        }
        let now = at(10 + 1_000_000 / 30);
        assert!(regulars.clone().all(|n| known.find(client(n), now).is_some()));
        assert!(known.table.bytes() <= 36 * clients_max.max(EXACT) + 1_024);
    }
}

/// A small table has two slots for each client.
const EXACT: usize = 4_096 * 2;

#[test]
fn a_stamp_moves_by_what_is_used_under_pressure() {
    let known = auto(100);
    serve(&known, 1, 0, at(0));
    let is_about = |time: Time| {
        let stamp = known.stamp(client(1)).expect("a stamp");
        assert!(time.since(stamp) <= Nanos::from_millis(4) && stamp <= time, "{stamp:?}");
    };
    is_about(at(0));
    serve(&known, 1, PASS_MILLI_CPUS, at(1));
    is_about(at(0).plus(Nanos::from_millis(900)));
    let cost = |ms| Charged {
        known_as: client(1),
        cost: Cost::cpu(Nanos::from_millis(ms)),
        weight: Weight::ONE,
        milli: PASS_MILLI_CPUS,
    };
    known.correct(&cost(27), &cost(30));
    is_about(at(1));
    // A long absence is worth no more than ten minutes, and a debt is no longer than that.
    serve(&known, 1, 0, at(5_000));
    is_about(at(4_400));
    (0..2_000).for_each(|_| serve(&known, 1, PASS_MILLI_CPUS, at(5_000)));
    is_about(at(5_600));
    assert!(known.find(client(1), at(5_600 + 600 + 86_398)).is_some());
    assert!(known.find(client(1), at(5_600 + 600 + 86_400)).is_none());
}

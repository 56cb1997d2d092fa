//! Which clients instances report to each other, and the changes by a record.

use super::super::tests::{at, auto, begin_pressure, client, place, serve};
use super::super::{Known, PASS_MILLI_CPUS, STRANGERS};
use super::*;
use crate::queue::place::Place;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Tells `to` of what is due at `from`. Returns the number of records.
fn tell(from: &Known, to: &Known, now: Time) -> usize {
    let mut count = 0;
    from.history().take_due(now, |key, client| {
        count += 1;
        assert!(to.history().learn(key, client.record(now), now));
    });
    count
}

fn serve_twice(known: &Known, n: u64, milli: u64, seconds: u64) {
    serve(known, n, milli, at(seconds));
    serve(known, n, milli, at(seconds + 1));
}

fn end_pressure(known: &mut Known, seconds: u64) {
    known.pressure.handle_work(Nanos::ZERO, at(seconds));
    known.pressure.handle_work(Nanos::ZERO, at(seconds + 10));
    assert!(!known.applies());
}

#[test]
fn a_regular_of_one_instance_is_one_of_the_others() {
    let (a, mut b) = (auto(100), auto(100));
    serve_twice(&a, 1, 0, 0);
    serve(&a, 2, 0, at(1));
    assert_eq!(tell(&a, &b, at(5)), 1, "the other was served once");
    assert_eq!(tell(&a, &b, at(6)), 0, "nothing has changed");
    assert_eq!(tell(&b, &a, at(6)), 0, "what was heard is not passed on");
    begin_pressure(&mut b, at(10));
    assert_eq!([1, 2, 3].map(|n| place(&b, n, at(11))), [Place::Credit, STRANGERS, STRANGERS]);
    // A record that arrives under pressure counts by its proof.
    serve_twice(&a, 3, 0, 8);
    serve_twice(&a, 4, 0, 12);
    assert_eq!(tell(&a, &b, at(20)), 2);
    assert_eq!([3, 4].map(|n| place(&b, n, at(21))), [Place::Credit, STRANGERS]);
    // A client that is served here is reported.
    serve(&b, 1, 0, at(22));
    assert_eq!(tell(&b, &a, at(23)), 1);
}

#[test]
fn what_a_swarm_got_under_pressure_makes_it_a_regular_nowhere_else() {
    let (mut a, mut b) = (auto(100), auto(100));
    serve_twice(&a, 1, 0, 0);
    begin_pressure(&mut a, at(5));
    (6..9).for_each(|second| serve(&a, 2, PASS_MILLI_CPUS, at(second)));
    serve(&a, 1, 0, at(9));
    assert_eq!(tell(&a, &b, at(10)), 1, "the regular");
    begin_pressure(&mut b, at(20));
    assert_eq!([1, 2].map(|n| place(&b, n, at(21))), [Place::Credit, STRANGERS]);
    end_pressure(&mut a, 30);
    let mut all = 0;
    a.history().for_each_shared(at(41), |_, _| all += 1);
    assert_eq!((tell(&a, &b, at(41)), all), (0, 1), "nor when the pressure is over");
    // Served once more, it is reported with that proof: it was not here before this pressure.
    serve(&a, 2, 0, at(42));
    assert_eq!(tell(&a, &b, at(43)), 1);
    assert_eq!(place(&b, 2, at(44)), STRANGERS);
    end_pressure(&mut b, 50);
    begin_pressure(&mut b, at(70));
    assert_eq!(place(&b, 2, at(71)), Place::Credit);
    // Where it was served, all of that counts at the next pressure.
    begin_pressure(&mut a, at(72));
    assert_eq!(place(&a, 2, at(73)), Place::Credit);
}

#[test]
fn what_others_tell_displaces_no_regular() {
    for (clients_max, regulars) in [(100, 0..100), (100, 0..90), (8_192, 0..1_024)] {
        let known = auto(clients_max);
        regulars.clone().for_each(|n| serve_twice(&known, n, 0, 0));
        for n in 0..4 * clients_max as u64 {
            known.history().learn(client(1_000_000 + n), SERVED_MAX, at(10));
        }
        assert!(regulars.clone().all(|n| known.find(client(n), at(11)).is_some()));
        assert!(known.table.used() > clients_max as u64 * 9 / 10, "what finds room is kept");
        // A client that is served here always finds room.
        serve_twice(&known, 2_000_000, 0, 12);
        assert!(known.find(client(2_000_000), at(14)).is_some());
    }
}

#[test]
fn a_client_of_yesterday_is_not_learnt() {
    let (a, b) = (auto(100), auto(100));
    serve_twice(&a, 1, 0, 0);
    let mut told = Vec::new();
    a.history().for_each_shared(at(9), |key, client| told.push((key, client)));
    let [(key, client)] = told[..] else { panic!("{told:?}") };
    assert!(!b.history().learn(key, client.record(at(100_000)), at(100_000)));
    assert!(!b.history().learn(key, u64::MAX, at(9)));
    assert!(b.history().learn(key, 0, at(9)));
}

/// A record with ages of up to two hours, so that several are of the same client and time.
fn records() -> impl Strategy<Value = u64> {
    (0..7_200_u64, 0..7_200_u64, 0..=SERVED_MAX).prop_map(|(since, stamp, served)| {
        since << (STAMP_BITS + SERVED_BITS) | stamp << SERVED_BITS | served
    })
}

fn contents(known: &Known) -> BTreeMap<u64, Vec<u64>> {
    let mut all = BTreeMap::new();
    known.table.for_each(|key, state| {
        all.insert(key.bits(), state.to_vec());
    });
    all
}

/// A table with some clients that were served here, some of them under pressure.
fn served(steps: &[(u64, bool, u64)]) -> Known {
    let mut known = auto(100);
    let mut now = 0;
    for (n, pressure, seconds) in steps {
        if *pressure && !known.applies() {
            begin_pressure(&mut known, at(now));
        } else if !*pressure && known.applies() {
            end_pressure(&mut known, now);
            now += 10;
        }
        now += seconds;
        serve(&known, *n, 0, at(now));
    }
    known
}

/// A table that has learnt these records, in this order.
fn learnt(steps: &[(u64, bool, u64)], told: &[(u64, u64)]) -> Known {
    let known = served(steps);
    for (n, record) in told {
        assert!(known.history().learn(client(*n), *record, at(20_000)));
    }
    known
}

proptest! {
    /// Neither the order of records nor their repetition matters, whatever is known before.
    #[test]
    fn records_commute_and_may_come_twice(
        steps in prop::collection::vec((0..6_u64, any::<bool>(), 0..900_u64), 0..12),
        (first, second) in prop::collection::vec((0..6_u64, records()), 0..12)
            .prop_flat_map(|told| (Just(told.clone()), Just(told).prop_shuffle())),
    ) {
        let expected = contents(&learnt(&steps, &first));
        prop_assert_eq!(contents(&learnt(&steps, &second)), expected.clone());
        let twice = [first, second].concat();
        prop_assert_eq!(contents(&learnt(&steps, &twice)), expected);
    }

    /// No record costs a client what it has, and any number is a record.
    #[test]
    fn a_record_takes_nothing(
        steps in prop::collection::vec((0..2_u64, any::<bool>(), 0..900_u64), 0..12),
        record in any::<u64>(),
    ) {
        let now = at(20_000);
        let known = served(&steps);
        let before = known.find(client(1), now);
        known.history().learn(client(1), record, now);
        if let Some(before) = before {
            let after = known.find(client(1), now).expect("still there");
            prop_assert!(after.served >= before.served);
            prop_assert!(after.stamp <= before.stamp.max(now));
            prop_assert!(after.since <= before.since || before.served < HISTORY_SERVED_MIN);
        }
    }

    /// By another clock, a proof is never older than it was, and less than a second younger.
    #[test]
    fn a_record_is_as_old_by_any_clock(
        since in 0..90_000_000_u64,
        stamp in 0..90_000_000_u64,
        served in HISTORY_SERVED_MIN..1_000,
        ahead in 0..1_000_000_u64,
    ) {
        let ago = |millis| at(100_000).minus(Nanos::from_millis(millis));
        let sharing = Sharing::Due;
        let was = KnownClient { since: ago(since), stamp: ago(stamp), served, sharing };
        let record = SharedClient(was).record(at(100_000));
        let heard = KnownClient::heard(record, at(100_000 + ahead));
        let second = Nanos::from_secs(1);
        for (was, heard) in [(was.since, heard.since), (was.stamp, heard.stamp)] {
            let was = was.plus(Nanos::from_secs(ahead));
            prop_assert!(heard >= was && heard < was.plus(second), "{:?} {:?}", was, heard);
        }
        prop_assert_eq!(heard.served, served.min(HISTORY_SERVED_MIN + SERVED_MAX));
    }
}

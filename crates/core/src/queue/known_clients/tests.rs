//! Which clients count as having been here, which ones a flood of names displaces, and the charges
//! of stamps.

use super::*;
use crate::units::{Cost, Weight};

pub fn at(seconds: u64) -> Time {
    Time(Nanos::from_secs(1_700_000_000 + seconds).0)
}

pub fn client(n: u64) -> KeyHash {
    KeyHash::from_bits((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

pub fn serve(known: &Known, n: u64, milli: u64, now: Time) {
    let cost = Cost::cpu(Nanos::from_millis(27));
    let at = Charged { known_as: client(n), cost, weight: Weight::ONE, milli };
    let base = known.stamp(client(n)).unwrap_or(now);
    known.handle_dispatch(&at, base, now);
}

pub fn auto(clients_max: usize) -> Known {
    let known = KnownClients::Auto { clients_max };
    let settings = QueueSettings {
        concurrency: 1,
        reserve: 0,
        len_max: 1_000,
        wait_max: Nanos::from_secs(30),
        known,
        cpus_milli: 1_000,
        unit: WorkUnit::CpuTime,
        workers: None,
    };
    Known::new(&settings).expect("not off")
}

pub fn begin_pressure(known: &mut Known, now: Time) {
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
    // A small table looks through all its slots for each new name, so it gets fewer.
    for (clients_max, names) in [(4_096, 20_000), (16_384, 1_000_000)] {
        let known = auto(clients_max);
        let regulars = 0..64;
        for second in 0..8 {
            regulars.clone().for_each(|n| serve(&known, n, 0, at(second)));
        }
        for n in 0..names {
            serve(&known, 1_000 + n, PASS_MILLI_CPUS, at(10 + n / 30));
        }
        let now = at(10 + names / 30);
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

/// A table with what `known` would write at `written`, restored at `now`, and the number of clients
/// in it.
fn restored(known: &Known, ahead: Nanos, written: Time, now: Time) -> (Known, usize) {
    let after = auto(100);
    let (history, mut count) = (after.history(), 0);
    known.history().for_each(written, |key, state| {
        count += usize::from(history.restore(key, &state, ahead, now));
    });
    (after, count)
}

pub fn place(known: &Known, n: u64, now: Time) -> Place {
    known.standing_at_onset(client(n), now, now).0
}

#[test]
fn a_history_survives_a_restart_under_pressure() {
    let known = auto(100);
    (0..3).for_each(|second| serve(&known, 1, 0, at(second)));
    serve(&known, 2, PASS_MILLI_CPUS, at(3));
    let (mut after, count) = restored(&known, Nanos::ZERO, at(4), at(6));
    assert_eq!((count, after.stamp(client(1))), (2, known.stamp(client(1))));
    begin_pressure(&mut after, at(7));
    let places = [1, 2, 3].map(|n| place(&after, n, at(8)));
    assert_eq!(places, [Place::Credit, STRANGERS, STRANGERS]);
    // A ticket that was used is not used again.
    let ticket = Visit::Ticket(VisitTicket { id: client(2).bits(), first_came: at(0) });
    let (_, line, _) = after.visitor(ticket, at(8)).expect("valid");
    assert_ne!(line, Place::Line(Line::First));
}

#[test]
fn what_is_old_or_cannot_be_is_not_restored() {
    let known = auto(100);
    (0..3).for_each(|second| serve(&known, 1, 0, at(second)));
    serve(&known, 2, 0, at(3));
    // Served once, more than ten minutes ago.
    assert_eq!(restored(&known, Nanos::ZERO, at(604), at(604)).1, 1);
    assert_eq!(restored(&known, Nanos::ZERO, at(4), at(90_000)).1, 0);
    // The clock was set back by an hour since.
    let hour = Nanos::from_secs(3_600);
    assert_eq!(restored(&known, Nanos::ZERO, at(4), at(4).minus(hour)).1, 0);
    let (mut after, count) = restored(&known, hour, at(4), at(4).minus(hour));
    assert_eq!(count, 2);
    begin_pressure(&mut after, at(5).minus(hour));
    assert_eq!(place(&after, 1, at(6).minus(hour)), Place::Credit);
    let history = after.history();
    for wrong in [&[][..], &[1], &[0, 0], &[u64::MAX, u64::MAX], &[1, 2, 3]] {
        assert!(!history.restore(client(9), wrong, Nanos::ZERO, at(6)), "{wrong:?}");
    }
}

//! The bounds of the concurrency. An upper bound applies to a configured number and to a search,
//! and has no effect after its end. Brief requests may exceed what the search has found.

use super::{NOW, arrival, settings};
use evenkeel_core::meter::estimate::RouteHash;
use evenkeel_core::queue::admission::{Admission, AdmissionOutcome};
use evenkeel_core::queue::concurrency::ConcurrencySearch;
use evenkeel_core::queue::{QueuePlace, RequestId};
use evenkeel_core::units::{Cost, Nanos, Time};

/// Adds this number of requests, each of another client.
fn arrive(admission: &mut Admission, count: u64, now: Time) {
    arrive_at_cost(admission, count, 100, now);
}

fn arrive_at_cost(admission: &mut Admission, count: u64, cost: u64, now: Time) {
    for from in 0..count {
        admission.handle_arrival(arrival(from, QueuePlace::Credit, cost), now);
    }
}

/// The requests that get slots now.
fn dispatched(admission: &mut Admission, now: Time) -> Vec<RequestId> {
    let outcomes = std::iter::from_fn(|| admission.poll(now));
    let slot = |outcome| match outcome {
        AdmissionOutcome::Slot(id) => id,
        other => panic!("{other:?}"),
    };
    outcomes.map(slot).collect()
}

#[test]
fn a_configured_concurrency_is_never_exceeded_and_comes_back() {
    let mut admission = Admission::new(settings(8, 0), None);
    admission.set_bound(Some(3), NOW);
    arrive(&mut admission, 20, NOW);
    let mut running = dispatched(&mut admission, NOW);
    assert_eq!((running.len(), admission.concurrency()), (3, 3));
    admission.set_bound(Some(5), NOW);
    running.extend(dispatched(&mut admission, NOW));
    assert_eq!(running.len(), 5);
    // A lower bound ends no request; the next ones wait for it.
    admission.set_bound(Some(2), NOW);
    for id in running.split_off(2) {
        admission.handle_done(id, Cost(100), None, NOW);
        assert!(dispatched(&mut admission, NOW).is_empty());
    }
    admission.handle_done(running[0], Cost(100), None, NOW);
    assert_eq!(dispatched(&mut admission, NOW).len(), 1);
    admission.set_bound(Some(100), NOW);
    assert_eq!(admission.concurrency(), 8);
    admission.set_bound(None, NOW);
    assert_eq!(dispatched(&mut admission, NOW).len(), 6);
    assert_eq!(admission.unbounded_concurrency(), 8);
}

#[test]
fn exempt_requests_are_within_the_bound_and_one_slot_is_left() {
    let mut admission = Admission::new(settings(8, 0), None);
    admission.set_bound(Some(3), NOW);
    admission.handle_exempt_arrivals(2);
    arrive(&mut admission, 20, NOW);
    assert_eq!(dispatched(&mut admission, NOW).len(), 1);
    admission.set_bound(Some(1), NOW);
    admission.handle_exempt_ends(2);
    assert_eq!(dispatched(&mut admission, NOW).len(), 0);
}

/// A backend that works on any number of requests at once, so the search goes up.
#[test]
fn a_search_stays_within_the_bound_and_goes_on_without_it() {
    let mut admission = Admission::new(settings(1, 0), Some(ConcurrencySearch::new(1.0)));
    let mut now = NOW;
    let mut running = Vec::new();
    let mut most = |admission: &mut Admission, rounds| {
        let mut most = 0;
        for _ in 0..rounds {
            arrive(admission, 64, now);
            running.extend(dispatched(admission, now));
            most = most.max(running.len());
            now = now.plus(Nanos::from_millis(200));
            for id in running.drain(..) {
                let worked = Some((RouteHash::UNKNOWN, Nanos::from_millis(200)));
                admission.handle_done(id, Cost(100), worked, now);
            }
        }
        most
    };
    admission.set_bound(Some(4), NOW);
    assert_eq!(most(&mut admission, 60), 4);
    admission.set_bound(None, NOW);
    let without = most(&mut admission, 200);
    assert!(without > 8, "{without}");
}

/// 64 clients of a backend that completes 50 000 brief requests a second: all of them run at
/// once, although the search has no more than a few slots for each processor. A route that takes
/// long has only those.
#[test]
fn brief_requests_run_at_once_and_long_ones_do_not() {
    let mut admission = Admission::new(settings(1, 0), Some(ConcurrencySearch::new(1.0)));
    let (took, cost) = (Nanos(20_000), 20_000);
    let mut now = NOW;
    let mut running = std::collections::VecDeque::new();
    for number in 0..150_000 {
        if number == 0 {
            arrive_at_cost(&mut admission, 64, cost, now);
        }
        running.extend(dispatched(&mut admission, now));
        now = now.plus(took);
        let id = running.pop_front().expect("one runs");
        // Its task was woken some time after it got its slot.
        let worked = Some((RouteHash::UNKNOWN, Nanos(took.0 * running.len() as u64 / 2)));
        admission.handle_done(id, Cost(cost), worked, now);
        arrive_at_cost(&mut admission, 1, cost, now);
    }
    running.extend(dispatched(&mut admission, now));
    assert_eq!((running.len(), admission.concurrency()), (64, 4));
    for id in running.drain(..) {
        admission.handle_done(id, Cost(cost), None, now);
    }
    arrive_at_cost(&mut admission, 100, 5_000 * cost, now);
    assert_eq!(dispatched(&mut admission, now).len(), 4);
}

/// The same backend, on a machine that stands still for 5 ms ten times a second. All that are with
/// the backend then end late, which says nothing of how many it accepts.
#[test]
fn a_machine_that_stands_still_leaves_brief_requests_their_slots() {
    let mut admission = Admission::new(settings(1, 2), Some(ConcurrencySearch::new(1.0)));
    let took = Nanos(20_000);
    let (mut now, mut spent) = (NOW, 0);
    let mut running = std::collections::VecDeque::new();
    let mut slots = Vec::new();
    arrive_at_cost(&mut admission, 64, took.0, now);
    for number in 1..250_000 {
        running.extend(dispatched(&mut admission, now).into_iter().map(|id| (id, now, spent)));
        let stands = if number % 5_000 == 0 { Nanos::from_millis(5) } else { Nanos::ZERO };
        let passed = took.plus(stands);
        now = now.plus(passed);
        // As with `cost: shared`.
        spent += passed.0 / running.len() as u64;
        let (id, since, before) = running.pop_front().expect("one runs");
        let worked = Some((RouteHash::UNKNOWN, now.since(since)));
        admission.handle_done(id, Cost(spent - before), worked, now);
        arrive_at_cost(&mut admission, 1, took.0, now);
        if number % 10_000 == 0 {
            slots.push((running.len(), admission.concurrency(), admission.accepted_max()));
        }
    }
    let (running, concurrency, accepted) = *slots.last().expect("some");
    assert!(running > 16 && concurrency >= 4 && accepted.is_none(), "{slots:?}");
}

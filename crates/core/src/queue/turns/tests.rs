//! Property test: a member gains nothing by requests that it opens and cancels, whatever V does in
//! the meantime.

use super::*;
use proptest::prelude::*;
use std::vec::Vec;

const X: u8 = 1;
const OTHER: u8 = 2;

#[derive(Clone, Debug)]
enum Event {
    /// Other members are served, so V advances.
    Pass(u64),
    /// A real request, which costs what it was estimated at.
    Ask(u64),
    /// An extra request, which will be cancelled.
    Extra(u64),
    /// A request that waits while V advances, and is cancelled before it is served.
    Peep(u64, u64),
    /// An extra request ends, and has cost nothing.
    Cancel(usize),
    /// The estimate of an extra request rises while it runs.
    Raise(usize, u64),
    /// A real request ends.
    Done(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        (0..60_u64).prop_map(Event::Pass),
        (1..50_u64).prop_map(Event::Ask),
        (1..50_u64).prop_map(Event::Extra),
        (1..50_u64, 0..60_u64).prop_map(|(cost, length)| Event::Peep(cost, length)),
        any::<usize>().prop_map(Event::Cancel),
        (any::<usize>(), 1..50_u64).prop_map(|(which, more)| Event::Raise(which, more)),
        any::<usize>().prop_map(Event::Done),
    ];
    prop::collection::vec(event, 1..80)
}

/// Serves a request of a member that costs what it was estimated at.
fn serve<K: Copy + Ord + Hash>(turns: &mut Turns<K>, key: K, cost: u64) {
    let length = length(Cost(cost), Weight::ONE);
    turns.serve(key, RequestSize { length, is_guess: false }, None);
}

struct World {
    turns: Turns<u8>,
    id: u64,
}

impl World {
    fn new() -> World {
        let mut turns = Turns::new(TurnOrder::Start, 10);
        // Something is always in service, so that no member is forgotten.
        serve(&mut turns, OTHER, 1);
        World { turns, id: 0 }
    }

    fn ask(&mut self, cost: u64) {
        self.id += 1;
        let head = HeadRequest {
            is_known: true,
            estimate: Cost(cost),
            id: RequestId(self.id),
            weight: Weight::ONE,
            base: Time::ZERO,
            since: Time::ZERO,
        };
        self.turns.set_head(X, Some(head));
        serve(&mut self.turns, X, cost);
    }

    fn start(&self) -> Tag {
        let finish = self.turns.members.get(&X).map_or(0, |member| member.finish);
        finish.max(self.turns.virtual_time)
    }
}

fn take(open: &mut Vec<u64>, which: usize) -> Option<u64> {
    (!open.is_empty()).then(|| open.swap_remove(which % open.len()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn cancelled_requests_bring_nobody_forward(events in events()) {
        let (mut with, mut without) = (World::new(), World::new());
        let (mut meant, mut extra, mut now) = (Vec::new(), Vec::new(), 0);
        for event in events {
            match event {
                Event::Pass(length) => now += Tag::from(length) * TAG_UNITS_PER_NANO,
                Event::Ask(cost) => {
                    with.ask(cost);
                    without.ask(cost);
                    meant.push(cost);
                }
                Event::Extra(cost) => {
                    with.ask(cost);
                    extra.push(cost);
                }
                Event::Peep(cost, length) => {
                    let (estimate, weight) = (Cost(cost), Weight::ONE);
                    let (id, base, since) = (RequestId(0), Time::ZERO, Time::ZERO);
                    let head = HeadRequest { is_known: true, estimate, id, weight, base, since };
                    with.turns.set_head(X, Some(head));
                    now += Tag::from(length) * TAG_UNITS_PER_NANO;
                    with.turns.virtual_time = with.turns.virtual_time.max(now);
                    with.turns.set_head(X, None);
                }
                Event::Cancel(which) => if let Some(cost) = take(&mut extra, which) {
                    with.turns.settle(X, Cost(cost), Weight::ONE, Cost::ZERO);
                },
                Event::Raise(which, more) => if let Some(cost) = take(&mut extra, which) {
                    with.turns.raise(X, length(Cost(more), Weight::ONE));
                    extra.push(cost + more);
                },
                Event::Done(which) => if let Some(cost) = take(&mut meant, which) {
                    for world in [&mut with, &mut without] {
                        world.turns.settle(X, Cost(cost), Weight::ONE, Cost(cost));
                    }
                },
            }
            // Both worlds have the same virtual time.
            now = now.max(with.turns.virtual_time).max(without.turns.virtual_time);
            (with.turns.virtual_time, without.turns.virtual_time) = (now, now);
            prop_assert!(with.start() >= without.start());
        }
    }
}

/// If the estimate was too high, the rest is given back, but not the entry fee: its place in
/// the order was the one that the estimate had bought.
#[test]
fn what_was_estimated_too_high_is_given_back() {
    let mut world = World::new();
    world.ask(100);
    let finish = |world: &World| world.turns.members.get(&X).map(|member| member.finish);
    assert_eq!(finish(&world), Some(200 * TAG_UNITS_PER_NANO));
    world.turns.settle(X, Cost(100), Weight::ONE, Cost(30));
    assert_eq!(finish(&world), Some(130 * TAG_UNITS_PER_NANO));
    assert_eq!(world.turns.virtual_time, 100 * TAG_UNITS_PER_NANO, "it is no further ahead");
}

#[test]
fn only_so_many_who_have_gone_are_remembered() {
    let mut turns = Turns::new(TurnOrder::Start, 10);
    serve(&mut turns, u64::MAX, 1);
    for key in 0..1_000 {
        serve(&mut turns, key, 1_000 + key);
        turns.settle(key, Cost(1_000 + key), Weight::ONE, Cost(1_000 + key));
    }
    assert!((11..=21).contains(&turns.len()), "{}", turns.len());
    assert!(turns.members.contains_key(&999), "the one most ahead");
    turns.settle(u64::MAX, Cost(1), Weight::ONE, Cost(1));
    assert_eq!(turns.len(), 0);
}

//! Swarms that have something in common, or nothing, beside returning clients and newcomers.

use super::*;

const PAGE: Cost = Cost(30_000_000);
/// The number of the first newcomer. Those of a swarm are below.
const PERSON: u64 = 1_000_000;

/// A property of a kind; `of` distinguishes it among those of the kind.
fn property(kind: u64, of: u64) -> Option<KeyHash> {
    Some(KeyHash::from_bits(mixed(kind << 56 | of)))
}

/// Properties with these values, all of which are different kinds.
fn properties(values: [u64; PROPERTIES_MAX]) -> Properties {
    core::array::from_fn(|kind| property(kind as u64, values[kind]))
}

/// People are alike in kinds 4 to 7, and come from one of 20 networks (kind 0) with one of six
/// browsers (kind 1).
fn person(number: u64) -> Properties {
    properties([number % 20, number % 6, number % 3, number % 5, 0, 0, 0, 0])
}

fn at(millis: u64) -> Time {
    Time(Nanos::from_secs(1_000_000).0 + Nanos::from_millis(millis).0)
}

/// A finder that has counted this many returning clients.
fn after(clients: u64) -> SwarmFinder {
    let mut finder = SwarmFinder::default();
    (0..clients).for_each(|number| finder.handle_client(&person(number), at(0)));
    finder
}

/// Sends a page's request of the stranger with this number. Returns whether it burns.
fn handle_stranger(
    finder: &mut SwarmFinder,
    number: u64,
    properties: &Properties,
    now: Time,
) -> bool {
    finder.handle_request(false, KeyHash::from_bits(1 + number), properties, PAGE, now)
}

/// Sends 30 requests of a swarm each second, and a newcomer each second. Returns the second in
/// which a request of the swarm first burns, if one does within a minute, and the number of
/// newcomers that burn.
fn run(finder: &mut SwarmFinder, swarm: impl Fn(u64) -> Properties) -> (Option<u64>, u64) {
    let (mut first, mut people) = (None, 0);
    for second in 0..60 {
        for request in 0..30 {
            let number = second * 30 + request;
            let now = at(1_000 * second + 33 * request);
            if handle_stranger(finder, number, &swarm(number), now) && first.is_none() {
                first = Some(second);
            }
        }
        let (number, now) = (PERSON + second, at(1_000 * second + 999));
        people += u64::from(handle_stranger(finder, number, &person(number), now));
    }
    (first, people)
}

#[test]
fn a_swarm_that_shares_one_property_burns_and_newcomers_do_not() {
    let mut finder = after(200);
    let (burns, people) = run(&mut finder, |number| {
        properties([1_000 + number, 77, number % 3, number % 5, 0, 0, 0, 0])
    });
    assert!(burns.is_some_and(|second| second <= 3), "{burns:?}");
    assert_eq!(people, 0);
    let [burning] = finder.burning() else { panic!("{:?}", finder.burning()) };
    // Nearly all people are like it in the other properties that it shares.
    assert!(burning.group.properties().eq([(1, property(1, 77).expect("known"))]));
    assert!(burning.cost_milli > 900 && burning.clients_milli < 20, "{burning:?}");
    assert!(!finder.burns(&person(7)));
    finder.handle_pressure_end();
    assert!(finder.burning().is_empty());
}

#[test]
fn a_swarm_is_found_by_two_properties_that_people_have_one_by_one() {
    let mut finder = after(500);
    // Kind 0 alone has a twentieth of all people, kind 1 a sixth, both a sixtieth at most.
    let (burns, people) = run(&mut finder, |number| {
        properties([3, 2, 100 + number % 50, 100 + number % 70, 0, 0, 0, 0])
    });
    assert!(burns.is_some_and(|second| second <= 3), "{burns:?}");
    // Some newcomers have both properties by chance.
    assert!(people <= 6, "{people}");
}

#[test]
fn a_swarm_that_is_like_people_does_not_burn() {
    let mut finder = after(500);
    let (burns, people) = run(&mut finder, |number| person(mixed(number)));
    assert_eq!((burns, people), (None, 0));
    assert!(finder.burning().is_empty());
}

#[test]
fn without_returning_clients_nothing_burns() {
    let mut finder = SwarmFinder::default();
    assert_eq!(run(&mut finder, |_| properties([9; PROPERTIES_MAX])).0, None);
    // Ten are not enough to say that what none of them has is rare.
    let mut finder = after(10);
    assert_eq!(run(&mut finder, |_| properties([9; PROPERTIES_MAX])).0, None);
}

#[test]
fn a_swarm_of_several_groups_burns_in_all_of_them() {
    let mut finder = after(500);
    let (burns, _) = run(&mut finder, |number| {
        let group = 100 + number % 4;
        properties([1_000 + number, group, group, number % 5, 0, 0, 0, 0])
    });
    assert!(burns.is_some_and(|second| second <= 5), "{burns:?}");
    for group in 0..4 {
        let one = properties([1, 100 + group, 100 + group, 2, 0, 0, 0, 0]);
        assert!(finder.burns(&one), "{group}");
    }
}

#[test]
fn a_group_stops_when_its_swarm_has_gone() {
    let mut finder = after(200);
    let swarm = |number| properties([1_000 + number, 77, 0, 0, 0, 0, 0, 0]);
    run(&mut finder, swarm);
    assert!(finder.burns(&swarm(1)));
    for second in 60..160 {
        for request in 0..30 {
            let number = second * 30 + request;
            let now = at(1_000 * second + 33 * request);
            handle_stranger(&mut finder, number, &person(mixed(number)), now);
        }
    }
    assert!(!finder.burns(&swarm(1)), "{:?}", finder.burning());
}

/// Eight newcomers with a browser of their own ask for two pages a second each, and a swarm that is
/// like all people for thirty.
#[test]
fn a_few_newcomers_that_ask_often_do_not_burn() {
    let mut finder = after(200);
    for step in 0..30 * 60 {
        let now = at(33 * step);
        handle_stranger(&mut finder, step, &person(mixed(step)), now);
        let (number, mut newcomer) = (step % 8, person(step % 8));
        newcomer[1] = property(1, 77);
        if step % 2 == 0 {
            let burns = handle_stranger(&mut finder, PERSON + number, &newcomer, now);
            assert!(!burns, "{:?}", finder.burning());
        }
    }
}

#[test]
fn clients_are_counted_ever_more_rarely() {
    let counted = |secs| {
        let known_for = Nanos::from_secs(secs);
        (0..100_u64).filter(move |served| SwarmFinder::counts_client(*served, known_for))
    };
    assert!(counted(36_000).eq([2, 4, 8, 16, 32, 64]));
    // A client with many requests in a short time does not count ever more.
    assert!(counted(30).eq([2, 4, 8, 16]));
    assert!(counted(600).eq([2, 4, 8, 16, 32]));
}

/// Programs are like the swarm in that they are no browsers, but have names of their own.
#[test]
fn a_newcomer_that_is_like_a_swarm_in_some_properties_does_not_burn() {
    let mut finder = after(200);
    let program = properties([5, 9, 1, 1, 8, 0, 0, 0]);
    for second in 0..10 {
        for request in 0..30 {
            let number = second * 30 + request;
            let one = properties([1_000 + number, 77, number % 3, number % 5, 8, 0, 0, 0]);
            handle_stranger(&mut finder, number, &one, at(1_000 * second + 33 * request));
        }
        if second % 3 == 2 {
            let now = at(1_000 * second + 999);
            let burns = handle_stranger(&mut finder, PERSON + second, &program, now);
            assert!(!burns, "{second}: {:?}", finder.burning());
        }
    }
    assert!(finder.burns(&properties([1, 77, 1, 1, 8, 0, 0, 0])));
}

//! Tickets, passes and the waiting room: who goes before strangers, for how long, and what a
//! visitor is told. The processor is busy, and pressure begins with the first strangers.

use super::*;
use evenkeel_core::queue::standing::{
    PASS_MILLI_CPUS, STRANGER_WAIT, TICKET_AGE_MAX, VISITOR_WAIT, VisitPass, VisitTicket,
};

/// The cost of each page: half a second.
const PAGE: u64 = 500_000_000;
/// All that happens is this long after the zero of the clock.
const START: Time = Time(3_600_000_000_000);

fn at(seconds: u64) -> Time {
    START.plus(Nanos::from_secs(seconds))
}

/// A queue under pressure: one request runs, and six of strangers wait, as programs do.
fn pressed() -> (Queue, RequestId) {
    let known = KnownClients::Auto { clients_max: 100 };
    let mut queue = Queue::new(QueueSettings { known, ..settings(1, 0) });
    let running = queue.handle_arrival(page(1_000, Visit::Unknown, false), at(0));
    assert_eq!(queue.poll_dispatch(at(0)), Some(running));
    for n in 0..6 {
        queue.handle_arrival(page(n, Visit::Unknown, false), at(0));
    }
    assert_eq!(queue.poll_dispatch(at(0)), None);
    assert_eq!(queue.pressure_since(), Some(at(0)));
    (queue, running)
}

fn page(from: u64, visit: Visit, accepts_waiting_page: bool) -> Arrival {
    Arrival { visit, accepts_waiting_page, ..arrival(from, QueuePlace::Credit, PAGE) }
}

fn ticket(id: u64, first_came: Time) -> Visit {
    Visit::Ticket(VisitTicket { id, first_came })
}

/// Ends a request and returns the next one.
fn next(queue: &mut Queue, running: RequestId, now: Time) -> Option<RequestId> {
    queue.handle_done(running, Cost(PAGE), now);
    queue.poll_dispatch(now)
}

/// What a page costs a pass, in time.
fn page_moves() -> Nanos {
    Nanos(PAGE * 1_000 / PASS_MILLI_CPUS)
}

#[test]
fn a_ticket_goes_before_strangers_and_is_good_for_one_page() {
    let (mut queue, running) = pressed();
    let copies =
        [1, 2].map(|n| queue.handle_arrival(page(50 + n, ticket(907, START), true), at(1)));
    assert_eq!(next(&mut queue, running, at(1)), Some(copies[0]));
    assert_eq!(queue.newcomer_since(copies[0]), Some(START));
    let stamp = START.plus(page_moves());
    // A stamp is kept to the millisecond.
    let pass = queue.pass_of(copies[0]).expect("a pass");
    assert!(pass.id == 907 && stamp.since(pass.stamp) < Nanos::from_millis(2), "{pass:?}");
    // The other copy waits behind all strangers, who came before it.
    let mut running = copies[0];
    for _ in 0..6 {
        running = next(&mut queue, running, at(2)).expect("a stranger");
        assert_ne!(running, copies[1]);
        assert_eq!((queue.pass_of(running), queue.newcomer_since(running)), (None, None));
    }
    assert_eq!(next(&mut queue, running, at(2)), Some(copies[1]));
    assert_eq!(queue.newcomer_since(copies[1]), None);
}

/// A ticket that was served stands as the pass that it became: its use moves it on, whatever the
/// door sends.
#[test]
fn a_ticket_that_was_served_counts_as_its_pass() {
    let (mut queue, running) = pressed();
    let first = queue.handle_arrival(page(50, ticket(907, START), true), at(1));
    assert_eq!(next(&mut queue, running, at(1)), Some(first));
    let later = START.plus(page_moves()).plus(Nanos::from_secs(1));
    let again = queue.handle_arrival(page(51, ticket(907, START), true), later);
    let other = queue.handle_arrival(page(52, ticket(908, later), true), later);
    assert_eq!(next(&mut queue, first, later), Some(other), "first pages go first");
    assert_eq!(next(&mut queue, other, later), Some(again), "then those that were served");
    assert_eq!(queue.newcomer_since(again), None);
    let pass = queue.pass_of(again).expect("a pass");
    assert!(pass.stamp > START.plus(page_moves()), "{pass:?}");
    // Of a pass from the door and what is remembered here, the later stamp counts.
    let old = Visit::Pass(VisitPass { id: 907, stamp: START });
    let old = queue.handle_arrival(page(53, old, true), later);
    let fresh = Visit::Pass(VisitPass { id: 909, stamp: START.plus(page_moves()) });
    let fresh = queue.handle_arrival(page(54, fresh, true), later);
    assert_eq!(next(&mut queue, again, later), Some(fresh));
    assert_ne!(next(&mut queue, fresh, later), Some(old), "it has used more than it may");
}

/// With many requests at once a pass gets no more than with one after the other.
#[test]
fn copies_of_a_pass_share_one_place_in_line() {
    let (mut queue, running) = pressed();
    let visitor = |id, stamp| page(id, Visit::Pass(VisitPass { id, stamp }), false);
    let copies = [0; 3].map(|_| queue.handle_arrival(visitor(7, at(0)), at(100)));
    let other = queue.handle_arrival(visitor(8, at(10)), at(100));
    let mut order = vec![next(&mut queue, running, at(100)).expect("the first")];
    while order.len() < 4 {
        let running = order[order.len() - 1];
        order.push(next(&mut queue, running, at(100)).expect("one more"));
    }
    assert_eq!(order, [copies[0], other, copies[1], copies[2]]);
}

/// Two requests of strangers come while a page costs more than usual. Then it costs what it usually
/// does, and a stranger comes for each one that is served.
#[test]
fn who_comes_while_pages_are_dear_does_not_wait_behind_all_that_come_later() {
    for (dear, usual) in [(6 * PAGE, PAGE), (12 * PAGE, 10 * PAGE)] {
        let (mut queue, mut running) = pressed();
        let stranger = |from, cost| Arrival {
            estimate: Cost(cost),
            ..on("/page", page(from, Visit::Unknown, false))
        };
        let dear = [50, 51].map(|from| queue.handle_arrival(stranger(from, dear), at(1)));
        queue.handle_estimate(route("/page"), Cost(usual));
        let mut order = Vec::new();
        for n in 0..40 {
            let now = at(2 + n / 2);
            queue.handle_arrival(stranger(100 + n, usual), now);
            running = next(&mut queue, running, now).expect("a stranger");
            order.push(running);
        }
        let turns = dear.map(|id| order.iter().position(|one| *one == id));
        assert!(turns.iter().all(|turn| turn.is_some_and(|turn| turn < 12)), "{turns:?}");
    }
}

#[test]
fn tickets_that_are_too_old_or_of_the_future_are_worth_nothing() {
    let (mut queue, running) = pressed();
    let now = at(700);
    let too_old = now.minus(TICKET_AGE_MAX).minus(Nanos(1));
    let bad = [too_old, now.plus(Nanos(1))];
    let bad = bad.map(|came| queue.handle_arrival(page(50, ticket(came.0, came), true), now));
    let oldest = now.minus(TICKET_AGE_MAX);
    let good = queue.handle_arrival(page(51, ticket(901, oldest), true), now);
    assert_eq!(next(&mut queue, running, now), Some(good));
    let stranger = next(&mut queue, good, now).expect("a stranger");
    assert!(!bad.contains(&stranger));
    queue.handle_timeout(now.plus(STRANGER_WAIT).plus(Nanos::from_secs(2)));
    let entries: Vec<_> = std::iter::from_fn(|| queue.poll_waiting_room()).collect();
    assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), bad);
    assert!(entries.iter().all(|entry| entry.needs_ticket && entry.first_came == now));
}

#[test]
fn a_waiting_page_comes_after_two_seconds_or_three_with_a_ticket() {
    let (mut queue, _running) = pressed();
    let new = queue.handle_arrival(page(50, Visit::Unknown, true), at(1));
    let back = queue.handle_arrival(page(51, ticket(907, START), true), at(1));
    let program = queue.handle_arrival(page(52, Visit::Unknown, false), at(1));
    let due = [at(1).plus(STRANGER_WAIT), at(1).plus(VISITOR_WAIT)];
    for (due, id, needs_ticket, first_came) in
        [(due[0], new, true, at(1)), (due[1], back, false, START)]
    {
        assert_eq!(queue.poll_timeout(), Some(due));
        queue.handle_timeout(due.minus(Nanos(1)));
        assert_eq!(queue.poll_waiting_room(), None);
        queue.handle_timeout(due);
        let entry = queue.poll_waiting_room().expect("a waiting page");
        assert_eq!((entry.id, entry.needs_ticket), (id, needs_ticket));
        assert_eq!(entry.first_came, first_came);
        assert!(entry.come_back_after >= Nanos::from_secs(1), "{entry:?}");
        assert_eq!(queue.poll_waiting_room(), None);
    }
    assert_eq!(queue.handle_cancel(program), CancelOutcome::Waiting, "it waits for its turn");
}

/// Visitors that came a second apart get their turns two seconds apart, so one that came ten
/// seconds after the last of them waits for twenty.
#[test]
fn a_visitor_is_told_the_wait_at_the_present_pace() {
    let (mut queue, mut running) = pressed();
    for n in 0..8 {
        queue.handle_arrival(page(50 + n, ticket(901 + n, at(n)), true), at(30));
    }
    for n in 0..7 {
        running = next(&mut queue, running, at(31 + 2 * n)).expect("a visitor");
        assert_eq!(queue.newcomer_since(running), Some(at(n)));
    }
    let now = at(44);
    let last = queue.handle_arrival(page(70, ticket(970, at(16)), true), now);
    queue.handle_arrival(page(71, ticket(971, at(17)), true), at(45));
    queue.handle_timeout(now.plus(VISITOR_WAIT));
    let mut entries = std::iter::from_fn(|| queue.poll_waiting_room());
    let entry = entries.find(|entry| entry.id == last).expect("a waiting page");
    assert_eq!(entry.first_came, at(16));
    let wait = entry.expected_wait.as_secs_f64();
    assert!((19.0..=21.0).contains(&wait), "{wait} s");
    // It comes back after three tenths of the time that it has been waiting.
    let back = entry.come_back_after.as_secs_f64();
    assert!((9.2..=9.4).contains(&back), "{back} s");
}

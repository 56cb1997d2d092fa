//! Which request leaves a full queue under pressure: never that of a client that was here before,
//! while visitors or strangers wait, and a browser gets a waiting page instead of a refusal.

use super::*;
use evenkeel_core::queue::standing::{VisitPass, VisitTicket};

/// A regular, and the client whose request is with the backend.
const REGULAR: u64 = 1;
const OCCUPANT: u64 = 50;
const LEN_MAX: usize = 10;
const PAGE: u64 = 27_000_000;

fn at(seconds: u64) -> Time {
    NOW.plus(Nanos::from_secs(seconds))
}

/// A queue under pressure with an occupied slot, and with a regular from before.
fn under_pressure() -> Queue {
    let known = KnownClients::Auto { clients_max: 100 };
    let mut queue = Queue::new(QueueSettings { len_max: LEN_MAX, known, ..settings(1, 0) });
    for second in 0..2 {
        let id = queue.handle_arrival(arrival(REGULAR, QueuePlace::Credit, PAGE), at(second));
        assert_eq!(queue.poll_dispatch(at(second)), Some(id));
        queue.handle_done(id, Cost(PAGE), at(second));
    }
    for cost in [PAGE, 2_000_000_000] {
        queue.handle_arrival(arrival(OCCUPANT, QueuePlace::Credit, cost), at(5));
    }
    let first = queue.poll_dispatch(at(5)).expect("a free slot");
    queue.handle_done(first, Cost(PAGE), at(5));
    assert!(queue.poll_dispatch(at(5)).is_some());
    assert_eq!((queue.pressure_since(), queue.waiting()), (Some(at(5)), 0));
    queue
}

/// Passes are cheap to collect, and each of them is one client.
#[test]
fn visitors_with_passes_do_not_push_regulars_out_of_a_full_queue() {
    let mut queue = under_pressure();
    let mut newest = None;
    for id in 0..LEN_MAX as u64 {
        let visit = Visit::Pass(VisitPass { id: 1_000 + id, stamp: NOW });
        let arrival = Arrival { visit, ..arrival(60, QueuePlace::Credit, PAGE) };
        newest = Some(queue.handle_arrival(arrival, at(6)));
    }
    assert_eq!((queue.waiting(), queue.poll_refused()), (LEN_MAX, None));
    let regular = queue.handle_arrival(arrival(REGULAR, QueuePlace::Credit, PAGE), at(6));
    assert_eq!(queue.poll_refused().map(|refused| refused.id), newest);
    assert_eq!(queue.handle_cancel(regular), CancelOutcome::Waiting);
}

/// Programs that wait as strangers do not keep a browser from getting its place in line.
#[test]
fn a_browser_that_finds_the_queue_full_gets_a_waiting_page() {
    let mut queue = under_pressure();
    for n in 100..100 + LEN_MAX as u64 {
        queue.handle_arrival(arrival(n, QueuePlace::Credit, PAGE), at(6));
    }
    let navigation = |n| {
        let of = arrival(n, QueuePlace::Credit, PAGE);
        Arrival { accepts_waiting_page: true, ..of }
    };
    let browser = queue.handle_arrival(navigation(200), at(7));
    let entry = queue.poll_waiting_room().expect("a waiting page");
    assert_eq!((entry.id, entry.needs_ticket, entry.first_came), (browser, true, at(7)));
    assert_eq!((queue.poll_refused(), queue.waiting()), (None, LEN_MAX));
    // Without pressure nothing is sent there.
    let mut calm = Queue::new(QueueSettings { len_max: 1, ..settings(1, 0) });
    let ids: Vec<RequestId> = (0..3).map(|n| calm.handle_arrival(navigation(n), NOW)).collect();
    assert_eq!(calm.poll_refused().map(|refused| refused.id), Some(ids[2]));
    assert_eq!(calm.poll_waiting_room(), None);
}

/// A visitor that comes back waits for its turn, however many programs wait. Otherwise it would be
/// sent away each time.
#[test]
fn a_visitor_with_a_ticket_waits_beside_a_crowd_of_programs() {
    let mut queue = under_pressure();
    for n in 100..100 + LEN_MAX as u64 {
        queue.handle_arrival(arrival(n, QueuePlace::Credit, 1_000_000_000), at(6));
    }
    let visit = Visit::Ticket(VisitTicket { id: 1_000, first_came: at(6) });
    let back = arrival(200, QueuePlace::Credit, PAGE);
    let back = queue.handle_arrival(Arrival { visit, accepts_waiting_page: true, ..back }, at(7));
    queue.handle_timeout(at(7));
    assert_eq!(queue.poll_waiting_room(), None);
    assert!(queue.poll_refused().is_some(), "a program made room");
    // A crowd of visitors is sent away, except for those that came first.
    for n in 0..LEN_MAX as u64 {
        let visit = Visit::Ticket(VisitTicket { id: 2_000 + n, first_came: at(6) });
        let one = arrival(300 + n, QueuePlace::Credit, PAGE);
        queue.handle_arrival(Arrival { visit, accepts_waiting_page: true, ..one }, at(7));
    }
    queue.handle_timeout(at(7));
    let sent: Vec<RequestId> =
        std::iter::from_fn(|| queue.poll_waiting_room()).map(|entry| entry.id).collect();
    assert!((1..LEN_MAX).contains(&sent.len()) && !sent.contains(&back), "{}", sent.len());
}

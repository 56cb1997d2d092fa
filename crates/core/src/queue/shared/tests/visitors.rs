//! Visitors with tickets and passes, and strangers, at two instances. They wait in the same lines
//! as at one instance, and a ticket that was used at one counts as used at the other.

use super::bounds::Pair;
use super::*;
use crate::queue::standing::{VisitPass, VisitTicket};

const SECOND: Nanos = Nanos::from_secs(1);

/// Two instances with one slot that always distinguish clients, and a request of the owner that
/// has the slot.
fn pair() -> (Pair, (usize, RequestId)) {
    let known = KnownClients::Always { clients_max: 1_000 };
    let mut pair = Pair::of([QueueSettings { known, ..settings(1) }; 2]);
    let id = pair.queues[0].handle_arrival(arrival(1), pair.now);
    assert_eq!(pair.relay_all(), [(0, AdmissionOutcome::Slot(id))]);
    (pair, (0, id))
}

/// A request at an instance. The messages about it are exchanged.
fn asks(pair: &mut Pair, node: usize, client: u64, visit: Visit) -> (usize, RequestId) {
    // A ticket counts for a page only, not for what a browser loads for the waiting page.
    let accepts_waiting_page = matches!(visit, Visit::Ticket(_));
    let arrival = Arrival { visit, accepts_waiting_page, ..arrival(client) };
    let id = pair.queues[node].handle_arrival(arrival, pair.now);
    assert_eq!(pair.relay_all(), []);
    pair.now = pair.now.plus(Nanos(MILLI));
    (node, id)
}

/// Ends the request that has the slot. Returns the one that has it next.
fn next(pair: &mut Pair, (node, id): (usize, RequestId)) -> (usize, RequestId) {
    pair.now = pair.now.plus(PAGE);
    pair.queues[node].handle_done(id, Cost(PAGE.0), Some((RouteHash::UNKNOWN, PAGE)), pair.now);
    let outcomes = pair.relay_all();
    let [(node, AdmissionOutcome::Slot(id))] = outcomes[..] else { panic!("{outcomes:?}") };
    (node, id)
}

fn ticket(pair: &Pair, id: u64, age: u64) -> Visit {
    Visit::Ticket(VisitTicket { id, first_came: pair.now.minus(Nanos(age * SECOND.0)) })
}

#[test]
fn visitors_have_one_place_in_line_wherever_they_ask() {
    let (mut pair, running) = pair();
    let stranger = asks(&mut pair, 0, 100, Visit::Unknown);
    let (late, early) = (ticket(&pair, 7, 10), ticket(&pair, 8, 60));
    let late = asks(&mut pair, 0, 101, late);
    let early_one = asks(&mut pair, 1, 102, early);
    let other_stranger = asks(&mut pair, 1, 103, Visit::Unknown);

    // The one that has waited for longer is first, although it asks the other instance.
    let mut served = std::vec![next(&mut pair, running)];
    let (_, id) = early_one;
    let visit = pair.queues[1].visit(id);
    assert_eq!(visit.pass.map(|pass| pass.id), Some(8));
    let Visit::Ticket(VisitTicket { first_came, .. }) = early else { panic!("{early:?}") };
    assert_eq!(visit.newcomer_since, Some(first_came));
    for _ in 0..3 {
        served.push(next(&mut pair, served[served.len() - 1]));
    }
    assert_eq!(served, [early_one, late, stranger, other_stranger]);
}

#[test]
fn a_ticket_that_was_used_at_one_instance_is_used_at_the_other() {
    let (mut pair, running) = pair();
    let old = ticket(&pair, 8, 60);
    let first = asks(&mut pair, 1, 100, old);
    let running_first = next(&mut pair, running);
    assert_eq!(running_first, first);
    // While its page is made, it asks for others at both.
    let again = [asks(&mut pair, 0, 100, old), asks(&mut pair, 1, 100, old)];
    let fresh = ticket(&pair, 9, 1);
    let newcomer = asks(&mut pair, 0, 101, fresh);
    let with_pass = Visit::Pass(VisitPass { id: 10, stamp: pair.now.minus(SECOND) });
    let visitor = asks(&mut pair, 1, 102, with_pass);
    let second = next(&mut pair, first);
    assert_eq!(second, newcomer, "{again:?} {visitor:?}");
}

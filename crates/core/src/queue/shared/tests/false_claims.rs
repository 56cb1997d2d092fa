//! Instances that do not answer, or make impossible claims: how the others react.

use super::bounds::{Pair, instance};
use super::*;
use crate::queue::standing::{TICKET_AGE_MAX, VisitPass, VisitTicket, WaitingRoomEntry};

const SECOND: Nanos = Nanos::from_secs(1);
/// `wait_max`, and the second that the owner has beyond it.
const ANSWER: Nanos = Nanos::from_secs(61);

/// An instance that takes part in the queue of an older one, which says what the test wants.
struct Member {
    queue: SharedQueue,
    now: Time,
    /// The messages that it has sent to the owner.
    said: Vec<QueueMessage>,
    heard: Vec<AdmissionOutcome>,
}

impl Member {
    fn new() -> Member {
        let now = Time(1_000 * 1_000 * MILLI);
        let mut queue = SharedQueue::new(Admission::new(settings(2), None));
        queue.start(instance(1), now);
        queue.handle_link(instance(0), now);
        let mut member = Member { queue, now, said: Vec::new(), heard: Vec::new() };
        member.hear(beat(1));
        assert_eq!(member.queue.owner(), Some(0));
        member
    }

    fn hear(&mut self, message: QueueMessage) {
        self.queue.handle_message(0, message, self.now);
        self.collect();
    }

    fn collect(&mut self) {
        self.heard.extend(core::iter::from_fn(|| self.queue.poll(self.now)));
        self.said.extend(core::iter::from_fn(|| self.queue.poll_message()).map(|(_, said)| said));
    }

    fn ask(&mut self, client: u64) -> RequestId {
        self.queue.handle_arrival(arrival(client), self.now)
    }

    /// The outcomes since the last call.
    fn outcomes(&mut self) -> Vec<AdmissionOutcome> {
        self.collect();
        core::mem::take(&mut self.heard)
    }

    /// Lets time pass, in which the owner says this ten times a second.
    fn pass(&mut self, length: Nanos, mut says: impl FnMut(u64) -> QueueMessage) {
        for step in 0..length.0 / BEAT_INTERVAL.0 {
            self.now = self.now.plus(BEAT_INTERVAL);
            self.hear(says(step));
            self.queue.handle_timeout(self.now);
            self.collect();
        }
    }

    fn joins(&self) -> usize {
        self.said.iter().filter(|said| matches!(said, QueueMessage::Join { .. })).count()
    }
}

fn state(term: u64) -> InstanceBeat {
    InstanceBeat {
        term,
        is_owner: true,
        slots: 2,
        has_joined: true,
        pressure: None,
        own: RequestCounts::default(),
        all: RequestCounts::default(),
    }
}

fn beat(term: u64) -> QueueMessage {
    QueueMessage::Beat(state(term))
}

#[test]
fn an_owner_that_does_not_answer_is_left() {
    let mut member = Member::new();
    let asked = [1, 2, 3, 4].map(|client| member.ask(client));
    member.pass(ANSWER.minus(BEAT_INTERVAL), |_| beat(1));
    assert_eq!((member.queue.owner(), member.outcomes()), (Some(0), Vec::new()));
    member.pass(BEAT_INTERVAL, |_| beat(1));
    // Its requests wait in its own queue, which has half of the slots.
    assert_eq!(member.queue.owner(), Some(1));
    assert_eq!(member.outcomes(), [AdmissionOutcome::Slot(asked[0])]);
    assert!(member.queue.handle_done(asked[0], Cost::ZERO, None, member.now));
    assert_eq!(member.outcomes(), [AdmissionOutcome::Slot(asked[1])]);
    // It does not come back to that owner for a minute.
    member.pass(Nanos::from_secs(59), |_| beat(9));
    assert_eq!(member.queue.owner(), Some(1));
    member.pass(SECOND.plus(SECOND), |_| beat(9));
    let (waiting, running) = (member.queue.waiting(), member.queue.running());
    assert_eq!((member.queue.owner(), waiting, running), (Some(0), 1, 2));
}

#[test]
fn the_same_if_clients_give_up_before_the_owner_must_answer() {
    let mut member = Member::new();
    for _ in 0..40 {
        let id = member.ask(1);
        member.pass(Nanos::from_secs(5), |_| beat(1));
        let _ = member.queue.handle_cancel(id);
    }
    assert_eq!(member.queue.owner(), Some(1));
    // An owner without a request to answer is not at fault.
    let mut member = Member::new();
    let _ = (member.ask(1), member.queue.handle_cancel(RequestId(1)));
    member.pass(Nanos::from_secs(1_000), |_| beat(1));
    assert_eq!(member.queue.owner(), Some(0));
}

#[test]
fn terms_do_not_overflow() {
    let most = 1 << 63;
    for term in [most + 1, u64::MAX] {
        let mut member = Member::new();
        member.hear(beat(term));
        assert_eq!((member.queue.owner(), member.queue.term), (Some(1), 2), "it is left at once");
        member.hear(beat(3));
        assert_eq!(member.queue.owner(), Some(1));
    }
    let mut member = Member::new();
    member.hear(beat(most));
    assert_eq!((member.queue.owner(), member.queue.term), (Some(0), most));
    member.queue.handle_link_end(0, true, member.now);
    assert_eq!((member.queue.owner(), member.queue.term), (Some(1), most));
    // The older of two owners with the greatest term stays.
    member.queue.handle_link(instance(2), member.now);
    member.queue.handle_message(2, beat(most), member.now);
    assert_eq!(member.queue.owner(), Some(1));
    member.queue.handle_link(instance(0), member.now);
    member.hear(beat(most));
    assert_eq!(member.queue.owner(), Some(0));
}

#[test]
fn an_owner_that_forgets_its_members_again_and_again_is_not_asked_each_time() {
    let mut member = Member::new();
    member.ask(1);
    let forgotten = QueueMessage::Beat(InstanceBeat { has_joined: false, ..state(1) });
    member.pass(Nanos::from_secs(60), |_| forgotten);
    assert!(member.joins() <= 9, "{}", member.joins());
    // And at last it is left.
    member.pass(Nanos(4 * ANSWER.0), |_| forgotten);
    let first = member.outcomes();
    assert!(matches!(first[..], [AdmissionOutcome::Slot(_)]), "{first:?}");
}

#[test]
fn an_owner_that_takes_the_queue_over_again_and_again_is_not_followed() {
    let mut member = Member::new();
    // It gives the queue up after half a second each time, so another one has to take it over.
    let mut term = 1;
    member.pass(Nanos::from_secs(60), |step| {
        term += u64::from(step % 10 == 0);
        let is_owner = step % 10 < 5;
        QueueMessage::Beat(InstanceBeat { term: 2 * term, is_owner, ..state(1) })
    });
    assert!((2..=9).contains(&member.joins()), "{}", member.joins());
    assert_eq!(member.queue.owner(), Some(1));
}

#[test]
fn pressure_cannot_come_and_go_with_each_message() {
    let mut member = Member::new();
    let (mut changes, mut before) = (0, None);
    for step in 0..100 {
        member.pass(BEAT_INTERVAL, |_| {
            let pressure = (step % 2 == 0).then_some(Nanos(u64::MAX));
            QueueMessage::Beat(InstanceBeat { pressure, ..state(1) })
        });
        changes += usize::from(member.queue.pressure_since() != before);
        before = member.queue.pressure_since();
    }
    assert!((2..=10).contains(&changes), "{changes}");
}

#[test]
fn an_answer_counts_as_far_as_it_fits_the_request() {
    let mut member = Member::new();
    let now = member.now;
    let far = Time(u64::MAX);
    let ticket = VisitTicket { id: 5, first_came: now.minus(SECOND) };
    let forged = GrantedVisit {
        pass: Some(VisitPass { id: 6, stamp: far }),
        newcomer_since: Some(Time::ZERO),
    };
    let mut granted = |visit: Visit| {
        let id = member.queue.handle_arrival(Arrival { visit, ..arrival(1) }, now);
        member.hear(QueueMessage::Grant { id, visit: forged });
        assert_eq!(member.outcomes(), [AdmissionOutcome::Slot(id)]);
        member.queue.visit(id)
    };
    assert_eq!(granted(Visit::Unknown), GrantedVisit::default());
    let pass = Some(VisitPass { id: 5, stamp: now.plus(TICKET_AGE_MAX) });
    let newcomer_since = Some(ticket.first_came);
    assert_eq!(granted(Visit::Ticket(ticket)), GrantedVisit { pass, newcomer_since });
    let own = VisitPass { id: 5, stamp: now };
    assert_eq!(granted(Visit::Pass(own)), GrantedVisit { pass, newcomer_since: None });

    let entry = |id, at| {
        let waits = Nanos(u64::MAX);
        QueueMessage::WaitingRoom(WaitingRoomEntry {
            id,
            needs_ticket: false,
            first_came: at,
            come_back_after: Nanos::ZERO,
            expected_wait: waits,
        })
    };
    for at in [Time::ZERO, far] {
        let asks = Arrival { accepts_waiting_page: true, ..arrival(1) };
        let id = member.queue.handle_arrival(asks, now);
        member.hear(entry(id, at));
        let expected = WaitingRoomEntry {
            id,
            needs_ticket: true,
            first_came: now,
            come_back_after: SECOND,
            expected_wait: Nanos::from_secs(3_600),
        };
        assert_eq!(member.outcomes(), [AdmissionOutcome::WaitingRoom(expected)]);
    }
    // A request that accepts no waiting page gets none. The owner that sends it one is left.
    let id = member.ask(1);
    member.hear(entry(id, now));
    assert_eq!(member.queue.owner(), Some(1));
    member.hear(entry(id, now));
    let outcomes = member.outcomes();
    assert!(outcomes.is_empty() || outcomes == [AdmissionOutcome::Slot(id)], "{outcomes:?}");
}

#[test]
fn a_search_begins_from_what_an_owner_has_found_in_time() {
    let now = Time(1_000 * 1_000 * MILLI);
    let cases = [
        (8, Nanos::from_secs(16), false, 8),
        (1 << 16, Nanos::from_secs(16), false, 8),
        (1 << 16, Nanos::from_secs(1), false, 1),
        (0, Nanos::from_secs(16), false, 1),
        // No message of an owner that was left counts.
        (8, Nanos::from_secs(16), true, 1),
    ];
    for (slots, length, leaves, found) in cases {
        let search = ConcurrencySearch::new(1.0);
        let mut queue = SharedQueue::new(Admission::new(settings(1), Some(search)));
        queue.start(instance(1), now);
        queue.handle_link(instance(0), now);
        let mut member = Member { queue, now, said: Vec::new(), heard: Vec::new() };
        let says = QueueMessage::Beat(InstanceBeat { slots, ..state(1) });
        member.pass(length, |_| says);
        let Member { mut queue, now, .. } = member;
        assert_eq!(queue.owner(), Some(0));
        match leaves {
            true => queue.handle_message(0, beat(u64::MAX), now),
            false => queue.handle_link_end(0, true, now),
        }
        assert_eq!((queue.owner(), queue.slots()), (Some(1), found), "{slots} {length:?}");
    }
}

/// Another connection to the owner changes nothing of what is known of it.
#[test]
fn an_instance_that_joins_again_knows_what_it_knew() {
    let now = Time(1_000 * 1_000 * MILLI);
    let search = ConcurrencySearch::new(1.0);
    let mut queue = SharedQueue::new(Admission::new(settings(1), Some(search)));
    queue.start(instance(1), now);
    queue.handle_link(instance(0), now);
    let mut member = Member { queue, now, said: Vec::new(), heard: Vec::new() };
    let says = QueueMessage::Beat(InstanceBeat { slots: 8, ..state(1) });
    member.pass(Nanos::from_secs(16), |_| says);
    let id = member.ask(1);
    member.pass(Nanos::from_secs(10), |_| says);
    let _ = member.queue.handle_cancel(id);
    member.queue.handle_link(instance(0), member.now);
    assert_eq!(member.joins(), 1);
    member.collect();
    assert_eq!(member.joins(), 2);
    let Role::Member(known) = &member.queue.role else { panic!("it follows the owner") };
    assert_eq!((known.believed, known.unanswered), (8, Nanos::from_secs(10)));
}

#[test]
fn requests_that_never_end_are_bounded() {
    let mut pair = Pair::new(6_000);
    let (owner, now) = (&mut pair.queues[0], pair.now);
    let mut refused = 0;
    for id in 0..6_000 {
        if id == 5_000 {
            owner.set_settings(settings(2), None, now);
        }
        let ask = QueueMessage::Ask { id: RequestId(id), arrival: arrival(id) };
        owner.handle_message(1, ask, now);
        while owner.poll(now).is_some() {}
        let messages = core::iter::from_fn(|| owner.poll_message());
        refused += messages.filter(|(_, one)| matches!(one, QueueMessage::Refuse(_))).count();
    }
    // As many as may wait, and 4 096.
    let held = owner.instances[&1].requests.len();
    assert_eq!((held, refused), (5_096, 904));
    // The same id again takes no more room.
    let ask = QueueMessage::Ask { id: RequestId(1), arrival: arrival(1) };
    owner.handle_message(1, ask, pair.now);
    owner.handle_link_end(1, true, pair.now);
    assert_eq!((owner.foreign.len(), owner.in_flight(), owner.admission.running()), (0, 0, 0));
}

#[test]
fn slots_cannot_be_kept_without_end() {
    let mut pair = Pair::new(8);
    let owner = &mut pair.queues[0];
    for id in 0..5_000 {
        let (id, worked) = (RequestId(id), None);
        owner.handle_message(1, QueueMessage::Ask { id, arrival: arrival(1) }, pair.now);
        while owner.poll(pair.now).is_some() {}
        let done = QueueMessage::Done { id, cost: Cost::ZERO, worked, keeps: true };
        owner.handle_message(1, done, pair.now);
    }
    assert!(owner.instances[&1].kept <= 1_024 && owner.admission.running() <= 1_024);
}

#[test]
fn a_request_has_cost_no_more_than_the_time_that_it_had_its_slot() {
    let mut pair = Pair::new(2);
    let (owner, now) = (&mut pair.queues[0], pair.now);
    let start = |owner: &mut SharedQueue, client| {
        let id = owner.handle_arrival(arrival(client), now);
        assert_eq!(owner.poll(now), Some(AdmissionOutcome::Slot(id)));
        id
    };
    let _stays = start(owner, 9);
    for number in 0..100 {
        let (id, arrival) = (RequestId(number), Arrival { is_guess: true, ..arrival(1) });
        owner.handle_message(1, QueueMessage::Ask { id, arrival }, now);
        while owner.poll(now).is_some() {}
        let (cost, worked) = (Cost(u64::MAX), Some((RouteHash::UNKNOWN, Nanos(u64::MAX))));
        owner.handle_message(1, QueueMessage::Done { id, cost, worked, keeps: false }, now);
    }
    // Its client is as far as any other one.
    let ends = start(owner, 8);
    let [first, _second] = [1, 2].map(|client| owner.handle_arrival(arrival(client), now));
    owner.handle_done(ends, Cost(PAGE.0), None, now);
    assert_eq!(owner.poll(now), Some(AdmissionOutcome::Slot(first)));
}

#[test]
fn an_estimate_holds_for_the_requests_of_the_instance_that_has_made_it() {
    let mut pair = Pair::new(1);
    let owner = &mut pair.queues[0];
    let route = RouteHash::from_hash(KeyHash::from_bits(77));
    let running = owner.handle_arrival(arrival(9), pair.now);
    let on_route = Arrival { route: Some(route), ..arrival(1) };
    let dear = Arrival { estimate: Cost(2 * PAGE.0), ..arrival(2) };
    let second = owner.handle_arrival(dear, pair.now);
    let first = owner.handle_arrival(on_route, pair.now);
    while owner.poll(pair.now).is_some() {}
    for route in [route, RouteHash::UNKNOWN] {
        let cost = Cost(u64::MAX);
        owner.handle_message(1, QueueMessage::Estimate { route, cost }, pair.now);
    }
    owner.handle_done(running, Cost(PAGE.0), None, pair.now);
    assert_eq!(owner.poll(pair.now), Some(AdmissionOutcome::Slot(first)), "{second:?}");
}

#[test]
fn claims_of_many_running_requests_make_no_request_cheap() {
    let mut pair = Pair::new(2);
    let claimed = RequestCounts { waiting: 0, running: 1_000 };
    let beat = InstanceBeat {
        term: 0,
        is_owner: false,
        slots: 1,
        has_joined: true,
        own: claimed,
        all: claimed,
        pressure: None,
    };
    pair.queues[0].handle_message(1, QueueMessage::Join { running: 1_000 }, pair.now);
    pair.queues[0].handle_message(1, QueueMessage::Beat(beat), pair.now);
    assert_eq!(pair.queues[0].running_elsewhere(), 2);
}

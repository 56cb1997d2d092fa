//! How long a client with one request at a time waits, compared with first come, first served, and
//! which requests are refused when all clients have the same number.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Lone clients have these numbers, crawlers the next ones, and each new client one of its own.
const LONE: u64 = 6;
const CRAWLERS: u64 = 3;

/// A waiting request.
#[derive(Clone, Copy)]
struct Waiter {
    from: u64,
    cost: u64,
    /// The cost of the requests that were waiting when it came: what it would wait for if requests
    /// were served in order of arrival.
    ahead: u64,
    /// The cost of all requests sent to the backend before it came.
    sent: u64,
    /// The largest number of other clients that waited at once since it came.
    others: u64,
    /// For each crawler, the cost of its largest request so far.
    more: u64,
    /// The larger of its own cost and that of the previous request of its client.
    own: u64,
}

/// A queue in which some clients have one request at a time, some have several, and some come once.
struct Crowd {
    queue: Queue,
    waiting: BTreeMap<RequestId, Waiter>,
    running: Vec<(RequestId, Waiter)>,
    sent: u64,
    /// The cost of the last request of each lone client.
    last: BTreeMap<u64, u64>,
    /// The cost of the largest request of each crawler so far, and of the smallest of all.
    most: [u64; CRAWLERS as usize],
    least: u64,
    new: u64,
}

impl Crowd {
    fn new(slots: usize) -> Crowd {
        Crowd {
            queue: Queue::new(settings(slots, 0)),
            waiting: BTreeMap::new(),
            running: Vec::new(),
            sent: 0,
            last: BTreeMap::new(),
            most: [0; CRAWLERS as usize],
            least: u64::MAX,
            new: LONE + CRAWLERS,
        }
    }

    /// Sends a request, unless `from` is a lone client that has one.
    fn arrive(&mut self, from: u64, cost: u64) {
        let here = self.waiting.values().chain(self.running.iter().map(|(_, one)| one));
        if from < LONE && here.into_iter().any(|one| one.from == from) {
            return;
        }
        let is_new = from >= LONE + CRAWLERS;
        self.new += u64::from(is_new);
        let from = if is_new { self.new } else { from };
        let id = self.queue.handle_arrival(arrival(from, QueuePlace::Credit, cost), NOW);
        self.least = self.least.min(cost);
        if (LONE..LONE + CRAWLERS).contains(&from) {
            let most = &mut self.most[(from - LONE) as usize];
            *most = cost.max(*most);
        }
        let more = self.most.iter().sum();
        let one = Waiter {
            from,
            cost,
            ahead: self.waiting.values().map(|one| one.cost).sum(),
            sent: self.sent,
            others: 0,
            more: 0,
            own: self.last.insert(from, cost).unwrap_or(0).max(cost),
        };
        self.waiting.insert(id, one);
        let mut clients: Vec<u64> = self.waiting.values().map(|one| one.from).collect();
        clients.sort_unstable();
        clients.dedup();
        for one in self.waiting.values_mut() {
            one.others = one.others.max(clients.len() as u64 - 1);
            one.more = more;
        }
    }

    fn poll(&mut self) -> Result<(), TestCaseError> {
        while let Some(id) = self.queue.poll_dispatch(NOW) {
            let one = self.waiting.remove(&id).expect("it waited");
            let waited = self.sent - one.sent;
            self.sent += one.cost;
            self.running.push((id, one));
            if (LONE..LONE + CRAWLERS).contains(&one.from) {
                continue;
            }
            let bound = one.ahead + one.others * one.own + one.more;
            prop_assert!(waited <= bound, "{waited} > {} and {bound}", one.ahead);
            if one.own <= self.least {
                prop_assert!(waited <= one.ahead, "{waited} > {}", one.ahead);
            }
        }
        Ok(())
    }

    fn finish(&mut self, which: usize) {
        if !self.running.is_empty() {
            let (id, one) = self.running.swap_remove(which % self.running.len());
            self.queue.handle_done(id, Cost(one.cost), NOW);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// A client with one request at a time waits for no more than if requests were served in order
    /// of arrival, and then a round: for each other client that waits, what its own request costs,
    /// and one request more of each client that has several at once. If its request is no larger
    /// than any other, it does not wait for the round either.
    #[test]
    fn no_lone_request_waits_for_more_than_in_order_of_arrival_and_a_round(
        slots in 1..4_usize,
        spread in prop_oneof![Just(1_u64), Just(2), Just(100)],
        steps in prop::collection::vec((0..2 * (LONE + CRAWLERS), 0..100_u64, 0..4_usize), 20..300),
    ) {
        let mut crowd = Crowd::new(slots);
        for (from, size, which) in steps {
            crowd.arrive(from, 100 + size % spread * 100);
            crowd.poll()?;
            // In three of four steps a request ends, so that the queue grows slowly.
            if which > 0 {
                crowd.finish(which);
                crowd.poll()?;
            }
        }
    }
}

/// Counts how often a client with one request at a time is served in this many steps. Fifty other
/// requests wait at any time, each of a client of its own that comes once.
fn served_beside_new_names(steps: usize, place: QueuePlace, is_guess: bool) -> usize {
    let mut queue = Queue::new(settings(1, 0));
    let mut names = 1_000..;
    let mut arrive = |queue: &mut Queue| {
        let name = names.next().expect("one more");
        queue.handle_arrival(Arrival { is_guess, ..arrival(name, place, 100) }, NOW);
    };
    (0..50).for_each(|_| arrive(&mut queue));
    let own = |queue: &mut Queue| queue.handle_arrival(arrival(1, place, 100), NOW);
    let (mut waits, mut served) = (own(&mut queue), 0);
    for _ in 0..steps {
        let id = queue.poll_dispatch(NOW).expect("some wait");
        queue.handle_done(id, Cost(100), NOW);
        if id == waits {
            waits = own(&mut queue);
            served += 1;
        } else {
            arrive(&mut queue);
        }
    }
    served
}

/// A swarm has a new name for each request, and its next request comes as soon as one has ended. A
/// client is served as often as each of its connections.
#[test]
fn ever_new_names_do_not_keep_a_client_waiting() {
    for place in [QueuePlace::Credit, bucket(0)] {
        assert_eq!(served_beside_new_names(510, place, false), 10);
    }
}

/// The same with unknown routes: only eight of these requests go first in each
/// round.
#[test]
fn ever_new_names_and_routes_do_not_keep_a_client_waiting() {
    for place in [QueuePlace::Credit, bucket(0)] {
        let served = served_beside_new_names(590, place, true);
        assert!((8..=10).contains(&served), "{served}");
    }
}

/// In a full queue every client has one request. The newest request is refused, whichever client it
/// comes from, and none that waits already.
#[test]
fn of_equal_lines_the_newest_is_refused() {
    let mut queue = Queue::new(QueueSettings { len_max: 10, ..settings(1, 0) });
    (0..11).for_each(|n| _ = queue.handle_arrival(arrival(n, QueuePlace::Credit, 100), NOW));
    assert!(queue.poll_dispatch(NOW).is_some());
    assert_eq!(queue.waiting(), 10);
    for n in 100..200 {
        for place in [QueuePlace::Credit, bucket(n)] {
            let newest = queue.handle_arrival(arrival(n, place, 100), NOW);
            assert_eq!(queue.poll_refused().map(|refused| refused.id), Some(newest));
            assert_eq!(queue.poll_refused(), None);
        }
    }
}

/// A client that keeps its place with a request that it then cancels has gained nothing.
#[test]
fn a_place_cannot_be_kept_with_another_request() {
    let mut queue = Queue::new(settings(1, 0));
    let first = queue.handle_arrival(arrival(50, QueuePlace::Credit, 100), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(first));
    let kept = queue.handle_arrival(arrival(1, QueuePlace::Credit, 100), NOW);
    let others: Vec<RequestId> =
        (2..6).map(|n| queue.handle_arrival(arrival(n, QueuePlace::Credit, 90), NOW)).collect();
    queue.handle_done(first, Cost(100), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(others[0]));
    let later = queue.handle_arrival(arrival(9, QueuePlace::Credit, 80), NOW);
    let own = queue.handle_arrival(arrival(1, QueuePlace::Credit, 80), NOW);
    queue.handle_cancel(kept);
    queue.handle_done(others[0], Cost(90), NOW);
    let expected: Vec<RequestId> = others[1..].iter().copied().chain([later, own]).collect();
    assert_eq!(order(&mut queue), expected);
}

//! The guarantees of the fair queue. This file has scenes with a known result. See `traffic` for
//! random traffic, `fairness` for the shares of clients, `light` for light requests beside heavy
//! ones, `visits` for tickets and passes, `concurrency` for the number of requests at once, and
//! `bounded` for its upper bound.

mod bounded;
mod concurrency;
mod disturbed;
mod fairness;
mod full_queue;
mod light;
mod models;
mod newcomers;
mod traffic;
mod visits;

use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::meter::estimate::RouteHash;
use evenkeel_core::queue::standing::{KnownClients, Visit};
use evenkeel_core::queue::{
    Arrival, BriefSlots, CancelOutcome, DebtFlow, Queue, QueuePlace, QueueSettings, RequestId,
    WorkUnit,
};
use evenkeel_core::units::{Cost, Nanos, Time, Weight};

fn client(n: u64) -> KeyHash {
    KeyHash::from_bits(n + 1)
}

fn bucket(n: u64) -> QueuePlace {
    QueuePlace::Debt(DebtFlow { limit: 0, hash: client(1_000 + n) })
}

fn settings(concurrency: usize, reserve: usize) -> QueueSettings {
    let wait_max = Nanos::from_secs(3_600);
    let (len_max, known, cpus_milli, workers) = (4_096, KnownClients::Off, 1_000, None);
    let unit = WorkUnit::CpuTime;
    QueueSettings { concurrency, reserve, len_max, wait_max, known, cpus_milli, unit, workers }
}

fn arrival(from: u64, place: QueuePlace, cost: u64) -> Arrival {
    let estimate = Cost(cost);
    let (is_guess, route, own, weight) = (false, None, None, Weight::ONE);
    let (visit, accepts_waiting_page) = (Visit::Unknown, false);
    let client = client(from);
    Arrival {
        client,
        place,
        estimate,
        is_guess,
        route,
        own,
        weight,
        visit,
        accepts_waiting_page,
        burns: false,
    }
}

fn on(path: &str, arrival: Arrival) -> Arrival {
    Arrival { route: Some(route(path)), ..arrival }
}

fn route(path: &str) -> RouteHash {
    RouteHash::of(&KeySeed([7; 16]), "GET", path)
}

const NOW: Time = Time(1_000_000_000);

/// Sends all requests to the backend one at a time, and returns their order.
fn order(queue: &mut Queue) -> Vec<RequestId> {
    let mut order = Vec::new();
    while let Some(id) = queue.poll_dispatch(NOW) {
        queue.handle_done(id, Cost(100), NOW);
        order.push(id);
    }
    order
}

#[test]
fn who_is_in_credit_goes_first_and_has_a_slot_kept() {
    let mut queue = Queue::new(settings(1, 1));
    let ids: Vec<RequestId> =
        (0..3).map(|_| queue.handle_arrival(arrival(1, bucket(1), 100), NOW)).collect();
    assert_eq!(queue.poll_dispatch(NOW), Some(ids[0]));
    assert_eq!(queue.poll_dispatch(NOW), None, "a reserved slot is not for those in debt");
    let human = queue.handle_arrival(arrival(2, QueuePlace::Credit, 2), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(human));
    let next = queue.handle_arrival(arrival(2, QueuePlace::Credit, 2), NOW);
    assert_eq!(queue.poll_dispatch(NOW), None, "it has one already");
    queue.handle_done(human, Cost(2), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(next));
    queue.handle_done(next, Cost(2), NOW);
    assert_eq!(queue.poll_dispatch(NOW), None);
    queue.handle_done(ids[0], Cost(100), NOW);
    assert_eq!(order(&mut queue), &ids[1..]);
}

/// Clients in debt with light requests may use a reserved slot too, but never the last one.
#[test]
fn a_light_flow_in_debt_goes_beside_heavy_ones() {
    let mut queue = Queue::new(settings(1, 2));
    let heavy = queue.handle_arrival(arrival(1, bucket(1), 100), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(heavy));
    let alike = queue.handle_arrival(arrival(2, bucket(2), 100), NOW);
    assert_eq!(queue.poll_dispatch(NOW), None);
    let light = queue.handle_arrival(arrival(3, bucket(3), 2), NOW);
    let lighter = queue.handle_arrival(arrival(4, bucket(4), 1), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(lighter));
    assert_eq!(queue.poll_dispatch(NOW), None, "the last one is for those in credit");
    let human = queue.handle_arrival(arrival(5, QueuePlace::Credit, 2), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(human));
    queue.handle_done(heavy, Cost(100), NOW);
    queue.handle_done(human, Cost(2), NOW);
    queue.handle_done(lighter, Cost(1), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(light), "the smaller of equal tags");
    queue.handle_done(light, Cost(2), NOW);
    assert_eq!(order(&mut queue), [alike]);
}

/// A client in credit with heavy requests is admitted beside clients in debt, but only one at a
/// time.
#[test]
fn a_heavy_flow_in_credit_goes_beside_those_in_debt() {
    let mut queue = Queue::new(settings(2, 2));
    for n in 0..4 {
        queue.handle_arrival(arrival(n, bucket(1), 100), NOW);
    }
    assert_eq!(std::iter::from_fn(|| queue.poll_dispatch(NOW)).count(), 2);
    let first = queue.handle_arrival(arrival(8, QueuePlace::Credit, 100), NOW);
    let second = queue.handle_arrival(arrival(9, QueuePlace::Credit, 100), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(first));
    assert_eq!(queue.poll_dispatch(NOW), None);
    let human = queue.handle_arrival(arrival(7, QueuePlace::Credit, 2), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(human));
    queue.handle_done(human, Cost(2), NOW);
    queue.handle_done(first, Cost(100), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(second));
}

/// A swarm whose members each have no request at the backend leaves the reserved slots to clients
/// with lighter requests.
#[test]
fn a_swarm_does_not_fill_the_reserved_slots() {
    let mut queue = Queue::new(settings(2, 2));
    for n in 0..20 {
        queue.handle_arrival(arrival(n, QueuePlace::Credit, 100), NOW);
    }
    let mut running: Vec<RequestId> = std::iter::from_fn(|| queue.poll_dispatch(NOW)).collect();
    for _ in 0..18 {
        assert_eq!(running.len(), 2);
        let human = queue.handle_arrival(arrival(99, QueuePlace::Credit, 2), NOW);
        assert_eq!(queue.poll_dispatch(NOW), Some(human));
        queue.handle_done(human, Cost(2), NOW);
        queue.handle_done(running.swap_remove(0), Cost(100), NOW);
        running.extend(std::iter::from_fn(|| queue.poll_dispatch(NOW)));
    }
}

/// A client in the same network as a crawler waits behind one request of the crawler, not behind
/// all.
#[test]
fn within_a_bucket_clients_take_turns() {
    let mut queue = Queue::new(settings(1, 0));
    for crawler in 0..5 {
        for _ in 0..20 {
            queue.handle_arrival(arrival(crawler, bucket(1), 100), NOW);
        }
    }
    for _ in 0..7 {
        let id = queue.poll_dispatch(NOW).expect("one waits");
        queue.handle_done(id, Cost(100), NOW);
    }
    let running = queue.poll_dispatch(NOW).expect("one waits");
    let human = queue.handle_arrival(arrival(50, bucket(1), 2), NOW);
    queue.handle_done(running, Cost(100), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(human));
}

/// A bucket with many clients is one flow among the others.
#[test]
fn a_swarm_in_one_bucket_counts_as_one() {
    let mut queue = Queue::new(settings(1, 0));
    let swarm: Vec<RequestId> =
        (0..50).map(|n| queue.handle_arrival(arrival(n, bucket(1), 100), NOW)).collect();
    for _ in 0..50 {
        queue.handle_arrival(arrival(99, bucket(2), 100), NOW);
    }
    let first: Vec<RequestId> = order(&mut queue).into_iter().take(40).collect();
    assert_eq!(first.iter().filter(|id| swarm.contains(id)).count(), 20);
}

#[test]
fn a_request_takes_no_others_along_to_a_better_place() {
    let mut queue = Queue::new(settings(1, 0));
    let running = queue.handle_arrival(arrival(9, QueuePlace::Credit, 1), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(running));
    let owing: Vec<RequestId> =
        (0..3).map(|_| queue.handle_arrival(arrival(1, bucket(1), 100), NOW)).collect();
    let better = queue.handle_arrival(arrival(1, QueuePlace::Credit, 100), NOW);
    let others: Vec<RequestId> = (0..5)
        .map(|n| queue.handle_arrival(arrival(2 + n, QueuePlace::Credit, 100), NOW))
        .collect();
    queue.handle_done(running, Cost(1), NOW);
    let expected: Vec<RequestId> = others.into_iter().chain(owing).chain([better]).collect();
    assert_eq!(order(&mut queue), expected);
}

#[test]
fn the_newest_of_the_longest_line_is_refused() {
    let mut queue = Queue::new(QueueSettings { len_max: 10, ..settings(1, 0) });
    let crawler: Vec<RequestId> =
        (0..9).map(|_| queue.handle_arrival(arrival(1, QueuePlace::Credit, 100), NOW)).collect();
    assert_eq!(queue.poll_dispatch(NOW), Some(crawler[0]));
    for human in 2..6 {
        queue.handle_arrival(arrival(human, QueuePlace::Credit, 100), NOW);
    }
    let refused: Vec<RequestId> =
        std::iter::from_fn(|| queue.poll_refused()).map(|r| r.id).collect();
    assert_eq!(refused, [crawler[8], crawler[7]]);
    assert_eq!(queue.waiting(), 10);
    assert_eq!(queue.handle_cancel(crawler[8]), CancelOutcome::Unknown);
}

#[test]
fn who_waits_for_too_long_is_refused() {
    let wait_max = Nanos::from_secs(30);
    let mut queue = Queue::new(QueueSettings { wait_max, ..settings(1, 0) });
    let ids: Vec<RequestId> = (0..3_u64)
        .map(|n| {
            let now = NOW.plus(Nanos::from_secs(n));
            queue.handle_arrival(arrival(n, QueuePlace::Credit, 100), now)
        })
        .collect();
    assert_eq!(queue.poll_dispatch(NOW), Some(ids[0]));
    assert_eq!(queue.poll_timeout(), Some(NOW.plus(Nanos::from_secs(31))));
    queue.handle_timeout(NOW.plus(Nanos::from_secs(31)));
    assert_eq!(queue.poll_refused().map(|r| r.id), Some(ids[1]));
    assert_eq!(queue.poll_refused(), None);
    queue.handle_timeout(NOW.plus(Nanos::from_secs(32)));
    assert_eq!(queue.poll_refused().map(|r| r.id), Some(ids[2]));
    assert_eq!(queue.poll_timeout(), None);
}

/// Two flows wait side by side, one of them with twenty requests, and its next request is refused.
/// Its `Retry-After` is the time until these twenty have been served.
#[test]
fn retry_after_is_when_what_waits_has_been_served() {
    for in_debt in [false, true] {
        let place = |n| if in_debt { bucket(n) } else { QueuePlace::Credit };
        let cost = Nanos::from_millis(100).0;
        let mut queue = Queue::new(QueueSettings { len_max: 32, ..settings(2, 0) });
        let (mut now, mut running, mut refused) = (NOW, Vec::new(), Vec::new());
        let mut last = None;
        for step in 0..200 {
            for (from, waiting) in [(1, 22), (2, 10)] {
                let count = if step == 0 { waiting } else { 3 - from };
                for _ in 0..count {
                    let id = queue.handle_arrival(arrival(from, place(from), cost), now);
                    last = (from == 1).then_some(id).or(last);
                }
            }
            refused.extend(std::iter::from_fn(|| queue.poll_refused()).map(|r| (now, r)));
            running.extend(std::iter::from_fn(|| queue.poll_dispatch(now)));
            // Two processors, with a hundred milliseconds for each request.
            now = now.plus(Nanos::from_millis(100));
            running.drain(..).for_each(|id| _ = queue.handle_done(id, Cost(cost), NOW));
        }
        let (_, told) = refused.last().expect("it was too much");
        // About 22 requests wait in the longer line, and one of them is served each 100 ms.
        let told = told.retry_after.as_secs_f64();
        assert!((1.6..2.7).contains(&told), "{told}");
    }
}

/// Whatever waits now has been served or refused after `wait_max`.
#[test]
fn retry_after_is_no_longer_than_wait_max() {
    let (cost, wait_max) = (Nanos::from_secs(30), Nanos::from_secs(20));
    let mut queue = Queue::new(QueueSettings { len_max: 8, wait_max, ..settings(1, 0) });
    (0..10).for_each(|n| _ = queue.handle_arrival(arrival(n, QueuePlace::Credit, cost.0), NOW));
    let told = queue.poll_refused().expect("it was too much").retry_after;
    assert_eq!(told, wait_max);
}

/// The waiting client has left, and no request arrives for a minute. This minute does not count as
/// the service time of a request.
#[test]
fn retry_after_does_not_count_a_pause() {
    let cost = Nanos::from_millis(100);
    let mut queue = Queue::new(QueueSettings { len_max: 3, ..settings(1, 0) });
    let arrive =
        |queue: &mut Queue, now| queue.handle_arrival(arrival(1, QueuePlace::Credit, cost.0), now);
    let ids = [(); 3].map(|()| arrive(&mut queue, NOW));
    let mut now = NOW;
    for id in &ids[..2] {
        assert_eq!(queue.poll_dispatch(now), Some(*id));
        now = now.plus(cost);
        queue.handle_done(*id, Cost(cost.0), NOW);
    }
    queue.handle_cancel(ids[2]);
    now = now.plus(Nanos::from_secs(60));
    for _ in 0..5 {
        arrive(&mut queue, now);
        queue.poll_dispatch(now);
    }
    let told = queue.poll_refused().expect("it was too much").retry_after;
    assert!(told <= Nanos::from_secs(1), "{told:?}");
}

/// A flood of clients with one request each leaves no state behind.
#[test]
fn memory_is_bounded() {
    let mut queue = Queue::new(QueueSettings { len_max: 100, ..settings(4, 1) });
    let mut running = Vec::new();
    for n in 0..50_000_u64 {
        let place = if n % 3 == 0 { bucket(n % 700) } else { QueuePlace::Credit };
        queue.handle_arrival(arrival(n, place, 1 + n % 977), NOW);
        while queue.poll_refused().is_some() {}
        running.extend(std::iter::from_fn(|| queue.poll_dispatch(NOW)));
        if n % 2 == 0 && !running.is_empty() {
            queue.handle_done(
                running.swap_remove(n as usize % running.len()),
                Cost(n % 1_009),
                NOW,
            );
        }
        assert!(queue.waiting() <= 100);
        assert!(queue.remembered() < 20_000, "{}", queue.remembered());
    }
}

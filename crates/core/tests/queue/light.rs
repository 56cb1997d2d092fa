//! Light requests beside heavy ones: the use of costs learned while requests wait, the definition
//! of a light request, and the number of requests that a backend accepts.

use super::*;
use evenkeel_core::meter::estimate::OwnRoute;
use std::collections::VecDeque;

const HEAVY: u64 = 100_000_000;
const LIGHT: u64 = 2_000_000;

fn credit(from: u64, cost: u64) -> Arrival {
    arrival(from, QueuePlace::Credit, cost)
}

fn sent(queue: &mut Queue) -> Vec<RequestId> {
    std::iter::from_fn(|| queue.poll_dispatch(NOW)).collect()
}

/// Twenty requests arrive before their cost is known. It is known when a slot becomes free.
#[test]
fn who_waits_is_known_by_what_was_learned_meanwhile() {
    let mut queue = Queue::new(settings(1, 1));
    let heavy: Vec<RequestId> =
        (0..20).map(|n| queue.handle_arrival(on("/heavy", credit(n, 1_000_000)), NOW)).collect();
    assert_eq!(sent(&mut queue), heavy[..1]);
    let human = queue.handle_arrival(credit(99, LIGHT), NOW);
    assert_eq!(sent(&mut queue), [], "they are thought to ask for less");
    queue.handle_done(heavy[0], Cost(HEAVY), NOW);
    queue.handle_estimate(route("/heavy"), Cost(HEAVY));
    assert_eq!(sent(&mut queue), [human]);
    queue.handle_done(human, Cost(LIGHT), NOW);
    assert_eq!(sent(&mut queue), heavy[1..2]);
    assert_eq!(queue.remembered(), 20 + 20 + 1, "clients, flows and one route");
}

/// One slot for all, and four with the backend at most for brief requests.
#[test]
fn brief_requests_have_slots_that_others_have_not() {
    let mut queue = Queue::new(settings(1, 0));
    queue.set_brief_slots(BriefSlots { count: 4, cost_max: Cost(LIGHT) });
    let brief: Vec<RequestId> =
        (0..2).map(|n| queue.handle_arrival(credit(n, LIGHT), NOW)).collect();
    assert_eq!(sent(&mut queue), brief);
    let guess = Arrival { is_guess: true, ..credit(2, LIGHT) };
    let guess = queue.handle_arrival(guess, NOW);
    let later = queue.handle_arrival(credit(3, LIGHT), NOW);
    assert_eq!(sent(&mut queue), [], "a guess is not believed, and is not overtaken");
    brief.iter().for_each(|id| _ = queue.handle_done(*id, Cost(LIGHT), NOW));
    assert_eq!(sent(&mut queue), [guess, later]);
    let heavy = queue.handle_arrival(credit(4, LIGHT + 1), NOW);
    assert_eq!(sent(&mut queue), [], "it is not brief");
    [guess, later].iter().for_each(|id| _ = queue.handle_done(*id, Cost(LIGHT), NOW));
    assert_eq!(sent(&mut queue), [heavy]);
    let debtor = queue.handle_arrival(arrival(5, bucket(5), LIGHT), NOW);
    assert_eq!(sent(&mut queue), [], "it is in debt");
    assert_eq!(queue.handle_cancel(debtor), CancelOutcome::Waiting);
    let more: Vec<RequestId> =
        (5..9).map(|n| queue.handle_arrival(credit(n, LIGHT), NOW)).collect();
    assert_eq!(sent(&mut queue), more[..3], "four with the backend");
    queue.set_brief_slots(BriefSlots::default());
    queue.handle_done(heavy, Cost(HEAVY), NOW);
    assert_eq!(sent(&mut queue), [], "those that run stay there");
}

/// Twenty requests with an equal turn arrived earlier. The cost of the new request is unknown, so
/// it runs first to learn the cost. Requests on a route whose cost is known by now have no such
/// precedence.
#[test]
fn of_equals_a_guess_goes_first() {
    let mut queue = Queue::new(settings(1, 1));
    let guess = |path, from| Arrival { is_guess: true, ..on(path, credit(from, HEAVY)) };
    let heavy: Vec<RequestId> =
        (0..20).map(|n| queue.handle_arrival(guess("/heavy", n), NOW)).collect();
    assert_eq!(sent(&mut queue), heavy[..1]);
    let human = queue.handle_arrival(guess("/light", 99), NOW);
    assert_eq!(sent(&mut queue), [], "a guess has no reserved slot");
    queue.handle_done(heavy[0], Cost(HEAVY), NOW);
    queue.handle_estimate(route("/heavy"), Cost(HEAVY));
    assert_eq!(sent(&mut queue), [human]);
    queue.handle_done(human, Cost(LIGHT), NOW);
    assert_eq!(sent(&mut queue), heavy[1..2]);
}

/// A running request counts as heavy as soon as another request on its route has proved heavy.
#[test]
fn what_runs_counts_for_what_was_learned_meanwhile() {
    let mut queue = Queue::new(settings(2, 1));
    let heavy: Vec<RequestId> =
        (0..3).map(|n| queue.handle_arrival(on("/heavy", credit(n, 1)), NOW)).collect();
    assert_eq!(sent(&mut queue), heavy[..2]);
    let human = queue.handle_arrival(credit(99, LIGHT), NOW);
    assert_eq!(sent(&mut queue), []);
    queue.handle_estimate(route("/heavy"), Cost(HEAVY));
    assert_eq!(sent(&mut queue), [human]);
}

/// A person's first requests on a route wait as heavy ones, like those of a crawler. Then the cost
/// is known for the person alone.
#[test]
fn who_waits_is_known_by_its_own_costs() {
    let mut queue = Queue::new(settings(1, 1));
    let mine = |from: u64, is_known| {
        let hash = route("/search").used_by(client(from));
        Some(OwnRoute { hash, is_known })
    };
    let search =
        |from, cost| Arrival { own: mine(from, false), ..on("/search", credit(from, cost)) };
    let heavy: Vec<RequestId> =
        (0..9).map(|n| queue.handle_arrival(search(n, HEAVY), NOW)).collect();
    let human = [(); 2].map(|()| queue.handle_arrival(search(99, HEAVY), NOW));
    assert_eq!(sent(&mut queue), heavy[..1]);
    queue.handle_estimate(route("/search").used_by(client(99)), Cost(LIGHT));
    assert_eq!(sent(&mut queue), [], "the person has not come first yet");
    queue.handle_done(heavy[0], Cost(HEAVY), NOW);
    let next = sent(&mut queue);
    assert_eq!(next[0], heavy[1]);
    // A request that comes with its client's own estimate does not change that of others.
    let known = Arrival { own: mine(50, true), ..on("/search", credit(50, LIGHT)) };
    let light = queue.handle_arrival(known, NOW);
    assert_eq!(sent(&mut queue), [light]);
    queue.handle_estimate(route("/search"), Cost(HEAVY));
    queue.handle_done(light, Cost(LIGHT), NOW);
    assert_eq!(sent(&mut queue), [], "the others are as heavy as they were");
    for id in &heavy[2..] {
        queue.handle_cancel(*id);
    }
    queue.handle_done(heavy[1], Cost(HEAVY), NOW);
    assert_eq!(sent(&mut queue), human[..1]);
    queue.handle_done(human[0], Cost(LIGHT), NOW);
    assert_eq!(sent(&mut queue), human[1..]);
    queue.handle_done(human[1], Cost(LIGHT), NOW);
    assert_eq!(queue.remembered(), 0);
}

/// Small cost differences within a swarm do not make its cheaper pages light.
#[test]
fn an_uneven_swarm_leaves_the_reserved_slots_alone() {
    let mut queue = Queue::new(settings(2, 2));
    for n in 0..20 {
        queue.handle_arrival(credit(n, HEAVY - n * LIGHT), NOW);
    }
    assert_eq!(sent(&mut queue).len(), 2);
    let half = queue.handle_arrival(credit(40, HEAVY / 4), NOW);
    assert_eq!(sent(&mut queue), [half], "one slot is for whoever asks for less than half");
    queue.handle_arrival(credit(41, HEAVY / 4), NOW);
    assert_eq!(sent(&mut queue), [], "the last is for whoever asks for next to nothing");
    let human = queue.handle_arrival(credit(42, LIGHT), NOW);
    assert_eq!(sent(&mut queue), [human]);
}

/// The light client is in one of several networks in debt. Each of these has a request at the
/// backend or waits for its turn.
#[test]
fn a_light_client_of_any_bucket_goes_beside_heavy_ones() {
    for own in 0..5 {
        let mut queue = Queue::new(settings(2, 2));
        for n in 0..50 {
            queue.handle_arrival(arrival(n, bucket(n % 5), HEAVY), NOW);
        }
        assert_eq!(sent(&mut queue).len(), 2);
        let human = queue.handle_arrival(arrival(99, bucket(own), LIGHT), NOW);
        assert_eq!(sent(&mut queue), [human], "in bucket {own}");
    }
}

/// A bucket with many light clients may not run ahead of others by more than two heavy requests,
/// however many light clients it has.
#[test]
fn light_clients_do_not_take_their_bucket_far_ahead() {
    let mut queue = Queue::new(settings(1, 2));
    for n in 0..4 {
        queue.handle_arrival(arrival(n, bucket(1), HEAVY), NOW);
        queue.handle_arrival(arrival(10 + n, bucket(2), HEAVY), NOW);
    }
    let mut heavy = sent(&mut queue);
    assert_eq!(heavy.len(), 1);
    for n in 0..500 {
        queue.handle_arrival(arrival(100 + n, bucket(1), LIGHT), NOW);
    }
    let mut light = 0;
    while let Some(id) = sent(&mut queue).pop() {
        light += 1;
        queue.handle_done(id, Cost(LIGHT), NOW);
    }
    assert!((50..=101).contains(&light), "{light} went beside one request of {HEAVY}");
    queue.handle_done(heavy.remove(0), Cost(HEAVY), NOW);
    let next = sent(&mut queue);
    assert!(!next.is_empty(), "the other bucket goes on");
}

/// A queue with two slots and two reserved ones, before which only heavy requests wait; the heavy
/// ones in the two slots.
fn crowded() -> (Queue, VecDeque<RequestId>) {
    let mut queue = Queue::new(settings(2, 2));
    for n in 0..300 {
        queue.handle_arrival(credit(10_000 + n, HEAVY), NOW);
    }
    let heavy = VecDeque::from(sent(&mut queue));
    assert_eq!((heavy.len(), queue.accepted_max()), (2, None));
    (queue, heavy)
}

/// The moment at which the `n`th heavy request of [`crowded`] ends.
fn end_of(n: u64) -> Time {
    NOW.plus(Nanos((n + 1) * HEAVY))
}

/// Shortly before a moment, or shortly after it.
fn before(moment: Time) -> Time {
    moment.minus(Nanos(HEAVY / 3))
}

fn after(moment: Time) -> Time {
    moment.plus(Nanos(LIGHT))
}

/// Simulates a backend that accepts `most` requests at once: a light request beyond them waits for
/// a heavy one, which ends at `end`. Returns `None` if the queue does not send the request.
fn beyond(
    queue: &mut Queue,
    heavy: &mut VecDeque<RequestId>,
    from: u64,
    most: usize,
    end: Time,
) -> Option<bool> {
    let human = queue.handle_arrival(credit(100 + from, LIGHT), before(end));
    let Some(id) = queue.poll_dispatch(before(end)) else {
        queue.handle_cancel(human);
        return None;
    };
    assert_eq!(id, human);
    if queue.in_flight() <= most {
        return Some(queue.handle_done(id, Cost(LIGHT), after(before(end))));
    }
    queue.handle_done(heavy.pop_front().expect("two of them"), Cost(HEAVY), end);
    let telling = queue.handle_done(id, Cost(HEAVY / 3), after(end));
    heavy.extend(queue.poll_dispatch(after(end)));
    Some(telling)
}

#[test]
fn a_backend_is_not_sent_more_than_it_takes_in() {
    let (mut queue, mut heavy) = crowded();
    let told: Vec<_> = (0..20).map(|n| beyond(&mut queue, &mut heavy, n, 2, end_of(n))).collect();
    assert_eq!(told[..6], [Some(false); 6], "what they seem to have cost says nothing of others");
    assert!(told[6..].iter().all(Option::is_none), "{told:?}");
    assert_eq!(queue.accepted_max(), Some(2));
    // The light request is still the first when a slot is free.
    let now = end_of(20);
    let human = queue.handle_arrival(credit(99, LIGHT), now);
    queue.handle_done(heavy.pop_front().expect("two of them"), Cost(HEAVY), now);
    assert_eq!(queue.poll_dispatch(now), Some(human));
    queue.handle_done(human, Cost(LIGHT), after(now));
    heavy.extend(queue.poll_dispatch(now));
    assert_eq!(heavy.len(), 2);
    // The queue probes for more capacity from time to time, and uses it when there is some.
    let later = |seconds| NOW.plus(Nanos::from_secs(seconds));
    assert_eq!(beyond(&mut queue, &mut heavy, 51, 2, later(11)), Some(false));
    assert_eq!(beyond(&mut queue, &mut heavy, 52, 2, later(12)), None);
    assert_eq!(beyond(&mut queue, &mut heavy, 53, 2, later(25)), None, "twice as long");
    assert_eq!(beyond(&mut queue, &mut heavy, 54, 9, later(40)), Some(true));
    assert_eq!(beyond(&mut queue, &mut heavy, 55, 9, later(40)), Some(true));
    assert_eq!(queue.accepted_max(), Some(3));
}

#[test]
fn a_backend_is_not_sent_more_than_it_has_workers() {
    let mut queue = Queue::new(QueueSettings { workers: Some(3), ..settings(9, 2) });
    assert_eq!(queue.settings().concurrency, 3);
    queue.set_concurrency(2);
    for n in 0..9 {
        queue.handle_arrival(credit(n, HEAVY), NOW);
    }
    let heavy = sent(&mut queue);
    let humans = [98, 99].map(|n| queue.handle_arrival(credit(n, LIGHT), NOW));
    assert_eq!((heavy.len(), sent(&mut queue)), (2, vec![humans[0]]), "the third worker");
    queue.handle_done(heavy[0], Cost(HEAVY), NOW);
    assert_eq!(sent(&mut queue), [humans[1]], "it is light, so it is next");
    queue.set_concurrency(4);
    assert_eq!((queue.settings().concurrency, sent(&mut queue).len()), (3, 0));
}

/// On a busy machine one request in four takes far longer than it should.
#[test]
fn some_that_take_long_say_nothing_of_the_backend() {
    let (mut queue, mut heavy) = crowded();
    for n in 0..400 {
        let most = if n % 4 == 0 { 2 } else { 9 };
        assert!(beyond(&mut queue, &mut heavy, n, most, end_of(n)).is_some());
    }
    assert_eq!(queue.accepted_max(), None);
}

/// Other programs are on the processors, so all light requests take long. None of the requests that
/// the backend had before has ended, so each had a worker.
#[test]
fn all_that_take_long_beside_the_same_requests_have_workers() {
    let (mut queue, _heavy) = crowded();
    for n in 0..100 {
        let human = queue.handle_arrival(credit(100 + n, LIGHT), NOW);
        assert_eq!(queue.poll_dispatch(NOW), Some(human));
        assert!(queue.handle_done(human, Cost(HEAVY / 3), NOW), "this is what such requests cost");
    }
    assert_eq!(queue.accepted_max(), None);
}

/// Requests that were expected to be light and are heavy, on unknown routes: they say nothing
/// of the backend. Nor does any request if its workers are known.
#[test]
fn guesses_and_known_workers_close_no_reserved_slot() {
    for (is_guess, workers) in [(true, None), (false, Some(8))] {
        let (mut queue, mut heavy) = crowded();
        queue.set_settings(QueueSettings { workers, ..settings(2, 2) });
        for n in 0..50 {
            let (arrival, end) = (Arrival { is_guess, ..credit(100 + n, LIGHT) }, end_of(n));
            let human = queue.handle_arrival(arrival, before(end));
            assert_eq!(queue.poll_dispatch(before(end)), Some(human), "request {n}");
            queue.handle_done(heavy.pop_front().expect("two of them"), Cost(HEAVY), end);
            assert!(queue.handle_done(human, Cost(HEAVY), after(end)), "this is what it cost");
            heavy.extend(queue.poll_dispatch(after(end)));
        }
        assert_eq!(queue.accepted_max(), None);
    }
}

/// Requests on routes that were light and are heavy. Others that were sent later have ended before
/// them, so they had a worker: they close no slot, and their cost is believed.
#[test]
fn requests_that_were_overtaken_have_not_waited() {
    let (mut queue, mut heavy) = crowded();
    for n in 0..50 {
        let end = end_of(n);
        let liar = queue.handle_arrival(credit(1_000 + n, LIGHT), before(end));
        assert_eq!(queue.poll_dispatch(before(end)), Some(liar));
        let human = queue.handle_arrival(credit(100 + n, LIGHT), after(before(end)));
        assert_eq!(queue.poll_dispatch(after(before(end))), Some(human));
        queue.handle_done(heavy.pop_front().expect("two of them"), Cost(HEAVY), end);
        assert!(queue.handle_done(human, Cost(LIGHT), end));
        assert!(queue.handle_done(liar, Cost(HEAVY), after(end)), "this is what it cost");
        heavy.extend(queue.poll_dispatch(after(end)));
    }
    assert_eq!(queue.accepted_max(), None);
}

/// The same, and none was sent later. They go on for long after the heavy request has ended, so
/// they had a worker.
#[test]
fn requests_that_run_on_have_not_waited() {
    let (mut queue, mut heavy) = crowded();
    for n in 0..50 {
        let end = end_of(n);
        let liar = queue.handle_arrival(credit(1_000 + n, LIGHT), before(end));
        assert_eq!(queue.poll_dispatch(before(end)), Some(liar));
        queue.handle_done(heavy.pop_front().expect("two of them"), Cost(HEAVY), end);
        let later = end.plus(Nanos(HEAVY / 3));
        assert!(queue.handle_done(liar, Cost(HEAVY), later), "this is what it cost");
        heavy.extend(queue.poll_dispatch(later));
    }
    assert_eq!(queue.accepted_max(), None);
}

/// Two light requests wait inside the backend for the same heavy one. It serves the later one
/// first, because they reached it at the same moment. Both have waited, and that counts once.
#[test]
fn requests_that_waited_together_count_once() {
    let (mut queue, mut heavy) = crowded();
    for n in 0..6 {
        assert_eq!(queue.accepted_max(), None);
        let end = end_of(n);
        let both = [100, 200].map(|client| {
            let one = queue.handle_arrival(credit(client + n, LIGHT), before(end));
            assert_eq!(queue.poll_dispatch(before(end)), Some(one));
            one
        });
        queue.handle_done(heavy.pop_front().expect("two of them"), Cost(HEAVY), end);
        assert!(!queue.handle_done(both[1], Cost(HEAVY / 3), after(end)));
        assert!(!queue.handle_done(both[0], Cost(HEAVY / 3), after(after(end))));
        heavy.extend(queue.poll_dispatch(after(end)));
    }
    assert_eq!(queue.accepted_max(), Some(2));
}

/// A backend with two workers and four slots. Light requests have ordinary slots, in which they
/// wait for a heavy one to end.
#[test]
fn a_wait_in_an_ordinary_slot_is_no_cost() {
    let (mut queue, mut heavy) = crowded();
    queue.set_concurrency(4);
    heavy.extend(sent(&mut queue));
    for n in 0..20 {
        let end = end_of(n);
        let human = queue.handle_arrival(credit(100 + n, LIGHT), before(end));
        queue.handle_done(heavy.pop_front().expect("some"), Cost(HEAVY), before(end));
        assert_eq!(queue.poll_dispatch(before(end)), Some(human));
        queue.handle_done(heavy.pop_front().expect("some"), Cost(HEAVY), end);
        assert!(!queue.handle_done(human, Cost(HEAVY / 3), after(end)), "it has waited");
        while let Some(next) = queue.poll_dispatch(after(end)) {
            heavy.push_back(next);
        }
    }
    assert_eq!(queue.accepted_max(), Some(3));
}

/// Two requests that were expected to be light cost as much as heavy ones. As soon as one has
/// ended, the other counts as heavy, and a light request goes beside it.
#[test]
fn what_runs_counts_for_what_it_has_cost_already() {
    let mut queue = Queue::new(settings(2, 2));
    let liars = [1, 2].map(|n| queue.handle_arrival(credit(n, LIGHT / 4), NOW));
    assert_eq!(sent(&mut queue), liars);
    let human = queue.handle_arrival(credit(99, LIGHT), NOW);
    queue.set_concurrency(1);
    assert_eq!(sent(&mut queue), [], "they are thought to cost less");
    queue.handle_done(liars[0], Cost(HEAVY), NOW);
    assert_eq!(sent(&mut queue), [human]);
}

/// Requests on unknown routes wait. They get the estimate that others on such routes have shown.
#[test]
fn guesses_that_wait_follow_what_unknown_routes_cost() {
    let mut queue = Queue::new(settings(1, 1));
    let guess = |n: u64| Arrival {
        is_guess: true,
        ..on(&format!("/{}", "x".repeat(n as usize)), credit(n, 1))
    };
    let unknown: Vec<RequestId> = (0..9).map(|n| queue.handle_arrival(guess(n), NOW)).collect();
    assert_eq!(sent(&mut queue), unknown[..1]);
    let human = queue.handle_arrival(credit(99, LIGHT), NOW);
    assert_eq!(sent(&mut queue), [], "they are thought to ask for less");
    queue.handle_estimate(RouteHash::UNKNOWN, Cost(HEAVY));
    assert_eq!(sent(&mut queue), [human], "the one that runs counts as heavy, too");
    assert!(queue.handle_done(human, Cost(LIGHT), NOW));
    assert_eq!(sent(&mut queue), [], "the others are no longer light");
}

/// A reserved slot that the backend is known to accept is in use all the time. That says nothing
/// about the next one, which is probed all the same.
#[test]
fn a_busy_reserved_slot_does_not_put_the_probe_off() {
    let (mut queue, mut heavy) = crowded();
    // One light request is in the third slot; `most`: what the backend accepts besides.
    let mut fourth = |from: u64, most: usize, now: Time| {
        let third = queue.handle_arrival(credit(1_000 + from, LIGHT), before(now));
        assert_eq!(queue.poll_dispatch(before(now)), Some(third));
        let waited = beyond(&mut queue, &mut heavy, from, most, now);
        queue.handle_done(third, Cost(LIGHT), after(now));
        heavy.extend(queue.poll_dispatch(after(now)));
        (waited, queue.accepted_max())
    };
    let later = |seconds| NOW.plus(Nanos::from_secs(seconds));
    let found = (0..20).map(|n| fourth(n, 3, end_of(n))).find(|(waited, _)| waited.is_none());
    assert_eq!(found, Some((None, Some(3))));
    let tried = (1..=60).map(|second| (second, fourth(100 + second, 3, later(second))));
    let tried: Vec<_> = tried.filter(|(_, (waited, _))| waited.is_some()).collect();
    let seconds: Vec<_> = tried.iter().map(|(second, _)| *second).collect();
    assert_eq!(seconds, [11, 31], "after 10 s, and then after twice as long");
    assert_eq!(fourth(200, 9, later(71)), (Some(true), Some(4)));
}

/// A request that was thought to be light hangs. Each second its age says more.
#[test]
fn what_runs_counts_for_its_age() {
    let mut queue = Queue::new(settings(1, 1));
    queue.handle_arrival(credit(1, LIGHT), NOW);
    let hangs = sent(&mut queue)[0];
    let human = queue.handle_arrival(credit(99, LIGHT), NOW);
    assert_eq!(sent(&mut queue), []);
    queue.handle_ages(NOW.plus(Nanos(4 * LIGHT)), |_, _| false);
    assert_eq!(sent(&mut queue), [], "not yet odd");
    queue.handle_ages(NOW.plus(Nanos(8 * LIGHT)), |_, _| false);
    assert_eq!((sent(&mut queue), queue.stays(hangs)), (vec![human], false));
}

#[test]
fn requests_that_stay_have_slots_of_their_own() {
    for (workers, room) in [(None, 2), (Some(3), 1)] {
        let mut queue = Queue::new(QueueSettings { workers, ..settings(2, 0) });
        for n in 0..9 {
            queue.handle_arrival(credit(n, HEAVY), NOW);
        }
        let first = sent(&mut queue);
        assert_eq!((first.len(), queue.staying()), (2, 0));
        queue.handle_ages(NOW.plus(Nanos::from_secs(9)), |_, age| age == Nanos::from_secs(9));
        assert_eq!((sent(&mut queue).len(), queue.staying()), (room, 2), "{workers:?}");
        assert!(queue.stays(first[0]) && queue.stays(first[1]));
        queue.handle_done(first[0], Cost(HEAVY), NOW);
        assert_eq!((sent(&mut queue).len(), queue.staying()), (usize::from(workers.is_some()), 1));
        queue.handle_done(first[1], Cost(HEAVY), NOW);
        assert_eq!((sent(&mut queue).len(), queue.staying(), queue.in_flight()), (0, 0, 2));
    }
}

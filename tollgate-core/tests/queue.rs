//! What the fair queue promises, with random traffic.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tollgate_core::classify::Key;
use tollgate_core::key::KeyHash;
use tollgate_core::queue::{Arrival, Cancelled, Id, Place, Queue, Settings, Weight};
use tollgate_core::units::{Cost, Nanos, Time};

fn client(n: u64) -> KeyHash {
    KeyHash::from_bits(n + 1)
}

fn bucket(n: u64) -> Place {
    Place::Debt(Key { limit: 0, hash: client(1_000 + n) })
}

fn settings(concurrency: usize, reserve: usize) -> Settings {
    Settings { concurrency, reserve, len_max: 4_096, wait_max: Nanos::from_secs(3_600) }
}

fn arrival(from: u64, place: Place, cost: u64) -> Arrival {
    Arrival { client: client(from), place, estimate: Cost(cost), weight: Weight::ONE }
}

const NOW: Time = Time(1_000_000_000);

#[derive(Clone, Debug)]
enum Event {
    Arrive { from: u64, place: u64, cost: u64, weight: u32 },
    Done { which: usize, cost: u64 },
    Cancel { which: usize },
    Pass(u64),
    Concurrency(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let arrive = (0..6_u64, 0..4_u64, 0..50_u64, 100..5_000_u32)
        .prop_map(|(from, place, cost, weight)| Event::Arrive { from, place, cost, weight });
    let done = (any::<usize>(), 0..80_u64).prop_map(|(which, cost)| Event::Done { which, cost });
    let cancel = any::<usize>().prop_map(|which| Event::Cancel { which });
    let event = prop_oneof![
        5 => arrive,
        3 => done,
        1 => cancel,
        1 => (0..40_u64).prop_map(Event::Pass),
        1 => (1..5_usize).prop_map(Event::Concurrency),
    ];
    prop::collection::vec(event, 1..200)
}

/// A queue, and all that is known of what it did.
struct Watched {
    queue: Queue,
    now: Time,
    waiting: BTreeMap<Id, (u64, Time)>,
    running: Vec<Id>,
    /// The last request of each client that was sent to the backend.
    sent: BTreeMap<u64, Id>,
}

impl Watched {
    fn new(settings: Settings) -> Watched {
        Watched {
            queue: Queue::new(settings),
            now: NOW,
            waiting: BTreeMap::new(),
            running: Vec::new(),
            sent: BTreeMap::new(),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive { from, place, cost, weight } => {
                let place = if place < 2 { Place::Credit } else { bucket(place) };
                let weight = Weight::new(weight);
                let one = Arrival { weight, ..arrival(from, place, cost) };
                let id = self.queue.handle_arrival(one, self.now);
                self.waiting.insert(id, (from, self.now));
            }
            Event::Done { which, cost } if !self.running.is_empty() => {
                let id = self.running.swap_remove(which % self.running.len());
                self.queue.handle_done(id, Cost(cost));
            }
            Event::Cancel { which } if !self.waiting.is_empty() => {
                let id = *self.waiting.keys().nth(which % self.waiting.len()).expect("one");
                assert_eq!(self.queue.handle_cancel(id), Cancelled::Waiting);
                assert_eq!(self.queue.handle_cancel(id), Cancelled::Unknown);
                self.waiting.remove(&id);
            }
            Event::Pass(time) => {
                self.now = self.now.plus(Nanos(time));
                self.queue.handle_timeout(self.now);
            }
            Event::Concurrency(slots) => self.queue.set_concurrency(slots),
            Event::Done { .. } | Event::Cancel { .. } => {}
        }
    }

    fn poll(&mut self) {
        while let Some(refused) = self.queue.poll_refused() {
            assert!(self.waiting.remove(&refused.id).is_some(), "refused, but not waiting");
        }
        while let Some(id) = self.queue.poll_dispatch(self.now) {
            let (from, _) = self.waiting.remove(&id).expect("sent, but not waiting");
            assert!(self.sent.insert(from, id).is_none_or(|before| before < id), "out of order");
            assert_eq!(self.queue.handle_cancel(id), Cancelled::Running);
            self.running.push(id);
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let Settings { len_max, wait_max, .. } = self.queue.settings();
        let slots = self.queue.settings().concurrency;
        prop_assert_eq!(self.queue.waiting(), self.waiting.len());
        prop_assert_eq!(self.queue.in_flight(), self.running.len());
        prop_assert!(self.waiting.is_empty() || self.running.len() >= slots, "a slot is free");
        prop_assert!(self.waiting.len() <= len_max, "too many wait");
        let oldest = self.waiting.values().map(|(_, since)| *since).min();
        prop_assert_eq!(self.queue.poll_timeout(), oldest.map(|since| since.plus(wait_max)));
        prop_assert!(oldest.is_none_or(|since| self.now.since(since) < wait_max), "too long");
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Whatever comes: nothing waits while a slot is free, each client keeps its order, each
    /// request is sent or refused once, and in the end nobody is remembered.
    #[test]
    fn nothing_is_lost_and_nothing_stands_idle(
        events in events(), reserve in 0..3_usize, len_max in 0..12_usize, wait in 20..200_u64,
    ) {
        let settings = Settings {
            concurrency: 2, reserve, len_max, wait_max: Nanos(wait),
        };
        let mut watched = Watched::new(settings);
        for event in events {
            let cut = matches!(event, Event::Concurrency(_));
            watched.handle(event);
            watched.poll();
            if !cut {
                watched.check()?;
            }
        }
        while watched.queue.in_flight() > 0 {
            watched.handle(Event::Done { which: 0, cost: 1 });
            watched.poll();
        }
        prop_assert_eq!(watched.queue.waiting(), 0);
        prop_assert_eq!(watched.queue.remembered(), 0);
    }
}

/// Some flows, whose requests are of many sizes, and what each has got.
struct Race {
    queue: Queue,
    now: Time,
    /// The weight of each, in thousandths, and its largest request.
    flows: Vec<(u32, u64)>,
    running: Vec<(Id, usize, u64)>,
    owner: BTreeMap<Id, (usize, u64)>,
    waiting: Vec<usize>,
    /// Cost over weight: of what was sent to the backend, and of what is done.
    sent: Vec<f64>,
    done: Vec<f64>,
}

impl Race {
    fn new(slots: usize, flows: Vec<(u32, u64)>) -> Race {
        let count = flows.len();
        Race {
            queue: Queue::new(settings(slots, 0)),
            now: NOW,
            flows,
            running: Vec::new(),
            owner: BTreeMap::new(),
            waiting: vec![0; count],
            sent: vec![0.0; count],
            done: vec![0.0; count],
        }
    }

    /// A request of `flow` that costs `cost` and is taken for `estimate`.
    fn arrive(&mut self, flow: usize, place: Place, cost: u64, estimate: u64) {
        let weight = Weight::new(self.flows[flow].0);
        let one = Arrival { weight, ..arrival(flow as u64, place, estimate) };
        let id = self.queue.handle_arrival(one, self.now);
        self.owner.insert(id, (flow, cost));
        self.waiting[flow] += 1;
    }

    fn poll(&mut self) {
        while let Some(id) = self.queue.poll_dispatch(self.now) {
            let (flow, cost) = self.owner[&id];
            self.waiting[flow] -= 1;
            self.sent[flow] += cost as f64 * 1e3 / f64::from(self.flows[flow].0);
            self.running.push((id, flow, cost));
        }
    }

    fn finish(&mut self, which: usize) -> usize {
        let (id, flow, cost) = self.running.swap_remove(which % self.running.len());
        self.done[flow] += cost as f64 * 1e3 / f64::from(self.flows[flow].0);
        self.queue.handle_done(id, Cost(cost));
        flow
    }
}

/// How far two flows may drift apart while both wait: the widest stretch between the largest and
/// the smallest difference so far, since both began to wait.
#[derive(Clone, Copy)]
struct Drift {
    least: f64,
    most: f64,
}

impl Drift {
    const NONE: Drift = Drift { least: f64::INFINITY, most: f64::NEG_INFINITY };

    fn see(&mut self, difference: f64) -> f64 {
        self.least = self.least.min(difference);
        self.most = self.most.max(difference);
        self.most - self.least
    }
}

/// Flows of the given weights and sizes; each time one of `D` slots is freed at random, and a
/// flow at random gets more to do, if it has less than three waiting. `error`: estimates are
/// wrong by up to so many percent.
fn race(
    slots: usize,
    flows: Vec<(u32, u64)>,
    steps: Vec<(usize, u64, u64)>,
    error: u64,
    in_debt: bool,
) -> Result<(), TestCaseError> {
    let mut race = Race::new(slots, flows.clone());
    let mut drifts = BTreeMap::new();
    for (which, size, wrong) in steps {
        let flow = (size % flows.len() as u64) as usize;
        let cost = 1 + size % flows[flow].1;
        let estimate = (cost * (100 - error + wrong % (2 * error + 1)) / 100).max(1);
        if race.waiting[flow] < 3 {
            let place = if in_debt { bucket(flow as u64) } else { Place::Credit };
            race.arrive(flow, place, cost, estimate);
        }
        race.poll();
        if race.running.len() == slots && which % 2 == 0 {
            race.finish(which / 2);
        }
        check_drift(&race, &mut drifts, slots as f64, error as f64 / 100.0)?;
        race.poll();
    }
    Ok(())
}

fn check_drift(
    race: &Race,
    drifts: &mut BTreeMap<(usize, usize), (Drift, Drift)>,
    slots: f64,
    error: f64,
) -> Result<(), TestCaseError> {
    for f in 0..race.flows.len() {
        for m in 0..f {
            let (sent, done) = drifts.entry((f, m)).or_insert((Drift::NONE, Drift::NONE));
            if race.waiting[f] == 0 || race.waiting[m] == 0 {
                (*sent, *done) = (Drift::NONE, Drift::NONE);
                continue;
            }
            let largest = |i: usize| race.flows[i].1 as f64 * 1e3 / f64::from(race.flows[i].0);
            let both = largest(f) + largest(m) + 2.0;
            let unknown = 2.0 * (slots + 1.0) * error * both;
            let drift = sent.see(race.sent[f] - race.sent[m]);
            prop_assert!(drift <= both + unknown, "sent: {drift} > {both} + {unknown}");
            let bound = (slots + 1.0) * both + unknown;
            let drift = done.see(race.done[f] - race.done[m]);
            prop_assert!(drift <= bound, "done: {drift} > {bound}");
        }
    }
    Ok(())
}

fn flows() -> impl Strategy<Value = Vec<(u32, u64)>> {
    prop::collection::vec((200..5_000_u32, 1..2_000_u64), 2..5)
}

fn steps() -> impl Strategy<Value = Vec<(usize, u64, u64)>> {
    prop::collection::vec((any::<usize>(), any::<u64>(), any::<u64>()), 50..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Two flows that wait: what is sent for one runs ahead of what is sent for the other by no
    /// more than one largest request of each, by weight (Goyal 1996); what is done, by no more
    /// than D + 1 of them (Jin 2004).
    #[test]
    fn who_waits_does_not_fall_behind(
        slots in 1..5_usize, flows in flows(), steps in steps(), in_debt in any::<bool>(),
    ) {
        race(slots, flows, steps, 0, in_debt)?;
    }

    /// With wrong estimates: by what is in flight and was misjudged more.
    #[test]
    fn wrong_estimates_are_made_good(
        slots in 1..5_usize, flows in flows(), steps in steps(), in_debt in any::<bool>(),
    ) {
        race(slots, flows, steps, 60, in_debt)?;
    }

    /// While somebody in debt waits, those in credit get at most nine times what its request
    /// will cost before it is served, and what was begun.
    #[test]
    fn the_debt_tier_is_never_starved(
        slots in 1..5_usize,
        steps in prop::collection::vec((0..4_u64, 0..3_u64, 1..100_u64), 50..400),
    ) {
        let mut queue = Queue::new(settings(slots, 0));
        let mut debtors = BTreeMap::new();
        let mut costs = BTreeMap::new();
        let (mut passed_over, mut running) = (0, Vec::new());
        for (from, in_debt, cost) in steps {
            let id = queue.handle_arrival(arrival(from, Place::Credit, cost), NOW);
            costs.insert(id, cost);
            if in_debt == 0 {
                let id = queue.handle_arrival(arrival(100 + from, bucket(from), 50), NOW);
                debtors.insert(id, ());
            }
            while let Some(id) = queue.poll_dispatch(NOW) {
                let waited = !debtors.is_empty();
                let served = debtors.remove(&id).is_some();
                passed_over = if served || !waited { 0 } else { passed_over + costs[&id] };
                prop_assert!(passed_over <= 9 * 50 + 100, "{passed_over} in credit in a row");
                running.push(id);
            }
            let done = running.swap_remove(0);
            queue.handle_done(done, Cost(10));
        }
    }

    /// Requests of X that come, wait and are cancelled: none of its others is served earlier for
    /// them.
    #[test]
    fn waiting_and_cancelling_gains_nothing(
        steps in prop::collection::vec((0..4_u64, 1..100_u64, 1..100_u64), 10..120),
        debt in any::<bool>(),
    ) {
        let plain = positions(&steps, debt, false);
        let with = positions(&steps, debt, true);
        for (plain, with) in plain.iter().zip(&with) {
            prop_assert!(with >= plain, "served earlier: {with} before {plain}");
        }
    }
}

/// As the how manieth each request of client 0 was served. With `peeping`, it opens a request
/// more before each of its own, and cancels it right after.
fn positions(steps: &[(u64, u64, u64)], debt: bool, peeping: bool) -> Vec<usize> {
    let mut queue = Queue::new(settings(1, 0));
    let (mut running, mut served, mut own) = (None, 0, BTreeMap::new());
    let mut positions = Vec::new();
    let mut extra = None;
    for (step, (from, cost, peep)) in steps.iter().enumerate() {
        let place = if debt { bucket(*from) } else { Place::Credit };
        if peeping && running.is_some() && extra.is_none() {
            let place = if debt { bucket(0) } else { Place::Credit };
            extra = Some(queue.handle_arrival(arrival(0, place, *peep), NOW));
        }
        let id = queue.handle_arrival(arrival(*from, place, *cost), NOW);
        if *from == 0 {
            own.insert(id, positions.len());
            positions.push(usize::MAX);
        }
        // It is gone before it is its turn.
        if let Some(extra) = extra.take() {
            queue.handle_cancel(extra);
        }
        if step % 2 == 1
            && let Some((id, cost)) = running.take()
        {
            queue.handle_done(id, Cost(cost));
        }
        while let Some(id) = queue.poll_dispatch(NOW) {
            served += 1;
            own.get(&id).into_iter().for_each(|place| positions[*place] = served);
            running = Some((id, *cost));
        }
    }
    positions
}

/// Sends everything to the backend, one request at a time; in which order.
fn order(queue: &mut Queue) -> Vec<Id> {
    let mut order = Vec::new();
    while let Some(id) = queue.poll_dispatch(NOW) {
        queue.handle_done(id, Cost(100));
        order.push(id);
    }
    order
}

#[test]
fn who_is_in_credit_goes_first_and_has_a_slot_kept() {
    let mut queue = Queue::new(settings(1, 1));
    let ids: Vec<Id> =
        (0..3).map(|_| queue.handle_arrival(arrival(1, bucket(1), 100), NOW)).collect();
    assert_eq!(queue.poll_dispatch(NOW), Some(ids[0]));
    assert_eq!(queue.poll_dispatch(NOW), None, "a reserved slot is not for those in debt");
    let human = queue.handle_arrival(arrival(2, Place::Credit, 2), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(human));
    let next = queue.handle_arrival(arrival(2, Place::Credit, 2), NOW);
    assert_eq!(queue.poll_dispatch(NOW), None, "it has one already");
    queue.handle_done(human, Cost(2));
    assert_eq!(queue.poll_dispatch(NOW), Some(next));
    queue.handle_done(next, Cost(2));
    assert_eq!(queue.poll_dispatch(NOW), None);
    queue.handle_done(ids[0], Cost(100));
    assert_eq!(order(&mut queue), &ids[1..]);
}

/// Those in debt who use little may have a reserved slot too, but never the last one.
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
    let human = queue.handle_arrival(arrival(5, Place::Credit, 100), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(human));
    queue.handle_done(heavy, Cost(100));
    queue.handle_done(human, Cost(100));
    queue.handle_done(lighter, Cost(1));
    assert_eq!(queue.poll_dispatch(NOW), Some(light), "the smaller of equal tags");
    queue.handle_done(light, Cost(2));
    assert_eq!(order(&mut queue), [alike]);
}

/// A swarm whose members each have nothing with the backend leaves the reserved slots to who uses
/// less than they do.
#[test]
fn a_swarm_does_not_fill_the_reserved_slots() {
    let mut queue = Queue::new(settings(2, 2));
    for n in 0..20 {
        queue.handle_arrival(arrival(n, Place::Credit, 100), NOW);
    }
    let mut running: Vec<Id> = std::iter::from_fn(|| queue.poll_dispatch(NOW)).collect();
    for _ in 0..18 {
        assert_eq!(running.len(), 2);
        let human = queue.handle_arrival(arrival(99, Place::Credit, 2), NOW);
        assert_eq!(queue.poll_dispatch(NOW), Some(human));
        queue.handle_done(human, Cost(2));
        queue.handle_done(running.swap_remove(0), Cost(100));
        running.extend(std::iter::from_fn(|| queue.poll_dispatch(NOW)));
    }
}

/// Somebody in the same network as a crawler waits behind one request of it, not behind all.
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
        queue.handle_done(id, Cost(100));
    }
    let running = queue.poll_dispatch(NOW).expect("one waits");
    let human = queue.handle_arrival(arrival(50, bucket(1), 2), NOW);
    queue.handle_done(running, Cost(100));
    assert_eq!(queue.poll_dispatch(NOW), Some(human));
}

/// A bucket with many clients is one flow beside others.
#[test]
fn a_swarm_in_one_bucket_counts_as_one() {
    let mut queue = Queue::new(settings(1, 0));
    let swarm: Vec<Id> =
        (0..50).map(|n| queue.handle_arrival(arrival(n, bucket(1), 100), NOW)).collect();
    for _ in 0..50 {
        queue.handle_arrival(arrival(99, bucket(2), 100), NOW);
    }
    let first: Vec<Id> = order(&mut queue).into_iter().take(40).collect();
    assert_eq!(first.iter().filter(|id| swarm.contains(id)).count(), 20);
}

#[test]
fn a_request_takes_no_others_along_to_a_better_place() {
    let mut queue = Queue::new(settings(1, 0));
    let running = queue.handle_arrival(arrival(9, Place::Credit, 1), NOW);
    assert_eq!(queue.poll_dispatch(NOW), Some(running));
    let owing: Vec<Id> =
        (0..3).map(|_| queue.handle_arrival(arrival(1, bucket(1), 100), NOW)).collect();
    let better = queue.handle_arrival(arrival(1, Place::Credit, 100), NOW);
    let others: Vec<Id> =
        (0..5).map(|n| queue.handle_arrival(arrival(2 + n, Place::Credit, 100), NOW)).collect();
    queue.handle_done(running, Cost(1));
    let expected: Vec<Id> = others.into_iter().chain(owing).chain([better]).collect();
    assert_eq!(order(&mut queue), expected);
}

#[test]
fn the_newest_of_the_longest_line_is_refused() {
    let mut queue = Queue::new(Settings { len_max: 10, ..settings(1, 0) });
    let crawler: Vec<Id> =
        (0..9).map(|_| queue.handle_arrival(arrival(1, Place::Credit, 100), NOW)).collect();
    assert_eq!(queue.poll_dispatch(NOW), Some(crawler[0]));
    for human in 2..6 {
        queue.handle_arrival(arrival(human, Place::Credit, 100), NOW);
    }
    let refused: Vec<Id> = std::iter::from_fn(|| queue.poll_refused()).map(|r| r.id).collect();
    assert_eq!(refused, [crawler[8], crawler[7]]);
    assert_eq!(queue.waiting(), 10);
    assert_eq!(queue.handle_cancel(crawler[8]), Cancelled::Unknown);
}

#[test]
fn who_waits_for_too_long_is_refused() {
    let wait_max = Nanos::from_secs(30);
    let mut queue = Queue::new(Settings { wait_max, ..settings(1, 0) });
    let ids: Vec<Id> = (0..3_u64)
        .map(|n| {
            let now = NOW.plus(Nanos::from_secs(n));
            queue.handle_arrival(arrival(n, Place::Credit, 100), now)
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

/// Two flows beside each other, one with twenty waiting when the next is refused: as long as it
/// says, until these are served.
#[test]
fn retry_after_is_when_what_waits_has_been_served() {
    for in_debt in [false, true] {
        let place = |n| if in_debt { bucket(n) } else { Place::Credit };
        let cost = Nanos::from_millis(100).0;
        let mut queue = Queue::new(Settings { len_max: 32, ..settings(2, 0) });
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
            // Two processors, a hundred milliseconds each.
            now = now.plus(Nanos::from_millis(100));
            running.drain(..).for_each(|id| queue.handle_done(id, Cost(cost)));
        }
        let (_, told) = refused.last().expect("it was too much");
        // Some 22 requests wait in the longer line, of which one is served each 100 ms.
        let told = told.retry_after.as_secs_f64();
        assert!((1.6..2.7).contains(&told), "{told}");
    }
}

/// A flood of clients that each ask once leaves nothing behind.
#[test]
fn memory_is_bounded() {
    let mut queue = Queue::new(Settings { len_max: 100, ..settings(4, 1) });
    let mut running = Vec::new();
    for n in 0..50_000_u64 {
        let place = if n % 3 == 0 { bucket(n % 700) } else { Place::Credit };
        queue.handle_arrival(arrival(n, place, 1 + n % 977), NOW);
        while queue.poll_refused().is_some() {}
        running.extend(std::iter::from_fn(|| queue.poll_dispatch(NOW)));
        if n % 2 == 0 && !running.is_empty() {
            queue.handle_done(running.swap_remove(n as usize % running.len()), Cost(n % 1_009));
        }
        assert!(queue.waiting() <= 100);
        assert!(queue.remembered() < 20_000, "{}", queue.remembered());
    }
}

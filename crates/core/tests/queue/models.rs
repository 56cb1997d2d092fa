//! Tests `concurrency: auto` with language models, by the tokens that they process per second.
//!
//! The engine works on all running sequences in each step: a step takes longer the more there are,
//! and each of them gets one token further. Sequences beyond its bound wait inside, in order of
//! arrival.

use super::concurrency::{SEEDS, START};
use super::*;
use evenkeel_core::key::KeySeed;
use evenkeel_core::meter::estimate::RouteHash;
use evenkeel_core::queue::concurrency::ConcurrencySearch;
use evenkeel_core::sim::random::SimRandom;
use evenkeel_core::units::SECOND;
use std::collections::{BTreeMap, VecDeque};

/// An engine that batches.
#[derive(Clone, Copy)]
struct Engine {
    /// The number of sequences that it works on at once.
    sequences: usize,
    /// The time of a step with no sequence, and what each sequence adds, in microseconds.
    step: u64,
    each: u64,
}

struct Sequence {
    sent: u64,
    tokens: u64,
    left: u64,
}

/// Keeps the engine at the number of requests that the search allows, or at `fixed`. Returns the
/// output tokens and the limit of each second.
fn run(engine: Engine, fixed: Option<usize>, seed: u64, seconds: u64) -> Vec<(f64, usize)> {
    let route = RouteHash::of(&KeySeed([1; 16]), "model", "/v1/chat/completions");
    let mut search = ConcurrencySearch::for_tokens();
    let mut random = SimRandom::new(seed, 1);
    let (mut running, mut inside): (Vec<Sequence>, VecDeque<Sequence>) = Default::default();
    let (mut now, mut done) = (0, Vec::new());
    for second in 1..=seconds {
        let mut tokens = 0.0;
        while now < second * SECOND {
            while running.len() + inside.len() < fixed.unwrap_or(search.concurrency()) {
                // Outputs of 20 to 400 tokens, most of them short.
                let length = 20 + (380.0 * random.unit() * random.unit()) as u64;
                inside.push_back(Sequence { sent: now, tokens: length, left: length });
            }
            while running.len() < engine.sequences
                && let Some(next) = inside.pop_front()
            {
                running.push(next);
            }
            search.handle_running(running.len() + inside.len(), Time(START.0 + now));
            now += (engine.step + engine.each * running.len() as u64) * 1_000;
            tokens += running.len() as f64;
            running.iter_mut().for_each(|one| one.left -= 1);
            for over in running.extract_if(.., |one| one.left == 0) {
                let cost = Cost::tokens(4 * over.tokens + 100);
                let took = Nanos(now - over.sent);
                search.handle_done(route, took, cost, true, Time(START.0 + now));
            }
        }
        done.push((tokens, search.concurrency()));
    }
    done
}

/// The throughput from a minute on, in relation to that with more than enough in flight, and the
/// mean limit.
fn found(engine: Engine, seed: u64) -> (f64, f64) {
    let after = |run: Vec<(f64, usize)>| {
        let (tokens, limits): (Vec<f64>, Vec<usize>) = run.into_iter().skip(60).unzip();
        let mean = |sum: f64| sum / tokens.len() as f64;
        (mean(tokens.iter().sum()), mean(limits.iter().sum::<usize>() as f64))
    };
    let (tokens, limit) = after(run(engine, None, seed, 300));
    (tokens / after(run(engine, Some(512), seed, 300)).0, limit)
}

/// The requests are alike, and the light tenant already has one with the engine.
#[test]
fn a_tenant_that_asks_for_little_need_not_wait_for_a_stream_to_end() {
    let models = |reserve| QueueSettings { unit: WorkUnit::Tokens, ..settings(4, reserve) };
    for (reserve, waits) in [(0, true), (2, false)] {
        let mut queue = Queue::new(models(reserve));
        let ask = |queue: &mut Queue, from, count| {
            let arrival = arrival(from, QueuePlace::Credit, 1_000_000);
            (0..count).map(|_| queue.handle_arrival(arrival, NOW)).collect::<Vec<_>>()
        };
        let light = ask(&mut queue, 1, 1);
        ask(&mut queue, 2, 20);
        let sent = |queue: &mut Queue| std::iter::from_fn(|| queue.poll_dispatch(NOW)).collect();
        let running: Vec<_> = sent(&mut queue);
        assert!(running.len() == 4 && running.contains(&light[0]), "the heavy one has its part");
        let heavy: Vec<_> = running.iter().filter(|id| **id != light[0]).copied().collect();
        for id in &heavy[..2] {
            queue.handle_done(*id, Cost(1_000_000), NOW);
        }
        let next: Vec<_> = sent(&mut queue);
        assert_eq!(next.len(), 2, "a client with most of the slots gets no reserved one");
        let second = ask(&mut queue, 1, 1);
        let more: Vec<_> = sent(&mut queue);
        assert_eq!(more.is_empty(), waits, "{reserve} slots are reserved");
        assert!(waits || more == second);
    }
}

/// Otherwise an engine would work on fewer requests than it can, for as long as new tenants wait.
#[test]
fn tenants_that_were_not_here_before_have_all_slots_but_one() {
    for (reserve, strangers) in [(0, 13), (2, 15)] {
        let known = KnownClients::Always { clients_max: 100 };
        let models = QueueSettings { unit: WorkUnit::Tokens, known, ..settings(14, reserve) };
        let mut queue = Queue::new(models);
        let ask = |queue: &mut Queue, from, now| {
            queue.handle_arrival(arrival(from, QueuePlace::Credit, 1_000_000), now)
        };
        for _ in 0..20 {
            let id = ask(&mut queue, 1, NOW);
            assert_eq!(queue.poll_dispatch(NOW), Some(id));
            queue.handle_done(id, Cost(1_000_000), NOW);
        }
        let later = NOW.plus(Nanos::from_secs(3_600));
        (0..30).for_each(|n| _ = ask(&mut queue, 2 + n % 6, later));
        let sent = |queue: &mut Queue| std::iter::from_fn(|| queue.poll_dispatch(later)).collect();
        let running: Vec<_> = sent(&mut queue);
        assert_eq!(running.len(), strangers, "{reserve} slots are reserved");
        let known = ask(&mut queue, 1, later);
        assert_eq!(sent(&mut queue), [known], "a slot is left to it");
        queue.handle_done(running[0], Cost(1_000_000), later);
        let next: Vec<_> = sent(&mut queue);
        assert_eq!(next.len(), 1, "the slots are in use again");
    }
}

/// New tenants take all slots at once, with long streams, before anything is known of the engine
/// and before there is pressure.
#[test]
fn a_slot_is_left_to_tenants_that_were_served_when_new_ones_come_all_at_once() {
    let known = KnownClients::Auto { clients_max: 100 };
    let models = QueueSettings { unit: WorkUnit::Tokens, known, ..settings(14, 2) };
    let mut queue = Queue::new(QueueSettings { cpus_milli: 1_000_000, ..models });
    let ask = |queue: &mut Queue, from, cost| {
        queue.handle_arrival(arrival(from, QueuePlace::Credit, cost), NOW)
    };
    let sent = |queue: &mut Queue| std::iter::from_fn(|| queue.poll_dispatch(NOW)).collect();
    let first = ask(&mut queue, 1, 100_000);
    assert_eq!(sent(&mut queue), [first]);
    queue.handle_done(first, Cost(100_000), NOW);
    (0..24).for_each(|n| _ = ask(&mut queue, 2 + n, 1_000_000));
    let running: Vec<_> = sent(&mut queue);
    assert_eq!((running.len(), queue.pressure_since()), (15, None));
    for _ in 0..3 {
        let next = ask(&mut queue, 1, 100_000);
        assert_eq!(sent(&mut queue), [next], "the last slot is for it");
        queue.handle_done(next, Cost(100_000), NOW);
    }
}

/// The same, and then the capacity of the engine is known, so that there is pressure. Those that
/// run came before it, and those that wait now do so in a line.
#[test]
fn the_slot_is_still_left_when_the_pressure_begins() {
    let known = KnownClients::Auto { clients_max: 100 };
    let models = QueueSettings { unit: WorkUnit::Tokens, known, ..settings(14, 2) };
    let mut queue = Queue::new(QueueSettings { cpus_milli: 1_000_000, ..models });
    let ask = |queue: &mut Queue, from, cost: Cost, now| {
        queue.handle_arrival(arrival(from, QueuePlace::Credit, cost.0), now)
    };
    let sent = |queue: &mut Queue, now| {
        std::iter::from_fn(|| queue.poll_dispatch(now)).collect::<Vec<_>>()
    };
    for _ in 0..20 {
        let id = ask(&mut queue, 1, Cost::tokens(100), NOW);
        assert_eq!(sent(&mut queue, NOW), [id]);
        queue.handle_done(id, Cost::tokens(100), NOW);
    }
    let later = NOW.plus(Nanos::from_secs(10));
    (0..24).for_each(|n| _ = ask(&mut queue, 2 + n, Cost::tokens(5_000), later));
    let running = sent(&mut queue, later);
    assert_eq!((running.len(), queue.pressure_since()), (15, None));
    queue.set_settings(QueueSettings { cpus_milli: 3_000, ..models });
    let onset = later.plus(Nanos::from_secs(5));
    queue.handle_timeout(onset);
    assert_eq!(queue.pressure_since(), Some(onset));
    assert_eq!(sent(&mut queue, onset), []);
    let next = ask(&mut queue, 1, Cost::tokens(100), onset);
    assert_eq!(sent(&mut queue, onset), [next], "the slot is for it");
    for id in &running {
        queue.handle_done(*id, Cost::tokens(5_000), onset);
        let strangers = sent(&mut queue, onset);
        assert!(strangers.len() <= 1);
    }
    assert_eq!((queue.waiting(), queue.in_flight()), (0, 10));
}

/// The engine makes 3300 weighted tokens a second, and the tenant uses 7 % of them for ten minutes,
/// beside new tenants that always wait. It was served before them.
#[test]
fn a_tenant_that_was_here_before_may_use_a_tenth_of_what_the_engine_does() {
    let known = KnownClients::Always { clients_max: 10_000 };
    let settings = QueueSettings { known, cpus_milli: 3_300, ..settings(14, 2) };
    let mut queue = Queue::new(QueueSettings { unit: WorkUnit::Tokens, ..settings });
    let cost = |tokens| Cost::tokens(tokens);
    let ask = |queue: &mut Queue, from, tokens, now| {
        queue.handle_arrival(arrival(from, QueuePlace::Credit, cost(tokens).0), now)
    };
    for _ in 0..20 {
        let id = ask(&mut queue, 1, 120, NOW);
        assert_eq!(queue.poll_dispatch(NOW), Some(id));
        queue.handle_done(id, cost(120), NOW);
    }
    let (mut new, mut waits) = (1, 0);
    let mut running: Vec<(RequestId, u64, u64)> = Vec::new();
    for step in 0..1_200 {
        let now = NOW.plus(Nanos::from_secs(200)).plus(Nanos::from_millis(500 * step));
        for (id, _, tokens) in running.extract_if(.., |one| one.1 <= step).collect::<Vec<_>>() {
            queue.handle_done(id, cost(tokens), now);
        }
        while queue.waiting() < 30 {
            new += 1;
            ask(&mut queue, new, 600, now);
        }
        let own = ask(&mut queue, 1, 120, now);
        let mut is_sent = false;
        while let Some(id) = queue.poll_dispatch(now) {
            is_sent |= id == own;
            running.push((
                id,
                step + if id == own { 1 } else { 4 },
                if id == own { 120 } else { 600 },
            ));
        }
        waits += usize::from(!is_sent);
    }
    assert!(waits < 12, "{waits} of 1200 had to wait");
}

/// Returns the tokens of the first of two tenants in relation to those of the second. Both always
/// have requests waiting. `lengths` are the steps that their requests take.
fn parts(lengths: [u64; 2], costs: [u64; 2], in_debt: bool) -> f64 {
    let models = QueueSettings { unit: WorkUnit::Tokens, ..settings(14, 2) };
    let mut queue = Queue::new(models);
    let ask = |queue: &mut Queue, tenant: usize| {
        let place = if in_debt { bucket(tenant as u64) } else { QueuePlace::Credit };
        queue.handle_arrival(arrival(tenant as u64, place, costs[tenant]), NOW)
    };
    let mut tenants: BTreeMap<RequestId, usize> = BTreeMap::new();
    for tenant in [0, 1].repeat(30) {
        tenants.insert(ask(&mut queue, tenant), tenant);
    }
    let (mut running, mut served): (Vec<(RequestId, u64)>, _) = (Vec::new(), [0.0; 2]);
    for _ in 0..40_000 {
        while let Some(id) = queue.poll_dispatch(NOW) {
            running.push((id, lengths[tenants[&id]]));
        }
        running.iter_mut().for_each(|one| one.1 -= 1);
        for (id, _) in running.extract_if(.., |one| one.1 == 0).collect::<Vec<_>>() {
            let tenant = tenants[&id];
            served[tenant] += costs[tenant] as f64;
            queue.handle_done(id, Cost(costs[tenant]), NOW);
            tenants.insert(ask(&mut queue, tenant), tenant);
        }
    }
    served[0] / served[1]
}

/// Short prompts with long outputs beside long prompts with short outputs: tenants get equal
/// numbers of tokens, not of slots. In the last case one slot is more than the second tenant's
/// part.
#[test]
fn tenants_get_as_many_tokens_and_not_as_many_slots() {
    for (lengths, costs) in [
        ([100, 400], [1_000_000, 16_000_000]),
        ([100, 100], [1_000_000, 1_000_000]),
        ([400, 20], [1_000_000, 16_000_000]),
    ] {
        for in_debt in [false, true] {
            let ratio = parts(lengths, costs, in_debt);
            println!("{lengths:?} {costs:?} {in_debt}: {ratio:.3}");
            assert!((0.95..1.05).contains(&ratio), "{lengths:?} {costs:?} {in_debt}: {ratio}");
        }
    }
}

/// Two tenants with as many requests as slots: one has long streams and is expected to have short
/// ones, the other has short ones. Returns the greatest difference between their tokens, in streams
/// of the first, while the cost of running streams is told (`told`) or not.
fn difference(told: bool) -> f64 {
    const LENGTHS: [u64; 2] = [800, 100];
    const EXPECTED: u64 = 100;
    let cost = |steps: u64| Cost::tokens(4 * steps);
    let mut queue = Queue::new(QueueSettings { unit: WorkUnit::Tokens, ..settings(8, 2) });
    let ask = |queue: &mut Queue, tenant: usize| {
        let arrival = arrival(tenant as u64, QueuePlace::Credit, cost(EXPECTED).0);
        (queue.handle_arrival(arrival, NOW), tenant)
    };
    let mut tenants: BTreeMap<_, _> = (0..48).map(|n| ask(&mut queue, n % 2)).collect();
    let (mut running, mut made): (Vec<(RequestId, u64)>, _) = (Vec::new(), [0_u64; 2]);
    let (mut least, mut most) = (0, 0);
    for _ in 0..20_000 {
        while let Some(id) = queue.poll_dispatch(NOW) {
            running.push((id, 0));
        }
        for (id, steps) in &mut running {
            *steps += 1;
            made[tenants[id]] += 1;
            if told && steps.is_multiple_of(16) {
                queue.handle_progress(*id, cost(*steps));
            }
        }
        let is_over = |(id, steps): &mut (RequestId, u64)| *steps == LENGTHS[tenants[id]];
        for (id, steps) in running.extract_if(.., is_over).collect::<Vec<_>>() {
            queue.handle_done(id, cost(steps), NOW);
            tenants.extend([ask(&mut queue, tenants[&id])]);
        }
        let ahead = made[0] as i64 - made[1] as i64;
        (least, most) = (ahead.min(least), ahead.max(most));
    }
    (most - least) as f64 / LENGTHS[0] as f64
}

#[test]
fn streams_that_cost_more_than_expected_get_no_more_than_their_part() {
    let [told, untold] = [true, false].map(difference);
    println!("told {told:.1}, not told {untold:.1}");
    assert!(told <= 4.0, "{told}");
    assert!(untold >= 1.5 * told, "{untold}: these streams show nothing");
}

/// Returns the steps that each request of a light tenant waits beside one that always has some
/// waiting. Requests take 15 to 45 steps; those of the light one come at random, one in 20 steps
/// on average, so that at times it has four at once.
fn waits(heavy_place: QueuePlace, seed: u64) -> Vec<u64> {
    let mut queue = Queue::new(QueueSettings { unit: WorkUnit::Tokens, ..settings(14, 2) });
    let heavy = |queue: &mut Queue| queue.handle_arrival(arrival(2, heavy_place, 1_000_000), NOW);
    (0..30).for_each(|_| _ = heavy(&mut queue));
    let mut random = SimRandom::new(seed, 1);
    let mut asked: BTreeMap<RequestId, u64> = BTreeMap::new();
    let (mut running, mut waits): (Vec<(RequestId, u64)>, Vec<u64>) = Default::default();
    for step in 0..20_000 {
        if random.unit() < 0.05 {
            let light = arrival(1, QueuePlace::Credit, 1_000_000);
            asked.insert(queue.handle_arrival(light, NOW), step);
        }
        while let Some(id) = queue.poll_dispatch(NOW) {
            running.push((id, 15 + (30.0 * random.unit()) as u64));
            waits.extend(asked.get(&id).map(|at| step - at));
        }
        running.iter_mut().for_each(|one| one.1 -= 1);
        for (id, _) in running.extract_if(.., |one| one.1 == 0).collect::<Vec<_>>() {
            queue.handle_done(id, Cost(1_000_000), NOW);
            if asked.remove(&id).is_none() {
                heavy(&mut queue);
            }
        }
    }
    waits
}

#[test]
fn a_light_tenant_never_waits_for_long() {
    for place in [QueuePlace::Credit, bucket(2)] {
        let mut waits: Vec<u64> = SEEDS.flat_map(|seed| waits(place, seed)).collect();
        waits.sort_unstable();
        let part = |percent: usize| waits[(waits.len() - 1) * percent / 100];
        let all = [50, 90, 95, 99, 100].map(part);
        println!("{place:?}: {all:?} of {}", waits.len());
        assert!(all[2] <= 1, "{all:?}");
    }
}

#[test]
fn the_number_of_sequences_of_an_engine_is_found() {
    for (name, engine, part_min, limit_max) in [
        ("4 slots", Engine { sequences: 4, step: 20_000, each: 500 }, 0.85, 12.0),
        ("16 sequences", Engine { sequences: 16, step: 20_000, each: 200 }, 0.9, 48.0),
        ("64 sequences", Engine { sequences: 64, step: 20_000, each: 100 }, 0.85, 192.0),
        ("one at a time", Engine { sequences: 64, step: 0, each: 10_000 }, 0.95, 16.0),
    ] {
        let results: Vec<_> = SEEDS.map(|seed| found(engine, seed)).collect();
        let count = results.len() as f64;
        let (part, limit) = results
            .iter()
            .fold((0.0, 0.0), |(part, limit), one| (part + one.0 / count, limit + one.1 / count));
        println!("{name}: {part:.2} of the throughput, a limit of {limit:.1}: {results:.2?}");
        assert!(part >= part_min && limit <= limit_max, "{name}: {results:.2?}");
    }
}

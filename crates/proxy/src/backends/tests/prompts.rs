//! The choice of a backend for a prompt, and a simulation of two tenants with long system prompts
//! before four backends, each with a cache of its own.

use super::super::*;
use evenkeel_core::sim::random::SimRandom;
use evenkeel_engine::BackendOccupation;
use evenkeel_models::affinity::{AffinityBounds, PrefixAffinity};
use evenkeel_usage::PromptPrefixes;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

const BOUNDS: AffinityBounds = AffinityBounds { lead: 8, most: 9 };

fn pool(shared: &SharedBackends, names: &[&str]) -> UpstreamPool {
    let at: Vec<_> = names.iter().map(|name| settings::BackendAddress::http(*name)).collect();
    UpstreamPool::new(&at, &None, None, shared)
}

/// Chooses a backend for a prompt, and returns its place.
fn choose(pool: &UpstreamPool, prompt: &PrefixedPrompt<'_>, now: u64) -> (usize, PrefixChoice) {
    let mut tried = TriedBackends::default();
    let (backend, choice, _) = pool.choose_for(prompt, &mut tried, now).expect("one");
    let place = pool.all.iter().position(|one| Rc::ptr_eq(one, backend));
    (place.expect("one of them"), choice)
}

#[test]
fn a_prompt_goes_where_its_beginning_is_until_that_backend_is_too_far_ahead() {
    let affinity = PrefixAffinity::default();
    let pool = pool(&SharedBackends::default(), &["a:1", "b:1"]);
    let prompt = PrefixedPrompt {
        affinity: &affinity,
        hashes: PromptPrefixes([1, 0, 0, 0]),
        bounds: BOUNDS,
    };
    let (first, choice) = choose(&pool, &prompt, 0);
    assert_eq!(choice, PrefixChoice::Unknown);
    let mut running = Vec::new();
    for _ in 0..8 {
        let (place, choice) = choose(&pool, &prompt, 0);
        assert_eq!((place, matches!(choice, PrefixChoice::Hit(_))), (first, true));
        running.push(pool.all[place].shared.occupy());
    }
    let (place, choice) = choose(&pool, &prompt, 0);
    assert_eq!((place, choice), (1 - first, PrefixChoice::OverBound));
    running.clear();
    assert_eq!(choose(&pool, &prompt, 0).0, 1 - first, "that one has it too, and more recently");
}

#[test]
fn a_backend_gets_no_more_than_its_share_for_a_prefix() {
    let affinity = PrefixAffinity::default();
    let pool = pool(&SharedBackends::default(), &["a:1", "b:1"]);
    let bounds = AffinityBounds { most: 2, ..BOUNDS };
    let prompt =
        PrefixedPrompt { affinity: &affinity, hashes: PromptPrefixes([1, 0, 0, 0]), bounds };
    let (first, _) = choose(&pool, &prompt, 0);
    let _running = [pool.all[first].shared.occupy(), pool.all[first].shared.occupy()];
    assert_eq!(choose(&pool, &prompt, 0), (1 - first, PrefixChoice::OverBound));
}

#[test]
fn the_requests_of_other_threads_count() {
    let affinity = PrefixAffinity::default();
    let shared = SharedBackends::default();
    let (here, there) = (pool(&shared, &["a:1", "b:1"]), pool(&shared, &["b:1", "a:1"]));
    let prompt =
        PrefixedPrompt { affinity: &affinity, hashes: PromptPrefixes([0; 4]), bounds: BOUNDS };
    let _running = there.all[1].shared.occupy();
    for _ in 0..3 {
        assert_eq!(choose(&here, &prompt, 0), (1, PrefixChoice::Unknown));
    }
    let prompt = PrefixedPrompt { hashes: PromptPrefixes([1, 0, 0, 0]), ..prompt };
    assert_eq!(choose(&here, &prompt, 0).0, 1);
    let (place, choice) = choose(&there, &prompt, 0);
    assert_eq!((place, matches!(choice, PrefixChoice::Hit(_))), (0, true), "learned elsewhere");
}

#[test]
fn a_backend_in_which_requests_wait_gets_no_more_than_it_runs() {
    let shared = SharedBackends::default();
    let pool = pool(&shared, &["a:1", "b:1"]);
    let prompt = PrefixedPrompt {
        affinity: &PrefixAffinity::default(),
        hashes: PromptPrefixes([1, 0, 0, 0]),
        bounds: BOUNDS,
    };
    let (first, _) = choose(&pool, &prompt, 0);
    let _running = [(); 2].map(|()| pool.all[first].shared.occupy());
    assert_eq!(choose(&pool, &prompt, 0).0, first);
    pool.all[first].shared.set_room(2);
    assert_eq!(choose(&pool, &prompt, 0), (1 - first, PrefixChoice::Unknown));
    let _there = [(); 3].map(|()| pool.all[1 - first].shared.occupy());
    let prompt = PrefixedPrompt { hashes: PromptPrefixes([0; 4]), ..prompt };
    assert_eq!(choose(&pool, &prompt, 0).0, 1 - first, "though it has more to do");
}

#[test]
fn a_backend_that_failed_or_was_tried_is_not_preferred() {
    let affinity = PrefixAffinity::default();
    let pool = pool(&SharedBackends::default(), &["a:1", "b:1"]);
    let prompt = PrefixedPrompt {
        affinity: &affinity,
        hashes: PromptPrefixes([1, 0, 0, 0]),
        bounds: BOUNDS,
    };
    let (first, _) = choose(&pool, &prompt, 0);
    let mut tried = TriedBackends(1 << first);
    let (backend, choice, _) = pool.choose_for(&prompt, &mut tried, 0).expect("the other");
    assert!(Rc::ptr_eq(backend, &pool.all[1 - first]));
    assert_eq!(choice, PrefixChoice::Unknown);
    assert!(pool.choose_for(&prompt, &mut tried, 0).is_none());
    pool.all[1 - first].note_failure(true, 0);
    assert_eq!(choose(&pool, &prompt, 0).0, first);
}

/// The results of a simulation.
#[derive(Debug)]
struct SimResult {
    /// The fraction of prompts that found their conversation in the cache of their backend.
    hits: f64,
    /// The largest difference between the running requests of two backends.
    imbalance: usize,
    /// Requests per second.
    rate: f64,
}

/// The number of conversations of each tenant, those in the cache of a backend, and the requests
/// that run at once.
const TALKS: u64 = 40;
const CACHED: usize = 24;
const SLOTS: usize = 24;

/// Two tenants with system prompts longer than 2 KiB continue their conversations of more than 8
/// KiB one after the other. A prompt that is not in the cache takes a second more.
fn simulate(bounds: AffinityBounds, seed: u64) -> SimResult {
    let affinity = PrefixAffinity::default();
    let pool = pool(&SharedBackends::default(), &["a:1", "b:1", "c:1", "d:1"]);
    let mut random = SimRandom::new(seed, 0);
    let mut caches = [const { VecDeque::new() }; 4];
    let mut ends = BinaryHeap::new();
    let mut running: Vec<Option<BackendOccupation>> = Vec::new();
    let (mut now, mut hits, mut imbalance) = (0, 0, 0);
    const REQUESTS: usize = 20_000;
    for number in 0..REQUESTS {
        if ends.len() == SLOTS {
            let (Reverse(at), ended): (_, usize) = ends.pop().expect("one runs");
            now = at;
            running[ended] = None;
        }
        let tenant = random.bits() % 2;
        let talk = 1_000 * (tenant + 1) + random.bits() % TALKS;
        let hashes = PromptPrefixes([tenant + 1, tenant + 11, talk, 0]);
        let prompt = PrefixedPrompt { affinity: &affinity, hashes, bounds };
        let (place, _) = choose(&pool, &prompt, 0);
        running.push(Some(pool.all[place].shared.occupy()));
        let cache: &mut VecDeque<u64> = &mut caches[place];
        let cached = cache.iter().position(|one| *one == talk);
        cached.map(|at| cache.remove(at));
        cache.push_back(talk);
        cache.drain(..cache.len().saturating_sub(CACHED));
        hits += usize::from(cached.is_some());
        let took = 500 + random.bits() % 1_000 + if cached.is_none() { 1_000 } else { 0 };
        ends.push((Reverse(now + took), number));
        let loads = pool.all.iter().map(|one| one.shared.running());
        let most = loads.clone().max().unwrap_or(0) - loads.min().unwrap_or(0);
        imbalance = most.max(imbalance);
    }
    let part = |count: usize| count as f64 / REQUESTS as f64;
    SimResult { hits: part(hits), imbalance, rate: REQUESTS as f64 / (now as f64 / 1e3) }
}

#[test]
fn prompts_find_their_caches_and_no_backend_is_far_ahead() {
    let seed = std::env::var("SIM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("SIM_SEED={seed}");
    // A lead of 0 prefers no backend.
    let without = simulate(AffinityBounds { lead: 0, ..BOUNDS }, seed);
    let with = simulate(BOUNDS, seed);
    println!("without {without:?}\nwith {with:?}");
    assert!(without.hits < 0.4, "{without:?}");
    assert!(with.hits > 0.7, "{with:?}");
    assert!(with.imbalance <= BOUNDS.most, "{with:?}");
    assert!(with.rate > 1.25 * without.rate, "{with:?}, {without:?}");
}

//! Tests `concurrency: auto` where the machine is disturbed by other programs, and from the very
//! first request on, with and without the use of the processors as a sign.
//! `cargo test --test queue disturbed -- --nocapture` prints the results.

use super::concurrency::{
    Backend, CORES, Disturbance, RequestKind, SEEDS, START, STEADY, about, kind, ms, route,
};
use evenkeel_core::meter::estimate::RouteHash;
use evenkeel_core::queue::concurrency::{CONCURRENCY_MAX, ConcurrencySearch};
use evenkeel_core::sim::random::{RandomDuration, SimRandom};
use evenkeel_core::units::{Cost, Nanos, SECOND, Time};

const TENTH: u64 = SECOND / 10;

/// Closed-loop clients before a backend.
#[derive(Clone, Copy)]
struct Scene<'a> {
    kinds: &'a [RequestKind],
    workers: usize,
    clients: usize,
    disturbance: Disturbance,
    /// Whether the search is told how busy the processors are.
    local: bool,
    seconds: u64,
}

/// Returns for each tenth of a second the number of completed requests and the limit.
fn run(scene: Scene, fixed: Option<usize>, seed: u64) -> Vec<(f64, usize)> {
    run_changing(scene, fixed, seed, |_, _, _| {})
}

/// The same. `change` may change the clients and the backend in each second.
fn run_changing(
    mut scene: Scene,
    fixed: Option<usize>,
    seed: u64,
    change: impl Fn(u64, &mut Scene, &mut Backend),
) -> Vec<(f64, usize)> {
    let routes: Vec<_> = scene.kinds.iter().map(route).collect();
    let mut backend = Backend::new(scene.kinds, scene.workers, STEADY, seed);
    backend.disturbance = scene.disturbance;
    let mut search = ConcurrencySearch::new(CORES);
    let (mut tenths, mut used, mut staying) = (Vec::new(), 0.0, 0);
    for tenth in 1..=10 * scene.seconds {
        let mut done = 0.0;
        if tenth % 10 == 1 {
            change(tenth / 10, &mut scene, &mut backend);
        }
        while backend.now < tenth * TENTH {
            let slots = |search: &ConcurrencySearch, staying| {
                fixed.unwrap_or(search.concurrency() + staying).min(scene.clients)
            };
            while backend.in_flight() < slots(&search, staying) {
                backend.send();
            }
            let running = backend.in_flight() - staying;
            search.handle_running(running, Time(START.0 + backend.now));
            if let Some(job) = backend.step(tenth * TENTH) {
                let elapsed = Nanos(backend.now - job.sent);
                let waiting = scene.clients > search.concurrency() + staying;
                let now = Time(START.0 + backend.now);
                if job.stays {
                    staying -= 1;
                    search.handle_stay_end(routes[job.kind], elapsed);
                } else {
                    search.handle_done(routes[job.kind], elapsed, Cost::ZERO, waiting, now);
                }
                done += 1.0;
            }
        }
        let now = Time(START.0 + backend.now);
        if scene.local {
            let busy = (backend.used - used) / TENTH as f64;
            search.handle_processor_use(busy.min(1.0), now);
        }
        if scene.clients > search.concurrency() + staying {
            staying = backend.note_staying(|kind, age| search.stays(Some(routes[kind]), age));
        }
        used = backend.used;
        tenths.push((done, search.concurrency()));
    }
    tenths
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count().max(1) as f64
}

/// The throughput in a part of the tenths, as a part of that with a limit above all needs.
fn throughput(scene: Scene, seed: u64, tenths: std::ops::Range<usize>) -> f64 {
    let done = |run: Vec<(f64, usize)>| mean(run[tenths.clone()].iter().map(|tenth| tenth.0));
    done(run(scene, None, seed)) / done(run(scene, Some(256), seed)).max(0.1)
}

/// From ten seconds after a cold start on, under each disturbance: throughput, and how much of the
/// time the limit is above twice the knee.
fn holds(name: &str, kinds: &[RequestKind], workers: usize, knee: usize) {
    let others = [50, 200, 1_000, 5_000].map(Disturbance::Others);
    for disturbance in [Disturbance::Nothing, Disturbance::Stalls].into_iter().chain(others) {
        let scene =
            Scene { kinds, workers, clients: 10_000, disturbance, local: false, seconds: 120 };
        let parts: Vec<f64> = SEEDS.map(|seed| throughput(scene, seed, 100..1_200)).collect();
        let above = SEEDS.map(|seed| {
            let run = run(scene, None, seed).split_off(100);
            mean(run.iter().map(|tenth| f64::from(u8::from(tenth.1 > 2 * knee))))
        });
        let above: Vec<f64> = above.collect();
        let (part, too_high) = (mean(parts.iter().copied()), mean(above.iter().copied()));
        println!("{name} {workers:2} workers: {part:.3}, {too_high:.3} of the time above twice");
        assert!(part >= 0.95 && parts.iter().all(|part| *part >= 0.85), "{parts:.3?}");
        assert!(too_high <= 0.1, "{above:.3?}");
    }
}

#[test]
fn requests_that_compute_on_a_disturbed_machine() {
    holds("100 ms", &[kind("/a", 1.0, RandomDuration::ZERO, ms(100))], 4, 2);
    holds("50 ms", &[kind("/a", 1.0, RandomDuration::ZERO, about(50))], 64, 2);
    holds("5 ms", &[kind("/a", 1.0, RandomDuration::ZERO, about(5))], 8, 2);
}

#[test]
fn requests_that_wait_on_a_disturbed_machine() {
    holds("waits", &[kind("/a", 1.0, about(100), ms(1))], 64, 64);
}

/// Forty clients from the first moment on, before a backend on the same machine: from eight times
/// its answering time on, nine tenths of what it can do.
#[test]
fn a_start_before_a_backend_on_this_machine() {
    for (name, kind, answer_ms) in [
        ("computes 100 ms", kind("/a", 1.0, RandomDuration::ZERO, ms(100)), 100),
        ("waits 50 ms", kind("/a", 1.0, ms(50), ms(1)), 50),
        ("waits 300 ms", kind("/a", 1.0, ms(300), ms(1)), 300),
        ("waits 1 s", kind("/a", 1.0, ms(1_000), ms(1)), 1_000),
        ("waits about 300 ms", kind("/a", 1.0, about(300), ms(1)), 300),
    ] {
        for workers in [1, 8, 64] {
            let kinds = [kind];
            let from = (8 * answer_ms / 100).max(3);
            let scene = Scene {
                kinds: &kinds,
                workers,
                clients: 40,
                disturbance: Disturbance::Nothing,
                local: true,
                seconds: 60,
            };
            let parts: Vec<f64> = SEEDS.map(|seed| throughput(scene, seed, from..600)).collect();
            let part = mean(parts.iter().copied());
            println!("{name} {workers:2} workers: {part:.3} {parts:.2?}");
            assert!(part >= 0.9, "{name}, {workers} workers: {parts:.2?}");
        }
    }
}

/// Where times differ widely, a few requests say little of the limit, but idle processors do.
#[test]
fn idle_processors_shorten_the_search() {
    let kinds = [kind("/a", 1.0, about(300), ms(1))];
    let clients = 40;
    let disturbance = Disturbance::Nothing;
    let scene =
        Scene { kinds: &kinds, workers: 64, clients, disturbance, local: true, seconds: 10 };
    let part = |scene| mean(SEEDS.map(|seed| throughput(scene, seed, 24..100)));
    let (local, remote) = (part(scene), part(Scene { local: false, ..scene }));
    println!("{local:.2} with and {remote:.2} without the use of the processors");
    assert!(local >= 0.95 && local > remote + 0.1, "{local} {remote}");
}

/// As many requests as the search allows, which take a tenth of a second each, and as many after
/// them, in so many rounds. Returns the time of the end.
fn work_in_rounds(
    search: &mut ConcurrencySearch,
    route: RouteHash,
    rounds: usize,
    mut now: Time,
) -> Time {
    for _ in 0..rounds {
        let running = search.concurrency();
        search.handle_running(running, now);
        now = Time(now.0 + TENTH);
        for left in (0..running).rev() {
            search.handle_done(route, Nanos(TENTH), Cost::ZERO, true, now);
            search.handle_running(left, now);
        }
    }
    now
}

/// A crawl that begins after a quiet minute does not find the limit of a busy time.
#[test]
fn nothing_outlives_a_pause() {
    for reports in [false, true] {
        let mut search = ConcurrencySearch::new(CORES);
        let kinds = [kind("/a", 1.0, ms(100), ms(1))];
        let mut now = START;
        now = work_in_rounds(&mut search, route(&kinds[0]), 40, now);
        assert!(search.concurrency() >= 64, "{}", search.concurrency());
        for _ in 0..600 {
            now = Time(now.0 + TENTH);
            // Nothing is reported, or the processors, or that nothing is with the backend.
            if reports {
                search.handle_processor_use(0.1, now);
                search.handle_running(0, now);
            }
        }
        search.handle_running(0, now);
        search.handle_arrival(now);
        assert_eq!(search.concurrency(), 2);
    }
}

/// A limit that is too high is soon compared with a lower one, also if a higher one may help.
#[test]
fn higher_and_lower_limits_are_tried_in_turns() {
    let kinds = [kind("/a", 1.0, ms(100), ms(1))];
    let mut search = ConcurrencySearch::new(1.0);
    let mut now = START;
    search.handle_arrival(now);
    search.start_from(8, now);
    let mut limits = vec![8];
    while limits.len() < 5 {
        let running = search.concurrency();
        search.handle_running(running, now);
        now = Time(now.0 + TENTH);
        search.handle_done(route(&kinds[0]), Nanos(TENTH * running as u64), Cost::ZERO, true, now);
        if search.concurrency() != limits[limits.len() - 1] {
            limits.push(search.concurrency());
        }
    }
    assert!(limits.iter().any(|limit| *limit > 8), "{limits:?}");
    assert!(limits.iter().any(|limit| *limit < 6), "{limits:?}");
}

/// Forty clients whose requests all take a second, so that they come and go together: most of them
/// end while the others are on their way back, and yet eight have waited for all of the second.
#[test]
fn those_who_wait_are_seen_although_all_end_at_once() {
    let kinds = [kind("/a", 1.0, ms(1_000), ms(1))];
    let mut search = ConcurrencySearch::new(1.0);
    let (mut now, clients) = (START, 40_usize);
    for _ in 0..12 {
        let running = search.concurrency().min(clients);
        search.handle_running(running, now);
        now = Time(now.0 + SECOND);
        for ended in 0..running {
            now = Time(now.0 + SECOND / 10_000);
            let waiting = ended + running < clients;
            search.handle_done(route(&kinds[0]), Nanos::from_secs(1), Cost::ZERO, waiting, now);
            search.handle_running(running - ended - usize::from(!waiting), now);
        }
    }
    assert!(search.concurrency() >= clients, "{}", search.concurrency());
}

/// Whatever is measured, the limit stays between its bounds and can still change.
#[test]
fn odd_measurements_do_no_harm() {
    let kinds = [kind("/a", 1.0, ms(100), ms(1)), kind("/b", 1.0, ms(100), ms(1))];
    for seed in 1..=200 {
        let mut chance = SimRandom::new(seed, 3);
        let mut search = ConcurrencySearch::new(CORES);
        let (mut now, mut ceiling) = (START, None);
        for _ in 0..2_000 {
            let odd = |bits: u64, usual: u64| match bits % 16 {
                0 => 0,
                1 => u64::MAX >> (bits >> 32 & 31),
                _ => usual << (bits >> 32 & 7),
            };
            now = Time(now.0.saturating_add(odd(chance.bits(), 1_000_000) >> 8));
            let elapsed = Nanos(odd(chance.bits(), 10_000_000));
            let running = (chance.bits() % 3) as usize * search.concurrency();
            match chance.bits() % 8 {
                0 => search.handle_running(running, now),
                1 if seed.is_multiple_of(2) => search.handle_stay_end(route(&kinds[0]), elapsed),
                1 => search.handle_processor_use(chance.unit() * 1.5 - 0.2, now),
                2 if seed.is_multiple_of(2) => {
                    ceiling =
                        (!chance.bits().is_multiple_of(4)).then(|| (chance.bits() % 100) as usize);
                    search.set_ceiling(ceiling, now);
                }
                which => {
                    let route = route(&kinds[which as usize % 2]);
                    search.handle_done(
                        route,
                        elapsed,
                        Cost::ZERO,
                        !chance.bits().is_multiple_of(4),
                        now,
                    );
                }
            }
            let most = ceiling.unwrap_or(CONCURRENCY_MAX).max(2);
            assert!((2..=most).contains(&search.concurrency()), "{}", search.concurrency());
        }
        search.set_ceiling(None, now);
        // An ordinary backend with room for all is found to have room.
        work_in_rounds(&mut search, route(&kinds[0]), 400, now);
        assert!(search.concurrency() > 4, "seed {seed}: {}", search.concurrency());
    }
}

/// Requests of a route that is usually quick hang. Each of them has a slot of its own after a
/// second, so the search does not see them.
#[test]
fn requests_that_hang_do_not_change_the_limit() {
    let quick = kind("/a", 0.999, RandomDuration::ZERO, ms(20));
    let kinds = [quick, kind("/a", 0.001, ms(30_000), ms(1))];
    for local in [false, true] {
        let scene = Scene {
            kinds: &kinds,
            workers: 64,
            clients: 10_000,
            disturbance: Disturbance::Nothing,
            local,
            seconds: 180,
        };
        for seed in SEEDS {
            let run = run(scene, None, seed).split_off(300);
            let mean_limit = mean(run.iter().map(|tenth| tenth.1 as f64));
            let done = mean(run.iter().map(|tenth| tenth.0));
            let silent = run.iter().filter(|tenth| tenth.0 == 0.0).count();
            println!("limit {mean_limit:.1}, {done:.1} of 10 in a tenth, none in {silent}");
            assert!(mean_limit <= 4.0 && done > 9.0, "limit {mean_limit}, done {done}");
        }
    }
}

/// Four workers on two processors: a minute of disturbance, a minute with one request at a time,
/// then a crawl. Whatever limit the disturbance caused, the crawl does not find it.
#[test]
fn a_disturbance_is_forgotten_in_a_quiet_minute() {
    let kinds = [kind("/a", 1.0, RandomDuration::ZERO, ms(100))];
    for disturbance in
        [1_000, 5_000].map(Disturbance::Others).into_iter().chain([Disturbance::Stalls])
    {
        for (local, clients) in [(false, 10_000), (true, 10_000), (false, 12)] {
            let scene =
                Scene { kinds: &kinds, workers: 4, clients, disturbance, local, seconds: 180 };
            let above = SEEDS.map(|seed| {
                let run = run_changing(scene, None, seed, |second, scene, backend| {
                    if second == 60 {
                        backend.disturbance = Disturbance::Nothing;
                    }
                    scene.clients = if (60..120).contains(&second) { 1 } else { clients };
                });
                mean(run[1_200..].iter().map(|tenth| f64::from(u8::from(tenth.1 > 4))))
            });
            let above: Vec<f64> = above.collect();
            println!("local {local}, {clients} clients: above twice the knee {above:.3?}");
            assert!(mean(above.iter().copied()) <= 0.02, "{above:.3?}");
        }
    }
}

/// The number of workers changes from 2 to 16 and back every three minutes. No request shows that
/// workers were added, so experiments find them, within 90 seconds.
#[test]
fn workers_that_are_added_and_removed() {
    let usual = RandomDuration::Between(Nanos::from_millis(80), Nanos::from_millis(120));
    for (waits, local) in [(usual, false), (usual, true), (about(100), false)] {
        let kinds = [kind("/a", 1.0, waits, ms(1))];
        let scene = Scene {
            kinds: &kinds,
            workers: 2,
            clients: 40,
            disturbance: Disturbance::Nothing,
            local,
            seconds: 720,
        };
        let workers = |second: u64| if (second / 180).is_multiple_of(2) { 2 } else { 16 };
        let runs: Vec<_> = SEEDS
            .map(|seed| {
                run_changing(scene, None, seed, |second, _, backend| {
                    backend.workers = workers(second);
                })
            })
            .collect();
        for phase in 0..4 {
            let best = workers(180 * phase as u64) as f64;
            let later =
                || runs.iter().flat_map(|run| &run[phase * 1_800 + 900..(phase + 1) * 1_800]);
            let done = mean(later().map(|tenth| tenth.0)) / best;
            let limit = mean(later().map(|tenth| tenth.1 as f64));
            println!(
                "phase {phase}: {done:.2} of the throughput of {best} workers, limit {limit:.1}"
            );
            assert!(done >= 0.85 && limit <= 4.0 * best, "phase {phase}: {done:.2}, {limit:.1}");
        }
    }
}

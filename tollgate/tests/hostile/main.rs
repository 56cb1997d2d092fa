//! Hostile clients.

mod backend;
mod client;
mod floods;
mod law;
mod plan;
#[path = "../journey/process.rs"]
#[allow(unused, reason = "the journeys use the rest")]
mod process;
mod seed;
mod servers;
#[path = "../journey/site.rs"]
#[allow(unused, reason = "the journeys use the rest")]
mod site;
#[path = "../proxy/stage.rs"]
#[allow(unused, reason = "the proxy's own tests use the rest")]
mod stage;
mod upheaval;

use seed::Outcome;
use servers::Server;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use tollgate::config::settings::Scheme;

/// Seeds that run at once: most of their time they wait.
const AT_ONCE: usize = 8;

/// Seeds of all kinds together.
const SEEDS: u64 = 1_000;

/// How long `minutes_of_seeds` goes on, in seconds.
const SECONDS: u64 = 600;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// So many seeds in a thousand of those that are to run, from the first on.
fn share(of_thousand: u64) -> impl Fn(u64) -> ControlFlow<()> + Sync {
    let last = number("HOSTILE_SEEDS").unwrap_or(SEEDS) * of_thousand / 1_000;
    move |seed| if seed <= last.max(1) { Continue(()) } else { Break(()) }
}

/// What all seeds did together.
#[derive(Default)]
struct Sums {
    seeds: usize,
    requests: usize,
    right: usize,
    charged: f64,
    worked: f64,
    failed: Vec<u64>,
}

impl Sums {
    fn add(&mut self, name: &str, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        self.requests += outcome.requests;
        self.right += outcome.right;
        if let Some((charged, worked)) = outcome.charges {
            self.charged += charged;
            self.worked += worked;
        }
        if !outcome.report.is_empty() {
            println!("HOSTILE_SEED={seed} ({name})\n{}", outcome.report);
            self.failed.push(seed);
        }
    }
}

/// Runs all seeds while `goes_on`, `at_once` of them, or the one that the environment names.
fn run_all(
    name: &str,
    at_once: usize,
    goes_on: impl Fn(u64) -> ControlFlow<()> + Sync,
    run: impl Fn(u64) -> Outcome + Sync,
) {
    let (begun, next) = (Instant::now(), AtomicU64::new(1));
    let sums = Mutex::new(Sums::default());
    let one = |seed| {
        let outcome = run(seed);
        sums.lock().expect("no panic").add(name, seed, outcome);
    };
    let work = || {
        let mut seed = next.fetch_add(1, Relaxed);
        while goes_on(seed).is_continue() {
            one(seed);
            seed = next.fetch_add(1, Relaxed);
        }
    };
    match number("HOSTILE_SEED") {
        Some(seed) => one(seed),
        None => thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(work);
            }
        }),
    }
    let Sums { seeds, requests, right, charged, worked, failed } =
        sums.into_inner().expect("no panic");
    let took = begun.elapsed().as_secs_f64();
    println!(
        "{name}: {seeds} seeds, {requests} requests, {right} answered as they should be, \
         {took:.1} s; charged {charged:.3} s for {worked:.3} s of work"
    );
    assert!(right > 0, "{name}: nothing was answered");
    assert!(failed.is_empty(), "{name}: these fail: HOSTILE_SEED={failed:?}");
}

fn before(server: &Server) {
    let run = |seed| seed::run(seed, &server.shape, Some(&server.backend));
    run_all(server.name, AT_ONCE / 2, share(20), run);
}

#[test]
fn seeds_before_the_raw_backend() {
    run_all("raw", AT_ONCE, share(855), |seed| seed::run(seed, &seed::RAW, None));
}

#[test]
fn seeds_before_nginx() {
    before(&Server::nginx(Scheme::Http));
}

#[test]
fn seeds_before_nginx_over_http2() {
    before(&Server::nginx(Scheme::H2c));
}

#[test]
fn seeds_before_php() {
    before(&Server::php());
}

#[test]
fn seeds_before_node() {
    before(&Server::node());
}

#[test]
fn seeds_before_gunicorn() {
    before(&Server::gunicorn());
}

#[test]
fn seeds_before_apache() {
    before(&Server::apache());
}

/// For `HOSTILE_SECONDS`, other seeds in each run, a quarter of them before real servers.
#[test]
#[ignore = "takes ten minutes: ci/long"]
fn minutes_of_seeds() {
    let begun = Instant::now();
    let limit = Duration::from_secs(number("HOSTILE_SECONDS").unwrap_or(SECONDS));
    let servers = [
        Server::nginx(Scheme::Http),
        Server::nginx(Scheme::H2c),
        Server::php(),
        Server::node(),
        Server::gunicorn(),
        Server::apache(),
    ];
    let goes_on = |_| if begun.elapsed() < limit { Continue(()) } else { Break(()) };
    run_all("minutes", AT_ONCE, goes_on, |seed| {
        let server = servers.get(seed as usize % 24);
        let shape = server.map_or(&seed::RAW, |server| &server.shape);
        seed::run(seed, shape, server.map(|server| &server.backend))
    });
}

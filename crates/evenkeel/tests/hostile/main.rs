//! Hostile clients in front of a raw backend and of real servers, with one law (`law.rs`).
//!
//! A seed determines a schedule (`plan.rs`) of clients that cut, reset, stall, half-close, trickle,
//! pipeline and interleave HTTP/1.1 and HTTP/2 requests, and of innocent clients beside and after
//! them. A failing seed prints `HOSTILE_SEED=n`, the violations, and the schedule; to repeat it,
//! run its test with that variable in the environment. `HOSTILE_SEEDS` is the number of seeds of
//! all tests together (1 000), and `HOSTILE_SECONDS` is the duration of `minutes_of_seeds` (600).
//!
//! # Events that the proxy takes for an end
//!
//! Each of these events can be made to come too early, or never. Most are tried here; PROXY headers
//! and TLS towards backends are tried in the tests of `proxy`.
//!
//! - a client's head, HTTP/1.1 (hyper, `front.rs`): the empty line; `timeouts.header`.
//! - a client's body with a length (hyper, `body.rs`): that number of bytes; fewer are an error
//!   reported by hyper.
//! - a client's body in chunks (hyper, `body.rs`): the empty chunk; without it, hyper reports an
//!   error.
//! - a client's head, HTTP/2 (h2): END_HEADERS, with no other frame since its beginning.
//! - a client's body, HTTP/2 (`body.rs`): END_STREAM only, because hyper ends a body without an
//!   error also at RST_STREAM with NO_ERROR.
//! - a buffered body (`body/prefix.rs`): trailers, or the end of the client's body.
//! - a request to a backend, HTTP/1.1 (`wire/request_send.rs`): the end of its body, if all bytes
//!   that its head states are written; otherwise its connection is closed.
//! - a request to a backend, HTTP/2 (`wire/replayable.rs`, h2): the end of its body; an error
//!   resets the stream.
//! - an answer's head, HTTP/1.1 (`wire/head.rs`): the empty line; interim answers are skipped.
//! - an answer's body, HTTP/1.1 (`wire/connection.rs`, `wire/chunks.rs`): its length, or the empty
//!   chunk with its trailers; if the head states neither, the end of the connection (under TLS only
//!   after a `close_notify`).
//! - an answer's body, HTTP/2 (`wire/call.rs`): END_STREAM; a reset with NO_ERROR makes a broken
//!   answer.
//! - an answer for a client that has disconnected (`abort.rs`): as above, or `abort_linger`, or 1
//!   MiB; then its connection is closed.
//! - an exchange on a connection (`wire/connection.rs`, `backends/pool.rs`): the answer and the
//!   request are complete, and no other byte has arrived.
//! - a wait for a slot (`engine/charge/turn.rs`): the slot, or that it is no longer wanted; then
//!   the slot is given back.
//! - a client's stream (`front/streams.rs`): the end of its task, which drops the exchange.
//! - a client's connection (hyper, `front/stream.rs`): its end, an error, or a note on its link.
//!   hyper sees an end only after everything before it was read: a client that pipelines and
//!   disconnects is noticed with the answer, or by `timeouts.backend`.
//! - a tunnel (`front/tunnel.rs`): the end of both directions, or `timeouts.tunnel`.
//! - TLS (rustls, `wire/halves.rs`): `close_notify`; the end of TCP before it is an error.
//! - a PROXY header (`front/proxy_header.rs`): its length, or the end of its line.

mod backend;
mod client;
mod floods;
mod law;
mod plan;
mod seed;
mod servers;
#[path = "../journey/site.rs"]
#[allow(unused, reason = "the journeys use the rest")]
mod site;
#[path = "../proxy/stage.rs"]
#[allow(unused, reason = "the proxy's own tests use the rest")]
mod stage;
mod upheaval;

use evenkeel_config::settings::BackendScheme;
use seed::Outcome;
use servers::Server;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The number of seeds that run concurrently; they mostly wait.
const AT_ONCE: usize = 8;

/// The default number of seeds over all tests.
const SEEDS: u64 = 1_000;

/// The default duration of `minutes_of_seeds`, in seconds.
const SECONDS: u64 = 600;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs the first `of_thousand` thousandths of all seeds.
fn share(of_thousand: u64) -> impl Fn(u64) -> ControlFlow<()> + Sync {
    let last = number("HOSTILE_SEEDS").unwrap_or(SEEDS) * of_thousand / 1_000;
    move |seed| if seed <= last.max(1) { Continue(()) } else { Break(()) }
}

/// The sums over all seeds.
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
    fn add(&mut self, name: &str, outcome: Outcome) {
        self.seeds += 1;
        self.requests += outcome.requests;
        self.right += outcome.right;
        if let Some((charged, worked)) = outcome.charges {
            self.charged += charged;
            self.worked += worked;
        }
        if !outcome.report.is_empty() {
            println!("HOSTILE_SEED={} ({name})\n{}", outcome.seed, outcome.report);
            self.failed.push(outcome.seed);
        }
    }
}

/// Runs seeds while `goes_on` allows, `at_once` of them concurrently, or only the one that the
/// environment names.
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
        sums.lock().expect("no panic").add(name, outcome);
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
    println!("{name}: {seeds} seeds, {requests} requests, {right} of the innocent in {took:.1} s");
    if worked > 0.0 {
        println!("{name}: {charged:.3} s charged for {worked:.3} s of work");
    }
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
    before(&Server::nginx(BackendScheme::Http));
}

#[test]
fn seeds_before_nginx_over_http2() {
    before(&Server::nginx(BackendScheme::H2c));
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

/// Runs for `HOSTILE_SECONDS`, a quarter of that time with real servers.
#[test]
#[ignore = "takes ten minutes: ci/long"]
fn minutes_of_seeds() {
    let begun = Instant::now();
    let limit = Duration::from_secs(number("HOSTILE_SECONDS").unwrap_or(SECONDS));
    let servers = [
        Server::nginx(BackendScheme::Http),
        Server::nginx(BackendScheme::H2c),
        Server::php(),
        Server::node(),
        Server::gunicorn(),
        Server::apache(),
    ];
    let goes_on = |_| if begun.elapsed() < limit { Continue(()) } else { Break(()) };
    // Seeds that `ci/test` does not run, different ones in each run.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
    let offset = if number("HOSTILE_SEED").is_some() { 0 } else { 1_000 * now };
    run_all("minutes", AT_ONCE, goes_on, |number| {
        let seed = number + offset;
        let server = servers.get(seed as usize % 24);
        let shape = server.map_or(&seed::RAW, |server| &server.shape);
        seed::run(seed, shape, server.map(|server| &server.backend))
    });
}

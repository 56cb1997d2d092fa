//! Runs a seed: its clients, the proxy, and a backend, all in this process.

use crate::backend;
use crate::client;
use crate::law::Ledger;
use crate::plan::{Plan, Settings, Shape};
use crate::stage::{LONG, Stage, cpu_limit};
use evenkeel_config::settings::{BackendAddress, ConcurrencySetting, CostSource, ProxySettings};
use evenkeel_core::limit::LimitAction;
use evenkeel_serve::service::Service as _;
use evenkeel_telemetry::metrics::CHARGED;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::{JoinSet, LocalSet};

/// The requests to the raw backend.
pub const RAW: Shape = Shape { paths: &[], rude: &[], bodies: true };

/// The result of a seed.
pub struct Outcome {
    pub seed: u64,
    pub requests: usize,
    /// The number of requests of innocent clients with the right answer.
    pub right: usize,
    /// Seconds charged and seconds worked, if the two are compared.
    pub charges: Option<(f64, f64)>,
    /// The violations with the schedule; empty if there are none.
    pub report: String,
}

/// Runs a seed with the backend at `real`, or with the raw backend.
pub fn run(seed: u64, shape: &Shape, real: Option<&BackendAddress>) -> Outcome {
    let ledger = Rc::new(Ledger::new(Plan::of(seed, shape), real.is_none(), false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let local = LocalSet::new();
    let charged = local.block_on(&runtime, async {
        let at = match real {
            Some(backend) => backend.clone(),
            None => BackendAddress::http(raw(&ledger).await.to_string()),
        };
        let stage = Stage::open(|proxy| set(proxy, &ledger.plan.settings, at));
        play(&ledger, stage.door.addresses()[0]).await;
        settled(&ledger, &stage).await
    });
    Outcome::of(&ledger, Some(charged))
}

impl Outcome {
    /// The result of a finished seed; `charged` is the total charge in seconds, if it is known.
    pub fn of(ledger: &Ledger, charged: Option<f64>) -> Outcome {
        let charges = charged.and_then(|charged| ledger.check_charges(charged));
        let violations = ledger.violations();
        let report = match violations.is_empty() {
            true => String::new(),
            false => format!("{}\n{}", violations.join("\n"), ledger.plan),
        };
        let (seed, requests, right) =
            (ledger.plan.seed, ledger.plan.requests.len(), ledger.right());
        Outcome { seed, requests, right, charges, report }
    }
}

/// Starts the raw backend. It runs until the runtime ends.
pub async fn raw(ledger: &Rc<Ledger>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = listener.local_addr().expect("bound");
    tokio::task::spawn_local(backend::serve(listener, Rc::clone(ledger)));
    at
}

fn set(proxy: &mut ProxySettings, settings: &Settings, backend: BackendAddress) {
    proxy.backends = vec![backend];
    proxy.cpus = f64::from(settings.cpus);
    proxy.cost = CostSource::Shared;
    proxy.bounds.body_buffer = settings.body_buffer;
    proxy.limits = vec![cpu_limit(0.1, Duration::from_millis(10))];
    proxy.action = LimitAction::Queue;
    if settings.concurrency > 0 {
        proxy.queue.concurrency = ConcurrencySetting::Fixed(settings.concurrency);
    }
    if settings.impatient {
        let fifth = Duration::from_millis(200);
        let timeouts = &mut proxy.timeouts;
        (timeouts.header, timeouts.idle, timeouts.backend) = (fifth, fifth, fifth);
    }
}

/// Runs all clients: first those that run together, then those that begin after all others.
pub async fn play(ledger: &Rc<Ledger>, to: SocketAddr) {
    for last in [false, true] {
        let mut clients = JoinSet::new();
        for index in 0..ledger.plan.scripts.len() {
            let ledger = Rc::clone(ledger);
            if ledger.plan.scripts[index].last == last {
                clients.spawn_local(async move {
                    client::play(&ledger, &ledger.plan.scripts[index], to).await;
                });
            }
        }
        while let Some(played) = clients.join_next().await {
            played.expect("no panic");
        }
    }
}

/// The total charge in seconds, once the last account is closed.
async fn settled(ledger: &Ledger, stage: &Stage) -> f64 {
    let end = Instant::now() + LONG;
    let calm = Cell::new(0);
    while calm.get() < 3 {
        let crowd = stage.engine.admission_stats();
        if Instant::now() > end {
            let (working, _) = stage.engine.load();
            let left = stage.door.connections();
            let what = format!("{left} connections, {working} at work, {crowd:?}");
            ledger.violated(format!("(c) this is left when all clients have gone: {what}"));
            break;
        }
        let slots = crowd.map_or(0, |crowd| crowd.running + crowd.waiting);
        let idle = stage.door.connections() + slots == 0 && stage.engine.load().0 == 0;
        calm.set(if idle { calm.get() + 1 } else { 0 });
        client::pause(Duration::from_millis(1)).await;
    }
    // The door's threads end after the last exchange.
    stage.door.threads().drain(LONG);
    stage.door.threads().ended().await;
    stage.watch.registry().nanos(&CHARGED, &[]).get() as f64 / 1e9
}

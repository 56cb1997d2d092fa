//! Worker pools of several tenants that take turns, with the clients for Rust and Python. That of
//! Node has the same test in `clients/node`, and job runners have it in `recipes`.
//!
//! Tenant A has 100 times the jobs of each other one, and has asked first. What is compared is the
//! order of turns: each job waits for those that have the other slots, so that jobs run in rounds
//! of one job for each slot, and no order depends on how fast a worker is.

use crate::stage::{Client, LineServer};
use evenkeel_client::turns::{TurnClient, TurnOptions, TurnTimeouts};
use evenkeel_testing::wait::{until, until_async};
use std::io::Read;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

/// The turns that are out at once.
pub const SLOTS: usize = 4;
/// The tenants, each with its jobs and its workers. All jobs together fill whole rounds.
const TENANTS: [(char, usize, usize); 5] =
    [('A', 200, 40), ('B', 2, 2), ('C', 2, 2), ('D', 2, 2), ('E', 2, 2)];
const WORKERS: usize = 48;
const COST: Duration = Duration::from_millis(10);

/// A door, and a connection that has all of its turns.
pub fn start() -> (LineServer, Client<TcpStream>) {
    let program = LineServer::start(&format!("turns: {{slots: {SLOTS}, wait_max: 1h}}"));
    let mut holder = Client::tcp(program.lines);
    holder.send("TRY start\n".repeat(SLOTS));
    let used = || program.metric("evenkeel_slots_used{door=\"turns\"}");
    until("all turns are out", || used() == SLOTS as u64);
    (program, holder)
}

/// Whether this number of workers wait for their turn.
pub fn waiting(program: &LineServer, workers: usize) -> bool {
    program.metric("evenkeel_waiting_requests{door=\"turns\"}") == workers as u64
}

/// Checks the tenants of jobs in the order of their turns: `light` jobs of each of B to E, and 100
/// times as many of A. A tenant with few jobs waits for as many turns of A as it takes itself, and
/// for those that are out.
pub fn expect_fair(order: &str, light: usize) {
    for tenant in ['A', 'B', 'C', 'D', 'E'] {
        let jobs = if tenant == 'A' { 100 * light } else { light };
        assert_eq!(order.matches(tenant).count(), jobs, "{tenant} in {order}");
    }
    let (before, _) = order.rsplit_once(|tenant| tenant != 'A').expect("other tenants");
    let heavy = before.matches('A').count();
    assert!(heavy <= light + SLOTS, "{heavy} turns of A in {order}");
}

struct Pool {
    client: TurnClient,
    round: Barrier,
    order: Mutex<String>,
}

impl Pool {
    /// Does the jobs of a tenant until none is left.
    async fn work(self: Arc<Pool>, tenant: char, left: Arc<AtomicUsize>) {
        let options = TurnOptions { cost: Some(COST), wait: None };
        while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            let turn = self.client.take(&[tenant as u8], &options).await.expect("a turn");
            assert!(turn.id().is_some());
            self.round.wait().await;
            self.order.lock().expect("no panic").push(tenant);
            turn.done(Some(COST)).await;
        }
    }
}

#[test]
fn tenants_with_few_jobs_are_done_first_in_a_pool_of_tasks() {
    let (program, holder) = start();
    let address = format!("tcp://{}", program.lines).parse().expect("an address");
    let client = TurnClient::new(address, TurnTimeouts::default());
    let pool = Arc::new(Pool { client, round: Barrier::new(SLOTS), order: Mutex::default() });
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime").block_on(async {
        let mut workers = JoinSet::new();
        for (tenant, jobs, count) in TENANTS {
            let jobs = Arc::new(AtomicUsize::new(jobs));
            for _ in 0..count {
                workers.spawn(Arc::clone(&pool).work(tenant, Arc::clone(&jobs)));
            }
        }
        until_async("all workers wait", || waiting(&program, WORKERS)).await;
        drop(holder);
        workers.join_all().await;
    });
    expect_fair(&pool.order.lock().expect("no panic"), 2);
}

const PYTHON: &str = r#"
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from evenkeel_client import Turns

turns, slots, cost = Turns(sys.argv[1]), int(sys.argv[2]), 0.01
order, one_round = [], threading.Barrier(slots)

def job(tenant):
    with turns.take(tenant, cost=cost) as turn:
        assert turn.id
        one_round.wait()
        order.append(tenant)
        turn.cost = cost

pools, jobs = [], []
for tenant, count, workers in (word.split(":") for word in sys.argv[3:]):
    pool = ThreadPoolExecutor(int(workers))
    pools.append(pool)
    jobs += [pool.submit(job, tenant) for n in range(int(count))]
for one in jobs:
    one.result()
print("".join(order))
"#;

const PYTHON_ASYNC: &str = r#"
import asyncio, sys
from evenkeel_client import AsyncTurns

async def main():
    turns, slots, cost = AsyncTurns(sys.argv[1]), int(sys.argv[2]), 0.01
    order, one_round = [], asyncio.Barrier(slots)

    async def work(tenant, jobs):
        while jobs:
            jobs.pop()
            async with turns.take(tenant, cost=cost) as turn:
                assert turn.id
                await one_round.wait()
                order.append(tenant)
                turn.cost = cost

    workers = []
    for tenant, count, places in (word.split(":") for word in sys.argv[3:]):
        jobs = [None] * int(count)
        workers += [work(tenant, jobs) for n in range(int(places))]
    await asyncio.gather(*workers)
    print("".join(order))

asyncio.run(main())
"#;

fn expect_fair_in_python(script: &str) {
    let (program, holder) = start();
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python");
    let mut python = Command::new("/usr/bin/python3");
    python.env("PYTHONPATH", client).env("PYTHONDONTWRITEBYTECODE", "1");
    python.args(["-c", script, &format!("tcp://{}", program.lines), &SLOTS.to_string()]);
    python.args(TENANTS.map(|(tenant, jobs, workers)| format!("{tenant}:{jobs}:{workers}")));
    let mut child = python.stdout(Stdio::piped()).spawn().expect("it runs");
    until("all workers wait", || waiting(&program, WORKERS));
    drop(holder);
    let mut order = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut order).expect("text");
    assert!(child.wait().expect("it ends").success());
    expect_fair(order.trim_end(), 2);
}

#[test]
fn tenants_with_few_jobs_are_done_first_in_pools_of_python_threads() {
    expect_fair_in_python(PYTHON);
}

#[test]
fn tenants_with_few_jobs_are_done_first_in_pools_of_python_tasks() {
    expect_fair_in_python(PYTHON_ASYNC);
}

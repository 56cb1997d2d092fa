//! Clients of a language model's API: `model-load PORT[,PORT...] < plan.json`.
//!
//! What the clients ask for: `plan`. For each request it prints a line of JSON when it has ended:
//! the number of the client in the plan, the number of the request, when it was sent, when the
//! first byte of the body came and the last (seconds since the beginning, or null), the status (0:
//! none), how it ended (done, hung up, cut, error), the tokens in the answer, and the FNV-1a hash
//! of its body. With several ports, requests take turns among them. One thread.

mod plan;
mod wire;

use model_bench::Random;
use plan::{Plan, random_wait};
use std::cell::{Cell, RefCell};
use std::io::{BufWriter, Read, Stdout, Write};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use wire::{End, Seen, Wire};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The pause of a client that cannot connect.
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

/// What all clients share.
struct Load {
    plan: Plan,
    ports: Vec<u16>,
    began: Instant,
    /// Idle connections of each port.
    idle: RefCell<Vec<Vec<Wire>>>,
    turn: Cell<usize>,
    /// The number of requests of each client.
    sent: Vec<Cell<u64>>,
    out: RefCell<BufWriter<Stdout>>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ports = std::env::args().nth(1).ok_or("usage: model-load PORT[,PORT...] < plan.json")?;
    let ports: Vec<u16> = ports.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let plan = Plan::read(&text).ok_or("that is no plan")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, run(plan, ports))?;
    Ok(())
}

async fn run(plan: Plan, ports: Vec<u16>) -> std::io::Result<()> {
    let load = Rc::new(Load {
        idle: RefCell::new(ports.iter().map(|_| Vec::new()).collect()),
        sent: plan.clients.iter().map(|_| Cell::new(0)).collect(),
        plan,
        ports,
        began: Instant::now(),
        turn: Cell::new(0),
        out: RefCell::new(BufWriter::new(std::io::stdout())),
    });
    let mut tasks: Vec<JoinHandle<()>> = Vec::new();
    for (index, client) in load.plan.clients.iter().enumerate() {
        if client.connections == 0 {
            tasks.push(spawn_local(load.clone().arrivals(index)));
        }
        for _ in 0..client.connections {
            tasks.push(spawn_local(load.clone().one_after_the_other(index)));
        }
    }
    for task in tasks {
        let _ = task.await;
    }
    load.out.borrow_mut().flush()
}

impl Load {
    fn at(&self, seconds: f64) -> Instant {
        self.began + Duration::from_secs_f64(seconds)
    }

    /// The number of the next request of a client; `None`: it has sent all.
    fn number(&self, index: usize) -> Option<u64> {
        let number = self.sent[index].get();
        self.sent[index].set(number + 1);
        (number < self.plan.clients[index].count).then_some(number)
    }

    async fn one_after_the_other(self: Rc<Self>, index: usize) {
        let client = &self.plan.clients[index];
        let stop = self.at(self.plan.seconds);
        sleep_until(self.at(client.start)).await;
        while Instant::now() < stop {
            let Some(number) = self.number(index) else { return };
            self.request(index, number).await;
            if client.pause > 0.0 {
                sleep(Duration::from_secs_f64(client.pause)).await;
            }
        }
    }

    async fn arrivals(self: Rc<Self>, index: usize) {
        let client = &self.plan.clients[index];
        let stop = self.at(self.plan.seconds);
        let mut random = Random(self.plan.seed.wrapping_mul(7_919).wrapping_add(index as u64));
        let mut next = self.at(client.start);
        let mut running = Vec::new();
        loop {
            next += Duration::from_secs_f64(random_wait(&mut random, client.rate));
            if next >= stop {
                break;
            }
            sleep_until(next).await;
            let Some(number) = self.number(index) else { break };
            let load = self.clone();
            running.push(spawn_local(async move { load.request(index, number).await }));
        }
        for one in running {
            let _ = one.await;
        }
    }

    /// Sends a request, reads its answer, and prints the result.
    async fn request(&self, index: usize, number: u64) {
        let ask = self.plan.clients[index].ask(self.plan.seed, number);
        let turn = self.turn.replace(self.turn.get() + 1) % self.ports.len();
        let (began, mut seen) = (Instant::now(), Seen::new());
        let end = self.at(self.plan.seconds + self.plan.drain);
        let exchange = self.exchange(turn, &ask.text, ask.hang_up, &mut seen);
        let ended = timeout_at(end, exchange).await.unwrap_or(End::Cut);
        let time = |at: Option<Instant>| {
            at.map_or("null".to_owned(), |at| format!("{:.6}", (at - self.began).as_secs_f64()))
        };
        let ended_as = match ended {
            End::Done => "done",
            End::HungUp => "hung up",
            End::Cut => "cut",
            End::Error => "error",
        };
        let _ = writeln!(
            self.out.borrow_mut(),
            "[{index},{number},{},{},{},{},\"{ended_as}\",{},\"{:016x}\"]",
            time(Some(began)),
            time(seen.first),
            time(seen.last),
            seen.status,
            seen.tokens,
            seen.hash,
        );
    }

    async fn exchange(&self, turn: usize, text: &str, hang_up: u64, seen: &mut Seen) -> End {
        loop {
            let kept = self.idle.borrow_mut()[turn].pop();
            let was_used = kept.is_some();
            let mut wire = match kept {
                Some(wire) => wire,
                None => match Wire::open(self.ports[turn]).await {
                    Ok(wire) => wire,
                    Err(_) => {
                        sleep(CONNECT_PAUSE).await;
                        return End::Error;
                    }
                },
            };
            let end = wire.exchange(text, hang_up, seen).await;
            // The server may close a connection while it is idle.
            if end == End::Error && was_used && seen.status == 0 {
                continue;
            }
            if end == End::Done && wire.is_reusable {
                self.idle.borrow_mut()[turn].push(wire);
            }
            return end;
        }
    }
}

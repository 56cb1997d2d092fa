//! The door that is asked about tags: a tag and a newline in, `OK` or `NO` out; and the same for
//! clients that speak the Redis protocol.
//!
//! One thread per core with a runtime of its own, as at the proxy: a connection never leaves its
//! thread, and no question takes a lock that another thread wants. This file starts and stops;
//! `listen` binds, `worker` accepts, `talk` is one connection, `lines` and `resp` are the two
//! protocols, `commands` what Redis clients may say, `elsewhere` asks the store where there is one.
//! What is decided: `engine::tags`.

mod commands;
mod elsewhere;
mod lines;
mod listen;
mod resp;
mod talk;
mod worker;

use crate::clock::Clock;
use crate::config::settings::{Line, Listen};
use crate::engine::tags::{TagLane, Tags};
use crate::run::handover::{Passed, Sockets};
use crate::run::watchdog;
use crate::store::redis::Store;
use crate::watch::Watch;
use crate::watch::counts::StreamCounts;
use elsewhere::Elsewhere;
use listen::{Listener, SocketFile};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use worker::{House, Open, Worker};

/// Most tasks that a thread runs before it asks the system what is ready.
const POLLS_PER_LOOK: u32 = 256;

/// Why the door could not be opened. Nothing of it is open then.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("line: cannot listen on {address}: {error}; {advice}")]
    Listen {
        /// The address.
        address: String,
        /// What the system says.
        error: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// The system gives no thread or no event queue.
    #[error("line: cannot start a thread: {0}; raise the limits on threads and open files")]
    Thread(io::Error),
}

impl StartError {
    fn listen(address: String, error: io::Error) -> StartError {
        let advice = match error.kind() {
            io::ErrorKind::AddrInUse if error.get_ref().is_some() => {
                "write the address as it was handed in"
            }
            io::ErrorKind::AddrInUse => "another program has it: stop that one, or name another",
            io::ErrorKind::AlreadyExists => "there is a file that is no socket: name another path",
            io::ErrorKind::NotFound => "make its folder first",
            io::ErrorKind::PermissionDenied => "this user may not: name another",
            _ => "name another in `line`",
        };
        StartError::Listen { address, error, advice }
    }
}

/// What the threads are to do.
#[derive(Clone)]
struct Order {
    settings: Arc<Line>,
    phase: Phase,
}

#[derive(Clone, Copy)]
enum Phase {
    Serve,
    /// Accept no more, answer what has been sent, until then.
    Drain(Instant),
    Stop,
}

/// The open door.
pub struct Running {
    lines: Vec<Listen>,
    resp: Vec<SocketAddr>,
    orders: watch::Sender<Order>,
    /// Closed when the last thread has ended.
    alive: tokio::sync::Mutex<mpsc::Receiver<Infallible>>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    files: Mutex<Vec<SocketFile>>,
    house: Arc<House>,
}

/// How many threads the door has: one per core that this process may use, at least one.
#[must_use]
pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Binds everything, then starts one thread per core. Tags are counted in `store`, if there is one.
///
/// # Errors
///
/// Something cannot be listened on, or the system gives no thread. Nothing runs then.
pub fn start(
    settings: &Line,
    tags: &Arc<Tags>,
    store: Option<&Arc<Store>>,
    clock: Clock,
    watch: &Arc<Watch>,
) -> Result<Running, StartError> {
    start_on(settings, tags, store, clock, watch, &Sockets::default())
}

/// The same on those of `sockets` that listen where the settings say; the others are bound, and
/// noted there.
///
/// # Errors
///
/// Something cannot be listened on, or the system gives no thread. Nothing runs then.
pub fn start_on(
    settings: &Line,
    tags: &Arc<Tags>,
    store: Option<&Arc<Store>>,
    clock: Clock,
    watch: &Arc<Watch>,
    sockets: &Sockets,
) -> Result<Running, StartError> {
    let mut bound = listen::bind(settings, threads(), sockets)?;
    let order = Order { settings: Arc::new(settings.clone()), phase: Phase::Serve };
    let (orders, _) = watch::channel(order);
    let (alive, ended) = mpsc::channel(1);
    let counts = |door| StreamCounts::new(watch.registry(), door);
    let running = Running {
        lines: bound.lines,
        resp: bound.resp,
        orders,
        alive: tokio::sync::Mutex::new(ended),
        threads: Mutex::default(),
        files: Mutex::new(bound.files),
        house: Arc::new(House::new(counts("line"), counts("resp"))),
    };
    for (index, listeners) in bound.threads.drain(..).enumerate() {
        let seat = Seat {
            listeners,
            lane: tags.lane(index),
            store: store.cloned(),
            passed: sockets.passed(),
            clock,
            watch: Arc::clone(watch),
            house: Arc::clone(&running.house),
            orders: running.orders.subscribe(),
        };
        let started = seat.start(index, alive.clone()).inspect_err(|_| running.stop_now());
        running.threads.lock().push(started.map_err(StartError::Thread)?);
    }
    Ok(running)
}

/// Everything that a thread is born with.
struct Seat {
    listeners: Vec<Listener>,
    lane: TagLane,
    store: Option<Arc<Store>>,
    passed: Passed,
    clock: Clock,
    watch: Arc<Watch>,
    house: Arc<House>,
    orders: watch::Receiver<Order>,
}

impl Seat {
    fn start(
        self,
        index: usize,
        alive: mpsc::Sender<Infallible>,
    ) -> io::Result<thread::JoinHandle<()>> {
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let body = move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().event_interval(POLLS_PER_LOOK);
            match builder.build_local(LocalOptions::default()) {
                Ok(runtime) => {
                    let _ = ready.send(Ok(()));
                    runtime.block_on(self.run());
                    drop(runtime);
                    // Only now has everything ended that ran on it.
                    drop(alive);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
        };
        let handle = thread::Builder::new().name(format!("line-{index}")).spawn(body)?;
        is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended at once")))?;
        Ok(handle)
    }

    async fn run(mut self) {
        let settings = Arc::clone(&self.orders.borrow().settings);
        tokio::task::spawn_local(watchdog::beat("line", self.watch.beats.clone(), self.clock));
        let store = self.store.as_ref().map(Elsewhere::new);
        let worker = Worker::new(&settings, self.lane, store, self.clock, self.house);
        let mut accepting = JoinSet::new();
        for listener in self.listeners {
            match Open::new(listener) {
                Ok(listener) => {
                    let accept = Rc::clone(&worker).accept(listener, self.passed.clone());
                    accepting.spawn_local(accept);
                }
                Err(error) => tracing::error!(%error, "a listener was lost"),
            }
        }
        obey(&worker, accepting, &mut self.orders).await;
        worker.stop();
    }
}

/// Follows orders until the thread may end.
async fn obey(worker: &Worker, mut accepting: JoinSet<()>, orders: &mut watch::Receiver<Order>) {
    let mut until = None;
    loop {
        let drained = async {
            let Some(until) = until else { return std::future::pending().await };
            let empty = async {
                while accepting.join_next().await.is_some() {}
                worker.empty().await;
            };
            tokio::time::timeout_at(until, empty).await.is_ok()
        };
        tokio::select! {
            _ = drained => return,
            changed = orders.changed() => if changed.is_err() { return },
        }
        let order = orders.borrow_and_update().clone();
        match order.phase {
            Phase::Serve => worker.reload(&order.settings),
            Phase::Stop => return,
            Phase::Drain(at) => {
                until = Some(at);
                worker.drain();
            }
        }
    }
}

impl Running {
    /// Where it listens for lines, in the order of the settings, with the ports that the system
    /// gave.
    #[must_use]
    pub fn lines(&self) -> &[Listen] {
        &self.lines
    }

    /// Where it listens for Redis clients.
    #[must_use]
    pub fn resp(&self) -> &[SocketAddr] {
        &self.resp
    }

    /// Connections open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.house.connections.load(Relaxed)
    }

    /// Connections that were open still when their thread ended.
    #[must_use]
    pub fn cut(&self) -> usize {
        self.house.cut.load(Relaxed)
    }

    /// Takes over changed settings for the connections that follow.
    pub fn reload(&self, settings: &Line) {
        let settings = Arc::new(settings.clone());
        self.orders.send_modify(|order| order.settings = settings);
    }

    /// Accepts no more, answers what has been sent for at most `timeout`, then closes everything.
    /// Returns at once; [`Running::ended`] says when it is done.
    pub fn drain(&self, timeout: Duration) {
        // Whoever asks from now on is to find nobody there, and not to wait for us.
        self.files.lock().clear();
        let until = Clock::deadline(timeout);
        self.orders.send_modify(|order| order.phase = Phase::Drain(until));
    }

    /// Closes everything, whatever is unanswered.
    pub fn stop_now(&self) {
        self.orders.send_modify(|order| order.phase = Phase::Stop);
    }

    /// Until all threads have ended, after [`Running::drain`] or [`Running::stop_now`].
    pub async fn ended(&self) {
        // Nothing is ever sent: it ends when the last sender is dropped.
        let _ = self.alive.lock().await.recv().await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop_now();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;

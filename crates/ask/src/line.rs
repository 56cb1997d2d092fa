//! The line door: a client sends a tag and a newline, and gets `OK` or `NO`. Clients that speak the
//! Redis protocol can ask the same.
//!
//! One thread per core with its own runtime, as in the proxy: a connection never leaves its thread,
//! and no query takes a lock that another thread wants. This file starts and stops. `listen` binds,
//! `worker` accepts, `connection` is one connection, `splitter` and `resp` are the two protocols,
//! `commands` are the commands of Redis clients, and `store_client` asks the store if there is one.
//! What is decided: `engine::tags`.

mod commands;
mod connection;
mod listen;
mod resp;
mod splitter;
mod store_client;
mod worker;

use evenkeel_config::settings::{LineSettings, StreamAddress};
use evenkeel_engine::tags::{TagEngine, TagLane};
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::handover::{HandoverSignal, ListenSockets};
use evenkeel_serve::watchdog;
use evenkeel_store::redis::RedisStore;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::StreamCounts;
use listen::{LineListener, SocketFile};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;
use store_client::TagStoreClient;
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use worker::{LineShared, LineWorker, RegisteredListener};

/// The maximum number of task polls between two looks at the system's event queue.
const POLLS_PER_EVENT_CHECK: u32 = 256;

/// Why the door could not be opened. If there is an error, no part of it is open.
#[derive(Debug, thiserror::Error)]
pub enum LineStartError {
    /// The door cannot listen on an address.
    #[error("line: cannot listen on {address}: {error}; {advice}")]
    Listen {
        /// The TCP address or the path of the socket file.
        address: String,
        /// The error that the system returned.
        error: io::Error,
        /// What the operator can do about it.
        advice: &'static str,
    },
    /// The system refuses a thread or an event queue.
    #[error("line: cannot start a thread: {0}; raise the limits on threads and open files")]
    Thread(io::Error),
}

impl LineStartError {
    fn listen(address: String, error: io::Error) -> LineStartError {
        let advice = match error.kind() {
            io::ErrorKind::AddrInUse if error.get_ref().is_some() => {
                "write the address exactly as it was inherited"
            }
            io::ErrorKind::AddrInUse => {
                "another program uses it: stop that program, or name another address"
            }
            io::ErrorKind::AlreadyExists => {
                "a file that is not a socket exists there: name another path"
            }
            io::ErrorKind::NotFound => "create its folder first",
            io::ErrorKind::PermissionDenied => {
                "this user lacks the permission: name another address"
            }
            _ => "name another address in `line`",
        };
        LineStartError::Listen { address, error, advice }
    }
}

/// The current instructions to all threads: the settings and the phase.
#[derive(Clone)]
struct LineInstructions {
    settings: Arc<LineSettings>,
    phase: LinePhase,
}

#[derive(Clone, Copy)]
enum LinePhase {
    Serve,
    /// Accept no more connections, and answer what has been sent, until this time.
    Drain(Instant),
    Stop,
}

/// The open door.
pub struct RunningLine {
    lines: Vec<StreamAddress>,
    resp: Vec<SocketAddr>,
    orders: watch::Sender<LineInstructions>,
    /// The channel closes when the last thread has ended.
    alive: tokio::sync::Mutex<mpsc::Receiver<Infallible>>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    files: Mutex<Vec<SocketFile>>,
    house: Arc<LineShared>,
}

/// Returns the number of threads of the door: one per core that this process may use, at least one.
#[must_use]
pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Binds everything, then starts one thread per core. If there is a `store`, tags are counted in
/// it.
///
/// # Errors
///
/// An address cannot be listened on, or the system gives no thread. Nothing runs then.
pub fn start(
    settings: &LineSettings,
    tags: &Arc<TagEngine>,
    store: Option<&Arc<RedisStore>>,
    clock: Clock,
    watch: &Arc<Watch>,
) -> Result<RunningLine, LineStartError> {
    start_on(settings, tags, store, clock, watch, &ListenSockets::default())
}

/// Like [`start`], but takes over the sockets of `sockets` that match the settings; the others are
/// bound and recorded there.
///
/// # Errors
///
/// An address cannot be listened on, or the system gives no thread. Nothing runs then.
pub fn start_on(
    settings: &LineSettings,
    tags: &Arc<TagEngine>,
    store: Option<&Arc<RedisStore>>,
    clock: Clock,
    watch: &Arc<Watch>,
    sockets: &ListenSockets,
) -> Result<RunningLine, LineStartError> {
    let mut bound = listen::bind(settings, threads(), sockets)?;
    let order = LineInstructions { settings: Arc::new(settings.clone()), phase: LinePhase::Serve };
    let (orders, _) = watch::channel(order);
    let (alive, ended) = mpsc::channel(1);
    let counts = |door| StreamCounts::new(watch.registry(), door);
    let running = RunningLine {
        lines: bound.lines,
        resp: bound.resp,
        orders,
        alive: tokio::sync::Mutex::new(ended),
        threads: Mutex::default(),
        files: Mutex::new(bound.files),
        house: Arc::new(LineShared::new(counts("line"), counts("resp"))),
    };
    for (index, listeners) in bound.threads.drain(..).enumerate() {
        let seat = LineWorkerInit {
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
        running.threads.lock().push(started.map_err(LineStartError::Thread)?);
    }
    Ok(running)
}

/// What a thread needs to start.
struct LineWorkerInit {
    listeners: Vec<LineListener>,
    lane: TagLane,
    store: Option<Arc<RedisStore>>,
    passed: HandoverSignal,
    clock: Clock,
    watch: Arc<Watch>,
    house: Arc<LineShared>,
    orders: watch::Receiver<LineInstructions>,
}

impl LineWorkerInit {
    fn start(
        self,
        index: usize,
        alive: mpsc::Sender<Infallible>,
    ) -> io::Result<thread::JoinHandle<()>> {
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let body = move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().event_interval(POLLS_PER_EVENT_CHECK);
            match builder.build_local(LocalOptions::default()) {
                Ok(runtime) => {
                    let _ = ready.send(Ok(()));
                    runtime.block_on(self.run());
                    drop(runtime);
                    // Dropped only now: everything that ran on the runtime has ended.
                    drop(alive);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
        };
        let handle = thread::Builder::new().name(format!("line-{index}")).spawn(body)?;
        is_ready
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread ended immediately")))?;
        Ok(handle)
    }

    async fn run(mut self) {
        let settings = Arc::clone(&self.orders.borrow().settings);
        tokio::task::spawn_local(watchdog::beat("line", self.watch.beats.clone(), self.clock));
        let store = self.store.as_ref().map(TagStoreClient::new);
        let worker = LineWorker::new(&settings, self.lane, store, self.clock, self.house);
        let mut accepting = JoinSet::new();
        for listener in self.listeners {
            match RegisteredListener::new(listener) {
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

/// Follows the orders until the thread may end.
async fn obey(
    worker: &LineWorker,
    mut accepting: JoinSet<()>,
    orders: &mut watch::Receiver<LineInstructions>,
) {
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
            LinePhase::Serve => worker.reload(&order.settings),
            LinePhase::Stop => return,
            LinePhase::Drain(at) => {
                until = Some(at);
                worker.drain();
            }
        }
    }
}

impl RunningLine {
    /// Returns the addresses of the line protocol, in the order of the settings, with the ports
    /// that the system assigned.
    #[must_use]
    pub fn lines(&self) -> &[StreamAddress] {
        &self.lines
    }

    /// Returns the addresses for Redis clients, in the order of the settings.
    #[must_use]
    pub fn resp(&self) -> &[SocketAddr] {
        &self.resp
    }

    /// Returns the number of connections that are open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.house.connections.load(Relaxed)
    }

    /// Returns the number of connections that were still open when their thread ended.
    #[must_use]
    pub fn cut(&self) -> usize {
        self.house.cut.load(Relaxed)
    }

    /// Applies changed settings to the connections that follow.
    pub fn reload(&self, settings: &LineSettings) {
        let settings = Arc::new(settings.clone());
        self.orders.send_modify(|order| order.settings = settings);
    }

    /// Accepts no more connections, answers what has been sent for at most `timeout`, then closes
    /// everything. Returns at once; [`RunningLine::ended`] reports when it is done.
    pub fn drain(&self, timeout: Duration) {
        // A client that connects from now on must fail at once, not wait for this process.
        self.files.lock().clear();
        let until = Clock::deadline(timeout);
        self.orders.send_modify(|order| order.phase = LinePhase::Drain(until));
    }

    /// Closes everything at once, even if queries are unanswered.
    pub fn stop_now(&self) {
        self.orders.send_modify(|order| order.phase = LinePhase::Stop);
    }

    /// Waits until all threads have ended, after [`RunningLine::drain`] or
    /// [`RunningLine::stop_now`].
    pub async fn ended(&self) {
        // Nothing is ever sent: `recv` returns when the last sender is dropped.
        let _ = self.alive.lock().await.recv().await;
    }
}

impl Drop for RunningLine {
    fn drop(&mut self) {
        self.stop_now();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has reported that on standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;

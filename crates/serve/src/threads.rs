//! The threads of a server, and the orders that they follow: reload, drain, stop.
//!
//! Each thread has its own runtime and its own listeners, so a connection never leaves its thread.
//! A [`ServerThreads`] starts them, sends heartbeats for the watchdog, counts the connections that
//! were cut off, and reports the end of the last thread. What the threads serve, and the settings
//! that a reload changes, belong to each door. How connections are accepted: `accept`.

use crate::start::ServerStartError;
use crate::watchdog;
use evenkeel_runtime::clock::Clock;
use evenkeel_runtime::thread::OwnedThread;
use evenkeel_telemetry::counts::heartbeats::Heartbeats;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::available_parallelism;
use std::time::Duration;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, timeout_at};

/// Returns the number of cores that this process may use, at least one.
#[must_use]
pub fn core_count() -> usize {
    available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The current order to all threads of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerPhase {
    Serve,
    /// Accept no more connections, and let what runs finish until this time.
    Drain(Instant),
    Stop,
}

/// The threads of one server. Dropping this stops them and waits for their end.
pub struct ServerThreads {
    /// Invariant: declared first, because its drop ends the threads, which are joined afterwards.
    phase: watch::Sender<ServerPhase>,
    _threads: Vec<OwnedThread<()>>,
    /// The channel closes when the last thread has ended.
    alive: Mutex<mpsc::Receiver<Infallible>>,
    cut: Arc<AtomicUsize>,
}

impl ServerThreads {
    /// Starts a thread called `door` that runs `serve`. The future returns the number of
    /// connections that are still open at its end.
    ///
    /// # Errors
    /// [`ServerStartError::Thread`]
    pub fn single<F: Future<Output = usize>>(
        door: &'static str,
        (beats, clock): (&Heartbeats, Clock),
        serve: impl FnOnce(ServerOrders) -> F + Send + 'static,
    ) -> Result<ServerThreads, ServerStartError> {
        ServerThreads::start(door, (beats, clock), [(door.to_owned(), serve)])
    }

    /// Starts a thread for each of `each`, with the names `door-0`, `door-1` and so on.
    ///
    /// # Errors
    /// [`ServerStartError::Thread`]; no thread runs then.
    pub fn each<F: Future<Output = usize>, S: FnOnce(ServerOrders) -> F + Send + 'static>(
        door: &'static str,
        (beats, clock): (&Heartbeats, Clock),
        each: impl IntoIterator<Item = S>,
    ) -> Result<ServerThreads, ServerStartError> {
        let each = each.into_iter().enumerate();
        let named = each.map(|(index, serve)| (format!("{door}-{index}"), serve));
        ServerThreads::start(door, (beats, clock), named)
    }

    fn start<F: Future<Output = usize>, S: FnOnce(ServerOrders) -> F + Send + 'static>(
        door: &'static str,
        (beats, clock): (&Heartbeats, Clock),
        each: impl IntoIterator<Item = (String, S)>,
    ) -> Result<ServerThreads, ServerStartError> {
        let (alive, ended) = mpsc::channel::<Infallible>(1);
        let (phase, phases) = watch::channel(ServerPhase::Serve);
        let cut = Arc::<AtomicUsize>::default();
        let mut threads = Vec::new();
        for (name, serve) in each {
            let (orders, cut, beats) = (ServerOrders(phases.clone()), cut.clone(), beats.clone());
            let run = async move || {
                spawn_local(watchdog::beat(door, beats, clock));
                cut.fetch_add(serve(orders).await, Relaxed);
            };
            let thread = OwnedThread::serve(&name, (), alive.clone(), run);
            threads.push(thread.map_err(|error| ServerStartError::Thread { door, error })?);
        }
        Ok(ServerThreads { phase, _threads: threads, alive: Mutex::new(ended), cut })
    }

    /// Makes every thread apply the door's current settings.
    pub fn reload(&self) {
        self.phase.send_modify(|_| {});
    }

    /// Accepts no more connections, and gives what runs at most `timeout` to finish. Returns at
    /// once; [`ServerThreads::ended`] reports when it is done.
    pub fn drain(&self, timeout: Duration) {
        self.phase.send_replace(ServerPhase::Drain(Clock::deadline(timeout)));
    }

    /// Closes everything at once, including what runs.
    pub fn stop_now(&self) {
        self.phase.send_replace(ServerPhase::Stop);
    }

    /// Waits until all threads have ended, after [`ServerThreads::drain`] or
    /// [`ServerThreads::stop_now`].
    pub async fn ended(&self) {
        // Nothing is ever sent: `recv` returns when the last sender is dropped.
        let _ = self.alive.lock().await.recv().await;
    }

    /// Returns the number of connections that were still open when their thread ended.
    #[must_use]
    pub fn cut(&self) -> usize {
        self.cut.load(Relaxed)
    }
}

/// What a thread does on orders; see [`ServerOrders::follow`].
pub trait ServerWorker {
    /// Applies the door's current settings.
    fn reload(&self) {}

    /// Lets every connection end as soon as it may. New ones are no longer accepted.
    fn drain(&self) {}

    /// Waits until nothing is left that a drain waits for.
    fn empty(&self) -> impl Future<Output = ()>;
}

/// The orders to one thread. It is to end as well if the [`ServerThreads`] is dropped.
#[derive(Clone, Debug)]
pub struct ServerOrders(watch::Receiver<ServerPhase>);

impl ServerOrders {
    /// Waits until the server drains. Returns the time until which open connections may finish.
    /// Never returns if the server stops without a drain: its tasks are dropped.
    pub async fn leaving(&mut self) -> Instant {
        let drains = |phase: &ServerPhase| matches!(phase, ServerPhase::Drain(_));
        match self.0.wait_for(drains).await.map(|phase| *phase) {
            Ok(ServerPhase::Drain(until)) => until,
            _ => std::future::pending().await,
        }
    }

    /// Waits until the thread is to end at once.
    pub async fn stopped(&mut self) {
        // An error means that the sender is gone, which also means to stop.
        let _ = self.0.wait_for(|phase| *phase == ServerPhase::Stop).await;
    }

    /// Follows the orders until the thread may end: at once after a stop, and after a drain when
    /// the tasks in `accepting` have ended and `worker` is empty, or when the time is over.
    pub async fn follow(mut self, worker: &impl ServerWorker, mut accepting: JoinSet<()>) {
        let mut until = None;
        loop {
            let drained = async {
                let Some(until) = until else { return std::future::pending().await };
                let empty = async {
                    while accepting.join_next().await.is_some() {}
                    worker.empty().await;
                };
                timeout_at(until, empty).await.is_ok()
            };
            tokio::select! {
                _ = drained => return,
                changed = self.0.changed() => if changed.is_err() { return },
            }
            let phase = *self.0.borrow_and_update();
            match phase {
                ServerPhase::Serve => worker.reload(),
                ServerPhase::Stop => return,
                ServerPhase::Drain(at) => {
                    until = Some(at);
                    worker.drain();
                }
            }
        }
    }
}

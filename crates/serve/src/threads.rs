//! The threads of a server, and the orders that they follow: reload, drain, stop.
//!
//! Each thread has its own runtime and its own listeners, so a connection never leaves its thread.
//! A [`ServerThreads`] starts them, sends heartbeats for the watchdog, counts the connections that
//! were cut off, and reports the end of the last thread. The protocol, and the settings that a
//! reload changes, belong to each door. Connections are accepted in `accept`.

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
        // No message is ever sent: `recv` returns when the last sender is dropped.
        let _ = self.alive.lock().await.recv().await;
    }

    /// Returns the number of connections that were still open when their thread ended.
    #[must_use]
    pub fn cut(&self) -> usize {
        self.cut.load(Relaxed)
    }
}

/// The actions of a thread on orders; see [`ServerOrders::follow`].
pub trait ServerWorker {
    /// Applies the door's current settings.
    fn reload(&self) {}

    /// Lets every connection end as soon as it may. New ones are no longer accepted.
    fn drain(&self) {}

    /// Waits until all work is done that a drain waits for.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::accept;
    use crate::handover::HandoverSignal;
    use evenkeel_core::units::Nanos;
    use parking_lot::Mutex as SyncMutex;
    use std::io::Read;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::rc::Rc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use tokio::sync::Notify;

    /// Holds its connections until it drains.
    struct Holder {
        held: SyncMutex<Vec<tokio::net::TcpStream>>,
        changed: Notify,
        said: Sender<&'static str>,
        drops: bool,
    }

    impl ServerWorker for Holder {
        fn reload(&self) {
            self.said.send("reload").expect("heard");
        }

        fn drain(&self) {
            self.said.send("drain").expect("heard");
            if self.drops {
                self.held.lock().clear();
                self.changed.notify_waiters();
            }
        }

        async fn empty(&self) {
            loop {
                let changed = self.changed.notified();
                if self.held.lock().is_empty() {
                    return;
                }
                changed.await;
            }
        }
    }

    /// A server with one thread, which drops its connections at a drain if `drops`.
    fn server(drops: bool) -> (ServerThreads, Heartbeats, SocketAddr, Receiver<&'static str>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a mode");
        let address = listener.local_addr().expect("bound");
        let (said, heard) = channel();
        let serve = async move |orders: ServerOrders| {
            let (held, changed) = (SyncMutex::default(), Notify::new());
            let holder = Rc::new(Holder { held, changed, said, drops });
            let listener = tokio::net::TcpListener::from_std(listener).expect("registered");
            let (accepting, ends) = (Rc::clone(&holder), orders.clone());
            let mut tasks = JoinSet::new();
            tasks.spawn_local(async move {
                let hold = async |(stream, _)| {
                    accepting.held.lock().push(stream);
                    accepting.said.send("accept").expect("heard");
                };
                accept(listener, (ends, HandoverSignal::default()), |_| {}, hold).await;
            });
            orders.follow(&*holder, tasks).await;
            holder.held.lock().len()
        };
        let (beats, clock) = (Heartbeats::default(), Clock::start());
        let threads = ServerThreads::single("test", (&beats, clock), serve).expect("it starts");
        (threads, beats, address, heard)
    }

    fn ended(threads: &ServerThreads) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let within = Duration::from_secs(60);
        let end = async { tokio::time::timeout(within, threads.ended()).await };
        runtime.expect("a runtime").block_on(end).expect("it ends");
    }

    #[test]
    fn a_drain_ends_when_nothing_is_left_and_a_stop_at_once() {
        for (drops, cut) in [(true, 0), (false, 1)] {
            let (threads, _, address, heard) = server(drops);
            let mut client = TcpStream::connect(address).expect("in");
            assert_eq!(heard.recv(), Ok("accept"));
            threads.reload();
            assert_eq!(heard.recv(), Ok("reload"));
            threads.drain(Duration::from_secs(600));
            assert_eq!(heard.recv(), Ok("drain"));
            if !drops {
                threads.stop_now();
            }
            ended(&threads);
            assert_eq!(threads.cut(), cut);
            assert_eq!(client.read(&mut [0]).ok(), Some(0), "it is closed");
            assert!(TcpStream::connect(address).is_err(), "nothing listens");
        }
    }

    #[test]
    fn a_drain_ends_when_its_time_is_over() {
        let (threads, _, address, heard) = server(false);
        let _client = TcpStream::connect(address).expect("in");
        assert_eq!(heard.recv(), Ok("accept"));
        threads.drain(Duration::from_millis(10));
        ended(&threads);
        assert_eq!(threads.cut(), 1);
    }

    #[test]
    fn threads_beat_and_end_with_their_owner() {
        let (threads, beats, address, heard) = server(false);
        let _client = TcpStream::connect(address).expect("in");
        assert_eq!(heard.recv(), Ok("accept"));
        let later = Clock::start().now().plus(Nanos::from_secs(600));
        assert_eq!(beats.silent(Nanos::from_secs(1), later), ["test"]);
        drop(threads);
        assert!(beats.silent(Nanos::from_secs(1), later).is_empty());
        assert!(TcpStream::connect(address).is_err(), "nothing listens");
    }
}

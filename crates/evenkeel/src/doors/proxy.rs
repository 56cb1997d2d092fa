//! The reverse proxy: HTTP/1.1 and HTTP/2, with TLS or without, in front and behind; every request
//! charged through the engine.
//!
//! One thread per core, each with its own runtime, its own listening socket (`SO_REUSEPORT`) and
//! its own connections to the backend: a request never leaves its thread. This file binds, starts
//! and stops; a thread is `worker.rs`, a connection is `front.rs`, a request is `exchange.rs`, who
//! is asked is `backends.rs`.

mod abort;
mod account;
mod answer;
mod backends;
mod body;
mod connect;
mod download;
mod exchange;
mod front;
mod headers;
mod link;
mod wire;
mod worker;

use crate::clock::Clock;
use crate::config::settings::{Backend, Proxy};
use crate::config::source::files::File;
use crate::engine::{Engine, Lane};
use crate::run::handover::Sockets;
use crate::run::watchdog;
use crate::store::redis::Store;
use crate::store::requests::Requests;
use crate::tls::live::Live;
use crate::watch::Watch;
use backends::Secured;
use evenkeel_core::units::Time;
use front::Shown;
use parking_lot::Mutex;
use rustls::ServerConfig;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use tokio::runtime::LocalOptions;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use worker::{House, Worker};

/// Most tasks that a thread runs before it asks the system what is ready, however many wait. Each
/// takes microseconds, so timers are late by a millisecond or two at most; to ask as often as the
/// runtime does by itself costs a busy thread some hundredths of its time.
const POLLS_PER_LOOK: u32 = 256;

/// Why the proxy could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings name no address.
    #[error("proxy.listen names no address; write one, such as 0.0.0.0:8888")]
    NoAddress,
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}; {advice}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// The certificates cannot be used.
    #[error("certificates of the proxy: {0}")]
    Tls(#[from] crate::tls::pem::Fault),
    /// The system gives no thread or no event queue.
    #[error("cannot start a thread of the proxy: {0}; raise the limits on threads and open files")]
    Thread(io::Error),
}

/// What the threads are to do.
#[derive(Clone)]
struct Order {
    settings: Arc<Proxy>,
    secured: Secured,
    phase: Phase,
}

#[derive(Clone, Copy)]
enum Phase {
    Serve,
    /// Accept no more, end what runs, until then.
    Drain(Instant),
    Stop,
}

/// A proxy that runs.
pub struct Running {
    addresses: Vec<SocketAddr>,
    orders: watch::Sender<Order>,
    /// Closed when the last thread has ended.
    alive: tokio::sync::Mutex<mpsc::Receiver<Infallible>>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    house: Arc<House>,
    /// The certificates, looked after.
    live: Mutex<Option<Live<Arc<ServerConfig>>>>,
}

/// How TLS is spoken with the backends, if one of them speaks it.
fn secured(settings: &Proxy) -> Result<Secured, crate::tls::pem::Fault> {
    if !settings.backends.iter().any(Backend::is_secured) {
        return Ok(None);
    }
    let config = crate::tls::client::backend(&settings.backend_tls)?;
    Ok(Some((config, settings.backend_tls.client.name.as_deref().map(Arc::from))))
}

/// How many threads a proxy has: one per core that this process may use, at least one.
#[must_use]
pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Binds all addresses, then starts one thread per core.
///
/// # Errors
///
/// An address cannot be listened on, or the system gives no thread. Nothing runs then.
pub fn start(
    settings: &Proxy,
    engine: &Arc<Engine>,
    watch: &Arc<Watch>,
) -> Result<Running, StartError> {
    start_on(settings, (engine, None), watch, &Sockets::default())
}

/// The same on those of `sockets` that listen where the settings say; the others are bound, and
/// noted there. Limits are counted in `store`, if there is one.
///
/// # Errors
/// An address cannot be listened on, or the system gives no thread. Nothing runs then.
pub fn start_on(
    settings: &Proxy,
    (engine, store): (&Arc<Engine>, Option<&Arc<Store>>),
    watch: &Arc<Watch>,
    sockets: &Sockets,
) -> Result<Running, StartError> {
    if settings.listen.is_empty() {
        return Err(StartError::NoAddress);
    }
    let count = threads();
    let live = settings.tls.clone().map(|tls| {
        let (paths, http2) = (crate::tls::front_files(&tls), settings.http2);
        let make = move |files: &[File]| crate::tls::front(files, &tls, http2);
        Live::load("proxy", paths, make, engine.clock().now(), watch.registry())
    });
    let live = live.transpose()?;
    let shown = live.as_ref().map(Live::running);
    let plain = settings.tls.as_ref().map_or(usize::MAX, |tls| tls.plain);
    let (addresses, mut listeners) = bind_all(&settings.listen, count, sockets)?;
    let secured = secured(settings)?;
    let order = Order { settings: Arc::new(settings.clone()), secured, phase: Phase::Serve };
    let (orders, _) = watch::channel(order);
    let (alive, ended) = mpsc::channel(1);
    let house = Arc::new(House::of(count));
    let running = Running {
        addresses,
        orders,
        alive: tokio::sync::Mutex::new(ended),
        threads: Mutex::default(),
        house,
        live: Mutex::new(live),
    };
    for index in 0..count {
        let listeners = listeners.pop().unwrap_or_default().into_iter();
        let shown = |index| shown.clone().filter(|_| index >= plain);
        let seat = Seat {
            listeners: listeners.map(|(index, listener)| (listener, shown(index))).collect(),
            lane: engine.lane(index),
            store: store.cloned(),
            clock: engine.clock(),
            house: Arc::clone(&running.house),
            watch: Arc::clone(watch),
            orders: running.orders.subscribe(),
        };
        let started = seat.start(index, alive.clone()).inspect_err(|_| running.stop_now());
        running.threads.lock().push(started.map_err(StartError::Thread)?);
    }
    Ok(running)
}

/// Everything that a thread is born with.
struct Seat {
    listeners: Vec<(TcpListener, Option<Shown>)>,
    lane: Lane,
    store: Option<Arc<Store>>,
    clock: Clock,
    house: Arc<House>,
    watch: Arc<Watch>,
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
                    // A name that is still being looked up is not waited for.
                    runtime.shutdown_background();
                    // Only now has everything ended that ran on it.
                    drop(alive);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
        };
        let handle = thread::Builder::new().name(format!("proxy-{index}")).spawn(body)?;
        is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended at once")))?;
        Ok(handle)
    }

    async fn run(mut self) {
        let Order { settings, secured, .. } = self.orders.borrow().clone();
        let site = (&*settings, &secured);
        let beats = self.watch.beats.clone();
        tokio::task::spawn_local(watchdog::beat("proxy", beats, self.clock));
        let lanes = (self.lane, self.store.as_ref().map(Requests::new));
        let worker = Worker::new(site, lanes, self.clock, self.house, self.watch);
        let mut accepting = JoinSet::new();
        for (listener, shown) in self.listeners {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => {
                    accepting.spawn_local(std::rc::Rc::clone(&worker).accept(listener, shown));
                }
                Err(error) => tracing::error!(%error, "a listener was lost"),
            }
        }
        tokio::task::spawn_local(std::rc::Rc::clone(&worker).sweep());
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
            Phase::Serve => worker.reload(&order.settings, &order.secured),
            Phase::Stop => return,
            Phase::Drain(at) => {
                until = Some(at);
                worker.drain();
            }
        }
    }
}

impl Running {
    /// Where it listens, in the order of the settings, with the ports that the system gave.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Client connections open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.house.connections.load(Ordering::Relaxed)
    }

    /// Client connections that were open still when their thread ended.
    #[must_use]
    pub fn cut(&self) -> usize {
        self.house.cut.load(Ordering::Relaxed)
    }

    /// Takes over changed settings for the requests that follow. Listeners stay as they are,
    /// whatever `listen` says.
    pub fn reload(&self, settings: &Proxy) {
        let settings = Arc::new(settings.clone());
        self.orders.send_modify(|order| {
            match secured(&settings) {
                Ok(secured) => order.secured = secured,
                Err(error) => tracing::error!(
                    %error, "proxy.backend_tls is refused; whom the proxy believes stays"
                ),
            }
            order.settings = settings;
        });
    }

    /// Takes over certificates whose files have changed; to be called once a second.
    pub fn look(&self, now: Time) {
        self.live.lock().iter_mut().for_each(|live| live.look(now));
    }

    /// Accepts no more, lets running requests end for at most `timeout`, then closes everything.
    /// Returns at once; [`Running::ended`] says when it is done.
    pub fn drain(&self, timeout: Duration) {
        let until = Clock::deadline(timeout);
        self.orders.send_modify(|order| order.phase = Phase::Drain(until));
    }

    /// Closes everything, whatever runs.
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

/// Addresses that are bound, and the listeners of each thread, each with its address's place.
type Bound = (Vec<SocketAddr>, Vec<Vec<(usize, TcpListener)>>);

/// Listeners for each address and each of `count` threads, and the addresses they got.
fn bind_all(
    addresses: &[SocketAddr],
    count: usize,
    sockets: &Sockets,
) -> Result<Bound, StartError> {
    let mut threads: Vec<Vec<(usize, TcpListener)>> = (0..count).map(|_| Vec::new()).collect();
    let mut bound = Vec::new();
    for (place, address) in addresses.iter().enumerate() {
        let failed = |error: io::Error| {
            let advice = advice(&error);
            StartError::Listen { address: *address, error, advice }
        };
        let each = sockets.listen_each(*address, count).map_err(failed)?;
        let first = each.iter().flatten().next().map(TcpListener::local_addr);
        bound.push(first.transpose().map_err(failed)?.unwrap_or(*address));
        for (thread, listeners) in threads.iter_mut().zip(each) {
            thread.extend(listeners.into_iter().map(|listener| (place, listener)));
        }
    }
    Ok((bound, threads))
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse if error.get_ref().is_some() => {
            "write the address as it was handed in"
        }
        io::ErrorKind::AddrInUse => {
            "another program has it: stop that one, or name another port in proxy.listen"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE: grant it, or name a higher port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address: name one of its own, or 0.0.0.0"
        }
        _ => "name another address in proxy.listen",
    }
}

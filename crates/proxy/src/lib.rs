//! The reverse proxy: HTTP/1.1 and HTTP/2, with or without TLS, towards clients and backends. Every
//! request is charged through the engine.
//!
//! Evenkeel runs one thread per core. Each thread has its own runtime, its own listening socket
//! (`SO_REUSEPORT`) and its own connections to the backends, so a request never leaves its thread.
//! This file binds, starts and stops.
//!
//! A file names only files below it, in this order (`ci/circles`): `accept`, `sweep`; `front`, a
//! connection; `exchange`, a request; `download`, `abort`; `worker`, a thread with its backends;
//! `backends`; `wire`, HTTP to a backend; `body`; `context`, what connections share; `link`, the
//! state of one; `room`, `account`, `headers`, `timer`, `failure`.

mod abort;
mod accept;
mod account;
mod answer;
mod backends;
mod body;
mod connect;
mod context;
mod download;
mod exchange;
mod failure;
mod front;
mod headers;
mod link;
mod room;
mod sweep;
mod timer;
mod wire;
mod worker;
mod write_slices;

use backends::UpstreamTls;
use evenkeel_config::settings::{BackendAddress, ProxySettings};
use evenkeel_config::source::files::WatchedFile;
use evenkeel_core::units::Time;
use evenkeel_engine::{Engine, EngineLane};
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::handover::ListenSockets;
use evenkeel_serve::watchdog;
use evenkeel_store::redis::RedisStore;
use evenkeel_store::requests::StoreRequests;
use evenkeel_telemetry::Watch;
use evenkeel_tls::reload::LiveValue;
use front::LiveServerConfig;
use parking_lot::Mutex;
use room::ProxyShared;
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
use worker::ProxyWorker;

/// The maximum number of task polls between two looks at the system's event queue. Each poll takes
/// microseconds, so timers are late by a millisecond or two at most. The runtime's default interval
/// is shorter and costs a busy thread a few percent of its time.
const POLLS_PER_EVENT_CHECK: u32 = 256;

/// Why the proxy could not start.
#[derive(Debug, thiserror::Error)]
pub enum ProxyStartError {
    /// The settings contain no address.
    #[error("proxy.listen names no address; write one, such as 0.0.0.0:8888")]
    NoAddress,
    /// The proxy cannot listen on an address.
    #[error("cannot listen on {address}: {error}; {advice}")]
    Listen {
        /// The address from the settings.
        address: SocketAddr,
        /// The error that the system returned.
        error: io::Error,
        /// What the operator can do about it.
        advice: &'static str,
    },
    /// The certificates cannot be loaded.
    #[error("certificates of the proxy: {0}")]
    Tls(#[from] evenkeel_tls::pem::TlsFileError),
    /// The system refuses a thread or an event queue.
    #[error("cannot start a thread of the proxy: {0}; raise the limits on threads and open files")]
    Thread(io::Error),
}

/// The current instructions to all threads: the settings and the phase.
#[derive(Clone)]
struct ProxyInstructions {
    settings: Arc<ProxySettings>,
    secured: UpstreamTls,
    phase: ProxyPhase,
}

#[derive(Clone, Copy)]
enum ProxyPhase {
    Serve,
    /// Accept no more connections, and let running requests finish until this time.
    Drain(Instant),
    Stop,
}

/// A running proxy.
pub struct RunningProxy {
    addresses: Vec<SocketAddr>,
    orders: watch::Sender<ProxyInstructions>,
    /// The channel closes when the last thread has ended.
    alive: tokio::sync::Mutex<mpsc::Receiver<Infallible>>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
    house: Arc<ProxyShared>,
    /// The certificates, reloaded when their files change.
    live: Mutex<Option<LiveValue<Arc<ServerConfig>>>>,
}

/// Returns the TLS configuration for backends, or `None` if no backend uses TLS.
fn secured(settings: &ProxySettings) -> Result<UpstreamTls, evenkeel_tls::pem::TlsFileError> {
    if !settings.backends.iter().any(BackendAddress::is_secured) {
        return Ok(None);
    }
    let config = evenkeel_tls::client::backend(&settings.backend_tls)?;
    Ok(Some((config, settings.backend_tls.client.name.as_deref().map(Arc::from))))
}

/// Returns the number of threads of a proxy: one per core that this process may use, at least one.
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
    settings: &ProxySettings,
    engine: &Arc<Engine>,
    watch: &Arc<Watch>,
) -> Result<RunningProxy, ProxyStartError> {
    start_on(settings, (engine, None), watch, &ListenSockets::default())
}

/// Like [`start`], but takes over the sockets of `sockets` that match the settings; the others are
/// bound and recorded there. If there is a `store`, limits are counted in it.
///
/// # Errors
/// An address cannot be listened on, or the system gives no thread. Nothing runs then.
pub fn start_on(
    settings: &ProxySettings,
    (engine, store): (&Arc<Engine>, Option<&Arc<RedisStore>>),
    watch: &Arc<Watch>,
    sockets: &ListenSockets,
) -> Result<RunningProxy, ProxyStartError> {
    if settings.listen.is_empty() {
        return Err(ProxyStartError::NoAddress);
    }
    let count = threads();
    let live = settings.tls.clone().map(|tls| {
        let (paths, http2) = (evenkeel_tls::front_files(&tls), settings.http2);
        let make = move |files: &[WatchedFile]| evenkeel_tls::front(files, &tls, http2);
        LiveValue::load("proxy", paths, make, engine.clock().now(), watch.registry())
    });
    let live = live.transpose()?;
    let shown = live.as_ref().map(LiveValue::running);
    let plain = settings.tls.as_ref().map_or(usize::MAX, |tls| tls.plain);
    let (addresses, mut listeners) = bind_all(&settings.listen, count, sockets)?;
    let secured = secured(settings)?;
    let order = ProxyInstructions {
        settings: Arc::new(settings.clone()),
        secured,
        phase: ProxyPhase::Serve,
    };
    let (orders, _) = watch::channel(order);
    let (alive, ended) = mpsc::channel(1);
    let house = Arc::new(ProxyShared::of(count));
    let running = RunningProxy {
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
        let seat = ProxyWorkerInit {
            listeners: listeners.map(|(index, listener)| (listener, shown(index))).collect(),
            lane: engine.lane(index),
            store: store.cloned(),
            clock: engine.clock(),
            house: Arc::clone(&running.house),
            watch: Arc::clone(watch),
            orders: running.orders.subscribe(),
        };
        let started = seat.start(index, alive.clone()).inspect_err(|_| running.stop_now());
        running.threads.lock().push(started.map_err(ProxyStartError::Thread)?);
    }
    Ok(running)
}

/// What a thread needs to start.
struct ProxyWorkerInit {
    listeners: Vec<(TcpListener, Option<LiveServerConfig>)>,
    lane: EngineLane,
    store: Option<Arc<RedisStore>>,
    clock: Clock,
    house: Arc<ProxyShared>,
    watch: Arc<Watch>,
    orders: watch::Receiver<ProxyInstructions>,
}

impl ProxyWorkerInit {
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
                    // Do not wait for a name that is still being resolved.
                    runtime.shutdown_background();
                    // Dropped only now: everything that ran on the runtime has ended.
                    drop(alive);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            }
        };
        let handle = thread::Builder::new().name(format!("proxy-{index}")).spawn(body)?;
        is_ready
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread ended immediately")))?;
        Ok(handle)
    }

    async fn run(mut self) {
        let ProxyInstructions { settings, secured, .. } = self.orders.borrow().clone();
        let site = (&*settings, &secured);
        let beats = self.watch.beats.clone();
        tokio::task::spawn_local(watchdog::beat("proxy", beats, self.clock));
        let lanes = (self.lane, self.store.as_ref().map(StoreRequests::new));
        let worker = ProxyWorker::new(site, lanes, self.clock, self.house, self.watch);
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

/// Follows the orders until the thread may end.
async fn obey(
    worker: &ProxyWorker,
    mut accepting: JoinSet<()>,
    orders: &mut watch::Receiver<ProxyInstructions>,
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
            ProxyPhase::Serve => worker.reload(&order.settings, &order.secured),
            ProxyPhase::Stop => return,
            ProxyPhase::Drain(at) => {
                until = Some(at);
                worker.drain();
            }
        }
    }
}

impl RunningProxy {
    /// Returns the addresses that the proxy listens on, in the order of the settings, with the
    /// ports that the system assigned.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the number of client connections that are open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.house.connections.load(Ordering::Relaxed)
    }

    /// Returns the number of client connections that were still open when their thread ended.
    #[must_use]
    pub fn cut(&self) -> usize {
        self.house.cut.load(Ordering::Relaxed)
    }

    /// Applies changed settings to the requests that follow. The listeners stay as they are, even
    /// if `listen` has changed.
    pub fn reload(&self, settings: &ProxySettings) {
        let settings = Arc::new(settings.clone());
        self.orders.send_modify(|order| {
            match secured(&settings) {
                Ok(secured) => order.secured = secured,
                Err(error) => tracing::error!(
                    %error, "proxy.backend_tls is refused; the previous trust settings stay in use"
                ),
            }
            order.settings = settings;
        });
    }

    /// Reloads certificates if their files have changed. Call this once a second.
    pub fn look(&self, now: Time) {
        self.live.lock().iter_mut().for_each(|live| live.look(now));
    }

    /// Accepts no more connections, gives running requests at most `timeout` to finish, then closes
    /// everything. Returns at once; [`RunningProxy::ended`] reports when it is done.
    pub fn drain(&self, timeout: Duration) {
        let until = Clock::deadline(timeout);
        self.orders.send_modify(|order| order.phase = ProxyPhase::Drain(until));
    }

    /// Closes everything at once, including running requests.
    pub fn stop_now(&self) {
        self.orders.send_modify(|order| order.phase = ProxyPhase::Stop);
    }

    /// Waits until all threads have ended, after [`RunningProxy::drain`] or
    /// [`RunningProxy::stop_now`].
    pub async fn ended(&self) {
        // Nothing is ever sent: `recv` returns when the last sender is dropped.
        let _ = self.alive.lock().await.recv().await;
    }
}

impl Drop for RunningProxy {
    fn drop(&mut self) {
        self.stop_now();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has reported that on standard error.
            let _ = thread.join();
        }
    }
}

/// The bound addresses, and for each thread its listeners, each with the index of its address in
/// `proxy.listen`.
type BoundListeners = (Vec<SocketAddr>, Vec<Vec<(usize, TcpListener)>>);

/// Binds `count` listeners, one per thread, for each address. Returns them with the bound
/// addresses.
fn bind_all(
    addresses: &[SocketAddr],
    count: usize,
    sockets: &ListenSockets,
) -> Result<BoundListeners, ProxyStartError> {
    let mut threads: Vec<Vec<(usize, TcpListener)>> = (0..count).map(|_| Vec::new()).collect();
    let mut bound = Vec::new();
    for (place, address) in addresses.iter().enumerate() {
        let failed = |error: io::Error| {
            let advice = advice(&error);
            ProxyStartError::Listen { address: *address, error, advice }
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
            "write the address exactly as it was inherited"
        }
        io::ErrorKind::AddrInUse => {
            "another program uses it: stop that program, or name another port in proxy.listen"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE: grant it, or name a higher port"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have this address: name one of its own, or 0.0.0.0"
        }
        _ => "name another address in proxy.listen",
    }
}

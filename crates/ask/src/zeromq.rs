//! The master door: gatekeepers report their requests over ZeroMQ, and get orders about which
//! clients to delay.
//!
//! There are two sockets, as in Smockron: on `accounting` gatekeepers publish and the master
//! subscribes, on `control` it is the other way round. This file opens and closes. `reports` is a
//! connection of the first kind, `orders` of the second. `hub` knows which gatekeeper gets which
//! orders, `link` is the code that both kinds share, `elsewhere` asks the store if there is one,
//! and `zmtp` is the protocol. What is decided: `engine::domains`. The other end of both sockets is
//! `gatekeeper`.
//!
//! One thread serves all connections and never waits for a gatekeeper: one that reads too slowly
//! misses messages, which are counted. This door cannot delay a request: the request has already
//! run, or been delayed, when the report arrives.

pub mod gatekeeper;
mod hub;
mod link;
mod orders;
mod reports;
mod store_client;
mod wall_clock;
mod zmtp;

use evenkeel_config::settings::MasterSettings;
use evenkeel_engine::domains::MasterDomains;
use evenkeel_runtime::clock::Clock;
use evenkeel_runtime::thread::OwnedThread;
use evenkeel_serve::handover::{HandoverSignal, ListenSockets};
use evenkeel_serve::watchdog;
use evenkeel_store::redis::RedisStore;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::master::MasterCounts;
use hub::OrderHub;
use ipnet::IpNet;
use link::ZmqConnectionError;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use store_client::MasterStoreClient;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;

/// Why the door could not be opened. If there is an error, no part of it is open.
#[derive(Debug, thiserror::Error)]
pub enum MasterStartError {
    /// The door cannot listen on an address.
    #[error("master: cannot listen on {address}: {why}; name another address in `master`")]
    Listen {
        /// The address from the settings.
        address: SocketAddr,
        /// The error that the system returned.
        why: io::Error,
    },
    /// The system refuses a thread or a runtime.
    #[error("master: cannot start its thread: {0}")]
    Thread(io::Error),
}

/// The current instruction to the thread.
#[derive(Clone, Copy)]
enum MasterPhase {
    Serve,
    /// Accept no more connections, and send the pending orders, until this time.
    Drain(Instant),
    Stop,
}

/// The open door.
pub struct RunningMaster {
    addresses: [SocketAddr; 2],
    /// The channel closes when the thread has ended.
    alive: tokio::sync::Mutex<mpsc::Receiver<()>>,
    thread: OwnedThread<watch::Sender<MasterPhase>>,
}

/// Opens the door. If there is a store, the reports of gatekeepers are counted in it too.
///
/// # Errors
/// [`MasterStartError`]; nothing is open then.
pub fn start(
    settings: &MasterSettings,
    (domains, store): (&Arc<MasterDomains>, Option<Arc<RedisStore>>),
    clock: Clock,
    watch: &Watch,
) -> Result<RunningMaster, MasterStartError> {
    start_on(settings, (domains, store), clock, watch, &ListenSockets::default())
}

/// Like [`start`], but takes over the sockets of `sockets` that match the settings; the others are
/// bound and recorded there.
///
/// # Errors
/// [`MasterStartError`]; nothing is open then.
pub fn start_on(
    settings: &MasterSettings,
    (domains, store): (&Arc<MasterDomains>, Option<Arc<RedisStore>>),
    clock: Clock,
    watch: &Watch,
    sockets: &ListenSockets,
) -> Result<RunningMaster, MasterStartError> {
    let listen = |address| {
        let listener = sockets.listen(address);
        listener.map_err(|why| MasterStartError::Listen { address, why })
    };
    let accounting = listen(settings.accounting)?;
    let control = listen(settings.control)?;
    let address = |listener: &TcpListener, asked| listener.local_addr().unwrap_or(asked);
    let addresses =
        [address(&accounting, settings.accounting), address(&control, settings.control)];
    let (phase, phases) = watch::channel(MasterPhase::Serve);
    let (ended, alive) = mpsc::channel(1);
    let counts = || Arc::new(MasterCounts::new(watch.registry(), addresses));
    let counts = Arc::clone(watch.master.get_or_init(counts));
    let (domains, settings) = (Arc::clone(domains), settings.clone());
    let (passed, beats) = (sockets.passed(), watch.beats.clone());
    let run = async move || {
        tokio::task::spawn_local(watchdog::beat("master", beats, clock));
        let (hub, store) = (OrderHub::new(), store.as_ref().map(MasterStoreClient::new));
        let desk = Rc::new(MasterShared { hub, domains, store, clock, counts });
        serve(desk, &settings, ([accounting, control], passed), phases).await;
    };
    let thread =
        OwnedThread::serve("master", phase, ended, run).map_err(MasterStartError::Thread)?;
    Ok(RunningMaster { addresses, alive: tokio::sync::Mutex::new(alive), thread })
}

impl RunningMaster {
    /// Returns the addresses of `accounting` and `control`.
    #[must_use]
    pub fn addresses(&self) -> [SocketAddr; 2] {
        self.addresses
    }

    /// Accepts no more connections, and sends pending orders for at most `timeout`.
    pub fn drain(&self, timeout: Duration) {
        self.thread.orders.send_replace(MasterPhase::Drain(Clock::deadline(timeout)));
    }

    /// Closes everything at once.
    pub fn stop_now(&self) {
        self.thread.orders.send_replace(MasterPhase::Stop);
    }

    /// Waits until the thread has ended, after [`RunningMaster::drain`] or
    /// [`RunningMaster::stop_now`].
    pub async fn ended(&self) {
        // Nothing is ever sent: `recv` returns when the sender is dropped.
        let _ = self.alive.lock().await.recv().await;
    }
}

/// The state that all connections share.
struct MasterShared {
    hub: OrderHub,
    domains: Arc<MasterDomains>,
    /// The store that counts for all masters, if there is one.
    store: Option<MasterStoreClient>,
    clock: Clock,
    counts: Arc<MasterCounts>,
}

/// Serves both sockets until the thread is to end.
async fn serve(
    desk: Rc<MasterShared>,
    settings: &MasterSettings,
    ([accounting, control], passed): ([TcpListener; 2], HandoverSignal),
    mut phases: watch::Receiver<MasterPhase>,
) {
    let gate = |listener| PeerFilter {
        listener,
        allow: settings.allow.clone(),
        slots: Arc::new(Semaphore::new(settings.connections)),
        passed: passed.clone(),
    };
    let heard = accept(Rc::clone(&desk), gate(accounting), reports::run);
    let heard = tokio::task::spawn_local(heard);
    let told = tokio::task::spawn_local(accept(Rc::clone(&desk), gate(control), orders::run));
    loop {
        let until = match *phases.borrow_and_update() {
            MasterPhase::Serve => None,
            MasterPhase::Drain(until) => Some(until),
            MasterPhase::Stop => return,
        };
        if until.is_some() {
            heard.abort();
            told.abort();
        }
        tokio::select! {
            changed = phases.changed() => if changed.is_err() { return },
            () = sent(&desk.hub, until) => return,
        }
    }
}

/// Waits until all pending orders are sent, at most until `until`. Without `until`, nothing drains
/// and this waits forever.
async fn sent(hub: &OrderHub, until: Option<Instant>) {
    match until {
        Some(until) => drop(tokio::time::timeout_at(until, hub.emptied()).await),
        None => std::future::pending().await,
    }
}

/// Which peers may connect to a listener, and how many.
struct PeerFilter {
    listener: TcpListener,
    allow: Vec<IpNet>,
    slots: Arc<Semaphore>,
    passed: HandoverSignal,
}

impl PeerFilter {
    fn allows(&self, peer: IpAddr) -> bool {
        self.allow.is_empty() || self.allow.iter().any(|net| net.contains(&peer.to_canonical()))
    }
}

async fn accept<F: Future<Output = Result<Infallible, ZmqConnectionError>> + 'static>(
    desk: Rc<MasterShared>,
    mut gate: PeerFilter,
    run: fn(TcpStream, IpAddr, Rc<MasterShared>) -> F,
) {
    let listener = gate.listener.try_clone().and_then(tokio::net::TcpListener::from_std);
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(target: "evenkeel::master", %error, "cannot listen"),
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = gate.passed.wait() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(target: "evenkeel::master", %error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if !gate.allows(peer.ip()) {
            desk.counts.strangers.increment(1);
            continue;
        }
        let Ok(slot) = Arc::clone(&gate.slots).try_acquire_owned() else {
            desk.counts.shed.increment(1);
            continue;
        };
        desk.counts.accepted.increment(1);
        let desk = Rc::clone(&desk);
        tokio::task::spawn_local(async move {
            let _open = desk.counts.connections.hold();
            match run(stream, peer.ip(), Rc::clone(&desk)).await {
                // A gatekeeper that disconnects is not an error.
                Err(ZmqConnectionError::Io(_)) | Ok(_) => {}
                Err(ended) => {
                    desk.counts.record_disconnect_error(
                        peer.ip(),
                        ended.kind(),
                        ended,
                        desk.clock.now(),
                    );
                }
            }
            drop(slot);
        });
    }
}

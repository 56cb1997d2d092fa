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

use evenkeel_config::settings::{MasterSettings, Settings};
use evenkeel_engine::domains::MasterDomains;
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::accept;
use evenkeel_serve::handover::{HandoverSignal, ListenSockets};
use evenkeel_serve::service::Service;
use evenkeel_serve::start::ServerStartError;
use evenkeel_serve::threads::{ServerOrders, ServerThreads, ServerWorker};
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
use store_client::MasterStoreClient;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The open door.
pub struct RunningMaster {
    /// The addresses of `accounting` and `control`.
    pub addresses: [SocketAddr; 2],
    threads: ServerThreads,
}

/// Opens the door. If there is a store, the reports of gatekeepers are counted in it too. Takes
/// over the sockets of `sockets` that match the settings; the others are bound and recorded there.
///
/// # Errors
/// [`ServerStartError`]; then no listener is open.
pub fn start(
    settings: &MasterSettings,
    (domains, store): (&Arc<MasterDomains>, Option<Arc<RedisStore>>),
    clock: Clock,
    watch: &Watch,
    sockets: &ListenSockets,
) -> Result<RunningMaster, ServerStartError> {
    let listen = |address| {
        let listener = sockets.listen(address);
        listener.map_err(ServerStartError::listen("master", &address))
    };
    let accounting = listen(settings.accounting)?;
    let control = listen(settings.control)?;
    let address = |listener: &TcpListener, asked| listener.local_addr().unwrap_or(asked);
    let addresses =
        [address(&accounting, settings.accounting), address(&control, settings.control)];
    let counts = || Arc::new(MasterCounts::new(watch.registry(), addresses));
    let counts = Arc::clone(watch.master.get_or_init(counts));
    let (domains, passed) = (Arc::clone(domains), sockets.passed());
    let (allow, connections) = (settings.allow.clone(), settings.connections);
    let serve = async move |orders: ServerOrders| {
        let (hub, store) = (OrderHub::new(), store.as_ref().map(MasterStoreClient::new));
        let desk = Rc::new(MasterShared { hub, domains, store, clock, counts });
        let gate = || {
            let (allow, slots) = (allow.clone(), Arc::new(Semaphore::new(connections)));
            PeerFilter { allow, slots, ends: (orders.clone(), passed.clone()) }
        };
        let mut accepting = JoinSet::new();
        accepting.spawn_local(accept(Rc::clone(&desk), accounting, gate(), reports::run));
        accepting.spawn_local(accept(Rc::clone(&desk), control, gate(), orders::run));
        orders.clone().follow(&*desk, accepting).await;
        0
    };
    let threads = ServerThreads::single("master", (&watch.beats, clock), serve)?;
    Ok(RunningMaster { addresses, threads })
}

impl Service for RunningMaster {
    fn threads(&self) -> &ServerThreads {
        &self.threads
    }

    /// Accepts no more connections, and sends the pending orders.
    fn drain(&self, settings: &Settings) {
        let drain = settings.master.as_ref().map(|master| master.drain);
        self.threads.drain(drain.unwrap_or_default());
    }
}

struct MasterShared {
    hub: OrderHub,
    domains: Arc<MasterDomains>,
    /// The store that counts for all masters, if there is one.
    store: Option<MasterStoreClient>,
    clock: Clock,
    counts: Arc<MasterCounts>,
}

impl ServerWorker for MasterShared {
    /// Waits until all pending orders are sent.
    fn empty(&self) -> impl Future<Output = ()> {
        self.hub.emptied()
    }
}

/// Which peers may connect to a listener, how many, and until when.
struct PeerFilter {
    allow: Vec<IpNet>,
    slots: Arc<Semaphore>,
    ends: (ServerOrders, HandoverSignal),
}

impl PeerFilter {
    fn allows(&self, peer: IpAddr) -> bool {
        self.allow.is_empty() || self.allow.iter().any(|net| net.contains(&peer.to_canonical()))
    }
}

async fn accept<F: Future<Output = Result<Infallible, ZmqConnectionError>> + 'static>(
    desk: Rc<MasterShared>,
    listener: TcpListener,
    gate: PeerFilter,
    run: fn(TcpStream, IpAddr, Rc<MasterShared>) -> F,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(target: "evenkeel::master", %error, "cannot listen"),
    };
    let log = |error: &io::Error| {
        tracing::warn!(target: "evenkeel::master", %error, "cannot accept a connection");
    };
    let welcome = async |(stream, peer): (TcpStream, SocketAddr)| {
        if !gate.allows(peer.ip()) {
            return desk.counts.strangers.increment(1);
        }
        let Ok(slot) = Arc::clone(&gate.slots).try_acquire_owned() else {
            return desk.counts.connections.shed.increment(1);
        };
        let open = desk.counts.connections.accept();
        let desk = Rc::clone(&desk);
        tokio::task::spawn_local(async move {
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
            drop((slot, open));
        });
    };
    accept::accept(listener, gate.ends.clone(), log, welcome).await;
}

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
//! state of one; `outbox`, `room`, `account`, `headers`, `timer`, `failure`.

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
mod outbox;
mod redirect;
mod room;
mod signed;
mod sweep;
mod timer;
mod visitor;
mod wire;
mod worker;
mod write_slices;

use arc_swap::ArcSwap;
use backends::UpstreamTls;
use evenkeel_acme::{AcmeFolder, AcmeThread};
use evenkeel_config::settings::{BackendAddress, ProxySettings, Settings};
use evenkeel_config::source::files::{WatchedFile, WatchedFiles};
use evenkeel_core::units::Time;
use evenkeel_engine::Engine;
use evenkeel_identity::waiting_room::{
    InstanceSecret, LiveWaitingRoom, SharedWaitingRoom, WaitingRoomError,
};
use evenkeel_serve::handover::ListenSockets;
use evenkeel_serve::service::Service;
use evenkeel_serve::start::ServerStartError;
pub use evenkeel_serve::threads::core_count as threads;
use evenkeel_serve::threads::{ServerOrders, ServerThreads};
use evenkeel_store::redis::{RedisStore, StoreLane};
use evenkeel_telemetry::Watch;
use evenkeel_tls::challenges::OpenChallenges;
use evenkeel_tls::reload::LiveValue;
use parking_lot::Mutex;
use room::ProxyShared;
use rustls::ServerConfig;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::task::JoinSet;
use worker::{ProxyInstructions, ProxyWorker};

/// A running proxy.
pub struct RunningProxy {
    addresses: Vec<SocketAddr>,
    threads: ServerThreads,
    instructions: Arc<ArcSwap<ProxyInstructions>>,
    house: Arc<ProxyShared>,
    /// The certificates, reloaded when their files change.
    live: Mutex<Option<LiveValue<Arc<ServerConfig>>>>,
    /// Orders certificates until the proxy drains.
    acme: Mutex<Option<AcmeThread>>,
    /// The waiting room. Its files are reloaded when they change.
    waiting_room: Mutex<Option<LiveWaitingRoom>>,
    /// The secret for the key of the waiting room if there is no file with one.
    secret: InstanceSecret,
}

/// Returns the TLS configuration for backends, or `None` if no backend uses TLS.
fn secured(settings: &ProxySettings) -> Result<UpstreamTls, evenkeel_tls::pem::TlsFileError> {
    if !settings.backends.iter().any(BackendAddress::is_secured) {
        return Ok(None);
    }
    let config = evenkeel_tls::client::backend(&settings.backend_tls)?;
    Ok(Some((config, settings.backend_tls.client.name.as_deref().map(Arc::from))))
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
) -> Result<RunningProxy, ServerStartError> {
    let mut secret = InstanceSecret::default();
    aws_lc_rs::rand::fill(&mut secret).map_err(|_| {
        ServerStartError::settings("proxy")("the system provides no random numbers")
    })?;
    start_on(settings, (engine, None, secret), watch, &ListenSockets::default())
}

/// Like [`start`], but takes over the sockets of `sockets` that match the settings; the others are
/// bound and recorded there. If there is a `store`, limits are counted in it. `secret` makes the
/// key of the waiting room if no file does; an outsider must not know it.
///
/// # Errors
/// An address cannot be listened on, or the system gives no thread. Nothing runs then.
pub fn start_on(
    settings: &ProxySettings,
    (engine, store, secret): (&Arc<Engine>, Option<&Arc<RedisStore>>, InstanceSecret),
    watch: &Arc<Watch>,
    sockets: &ListenSockets,
) -> Result<RunningProxy, ServerStartError> {
    let refused = ServerStartError::settings("proxy");
    if settings.listen.is_empty() {
        let why = "`proxy.listen` names no address; write one, such as 0.0.0.0:8888";
        return Err(ServerStartError::settings("proxy")(why));
    }
    let (count, clock) = (threads(), engine.clock());
    let challenges = Arc::default();
    let (live, folder) = certificates(settings, &challenges, clock.now(), watch)?;
    let shown = live.as_ref().map(LiveValue::running);
    let plain = settings.tls.as_ref().map_or(usize::MAX, |tls| tls.plain);
    let (addresses, listeners) = bind_all(&settings.listen, count, sockets)?;
    let secured = secured(settings).map_err(&refused)?;
    let waiting_room =
        load_waiting_room(settings, secret).map_err(ServerStartError::settings("proxy"))?;
    let shared_room = waiting_room.as_ref().map(LiveWaitingRoom::running);
    let instructions =
        ProxyInstructions { settings: settings.clone(), secured, waiting_room: shared_room };
    let instructions = Arc::new(ArcSwap::from_pointee(instructions));
    let house = Arc::new(ProxyShared::of(count, Arc::clone(&challenges)));
    let each = listeners.into_iter().enumerate().map(|(index, listeners)| {
        let (lane, store, shown) = (engine.lane(index), store.cloned(), shown.clone());
        let (shared, instructions) = (Arc::clone(&house), Arc::clone(&instructions));
        let watch = Arc::clone(watch);
        async move |orders: ServerOrders| {
            let lanes = (lane, store.as_ref().map(StoreLane::open));
            let worker = ProxyWorker::new(instructions, lanes, clock, shared, watch);
            let mut accepting = JoinSet::new();
            for (place, listener) in listeners {
                let shown = shown.clone().filter(|_| place >= plain);
                match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => {
                        let accept = Rc::clone(&worker).accept(listener, shown, orders.clone());
                        accepting.spawn_local(accept);
                    }
                    Err(error) => tracing::error!(%error, "a listener was lost"),
                }
            }
            tokio::task::spawn_local(Rc::clone(&worker).sweep());
            tokio::task::spawn_local(Rc::clone(&worker.thread.outbox).run());
            orders.follow(&*worker, accepting).await;
            worker.stop()
        }
    });
    let threads = ServerThreads::each("proxy", (&watch.beats, clock), each)?;
    // Only now, because the authority asks the listeners.
    let order = |folder| evenkeel_acme::start(folder, challenges, clock, watch.registry());
    let acme = folder.map(order).transpose().map_err(ServerStartError::settings("proxy"))?;
    Ok(RunningProxy {
        addresses,
        threads,
        instructions,
        house,
        live: Mutex::new(live),
        acme: Mutex::new(acme),
        waiting_room: Mutex::new(waiting_room),
        secret,
    })
}

/// The certificates, and the folder of those that an authority issues.
type LoadedCertificates = (Option<LiveValue<Arc<ServerConfig>>>, Option<AcmeFolder>);

/// Loads the certificates, if the proxy has TLS; one that is yet to be issued is made up.
fn certificates(
    settings: &ProxySettings,
    challenges: &Arc<OpenChallenges>,
    now: Time,
    watch: &Watch,
) -> Result<LoadedCertificates, ServerStartError> {
    let Some(tls) = settings.tls.clone() else { return Ok((None, None)) };
    let folder = tls.acme.as_ref().map(|acme| evenkeel_acme::prepare(acme, now));
    let folder = folder.transpose().map_err(ServerStartError::settings("proxy"))?;
    let unsaved = folder.as_ref().map(AcmeFolder::unsaved).unwrap_or_default();
    let files = WatchedFiles::new(evenkeel_tls::front_files(&tls)).with_unsaved(unsaved);
    let (http2, challenges) = (settings.http2, Arc::clone(challenges));
    let make = move |files: &[WatchedFile]| evenkeel_tls::front(files, &tls, http2, &challenges);
    let live = LiveValue::load("proxy", files, make, now, watch.registry());
    Ok((Some(live.map_err(ServerStartError::settings("proxy"))?), folder))
}

impl RunningProxy {
    /// Returns the addresses that the proxy listens on, in the order of the settings, with the
    /// ports that the system assigned.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the number of client connections that are open now.
    pub fn connections(&self) -> usize {
        self.house.connections.load(Ordering::Relaxed)
    }

    /// Applies changed settings to the requests that follow. The listeners stay as they are, even
    /// if `listen` has changed.
    pub fn reload(&self, settings: &ProxySettings) {
        let secured = secured(settings).unwrap_or_else(|error| {
            tracing::error!(
                %error, "proxy.backend_tls is refused; the previous trust settings stay in use"
            );
            self.instructions.load().secured.clone()
        });
        let waiting_room = self.reload_waiting_room(settings);
        let instructions = ProxyInstructions { settings: settings.clone(), secured, waiting_room };
        self.instructions.store(Arc::new(instructions));
        self.threads.reload();
    }
}

impl RunningProxy {
    /// Applies changed settings of the waiting room.
    fn reload_waiting_room(&self, settings: &ProxySettings) -> SharedWaitingRoom {
        let running = self.instructions.load();
        if settings.queue.waiting_room == running.settings.queue.waiting_room {
            return running.waiting_room.clone();
        }
        match load_waiting_room(settings, self.secret) {
            Ok(room) => {
                let shared = room.as_ref().map(LiveWaitingRoom::running);
                *self.waiting_room.lock() = room;
                shared
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    "proxy.queue.waiting_room is refused; the previous one stays in use"
                );
                running.waiting_room.clone()
            }
        }
    }
}

/// Reads the files of the waiting room, if there is one.
fn load_waiting_room(
    settings: &ProxySettings,
    secret: InstanceSecret,
) -> Result<Option<LiveWaitingRoom>, WaitingRoomError> {
    let room = settings.queue.waiting_room.as_ref();
    room.map(|room| LiveWaitingRoom::load(room, secret)).transpose()
}

impl Service for RunningProxy {
    fn threads(&self) -> &ServerThreads {
        &self.threads
    }

    fn reload(&self, settings: &Settings) {
        settings.proxy.iter().for_each(|proxy| RunningProxy::reload(self, proxy));
    }

    /// Reloads certificates and the files of the waiting room if they have changed.
    fn look(&self, now: Time) {
        self.waiting_room.lock().iter_mut().for_each(LiveWaitingRoom::look);
        self.live.lock().iter_mut().for_each(|live| live.look(now));
    }

    fn connections(&self) -> usize {
        RunningProxy::connections(self)
    }

    fn drain(&self, settings: &Settings) {
        drop(self.acme.lock().take());
        let drain = settings.proxy.as_ref().map(|proxy| proxy.timeouts.drain);
        self.threads.drain(drain.unwrap_or_default());
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
) -> Result<BoundListeners, ServerStartError> {
    let mut threads: Vec<Vec<(usize, TcpListener)>> = (0..count).map(|_| Vec::new()).collect();
    let mut bound = Vec::new();
    for (place, address) in addresses.iter().enumerate() {
        let failed = ServerStartError::listen("proxy", address);
        let (at, each) = sockets.listen_each(*address, count).map_err(failed)?;
        bound.push(at);
        for (thread, listeners) in threads.iter_mut().zip(each) {
            thread.extend(listeners.into_iter().map(|listener| (place, listener)));
        }
    }
    Ok((bound, threads))
}

//! The admin door: health, metrics, the busiest clients, the running configuration, and a page that
//! shows all of it live.
//!
//! It has its own thread and runtime, so it answers while the proxy is busy and costs the proxy
//! nothing. Which requests are allowed: `guard`. The answers: `handlers`. The page: `page`, and its
//! live data: `live`. What an operator may change: `override_orders`. Everything is bounded:
//! connections, watchers, heads, bodies, time.

mod guard;
mod handlers;
mod live;
mod observe;
mod override_orders;
mod page;
mod room;
mod setup;
mod sources;

pub use observe::observed;
pub use sources::{AdminSources, DoorEngine, SetupFacts};

use evenkeel_config::settings;
use evenkeel_serve::accept;
use evenkeel_serve::handover::{HandoverSignal, ListenSockets};
use evenkeel_serve::start::ServerStartError;
use evenkeel_serve::threads::{ServerOrders, ServerThreads};
use evenkeel_telemetry::counts::AdminCounts;
use guard::AdminGuard;
use handlers::{AdminShared, WatcherSlot};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use live::LiveFeed;
use parking_lot::Mutex;
use room::{ConnectionRoom, RoomGuard};
use sources::ReadinessStage;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// The maximum number of open connections. For one more, the connection with the longest time since
/// its last request is closed.
const CONNECTIONS_MAX: usize = 64;
/// The maximum size of a request's head, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The time limit for a request's head to arrive, also on an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The age after which a connection accepts no more requests.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(30);
/// The time limit for reading the rest of the last answer, after [`CONNECTION_AGE_MAX`].
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The open admin door; it closes when this is dropped.
pub struct RunningAdmin {
    /// Empty if the default address was taken.
    pub addresses: Vec<SocketAddr>,
    readiness: Arc<Mutex<ReadinessStage>>,
    _thread: ServerThreads,
}

impl RunningAdmin {
    /// All listeners are open: `/readyz` reports so from now on.
    pub fn ready(&self) {
        *self.readiness.lock() = ReadinessStage::Ready;
    }

    /// No more requests are wanted: `/readyz` reports so from now on.
    pub fn draining(&self) {
        *self.readiness.lock() = ReadinessStage::Draining;
    }
}

/// Opens the admin door, on `sockets` if its addresses are among them. If a default address is
/// taken, a warning is logged and the door stays closed.
///
/// # Errors
/// [`ServerStartError`]; nothing is open then.
pub fn start(
    settings: &settings::AdminSettings,
    sources: AdminSources,
    sockets: &ListenSockets,
) -> Result<RunningAdmin, ServerStartError> {
    let guard = AdminGuard::new(settings).map_err(ServerStartError::settings("admin"))?;
    let listeners = bind(settings, sockets)?;
    let addresses: Vec<SocketAddr> =
        listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
    let readiness = Arc::<Mutex<ReadinessStage>>::default();
    let counts = AdminCounts::new(sources.watch.registry());
    let desk = AdminShared {
        guard,
        counts,
        sources,
        readiness: Arc::clone(&readiness),
        live: LiveFeed::default(),
    };
    let (beats, clock) = (desk.sources.watch.beats.clone(), desk.sources.clock);
    let run = move |orders| serve(listeners, Arc::new(desk), orders);
    let thread = ServerThreads::single("admin", (&beats, clock), run)?;
    if !addresses.is_empty() {
        tracing::info!(target: "evenkeel::admin", listen = ?addresses, "admin open");
    }
    Ok(RunningAdmin { addresses, readiness, _thread: thread })
}

fn bind(
    settings: &settings::AdminSettings,
    sockets: &ListenSockets,
) -> Result<Vec<TcpListener>, ServerStartError> {
    let mut listeners = Vec::new();
    for address in &settings.listen {
        let listener = sockets.listen(*address);
        match listener {
            Ok(listener) => listeners.push(listener),
            Err(error) if !settings.asked_for && error.kind() == io::ErrorKind::AddrInUse => {
                tracing::warn!(
                    target: "evenkeel::admin", %address,
                    "the default admin address is in use: metrics, health checks and doctor are \
                     unavailable; set another address with `admin: {{listen: ...}}`, or write \
                     `admin: off`"
                );
            }
            Err(error) => return Err(ServerStartError::listen("admin", address)(error)),
        }
    }
    Ok(listeners)
}

async fn serve(
    listeners: Vec<TcpListener>,
    desk: Arc<AdminShared>,
    mut orders: ServerOrders,
) -> usize {
    let room = ConnectionRoom::new(CONNECTIONS_MAX);
    for listener in listeners {
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => {
                let (desk, room) = (Arc::clone(&desk), Arc::clone(&room));
                tokio::task::spawn_local(accept(listener, desk, room, orders.clone()));
            }
            Err(error) => tracing::error!(target: "evenkeel::admin", %error, "cannot listen"),
        }
    }
    tokio::spawn(live::run(desk));
    orders.stopped().await;
    0
}

async fn accept(
    listener: tokio::net::TcpListener,
    desk: Arc<AdminShared>,
    room: Arc<ConnectionRoom>,
    orders: ServerOrders,
) {
    let log = |error: &io::Error| {
        tracing::warn!(target: "evenkeel::admin", %error, "cannot accept a connection");
    };
    let welcome = async |(stream, peer)| match room.take() {
        Some((seat, shed)) => {
            desk.counts.connections.shed.increment(u64::from(shed));
            tokio::spawn(serve_on(stream, peer, Arc::clone(&desk), seat));
            // A request that has already arrived is answered before its connection could be closed
            // for another.
            tokio::task::yield_now().await;
        }
        None => desk.counts.connections.shed.increment(1),
    };
    accept::accept(listener, (orders, HandoverSignal::default()), log, welcome).await;
}

/// Serves a connection until it ends or another one needs its place.
async fn serve_on(stream: TcpStream, peer: SocketAddr, desk: Arc<AdminShared>, seat: RoomGuard) {
    tokio::select! {
        () = connection(stream, peer, desk, &seat) => {}
        () = seat.wanted() => {}
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, desk: Arc<AdminShared>, seat: &RoomGuard) {
    let _open = desk.counts.connections.accept();
    let watching = WatcherSlot::default();
    let service = service_fn(async |request: hyper::Request<hyper::body::Incoming>| {
        seat.note_request();
        let (head, body) = request.into_parts();
        let answer = desk.answer(&head, body, peer.ip(), &watching).await;
        if watching.lock().is_some() {
            seat.keep_place();
        }
        Ok::<_, Infallible>(answer)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // An error on a connection concerns only its peer and ends with the connection.
    if let Ok(_ended) = tokio::time::timeout(CONNECTION_AGE_MAX, connection.as_mut()).await {
        return;
    }
    let watcher = watching.lock().take();
    if let Some(watcher) = watcher {
        // A watcher may stay as long as it reads.
        tokio::select! {
            _ended = connection.as_mut() => {}
            _dropped = watcher => {}
        }
        return;
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(LAST_ANSWER_TIMEOUT, connection).await;
}

#[cfg(test)]
mod tests;

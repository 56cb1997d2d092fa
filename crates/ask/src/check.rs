//! The check door: the access phase and the log phase for servers that have their own front.
//!
//! A front asks `GET /check` before it lets a request run, and reports its cost afterwards with
//! `POST /report` or with its access log over syslog. The engine decides, by the limits of `proxy`.
//! This file opens and closes. `handlers` answers one query, `ledger` keeps the passes that wait
//! for their report, `report` parses logs. The door has its own thread,
//! so it answers while the proxy is busy. Everything is bounded: connections, heads, waiting
//! queries, open passes.

mod handlers;
mod ledger;
mod report;

use evenkeel_config::settings::{CheckSettings, ProxySettings, Settings};
use evenkeel_engine::Engine;
use evenkeel_serve::accept;
use evenkeel_serve::handover::{HandoverSignal, ListenSockets};
use evenkeel_serve::service::Service;
use evenkeel_serve::start::ServerStartError;
use evenkeel_serve::threads::{ServerOrders, ServerThreads, ServerWorker};
use evenkeel_store::redis::{RedisStore, StoreLane};
use evenkeel_telemetry::Watch;
use handlers::CheckShared;
use http::HeaderValue;
use http::header::CONNECTION;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The number of connections allowed in addition to those with a waiting query. Further ones are
/// closed at once and counted.
const CONNECTIONS_EXTRA_MAX: usize = 1024;
/// The maximum size of a request's head in bytes: that of a client's request to the front, and a
/// little more.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The time limit for a head to arrive, also on an idle connection. It is longer than fronts keep
/// their connections (60 s), so that none is closed just when it is used again.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// The maximum length of one line of an access log in bytes: more than a datagram can have. A
/// client must not be able to hide the cost of its request by making the line long.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// The size of the receive buffer for lines that is requested from the system, in bytes.
const SYSLOG_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// Returns the maximum number of open connections of the door.
pub fn connections_max(settings: &CheckSettings) -> usize {
    settings.waiting_max + CONNECTIONS_EXTRA_MAX
}

/// The open door.
pub struct RunningCheck {
    /// The addresses that the door answers on.
    pub addresses: Vec<SocketAddr>,
    /// The addresses that the door reads access logs from.
    pub syslog: Vec<SocketAddr>,
    threads: ServerThreads,
    desk: Arc<CheckShared>,
}

/// Opens the door. `lane` is the index of the engine lane that it uses. If there is a store, limits
/// are counted in it. Takes over the sockets of `handed` that match the settings; the others are
/// bound and recorded there.
///
/// # Errors
/// [`ServerStartError`]; then no listener is open.
pub fn start(
    settings: &CheckSettings,
    proxy: &ProxySettings,
    (engine, lane, store): (&Arc<Engine>, usize, Option<Arc<RedisStore>>),
    watch: &Arc<Watch>,
    handed: &ListenSockets,
) -> Result<RunningCheck, ServerStartError> {
    let listen = |address| handed.listen(address);
    let listeners = all(&settings.listen, listen)?;
    let hear = |address| lines(address, handed);
    let sockets = all(settings.syslog.iter().map(|datagrams| &datagrams.0), hear)?;
    let addresses = listeners.iter().filter_map(|l| l.local_addr().ok()).collect();
    let syslog = sockets.iter().filter_map(|s| s.local_addr().ok()).collect();
    let desk = Arc::new(CheckShared::new(
        settings,
        proxy,
        engine.lane_without_slots(lane),
        engine.clock(),
        watch,
    ));
    let (room, passed, asked) = (connections_max(settings), handed.passed(), Arc::clone(&desk));
    let serve = async move |orders: ServerOrders| {
        let (store, slots) = (store.as_ref().map(StoreLane::open), Arc::new(Semaphore::new(room)));
        let server = CheckServer { desk: asked, store, slots, room, orders, passed };
        Rc::new(server).serve(listeners, sockets).await
    };
    let threads = ServerThreads::single("check", (&watch.beats, engine.clock()), serve)?;
    Ok(RunningCheck { addresses, syslog, threads, desk })
}

impl Service for RunningCheck {
    fn threads(&self) -> &ServerThreads {
        &self.threads
    }

    /// Applies changed settings for trusted proxies and client addresses.
    fn reload(&self, settings: &Settings) {
        settings.proxy.iter().for_each(|proxy| self.desk.reload(proxy));
    }

    /// Returns the number of queries that wait for their answer now.
    fn connections(&self) -> usize {
        self.desk.waiting()
    }

    fn drain(&self, settings: &Settings) {
        let drain = settings.proxy.as_ref().map(|proxy| proxy.timeouts.drain);
        self.threads.drain(drain.unwrap_or_default());
    }
}

/// Opens every address, or none.
fn all<'a, T>(
    addresses: impl IntoIterator<Item = &'a SocketAddr>,
    open: impl Fn(SocketAddr) -> io::Result<T>,
) -> Result<Vec<T>, ServerStartError> {
    let one =
        |address: &SocketAddr| open(*address).map_err(ServerStartError::listen("check", address));
    addresses.into_iter().map(one).collect()
}

fn lines(address: SocketAddr, handed: &ListenSockets) -> io::Result<UdpSocket> {
    let socket = handed.take_datagrams(address)?.map_or_else(|| bind_lines(address), Ok)?;
    handed.record_open(&socket)?;
    Ok(socket)
}

fn bind_lines(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    // If the system allows only a smaller buffer, more lines are lost under heavy load.
    let _ = socket.set_recv_buffer_size(SYSLOG_BUFFER_BYTES);
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// The state that the tasks of the door share.
struct CheckServer {
    desk: Arc<CheckShared>,
    store: Option<Rc<StoreLane>>,
    slots: Arc<Semaphore>,
    room: usize,
    orders: ServerOrders,
    passed: HandoverSignal,
}

impl CheckServer {
    /// Serves until the thread is to end. Returns the number of connections that are still open.
    async fn serve(self: Rc<Self>, listeners: Vec<TcpListener>, sockets: Vec<UdpSocket>) -> usize {
        let mut accepting = JoinSet::new();
        for listener in listeners {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => drop(accepting.spawn_local(Rc::clone(&self).accept(listener))),
                Err(error) => tracing::error!(target: "evenkeel::check", %error, "cannot listen"),
            }
        }
        for socket in sockets {
            match tokio::net::UdpSocket::from_std(socket) {
                Ok(socket) => drop(tokio::task::spawn_local(read(socket, Arc::clone(&self.desk)))),
                Err(error) => tracing::error!(target: "evenkeel::check", %error, "cannot listen"),
            }
        }
        tokio::task::spawn_local(sweep(Arc::clone(&self.desk)));
        self.orders.clone().follow(&*self, accepting).await;
        self.room - self.slots.available_permits()
    }

    async fn accept(self: Rc<Self>, listener: tokio::net::TcpListener) {
        let log = |error: &io::Error| {
            tracing::warn!(target: "evenkeel::check", %error, "cannot accept a connection");
        };
        let ends = (self.orders.clone(), self.passed.clone());
        accept::accept(listener, ends, log, async |accepted| self.welcome(accepted)).await;
    }

    fn welcome(&self, accepted: (TcpStream, SocketAddr)) {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            return self.desk.counts.connections.shed.increment(1);
        };
        let asked = (Arc::clone(&self.desk), self.store.clone());
        let (orders, passed) = (self.orders.clone(), self.passed.clone());
        tokio::task::spawn_local(async move {
            connection(accepted, asked, orders, passed).await;
            drop(slot);
        });
    }
}

impl ServerWorker for CheckServer {
    async fn empty(&self) {
        let room = u32::try_from(self.room).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let _ = self.slots.acquire_many(room).await;
    }
}

async fn connection(
    (stream, peer): (TcpStream, SocketAddr),
    (desk, store): (Arc<CheckShared>, Option<Rc<StoreLane>>),
    mut orders: ServerOrders,
    passed: HandoverSignal,
) {
    let _open = desk.counts.connections.accept();
    // A query and its answer are one packet each.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        let (desk, store, passed) = (Arc::clone(&desk), store.clone(), passed.clone());
        let peer = peer.ip().to_canonical();
        async move {
            let head = request.into_parts().0;
            let mut answer = desk.answer(store.as_deref(), &head, peer).await;
            if let (true, Ok(answer)) = (passed.has_passed(), &mut answer) {
                // The next query must go to the successor process.
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            answer
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = orders.leaving() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    // A connection that ends between two queries is not an error.
    if ended.is_err_and(|error| error.is_parse()) {
        desk.counts.bad_requests.increment(1);
    }
}

/// Reads an access log, one line in each datagram.
async fn read(socket: tokio::net::UdpSocket, desk: Arc<CheckShared>) {
    let mut line = vec![0; LINE_BYTES_MAX];
    loop {
        match socket.recv(&mut line).await {
            Ok(length) => desk.line(&line[..length]),
            Err(error) => {
                tracing::warn!(target: "evenkeel::check", %error, "cannot read an access log");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Settles passes without a report in time.
async fn sweep(desk: Arc<CheckShared>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(250));
    loop {
        ticks.tick().await;
        desk.sweep();
    }
}

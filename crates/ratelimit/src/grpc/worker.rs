//! One gRPC thread of the service, with its listeners and its connections.
//!
//! As in the proxy, each thread has a runtime and listening sockets of its own, and a call never
//! leaves its thread. The number of connections is bounded over all threads; a connection beyond
//! the bound is closed at once. How a call is answered: `grpc`. How threads are started and
//! stopped: `serve`.

use super::stream::ReadCountingStream;
use super::{GrpcServices, WorkerBuffers};
use crate::server_tls::{self, LiveTls};
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::accept;
use evenkeel_serve::handover::HandoverSignal;
use evenkeel_serve::threads::ServerOrders;
use evenkeel_store::redis::{RedisStore, StoreLane};
use evenkeel_telemetry::counts::ConnectionCounts;
use evenkeel_telemetry::registry::Counter;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Notify;
use tokio::time::timeout_at;

/// The maximum number of concurrent calls on a connection.
const STREAMS_MAX: u32 = 1_024;
/// The maximum size of a call's headers, in bytes.
const HEADERS_BYTES_MAX: u32 = 16 * 1024;
/// The length of the HTTP/2 connection preface, in bytes.
const PREFACE_BYTES: usize = 24;
/// The time without incoming data after which a ping is sent.
const PING_AFTER: Duration = Duration::from_secs(60);
/// The time that the peer has to answer a ping before its connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

pub struct GrpcShared {
    /// The gRPC services that connections may call.
    pub calls: GrpcServices,
    /// The store that counts for all instances, if there is one.
    pub store: Option<Arc<RedisStore>>,
    pub connections: ConnectionCounts,
    /// Connections on which TLS or HTTP/2 failed to start within the time limit.
    pub bad: Counter,
    /// The TLS configuration; `None` if the listeners serve plain HTTP/2.
    pub tls: Option<LiveTls>,
    /// The time limit for the TLS handshake, and again for the HTTP/2 preface.
    pub handshake: Duration,
    /// The maximum number of connections over all threads.
    pub connections_max: usize,
    /// The age at which a connection is asked to end.
    pub age: Duration,
    /// The time that a connection has to end after it was asked to.
    pub grace: Duration,
    /// Whether a successor process accepts connections instead.
    pub passed: HandoverSignal,
}

pub struct GrpcWorker {
    shared: Arc<GrpcShared>,
    /// The number of open connections of this thread.
    open: Cell<usize>,
    ended: Notify,
    room: WorkerBuffers,
    orders: ServerOrders,
}

/// Runs hyper's futures on the current thread.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async { _ = future.await });
    }
}

impl GrpcWorker {
    /// A thread that serves until `orders` say otherwise.
    pub fn new(house: Arc<GrpcShared>, orders: ServerOrders) -> Rc<GrpcWorker> {
        let (open, ended) = (Cell::new(0), Notify::new());
        let lane = house.store.as_ref().map(StoreLane::open);
        let room = WorkerBuffers { lane, ..WorkerBuffers::default() };
        Rc::new(GrpcWorker { shared: house, open, ended, room, orders })
    }

    /// Accepts connections until the thread is to drain.
    pub async fn accept(self: Rc<Self>, listener: TcpListener) {
        let welcome = async |(stream, _): (TcpStream, SocketAddr)| {
            // Answers are small and urgent. If the socket refuses the option, it still works.
            let _ = stream.set_nodelay(true);
            Rc::clone(&self).connect(stream);
        };
        accept::accept(listener, self.ends(), log_accept_error, welcome).await;
    }

    /// Does the same as [`GrpcWorker::accept`] for a Unix socket.
    pub async fn accept_unix(self: Rc<Self>, listener: UnixListener) {
        let welcome = async |stream| Rc::clone(&self).connect(stream);
        accept::accept(listener, self.ends(), log_accept_error, welcome).await;
    }

    fn ends(&self) -> (ServerOrders, HandoverSignal) {
        (self.orders.clone(), self.shared.passed.clone())
    }

    fn connect(self: Rc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        let connections = &self.shared.connections;
        let open = connections.open.hold();
        if usize::try_from(connections.open.get()).unwrap_or(0) > self.shared.connections_max {
            connections.shed.increment(1);
            return;
        }
        connections.accepted.increment(1);
        self.open.set(self.open.get() + 1);
        tokio::task::spawn_local(async move {
            Rc::clone(&self).greet(stream).await;
            drop(open);
            self.open.set(self.open.get() - 1);
            self.ended.notify_waiters();
        });
    }

    /// The number of open connections of this thread.
    pub fn open(&self) -> usize {
        self.open.get()
    }

    /// Waits until the thread is to drain and none of its connections is open.
    pub async fn wait_drained(&self) {
        self.orders.clone().leaving().await;
        loop {
            let ended = self.ended.notified();
            if self.open.get() == 0 {
                return;
            }
            ended.await;
        }
    }

    async fn greet(self: Rc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        let Some(tls) = &self.shared.tls else { return self.connection(stream).await };
        let config = Arc::clone(&tls.load().grpc);
        let mut orders = self.orders.clone();
        let GrpcShared { handshake, bad, .. } = &*self.shared;
        let accepted = tokio::select! {
            accepted = server_tls::accept(config, stream, *handshake, bad) => accepted,
            _ = orders.leaving() => return,
        };
        if let Some(stream) = accepted {
            Rc::clone(&self).connection(stream).await;
        }
    }

    async fn connection(self: Rc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        let mut orders = self.orders.clone();
        let service = service_fn(|request| {
            let me = Rc::clone(&self);
            async move { Ok::<_, Infallible>(me.shared.calls.answer(request, &me.room).await) }
        });
        let read = Rc::new(Cell::new(0));
        let stream = TokioIo::new(ReadCountingStream::new(stream, Rc::clone(&read)));
        let connection = http2::Builder::new(LocalExecutor)
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEADERS_BYTES_MAX)
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .serve_connection(stream, service);
        let mut connection = pin!(connection);
        // An error ends the connection and concerns only its caller.
        let until = tokio::select! {
            _ = connection.as_mut() => return,
            () = wait_while_silent(&read, self.shared.handshake) => {
                return self.shared.bad.increment(1);
            }
            () = tokio::time::sleep(self.shared.age) => Clock::deadline(self.shared.grace),
            until = orders.leaving() => until,
        };
        connection.as_mut().graceful_shutdown();
        // A connection that reached its age may still get the order to drain, which shortens its
        // time.
        let until = tokio::select! {
            _ = timeout_at(until, connection.as_mut()) => return,
            until = orders.leaving() => until,
        };
        let _ = timeout_at(until, connection).await;
    }
}

/// Completes after `within` if the peer has not sent a whole preface by then; otherwise never.
async fn wait_while_silent(read: &Cell<usize>, within: Duration) {
    tokio::time::sleep(within).await;
    if read.get() >= PREFACE_BYTES {
        std::future::pending::<()>().await;
    }
}

fn log_accept_error(error: &io::Error) {
    tracing::warn!(target: "evenkeel::ratelimit", %error, "cannot accept a connection");
}

//! One thread of a gRPC door, with its listeners and its connections.
//!
//! As in the proxy, each thread has a runtime and listening sockets of its own, and a call never
//! leaves its thread. The number of connections is bounded over all threads; a connection beyond
//! the bound is closed at once. How a call is answered: the [`GrpcService`] of the door.

use crate::body::GrpcBody;
use crate::call::{self, CallBody};
use crate::held_bytes::ByteBudget;
use crate::stream::HeardStream;
use bytes::Bytes;
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::accept;
use evenkeel_serve::handover::HandoverSignal;
use evenkeel_serve::threads::ServerOrders;
use evenkeel_telemetry::counts::ConnectionCounts;
use evenkeel_telemetry::registry::Counter;
use h2::server::{self, Connection, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use http::{Request, Response, request};
use rustls::ServerConfig;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The maximum size of a call's headers, in bytes.
const HEADERS_BYTES_MAX: u32 = 16 * 1024;
/// The bytes of a call that a caller may send before they are read. The connection as a whole may
/// have this number for each of its calls, so that no call waits for others to be read.
const STREAM_WINDOW: u32 = 32 * 1024;
const CONNECTION_WINDOW_MAX: u32 = 1 << 30;
/// The number of calls that may be reset before they are answered, and of those that are reset
/// because of a fault, before the connection ends. A client that disconnects from an Envoy makes it
/// reset a call, and all its other calls end with the connection. More: memory, some 300 bytes
/// each.
const RESETS_MAX: usize = 100_000;
/// The time without incoming data after which a ping is sent.
const PING_AFTER: Duration = Duration::from_secs(60);
/// The time that the peer has to answer a ping before its connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The gRPC services of a door.
pub trait GrpcService: 'static {
    /// The state that each thread keeps for its calls.
    type ThreadState: 'static;

    /// Makes the state of the thread that calls this.
    fn thread_state(&self) -> Self::ThreadState;

    /// Answers one call. `peer`: the address that the connection comes from; `None` for a Unix
    /// socket. A failed call gives a response too, with its gRPC status in the headers.
    fn answer(
        &self,
        head: &request::Parts,
        body: CallBody,
        state: &Self::ThreadState,
        peer: Option<IpAddr>,
    ) -> impl Future<Output = Response<GrpcBody>>;
}

/// Returns the TLS configuration for new connections.
pub type TlsSource = Arc<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// The state that the threads of a door share.
pub struct GrpcShared<S> {
    /// The gRPC services that connections may call.
    pub service: S,
    /// The name of the door, for the log.
    pub door: &'static str,
    /// The counts of connections.
    pub connections: ConnectionCounts,
    /// Connections on which TLS or HTTP/2 failed to start within the time limit.
    pub bad: Counter,
    /// The TLS configuration; `None` if the listeners serve plain HTTP/2.
    pub tls: Option<TlsSource>,
    /// The time limit for the TLS handshake, and again for the HTTP/2 preface.
    pub handshake: Duration,
    /// The maximum number of connections over all threads.
    pub connections_max: usize,
    /// The maximum number of concurrent calls on a connection.
    pub streams_max: u32,
    /// The age at which a connection is asked to end.
    pub age: Duration,
    /// The time that a connection has to end after it was asked to.
    pub grace: Duration,
    /// Whether a successor process accepts connections instead.
    pub passed: HandoverSignal,
    /// The bytes of large answers that their callers have not read yet.
    pub unread: ByteBudget,
}

/// One thread.
struct GrpcWorker<S: GrpcService> {
    shared: Arc<GrpcShared<S>>,
    /// The number of open connections of this thread.
    open: Cell<usize>,
    ended: Notify,
    state: S::ThreadState,
    orders: ServerOrders,
}

/// Serves on one thread until it is to end. Returns the number of connections that are still open.
pub async fn serve<S: GrpcService>(
    shared: Arc<GrpcShared<S>>,
    mut orders: ServerOrders,
    listeners: Vec<std::net::TcpListener>,
    unix: Option<std::os::unix::net::UnixListener>,
) -> usize {
    let (worker, mut accepting) = (GrpcWorker::new(shared, orders.clone()), JoinSet::new());
    for listener in listeners {
        match TcpListener::from_std(listener) {
            Ok(listener) => _ = accepting.spawn_local(Rc::clone(&worker).accept(listener)),
            Err(error) => tracing::error!(%error, "a listener was lost"),
        }
    }
    match unix.map(UnixListener::from_std) {
        None => {}
        Some(Ok(listener)) => _ = accepting.spawn_local(Rc::clone(&worker).accept_unix(listener)),
        Some(Err(error)) => tracing::error!(%error, "a listener was lost"),
    }
    // Each connection ends by itself when the time to drain is over.
    let drained = async {
        while accepting.join_next().await.is_some() {}
        worker.wait_drained().await;
    };
    tokio::select! {
        () = drained => {}
        () = orders.stopped() => {}
    }
    worker.open.get()
}

impl<S: GrpcService> GrpcWorker<S> {
    /// A thread that serves until `orders` say otherwise.
    fn new(shared: Arc<GrpcShared<S>>, orders: ServerOrders) -> Rc<GrpcWorker<S>> {
        let (open, ended) = (Cell::new(0), Notify::new());
        let state = shared.service.thread_state();
        Rc::new(GrpcWorker { shared, open, ended, state, orders })
    }

    /// Accepts connections until the thread is to drain.
    async fn accept(self: Rc<Self>, listener: TcpListener) {
        let welcome = async |(stream, peer): (TcpStream, SocketAddr)| {
            // Answers are small and urgent. If the socket refuses the option, it still works.
            let _ = stream.set_nodelay(true);
            Rc::clone(&self).connect(stream, Some(peer.ip()));
        };
        accept::accept(listener, self.ends(), |error| self.log(error), welcome).await;
    }

    /// Does the same as [`GrpcWorker::accept`] for a Unix socket.
    async fn accept_unix(self: Rc<Self>, listener: UnixListener) {
        let welcome = async |stream| Rc::clone(&self).connect(stream, None);
        accept::accept(listener, self.ends(), |error| self.log(error), welcome).await;
    }

    fn ends(&self) -> (ServerOrders, HandoverSignal) {
        (self.orders.clone(), self.shared.passed.clone())
    }

    fn log(&self, error: &io::Error) {
        let door = self.shared.door;
        tracing::warn!(target: "evenkeel::grpc", door, %error, "cannot accept a connection");
    }

    fn connect(
        self: Rc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        peer: Option<IpAddr>,
    ) {
        let connections = &self.shared.connections;
        let open = connections.open.hold();
        if usize::try_from(connections.open.get()).unwrap_or(0) > self.shared.connections_max {
            connections.shed.increment(1);
            return;
        }
        connections.accepted.increment(1);
        self.open.set(self.open.get() + 1);
        tokio::task::spawn_local(async move {
            Rc::clone(&self).greet(stream, peer).await;
            drop(open);
            self.open.set(self.open.get() - 1);
            self.ended.notify_waiters();
        });
    }

    /// Waits until the thread is to drain and none of its connections is open.
    async fn wait_drained(&self) {
        self.orders.clone().leaving().await;
        loop {
            let ended = self.ended.notified();
            if self.open.get() == 0 {
                return;
            }
            ended.await;
        }
    }

    async fn greet(
        self: Rc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        peer: Option<IpAddr>,
    ) {
        let Some(tls) = &self.shared.tls else { return self.connection(stream, peer).await };
        let mut orders = self.orders.clone();
        let GrpcShared { handshake, bad, .. } = &*self.shared;
        let accepted = tokio::select! {
            accepted = accept_tls(tls(), stream, *handshake, bad) => accepted,
            _ = orders.leaving() => return,
        };
        if let Some(stream) = accepted {
            Rc::clone(&self).connection(stream, peer).await;
        }
    }

    async fn connection(
        self: Rc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        peer: Option<IpAddr>,
    ) {
        let mut orders = self.orders.clone();
        let GrpcShared { handshake, bad, age, grace, streams_max, .. } = &*self.shared;
        let heard = Rc::new(Cell::new(Clock::deadline(Duration::ZERO)));
        let stream = HeardStream::new(stream, Rc::clone(&heard));
        let begun = tokio::select! {
            begun = timeout(*handshake, builder(*streams_max).handshake(stream)) => begun,
            _ = orders.leaving() => return,
        };
        // An error ends the connection and concerns only its caller.
        let mut connection = match begun {
            Ok(Ok(connection)) => connection,
            Ok(Err(_)) => return,
            Err(_) => return bad.increment(1),
        };
        let pings = connection.ping_pong();
        let mut calls = Calls { worker: Rc::clone(&self), connection, peer, waiting: Rc::new(()) };
        let until = tokio::select! {
            biased;
            () = calls.answer() => return,
            () = wait_while_alive(pings, &heard) => return,
            () = sleep(*age) => Clock::deadline(*grace),
            until = orders.leaving() => until,
        };
        calls.connection.graceful_shutdown();
        // A connection that reached its age may still get the order to drain, which shortens its
        // time.
        let until = tokio::select! {
            _ = timeout_at(until, calls.answer()) => return,
            until = orders.leaving() => until,
        };
        let _ = timeout_at(until, calls.answer()).await;
    }
}

/// The bounds of a connection for this number of concurrent calls.
fn builder(streams_max: u32) -> server::Builder {
    let mut builder = server::Builder::new();
    builder
        .max_concurrent_streams(streams_max)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(
            streams_max.saturating_mul(STREAM_WINDOW).min(CONNECTION_WINDOW_MAX),
        )
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(Some(RESETS_MAX))
        .max_header_list_size(HEADERS_BYTES_MAX);
    builder
}

/// The calls of one connection.
struct Calls<S: GrpcService, T> {
    worker: Rc<GrpcWorker<S>>,
    connection: Connection<T, Bytes>,
    peer: Option<IpAddr>,
    /// Each call that has a task keeps a reference to this.
    waiting: Rc<()>,
}

impl<S: GrpcService, T: AsyncRead + AsyncWrite + Unpin> Calls<S, T> {
    /// Answers calls until the connection has ended.
    async fn answer(&mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    /// Accepts all calls that have arrived before it answers the first one: `poll_accept` also
    /// sends pending answers, so answering in between would send each one separately.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut arrived = Vec::new();
            let ended = loop {
                match self.connection.poll_accept(cx) {
                    Poll::Ready(Some(Ok(call))) => arrived.push(call),
                    Poll::Ready(None | Some(Err(_))) => break true,
                    Poll::Pending => break false,
                }
            };
            if ended {
                return Poll::Ready(());
            }
            if arrived.is_empty() {
                return Poll::Pending;
            }
            arrived.into_iter().for_each(|call| self.begin(call, cx));
        }
    }

    /// Answers a call immediately if it does not have to wait, otherwise in a task. While other
    /// calls of the connection have tasks, it always gets a task: one of them may have just been
    /// ended by its peer, and its task has to run first to release its slot.
    fn begin(
        &self,
        (request, respond): (Request<RecvStream>, SendResponse<Bytes>),
        cx: &mut Context<'_>,
    ) {
        let (worker, peer) = (Rc::clone(&self.worker), self.peer);
        let (head, stream) = request.into_parts();
        // The future is copied to the heap, so it has each part of the call only once.
        let mut call = Box::pin(async move {
            let body = CallBody::new(stream);
            let answer = pin!(worker.shared.service.answer(&head, body, &worker.state, peer));
            // An error ends the call and concerns only its caller.
            let _ = call::respond(respond, answer, &worker.shared.unread).await;
        });
        let is_alone = Rc::strong_count(&self.waiting) == 1;
        if is_alone && call.as_mut().poll(cx).is_ready() {
            return;
        }
        let waiting = Rc::clone(&self.waiting);
        tokio::task::spawn_local(async move {
            call.await;
            drop(waiting);
        });
    }
}

/// Completes when the peer has sent nothing for [`PING_AFTER`] and then has not answered a ping.
/// `heard`: when it last sent anything.
async fn wait_while_alive(pings: Option<PingPong>, heard: &Cell<Instant>) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        let last = heard.get();
        sleep_until(last + PING_AFTER).await;
        if heard.get() > last {
            continue;
        }
        // No ping can be sent until the answer to the one before has been taken.
        let _ = poll_fn(|cx| Poll::Ready(pings.poll_pong(cx))).await;
        // This fails only if that one is still unanswered.
        let _ = pings.send_ping(Ping::opaque());
        sleep_until(last + PING_AFTER + PING_TIMEOUT).await;
        if heard.get() == last {
            return;
        }
    }
}

/// Accepts TLS on a connection. Returns `None`, and counts the connection in `failed`, if the
/// handshake fails or takes longer than `limit`.
pub async fn accept_tls<T: AsyncRead + AsyncWrite + Unpin>(
    config: Arc<ServerConfig>,
    stream: T,
    limit: Duration,
    failed: &Counter,
) -> Option<TlsStream<T>> {
    let accepted = timeout(limit, TlsAcceptor::from(config).accept(stream)).await;
    let why = match accepted {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err(error)) => error.to_string(),
        Err(late) => late.to_string(),
    };
    tracing::debug!(target: "evenkeel::grpc", why, "no TLS on a connection");
    failed.increment(1);
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING_ACK: [u8; 9] = [0, 0, 8, 6, 1, 0, 0, 0, 0];

    /// The second at which the server gives up a peer that sends something at each second of
    /// `heard_at` and answers the first `answers` pings, each after `delay` seconds.
    async fn end(heard_at: &[u64], answers: usize, delay: u64) -> u64 {
        let begin = Instant::now();
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (mut reads, mut writes) = tokio::io::split(far);
        writes.write_all(&[PREFACE, SETTINGS].concat()).await.expect("room");
        let heard = Rc::new(Cell::new(begin));
        let stream = HeardStream::new(near, Rc::clone(&heard));
        let begun = builder(1).handshake::<_, Bytes>(stream).await;
        let mut connection = begun.expect("a preface");
        let pings = connection.ping_pong();
        let answer = async {
            let mut answered = 0;
            loop {
                let mut head = [0; 9];
                reads.read_exact(&mut head).await.expect("open");
                let mut body = vec![0; usize::from(head[2])];
                reads.read_exact(&mut body).await.expect("open");
                if head[3] == PING_ACK[3] && head[4] == 0 && answered < answers {
                    answered += 1;
                    sleep_until(Clock::deadline(Duration::from_secs(delay))).await;
                    writes.write_all(&[&PING_ACK[..], &body].concat()).await.expect("open");
                }
            }
        };
        let mut answer = pin!(answer);
        let mut alive = pin!(wait_while_alive(pings, &heard));
        let said = async {
            for at in heard_at {
                sleep_until(begin + Duration::from_secs(*at)).await;
                heard.set(Instant::now());
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = alive.as_mut() => {}
            _ = poll_fn(|cx| connection.poll_accept(cx)) => {}
            () = answer.as_mut() => {}
            () = said => {}
        }
        begin.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_pinged_and_given_up_in_time() {
        assert_eq!(end(&[], 0, 0).await, 80, "never answers");
        assert_eq!(end(&[30], 0, 0).await, 110, "60 s after it was heard");
        assert_eq!(end(&[65], 0, 0).await, 145, "something else than an answer is no silence");
        assert_eq!(end(&[], 3, 1).await, 80 + 3 * 61, "answers three times");
        assert_eq!(end(&[70], 1, 15).await, 75 + 80, "an answer that comes after other bytes");
        assert_eq!(end(&[70, 90], 2, 35).await, 95 + 80, "a late answer, and the next ping");
    }
}

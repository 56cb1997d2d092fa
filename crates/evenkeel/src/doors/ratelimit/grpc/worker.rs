//! One thread of the service: its listeners and its gRPC connections.
//!
//! As with the proxy, a thread has a runtime and listening sockets of its own, and a call never
//! leaves it. Connections are bounded over all threads; one that comes beyond is closed at once.
//! What is done with a call: `grpc`. How threads are started and stopped: `serve`.

use super::stream::Counted;
use super::{Calls, RoomOf};
use crate::doors::ratelimit::Shown;
use crate::run::handover::Passed;
use crate::run::waiting;
use crate::store::redis::Store;
use crate::watch::registry::{Counter, Gauge};
use arc_swap::ArcSwap;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;

/// Calls at once on a connection.
const STREAMS_MAX: u32 = 1_024;
/// Bytes of a call's headers.
const HEADERS_BYTES_MAX: u32 = 16 * 1024;
/// What HTTP/2 begins with, in bytes.
const PREFACE: usize = 24;
/// A connection that says nothing for so long is asked whether it is there,
const PING_AFTER: Duration = Duration::from_secs(60);
/// and has so long to say so.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// What the threads are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Take what comes.
    Serve,
    /// Take no more connections, and end those there are after the calls they are at, within
    /// this time.
    Drain(Duration),
}

/// What all threads share.
pub struct House {
    /// What can be called.
    pub calls: Calls,
    /// Where all instances count, if they do.
    pub store: Option<Arc<Store>>,
    /// Connections open now.
    pub open: Gauge,
    /// Connections taken.
    pub accepted: Counter,
    /// Connections closed at once for want of room.
    pub shed: Counter,
    /// Connections that did not show in time, or not at all, that they speak as they must.
    pub bad: Counter,
    /// What is shown to those who connect, if they must speak TLS.
    pub tls: Option<Arc<ArcSwap<Shown>>>,
    /// For a connection to show that it speaks TLS, if it must, and HTTP/2.
    pub handshake: Duration,
    /// The most connections.
    pub connections_max: usize,
    /// After this a connection is to end,
    pub age: Duration,
    /// and has so long to do so.
    pub grace: Duration,
    /// Whether somebody else takes connections in.
    pub passed: Passed,
}

/// One thread.
pub struct Worker {
    house: Arc<House>,
    /// Connections of this thread.
    open: Cell<usize>,
    ended: Notify,
    room: RoomOf,
    phase: watch::Receiver<Phase>,
}

/// Runs futures on the thread they belong to.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async { _ = future.await });
    }
}

impl Worker {
    /// A thread that serves as long as `phase` says.
    pub fn new(house: Arc<House>, phase: watch::Receiver<Phase>) -> Rc<Worker> {
        let (open, ended) = (Cell::new(0), Notify::new());
        let lane = house.store.as_ref().map(Store::lane);
        let room = RoomOf { lane, ..RoomOf::default() };
        Rc::new(Worker { house, open, ended, room, phase })
    }

    /// Takes connections from a port until it is to drain. To close it would reset those who have
    /// connected by then, so they are taken in too.
    pub async fn accept(self: Rc<Self>, listener: TcpListener) {
        let (mut phase, mut passed) = (self.phase.clone(), self.house.passed.clone());
        let take = |(stream, _): (TcpStream, SocketAddr)| {
            // Answers are small and wanted at once; a socket that refuses this still works.
            let _ = stream.set_nodelay(true);
            Rc::clone(&self).connect(stream);
        };
        loop {
            let accepted = tokio::select! {
                _ = drained(&mut phase) => return waiting::at(listener).for_each(take),
                () = passed.wait() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(accepted) => take(accepted),
                Err(error) => refused(&error).await,
            }
        }
    }

    /// The same from a socket file.
    pub async fn accept_unix(self: Rc<Self>, listener: UnixListener) {
        let (mut phase, mut passed) = (self.phase.clone(), self.house.passed.clone());
        let take = |stream: UnixStream| Rc::clone(&self).connect(stream);
        loop {
            let accepted = tokio::select! {
                _ = drained(&mut phase) => return waiting::at_file(listener).for_each(take),
                () = passed.wait() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => take(stream),
                Err(error) => refused(&error).await,
            }
        }
    }

    fn connect(self: Rc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        let open = self.house.open.hold();
        if usize::try_from(self.house.open.get()).unwrap_or(0) > self.house.connections_max {
            self.house.shed.increment(1);
            return;
        }
        self.house.accepted.increment(1);
        self.open.set(self.open.get() + 1);
        tokio::task::spawn_local(async move {
            Rc::clone(&self).greet(stream).await;
            drop(open);
            self.open.set(self.open.get() - 1);
            self.ended.notify_waiters();
        });
    }

    /// Connections of this thread that are open.
    pub fn open(&self) -> usize {
        self.open.get()
    }

    /// Until it is to drain and no connection is open.
    pub async fn drained(&self) {
        drained(&mut self.phase.clone()).await;
        loop {
            let ended = self.ended.notified();
            if self.open.get() == 0 {
                return;
            }
            ended.await;
        }
    }

    async fn greet(self: Rc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        let Some(tls) = &self.house.tls else { return self.connection(stream).await };
        let acceptor = TlsAcceptor::from(Arc::clone(&tls.load().grpc));
        let mut phase = self.phase.clone();
        let accepted = tokio::time::timeout(self.house.handshake, acceptor.accept(stream));
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            _ = drained(&mut phase) => return,
        };
        match accepted {
            Ok(Ok(stream)) => Rc::clone(&self).connection(stream).await,
            refused => {
                let why = refused.map_or_else(|late| late.to_string(), said);
                tracing::debug!(target: "evenkeel::ratelimit", why, "no TLS on a connection");
                self.house.bad.increment(1);
            }
        }
    }

    async fn connection(self: Rc<Self>, stream: impl AsyncRead + AsyncWrite + Unpin + 'static) {
        let mut phase = self.phase.clone();
        let service = service_fn(|request| {
            let me = Rc::clone(&self);
            async move { Ok::<_, Infallible>(me.house.calls.answer(request, &me.room).await) }
        });
        let read = Rc::new(Cell::new(0));
        let stream = TokioIo::new(Counted::new(stream, Rc::clone(&read)));
        let connection = http2::Builder::new(Local)
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEADERS_BYTES_MAX)
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .serve_connection(stream, service);
        let mut connection = pin!(connection);
        // What goes wrong on a connection is the caller's business and ends with it.
        let within = tokio::select! {
            _ = connection.as_mut() => return,
            () = silent(&read, self.house.handshake) => return self.house.bad.increment(1),
            () = tokio::time::sleep(self.house.age) => self.house.grace,
            within = drained(&mut phase) => within,
        };
        connection.as_mut().graceful_shutdown();
        // Whose time is up may still be told to drain, and then has less.
        let within = tokio::select! {
            _ = tokio::time::timeout(within, connection.as_mut()) => return,
            within = drained(&mut phase) => within,
        };
        let _ = tokio::time::timeout(within, connection).await;
    }
}

/// Until it is clear that nobody has begun to speak HTTP/2 within this time.
async fn silent(read: &Cell<usize>, within: Duration) {
    tokio::time::sleep(within).await;
    if read.get() >= PREFACE {
        std::future::pending::<()>().await;
    }
}

fn said<T>(accepted: std::io::Result<T>) -> String {
    accepted.err().map(|error| error.to_string()).unwrap_or_default()
}

/// Until the thread is to drain; says how long that may take.
async fn drained(phase: &mut watch::Receiver<Phase>) -> Duration {
    loop {
        if let Phase::Drain(within) = *phase.borrow_and_update() {
            return within;
        }
        if phase.changed().await.is_err() {
            return Duration::ZERO;
        }
    }
}

/// Too many open files, most likely: it passes.
async fn refused(error: &std::io::Error) {
    tracing::warn!(target: "evenkeel::ratelimit", %error, "cannot accept a connection");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

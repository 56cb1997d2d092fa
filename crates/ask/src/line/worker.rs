//! One thread of the door: its listeners and its connections. Threads share only the engine, the
//! socket files and the counters in [`LineShared`].
//!
//! How threads start and stop: `line.rs`. What is done with a connection: `connection`.

use super::commands::RedisSession;
use super::connection::{LineBuffers, LineCodec, LineConnection, LineLink};
use super::listen::{LineListener, LineProtocol};
use super::splitter::TagSplitter;
use super::store_client::TagStoreClient;
use evenkeel_config::settings::LineSettings;
use evenkeel_engine::tags::TagLane;
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::backlog;
use evenkeel_serve::handover::HandoverSignal;
use evenkeel_telemetry::counts::StreamCounts;
use evenkeel_telemetry::registry::GaugeGuard;
use evenkeel_telemetry::sampler::WarningThrottle;
use socket2::{SockRef, TcpKeepalive};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Notify;

/// The number of connections accepted in a row before existing connections get a turn.
const ACCEPT_BURST: usize = 16;
/// The time without traffic after which TCP checks whether the peer is still reachable.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The state that all threads of the door share.
pub struct LineShared {
    /// The number of open connections.
    pub connections: AtomicUsize,
    /// The number of connections that were still open when their thread ended.
    pub cut: AtomicUsize,
    /// The number given to the last Redis client.
    clients: AtomicI64,
    lines: StreamCounts,
    resp: StreamCounts,
    full: WarningThrottle,
}

impl LineShared {
    /// Creates the state before the first connection.
    pub fn new(lines: StreamCounts, resp: StreamCounts) -> LineShared {
        LineShared {
            connections: AtomicUsize::new(0),
            cut: AtomicUsize::new(0),
            clients: AtomicI64::new(0),
            lines,
            resp,
            full: WarningThrottle::default(),
        }
    }

    fn counts(&self, tongue: LineProtocol) -> &StreamCounts {
        match tongue {
            LineProtocol::Lines => &self.lines,
            LineProtocol::Resp => &self.resp,
        }
    }
}

/// The state of one thread.
pub struct LineWorker {
    pub(super) lane: TagLane,
    /// The store that counts for all instances, if there is one.
    pub(super) store: Option<Rc<TagStoreClient>>,
    pub(super) scratch: RefCell<LineBuffers>,
    clock: Clock,
    house: Arc<LineShared>,
    tag_bytes: Cell<usize>,
    /// The maximum number of connections of all threads together; 0 means no bound.
    bound: Cell<usize>,
    links: RefCell<Vec<Rc<LineLink>>>,
    freed: Notify,
    drained: Notify,
    draining: Cell<bool>,
}

impl LineWorker {
    pub(super) fn new(
        settings: &LineSettings,
        lane: TagLane,
        store: Option<Rc<TagStoreClient>>,
        clock: Clock,
        house: Arc<LineShared>,
    ) -> Rc<LineWorker> {
        let worker = LineWorker {
            lane,
            store,
            scratch: RefCell::default(),
            clock,
            house,
            tag_bytes: Cell::new(0),
            bound: Cell::new(0),
            links: RefCell::default(),
            freed: Notify::new(),
            drained: Notify::new(),
            draining: Cell::new(false),
        };
        worker.reload(settings);
        Rc::new(worker)
    }

    /// Applies changed settings to connections that come from now on.
    pub(super) fn reload(&self, settings: &LineSettings) {
        self.tag_bytes.set(settings.tag_bytes);
        self.bound.set(settings.connections);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Returns the counters for the protocol of a connection.
    pub(super) fn counts(&self, speech: &LineCodec) -> &StreamCounts {
        self.house.counts(match speech {
            LineCodec::Lines(_) => LineProtocol::Lines,
            LineCodec::Resp(_) => LineProtocol::Resp,
        })
    }

    /// Accepts no more connections, and lets every connection end when all its queries are
    /// answered.
    pub(super) fn drain(&self) {
        self.draining.set(true);
        self.drained.notify_waiters();
        self.links.borrow().iter().for_each(|link| link.wake());
    }

    /// Counts the connections that are still open: the thread's tasks are about to be dropped.
    pub(super) fn stop(&self) {
        self.house.cut.fetch_add(self.links.borrow().len(), Relaxed);
    }

    /// Waits until no connection is open.
    pub(super) async fn empty(&self) {
        loop {
            let freed = self.freed.notified();
            if self.links.borrow().is_empty() {
                return;
            }
            freed.await;
        }
    }

    /// Accepts connections until the thread drains, or another process has taken the sockets over.
    pub(super) async fn accept(
        self: Rc<LineWorker>,
        listener: RegisteredListener,
        mut passed: HandoverSignal,
    ) {
        loop {
            for _ in 0..ACCEPT_BURST {
                let drained = self.drained.notified();
                if self.draining.get() {
                    return self.accept_waiting(listener);
                }
                tokio::select! {
                    accepted = poll_fn(|cx| listener.poll_accept(cx)) => match accepted {
                        Ok(stream) => self.welcome(stream),
                        Err(error) => accept_failed(&error).await,
                    },
                    () = drained => return self.accept_waiting(listener),
                    () = passed.wait() => return,
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Accepts the connections that wait in the system's queue: closing the listener would reset
    /// them.
    fn accept_waiting(self: &Rc<LineWorker>, listener: RegisteredListener) {
        match listener {
            RegisteredListener::Tcp(listener, tongue) => backlog::at(listener)
                .map(|(stream, peer)| LineStream::of(stream, peer, tongue))
                .for_each(|stream| self.welcome(stream)),
            RegisteredListener::Unix(listener) => backlog::at_file(listener)
                .map(LineStream::Unix)
                .for_each(|stream| self.welcome(stream)),
        }
    }

    fn welcome(self: &Rc<LineWorker>, stream: LineStream) {
        match stream {
            LineStream::Tcp(stream, client, tongue) => {
                let _ = stream.set_nodelay(true);
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
                let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
                self.converse(stream, Some(client), tongue);
            }
            LineStream::Unix(stream) => self.converse(stream, None, LineProtocol::Lines),
        }
    }

    fn converse<S: AsyncRead + AsyncWrite + AsFd + Unpin + 'static>(
        self: &Rc<LineWorker>,
        stream: S,
        client: Option<IpAddr>,
        tongue: LineProtocol,
    ) {
        self.make_room(tongue);
        let link = Rc::new(LineLink::default());
        link.active.set(self.clock.now().0 / 1_000_000);
        let seat = LineGuard::take(self, &link, tongue);
        let speech = match tongue {
            LineProtocol::Lines => LineCodec::Lines(TagSplitter::new(self.tag_bytes.get())),
            LineProtocol::Resp => {
                LineCodec::Resp(RedisSession::new(self.house.clients.fetch_add(1, Relaxed) + 1))
            }
        };
        let mut talk = LineConnection::new(stream, Rc::clone(self), link, client, speech);
        tokio::task::spawn_local(async move {
            poll_fn(|cx| talk.poll(cx)).await;
            drop(seat);
        });
    }

    /// If the maximum number of connections is open, closes the connection of this thread that has
    /// been silent longest. Its client can reconnect or continue without an answer, while a new
    /// client would get none at all.
    fn make_room(&self, tongue: LineProtocol) {
        let bound = self.bound.get();
        if bound == 0 || self.house.connections.load(Relaxed) < bound {
            return;
        }
        if self.house.full.ask(self.clock.now()) {
            tracing::warn!(
                target: "evenkeel::line",
                bound,
                "the limit of `line.connections` is reached: for each new connection, the one \
                 that was idle longest is closed"
            );
        }
        let links = self.links.borrow();
        let open = links.iter().filter(|link| !link.is_closed());
        if let Some(silent) = open.min_by_key(|link| link.active.get()) {
            self.house.counts(tongue).shed.increment(1);
            silent.close();
        }
    }
}

/// Waits before the next attempt. If the process has run out of file descriptors, for example,
/// trying again at once does not help.
async fn accept_failed(error: &io::Error) {
    tracing::warn!(target: "evenkeel::line", %error,
        "a connection could not be accepted; trying again in 100 ms");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// A listener on this thread's runtime.
pub enum RegisteredListener {
    Tcp(TcpListener, LineProtocol),
    Unix(UnixListener),
}

/// An accepted connection.
enum LineStream {
    Tcp(TcpStream, IpAddr, LineProtocol),
    Unix(UnixStream),
}

impl LineStream {
    fn of(stream: TcpStream, peer: SocketAddr, tongue: LineProtocol) -> LineStream {
        LineStream::Tcp(stream, peer.ip().to_canonical(), tongue)
    }
}

impl RegisteredListener {
    /// Registers a listener with the runtime of this thread.
    pub fn new(listener: LineListener) -> io::Result<RegisteredListener> {
        Ok(match listener {
            LineListener::Tcp(listener, tongue) => {
                RegisteredListener::Tcp(TcpListener::from_std(listener)?, tongue)
            }
            LineListener::Unix(listener) => {
                RegisteredListener::Unix(UnixListener::from_std(listener)?)
            }
        })
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<LineStream>> {
        match self {
            RegisteredListener::Tcp(listener, tongue) => listener
                .poll_accept(cx)
                .map_ok(|(stream, peer)| LineStream::of(stream, peer, *tongue)),
            RegisteredListener::Unix(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, _)| LineStream::Unix(stream))
            }
        }
    }
}

/// A connection's entry in the list of its thread and in the counters, removed when dropped.
struct LineGuard {
    worker: Rc<LineWorker>,
    link: Rc<LineLink>,
    _counted: GaugeGuard,
}

impl LineGuard {
    fn take(worker: &Rc<LineWorker>, link: &Rc<LineLink>, tongue: LineProtocol) -> LineGuard {
        let counts = worker.house.counts(tongue);
        counts.accepted.increment(1);
        worker.house.connections.fetch_add(1, Relaxed);
        let mut links = worker.links.borrow_mut();
        link.place.set(links.len());
        links.push(Rc::clone(link));
        let (worker, link) = (Rc::clone(worker), Rc::clone(link));
        LineGuard { _counted: counts.connections.hold(), worker: Rc::clone(&worker), link }
    }
}

impl Drop for LineGuard {
    fn drop(&mut self) {
        let mut links = self.worker.links.borrow_mut();
        let place = self.link.place.get();
        if place < links.len() {
            links.swap_remove(place);
            if let Some(moved) = links.get(place) {
                moved.place.set(place);
            }
        }
        self.worker.house.connections.fetch_sub(1, Relaxed);
        self.worker.freed.notify_waiters();
    }
}

//! One thread of the door: its listeners and its connections. Threads share only the engine, the
//! socket files and the counters in [`LineShared`].
//!
//! How threads start and stop: `line.rs`. What is done with a connection: `connection`.

use super::commands::RedisSession;
use super::connection::{LineBuffers, LineCodec, LineConnection};
use super::link::{LineLink, LinkTurn};
use super::listen::{LineListener, LineProtocol};
use super::splitter::TagSplitter;
use super::store_client::TagStoreClient;
use arc_swap::ArcSwap;
use evenkeel_config::settings::LineSettings;
use evenkeel_core::units::Time;
use evenkeel_engine::tags::TagLane;
use evenkeel_engine::turns::TurnLane;
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::accept;
use evenkeel_serve::handover::HandoverSignal;
use evenkeel_serve::threads::{ServerOrders, ServerWorker};
use evenkeel_telemetry::counts::LineDoorCounts;
use evenkeel_telemetry::registry::{GaugeGuard, Registry};
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
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Notify;

/// The interval at which waiting programs are examined.
const TURNS_EVERY: Duration = Duration::from_millis(50);
/// The time without traffic after which TCP checks whether the peer is still reachable.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The state that all threads of the door share.
pub struct LineShared {
    /// The number of open connections.
    pub connections: AtomicUsize,
    /// The settings for connections that come from now on.
    pub settings: ArcSwap<LineSettings>,
    /// The number given to the last Redis client.
    clients: AtomicI64,
    lines: LineDoorCounts,
    resp: LineDoorCounts,
    full: WarningThrottle,
}

impl LineShared {
    /// Creates the state before the first connection.
    pub fn new(settings: LineSettings, registry: &Registry) -> LineShared {
        LineShared {
            connections: AtomicUsize::new(0),
            settings: ArcSwap::from_pointee(settings),
            clients: AtomicI64::new(0),
            lines: LineDoorCounts::new(registry, "line"),
            resp: LineDoorCounts::new(registry, "resp"),
            full: WarningThrottle::default(),
        }
    }

    fn counts(&self, tongue: LineProtocol) -> &LineDoorCounts {
        match tongue {
            LineProtocol::Lines => &self.lines,
            LineProtocol::Resp => &self.resp,
        }
    }
}

pub struct LineWorker {
    pub(super) lane: TagLane,
    /// The store that counts for all instances, if there is one.
    pub(super) store: Option<Rc<TagStoreClient>>,
    /// The turns that programs take, if there are any.
    pub(super) turns: Option<TurnLane>,
    pub(super) scratch: RefCell<LineBuffers>,
    clock: Clock,
    house: Arc<LineShared>,
    links: RefCell<Vec<Rc<LineLink>>>,
    freed: Notify,
    draining: Cell<bool>,
}

impl LineWorker {
    pub(super) fn new(
        lane: TagLane,
        store: Option<Rc<TagStoreClient>>,
        turns: Option<TurnLane>,
        clock: Clock,
        house: Arc<LineShared>,
    ) -> Rc<LineWorker> {
        Rc::new(LineWorker {
            lane,
            store,
            turns,
            scratch: RefCell::default(),
            clock,
            house,
            links: RefCell::default(),
            freed: Notify::new(),
            draining: Cell::new(false),
        })
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(super) fn tag_bytes_max(&self) -> usize {
        self.house.settings.load().tag_bytes
    }

    /// Turns away programs that have waited for too long.
    pub(super) async fn watch_turns(self: Rc<LineWorker>) {
        let Some(turns) = &self.turns else { return };
        loop {
            tokio::time::sleep(TURNS_EVERY).await;
            turns.expire();
            let now = self.clock.now();
            let links = self.links.borrow();
            let late =
                |link: &&Rc<LineLink>| link.waits_until.get().is_some_and(|until| now >= until);
            links.iter().filter(late).for_each(|link| link.wake());
        }
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Returns the counters for the protocol of a connection.
    pub(super) fn counts(&self, speech: &LineCodec) -> &LineDoorCounts {
        self.house.counts(match speech {
            LineCodec::Lines(..) => LineProtocol::Lines,
            LineCodec::Resp(_) => LineProtocol::Resp,
        })
    }

    /// Returns the number of open connections of this thread.
    pub(super) fn open(&self) -> usize {
        self.links.borrow().len()
    }

    /// Accepts connections until the thread drains, or another process has taken the sockets over.
    pub(super) async fn accept(
        self: Rc<LineWorker>,
        listener: LineListener,
        ends: (ServerOrders, HandoverSignal),
    ) {
        let lost = match listener {
            LineListener::Tcp(listener, tongue) => match TcpListener::from_std(listener) {
                Ok(listener) => {
                    let welcome = async |accepted| self.welcome(accepted, tongue);
                    return accept::accept(listener, ends, log_accept_error, welcome).await;
                }
                Err(error) => error,
            },
            LineListener::Unix(listener) => match UnixListener::from_std(listener) {
                Ok(listener) => {
                    let welcome = async |stream| self.converse(stream, None, LineProtocol::Lines);
                    return accept::accept(listener, ends, log_accept_error, welcome).await;
                }
                Err(error) => error,
            },
        };
        tracing::error!(error = %lost, "a listener was lost");
    }

    fn welcome(self: &Rc<LineWorker>, (stream, peer): (TcpStream, SocketAddr), to: LineProtocol) {
        let _ = stream.set_nodelay(true);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        self.converse(stream, Some(peer.ip().to_canonical()), to);
    }

    fn converse<S: AsyncRead + AsyncWrite + AsFd + Unpin + 'static>(
        self: &Rc<LineWorker>,
        stream: S,
        client: Option<IpAddr>,
        tongue: LineProtocol,
    ) {
        if !self.make_room(tongue) {
            return;
        }
        let link = Rc::new(LineLink::default());
        link.active.set(self.clock.now().0 / 1_000_000);
        let seat = LineGuard::take(self, &link, tongue);
        let speech = match tongue {
            LineProtocol::Lines => {
                let splitter = TagSplitter::new(self.house.settings.load().tag_bytes);
                LineCodec::Lines(splitter, self.turns.is_some())
            }
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
    /// client would get none at all. Returns false if all of them hold turns: their programs run,
    /// and would do so without a turn if their connections were closed.
    fn make_room(&self, tongue: LineProtocol) -> bool {
        let bound = self.house.settings.load().connections;
        if bound == 0 || self.house.connections.load(Relaxed) < bound {
            return true;
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
        let Some(silent) = open.min_by_key(|link| (link.turn.get(), link.active.get())) else {
            return true;
        };
        self.house.counts(tongue).connections.shed.increment(1);
        let is_given = silent.turn.get() < LinkTurn::Holds;
        if is_given {
            silent.close();
        }
        is_given
    }
}

fn log_accept_error(error: &io::Error) {
    tracing::warn!(target: "evenkeel::line", %error,
        "a connection could not be accepted; trying again in 100 ms");
}

impl ServerWorker for LineWorker {
    /// Lets every connection end when all its queries are answered.
    fn drain(&self) {
        self.draining.set(true);
        self.links.borrow().iter().for_each(|link| link.wake());
    }

    async fn empty(&self) {
        loop {
            let freed = self.freed.notified();
            if self.links.borrow().is_empty() {
                return;
            }
            freed.await;
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
        let counted = worker.house.counts(tongue).connections.accept();
        worker.house.connections.fetch_add(1, Relaxed);
        let mut links = worker.links.borrow_mut();
        link.place.set(links.len());
        links.push(Rc::clone(link));
        let (worker, link) = (Rc::clone(worker), Rc::clone(link));
        LineGuard { _counted: counted, worker: Rc::clone(&worker), link }
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

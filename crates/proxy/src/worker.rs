//! One thread of the proxy: its listeners, its connections, its connection pools, and the sweep
//! that enforces timeouts. Threads share only the engine and [`ProxyShared`].
//!
//! How threads start and stop: `proxy.rs`. How a connection is served: `front.rs`. What is done
//! with a request: `exchange.rs`. Which backend is asked: `backends.rs`.

mod heads;
mod parked;

use super::backends::{UpstreamPool, UpstreamTls};
use super::exchange::UpstreamFailure;
use super::front::LiveServerConfig;
use super::front::write_batch::SpareBuffer;
use super::link::ClientLink;
use super::link::list::LinkList;
use evenkeel_config::settings::{ProxyBounds, ProxySettings, ProxyTimeouts};
use evenkeel_core::units::Time;
use evenkeel_engine::EngineLane;
use evenkeel_identity::address::ProxyTrust;
use evenkeel_runtime::clock::Clock;
use evenkeel_serve::backlog;
use evenkeel_store::requests::StoreRequests;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::counts::ConnectionRefusal;
use evenkeel_telemetry::failure;
use evenkeel_telemetry::registry::GaugeGuard;
pub(super) use heads::HeadRoom;
use parked::is_slow;
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// The number of connections accepted in a row before existing connections get a turn.
const ACCEPT_BURST: usize = 16;

/// The maximum number of exchanges without a client on a thread. Beyond it the connection to the
/// backend is closed at once; otherwise clients that connect and disconnect would pile up
/// connections without a bound.
const LINGERING_MAX: usize = 1024;

/// A snapshot of the settings in the form that a thread uses; replaced as a whole on reload.
pub(super) struct ProxyConfigSnapshot {
    pub(super) backends: UpstreamPool,
    /// Protocols that may be switched to.
    pub(super) upgrades: Vec<String>,
    pub(super) trust: ProxyTrust,
    pub(super) timeouts: ProxyTimeouts,
    pub(super) bounds: ProxyBounds,
    pub(super) keep_cost_header: bool,
    /// Whether answers contain the client's quotas.
    pub(super) headers: bool,
    /// Whether HTTP/2 is offered to clients.
    pub(super) http2: bool,
}

impl ProxyConfigSnapshot {
    /// `before`: the snapshot that this one replaces.
    fn new(
        settings: &ProxySettings,
        secured: &UpstreamTls,
        before: Option<&ProxyConfigSnapshot>,
    ) -> ProxyConfigSnapshot {
        let before = before.map(|site| &site.backends);
        ProxyConfigSnapshot {
            backends: UpstreamPool::new(&settings.backends, secured, before),
            upgrades: settings.upgrades.clone(),
            trust: ProxyTrust::new(&settings.trusted_proxies, &settings.client_address),
            timeouts: settings.timeouts,
            bounds: settings.bounds,
            keep_cost_header: settings.keep_cost_header,
            headers: settings.headers,
            http2: settings.http2,
        }
    }

    /// Returns the interval of the sweep: an eighth of the shortest timeout, between 5 and 500 ms.
    fn tick(&self) -> Duration {
        let timeouts = [self.timeouts.header, self.timeouts.idle, self.timeouts.backend];
        let shortest = timeouts.into_iter().filter(|timeout| !timeout.is_zero()).min();
        let eighth = shortest.unwrap_or(Duration::MAX) / 8;
        eighth.clamp(Duration::from_millis(5), Duration::from_millis(500))
    }
}

/// The longest interval of the sweep while there are streams, of which some may have to make room,
/// or while requests wait for a slot that a stalled upload holds.
const BUSY_TICK_MAX: Duration = Duration::from_millis(50);

/// The state that all threads of a proxy share.
#[derive(Default)]
pub(super) struct ProxyShared {
    /// The number of threads.
    threads: usize,
    /// The number of open client connections, with tunnels on streams and streams set aside.
    pub(super) connections: AtomicUsize,
    /// The number of connections that were still open when their thread ended.
    pub(super) cut: AtomicUsize,
    /// The number of connections per address, if there is a bound. It has no more entries than
    /// there are connections.
    addresses: Mutex<HashMap<IpAddr, usize>>,
    /// A thread has no room, and no idle connection of its own to close: another thread is to close
    /// one.
    room_wanted: AtomicBool,
}

impl ProxyShared {
    pub(super) fn of(threads: usize) -> ProxyShared {
        ProxyShared { threads, ..ProxyShared::default() }
    }
}

/// The state of one thread.
pub(super) struct ProxyWorker {
    pub(super) lane: EngineLane,
    /// The store that counts for all instances, if there is one.
    pub(super) store: Option<Rc<StoreRequests>>,
    pub(super) clock: Clock,
    pub(super) watch: Arc<Watch>,
    site: RefCell<Rc<ProxyConfigSnapshot>>,
    shared: Arc<ProxyShared>,
    /// The engine's clock, as of the last sweep.
    now: Cell<Time>,
    /// The links of open connections.
    links: LinkList,
    /// The links of open streams.
    pub(super) streams: LinkList,
    lingering: Cell<usize>,
    /// The number of streams that wait for their client: see `parked`.
    aside: Cell<usize>,
    /// The number of buffered bytes of requests' bodies.
    pub(super) kept: Cell<usize>,
    /// The total size of the heads of running streams, in bytes.
    heads: Cell<usize>,
    /// The write buffer that connections share, while none of them uses it.
    pub(super) gathering: SpareBuffer,
    /// Notified when a connection or an exchange without a client has ended.
    freed: Notify,
    drained: Notify,
    draining: Cell<bool>,
    stopping: Cell<bool>,
}

impl ProxyWorker {
    pub(super) fn new(
        (settings, secured): (&ProxySettings, &UpstreamTls),
        (lane, store): (EngineLane, Option<Rc<StoreRequests>>),
        clock: Clock,
        house: Arc<ProxyShared>,
        watch: Arc<Watch>,
    ) -> Rc<ProxyWorker> {
        Rc::new(ProxyWorker {
            lane,
            store,
            clock,
            watch,
            site: RefCell::new(Rc::new(ProxyConfigSnapshot::new(settings, secured, None))),
            shared: house,
            now: Cell::new(clock.now()),
            links: LinkList::default(),
            streams: LinkList::default(),
            lingering: Cell::new(0),
            aside: Cell::new(0),
            kept: Cell::new(0),
            heads: Cell::new(0),
            gathering: SpareBuffer::default(),
            freed: Notify::new(),
            drained: Notify::new(),
            draining: Cell::new(false),
            stopping: Cell::new(false),
        })
    }

    /// Returns the current settings.
    pub(super) fn site(&self) -> Rc<ProxyConfigSnapshot> {
        Rc::clone(&self.site.borrow())
    }

    /// Applies changed settings to requests that begin from now on.
    pub(super) fn reload(&self, settings: &ProxySettings, secured: &UpstreamTls) {
        let site = ProxyConfigSnapshot::new(settings, secured, Some(&self.site()));
        *self.site.borrow_mut() = Rc::new(site);
    }

    /// Returns the coarse time, as of the last sweep.
    pub(super) fn time(&self) -> Time {
        self.now.get()
    }

    /// Returns the coarse time in milliseconds.
    pub(super) fn now(&self) -> u64 {
        self.now.get().0 / 1_000_000
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Accepts no more connections, and lets every connection end after its current request.
    pub(super) fn drain(&self) {
        self.draining.set(true);
        self.drained.notify_waiters();
        for link in &*self.links.all() {
            link.wake();
        }
    }

    /// Prepares for the end of the thread: its tasks are about to be dropped, so nothing new may
    /// begin.
    pub(super) fn stop(&self) {
        self.stopping.set(true);
        self.site().backends.retire();
        self.shared.cut.fetch_add(self.links.len(), Ordering::Relaxed);
    }

    /// Waits until no connection is open and no exchange runs.
    pub(super) async fn empty(&self) {
        loop {
            let freed = self.freed.notified();
            if self.links.is_empty() && self.lingering.get() == 0 {
                return;
            }
            freed.await;
        }
    }

    /// Returns a place for an exchange without a client, or `None` if there are too many or the
    /// thread is about to end.
    pub(super) fn linger(self: &Rc<ProxyWorker>) -> Option<LingerGuard> {
        let most = match self.site.borrow().bounds.connections {
            0 => LINGERING_MAX,
            bound => LINGERING_MAX.min(bound.div_ceil(4)),
        };
        if self.stopping.get() || self.lingering.get() >= most {
            return None;
        }
        self.lingering.set(self.lingering.get() + 1);
        Some(LingerGuard(Rc::clone(self)))
    }

    /// Accepts connections until the thread drains.
    pub(super) async fn accept(
        self: Rc<ProxyWorker>,
        listener: TcpListener,
        shown: Option<LiveServerConfig>,
    ) {
        let shown = shown.as_ref();
        loop {
            for _ in 0..ACCEPT_BURST {
                let drained = self.drained.notified();
                if self.draining.get() {
                    return self.accept_waiting(listener, shown);
                }
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, peer)) => {
                            self.room().await;
                            self.welcome(stream, peer, shown);
                        }
                        Err(error) => self.accept_failed(&error).await,
                    },
                    () = drained => return self.accept_waiting(listener, shown),
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Accepts the connections that wait in the system's queue: closing the listener would reset
    /// them.
    fn accept_waiting(
        self: &Rc<ProxyWorker>,
        listener: TcpListener,
        shown: Option<&LiveServerConfig>,
    ) {
        for (stream, peer) in backlog::at(listener) {
            self.shared.connections.fetch_add(1, Ordering::Relaxed);
            self.welcome(stream, peer, shown);
        }
    }

    /// Waits before the next attempt. If the process has run out of file descriptors, for example,
    /// trying again at once does not help.
    async fn accept_failed(&self, error: &std::io::Error) {
        tracing::warn!(%error, "a connection could not be accepted; trying again in 100 ms");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    /// Takes the room for one more connection, waiting until there is some. A connection over the
    /// bound waits in the system's queue and costs nothing; an idle or late connection is closed to
    /// make room. (Accepting and closing would cost more and give the client less information.)
    async fn room(&self) {
        loop {
            if self.one_more(self.draining.get()) {
                return;
            }
            if !self.shed() {
                self.shared.room_wanted.store(true, Ordering::Relaxed);
            }
            let tick = self.site.borrow().tick();
            let _ = tokio::time::timeout(tick, self.freed.notified()).await;
        }
    }

    /// Takes the room for a connection if there is some, or in any case if `free`.
    fn one_more(&self, free: bool) -> bool {
        let bound = self.site.borrow().bounds.connections;
        let one_more = |open| (free || bound == 0 || open < bound).then_some(open + 1);
        let open = &self.shared.connections;
        let taken = open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        if !taken {
            self.watch.warn_connections_full(bound, self.time());
        }
        taken
    }

    /// Closes the connection that could be spared for the longest time: idle, or late with a head
    /// or with a body that no backend waits for. Returns whether there was one.
    fn shed(&self) -> bool {
        let links = self.links.all();
        let now = self.now();
        let trickling = self.trickling(now);
        let spare = links.iter().filter_map(|link| {
            let since = link.spare_since(now, trickling.contains(&Rc::as_ptr(link)));
            Some((since?, link))
        });
        let longest = spare.min_by_key(|(since, _)| *since);
        if let Some((_, link)) = longest {
            self.watch.proxy.shed.increment(1);
            link.close();
        }
        longest.is_some()
    }

    fn welcome(
        self: &Rc<ProxyWorker>,
        stream: TcpStream,
        peer: SocketAddr,
        shown: Option<&LiveServerConfig>,
    ) {
        let _ = stream.set_nodelay(true);
        let link = Rc::new(ClientLink::new(peer, shown.is_some(), self.now()));
        let seat = ConnectionGuard::take(self, &link);
        let (worker, shown) = (Rc::clone(self), shown.cloned());
        tokio::task::spawn_local(async move {
            worker.converse(stream, link, shown).await;
            drop(seat);
        });
    }

    /// Counts and logs that the backend `name` failed the request on `link`.
    pub(super) fn failed(&self, link: &ClientLink, name: &str, failure: &UpstreamFailure) {
        let error = failure.error.as_deref();
        let (fault, client) = (failure.fault, link.client.get());
        let failure = failure::BackendFailure { fault, backend: name, client, error };
        self.watch.failed(&failure, self.time());
    }

    /// Updates the coarse time and enforces all timeouts, until the thread ends.
    pub(super) async fn sweep(self: Rc<ProxyWorker>) {
        loop {
            let site = self.site();
            let often = !self.streams.is_empty() || self.lane.is_crowded();
            let tick = if often { site.tick().min(BUSY_TICK_MAX) } else { site.tick() };
            tokio::time::sleep(tick).await;
            self.now.set(self.clock.now());
            let now = self.now();
            // A time may have been stored before there were streams, when the interval was longer.
            let slack = u64::try_from(site.tick().as_millis()).unwrap_or(0);
            let draining = self.draining.get();
            let crowded = self.lane.is_crowded();
            for link in self.links.all().iter().chain(self.streams.all().iter()) {
                if !link.is_closed() && link.sweep(&site.timeouts, now, slack) {
                    self.watch.proxy.bad_requests.increment(1);
                    let client = link.client.get();
                    tracing::debug!(target: "evenkeel::proxy", %client, "closed: too slow");
                }
                if is_slow(link, now) {
                    self.set_aside(link);
                }
                self.check_upload(link, crowded, now);
                // Not at once: a client that is about to send a request would lose it.
                if draining && link.is_long_silent(now) {
                    link.close();
                }
            }
            self.lane.expire();
            site.backends.prune(now);
            if self.shared.room_wanted.swap(false, Ordering::Relaxed) && !self.shed() {
                self.shared.room_wanted.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// A connection's entry in the list of links and its room, given back when its task ends, even by a
/// panic.
struct ConnectionGuard {
    worker: Rc<ProxyWorker>,
    link: Rc<ClientLink>,
    _counted: GaugeGuard,
}

impl ConnectionGuard {
    fn take(worker: &Rc<ProxyWorker>, link: &Rc<ClientLink>) -> ConnectionGuard {
        worker.watch.proxy.accepted.increment(1);
        let counted = worker.watch.proxy.connections.hold();
        worker.links.add(link);
        ConnectionGuard { worker: Rc::clone(worker), link: Rc::clone(link), _counted: counted }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.worker.links.remove(&self.link);
        self.worker.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.worker.freed.notify_waiters();
    }
}

/// The room that a tunnel on a stream takes, like the connection of its own that it would be in
/// HTTP/1.1. Given back when the tunnel ends.
pub(super) struct TunnelRoom {
    worker: Rc<ProxyWorker>,
    _share: AddressShare,
    _counted: GaugeGuard,
}

impl TunnelRoom {
    /// Returns `None` if there is no room, or the peer of `link` has its maximum number of
    /// connections.
    pub(super) fn take(worker: &Rc<ProxyWorker>, link: &ClientLink) -> Option<TunnelRoom> {
        let share = AddressShare::take(worker, link)?;
        let counted = worker.watch.proxy.connections.hold();
        // The connection closed for it gives its own room back when it ends.
        let taken = worker.one_more(false) || (worker.shed() && worker.one_more(true));
        if !taken {
            worker.shared.room_wanted.store(true, Ordering::Relaxed);
        }
        taken.then(|| TunnelRoom { worker: Rc::clone(worker), _share: share, _counted: counted })
    }
}

impl Drop for TunnelRoom {
    fn drop(&mut self) {
        self.worker.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.worker.freed.notify_waiters();
    }
}

/// One of the connections that an address may have, given back when it ends.
pub(super) struct AddressShare(Option<(Rc<ProxyWorker>, IpAddr)>);

impl AddressShare {
    /// Returns the address to count a connection from `peer` for, if it is counted.
    fn of(site: &ProxyConfigSnapshot, peer: IpAddr) -> Option<IpAddr> {
        let bound = site.bounds.connections_per_address;
        (bound > 0 && !site.trust.trusts(peer)).then(|| one_client(peer))
    }

    /// Returns `None`, and counts the refusal, if the peer of `link` has its maximum number of
    /// connections.
    pub(super) fn take(worker: &Rc<ProxyWorker>, link: &ClientLink) -> Option<AddressShare> {
        let site = worker.site();
        let Some(peer) = AddressShare::of(&site, link.peer()) else {
            return Some(AddressShare(None));
        };
        let bound = site.bounds.connections_per_address;
        let mut addresses = worker.shared.addresses.lock();
        let count = addresses.entry(peer).or_default();
        if *count >= bound {
            worker.watch.proxy.refused_connections(ConnectionRefusal::Address).increment(1);
            return None;
        }
        *count += 1;
        Some(AddressShare(Some((Rc::clone(worker), peer))))
    }
}

impl Drop for AddressShare {
    fn drop(&mut self) {
        let Some((worker, peer)) = &self.0 else { return };
        let mut addresses = worker.shared.addresses.lock();
        if let Some(count) = addresses.get_mut(peer) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(peer);
            }
        }
    }
}

/// Returns the address that stands for a client: an IPv6 client has all addresses of its network of
/// 64 bits.
fn one_client(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

/// The place of an exchange without a client, given back when dropped.
pub(super) struct LingerGuard(Rc<ProxyWorker>);

impl Drop for LingerGuard {
    fn drop(&mut self) {
        self.0.lingering.set(self.0.lingering.get() - 1);
        self.0.freed.notify_waiters();
    }
}

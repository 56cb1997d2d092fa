//! One thread of the proxy: its listeners, its connections, its pool, and the sweep that looks
//! after their timeouts. Nothing of it is shared with other threads but the engine and a count of
//! connections.
//!
//! How threads are started and stopped: `proxy.rs`. How a connection is served: `front.rs`. What is
//! done with a request: `exchange.rs`. Who is asked: `backends.rs`.

mod aside;
mod heads;

use super::backends::{Backends, Secured};
use super::exchange::Failure;
use super::front::Shown;
use super::front::gathered::Spare;
use super::link::Link;
use super::link::list::List;
use crate::client::address::Trust;
use crate::clock::Clock;
use crate::config::settings::{Bounds, Proxy, Timeouts};
use crate::engine::Lane;
use crate::run::waiting;
use crate::store::requests::Requests;
use crate::watch::Watch;
use crate::watch::counts::Turned;
use crate::watch::failure;
use crate::watch::registry::Held;
use aside::is_slow;
use evenkeel_core::units::Time;
pub(super) use heads::HeadRoom;
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

/// Connections accepted before those there are get their turn again.
const ACCEPT_BURST: usize = 16;

/// Exchanges without a client that a thread lets run. Who is over closes its connection to the
/// backend at once, or clients that come and go would pile up connections that nothing bounds.
const LINGERING_MAX: usize = 1024;

/// The settings as one thread uses them; replaced whole on reload.
pub(super) struct Site {
    pub(super) backends: Backends,
    /// Protocols that may be switched to.
    pub(super) upgrades: Vec<String>,
    pub(super) trust: Trust,
    pub(super) timeouts: Timeouts,
    pub(super) bounds: Bounds,
    pub(super) keep_cost_header: bool,
    /// Whether clients are told how they stand.
    pub(super) headers: bool,
    /// Whether HTTP/2 is spoken with clients.
    pub(super) http2: bool,
}

impl Site {
    /// `before`: the one that it replaces.
    fn new(settings: &Proxy, secured: &Secured, before: Option<&Site>) -> Site {
        let before = before.map(|site| &site.backends);
        Site {
            backends: Backends::new(&settings.backends, secured, before),
            upgrades: settings.upgrades.clone(),
            trust: Trust::new(&settings.trusted_proxies, &settings.client_address),
            timeouts: settings.timeouts,
            bounds: settings.bounds,
            keep_cost_header: settings.keep_cost_header,
            headers: settings.headers,
            http2: settings.http2,
        }
    }

    /// How often the sweep looks: an eighth of the shortest timeout, between 5 and 500 ms.
    fn tick(&self) -> Duration {
        let timeouts = [self.timeouts.header, self.timeouts.idle, self.timeouts.backend];
        let shortest = timeouts.into_iter().filter(|timeout| !timeout.is_zero()).min();
        let eighth = shortest.unwrap_or(Duration::MAX) / 8;
        eighth.clamp(Duration::from_millis(5), Duration::from_millis(500))
    }
}

/// How often the sweep looks at least while there are streams, of which some may have to make room,
/// or requests wait for a slot that a stalled upload keeps.
const OFTEN_TICK: Duration = Duration::from_millis(50);

/// What all threads of a proxy share.
#[derive(Default)]
pub(super) struct House {
    /// How many there are.
    threads: usize,
    /// Client connections open now.
    pub(super) connections: AtomicUsize,
    /// Those that were open still when their thread ended.
    pub(super) cut: AtomicUsize,
    /// How many each address has, where there is a bound: no more entries than connections.
    addresses: Mutex<HashMap<IpAddr, usize>>,
    /// A thread has no room and no idle connection of its own: others are to close one.
    room_wanted: AtomicBool,
}

impl House {
    pub(super) fn of(threads: usize) -> House {
        House { threads, ..House::default() }
    }
}

/// One thread.
pub(super) struct Worker {
    pub(super) lane: Lane,
    /// Who counts for all instances, if somebody does.
    pub(super) store: Option<Rc<Requests>>,
    pub(super) clock: Clock,
    pub(super) watch: Arc<Watch>,
    site: RefCell<Rc<Site>>,
    house: Arc<House>,
    /// The engine's clock, as of the last sweep.
    now: Cell<Time>,
    /// Connections.
    links: List,
    /// Streams of those that have streams.
    pub(super) streams: List,
    lingering: Cell<usize>,
    /// Streams that wait for their client: see `aside`.
    aside: Cell<usize>,
    /// Bytes of requests' bodies that are kept back.
    pub(super) kept: Cell<usize>,
    /// Bytes of the heads of streams.
    heads: Cell<usize>,
    /// A buffer for what is written together, while no connection has it.
    pub(super) gathering: Spare,
    /// Something ended: a connection, or an exchange without a client.
    freed: Notify,
    drained: Notify,
    draining: Cell<bool>,
    stopping: Cell<bool>,
}

impl Worker {
    pub(super) fn new(
        (settings, secured): (&Proxy, &Secured),
        (lane, store): (Lane, Option<Rc<Requests>>),
        clock: Clock,
        house: Arc<House>,
        watch: Arc<Watch>,
    ) -> Rc<Worker> {
        Rc::new(Worker {
            lane,
            store,
            clock,
            watch,
            site: RefCell::new(Rc::new(Site::new(settings, secured, None))),
            house,
            now: Cell::new(clock.now()),
            links: List::default(),
            streams: List::default(),
            lingering: Cell::new(0),
            aside: Cell::new(0),
            kept: Cell::new(0),
            heads: Cell::new(0),
            gathering: Spare::default(),
            freed: Notify::new(),
            drained: Notify::new(),
            draining: Cell::new(false),
            stopping: Cell::new(false),
        })
    }

    /// The settings of this moment.
    pub(super) fn site(&self) -> Rc<Site> {
        Rc::clone(&self.site.borrow())
    }

    /// Takes over changed settings, for requests that begin from now on.
    pub(super) fn reload(&self, settings: &Proxy, secured: &Secured) {
        let site = Site::new(settings, secured, Some(&self.site()));
        *self.site.borrow_mut() = Rc::new(site);
    }

    /// Coarse time: as of the last sweep.
    pub(super) fn time(&self) -> Time {
        self.now.get()
    }

    /// The same in milliseconds.
    pub(super) fn now(&self) -> u64 {
        self.now.get().0 / 1_000_000
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Accepts no more, and lets every connection end after the request it is at.
    pub(super) fn drain(&self) {
        self.draining.set(true);
        self.drained.notify_waiters();
        for link in &*self.links.all() {
            link.wake();
        }
    }

    /// From now on nothing may be begun: the thread's tasks are about to be dropped.
    pub(super) fn stop(&self) {
        self.stopping.set(true);
        self.site().backends.retire();
        self.house.cut.fetch_add(self.links.len(), Ordering::Relaxed);
    }

    /// Until no connection is open and no exchange runs.
    pub(super) async fn empty(&self) {
        loop {
            let freed = self.freed.notified();
            if self.links.is_empty() && self.lingering.get() == 0 {
                return;
            }
            freed.await;
        }
    }

    /// A place for an exchange without a client; `None` when there are too many, or the thread is
    /// about to end.
    pub(super) fn linger(self: &Rc<Worker>) -> Option<Lingering> {
        let most = match self.site.borrow().bounds.connections {
            0 => LINGERING_MAX,
            bound => LINGERING_MAX.min(bound.div_ceil(4)),
        };
        if self.stopping.get() || self.lingering.get() >= most {
            return None;
        }
        self.lingering.set(self.lingering.get() + 1);
        Some(Lingering(Rc::clone(self)))
    }

    /// Accepts connections until the thread drains.
    pub(super) async fn accept(self: Rc<Worker>, listener: TcpListener, shown: Option<Shown>) {
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

    /// Takes in who has connected already: to close the listener would reset them.
    fn accept_waiting(self: &Rc<Worker>, listener: TcpListener, shown: Option<&Shown>) {
        for (stream, peer) in waiting::at(listener) {
            self.house.connections.fetch_add(1, Ordering::Relaxed);
            self.welcome(stream, peer, shown);
        }
    }

    /// Running out of descriptors, say: nothing gets better by asking again at once.
    async fn accept_failed(&self, error: &std::io::Error) {
        tracing::warn!(%error, "a connection could not be accepted; trying again in 100 ms");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    /// Takes the room for one more connection, waiting until there is some. Who is over the bound
    /// waits in the system's queue and costs nothing; one that is idle or late makes room. (To
    /// accept and close would cost more, and tell the client less.)
    async fn room(&self) {
        loop {
            if self.one_more(self.draining.get()) {
                return;
            }
            if !self.shed() {
                self.house.room_wanted.store(true, Ordering::Relaxed);
            }
            let tick = self.site.borrow().tick();
            let _ = tokio::time::timeout(tick, self.freed.notified()).await;
        }
    }

    /// Takes the room for a connection if there is some, or `free` is to be had without.
    fn one_more(&self, free: bool) -> bool {
        let bound = self.site.borrow().bounds.connections;
        let one_more = |open| (free || bound == 0 || open < bound).then_some(open + 1);
        let open = &self.house.connections;
        let taken = open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok();
        if !taken {
            self.watch.full(bound, self.time());
        }
        taken
    }

    /// Closes the connection that has been idle longest, or late with a head or a body that no
    /// backend waits for, if one is.
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

    fn welcome(self: &Rc<Worker>, stream: TcpStream, peer: SocketAddr, shown: Option<&Shown>) {
        let _ = stream.set_nodelay(true);
        let link = Rc::new(Link::new(peer, shown.is_some(), self.now()));
        let seat = Seat::take(self, &link);
        let (worker, shown) = (Rc::clone(self), shown.cloned());
        tokio::task::spawn_local(async move {
            worker.converse(stream, link, shown).await;
            drop(seat);
        });
    }

    /// Counts and tells that the backend of that name failed the request on `link`.
    pub(super) fn failed(&self, link: &Link, name: &str, failure: &Failure) {
        let error = failure.error.as_deref();
        let (fault, client) = (failure.fault, link.client.get());
        let failure = failure::Failure { fault, backend: name, client, error };
        self.watch.failed(&failure, self.time());
    }

    /// Keeps the coarse time, and looks after everybody's timeouts, until the thread ends.
    pub(super) async fn sweep(self: Rc<Worker>) {
        loop {
            let site = self.site();
            let often = !self.streams.is_empty() || self.lane.is_crowded();
            let tick = if often { site.tick().min(OFTEN_TICK) } else { site.tick() };
            tokio::time::sleep(tick).await;
            self.now.set(self.clock.now());
            let now = self.now();
            // A time may have been noted before there were streams, when looks were rarer.
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
                    self.step_aside(link);
                }
                self.press(link, crowded, now);
                // Not at once: who is about to ask would lose the request.
                if draining && link.is_forsaken(now) {
                    link.close();
                }
            }
            self.lane.expire();
            site.backends.prune(now);
            if self.house.room_wanted.swap(false, Ordering::Relaxed) && !self.shed() {
                self.house.room_wanted.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// A connection's place in the lists and its room, given back when its task ends, however it ends.
struct Seat {
    worker: Rc<Worker>,
    link: Rc<Link>,
    _counted: Held,
}

impl Seat {
    fn take(worker: &Rc<Worker>, link: &Rc<Link>) -> Seat {
        worker.watch.proxy.accepted.increment(1);
        let counted = worker.watch.proxy.connections.hold();
        worker.links.add(link);
        Seat { worker: Rc::clone(worker), link: Rc::clone(link), _counted: counted }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.worker.links.remove(&self.link);
        self.worker.house.connections.fetch_sub(1, Ordering::Relaxed);
        self.worker.freed.notify_waiters();
    }
}

/// What a tunnel on a stream takes, like the connection of its own that it would have with
/// HTTP/1.1; given back when it ends.
pub(super) struct Room {
    worker: Rc<Worker>,
    _share: Share,
    _counted: Held,
}

impl Room {
    /// `None` if there is none, or the other end of `link` has as many connections as it may have.
    pub(super) fn take(worker: &Rc<Worker>, link: &Link) -> Option<Room> {
        let share = Share::take(worker, link)?;
        let counted = worker.watch.proxy.connections.hold();
        // Who is closed for it gives its room back by itself.
        let taken = worker.one_more(false) || (worker.shed() && worker.one_more(true));
        if !taken {
            worker.house.room_wanted.store(true, Ordering::Relaxed);
        }
        taken.then(|| Room { worker: Rc::clone(worker), _share: share, _counted: counted })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.worker.house.connections.fetch_sub(1, Ordering::Relaxed);
        self.worker.freed.notify_waiters();
    }
}

/// One of the connections that an address may have, given back when it ends.
pub(super) struct Share(Option<(Rc<Worker>, IpAddr)>);

impl Share {
    /// Whose connections are counted if one comes from `peer`.
    fn of(site: &Site, peer: IpAddr) -> Option<IpAddr> {
        let bound = site.bounds.connections_per_address;
        (bound > 0 && !site.trust.trusts(peer)).then(|| one_client(peer))
    }

    /// `None`, which is counted, if the other end of `link` has as many as it may have.
    pub(super) fn take(worker: &Rc<Worker>, link: &Link) -> Option<Share> {
        let site = worker.site();
        let Some(peer) = Share::of(&site, link.peer()) else { return Some(Share(None)) };
        let bound = site.bounds.connections_per_address;
        let mut addresses = worker.house.addresses.lock();
        let count = addresses.entry(peer).or_default();
        if *count >= bound {
            worker.watch.proxy.turned(Turned::Address).increment(1);
            return None;
        }
        *count += 1;
        Some(Share(Some((Rc::clone(worker), peer))))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some((worker, peer)) = &self.0 else { return };
        let mut addresses = worker.house.addresses.lock();
        if let Some(count) = addresses.get_mut(peer) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(peer);
            }
        }
    }
}

/// What counts as one client: who has an IPv6 network of 64 bits has all addresses in it.
fn one_client(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

/// The place of an exchange without a client.
pub(super) struct Lingering(Rc<Worker>);

impl Drop for Lingering {
    fn drop(&mut self) {
        self.0.lingering.set(self.0.lingering.get() - 1);
        self.0.freed.notify_waiters();
    }
}

//! The driver of counting together. It connects the engines, the replica that decides what to
//! report, the transport and the clock.
//!
//! The driver has a thread and a runtime of its own. It collects the charges of the engines several
//! times a second, and applies the charges of other instances as they arrive. It tells the others
//! of the clients that the queues remember, some each second. No request waits for
//! it: where there is no room, frames or charges are dropped and counted, and without peers each
//! instance enforces its limits alone. What is reported and what is believed:
//! `evenkeel_core::replica`. Metrics and status: `status`.

mod handover;
mod queues;
mod state;
#[cfg(test)]
mod tests;

use super::status::PeerReporter;
use super::status::queue::QueueReports;
use super::{LinkId, RunningTransport, TransportEvent, TransportOrder, link};
use anyhow::Context;
use bytes::Bytes;
use evenkeel_config::secret::SecretError;
use evenkeel_config::settings::peers::{PeerTransport, PeersSettings};
use evenkeel_core::key::{KeyHash, KeySeed};
use evenkeel_core::queue::SharedClient;
use evenkeel_core::queue::shared::InstanceId;
use evenkeel_core::replica::{self, REPLICA_BOUNDS, Replica, ReplicaUpdate};
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_engine::replicated::{NamedClient, Replicated};
use evenkeel_runtime::clock::Clock;
use evenkeel_runtime::thread::OwnedThread;
use evenkeel_telemetry::Watch;
use handover::HandoverOrder;
pub use handover::set_handover;
use queues::SharedQueues;
use state::BucketId;
use std::collections::{HashMap, VecDeque};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use tokio::sync::mpsc;

/// The longest interval between two collections of charges. With a short period they are collected
/// more often.
const COLLECT_INTERVAL: Nanos = Nanos::from_millis(200);
/// The pause before the driver tries again to send, after there was no room or a burst has ended.
const SEND_RETRY_DELAY: Nanos = Nanos::from_millis(5);
/// The number of datagrams in one burst. Receivers have room for some hundred.
const BURST_DATAGRAMS: usize = 32;
/// The time in which the last report must be handed to the transport at the end.
const FAREWELL_TIMEOUT: Nanos = Nanos::from_secs(1);
/// The interval at which the status of the peers is updated.
const STATUS_INTERVAL: Nanos = Nanos::from_secs(1);
/// The interval at which clients are told of that were served meanwhile, if all of them have been
/// told of by then.
const CLIENTS_INTERVAL: Nanos = Nanos::from_secs(10);
/// The number of clients that are told of in [`STATUS_INTERVAL`], of at most 16 bytes each. A full
/// table of default size takes a minute.
const CLIENTS_AT_ONCE: usize = 1_100;
/// The number of periods between two reports of the names of keys.
const NAMES_EVERY_PERIODS: u64 = 6;
/// The thread of the driver. It ends when this is dropped.
pub type PeersThread = OwnedThread<mpsc::Sender<HandoverOrder>>;

/// The content of the messages that instances exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerExchange {
    /// Charges, the clients that queues remember, and the messages of shared queues.
    All {
        /// Whether the buckets have charges from before the start, which peers may have too.
        is_restored: bool,
    },
    /// All but charges: a store counts them.
    ExceptCharges,
}

/// Starts to exchange messages with the other instances. `listener`: the socket of a mesh; without
/// one it opens its own. The engines whose charges are exchanged must note them already
/// ([`Replicated::start_sharing`]), so that none is missed while the transport starts.
///
/// # Errors
/// The transport cannot start, or the system gives no thread or no random numbers.
pub fn start(
    settings: &PeersSettings,
    exchange: PeerExchange,
    engines: Vec<Arc<dyn Replicated>>,
    listener: Option<TcpListener>,
    clock: Clock,
    watch: &Arc<Watch>,
) -> anyhow::Result<PeersThread> {
    let mut node = [0; 8];
    aws_lc_rs::rand::fill(&mut node).ok().context("no random numbers")?;
    let node = u64::from_le_bytes(node);
    let (orders, ordered) = mpsc::channel(1);
    let (told, began) = sync_channel(1);
    let (settings, watch) = (settings.clone(), Arc::clone(watch));
    let run = async move || match link::start(&settings, listener, clock, watch.registry()).await {
        Ok(transport) => {
            let parts = (exchange, engines, transport);
            let driver = PeerDriver::new(&settings, parts, clock, watch, node);
            let _ = told.send(Ok(()));
            driver.run(ordered).await;
        }
        Err(error) => {
            let _ = told.send(Err(error));
        }
    };
    let thread = OwnedThread::serve("peers", orders, (), run)?;
    began.recv().context("the peer thread has ended")??;
    Ok(thread)
}

/// The seed with which all instances of a cluster hash their keys. It follows from the cluster's
/// name and the secret. With certificates alone it follows from the certificate of the authority,
/// which is not secret, so that anyone who has it could find keys that share a bucket. An
/// additional secret prevents that.
///
/// # Errors
/// The secret or the certificate cannot be read.
pub fn seed(settings: &PeersSettings) -> Result<KeySeed, SecretError> {
    use evenkeel_config::secret;
    let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
    let mut part = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_le_bytes());
        context.update(bytes);
    };
    part(b"evenkeel: keys of buckets, 1");
    part(settings.cluster.as_bytes());
    if let Some(path) = &settings.secret_file {
        part(secret::token(path)?.as_bytes());
    } else if let Some(tls) = &settings.tls {
        part(secret::authority(&tls.ca)?.as_bytes());
    }
    let digest = context.finish();
    let mut seed = KeySeed([0; 16]);
    seed.0.copy_from_slice(&digest.as_ref()[..16]);
    Ok(seed)
}

/// A shared limit: the index of its engine and its fingerprint there.
#[derive(Clone, Copy)]
struct EngineLimit {
    engine: usize,
    fingerprint: u64,
}

/// The engines, the replica and the transport of this instance.
struct PeerDriver {
    engines: Vec<Arc<dyn Replicated>>,
    clock: Clock,
    transport: RunningTransport,
    replica: Replica,
    queues: SharedQueues,
    /// Links to close as soon as the transport has room for the order.
    drops: Vec<LinkId>,
    /// Orders that the transport gets before further frames.
    orders: VecDeque<TransportOrder>,
    /// Whether a successor is to take the place of this instance.
    has_successor: bool,
    /// The shared limits, in the order of the replica's limits.
    places: Vec<EngineLimit>,
    /// The address of the peer on each link.
    addresses: HashMap<u64, String>,
    /// Whether charges are exchanged.
    counts: bool,
    /// Whether the CPUs of all instances are added up, and shares are of the sum.
    adds_up: bool,
    collect_every: Nanos,
    collect_at: Time,
    send_at: Option<Time>,
    show_at: Time,
    /// The clients of which the others are to be told, with the fingerprint of their table.
    clients: VecDeque<(u64, KeyHash, SharedClient)>,
    clients_at: Time,
    periods: u64,
    shown: PeerReporter,
}

/// A reason for the driver to wake up.
enum DriverEvent {
    Said(TransportEvent),
    Time,
    /// A shared queue has messages.
    Queue,
    /// A successor is started, or has failed.
    Handover(HandoverOrder),
    /// The transport has ended by itself.
    Lost,
    End,
}

impl PeerDriver {
    fn new(
        settings: &PeersSettings,
        (exchange, engines, transport): (PeerExchange, Vec<Arc<dyn Replicated>>, RunningTransport),
        clock: Clock,
        watch: Arc<Watch>,
        node: u64,
    ) -> PeerDriver {
        let now = clock.now();
        let counts = exchange != PeerExchange::ExceptCharges;
        let period = Nanos(u64::try_from(settings.period.as_nanos()).unwrap_or(u64::MAX));
        let name = name(settings);
        let replica = replica::ReplicaSettings {
            node,
            life: now.0,
            name: name.clone(),
            period,
            frame_max: transport.frame_max,
            reliable: transport.reliable,
            cpus_milli: 0,
            nodes_max: settings.nodes_max,
        };
        let own = InstanceId { life: replica.life, node };
        // Messages about a queue need links that keep their order.
        let sharing = if transport.urgent.is_some() { engines.clone() } else { Vec::new() };
        let mut driver = PeerDriver {
            replica: Replica::new(replica, Vec::new(), now),
            queues: SharedQueues::new(own, sharing),
            drops: Vec::new(),
            orders: VecDeque::new(),
            has_successor: false,
            engines,
            clock,
            transport,
            places: Vec::new(),
            addresses: HashMap::new(),
            counts,
            adds_up: counts && !settings.cpus_shared,
            collect_every: COLLECT_INTERVAL.min(Nanos(period.0 / 4)),
            collect_at: now,
            send_at: None,
            show_at: now,
            clients: VecDeque::new(),
            clients_at: now,
            periods: 0,
            shown: PeerReporter::new(settings, name, watch),
        };
        if exchange == (PeerExchange::All { is_restored: true }) {
            driver.replica.set_restored();
        }
        driver.look_at_limits();
        driver
    }

    /// Runs until it is stopped or the transport ends.
    async fn run(mut self, mut orders: mpsc::Receiver<HandoverOrder>) {
        loop {
            let due = self.collect_at.min(self.replica.poll_timeout()).min(self.show_at);
            let soon = [self.send_at, self.queues.poll_timeout()].into_iter().flatten();
            let due = self.clock.instant(soon.chain([due]).min().unwrap_or(due));
            let happens = tokio::select! {
                order = orders.recv() => order.map_or(DriverEvent::End, DriverEvent::Handover),
                event = self.transport.events.recv() => {
                    event.map_or(DriverEvent::Lost, DriverEvent::Said)
                }
                () = self.queues.woken() => DriverEvent::Queue,
                () = tokio::time::sleep_until(due) => DriverEvent::Time,
            };
            let now = self.clock.now();
            match happens {
                DriverEvent::Said(event) => self.hear(event, now),
                DriverEvent::Queue => {}
                DriverEvent::Time => self.time(now),
                DriverEvent::Handover(order) => self.hand_over(&order, now),
                DriverEvent::Lost => {
                    self.queues.end();
                    tracing::error!(
                        target: "evenkeel::peers",
                        "the peer thread has ended: this instance counts alone"
                    );
                    return;
                }
                DriverEvent::End => return self.farewell(now).await,
            }
            self.events(now);
            self.queues.flush(&mut self.replica, now);
            self.send(now);
            // The transport has its turn also while there is always something to do here.
            tokio::task::yield_now().await;
        }
    }

    /// Sends the last charges to the peers, within [`FAREWELL_TIMEOUT`].
    async fn farewell(mut self, now: Time) {
        self.queues.end();
        self.collect(now);
        self.replica.handle_shutdown(now);
        let end = now.plus(FAREWELL_TIMEOUT);
        while self.clock.now() < end {
            self.send(now);
            let orders = &self.transport.orders;
            if self.send_at.is_none() && orders.capacity() == orders.max_capacity() {
                break;
            }
            tokio::time::sleep_until(self.clock.instant(self.clock.now().plus(SEND_RETRY_DELAY)))
                .await;
        }
        // The transport writes what it has accepted at once, if there is room.
        tokio::time::sleep_until(self.clock.instant(self.clock.now().plus(SEND_RETRY_DELAY))).await;
    }

    fn hear(&mut self, event: TransportEvent, now: Time) {
        match event {
            TransportEvent::Up { link, peer } => {
                tracing::debug!(
                    target: "evenkeel::peers", %peer,
                    "a connection to a peer is established"
                );
                self.addresses.insert(link.0, peer);
                self.replica.handle_up(link.0, now);
            }
            TransportEvent::Frame { link, bytes } => self.frame(link, &bytes, now),
            TransportEvent::Down { link, why, is_gone } => {
                let peer = self.addresses.remove(&link.0).unwrap_or_default();
                tracing::info!(
                    target: "evenkeel::peers", %peer, %why,
                    "a connection to a peer has ended"
                );
                self.replica.handle_down(link.0, is_gone, now);
            }
            TransportEvent::Refused { from, why } => self.shown.note_refused(&from, &why, now),
        }
    }

    fn frame(&mut self, link: LinkId, bytes: &Bytes, now: Time) {
        if self.replica.awaits_state() {
            self.collect(now);
        }
        let PeerDriver { replica, queues, engines, places, .. } = self;
        let engine = |limit: usize| {
            let place = places.get(limit)?;
            Some((engines.get(place.engine)?, place.fingerprint))
        };
        let (mut clients, mut state) = (Vec::new(), Vec::new());
        let mut told = |told: ReplicaUpdate<'_>| match told {
            ReplicaUpdate::Charge { limit, context, key, amount, age } => {
                if let Some((engine, mark)) = engine(limit) {
                    engine.apply_delta(mark, context, key, amount, age);
                }
            }
            ReplicaUpdate::Short { limit, key, deficit } => state.push(((limit, key), deficit)),
            ReplicaUpdate::Client { table, key, record } => clients.push((table, key, record)),
            ReplicaUpdate::Queue { queue, from, messages } => {
                queues.handle_messages(queue, from, messages);
            }
            ReplicaUpdate::Name { limit, key, name } => {
                if let Some((engine, mark)) = engine(limit) {
                    engine.apply_name(mark, key, name);
                }
            }
        };
        if let Err(fault) = replica.handle_frame(link.0, bytes, now, &mut told) {
            let from = self.addresses.get(&link.0).map_or("", String::as_str);
            self.shown.note_refused(from, &fault.to_string(), now);
        }
        self.add_state(state, now);
        // A frame has many, and a queue is locked once for all of them.
        if !clients.is_empty() {
            self.engines.iter().for_each(|engine| engine.apply_clients(&clients));
        }
    }

    /// Does what is due by the clock.
    fn time(&mut self, now: Time) {
        self.queues.handle_timeout(now);
        if now >= self.collect_at {
            self.collect(now);
            // Not from the beginning: what waits has its turn before the next collection.
            self.collect_at = self.clock.now().plus(self.collect_every);
        }
        if now >= self.replica.poll_timeout() {
            self.collect(now);
            self.period(now);
        }
        if now >= self.show_at {
            self.show_at = now.plus(STATUS_INTERVAL);
            self.share_cpus(now);
            self.tell_clients(now);
            let queues = QueueReports::of(&self.engines);
            self.shown.show(&self.replica, &self.addresses, &queues, now);
        }
    }

    /// Moves the charges of the engines into the replica.
    fn collect(&mut self, now: Time) {
        self.collect_charges(now, &mut |_, _| {});
    }

    /// Moves the charges of the engines into the replica, and passes them to `charged`.
    fn collect_charges(&mut self, now: Time, charged: &mut dyn FnMut(BucketId, Cost)) {
        let PeerDriver { engines, replica, shown, .. } = self;
        for engine in engines {
            let dropped = engine.spent(&mut |mark, context, key, amount| {
                if let Some(place) = replica.place(mark) {
                    replica.charge(place, context, key, amount, now);
                    charged((place, key), amount);
                }
            });
            shown.count_dropped(dropped);
        }
    }

    fn period(&mut self, now: Time) {
        self.look_at_limits();
        self.periods += 1;
        if self.periods.is_multiple_of(NAMES_EVERY_PERIODS) {
            self.tell_names(now);
        }
        self.replica.handle_timeout(now);
    }

    /// Passes the current limits to the replica, because a reload may have changed them.
    fn look_at_limits(&mut self) {
        let mut places = Vec::new();
        let mut limits = Vec::new();
        for (index, engine) in self.engines.iter().enumerate().filter(|_| self.counts) {
            for shared in engine.shared() {
                places.push(EngineLimit { engine: index, fingerprint: shared.fingerprint });
                limits.push(shared);
            }
        }
        self.queues.look(&mut self.replica);
        self.replica.set_cpus((self.cpus() * 1_000.0).round() as u32);
        if limits != self.replica.limits() {
            self.replica.set_limits(limits);
            self.places = places;
        }
    }

    /// The number of CPUs that the engines of this instance share out; none if those are the
    /// successor's.
    fn cpus(&self) -> f64 {
        let engines = self.engines.iter().filter(|_| !self.has_successor);
        engines.filter_map(|engine| engine.cpus()).sum()
    }

    /// Updates the engines' number of CPUs. Shares are of the CPUs of all live instances, unless
    /// all of them stand before one backend.
    fn share_cpus(&self, now: Time) {
        if self.adds_up {
            let others = self.replica.others_cpus_milli(now) as f64 / 1_000.0;
            self.engines.iter().for_each(|engine| engine.set_total_cpus(self.cpus() + others));
        }
    }

    fn tell_names(&mut self, now: Time) {
        let heaviest =
            self.engines.iter().flat_map(|engine| engine.heaviest(REPLICA_BOUNDS.names_max));
        let mut named: Vec<NamedClient> = heaviest.collect();
        named.sort_by(|a, b| b.cost.total_cmp(&a.cost));
        let place = |named: &NamedClient| self.replica.place(named.fingerprint);
        let places: Vec<_> = named.iter().map(place).collect();
        let names = places.into_iter().zip(&named);
        let names = names.filter_map(|(place, named)| Some((place?, named.key, &*named.name)));
        self.replica.send_names(names, now);
    }

    /// Tells the others of some of the clients that were served here. While there are no others,
    /// the tables remember what is to be told.
    fn tell_clients(&mut self, now: Time) {
        let PeerDriver { engines, replica, clients, .. } = self;
        if !replica.reaches_others(now) {
            return;
        }
        if clients.is_empty() && now >= self.clients_at {
            self.clients_at = now.plus(CLIENTS_INTERVAL);
            let mut each = |table, key, client| clients.push_back((table, key, client));
            engines.iter().for_each(|engine| engine.clients(false, &mut each));
        }
        let some = clients.drain(..clients.len().min(CLIENTS_AT_ONCE));
        replica.send_clients(None, some.map(|told| record(told, now)), now);
    }

    /// Handles the events of the replica.
    fn events(&mut self, now: Time) {
        while let Some(event) = self.replica.poll_event() {
            match event {
                replica::ReplicaEvent::Wanted { node } => self.give_state(node, now),
                replica::ReplicaEvent::Own { link } | replica::ReplicaEvent::QueueLost { link } => {
                    self.drops.push(LinkId(link));
                }
                replica::ReplicaEvent::HandedOver { link } => {
                    self.orders.push_back(TransportOrder::Redial { link: LinkId(link) });
                }
                replica::ReplicaEvent::QueueUp { .. } | replica::ReplicaEvent::QueueDown { .. } => {
                    self.queues.handle_event(&event, now);
                }
                event => self.shown.tell(&event, now),
            }
        }
    }

    /// Passes what overtakes other frames to the transport. Returns whether there was room for all.
    fn send_urgent(&mut self) -> bool {
        let orders = self.transport.urgent.as_ref().unwrap_or(&self.transport.orders);
        while let Some(link) = self.drops.last().copied() {
            let Ok(room) = orders.try_reserve() else { return false };
            room.send(TransportOrder::Drop { link });
            self.drops.pop();
        }
        loop {
            let Ok(room) = orders.try_reserve() else { return false };
            let Some(frame) = self.replica.poll_queue_transmit() else { return true };
            room.send(send_order(frame));
        }
    }

    /// Passes pending frames to the transport, as far as it has room.
    fn send(&mut self, now: Time) {
        self.send_at = None;
        if !self.send_urgent() {
            self.send_at = Some(now.plus(SEND_RETRY_DELAY));
            return;
        }
        while let Some(order) = self.orders.front() {
            let Ok(room) = self.transport.orders.try_reserve() else { break };
            room.send(order.clone());
            self.orders.pop_front();
        }
        let burst = if self.transport.reliable { usize::MAX } else { BURST_DATAGRAMS };
        for _ in 0..burst {
            let Ok(room) = self.transport.orders.try_reserve() else { break };
            let Some(frame) = self.replica.poll_transmit() else { return };
            room.send(send_order(frame));
        }
        self.send_at = Some(now.plus(SEND_RETRY_DELAY));
    }
}

/// The order to send a frame.
fn send_order((link, frame): (u64, Arc<[u8]>)) -> TransportOrder {
    TransportOrder::Send { link: LinkId(link), bytes: Bytes::from_owner(frame) }
}

/// A client with its record in a frame of this time.
fn record(told: (u64, KeyHash, SharedClient), now: Time) -> (u64, KeyHash, u64) {
    let (table, key, client) = told;
    (table, key, client.record(now))
}

/// The name of this instance for the others: the host name, and a part that tells apart instances
/// on one machine.
fn name(settings: &PeersSettings) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match &settings.via {
        PeerTransport::Mesh { listen, .. } => format!("{host}:{}", listen.port()),
        PeerTransport::Multicast { .. } | PeerTransport::Nats { .. } => {
            format!("{host}/{}", std::process::id())
        }
    }
}

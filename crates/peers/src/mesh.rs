//! The mesh: a connection between each two instances, over TCP and, unless both are on one machine,
//! TLS.
//!
//! One task holds all state: the addresses to connect to, the open connections, and which of two
//! connections between the same instances stays. Handshakes and connections are tasks that it
//! starts (`connection`). It learns of further instances from `discover`.
//!
//! Both instances of a pair may connect to each other, and an instance may be found under several
//! addresses. So connections have a rank that both ends can compute: one made by the instance with
//! the smaller name ranks above one made by the other, and of several made by the same instance the
//! latest ranks highest. The better connection replaces the other, so both ends keep the same one.
//! An instance that has restarted has another name, and its old connection ends by itself. The
//! contents of frames and retransmission are not handled here.

pub mod connection;
mod targets;
pub mod wire;

use super::discover::{self, DiscoveredPeers, LocalDiscovery};
use super::traffic::Traffic;
use super::{EVENTS_MAX, LinkId, ORDERS_MAX, RunningTransport, TransportEvent, TransportOrder};
use connection::{
    CloseReason, FrameSender, GreetedConnection, LinkEnd, MeshCarrier, MeshSecurity, MeshTimeouts,
};
use evenkeel_config::settings::peers::PeerTarget;
use evenkeel_runtime::clock::Clock;
use evenkeel_tls::PeerTlsConfigs;
use evenkeel_tls::reload::LiveValue;
use hickory_resolver::TokioResolver;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use targets::{MeshPlace, MeshTargets};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use wire::{FRAME_BYTES_MAX, Instance, MeshHello};

/// The most accepted connections with a pending greeting.
const GREETING_MAX: usize = 128;
/// The most accepted connections with a pending greeting from one network: an IPv4 address, or an
/// IPv6 /64.
const GREETING_PER_NETWORK_MAX: usize = 16;
/// A connection that lived for this long was good, and the next attempt starts without backoff.
const GOOD_CONNECTION_MIN: Duration = Duration::from_secs(10);
/// The pause after the system could not accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub struct MeshPlan {
    pub listen: SocketAddr,
    /// The socket that listens there; `None` to open one.
    pub listener: Option<std::net::TcpListener>,
    /// The instances to connect to, by address or by DNS name.
    pub join: Vec<PeerTarget>,
    /// Whether to discover instances on the local network.
    pub mdns: bool,
    /// What looks up names; `None` for the system's name servers.
    pub resolver: Option<TokioResolver>,
    /// Instances of another cluster are refused.
    pub cluster: String,
    pub security: MeshSecurity,
    pub links_max: usize,
    pub timing: MeshTimeouts,
    pub traffic: Traffic,
    /// The certificates, if they must be reloaded when their files change.
    pub live: Option<LiveValue<PeerTlsConfigs>>,
    /// The name of this instance: random, and different at each start.
    pub instance: Instance,
    /// The clock by which certificates are checked for changes.
    pub clock: Clock,
}

#[derive(Debug, thiserror::Error)]
pub enum MeshStartError {
    #[error("peers: cannot listen on {address}: {why}")]
    Listen { address: SocketAddr, why: std::io::Error },
    #[error("peers: names cannot be looked up: {0}")]
    Names(#[from] hickory_resolver::net::NetError),
    #[error("peers: `mdns` is not possible here: {0}")]
    Neighbours(#[from] mdns_sd::Error),
}

/// Starts a mesh. Returns its transport and the address that it listens on. After an error no task
/// is left running.
pub async fn start(mut plan: MeshPlan) -> Result<(RunningTransport, SocketAddr), MeshStartError> {
    let listen = plan.listen;
    let failed = |why| MeshStartError::Listen { address: listen, why };
    let listener = match plan.listener.take() {
        Some(listener) => TcpListener::from_std(listener),
        None => TcpListener::bind(listen).await,
    };
    let listener = listener.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let (events, told) = mpsc::channel(EVENTS_MAX);
    let (orders, obeyed) = mpsc::channel(ORDERS_MAX);
    let (hurried, urgent) = mpsc::channel(ORDERS_MAX);
    let (found, finds) = mpsc::channel(16);
    let (accepted, accepts) = mpsc::channel(16);
    let mut beside = JoinSet::new();
    let targets = look(&plan, address, &found, &mut beside)?;
    let (is_open, opens) = watch::channel(true);
    beside.spawn(accept(listener, accepted, opens));
    let mesh = Mesh {
        targets,
        plan,
        own_place: MeshPlace::Address(reachable(address)),
        is_open,
        events,
        orders: obeyed,
        urgent,
        finds,
        _found: found,
        accepts,
        tasks: JoinSet::new(),
        _beside: beside,
        greeting: HashMap::new(),
        links: HashMap::new(),
        names: HashMap::new(),
        dials: 0,
        last: 0,
    };
    tokio::spawn(mesh.run());
    let (urgent, frame_max) = (Some(hurried), FRAME_BYTES_MAX);
    let transport = RunningTransport { events: told, orders, urgent, frame_max, reliable: true };
    Ok((transport, address))
}

/// Starts the tasks that discover instances which `plan` does not name by address.
fn look(
    plan: &MeshPlan,
    address: SocketAddr,
    found: &mpsc::Sender<DiscoveredPeers>,
    beside: &mut JoinSet<()>,
) -> Result<MeshTargets, MeshStartError> {
    let (mut named, mut source) = (Vec::new(), 0);
    for join in &plan.join {
        match join {
            PeerTarget::One(authority) => named.push(authority.clone()),
            PeerTarget::Dns(authority) => {
                source += 1;
                let resolver = match &plan.resolver {
                    Some(resolver) => resolver.clone(),
                    None => discover::resolver(TokioResolver::builder_tokio()?)?,
                };
                beside.spawn(discover::dns(source, authority.clone(), resolver, found.clone()));
            }
        }
    }
    if plan.mdns {
        source += 1;
        let neighbours = LocalDiscovery::announce(&plan.instance, &plan.cluster, address)?;
        beside.spawn(neighbours.listen(source, found.clone()));
    }
    let pace = (plan.timing.again, plan.timing.again_max);
    Ok(MeshTargets::new(named, pace, plan.instance))
}

/// An address at which a listener on `address` is reached from this machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Accepts connections until the mesh ends, while `is_open`. Others wait in the socket's queue,
/// where a process that shares the socket finds them.
async fn accept(
    listener: TcpListener,
    accepted: mpsc::Sender<(TcpStream, SocketAddr)>,
    mut is_open: watch::Receiver<bool>,
) {
    while is_open.wait_for(|is_open| *is_open).await.is_ok() {
        let connection = tokio::select! {
            biased;
            _ = is_open.changed() => continue,
            connection = listener.accept() => connection,
        };
        match connection {
            Ok(connection) => {
                if accepted.send(connection).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(target: "evenkeel::peers", %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The rank of a connection. Of two connections between the same instances the greater one stays.
type ConnectionRank = (Reverse<Instance>, u64);

/// A connection that carries frames.
struct MeshLink {
    instance: Instance,
    rank: ConnectionRank,
    outgoing: FrameSender,
    close: Option<oneshot::Sender<CloseReason>>,
    since: Instant,
    /// The better connection that takes over when this one has ended.
    successor: Option<(ConnectionRank, Box<GreetedConnection>)>,
}

enum MeshTaskResult {
    /// An accepted connection has been greeted, or has failed.
    Accepted(SocketAddr, Result<Box<GreetedConnection>, CloseReason>),
    /// A connection made by this instance has been greeted, or has failed.
    Dialled(MeshPlace, Result<Box<GreetedConnection>, CloseReason>),
    Ended(LinkId, LinkEnd),
}

struct Mesh {
    plan: MeshPlan,
    /// Where the listener of this instance is reached.
    own_place: MeshPlace,
    /// Whether this instance accepts connections.
    is_open: watch::Sender<bool>,
    events: mpsc::Sender<TransportEvent>,
    orders: mpsc::Receiver<TransportOrder>,
    urgent: mpsc::Receiver<TransportOrder>,
    finds: mpsc::Receiver<DiscoveredPeers>,
    /// Keeps the channel open if there is no discovery.
    _found: mpsc::Sender<DiscoveredPeers>,
    accepts: mpsc::Receiver<(TcpStream, SocketAddr)>,
    tasks: JoinSet<MeshTaskResult>,
    /// The tasks that accept and discover. They end with the mesh.
    _beside: JoinSet<()>,
    /// The number of accepted connections with a pending greeting, by network.
    greeting: HashMap<IpAddr, usize>,
    targets: MeshTargets,
    links: HashMap<LinkId, MeshLink>,
    names: HashMap<Instance, LinkId>,
    /// The number of connections made so far. It is the serial number in greetings.
    dials: u64,
    /// The id of the latest link.
    last: u64,
}

/// A reason for the mesh to wake up.
enum MeshEvent {
    Accepted(TcpStream, SocketAddr),
    Found(DiscoveredPeers),
    Ordered(TransportOrder),
    Urgent(TransportOrder),
    Done(MeshTaskResult),
    Due,
    Second,
    End,
}

impl Mesh {
    async fn run(mut self) {
        let mut seconds = interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = self.targets.due(&self.names);
            let happened = tokio::select! {
                order = self.orders.recv() => order.map_or(MeshEvent::End, MeshEvent::Ordered),
                Some(order) = self.urgent.recv() => MeshEvent::Urgent(order),
                Some((stream, from)) = self.accepts.recv() => MeshEvent::Accepted(stream, from),
                Some(found) = self.finds.recv() => MeshEvent::Found(found),
                Some(Ok(done)) = self.tasks.join_next() => MeshEvent::Done(done),
                () = sleep_until(due.unwrap_or_else(far)), if due.is_some() => MeshEvent::Due,
                _ = seconds.tick() => MeshEvent::Second,
            };
            match happened {
                MeshEvent::Accepted(stream, from) => self.greet(stream, from),
                MeshEvent::Found(found) => self.targets.found(found, now()),
                MeshEvent::Ordered(order) => self.obey(order, false),
                MeshEvent::Urgent(order) => self.obey(order, true),
                MeshEvent::Done(done) => self.done(done).await,
                MeshEvent::Due => self.dial(),
                MeshEvent::Second => self.second(),
                // Dropping the `JoinSet`s aborts all tasks.
                MeshEvent::End => return,
            }
        }
    }

    fn second(&mut self) {
        let now = self.plan.clock.now();
        self.plan.live.iter_mut().for_each(|live| live.look(now));
    }

    fn hello(&self, serial: u64) -> MeshHello {
        MeshHello { instance: self.plan.instance, serial, cluster: self.plan.cluster.clone() }
    }

    /// Greets an accepted connection. Strangers may connect as often as they like: they get few
    /// places, and lose them after a short time.
    fn greet(&mut self, stream: TcpStream, from: SocketAddr) {
        let all: usize = self.greeting.values().sum();
        let mine = self.greeting.get(&network(from)).copied().unwrap_or_default();
        if all >= GREETING_MAX || mine >= GREETING_PER_NETWORK_MAX {
            return self.refuse(
                from.to_string(),
                "too many connections that have not completed their handshake",
            );
        }
        self.greeting.insert(network(from), mine + 1);
        let (security, own, timing) = (self.plan.security.clone(), self.hello(0), self.plan.timing);
        self.tasks.spawn(async move {
            let greeted = connection::accept(stream, from, security, own, timing).await;
            MeshTaskResult::Accepted(from, greeted.map(Box::new))
        });
    }

    fn dial(&mut self) {
        for place in self.targets.take_due(&self.names, now()) {
            self.dials += 1;
            let own = self.hello(self.dials);
            let (security, timing) = (self.plan.security.clone(), self.plan.timing);
            self.tasks.spawn(async move {
                let greeted = reach(&place, security, own, timing).await;
                MeshTaskResult::Dialled(place, greeted.map(Box::new))
            });
        }
    }

    /// Carries out an order. A link on which an urgent frame is lost ends.
    fn obey(&mut self, order: TransportOrder, is_urgent: bool) {
        match order {
            TransportOrder::Send { link, bytes } => {
                let link = self.links.get_mut(&link);
                let put = link.is_some_and(|link| {
                    let put = link.outgoing.put(bytes, is_urgent);
                    if is_urgent && !put {
                        link.end("it reads too slowly");
                    }
                    put
                });
                self.plan.traffic.dropped.increment(u64::from(!put));
            }
            TransportOrder::Drop { link } => {
                if let Some(link) = self.links.get_mut(&link) {
                    link.end("the peer protocol has closed it");
                }
            }
            TransportOrder::Redial { link } => {
                if let Some(link) = self.links.get(&link) {
                    self.targets.redial(&link.instance, now());
                }
            }
            TransportOrder::Accept(is_open) => {
                self.is_open.send_replace(is_open);
                match is_open {
                    true => self.targets.remove(&self.own_place),
                    // The successor need not know that this instance still runs.
                    false => self.targets.add(self.own_place.clone(), now()),
                }
            }
        }
    }

    async fn done(&mut self, done: MeshTaskResult) {
        match done {
            MeshTaskResult::Accepted(from, greeted) => {
                if let Some(count) = self.greeting.get_mut(&network(from)) {
                    *count -= 1;
                    if *count == 0 {
                        self.greeting.remove(&network(from));
                    }
                }
                match greeted {
                    Ok(greeted) => _ = self.meet(greeted).await,
                    Err(why) => self.refuse(from.to_string(), &why),
                }
            }
            MeshTaskResult::Dialled(place, Ok(greeted)) => {
                let instance = greeted.hello.instance;
                let met = self.meet(greeted).await;
                self.targets.reached(&place, instance, met, now());
            }
            MeshTaskResult::Dialled(place, Err(why)) => self.targets.failed(&place, &why, now()),
            MeshTaskResult::Ended(id, end) => self.ended(id, end).await,
        }
    }

    /// Decides whether to keep a greeted connection. Returns an error if it is refused for good
    /// reason, such as another cluster.
    async fn meet(&mut self, greeted: Box<GreetedConnection>) -> Result<(), CloseReason> {
        let hello = &greeted.hello;
        if hello.instance == self.plan.instance {
            return Ok(());
        }
        if hello.cluster != self.plan.cluster {
            let cluster: String = hello.cluster.escape_debug().take(80).collect();
            let why = format!("it belongs to the cluster `{cluster}`");
            self.refuse(greeted.address.to_string(), &why);
            return Err(why);
        }
        let rank = rank_of(&greeted, self.plan.instance);
        let full = self.links.len() >= self.plan.links_max;
        let before = self.names.get(&hello.instance).and_then(|id| self.links.get_mut(id));
        match before {
            Some(link) => link.yield_to(rank, greeted),
            None if full => {
                let why = format!("{} instances are connected already", self.plan.links_max);
                self.refuse(greeted.address.to_string(), &why);
                return Err(why);
            }
            None => self.up(rank, greeted).await,
        }
        Ok(())
    }

    async fn up(&mut self, rank: ConnectionRank, greeted: Box<GreetedConnection>) {
        self.last += 1;
        let (id, instance) = (LinkId(self.last), greeted.hello.instance);
        let (outgoing, queue) = connection::queue();
        let (close, closed) = oneshot::channel();
        let peer = greeted.address.to_string();
        // The connection starts to read only after this, so `Up` precedes its frames.
        let _ = self.events.send(TransportEvent::Up { link: id, peer }).await;
        let carrier = MeshCarrier {
            link: id,
            events: self.events.clone(),
            queue,
            close: closed,
            timing: self.plan.timing,
            traffic: self.plan.traffic.clone(),
        };
        self.tasks.spawn(async move { MeshTaskResult::Ended(id, carrier.carry(*greeted).await) });
        let (close, since) = (Some(close), now());
        self.links.insert(id, MeshLink { instance, rank, outgoing, close, since, successor: None });
        self.names.insert(instance, id);
    }

    async fn ended(&mut self, id: LinkId, LinkEnd { why, is_gone }: LinkEnd) {
        let Some(link) = self.links.remove(&id) else { return };
        self.names.remove(&link.instance);
        let _ = self.events.send(TransportEvent::Down { link: id, why, is_gone }).await;
        match link.successor {
            Some((rank, greeted)) => self.up(rank, greeted).await,
            None => {
                let good = now().saturating_duration_since(link.since) >= GOOD_CONNECTION_MIN;
                self.targets.lost(&link.instance, good, now());
            }
        }
    }

    /// Reports a refused stranger if there is room for the event. Strangers must not be able to
    /// block the mesh.
    fn refuse(&self, from: String, why: &str) {
        let _ = self.events.try_send(TransportEvent::Refused { from, why: why.to_owned() });
    }
}

impl MeshLink {
    /// Closes the connection for this reason.
    fn end(&mut self, why: &str) {
        if let Some(close) = self.close.take() {
            // The receiver is gone if the connection has already ended by itself.
            let _ = close.send(why.to_owned());
        }
    }

    /// Gives way to another connection with the same instance if that one has a higher rank.
    /// Otherwise the other one is dropped, which closes it.
    fn yield_to(&mut self, rank: ConnectionRank, greeted: Box<GreetedConnection>) {
        let best = self.successor.as_ref().map_or(self.rank, |(rank, _)| *rank);
        if rank > best {
            self.successor = Some((rank, greeted));
            self.end("another connection to the same instance replaces it");
        }
    }
}

fn rank_of(greeted: &GreetedConnection, own: Instance) -> ConnectionRank {
    match greeted.dialled {
        Some(serial) => (Reverse(own), serial),
        None => (Reverse(greeted.hello.instance), greeted.hello.serial),
    }
}

/// The network that one host may have many addresses of: a /64 for IPv6. For IPv4 it is the address
/// itself.
fn network(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
        ip @ IpAddr::V4(_) => ip,
    }
}

/// Connects to the first address of a place that accepts the connection and greets.
async fn reach(
    place: &MeshPlace,
    security: MeshSecurity,
    own: MeshHello,
    timing: MeshTimeouts,
) -> Result<GreetedConnection, CloseReason> {
    let addresses: Vec<SocketAddr> = match place {
        MeshPlace::Address(address) => vec![*address],
        MeshPlace::Name(name) => {
            match tokio::time::timeout(timing.handshake, tokio::net::lookup_host(name)).await {
                Ok(found) => found.map_err(|error| error.to_string())?.take(8).collect(),
                Err(_) => return Err("its name was not resolved in time".to_owned()),
            }
        }
    };
    let mut why = "its name has no address".to_owned();
    for address in addresses {
        match connection::dial(address, security.clone(), own.clone(), timing).await {
            Ok(greeted) => return Ok(greeted),
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn now() -> Instant {
    Clock::deadline(Duration::ZERO)
}

fn far() -> Instant {
    Clock::deadline(Duration::from_secs(86_400))
}

#[cfg(test)]
mod tests;

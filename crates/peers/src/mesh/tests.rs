//! Meshes of two and three instances in one process, over real sockets, with strangers, floods and
//! slow readers.

use super::connection::{MeshSecurity, MeshTimeouts};
use super::wire::{self, Instance, MeshHello};
use super::{MeshPlan, start};
use crate::traffic::Traffic;
use crate::{EVENTS_MAX, LinkId, RunningTransport, TransportEvent, TransportOrder};
use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use evenkeel_config::settings::peers::PeerTarget;
use evenkeel_config::source::files::WatchedFiles;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::registry::Registry;
use evenkeel_testing::authority::Authority;
use evenkeel_testing::wait::until_async;
use evenkeel_tls::reload::LiveValue;
use evenkeel_tls::{peers, peers_by_secret};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// Longer than any step takes on a slow, busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// One instance, and the events that it has received.
struct Node {
    transport: RunningTransport,
    address: SocketAddr,
    traffic: Traffic,
    links: BTreeSet<LinkId>,
    frames: Vec<(LinkId, Bytes)>,
    downs: Vec<String>,
    refused: Vec<String>,
}

fn plan(name: u8, security: MeshSecurity, join: &[SocketAddr]) -> MeshPlan {
    let timing = MeshTimeouts {
        again: Duration::from_millis(10),
        again_max: Duration::from_millis(200),
        ..MeshTimeouts::default()
    };
    MeshPlan {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        listener: None,
        join: join.iter().map(|address| PeerTarget::One(address.to_string())).collect(),
        mdns: false,
        resolver: None,
        cluster: "test".to_owned(),
        security,
        links_max: 8,
        timing,
        traffic: Traffic::default(),
        live: None,
        instance: [name; 16],
        clock: Clock::start(),
    }
}

fn by_secret(secret: &str) -> MeshSecurity {
    let ends = peers_by_secret(secret.as_bytes(), "test").expect("a key");
    MeshSecurity::Tls(Arc::new(ArcSwap::from_pointee(ends)))
}

fn by_certificate(authority: &Authority) -> MeshSecurity {
    let ends = peers(&WatchedFiles::new(authority.peer("peer")).read().expect("readable"))
        .expect("usable")
        .value;
    MeshSecurity::Tls(Arc::new(ArcSwap::from_pointee(ends)))
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(done) => done,
        Err(_) => panic!("waited {DEADLINE:?} for {what}"),
    }
}

impl Node {
    async fn start(plan: MeshPlan) -> Node {
        let traffic = plan.traffic.clone();
        let (transport, address) = start(plan).await.expect("it starts");
        let (links, frames) = (BTreeSet::new(), Vec::new());
        let (downs, refused) = (Vec::new(), Vec::new());
        Node { transport, address, traffic, links, frames, downs, refused }
    }

    fn note(&mut self, event: TransportEvent) {
        match event {
            TransportEvent::Up { link, .. } => assert!(self.links.insert(link)),
            TransportEvent::Frame { link, bytes } => {
                assert!(self.links.contains(&link), "a frame of a link that is not there");
                self.frames.push((link, bytes));
            }
            TransportEvent::Down { link, why, .. } => {
                assert!(self.links.remove(&link));
                self.downs.push(why);
            }
            TransportEvent::Refused { why, .. } => self.refused.push(why),
        }
    }

    /// Receives events until `done` is true.
    async fn until(&mut self, what: &str, done: impl Fn(&Node) -> bool) {
        let wait = async {
            while !done(self) {
                let event = self.transport.events.recv().await.expect("it runs");
                self.note(event);
            }
        };
        soon(what, wait).await;
    }

    async fn linked(&mut self, count: usize) {
        self.until("links", |node| node.links.len() == count).await;
    }

    fn send(&self, frame: &'static [u8]) {
        for link in &self.links {
            let order = TransportOrder::Send { link: *link, bytes: Bytes::from_static(frame) };
            self.transport.orders.try_send(order).expect("room");
        }
    }

    /// Whether there are `count` links, and a frame has arrived on each.
    fn hears_all_of(&self, count: usize) -> bool {
        let heard = |link| self.frames.iter().any(|(from, _)| from == link);
        self.links.len() == count && self.links.iter().all(heard)
    }

    async fn hears(&mut self, frame: &'static [u8]) {
        self.until("a frame", |node| node.frames.iter().any(|(_, heard)| heard == frame)).await;
    }
}

#[test]
fn two_meet_and_frames_arrive_whole_and_in_order() {
    run(async {
        let authority = Authority::new();
        for security in
            [MeshSecurity::Plain, by_secret("0123456789abcdef"), by_certificate(&authority)]
        {
            let mut a = Node::start(plan(1, security.clone(), &[])).await;
            let mut b = Node::start(plan(2, security, &[a.address])).await;
            a.linked(1).await;
            b.linked(1).await;
            let longest = Bytes::from(vec![7; wire::FRAME_BYTES_MAX]);
            let link = *b.links.first().expect("linked");
            b.send(b"one");
            b.transport
                .orders
                .try_send(TransportOrder::Send { link, bytes: longest.clone() })
                .expect("room");
            b.send(b"three");
            a.hears(b"three").await;
            let heard: Vec<_> = a.frames.iter().map(|(_, frame)| frame.clone()).collect();
            assert_eq!(heard, [Bytes::from_static(b"one"), longest, Bytes::from_static(b"three")]);
            a.send(b"back");
            b.hears(b"back").await;
            assert!(b.traffic.written.get() > 16 * 1024 && b.traffic.dropped.get() == 0);
        }
    });
}

#[test]
fn two_that_connect_to_each_other_and_three_that_know_some_have_one_link_each() {
    run(async {
        let ports: Vec<_> = [1, 2, 3].iter().map(|_| free()).collect();
        let mut nodes = Vec::new();
        for name in [1, 2, 3] {
            // Each instance joins all of them, itself included.
            let listen = ports[usize::from(name) - 1];
            let plan = MeshPlan { listen, ..plan(name, by_secret("0123456789abcdef"), &ports) };
            nodes.push(Node::start(plan).await);
        }
        // A frame on a connection that gives way to another is lost, so frames are sent repeatedly.
        let settle = async {
            while !nodes.iter().all(|node| node.hears_all_of(2)) {
                for node in &mut nodes {
                    node.frames.clear();
                    node.send(b"hello");
                }
                for node in &mut nodes {
                    let pause = Duration::from_millis(20);
                    while let Ok(event) =
                        tokio::time::timeout(pause, node.transport.events.recv()).await
                    {
                        node.note(event.expect("it runs"));
                    }
                }
            }
        };
        soon("one link each", settle).await;
        assert!(nodes.iter().all(|node| node.refused.is_empty()));
    });
}

/// A port that was free a moment ago.
fn free() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address")
}

#[test]
fn peers_go_and_come_back() {
    run(async {
        let (secret, port) = (by_secret("0123456789abcdef"), free());
        let mut a = Node::start(plan(1, secret.clone(), &[port])).await;
        for name in [2, 3] {
            // The second one is another instance at the same address.
            let mut b =
                Node::start(MeshPlan { listen: port, ..plan(name, secret.clone(), &[]) }).await;
            a.linked(1).await;
            b.linked(1).await;
            b.send(b"hello");
            a.hears(b"hello").await;
            a.frames.clear();
            drop(b);
            a.linked(0).await;
        }
        assert_eq!(a.downs.len(), 2);
        let mut b = Node::start(MeshPlan { listen: port, ..plan(2, secret, &[]) }).await;
        a.linked(1).await;
        let link = *a.links.first().expect("linked");
        a.transport.orders.try_send(TransportOrder::Drop { link }).expect("room");
        b.until("the end of the link", |b| !b.downs.is_empty()).await;
    });
}

#[test]
fn strangers_are_refused_and_harm_nobody() {
    run(async {
        let (ours, theirs) = (Authority::new(), Authority::new());
        let secret = || by_secret("0123456789abcdef");
        let cluster = |plan: MeshPlan| MeshPlan { cluster: "other".to_owned(), ..plan };
        for (good, stranger, why) in [
            (secret(), plan(2, by_secret("0123456789abcdeF"), &[]), "TLS: "),
            (by_certificate(&ours), plan(2, by_certificate(&theirs), &[]), "TLS: "),
            (by_certificate(&ours), plan(2, secret(), &[]), "TLS: "),
            (secret(), plan(2, MeshSecurity::Plain, &[]), "TLS: "),
            (by_certificate(&ours), cluster(plan(2, by_certificate(&ours), &[])), "`other`"),
            (MeshSecurity::Plain, cluster(plan(2, MeshSecurity::Plain, &[])), "`other`"),
        ] {
            let mut a = Node::start(plan(1, good.clone(), &[])).await;
            let join = vec![PeerTarget::One(a.address.to_string())];
            let mut stranger = Node::start(MeshPlan { join, ..stranger }).await;
            a.until("a stranger", |a| a.refused.iter().any(|refused| refused.contains(why))).await;
            let mut b = Node::start(plan(3, good, &[a.address])).await;
            b.linked(1).await;
            b.send(b"hello");
            a.hears(b"hello").await;
            while let Ok(event) = stranger.transport.events.try_recv() {
                stranger.note(event);
            }
            assert_eq!((a.links.len(), stranger.links.len()), (1, 0));
        }
    });
}

#[test]
fn garbage_and_scanners_take_no_place_for_long() {
    run(async {
        for security in [MeshSecurity::Plain, by_secret("0123456789abcdef")] {
            let mut slow = plan(1, security.clone(), &[]);
            slow.timing.handshake = Duration::from_secs(1);
            let mut a = Node::start(slow).await;
            let shouts: [&[u8]; 5] = [
                b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
                b"\xff\xff\xff\xff",
                b"\0\0\0\x05hello",
                b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
                b"",
            ];
            for shout in shouts {
                let mut stream = TcpStream::connect(a.address).await.expect("it listens");
                stream.write_all(shout).await.expect("sent");
            }
            a.until("refusals", |a| a.refused.len() == shouts.len()).await;
            // Some connections send no bytes at all, and more of them than may wait.
            let mut silent = Vec::new();
            for _ in 0..40 {
                silent.push(TcpStream::connect(a.address).await.expect("it listens"));
            }
            let all = shouts.len() + silent.len();
            a.until("refusals", |a| a.refused.len() == all).await;
            let crowd = a.refused.iter().filter(|why| why.starts_with("too many")).count();
            assert!((1..=24).contains(&crowd), "{crowd}");
            let mut b = Node::start(plan(2, security, &[a.address])).await;
            a.linked(1).await;
            b.linked(1).await;
        }
    });
}

/// A hand-made peer of a mesh without TLS.
async fn by_hand(to: SocketAddr, instance: Instance, serial: u64) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.expect("it listens");
    let hello = MeshHello { instance, serial, cluster: "test".to_owned() };
    stream.write_all(&hello.encode()).await.expect("sent");
    let mut read = BytesMut::new();
    while wire::take(&mut read, wire::HELLO_BYTES_MAX).expect("short").is_none() {
        assert!(stream.read_buf(&mut read).await.expect("a greeting") > 0);
    }
    stream
}

#[test]
fn of_two_connections_by_one_instance_the_later_stays() {
    run(async {
        let mut a = Node::start(plan(9, MeshSecurity::Plain, &[])).await;
        let mut second = by_hand(a.address, [2; 16], 2).await;
        a.linked(1).await;
        let mut third = by_hand(a.address, [2; 16], 3).await;
        soon("its end", second.read_to_end(&mut Vec::new())).await.expect("closed");
        a.until("the other", |a| a.downs.len() == 1 && a.links.len() == 1).await;
        let mut first = by_hand(a.address, [2; 16], 1).await;
        soon("its end", first.read_to_end(&mut Vec::new())).await.expect("closed");
        let mut frame = BytesMut::new();
        wire::put(&mut frame, b"still here");
        third.write_all(&frame).await.expect("sent");
        a.hears(b"still here").await;
        assert_eq!(a.downs.len(), 1);
        // A frame that is too long ends the connection.
        third.write_all(b"\0\x01\0\0").await.expect("sent");
        a.linked(0).await;
        assert!(a.downs[1].contains("65536 bytes is too long"), "{:?}", a.downs);
    });
}

#[test]
fn a_flood_waits_and_others_are_heard() {
    run(async {
        const FRAMES: u32 = 5_000;
        let mut a = Node::start(plan(9, MeshSecurity::Plain, &[])).await;
        let mut flood = by_hand(a.address, [2; 16], 1).await;
        let flooding = tokio::spawn(async move {
            for n in 0..FRAMES {
                let mut frame = BytesMut::new();
                let mut bytes = vec![0; 4_000];
                bytes[..4].copy_from_slice(&n.to_be_bytes());
                wire::put(&mut frame, &bytes);
                flood.write_all(&frame).await.expect("sent");
            }
            flood
        });
        until_async("a full channel", || a.transport.events.len() >= EVENTS_MAX).await;
        let mut b = Node::start(plan(3, MeshSecurity::Plain, &[a.address])).await;
        b.linked(1).await;
        b.send(b"hello");
        a.hears(b"hello").await;
        a.until("all of it", |a| a.frames.len() == FRAMES as usize + 1).await;
        let numbers = a.frames.iter().filter(|(_, frame)| frame.len() == 4_000);
        let numbers = numbers.map(|(_, frame)| frame.first_chunk().copied().unwrap_or_default());
        assert!(numbers.map(u32::from_be_bytes).eq(0..FRAMES));
        flooding.await.expect("all was sent");
    });
}

#[test]
fn who_does_not_read_loses_frames_and_then_the_connection() {
    run(async {
        let mut slow = plan(9, MeshSecurity::Plain, &[]);
        slow.timing.write = Duration::from_millis(500);
        slow.timing.silence = Duration::from_secs(3_600);
        let mut a = Node::start(slow).await;
        let _deaf = by_hand(a.address, [2; 16], 1).await;
        a.linked(1).await;
        let link = *a.links.first().expect("linked");
        let bytes = Bytes::from(vec![0; wire::FRAME_BYTES_MAX]);
        let drown = async {
            while a.downs.is_empty() {
                let order = TransportOrder::Send { link, bytes: bytes.clone() };
                a.transport.orders.send(order).await.expect("it runs");
                while let Ok(event) = a.transport.events.try_recv() {
                    a.note(event);
                }
            }
        };
        soon("its end", drown).await;
        assert!(a.traffic.dropped.get() > 0);
        assert!(a.downs[0].contains("it has read nothing"), "{:?}", a.downs);
    });
}

#[test]
fn a_silent_connection_is_given_up_and_an_idle_one_is_not() {
    run(async {
        let quick = |name, join: &[SocketAddr]| {
            let mut plan = plan(name, MeshSecurity::Plain, join);
            plan.timing.silence = Duration::from_secs(4);
            plan.timing.beat = Duration::from_millis(200);
            plan
        };
        let mut a = Node::start(quick(9, &[])).await;
        let mut b = Node::start(quick(3, &[a.address])).await;
        b.linked(1).await;
        let _silent = by_hand(a.address, [2; 16], 1).await;
        a.linked(2).await;
        a.linked(1).await;
        assert!(a.downs[0].contains("sent nothing for"), "{:?}", a.downs);
        b.send(b"hello");
        a.hears(b"hello").await;
    });
}

/// A name server that answers all address queries with those in `answer`.
async fn name_server(answer: Arc<parking_lot::Mutex<Vec<[u8; 4]>>>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    let address = socket.local_addr().expect("its address");
    tokio::spawn(async move {
        let mut buffer = [0; 512];
        loop {
            let (count, from) = socket.recv_from(&mut buffer).await.expect("a question");
            // The name ends with an empty label. The type and the class follow.
            let end = buffer[12..count].iter().position(|byte| *byte == 0).expect("a name") + 17;
            let of_v4 = buffer[end - 3] == 1;
            let answers = if of_v4 { answer.lock().clone() } else { Vec::new() };
            let mut reply = buffer[..end].to_vec();
            reply[2..12].copy_from_slice(&[0x85, 0x80, 0, 1, 0, answers.len() as u8, 0, 0, 0, 0]);
            for ip in answers {
                reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
                reply.extend(ip);
            }
            socket.send_to(&reply, from).await.expect("sent");
        }
    });
    address
}

fn resolver_that_asks(address: SocketAddr) -> TokioResolver {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    server.connections.iter_mut().for_each(|connection| connection.port = address.port());
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    builder.options_mut().use_hosts_file = ResolveHosts::Never;
    crate::discover::resolver(builder).expect("a resolver")
}

#[test]
fn all_addresses_of_a_name_are_found_and_those_that_come_later() {
    run(async {
        let port = free().port();
        let secret = by_secret("0123456789abcdef");
        let mut others = Vec::new();
        for last in [1, 2, 3] {
            let listen = SocketAddr::from(([127, 0, 0, last], port));
            let plan = MeshPlan { listen, ..plan(last, secret.clone(), &[]) };
            others.push(Node::start(plan).await);
        }
        let answer = Arc::new(parking_lot::Mutex::new(vec![[127, 0, 0, 1], [127, 0, 0, 2]]));
        let join = vec![PeerTarget::Dns(format!("peers.example:{port}"))];
        let resolver = Some(resolver_that_asks(name_server(Arc::clone(&answer)).await));
        let mut a = Node::start(MeshPlan { join, resolver, ..plan(9, secret, &[]) }).await;
        a.linked(2).await;
        answer.lock().push([127, 0, 0, 3]);
        a.linked(3).await;
        for other in &mut others {
            other.linked(1).await;
        }
        // A lookup without an answer changes nothing.
        answer.lock().clear();
        others[2].send(b"hello");
        a.hears(b"hello").await;
        assert_eq!(a.links.len(), 3);
    });
}

#[test]
fn instances_of_one_machine_find_each_other_by_multicast_dns() {
    run(async {
        // Other runs of this test may be active on the same machine.
        let cluster = format!("test-{}", free().port());
        let ends = || {
            let ends = peers_by_secret(b"0123456789abcdef", &cluster).expect("a key");
            MeshSecurity::Tls(Arc::new(ArcSwap::from_pointee(ends)))
        };
        let found = |name| {
            let mut own = [name; 16];
            own[..8].copy_from_slice(&Clock::start().now().0.to_be_bytes());
            let cluster = cluster.clone();
            MeshPlan { mdns: true, cluster, instance: own, ..plan(name, ends(), &[]) }
        };
        let mut a = Node::start(found(1)).await;
        let mut b = Node::start(found(2)).await;
        a.linked(1).await;
        b.linked(1).await;
    });
}

#[test]
fn a_mesh_takes_over_certificates_when_their_files_change() {
    run(async {
        let (ours, theirs) = (Authority::new(), Authority::new());
        let (clock, registry) = (Clock::start(), Registry::default());
        let paths = ours.peer("peer");
        let live = LiveValue::load("peers", paths.clone(), peers, clock.now(), &registry);
        let live = live.expect("usable");
        let security = MeshSecurity::Tls(live.running());
        let mut a = Node::start(MeshPlan { live: Some(live), ..plan(1, security, &[]) }).await;
        let mut b = Node::start(plan(2, by_certificate(&ours), &[a.address])).await;
        b.linked(1).await;
        let mut c = Node::start(plan(3, by_certificate(&theirs), &[a.address])).await;
        a.until("a stranger", |a| !a.refused.is_empty()).await;
        for (old, other) in paths.iter().zip(theirs.peer("peer")) {
            std::fs::copy(other, old).expect("copied");
        }
        c.linked(1).await;
        c.send(b"hello");
        a.hears(b"hello").await;
        b.send(b"what is open stays");
        a.hears(b"what is open stays").await;
    });
}

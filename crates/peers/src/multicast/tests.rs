//! Groups on the loopback network of this machine: which messages are received, refused and
//! recognised as replayed.

use super::{FRAME_BYTES_MAX, MulticastPlan, start};
use crate::seal::{GroupSeal, OVERHEAD_BYTES};
use crate::traffic::Traffic;
use crate::{LinkId, RunningTransport, TransportEvent, TransportOrder};
use bytes::Bytes;
use evenkeel_runtime::clock::Clock;
use evenkeel_testing::wait::until_async;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// Longer than any step takes on a slow, busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
const SECRET: &str = "0123456789abcdef";

/// A group with a port that was free a moment ago.
fn plan() -> MulticastPlan {
    let port = UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("a port").port();
    let group = SocketAddr::from((Ipv4Addr::new(239, 255, 70, 46), port));
    MulticastPlan { group, interface: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), hops: 1 }
}

fn seal(name: u8, secret: &str) -> GroupSeal {
    let now = Clock::start().now().0 / 1_000_000;
    GroupSeal::new(secret.as_bytes(), "test", [name; 16], 8, now).expect("a key")
}

fn node(plan: MulticastPlan, name: u8, secret: &str, traffic: &Traffic) -> RunningTransport {
    start(plan, seal(name, secret), Clock::start(), traffic.clone()).expect("it starts")
}

async fn next(transport: &mut RunningTransport) -> TransportEvent {
    let event = tokio::time::timeout(DEADLINE, transport.events.recv()).await;
    event.expect("an event in time").expect("it runs")
}

/// The link of a transport that has just started.
async fn up(transport: &mut RunningTransport) -> LinkId {
    match next(transport).await {
        TransportEvent::Up { link, .. } => link,
        other => panic!("{other:?}"),
    }
}

async fn hear(transport: &mut RunningTransport) -> Bytes {
    match next(transport).await {
        TransportEvent::Frame { bytes, .. } => bytes,
        other => panic!("{other:?}"),
    }
}

fn send(transport: &RunningTransport, link: LinkId, frame: &[u8]) {
    let order = TransportOrder::Send { link, bytes: Bytes::copy_from_slice(frame) };
    transport.orders.try_send(order).expect("room");
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

#[test]
fn all_of_a_group_hear_each_other_and_not_themselves() {
    run(async {
        for secret in [SECRET, ""] {
            let (plan, traffic) = (plan(), Traffic::default());
            let mut nodes = Vec::new();
            for name in [1, 2, 3] {
                let mut node = node(plan, name, secret, &traffic);
                let link = up(&mut node).await;
                nodes.push((node, link));
            }
            let longest = vec![7; FRAME_BYTES_MAX];
            send(&nodes[0].0, nodes[0].1, &longest);
            send(&nodes[1].0, nodes[1].1, b"two");
            assert_eq!(hear(&mut nodes[1].0).await, longest);
            assert_eq!(hear(&mut nodes[0].0).await, &b"two"[..]);
            let third = [hear(&mut nodes[2].0).await, hear(&mut nodes[2].0).await];
            assert!(third.contains(&longest.clone().into()) && third.contains(&b"two"[..].into()));
            // A frame that is too long, and one for a link that never existed.
            send(&nodes[0].0, nodes[0].1, &vec![7; FRAME_BYTES_MAX + 1]);
            send(&nodes[0].0, LinkId(77), b"nobody");
            send(&nodes[0].0, nodes[0].1, b"again");
            assert_eq!(hear(&mut nodes[1].0).await, &b"again"[..]);
            assert_eq!(traffic.dropped.get(), 2);
            let sent = longest.len() + 3 + 5 + 3 * OVERHEAD_BYTES;
            assert_eq!(traffic.written.get(), sent as u64);
        }
    });
}

#[test]
fn forged_and_replayed_datagrams_change_nothing() {
    run(async {
        let (plan, traffic) = (plan(), Traffic::default());
        let mut node = node(plan, 9, SECRET, &traffic);
        up(&mut node).await;
        let outside = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket2::SockRef::from(&outside).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).expect("set");
        let say = |message: &[u8]| outside.send_to(message, plan.group).expect("sent");
        let now = Clock::start().now().0 / 1_000_000;
        let good = seal(2, SECRET).seal(b"good", now).expect("sealed");
        let mut forged = good.clone();
        forged[30] ^= 1;
        let stranger = seal(3, "0123456789abcdeF").seal(b"bad", now).expect("sealed");
        let old = seal(4, SECRET).seal(b"old", now - 61_000).expect("sealed");
        for (message, told) in [
            (&b""[..], "not a message"),
            (b"hello", "not a message"),
            (&[1; 1_200], "forged"),
            (&[1; 2_000], "not a message"),
            (&forged, "forged"),
            (&stranger, "forged"),
            (&old, "too old"),
            (&good, ""),
            (&good, "played again"),
        ] {
            say(message);
            match next(&mut node).await {
                TransportEvent::Refused { why, .. } => {
                    assert!(why.starts_with(told), "{why}, not {told}")
                }
                TransportEvent::Frame { bytes, .. } => {
                    assert!(told.is_empty() && bytes == b"good"[..])
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_flood_loses_what_has_no_room_and_is_counted() {
    run(async {
        let (plan, traffic) = (plan(), Traffic::default());
        let mut node = node(plan, 1, SECRET, &traffic);
        let link = up(&mut node).await;
        let outside = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket2::SockRef::from(&outside).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).expect("set");
        let (mut other, now) = (seal(2, SECRET), Clock::start().now().0 / 1_000_000);
        let flood = async {
            while traffic.missed.get() == 0 {
                let message = other.seal(b"flood", now).expect("sealed");
                outside.send_to(&message, plan.group).expect("sent");
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(DEADLINE, flood).await.expect("it is full in time");
        assert_eq!(node.events.len(), crate::EVENTS_MAX);
        // It still carries out orders.
        let second_traffic = Traffic::default();
        let mut second = super::tests::node(plan, 3, SECRET, &second_traffic);
        up(&mut second).await;
        send(&node, link, b"still here");
        while hear(&mut second).await != b"still here"[..] {}
    });
}

#[test]
fn a_group_of_ipv6_on_loopback() {
    run(async {
        let group = SocketAddr::new("ff15::7946".parse().expect("a group"), plan().group.port());
        let plan =
            MulticastPlan { group, interface: Some(IpAddr::V6(Ipv6Addr::LOCALHOST)), hops: 1 };
        let traffic = Traffic::default();
        let mut a = match start(plan, seal(1, SECRET), Clock::start(), traffic.clone()) {
            Ok(transport) => transport,
            // On a machine without IPv6 the error is all there is to check.
            Err(error) => return assert!(error.to_string().contains("cannot join the group")),
        };
        let mut b = node(plan, 2, SECRET, &traffic);
        let (link, _) = (up(&mut a).await, up(&mut b).await);
        send(&a, link, b"six");
        // Many systems have no route for groups on loopback: then the frame is dropped and counted.
        let counted = until_async("a dropped frame", || traffic.dropped.get() > 0);
        tokio::select! {
            heard = hear(&mut b) => assert_eq!(heard, &b"six"[..]),
            () = counted => assert!(b.events.is_empty()),
        }
        let elsewhere =
            MulticastPlan { interface: Some("fd00::1".parse().expect("an address")), ..plan };
        let refused = start(elsewhere, seal(3, SECRET), Clock::start(), traffic);
        assert!(refused.is_err_and(|error| error.to_string().contains("`interface`")));
    });
}

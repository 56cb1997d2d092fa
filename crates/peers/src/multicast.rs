//! Multicast transport: datagrams to a group on the local network, without a list of instances.
//!
//! Every frame is one sealed datagram (`seal`) that fits into a packet of any network. Lost
//! datagrams stay lost, and duplicates are recognised. The socket is bound to its group and
//! receives nothing else. An instance receives its own datagrams too, because several instances may
//! run on one machine, and recognises them by their sender.

use super::group::PeerGroup;
use super::seal::{GroupSeal, OVERHEAD_BYTES};
use super::traffic::Traffic;
use super::{EVENTS_MAX, ORDERS_MAX, RunningTransport, TransportOrder};
use evenkeel_runtime::clock::Clock;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

/// The longest frame, in bytes. With all headers a packet has at most 1280 bytes, which every IPv6
/// network carries in one piece.
const FRAME_BYTES_MAX: usize = 1_180;
/// The number of bytes read of a datagram. A longer one is not from a peer.
const DATAGRAM_BYTES_MAX: usize = FRAME_BYTES_MAX + OVERHEAD_BYTES + 1;
/// The pause after an error on reading.
const READ_PAUSE: Duration = Duration::from_millis(100);
/// The time within which the network must accept a datagram. A period with many keys makes many
/// datagrams at once. After this time the datagram is dropped, and the transport receives again.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);
/// The size of the system's receive and send buffers, in bytes: enough for some periods of many
/// instances.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

const _: () = assert!(FRAME_BYTES_MAX + OVERHEAD_BYTES + 40 + 8 <= 1_280);

/// The settings of a group.
#[derive(Clone, Copy, Debug)]
pub struct MulticastPlan {
    /// Address and port of the group.
    pub group: SocketAddr,
    /// The address of this machine on the network to use.
    pub interface: Option<IpAddr>,
    /// The number of networks that a datagram may cross (its TTL), the first one included.
    pub hops: u32,
}

/// Why the group cannot be joined.
#[derive(Debug, thiserror::Error)]
pub enum MulticastStartError {
    /// The system refuses to join.
    #[error("peers: cannot join the group {group}: {why}")]
    Join {
        /// The address of the group.
        group: SocketAddr,
        /// The error of the system.
        why: io::Error,
    },
    /// An IPv6 interface cannot be chosen by address.
    #[error("peers: for an IPv6 group, `interface` can only be ::1; omit it otherwise")]
    Interface,
}

/// Joins the group and starts the transport.
pub(super) fn start(
    plan: MulticastPlan,
    seal: GroupSeal,
    clock: Clock,
    traffic: Traffic,
) -> Result<RunningTransport, MulticastStartError> {
    let failed = |why| MulticastStartError::Join { group: plan.group, why };
    let socket = socket(plan)?;
    let socket = UdpSocket::from_std(socket.into()).map_err(failed)?;
    let (events, told) = mpsc::channel(EVENTS_MAX);
    let (orders, obeyed) = mpsc::channel(ORDERS_MAX);
    let group = PeerGroup::new(seal, clock, traffic, events, FRAME_BYTES_MAX);
    tokio::spawn(run(plan, socket, group, obeyed));
    let frame_max = FRAME_BYTES_MAX;
    Ok(RunningTransport { events: told, orders, urgent: None, frame_max, reliable: false })
}

/// Checks whether the group can be joined.
///
/// # Errors
/// [`MulticastStartError`]
pub fn try_join(plan: MulticastPlan) -> Result<(), MulticastStartError> {
    socket(plan).map(drop)
}

fn socket(plan: MulticastPlan) -> Result<Socket, MulticastStartError> {
    let failed = |why| MulticastStartError::Join { group: plan.group, why };
    let domain = Domain::for_address(plan.group);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(failed)?;
    let (own, index) = match plan.interface {
        Some(IpAddr::V6(Ipv6Addr::LOCALHOST)) => (Ipv4Addr::UNSPECIFIED, LOOPBACK_INDEX),
        Some(IpAddr::V6(_)) => return Err(MulticastStartError::Interface),
        Some(IpAddr::V4(own)) => (own, 0),
        None => (Ipv4Addr::UNSPECIFIED, 0),
    };
    let set_up = || {
        socket.set_nonblocking(true)?;
        socket.set_reuse_address(true)?;
        // The system may give smaller buffers, and they will do.
        let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
        let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
        // A socket bound to the group does not receive datagrams sent to this machine alone.
        socket.bind(&plan.group.into())?;
        match plan.group.ip() {
            IpAddr::V4(group) => {
                socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Address(own))?;
                socket.set_multicast_if_v4(&own)?;
                socket.set_multicast_ttl_v4(plan.hops)?;
                socket.set_multicast_loop_v4(true)
            }
            IpAddr::V6(group) => {
                socket.join_multicast_v6(&group, index)?;
                socket.set_multicast_if_v6(index)?;
                socket.set_multicast_hops_v6(plan.hops)?;
                socket.set_multicast_loop_v6(true)
            }
        }
    };
    set_up().map_err(failed)?;
    Ok(socket)
}

/// The index of the loopback interface, which is the first that a system creates.
const LOOPBACK_INDEX: u32 = 1;

async fn run(
    plan: MulticastPlan,
    socket: UdpSocket,
    mut group: PeerGroup,
    mut orders: mpsc::Receiver<TransportOrder>,
) {
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    let mut failing = false;
    group.up(plan.group.to_string()).await;
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                None => return,
                Some(
                    TransportOrder::Drop { .. }
                    | TransportOrder::Redial { .. }
                    | TransportOrder::Accept(_),
                ) => {}
                Some(TransportOrder::Send { link, bytes }) => {
                    let Some(message) = group.message(link, &bytes) else { continue };
                    let sent = socket.send_to(&message, plan.group);
                    let sent = tokio::time::timeout(SEND_TIMEOUT, sent).await;
                    let sent = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                    tell(sent.as_ref().err(), &mut failing, plan.group);
                    match sent {
                        Ok(bytes) => group.count_sent(bytes),
                        Err(_) => group.count_lost(),
                    }
                }
            },
            read = socket.recv_from(&mut buffer) => match read {
                Ok((count, from)) => group.handle_message(&buffer[..count], from),
                Err(_) => tokio::time::sleep(READ_PAUSE).await,
            },
        }
    }
}

/// Logs when sending begins to fail, and when it works again.
fn tell(error: Option<&io::Error>, failing: &mut bool, group: SocketAddr) {
    match error {
        Some(error) if !*failing => tracing::warn!(
            target: "evenkeel::peers", %group, %error,
            "cannot send to the multicast group; Evenkeel keeps trying"
        ),
        None if *failing => {
            tracing::info!(
                target: "evenkeel::peers", %group,
                "sending to the multicast group works again"
            );
        }
        _ => {}
    }
    *failing = error.is_some();
}

#[cfg(test)]
mod tests;

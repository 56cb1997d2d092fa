//! Multicast: datagrams to a group on the local network, for which nobody needs to be named.
//!
//! Every frame is one sealed datagram (`seal`) that fits into any network's packets. Lost ones are
//! lost, doubled ones are told apart. The socket listens to its group alone; one's own datagrams
//! come back, as they must where several instances run on one machine, and are known by their
//! sender.

use super::group::Group;
use super::seal::{OVERHEAD, Seal};
use super::traffic::Traffic;
use super::{BOUNDS, Order, Transport};
use crate::clock::Clock;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

/// The longest frame, in bytes: with all around it no more than 1280, which every network of IPv6
/// carries in one piece.
pub const FRAME_BYTES_MAX: usize = 1_180;
/// What is read of a datagram; what is longer is none of ours.
const DATAGRAM_BYTES_MAX: usize = FRAME_BYTES_MAX + OVERHEAD + 1;
/// After the system could not give us a datagram.
const READ_PAUSE: Duration = Duration::from_millis(100);
/// For the network to take a datagram: a period of many keys is many of them at once. After that
/// it is lost, and others are heard again.
const SEND: Duration = Duration::from_millis(100);
/// What the system keeps for us until we read it, and until it has sent it, in bytes: some periods
/// of many instances.
const KEPT_BYTES: usize = 1 << 20;

const _: () = assert!(FRAME_BYTES_MAX + OVERHEAD + 40 + 8 <= 1_280);

/// What the group is.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Its address and port.
    pub group: SocketAddr,
    /// The address of this machine on the network to use.
    pub interface: Option<IpAddr>,
    /// How many routers a datagram may pass, the first network counted.
    pub hops: u32,
}

/// The group cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system refuses.
    #[error("peers: cannot join the group {group}: {why}")]
    Join {
        /// Which.
        group: SocketAddr,
        /// Why not.
        why: io::Error,
    },
    /// Networks of IPv6 are not chosen by address.
    #[error("peers: `interface` of a group of IPv6 can be ::1; leave it out for another")]
    Interface,
}

/// Joins the group.
///
/// # Errors
/// [`StartError`]
pub fn start(
    plan: Plan,
    seal: Seal,
    clock: Clock,
    traffic: Traffic,
) -> Result<Transport, StartError> {
    let failed = |why| StartError::Join { group: plan.group, why };
    let socket = socket(plan)?;
    let socket = UdpSocket::from_std(socket.into()).map_err(failed)?;
    let (events, told) = mpsc::channel(BOUNDS.events_max);
    let (orders, obeyed) = mpsc::channel(BOUNDS.orders_max);
    let group = Group::new(seal, clock, traffic, events, FRAME_BYTES_MAX);
    tokio::spawn(run(plan, socket, group, obeyed));
    Ok(Transport { events: told, orders, frame_max: FRAME_BYTES_MAX, reliable: false })
}

/// Whether the group can be joined.
///
/// # Errors
/// [`StartError`]
pub fn try_join(plan: Plan) -> Result<(), StartError> {
    socket(plan).map(drop)
}

fn socket(plan: Plan) -> Result<Socket, StartError> {
    let failed = |why| StartError::Join { group: plan.group, why };
    let domain = Domain::for_address(plan.group);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(failed)?;
    let index = match plan.interface {
        Some(IpAddr::V6(Ipv6Addr::LOCALHOST)) => LOOPBACK,
        Some(IpAddr::V6(_)) => return Err(StartError::Interface),
        Some(IpAddr::V4(_)) | None => 0,
    };
    let set_up = || {
        socket.set_nonblocking(true)?;
        socket.set_reuse_address(true)?;
        // The system may give less, and that will do.
        let _ = socket.set_recv_buffer_size(KEPT_BYTES);
        let _ = socket.set_send_buffer_size(KEPT_BYTES);
        // Bound to the group, it hears nothing that is sent to this machine alone.
        socket.bind(&plan.group.into())?;
        match plan.group.ip() {
            IpAddr::V4(group) => {
                let own = match plan.interface {
                    Some(IpAddr::V4(own)) => own,
                    _ => Ipv4Addr::UNSPECIFIED,
                };
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

/// The number of the loopback network, the first that a system makes.
const LOOPBACK: u32 = 1;

async fn run(plan: Plan, socket: UdpSocket, mut group: Group, mut orders: mpsc::Receiver<Order>) {
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    let mut failing = false;
    group.up(plan.group.to_string()).await;
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                None => return,
                Some(Order::Drop { .. }) => {}
                Some(Order::Send { link, bytes }) => {
                    let Some(message) = group.message(link, &bytes) else { continue };
                    let sent = socket.send_to(&message, plan.group);
                    let sent = tokio::time::timeout(SEND, sent).await;
                    let sent = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
                    tell(sent.as_ref().err(), &mut failing, plan.group);
                    match sent {
                        Ok(bytes) => group.sent(bytes),
                        Err(_) => group.lost(),
                    }
                }
            },
            read = socket.recv_from(&mut buffer) => match read {
                Ok((count, from)) => group.heard(&buffer[..count], from),
                Err(_) => tokio::time::sleep(READ_PAUSE).await,
            },
        }
    }
}

/// Says when sending begins to fail, and when it is over.
fn tell(error: Option<&io::Error>, failing: &mut bool, group: SocketAddr) {
    match error {
        Some(error) if !*failing => tracing::warn!(
            target: "evenkeel::peers", %group, %error, "cannot send to the group; trying on"
        ),
        None if *failing => {
            tracing::info!(target: "evenkeel::peers", %group, "the group can be sent to again");
        }
        _ => {}
    }
    *failing = error.is_some();
}

#[cfg(test)]
mod tests;

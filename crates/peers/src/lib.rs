//! Instances that count together: the transports and the driver around `evenkeel_core::replica`.
//!
//! A transport carries frames between this instance and its peers, and does not know their
//! contents. It exchanges `TransportEvent`s and `TransportOrder`s with the driver. The contents
//! of frames, retransmission and the decision which frames to believe are up to the core. No
//! request waits for anything here: a peer that is slow, unreachable or hostile costs the clients
//! nothing.

mod discover;
pub mod driver;
mod group;
mod link;
mod mesh;
pub mod multicast;
mod nats;
mod seal;
mod status;
mod traffic;

use bytes::Bytes;
use std::time::Duration;
use tokio::sync::mpsc;

/// The id of a link: one connection to one peer, or the group of all peers (multicast, NATS). A new
/// connection to the same peer gets a new id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct LinkId(u64);

#[derive(Clone, Debug)]
enum TransportEvent {
    /// A peer, or the group, has become reachable.
    Up {
        link: LinkId,
        /// The address of the peer, for display.
        peer: String,
    },
    /// A frame has arrived.
    Frame { link: LinkId, bytes: Bytes },
    /// A peer has become unreachable. There are no further events of this link.
    Down {
        link: LinkId,
        why: String,
        /// Whether the other end has closed the connection, as one does that ends. After silence,
        /// or an end that this instance has decided on, the other may still run.
        is_gone: bool,
    },
    /// A message of a stranger, or a broken one, was dropped.
    Refused {
        /// The sender, as far as it is known.
        from: String,
        why: String,
    },
}

/// An order for a transport. A frame is opaque to it and has at most `frame_max` bytes.
#[derive(Clone, Debug)]
enum TransportOrder {
    /// Send a frame to one peer, or, over multicast and NATS, to the group.
    Send { link: LinkId, bytes: Bytes },
    /// Close the link. The transport may connect to the peer again.
    Drop { link: LinkId },
    /// Connect once more to the addresses at which the peer of a link was found: another instance
    /// accepts connections there. The link stays.
    Redial { link: LinkId },
    /// Accept connections from now on, or leave them to a successor at the same address, and
    /// connect to it. Has no effect on a group.
    Accept(bool),
}

/// A running transport. It ends when this is dropped.
struct RunningTransport {
    /// The transport's events, of which at most [`EVENTS_MAX`] wait. While the
    /// channel is full, transports of a group drop and count frames, and the mesh stops reading
    /// from its peers. `Up` and `Down` are never lost.
    events: mpsc::Receiver<TransportEvent>,
    /// The orders for the transport, of which at most [`ORDERS_MAX`] wait. The
    /// sender never waits: an order that finds no room stays with the sender or is lost.
    orders: mpsc::Sender<TransportOrder>,
    /// The orders that overtake all others, except for the first of their link. If there is no room
    /// for one of their frames, the link ends. `None` for a group.
    urgent: Option<mpsc::Sender<TransportOrder>>,
    /// The longest frame that the transport carries, in bytes.
    frame_max: usize,
    /// Whether each peer has a link of its own that delivers frames whole and in order, or not at
    /// all (mesh), so that acknowledgements make sense. Otherwise there is one link, the group of
    /// all (multicast, NATS), on which frames may be lost, duplicated or late.
    reliable: bool,
}

/// The number of events that wait for the driver.
const EVENTS_MAX: usize = 1_024;
/// The number of orders that wait for the transport.
const ORDERS_MAX: usize = 1_024;

/// The upper half of `longest`, of which a random part: instances that were cut off together do not
/// come back in step. Without random numbers each pause is the longest, which is safe.
fn jittered(longest: Duration) -> Duration {
    let mut byte = [0];
    let drawn = aws_lc_rs::rand::fill(&mut byte).map_or(255, |()| byte[0]);
    longest / 2 + longest.mul_f64(f64::from(drawn) / 510.0)
}

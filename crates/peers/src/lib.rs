//! Instances that count together: the transports and the driver around `evenkeel_core::replica`.
//!
//! A transport carries frames between this instance and its peers, and does not know their
//! contents. It exchanges [`TransportEvent`]s and [`TransportOrder`]s with the driver. The contents
//! of frames, retransmission and the decision which frames to believe are up to the core. No
//! request waits for anything here: a peer that is slow, unreachable or hostile costs the clients
//! nothing.

pub mod discover;
pub mod driver;
pub mod group;
pub mod link;
pub mod mesh;
pub mod multicast;
pub mod nats;
pub mod seal;
mod status;
pub mod traffic;

use bytes::Bytes;
use tokio::sync::mpsc;

/// The id of a link: one connection to one peer, or the group of all peers (multicast, NATS). A new
/// connection to the same peer gets a new id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u64);

/// An event that a transport reports.
#[derive(Clone, Debug)]
pub enum TransportEvent {
    /// A peer, or the group, has become reachable.
    Up {
        /// The id of the new link.
        link: LinkId,
        /// The address of the peer, for display.
        peer: String,
        /// Whether the peer may be another instance than the last time, of which no state is known.
        fresh: bool,
    },
    /// A frame has arrived.
    Frame {
        /// The link on which the frame arrived.
        link: LinkId,
        /// The frame, as its sender gave it to the transport.
        bytes: Bytes,
    },
    /// A peer has become unreachable. There are no further events of this link.
    Down {
        /// The link that has ended.
        link: LinkId,
        /// The reason, for display.
        why: String,
    },
    /// A message of a stranger, or a broken one, was dropped.
    Refused {
        /// The sender, as far as it is known.
        from: String,
        /// The reason, for display.
        why: String,
    },
}

/// An order for a transport. A frame is opaque to it and has at most `frame_max` bytes.
#[derive(Clone, Debug)]
pub enum TransportOrder {
    /// Send a frame to one peer, or, over multicast and NATS, to the group.
    Send {
        /// The link to send on.
        link: LinkId,
        /// The frame.
        bytes: Bytes,
    },
    /// Close the link. The transport may connect to the peer again.
    Drop {
        /// The link to close.
        link: LinkId,
    },
}

/// A running transport. It ends when this is dropped.
pub struct RunningTransport {
    /// The transport's events, of which at most [`TransportBounds::events_max`] wait. While the
    /// channel is full, transports of a group drop and count frames, and the mesh stops reading
    /// from its peers. `Up` and `Down` are never lost.
    pub events: mpsc::Receiver<TransportEvent>,
    /// The orders for the transport, of which at most [`TransportBounds::orders_max`] wait. The
    /// sender never waits: an order that finds no room stays with the sender or is lost.
    pub orders: mpsc::Sender<TransportOrder>,
    /// The longest frame that the transport carries, in bytes.
    pub frame_max: usize,
    /// Whether each peer has a link of its own that delivers frames whole and in order, or not at
    /// all (mesh), so that acknowledgements make sense. Otherwise there is one link, the group of
    /// all (multicast, NATS), on which frames may be lost, duplicated or late.
    pub reliable: bool,
}

/// The bounds of a transport's channels.
pub struct TransportBounds {
    /// The number of events that wait for the driver.
    pub events_max: usize,
    /// The number of orders that wait for the transport.
    pub orders_max: usize,
}

/// The bounds of every transport.
pub const BOUNDS: TransportBounds = TransportBounds { events_max: 1_024, orders_max: 1_024 };

//! Instances that count together: the world's side of `evenkeel_core::replica`.
//!
//! A transport carries frames that it does not understand, between this instance and its peers;
//! what stands between the two speaks in [`Event`]s and [`Order`]s. What frames say, what is sent
//! again and what is believed: the core. Nothing here is on the path of a request: a peer that is
//! slow, away or hostile costs no client anything.

mod board;
pub mod discover;
pub mod driver;
pub mod group;
pub mod link;
pub mod mesh;
pub mod multicast;
pub mod nats;
pub mod seal;
pub mod traffic;

use bytes::Bytes;
use tokio::sync::mpsc;

/// One side of a connection to one peer, or the group of all (multicast, nats). A connection that
/// is made again has another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u64);

/// What a transport tells.
#[derive(Clone, Debug)]
pub enum Event {
    /// A peer can be reached, or the group can.
    Up {
        /// What it is called from here on.
        link: LinkId,
        /// Its address, for people.
        peer: String,
        /// Whether it may be somebody else than the last time: nothing is known of it.
        fresh: bool,
    },
    /// A peer says something.
    Frame {
        /// Which.
        link: LinkId,
        /// What, as it was given to its transport.
        bytes: Bytes,
    },
    /// A peer cannot be reached any more; nothing else comes of this link.
    Down {
        /// Which.
        link: LinkId,
        /// Why, for people.
        why: String,
    },
    /// A stranger's message, or a broken one, was thrown away.
    Refused {
        /// Who sent it, as far as that is known.
        from: String,
        /// What was wrong with it.
        why: String,
    },
}

/// What a transport is asked to do. Frames are opaque to it, and of at most its `frame_max` bytes.
#[derive(Clone, Debug)]
pub enum Order {
    /// Tell one peer; over multicast and nats the group.
    Send {
        /// Whom.
        link: LinkId,
        /// What.
        bytes: Bytes,
    },
    /// Close the link. It may be made again.
    Drop {
        /// Which.
        link: LinkId,
    },
}

/// A transport that runs, until this is dropped.
pub struct Transport {
    /// What it tells, of [`Bounds::events_max`] at most that wait. A full channel loses events that
    /// are frames, and the transport counts them; `Up` and `Down` are never lost.
    pub events: mpsc::Receiver<Event>,
    /// What it is to do, of [`Bounds::orders_max`] at most that wait. Whoever gives orders never
    /// waits: what finds no room is lost, and counted by them.
    pub orders: mpsc::Sender<Order>,
    /// The longest frame that it carries, in bytes.
    pub frame_max: usize,
    /// Whether each peer has a link of its own on which frames come whole and in order, or not at
    /// all (mesh): acknowledgements make sense. Else there is one link, the group of all
    /// (multicast, nats), on which frames may be lost, doubled or come late.
    pub reliable: bool,
}

/// What there may be at most.
pub struct Bounds {
    /// Events that wait.
    pub events_max: usize,
    /// Orders that wait.
    pub orders_max: usize,
}

/// The bounds of every transport.
pub const BOUNDS: Bounds = Bounds { events_max: 1_024, orders_max: 1_024 };

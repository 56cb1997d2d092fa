//! The output of a replica to its caller: bucket changes, events and totals.
//!
//! The replica keeps none of this; the caller has the limits, the names and the log. Bucket changes
//! are passed while a frame is handled, and events by `poll_event`.

use super::peer::PeerTraffic;
use crate::key::KeyHash;
use crate::queue::shared::{InstanceId, QueueMessage};
use crate::units::{Cost, Nanos};
use alloc::string::String;

/// The deficit of a bucket of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerDeficit {
    /// The amount that it is short of at this moment.
    pub missing: Cost,
    /// Charges of this instance that `missing` does not contain, as they were made.
    pub apart: Cost,
}

impl PeerDeficit {
    /// The amount to charge to the bucket here, which is short of `here`: it is short of the sum
    /// afterwards. Charges of this instance that have been refilled do not count.
    #[must_use]
    pub fn charge(self, here: Cost) -> Cost {
        self.missing.plus(self.apart.min(here)).minus(here)
    }
}

/// A change that the caller applies to its buckets or names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaUpdate<'a> {
    /// Charge a key.
    Charge {
        /// Index of the limit.
        limit: usize,
        /// Additional identification of the bucket, such as the window; zero for most limits.
        context: u128,
        /// The key to charge.
        key: KeyHash,
        /// The amount to charge.
        amount: Cost,
        /// Time since the report was created. It is long after an outage of the connection.
        age: Nanos,
    },
    /// Add the state of a bucket of a peer to the bucket here.
    Short {
        /// Index of the limit.
        limit: usize,
        /// The key of the bucket.
        key: KeyHash,
        /// The deficit of the bucket of the peer.
        deficit: PeerDeficit,
    },
    /// Add what an instance knows of a client that it has served.
    Client {
        /// The table of clients, as named in [`super::Replica::send_clients`].
        table: u64,
        /// The key of the client.
        key: KeyHash,
        /// The record, which only the table can read.
        record: u64,
    },
    /// Handle messages of another instance about a queue that both share.
    Queue {
        /// The fingerprint of the queue.
        queue: u64,
        /// Identity of the instance.
        from: u64,
        /// The messages, in their order.
        messages: &'a [QueueMessage],
    },
    /// Set the readable name of a key.
    Name {
        /// Index of the limit.
        limit: usize,
        /// The key to name.
        key: KeyHash,
        /// The name of the key.
        name: &'a str,
    },
}

/// An event for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaEvent {
    /// An instance joined, perhaps after an absence.
    Joined {
        /// Identity of the instance.
        node: u64,
        /// Name of the instance.
        name: String,
    },
    /// An instance has sent nothing for three periods.
    Silent {
        /// Identity of the instance.
        node: u64,
        /// Name of the instance.
        name: String,
    },
    /// An instance has a limit that differs from the limit here. Reported once for each limit.
    Differs {
        /// Name of the instance.
        name: String,
        /// Name of the limit.
        limit: String,
        /// Parameters of the limit at that instance.
        theirs: String,
        /// Parameters of the limit here; `None` if there is no such limit.
        ours: Option<String>,
        /// Whether both instances count together in spite of the difference.
        counts: bool,
    },
    /// An instance requests the present state; the caller answers with
    /// [`super::Replica::give_state`].
    Wanted {
        /// Identity of the instance.
        node: u64,
    },
    /// An instance that shares a queue of this one can be reached, perhaps over another link than
    /// before. Messages on the link before may be lost.
    QueueUp {
        /// The fingerprint of the queue.
        queue: u64,
        /// The instance.
        id: InstanceId,
    },
    /// An instance that shares a queue of this one can no longer be reached.
    QueueDown {
        /// The fingerprint of the queue.
        queue: u64,
        /// Identity of the instance.
        node: u64,
        /// Whether the instance has ended, or shares the queue no longer. Otherwise it may still be
        /// there.
        is_gone: bool,
    },
    /// Messages about a queue are lost on a link, which must be closed.
    QueueLost {
        /// Number of the link.
        link: u64,
    },
    /// The peer of a link has a successor, which accepts connections at its address. The link
    /// stays.
    HandedOver {
        /// Number of the link.
        link: u64,
    },
    /// A link leads back to this instance.
    Own {
        /// Number of the link.
        link: u64,
    },
}

/// Totals since the start, over all peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaTotals {
    /// Frames, bytes and entries that were exchanged.
    pub counts: PeerTraffic,
    /// Frames that were refused.
    pub refused: u64,
    /// Charges that were dropped because there was no room to keep them for a report.
    pub dropped: u64,
    /// Frames that were dropped because the output queue was full. Reports over reliable links wait
    /// in the log instead and are not counted here.
    pub crowded: u64,
    /// Reports that were created.
    pub reports: u64,
    /// Entries in these reports.
    pub entries_out: u64,
}

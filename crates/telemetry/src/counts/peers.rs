//! What an operator can see of the instances that count together: handles of their metrics, and the
//! status of each.
//!
//! `telemetry::metrics` has the meaning of each metric. The driver of the peers writes the status
//! once a second; readers get the last one written.

use crate::metrics::{
    PEER_ENTRIES, PEER_FRAMES, PEER_LAG, PEER_QUEUE_MESSAGES, PEER_REFUSED, PEER_REPORTS_LOST,
    PEER_UNCOUNTED, PEERS,
};
use crate::registry::{Counter, Gauge, Registry};
use parking_lot::Mutex;
use serde::Serialize;

/// Everything that is counted about the instances that count together.
#[derive(Debug)]
pub struct PeerCounts {
    /// Frames read and frames written.
    pub frames: [Counter; 2],
    /// Entries read and entries written. An entry is a key with an amount.
    pub entries: [Counter; 2],
    /// Frames of reports that never arrived: those of others here, and those of this instance at
    /// others.
    pub lost: [Counter; 2],
    /// Messages about shared queues read and written.
    pub queue_messages: [Counter; 2],
    /// Messages refused because they are of a stranger, broken, too old or too many.
    pub refused: Counter,
    /// Charges that found no free place and are therefore never reported to other instances.
    pub uncounted: Counter,
    /// Other instances that are live, and those that are silent.
    pub peers: [Gauge; 2],
    /// How far the slowest live instance is behind, in nanoseconds; shown in seconds.
    pub lag: Gauge,
}

impl PeerCounts {
    /// Makes the handles. Call it only if instances count together.
    pub fn new(registry: &Registry) -> PeerCounts {
        PeerCounts {
            frames: ["read", "written"].map(|way| registry.counter(&PEER_FRAMES, &[way])),
            entries: ["read", "written"].map(|way| registry.counter(&PEER_ENTRIES, &[way])),
            lost: ["read", "written"].map(|way| registry.counter(&PEER_REPORTS_LOST, &[way])),
            queue_messages: ["read", "written"]
                .map(|way| registry.counter(&PEER_QUEUE_MESSAGES, &[way])),
            refused: registry.counter(&PEER_REFUSED, &[]),
            uncounted: registry.counter(&PEER_UNCOUNTED, &[]),
            peers: ["live", "silent"].map(|state| registry.gauge(&PEERS, &[state])),
            lag: registry.nanos_gauge(&PEER_LAG, &[]),
        }
    }
}

/// The last status of the other instances.
#[derive(Debug, Default)]
pub struct PeersStatusBoard(Mutex<Option<PeersStatus>>);

impl PeersStatusBoard {
    /// Replaces the status.
    pub fn write(&self, report: PeersStatus) {
        *self.0.lock() = Some(report);
    }

    /// The status written last; `None` if this instance counts alone.
    pub fn read(&self) -> Option<PeersStatus> {
        self.0.lock().clone()
    }
}

/// The status of the instances that count together, as `/api/peers` shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeersStatus {
    /// The number of this instance.
    #[serde(skip)]
    pub node: u64,
    /// The name by which other instances know this one.
    pub name: String,
    /// The transport between the instances.
    pub via: &'static str,
    /// The name of the cluster to which the instances belong.
    pub cluster: String,
    /// The time between two reports of this instance.
    pub period_seconds: f64,
    /// The number of live instances, this one included.
    pub live: usize,
    /// The CPUs that all live instances share out together.
    pub cpus: f64,
    /// Keys that were charged here and not reported yet.
    pub keys_waiting: usize,
    /// Frames that are kept until all other instances have acknowledged them.
    pub frames_kept: usize,
    /// Messages that were refused.
    pub refused: u64,
    /// The part of this instance in the queue that it shares; `null` if it shares none.
    pub queue: Option<QueuePart>,
    /// The other instances.
    pub peers: Vec<PeerStatus>,
}

/// The part of one instance in a shared queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueuePart {
    /// Whether it owns the queue.
    pub owns: bool,
    /// Its requests that wait.
    pub waiting: u64,
    /// Its requests with a slot.
    pub running: u64,
}

/// The status of one other instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerStatus {
    /// The number of the instance.
    #[serde(skip)]
    pub node: u64,
    /// The name that the instance gave itself.
    pub name: String,
    /// The address at which the instance is reached; empty if there is no connection.
    pub address: String,
    /// Whether a message of the instance arrived within the last three periods.
    pub live: bool,
    /// The time since the first message of the instance.
    pub known_seconds: f64,
    /// The time since the last message of the instance.
    pub silent_seconds: f64,
    /// How long the oldest report has been waiting for an acknowledgement of the instance.
    pub behind_seconds: f64,
    /// The number of its last report.
    pub report: u64,
    /// The time between two reports of the instance.
    pub period_seconds: f64,
    /// The CPUs that the instance shares out.
    pub cpus: f64,
    /// Bytes received from the instance.
    pub bytes_in: u64,
    /// Bytes sent to the instance; zero if messages go to a group, which receives them together.
    pub bytes_out: u64,
    /// Entries of the instance that were charged here.
    pub entries_in: u64,
    /// Entries of limits that this instance does not have.
    pub entries_unshared: u64,
    /// Frames of its reports that never arrived here.
    pub lost_in: u64,
    /// Frames of this instance's reports that never arrived there.
    pub lost_out: u64,
    /// Frames that arrived more than once and were counted once.
    pub repeated: u64,
    /// Clients of the instance that were told of here, repeated ones included.
    pub clients_in: u64,
    /// Its part in the queue of this instance, as it last said; `null` if it does not share it.
    pub queue: Option<QueuePart>,
    /// Why it does not share the queue of this instance; `null` if it does, if it is not live, or
    /// if this instance shares none.
    pub queue_apart: Option<&'static str>,
    /// Messages about queues from the instance.
    pub queue_messages_in: u64,
    /// Messages about queues to the instance.
    pub queue_messages_out: u64,
}

impl PeersStatus {
    /// The name of the instance with this number; the number itself if the name is not known.
    pub fn name_of(&self, node: u64) -> String {
        let own = (node == self.node).then_some(&self.name);
        let peer = || self.peers.iter().find(|peer| peer.node == node).map(|peer| &peer.name);
        let name = own.or_else(peer).filter(|name| !name.is_empty());
        name.map_or_else(|| format!("{node:016x}"), Clone::clone)
    }
}

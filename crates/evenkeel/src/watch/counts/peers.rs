//! What can be seen of the instances that count together: handles of what is counted, and a board
//! with how each stands.
//!
//! What each metric means: `watch::metrics`. Whoever drives them writes the board once a second;
//! whoever asks reads what was written last.

use crate::watch::metrics::{
    PEER_ENTRIES, PEER_FRAMES, PEER_LAG, PEER_REFUSED, PEER_REPORTS_LOST, PEER_UNCOUNTED, PEERS,
};
use crate::watch::registry::{Counter, Gauge, Registry};
use parking_lot::Mutex;
use serde::Serialize;

/// Everything that is counted about them.
#[derive(Debug)]
pub struct PeerCounts {
    /// Frames, in and out.
    pub frames: [Counter; 2],
    /// Entries, in and out.
    pub entries: [Counter; 2],
    /// Frames of reports that never came to us, and those that never came from us.
    pub lost: [Counter; 2],
    /// Messages that were not believed.
    pub refused: Counter,
    /// Charges that found no room and that others are not told of.
    pub uncounted: Counter,
    /// Instances that live and those that are silent; this one is none of them.
    pub peers: [Gauge; 2],
    /// How far the slowest of them is behind.
    pub lag: Gauge,
}

impl PeerCounts {
    /// The handles; made where instances count together.
    #[must_use]
    pub fn new(registry: &Registry) -> PeerCounts {
        PeerCounts {
            frames: ["read", "written"].map(|way| registry.counter(&PEER_FRAMES, &[way])),
            entries: ["read", "written"].map(|way| registry.counter(&PEER_ENTRIES, &[way])),
            lost: ["read", "written"].map(|way| registry.counter(&PEER_REPORTS_LOST, &[way])),
            refused: registry.counter(&PEER_REFUSED, &[]),
            uncounted: registry.counter(&PEER_UNCOUNTED, &[]),
            peers: ["live", "silent"].map(|state| registry.gauge(&PEERS, &[state])),
            lag: registry.gauge(&PEER_LAG, &[]),
        }
    }
}

/// How the others stood when that was last written.
#[derive(Debug, Default)]
pub struct Board(Mutex<Option<Report>>);

impl Board {
    /// Writes it anew.
    pub fn write(&self, report: Report) {
        *self.0.lock() = Some(report);
    }

    /// What was written last; `None` where nobody counts together.
    #[must_use]
    pub fn read(&self) -> Option<Report> {
        self.0.lock().clone()
    }
}

/// How instances stand that count together, as `/api/peers` says it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What this instance is called by the others.
    pub name: String,
    /// How they reach each other.
    pub via: &'static str,
    /// To what they belong.
    pub cluster: String,
    /// How often each tells the others.
    pub period_seconds: f64,
    /// How many live, this one included.
    pub live: usize,
    /// CPUs that all who live have to share out.
    pub cpus: f64,
    /// Keys that were charged here and have not been told.
    pub keys_waiting: usize,
    /// Frames that are kept for those who have not got them.
    pub frames_kept: usize,
    /// Messages that were not believed.
    pub refused: u64,
    /// The others.
    pub peers: Vec<Row>,
}

/// One of the others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What it calls itself.
    pub name: String,
    /// Where it is reached.
    pub address: String,
    /// Whether it has been heard within three periods.
    pub live: bool,
    /// How long it has been known.
    pub known_seconds: f64,
    /// How long it has not been heard.
    pub silent_seconds: f64,
    /// How long the oldest report has waited that it has not got.
    pub behind_seconds: f64,
    /// The number of its last report.
    pub report: u64,
    /// How often it reports.
    pub period_seconds: f64,
    /// CPUs that it has to share out.
    pub cpus: f64,
    /// Bytes that came from it.
    pub bytes_in: u64,
    /// Bytes that it was sent; zero over a group, which all are sent together.
    pub bytes_out: u64,
    /// Entries of it that were charged here.
    pub entries_in: u64,
    /// Entries of limits that are not here.
    pub entries_unshared: u64,
    /// Frames of its reports that never came.
    pub lost_in: u64,
    /// Frames of our reports that it never got.
    pub lost_out: u64,
    /// Frames that came more than once, and were counted once.
    pub repeated: u64,
}

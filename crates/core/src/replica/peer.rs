//! The state of one other instance: which of its reports have been seen, which reports of this
//! instance it has, how it is reached, and its metrics.
//!
//! A peer is forgotten some time after its last frame, but not before everything that it could
//! still send again is too old to be sent. So a forgotten peer never causes a report to be counted
//! twice.

use super::bounds::REPLICA_BOUNDS;
use super::window::SequenceWindow;
use super::wire::PeerFrameSender;
use crate::units::{Nanos, Time};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

/// Upper bound of the age of a report; older ones are not sent again.
const REPORT_AGE_MAX: Nanos = Nanos::from_secs(120);

/// One other instance, in one of its lives.
pub struct ReplicaPeer {
    /// Number of its present life.
    pub life: u64,
    /// Readable name; empty until its hello arrives.
    pub name: String,
    /// The links on which it has said hello.
    pub links: Vec<u64>,
    /// The link on which it has acknowledged reports; since then new reports go to this link.
    pub ready: Option<u64>,
    /// Its reports that have been seen; `None` before the first.
    pub seen: Option<SequenceWindow>,
    /// Reports of this instance that it has.
    pub acked: SequenceWindow,
    /// Number of the next report to send on the present link.
    pub next: u64,
    /// Time before which unacknowledged reports are not sent again.
    pub resend_at: Time,
    /// Whether an acknowledgement is due.
    pub ack_due: bool,
    /// Time of its first frame.
    pub since: Time,
    /// Time of its last report, hello or acknowledgement; zero if it is known only from others.
    pub heard: Time,
    /// Smallest difference seen between the local time on arrival of a frame and the time in it, in
    /// nanoseconds: its clock's lag plus the fastest transmission.
    pub behind: i64,
    /// Interval between two reports, as announced by the peer.
    pub period: Nanos,
    /// Number of its latest reported period.
    pub report: u64,
    /// CPUs that it shares out, in thousandths.
    pub cpus_milli: u32,
    /// Digest of its limits, as announced in its hello.
    pub digest: u64,
    /// Bit set of the parts of its limits that have been compared.
    pub compared: u128,
    /// Number of frames received from it in the current period, without those about queues.
    pub frames: u32,
    /// Number of times that it was given the state.
    pub given: u8,
    /// The queues that it shares, by fingerprint, and for each the link on which it has said so.
    pub queues: BTreeMap<u64, u64>,
    /// The queues of this instance that it shares with messages of another version.
    pub queues_of_other_version: BTreeSet<u64>,
    /// The number of times that it has handed its address over.
    pub handovers: u64,
    /// Its frames about queues in the present second.
    pub queue_frames: QueueFrameCount,
    /// Its metrics.
    pub counts: PeerTraffic,
}

/// Counts of the exchange with one peer, or with all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerTraffic {
    /// Bytes of frames received from it.
    pub bytes_in: u64,
    /// Bytes of frames sent to it; over a group, frames to all are counted only in the totals.
    pub bytes_out: u64,
    /// Frames received from it.
    pub frames_in: u64,
    /// Frames sent to it.
    pub frames_out: u64,
    /// Its entries that were charged here.
    pub entries_in: u64,
    /// Its report frames that never arrived.
    pub lost_in: u64,
    /// Report frames of this instance that were dropped before it had them.
    pub lost_out: u64,
    /// Its report frames that arrived more than once.
    pub repeated: u64,
    /// Its entries for limits that do not exist here.
    pub unshared: u64,
    /// Its records of clients that it has served.
    pub clients_in: u64,
    /// Its messages about shared queues.
    pub queue_messages_in: u64,
    /// Messages about shared queues to it.
    pub queue_messages_out: u64,
}

impl ReplicaPeer {
    /// A peer after its first frame in this life has just arrived.
    pub fn new(sender: PeerFrameSender, period: Nanos, now: Time) -> ReplicaPeer {
        ReplicaPeer {
            life: sender.life,
            name: String::new(),
            links: Vec::new(),
            ready: None,
            seen: None,
            acked: SequenceWindow::default(),
            next: 0,
            resend_at: now,
            ack_due: false,
            since: now,
            heard: now,
            behind: i64::MAX,
            period,
            report: 0,
            cpus_milli: 0,
            digest: 0,
            compared: 0,
            frames: 0,
            given: 0,
            queues: BTreeMap::new(),
            queues_of_other_version: BTreeSet::new(),
            handovers: 0,
            queue_frames: QueueFrameCount::default(),
            counts: PeerTraffic::default(),
        }
    }

    /// Time since the peer created a frame, given that the frame says `at` by the peer's clock. The
    /// fastest frame so far counts as age zero, so clock differences cancel out.
    pub fn age(&mut self, at: Time, now: Time) -> Nanos {
        let behind = now.0.wrapping_sub(at.0).cast_signed();
        self.behind = self.behind.min(behind);
        Nanos(behind.saturating_sub(self.behind).max(0).cast_unsigned().min(REPORT_AGE_MAX.0))
    }

    /// Whether the peer was heard within three periods.
    pub fn is_live(&self, period: Nanos, now: Time) -> bool {
        let period = self.period.max(period);
        now.since(self.heard) <= Nanos(period.0.saturating_mul(3))
    }
}

/// A snapshot of one other instance, for display.
#[derive(Clone, Debug)]
pub struct PeerSnapshot {
    /// Identity of the instance.
    pub node: u64,
    /// Readable name; empty until its hello arrives.
    pub name: String,
    /// The links on which it has said hello.
    pub links: Vec<u64>,
    /// Whether it was heard within three periods.
    pub lives: bool,
    /// Time of its first frame.
    pub since: Time,
    /// Time of its last report, hello or acknowledgement.
    pub heard: Time,
    /// Interval between two reports, as announced by the peer.
    pub period: Nanos,
    /// Number of its latest reported period.
    pub report: u64,
    /// CPUs that it shares out, in thousandths.
    pub cpus_milli: u32,
    /// Age of the oldest report that it has not acknowledged; zero over a group.
    pub behind: Nanos,
    /// Counts of the exchange with it.
    pub counts: PeerTraffic,
}

/// The queue frames of a peer in one second.
#[derive(Clone, Copy, Default)]
pub struct QueueFrameCount {
    second: u64,
    frames: u32,
}

impl QueueFrameCount {
    /// Counts a frame.
    pub fn add(&mut self, now: Time) {
        if self.second != now.second() {
            *self = QueueFrameCount { second: now.second(), frames: 0 };
        }
        self.frames = self.frames.saturating_add(1);
    }

    /// Whether the peer may send no further frame in this second.
    pub fn is_full(self, now: Time) -> bool {
        self.second == now.second() && self.frames >= REPLICA_BOUNDS.queue_frames_max
    }
}

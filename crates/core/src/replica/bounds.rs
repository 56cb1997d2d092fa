//! Upper bounds of memory, frames and times of a replica.
//!
//! A peer can use no more than this, whatever it sends. The doc of each bound states what happens
//! when it is reached. One more bound, `nodes_max`, is in the settings.

use super::wire::FRAME_BYTES_MAX;
use crate::units::Nanos;

/// The maximum number of shared limits.
pub const LIMITS_MAX: usize = 128;

/// The upper bounds of a replica.
pub struct ReplicaBounds {
    /// Keys with unreported charges, 24 bytes each. A further key causes a report of all of them at
    /// once. Its charge is dropped and counted if there is still no room, because amounts below the
    /// unit of a limit stay.
    pub unsent_max: usize,
    /// Pairs of limit and context with unreported charges; charges to further ones cause a report
    /// of all charges at once, and are dropped and counted if there is still no room.
    pub groups_max: usize,
    /// Time for which unacknowledged reports are kept. Longer: a healed network charges clients for
    /// what they did long ago.
    pub resend_for: Nanos,
    /// Time for which reports are kept that all known peers have. Longer: more memory. Shorter: an
    /// instance that joins must connect to all others sooner after it has got the state from one,
    /// or it misses what they reported in between.
    pub keep_for: Nanos,
    /// Bytes of reports kept for resending; beyond it the oldest are dropped and counted.
    pub log_bytes_max: usize,
    /// Frames of reports kept for resending; beyond it the oldest are dropped and counted.
    pub log_frames_max: usize,
    /// Frames in the output queue of `poll_transmit`. Reports over links wait in the log; other
    /// frames are dropped and counted.
    pub out_max: usize,
    /// Links at once; further ones are ignored.
    pub links_max: usize,
    /// Frames from one peer in one local period; further ones are refused.
    pub frames_max: u32,
    /// Queues of an instance that others may share; further ones are not shared.
    pub queues_max: usize,
    /// Frames about queues from one peer in one second; further ones are refused.
    pub queue_frames_max: u32,
    /// Frames about queues that wait for `poll_queue_transmit`; if there is no room for one, its
    /// link is to be closed.
    pub queue_out_max: usize,
    /// Events that wait for `poll_event`; further ones are dropped.
    pub events_max: usize,
    /// Keys whose names are sent; further ones are left out.
    pub names_max: usize,
    /// Buckets in the state for a joining instance: over links, and over a group.
    pub state_max: [usize; 2],
    /// Clients that are reported to a joining instance: over links, and over a group.
    pub clients_max: [usize; 2],
    /// Number of times that one life of a peer is given the state.
    pub given_max: u8,
    /// Silence after which a peer is forgotten.
    pub forget_after: Nanos,
}

/// The bounds of every replica.
pub const REPLICA_BOUNDS: ReplicaBounds = ReplicaBounds {
    unsent_max: 1 << 18,
    groups_max: 4_096,
    resend_for: Nanos::from_secs(60),
    keep_for: Nanos::from_secs(20),
    log_bytes_max: 64 << 20,
    log_frames_max: 8_192,
    out_max: 16_384,
    links_max: 2_048,
    frames_max: 16_384,
    queues_max: 16,
    queue_frames_max: 8_192,
    queue_out_max: 4_096,
    events_max: 256,
    names_max: 100,
    state_max: [1 << 16, 1 << 13],
    clients_max: [1 << 16, 1 << 13],
    given_max: 3,
    forget_after: Nanos::from_secs(150),
};

const _: () = {
    // A peer is not forgotten while it could still repeat a report that has been counted.
    assert!(REPLICA_BOUNDS.forget_after.0 > 2 * REPLICA_BOUNDS.resend_for.0);
    assert!(REPLICA_BOUNDS.frames_max as usize > REPLICA_BOUNDS.log_frames_max);
    assert!(REPLICA_BOUNDS.out_max > REPLICA_BOUNDS.log_frames_max);
    assert!(FRAME_BYTES_MAX <= REPLICA_BOUNDS.log_bytes_max, "a report can be sent again");
    assert!(LIMITS_MAX <= u128::BITS as usize, "a bit of a peer for each part of its limits");
    assert!(LIMITS_MAX <= REPLICA_BOUNDS.groups_max, "a group for each limit");
};

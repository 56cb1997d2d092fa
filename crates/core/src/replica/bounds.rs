//! How much there may be of everything: in memory, in frames, in time.
//!
//! What a peer says can fill no more than this, however much it says; what happens at each bound
//! stands with it, and is counted. The settings have `nodes_max` beside.

use crate::units::Nanos;

/// What there may be at most of everything.
pub struct Bounds {
    /// Keys that wait to be told: 24 bytes each. When there are as many, they are told at once.
    pub unsent_max: usize,
    /// Limits and contexts that keys which wait may have; further ones are dropped and counted.
    pub groups_max: usize,
    /// How long what a peer has not got is kept for it. Longer: a healed network charges people
    /// for what they did long ago.
    pub resend_for: Nanos,
    /// Bytes of reports kept to be sent again; the oldest go first, and are counted.
    pub log_bytes_max: usize,
    /// Frames of them.
    pub log_frames_max: usize,
    /// Frames that wait to be taken by `poll_transmit`; reports wait in the log, others are lost.
    pub out_max: usize,
    /// Links at once; further ones are not spoken on.
    pub links_max: usize,
    /// Frames of one peer in one of our periods; further ones are refused.
    pub frames_max: u32,
    /// Events that wait; further ones are lost.
    pub events_max: usize,
    /// Keys whose names are told.
    pub names_max: usize,
    /// Buckets of the state that a joiner is given, over links and over a group.
    pub state_max: [usize; 2],
    /// How often one life of a peer is given the state.
    pub given_max: u8,
    /// After so long a silence a peer is forgotten.
    pub forget_after: Nanos,
}

/// The bounds.
pub const BOUNDS: Bounds = Bounds {
    unsent_max: 1 << 18,
    groups_max: 4_096,
    resend_for: Nanos::from_secs(60),
    log_bytes_max: 64 << 20,
    log_frames_max: 8_192,
    out_max: 16_384,
    links_max: 2_048,
    frames_max: 16_384,
    events_max: 256,
    names_max: 100,
    state_max: [1 << 16, 1 << 13],
    given_max: 3,
    forget_after: Nanos::from_secs(150),
};

const _: () = {
    // Nobody is forgotten who could still repeat what has been counted.
    assert!(BOUNDS.forget_after.0 > 2 * BOUNDS.resend_for.0);
    assert!(BOUNDS.frames_max as usize > BOUNDS.log_frames_max);
    assert!(BOUNDS.out_max > BOUNDS.log_frames_max);
};

//! What a replica hands to its caller: what to do to buckets, what to know, and figures.
//!
//! Nothing here is kept by it; whoever is told has the limits, the names and the log. It is told
//! while a frame is handled, or by `poll_event`.

use super::Counts;
use crate::key::KeyHash;
use crate::units::{Cost, Nanos};
use alloc::string::String;

/// Something for the caller to do to its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told<'a> {
    /// Charge a key.
    Charge {
        /// The limit's place.
        limit: usize,
        /// What it said of itself beside.
        context: u128,
        /// Whose.
        key: KeyHash,
        /// How much.
        amount: Cost,
        /// How long ago it was told first: long, where the way was cut.
        age: Nanos,
    },
    /// A bucket is short of so much, if it is not short of more already.
    Short {
        /// The limit's place.
        limit: usize,
        /// Whose.
        key: KeyHash,
        /// By how much, at this moment.
        missing: Cost,
    },
    /// A key is called so.
    Name {
        /// The limit's place.
        limit: usize,
        /// Which.
        key: KeyHash,
        /// How.
        name: &'a str,
    },
}

/// Something for the caller to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An instance is there, perhaps again.
    Joined {
        /// Its identity.
        node: u64,
        /// Its name.
        name: String,
    },
    /// An instance has not been heard for three periods.
    Silent {
        /// Its identity.
        node: u64,
        /// Its name.
        name: String,
    },
    /// An instance has another limit than this one. Told once for each.
    Differs {
        /// The instance's name.
        name: String,
        /// The limit's.
        limit: String,
        /// What it is there.
        theirs: String,
        /// What it is here; `None`: there is none.
        ours: Option<String>,
        /// Whether both count together all the same.
        counts: bool,
    },
    /// An instance asks for the present state: [`super::Replica::give_state`].
    Wanted {
        /// Its identity.
        node: u64,
    },
    /// A link leads to this instance itself.
    Own {
        /// Which.
        link: u64,
    },
}

/// What was done since the start, over all peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// What was exchanged.
    pub counts: Counts,
    /// Frames that were refused.
    pub refused: u64,
    /// Charges that found no room to wait.
    pub dropped: u64,
    /// Frames that found no room to be sent, other than reports.
    pub crowded: u64,
    /// Reports that were cut.
    pub reports: u64,
    /// Entries that were told.
    pub entries_out: u64,
}

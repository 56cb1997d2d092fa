//! Where a request waits: its tier, and the line or flow in it.
//!
//! Which place a request gets: `known_clients`. The order of service: `tiers`, `lines` and `turns`.

use super::request::{DebtFlow, QueuePlace};

/// The lines of those that were not here before the pressure began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    /// Visitors that have waited and come back, and were not served yet.
    First,
    /// Visitors that were served since.
    Later,
    /// All others.
    Strangers,
    /// Those of a group that burns, whichever of the others they would be in.
    Burning,
}

/// The tier, and the line or flow, in which a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In credit. Under pressure: clients that were here before.
    Credit,
    /// Under pressure: clients in credit that were not.
    Line(Line),
    /// In debt, in the flow of this bucket.
    Debt(DebtFlow),
}

impl From<QueuePlace> for Place {
    fn from(place: QueuePlace) -> Place {
        match place {
            QueuePlace::Credit => Place::Credit,
            QueuePlace::Debt(bucket) => Place::Debt(bucket),
        }
    }
}

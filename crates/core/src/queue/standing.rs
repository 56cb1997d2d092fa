//! What is known of the client behind a request, and what the queue makes of it: the types that a
//! door exchanges with the queue.
//!
//! Evidence moves a request in line and never refuses it. It counts only under *pressure*, while
//! the requests of clients in credit need more than the backend can do. Then clients that were here
//! before go first; a visitor that has waited and come back (a *ticket*), or was served since (a
//! *pass*), goes next; strangers share what is left. A request that would wait for long may be
//! answered with a waiting page instead; the door then gives the visitor a ticket.
//!
//! The core neither signs tickets nor writes cookies or pages: that is the door's part. Where a
//! request waits is decided in `known_clients` and `lines`; why: docs/adr/0006.

use super::request::RequestId;
use crate::units::{Cost, Nanos, Time};

/// Whether the queue distinguishes clients that were here before from strangers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownClients {
    /// All clients in credit are treated alike. No client is remembered, and tickets and passes are
    /// ignored.
    Off,
    /// Under pressure only. Otherwise all clients in credit are treated alike.
    Auto {
        /// The number of clients to remember, at least 1. Too low: a client that comes seldom is a
        /// stranger at each visit. Too high: memory, 36 bytes each, allocated at the start.
        clients_max: usize,
    },
    /// At all times. Without pressure, a client that was first served at least two minutes ago and
    /// has been served at least eight times counts as one that was here before.
    Always {
        /// As in [`KnownClients::Auto`].
        clients_max: usize,
    },
}

/// The proof of an earlier visit that a request carries, verified by the door.
///
/// A ticket or pass that is forged, or has a signature that is too old for the door, is
/// [`Visit::Unknown`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Visit {
    /// None.
    #[default]
    Unknown,
    /// The visitor was sent to the waiting room, and has come back. Until the ticket is served, it
    /// counts for requests that may be answered with a waiting page. Others wait as if they had
    /// none.
    Ticket(VisitTicket),
    /// A request of the visitor was served with a ticket.
    Pass(VisitPass),
}

/// A place in the waiting room. The queue keeps nothing for a ticket until it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisitTicket {
    /// A random number that the door draws when it issues the ticket. Two visitors with the same
    /// number count as one.
    pub id: u64,
    /// When the visitor first came: [`WaitingRoomEntry::first_came`]. A ticket older than
    /// [`TICKET_AGE_MAX`], or from the future, is worth nothing.
    pub first_came: Time,
}

/// The pass that a ticket becomes when it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisitPass {
    /// The `id` of the ticket. All requests with the same number share one place in line and one
    /// turn, whatever their addresses.
    pub id: u64,
    /// The place in line: the earlier, the better. Each request moves it on by its cost, at a rate
    /// of [`PASS_MILLI_CPUS`]. A stamp in the future means that the pass has used more than that.
    /// If the queue remembers a later stamp for this `id`, it counts.
    pub stamp: Time,
}

/// A request that is to be answered with a waiting page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingRoomEntry {
    /// The request. The queue no longer contains it.
    pub id: RequestId,
    /// Whether the visitor gets a new [`VisitTicket`], with `first_came`. Otherwise it keeps the
    /// ticket or pass that it has.
    pub needs_ticket: bool,
    /// When the visitor first came, as far as is known.
    pub first_came: Time,
    /// The time after which the visitor should come back, from 1 to 15 s. The door adds up to half
    /// a second at random, so that visitors do not come back in step.
    pub come_back_after: Nanos,
    /// The time until the turn of the visitor, as estimated from the pace at which visitors get
    /// their turns at present; no less than `come_back_after`, and at most an hour. It is too short
    /// while ever more visitors come.
    pub expected_wait: Nanos,
}

/// A value for each line of clients in credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByLine<T> {
    /// Under pressure: clients that were here before. Otherwise: all.
    pub history: T,
    /// Visitors that have waited and come back, for the first page.
    pub first: T,
    /// Visitors, or addresses, that were served since the pressure began.
    pub later: T,
    /// All others.
    pub strangers: T,
    /// Those of a group that burns, whichever of the last three lines they would be in.
    pub burning: T,
}

/// The figures of the lines for operators
/// ([`Queue::standing_report`](super::Queue::standing_report)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StandingReport {
    /// Since when there has been pressure, if there is.
    pub pressure_since: Option<Time>,
    /// The number of requests in credit that wait.
    pub waiting: ByLine<usize>,
    /// The cost of requests that were in credit and have ended, since the queue was created.
    pub served: ByLine<Cost>,
    /// The number of requests that were sent to the waiting room, since the queue was created.
    pub sent_to_waiting_room: u64,
}

/// The age from which on a ticket is worth nothing.
pub const TICKET_AGE_MAX: Nanos = Nanos::from_secs(600);
/// The most that an address that was here before may use without losing its place, in thousandths
/// of a processor. Before language models it is a tenth of what the backend can do, at least this.
pub const HISTORY_MILLI_CPUS: u64 = 100;
/// The most that a pass, or an address that was served under pressure, may use without losing its
/// place, in thousandths of a processor. A reader with a page of 27 ms each second never falls
/// behind.
pub const PASS_MILLI_CPUS: u64 = 30;
/// The time after which a request of a stranger is sent to the waiting room, if it may be.
pub const STRANGER_WAIT: Nanos = Nanos::from_secs(2);
/// The same for a request with a ticket or a pass, or of an address that was served.
pub const VISITOR_WAIT: Nanos = Nanos::from_secs(3);

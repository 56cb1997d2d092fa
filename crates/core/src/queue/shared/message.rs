//! The messages between instances that share a queue.
//!
//! Messages between two instances keep their order, or the connection ends. How they are packed
//! into frames: `replica::queue_wire`.

use crate::meter::estimate::RouteHash;
use crate::queue::standing::{VisitPass, WaitingRoomEntry};
use crate::queue::{Arrival, RefusedRequest, RequestId};
use crate::units::{Cost, Nanos, Time};

/// An instance in one of its lives. The earlier life is the older instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InstanceId {
    /// When the instance started; later lives have greater numbers.
    pub life: u64,
    /// The number of the instance.
    pub node: u64,
}

/// A number of requests that wait, and of those that are with the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// The requests that wait.
    pub waiting: u32,
    /// The requests with a slot, exempt ones included.
    pub running: u32,
}

impl RequestCounts {
    /// So many requests that wait, and that are with the backend.
    #[must_use]
    pub fn new(waiting: usize, running: usize) -> RequestCounts {
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        RequestCounts { waiting: number(waiting), running: number(running) }
    }

    /// The sum of both.
    #[must_use]
    pub const fn plus(self, other: RequestCounts) -> RequestCounts {
        RequestCounts {
            waiting: self.waiting.saturating_add(other.waiting),
            running: self.running.saturating_add(other.running),
        }
    }
}

/// The state that an instance sends to the others several times a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceBeat {
    /// How often the queue has been taken over, as far as the instance knows.
    pub term: u64,
    /// Whether the instance owns the queue.
    pub is_owner: bool,
    /// The number of slots of the queue, as far as the instance knows; at least 1.
    pub slots: u32,
    /// Whether the receiver takes part in the queue of the sender.
    pub has_joined: bool,
    /// For how long there has been pressure, as far as the instance knows, if there is.
    pub pressure: Option<Nanos>,
    /// The requests of the instance.
    pub own: RequestCounts,
    /// The requests of all instances that share the queue, as far as the instance knows.
    pub all: RequestCounts,
}

/// The visitor of a request that gets a slot, as far as the owner knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantedVisit {
    /// The pass of the visitor, if it has a ticket or a pass ([`Queue::pass_of`]).
    ///
    /// [`Queue::pass_of`]: crate::queue::Queue::pass_of
    pub pass: Option<VisitPass>,
    /// When the visitor first came, if this is its first page ([`Queue::newcomer_since`]).
    ///
    /// [`Queue::newcomer_since`]: crate::queue::Queue::newcomer_since
    pub newcomer_since: Option<Time>,
}

/// A message from one instance to another. A request has the id that its own instance gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueMessage {
    /// To all: the sender is running.
    Beat(InstanceBeat),
    /// To the owner: the sender takes part, and this number of its requests are with the backend.
    Join {
        /// The number of these requests.
        running: u32,
    },
    /// To the owner: a request asks for a slot.
    Ask {
        /// The request.
        id: RequestId,
        /// The facts about it that the queue needs.
        arrival: Arrival,
    },
    /// To the owner: a request that has asked is gone.
    Cancel {
        /// The request.
        id: RequestId,
    },
    /// To the owner: what a request that got its slot from the owner has cost so far.
    Progress {
        /// The request.
        id: RequestId,
        /// Its cost so far.
        cost: Cost,
    },
    /// To the owner: a request that got its slot from the owner has ended.
    Done {
        /// The request.
        id: RequestId,
        /// Its cost.
        cost: Cost,
        /// Its route, and how long the backend worked on it, if the backend has finished it.
        worked: Option<(RouteHash, Nanos)>,
        /// Whether the sender keeps the slot for its next request.
        keeps: bool,
    },
    /// To the owner: the expected cost of a route.
    Estimate {
        /// The route.
        route: RouteHash,
        /// The expected cost.
        cost: Cost,
    },
    /// To the owner: exempt requests, which never wait, have taken slots.
    Take {
        /// The number of these slots. They count as kept.
        slots: u32,
    },
    /// To the owner: slots that were kept are free.
    Return {
        /// The number of these slots.
        slots: u32,
    },
    /// From the owner: the request has a slot.
    Grant {
        /// The request.
        id: RequestId,
        /// The owner's knowledge of its visitor.
        visit: GrantedVisit,
    },
    /// From the owner: the request is refused.
    Refuse(RefusedRequest),
    /// From the owner: the visitor waits elsewhere and comes back.
    WaitingRoom(WaitingRoomEntry),
    /// From the owner: whether slots may be kept. If not, those without a request come back at
    /// once, and the others as their requests end.
    Keep(bool),
}

//! A request as the queue and its callers name it: its arrival, its place and its id, and how it
//! can leave the queue without having run.
//!
//! What the queue itself notes about a request: `share`. The queue: `queue`.

use super::standing::Visit;
use crate::key::KeyHash;
use crate::meter::estimate::{OwnRoute, RouteHash};
use crate::units::{Cost, Nanos, Weight};

/// The tier and the flow in which a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePlace {
    /// The tier of clients that owe nothing. The flow is the client.
    Credit,
    /// The tier of clients in debt. The flow is this bucket: of the request's buckets, the one that
    /// is furthest in debt by its own burst (`Limiter::furthest_in_debt`). All clients charged
    /// there share it.
    Debt(DebtFlow),
}

/// A bucket in debt, as all instances know it that share the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DebtFlow {
    /// A number that stands for the limit, whatever its place among the limits of an instance.
    pub limit: u16,
    /// The key of the bucket.
    pub hash: KeyHash,
}

/// A request that arrives at the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The client that sends the request: its key for the first limit.
    pub client: KeyHash,
    /// The tier and the flow, according to the limits of the request.
    pub place: QueuePlace,
    /// The expected cost.
    pub estimate: Cost,
    /// Whether `estimate` is a guess, because the cost of the route is unknown. A few guesses in
    /// each round go first: the request may be light, and once its cost is known, no later request
    /// on the route has to wait for that reason.
    pub is_guess: bool,
    /// The route that `estimate` is for; [`Queue::handle_estimate`] updates it. `None`: the
    /// estimate does not change.
    ///
    /// [`Queue::handle_estimate`]: super::Queue::handle_estimate
    pub route: Option<RouteHash>,
    /// The route as the client uses it; its estimate precedes that of the route once it is known.
    pub own: Option<OwnRoute>,
    /// The share of the client's flow relative to other flows.
    pub weight: Weight,
    /// The proof of an earlier visit.
    pub visit: Visit,
    /// Whether the request may be answered with a waiting page ([`Queue::poll_waiting_room`]): a
    /// browser's navigation of which nothing has reached the backend. Otherwise it waits for its
    /// turn.
    ///
    /// [`Queue::poll_waiting_room`]: super::Queue::poll_waiting_room
    pub accepts_waiting_page: bool,
    /// Whether the request belongs to a group that burns ([`swarm`](crate::swarm)). Under pressure,
    /// it then waits behind all strangers, unless its client was here before.
    pub burns: bool,
}

/// Identifies a request in the queue or with the backend. Later requests have larger ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

/// A request that is refused, because the queue is full or because it waited for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    /// The refused request.
    pub id: RequestId,
    /// The time until the requests of its flow that wait now will have been served, as estimated;
    /// at most [`QueueSettings::wait_max`](super::QueueSettings::wait_max), after which they are
    /// gone, and at most an hour.
    pub retry_after: Nanos,
    /// The setting that was exceeded.
    pub cause: RefusalCause,
}

/// The setting of the queue because of which a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCause {
    /// [`QueueSettings::wait_max`](super::QueueSettings::wait_max): it waited for too long.
    WaitMax,
    /// [`QueueSettings::len_max`](super::QueueSettings::len_max): too many requests wait.
    LenMax,
}

impl RefusalCause {
    /// The name of the setting.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RefusalCause::WaitMax => "wait_max",
            RefusalCause::LenMax => "len_max",
        }
    }
}

/// The state of a request at the moment when it is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// It was waiting, and has been removed.
    Waiting,
    /// It is with the backend, and keeps its slot until `handle_done`.
    Running,
    /// The queue does not contain the request: it has ended or was refused.
    Unknown,
}

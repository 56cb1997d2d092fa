//! The limits of a queue, and the unit of its backend's work.
//!
//! They come from the configuration, and may change while requests wait.

use super::standing::KnownClients;
use crate::units::Nanos;

/// The unit of a backend's work, which the cost of a request is counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkUnit {
    /// The time of a processor. A request that is with the backend for a long time costs much, and
    /// each processor works on one request at a time.
    #[default]
    CpuTime,
    /// Tokens of a language model. One processor works on many requests at a time, and their
    /// duration depends on the length of their outputs. So the time that a request takes does not
    /// show its cost, and its cost does not show whether it has waited inside the backend.
    Tokens,
}

/// The limits of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// The number of requests that the backend works on at once, at least 1. Too low: the backend
    /// stands idle. Too high: requests wait inside the backend, where they are in no fair order.
    pub concurrency: usize,
    /// The number of additional slots for clients in credit that have nothing with the backend, ask
    /// for little compared with what is in service, and whose turn would have come before one of
    /// those requests. All but one of these slots are also open to buckets in debt, and to clients
    /// of such a bucket, under the same conditions. Never more than the backend accepts
    /// ([`Queue::accepted_max`](super::Queue::accepted_max)). Too low: many clients that use little
    /// wait for each other. Too high: a swarm overloads the backend. 0: clients that ask for little
    /// are not preferred. With [`WorkUnit::Tokens`] they are for clients in credit that have less
    /// than their part of the slots, and are at most a few requests ahead of others.
    pub reserve: usize,
    /// The number of requests that may wait. Too low: bursts are refused. Too high: memory, some
    /// 500 bytes each, and waits longer than any client accepts.
    pub len_max: usize,
    /// The longest time that a request may wait.
    pub wait_max: Nanos,
    /// Whether clients that were here before go before strangers ([`standing`](super::standing)).
    pub known: KnownClients,
    /// The number of processors of the backend, in thousandths, at least 1. Too low: there seems to
    /// be pressure while there is room. Too high: people wait before pressure is noticed.
    pub cpus_milli: u64,
    /// The unit of the backend's work.
    pub unit: WorkUnit,
    /// The number of requests that the backend can work on at once, if it is known: its workers.
    /// `concurrency` is lowered to it, and reserved slots beyond it are not used. Too low: the
    /// backend stands idle. Too high: as if it were not known.
    pub workers: Option<usize>,
}

impl QueueSettings {
    /// The same settings with a possible `concurrency`: at least 1, at most `workers`.
    pub(super) fn bounded(self) -> QueueSettings {
        let most = self.workers.unwrap_or(usize::MAX).max(1);
        QueueSettings { concurrency: self.concurrency.clamp(1, most), ..self }
    }
}

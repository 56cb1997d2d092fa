//! Counts the waiting requests of each flow: to choose the request that is refused when the queue
//! is full, and to estimate how long the backlog will take.
//!
//! The newest request of the flow with most requests is refused. If that flow is a bucket or a line
//! with several clients, it is the newest request of the client with most requests in it. So no
//! client is refused because of another client's backlog. Of equal backlogs, the one with the
//! newest request loses it, so that no client is refused more often than others. The order of
//! service is not decided here: see `tiers`.

use super::place::{Line, Place};
use super::request::{DebtFlow, RequestId};
use crate::key::KeyHash;
use crate::units::{Cost, Nanos, Time};
use alloc::collections::{BTreeMap, BTreeSet};
use core::cmp::Ordering;

/// The time over which the pace of a tier is averaged, in nanoseconds.
const PACE_MEMORY_NANOS: f64 = 10e9;

/// A flow: what takes turns with others of its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Flow {
    Client(KeyHash),
    /// Under pressure: all that were not here before. A visitor may have many passes, each of which
    /// is a client, so these clients must not be compared with those that were here.
    Line(Line),
    Bucket(DebtFlow),
}

impl Flow {
    pub fn of(client: KeyHash, place: Place) -> Flow {
        match place {
            Place::Credit => Flow::Client(client),
            Place::Line(line) => Flow::Line(line),
            Place::Debt(bucket) => Flow::Bucket(bucket),
        }
    }

    /// The place of its tier among the tiers.
    fn tier(self) -> u8 {
        match self {
            Flow::Client(_) => 0,
            Flow::Line(_) => 1,
            Flow::Bucket(_) => 2,
        }
    }
}

/// The number of waiting requests, the newest of them, and the sum of their estimated costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    pub count: usize,
    /// Of a bucket with several clients, this may be a request that waits no longer.
    pub newest: Option<RequestId>,
    pub cost: Cost,
}

impl Backlog {
    pub fn plus(self, cost: Cost) -> Backlog {
        Backlog { count: self.count + 1, cost: self.cost.plus(cost), ..self }
    }

    pub fn minus(self, cost: Cost) -> Backlog {
        Backlog { count: self.count.saturating_sub(1), cost: self.cost.minus(cost), ..self }
    }
}

/// The backlogs of all flows, and the orders by size.
///
/// Invariants: `by_size` has one entry for each flow in `flows`, with its present count and newest
/// request, and `clients` has one entry for each client with waiting requests in a flow, with its
/// present ones.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowBacklogs {
    flows: BTreeMap<Flow, Backlog>,
    by_size: BTreeSet<(usize, Option<RequestId>, Flow)>,
    clients: BTreeSet<(Flow, usize, Option<RequestId>, KeyHash)>,
}

impl FlowBacklogs {
    /// Notes that the backlog of a client in a flow has changed from `before` to `after`.
    pub fn change(&mut self, flow: Flow, client: KeyHash, before: Backlog, after: Backlog) {
        self.clients.remove(&(flow, before.count, before.newest, client));
        if after.count > 0 {
            self.clients.insert((flow, after.count, after.newest, client));
        }
        let old = self.flows.get(&flow).copied().unwrap_or_default();
        self.by_size.remove(&(old.count, old.newest, flow));
        let count = (old.count + after.count).saturating_sub(before.count);
        let cost = old.cost.plus(after.cost).minus(before.cost);
        let is_alone = count == after.count;
        let newest = if is_alone { after.newest } else { old.newest.max(after.newest) };
        if count > 0 {
            self.flows.insert(flow, Backlog { count, newest, cost });
            self.by_size.insert((count, newest, flow));
        } else {
            self.flows.remove(&flow);
        }
    }

    /// The client that loses its newest request if one request must be refused.
    pub fn largest(&self) -> Option<KeyHash> {
        let (.., flow) = *self.by_size.last()?;
        let newest = Some(RequestId(u64::MAX));
        let most = (flow, usize::MAX, newest, KeyHash::from_bits(KeyHash::MASK));
        let (found, .., client) = *self.clients.range(..=most).next_back()?;
        (found == flow).then_some(client)
    }

    /// The number of waiting requests that are probably served before a further one of this flow,
    /// if all cost the same: those of the tiers before its own, those of the flow itself, and as
    /// many of each other flow of its tier.
    pub fn ahead(&self, own: Flow) -> usize {
        let rounds = self.flows.get(&own).map_or(0, |crowd| crowd.count) + 1;
        let ahead = self.flows.iter().map(|(flow, crowd)| match flow.tier().cmp(&own.tier()) {
            Ordering::Less => crowd.count,
            Ordering::Equal if *flow == own => crowd.count,
            Ordering::Equal => crowd.count.min(rounds),
            Ordering::Greater => 0,
        });
        ahead.sum()
    }

    /// The estimated cost of all waiting requests of a flow.
    pub fn cost(&self, flow: Flow) -> Cost {
        self.flows.get(&flow).map_or(Cost::ZERO, |crowd| crowd.cost)
    }
}

/// The speed at which a tier is served while requests wait in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TierPace {
    /// When the last request was served, if others were waiting at that time.
    last: Option<Time>,
    cost: f64,
    time: f64,
}

impl TierPace {
    /// Notes that a request was served. `others_wait`: whether other requests of the tier still
    /// wait.
    pub fn serve(&mut self, cost: Cost, others_wait: bool, now: Time) {
        if let Some(last) = self.last {
            self.cost += cost.0 as f64;
            self.time += now.since(last).0 as f64;
            let faded = (PACE_MEMORY_NANOS / self.time).min(1.0);
            self.cost *= faded;
            self.time *= faded;
        }
        self.last = others_wait.then_some(now);
    }

    /// Notes that no request waits: the time until the next one is served is not counted.
    pub fn pause(&mut self) {
        self.last = None;
    }

    /// The time that serving `cost` will take. As long as the speed is unknown, each of `slots` is
    /// assumed to work like one processor.
    pub fn time_for(&self, cost: Cost, slots: usize) -> Nanos {
        let known = self.cost > 0.0 && self.time > 0.0;
        let speed = if known { self.cost / self.time } else { slots.max(1) as f64 };
        Nanos((cost.0 as f64 / speed) as u64)
    }
}

//! How many requests wait in each flow: who is refused when there are too many, and how long
//! what waits will take.
//!
//! Refused is the newest of the flow with most waiting; where a flow is a bucket with several
//! clients, the newest of the client that has most in it: nobody is refused for what another
//! one piles up. Does not know whose turn it is: see `tiers`.

use super::Place;
use crate::classify::Key;
use crate::key::KeyHash;
use crate::units::{Cost, Nanos, Time};
use alloc::collections::{BTreeMap, BTreeSet};

/// Over how long the pace of a tier is averaged.
const PACE_MEMORY: f64 = 10e9;

/// Who takes turns with whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Flow {
    Client(KeyHash),
    Bucket(Key),
}

impl Flow {
    pub fn of(client: KeyHash, place: Place) -> Flow {
        match place {
            Place::Credit => Flow::Client(client),
            Place::Debt(bucket) => Flow::Bucket(bucket),
        }
    }
}

/// So many requests, which will cost so much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Crowd {
    pub count: usize,
    pub cost: Cost,
}

impl Crowd {
    pub fn plus(self, cost: Cost) -> Crowd {
        Crowd { count: self.count + 1, cost: self.cost.plus(cost) }
    }

    pub fn minus(self, cost: Cost) -> Crowd {
        Crowd { count: self.count.saturating_sub(1), cost: self.cost.minus(cost) }
    }
}

/// All that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Crowds {
    flows: BTreeMap<Flow, Crowd>,
    by_size: BTreeSet<(usize, Flow)>,
    clients: BTreeSet<(Flow, usize, KeyHash)>,
}

impl Crowds {
    /// What a client has waiting in a flow changes from `before` to `after`.
    pub fn change(&mut self, flow: Flow, client: KeyHash, before: Crowd, after: Crowd) {
        self.clients.remove(&(flow, before.count, client));
        if after.count > 0 {
            self.clients.insert((flow, after.count, client));
        }
        let old = self.flows.get(&flow).copied().unwrap_or_default();
        self.by_size.remove(&(old.count, flow));
        let count = (old.count + after.count).saturating_sub(before.count);
        let cost = old.cost.plus(after.cost).minus(before.cost);
        if count > 0 {
            self.flows.insert(flow, Crowd { count, cost });
            self.by_size.insert((count, flow));
        } else {
            self.flows.remove(&flow);
        }
    }

    /// The client whose newest request is to go if one must.
    pub fn largest(&self) -> Option<KeyHash> {
        let (_, flow) = *self.by_size.last()?;
        let most = (flow, usize::MAX, KeyHash::from_bits(KeyHash::MASK));
        let (found, _, client) = *self.clients.range(..=most).next_back()?;
        (found == flow).then_some(client)
    }

    /// What the requests of a flow that wait will cost.
    pub fn cost(&self, flow: Flow) -> Cost {
        self.flows.get(&flow).map_or(Cost::ZERO, |crowd| crowd.cost)
    }
}

/// How fast a tier is served while somebody waits in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// When the last request was served, if others were waiting then.
    last: Option<Time>,
    cost: f64,
    time: f64,
}

impl Pace {
    /// A request was served, while others wait on or not.
    pub fn serve(&mut self, cost: Cost, others_wait: bool, now: Time) {
        if let Some(last) = self.last {
            self.cost += cost.0 as f64;
            self.time += now.since(last).0 as f64;
            let faded = (PACE_MEMORY / self.time).min(1.0);
            self.cost *= faded;
            self.time *= faded;
        }
        self.last = others_wait.then_some(now);
    }

    /// Nobody waits: who did has left, and no time is his who comes next.
    pub fn pause(&mut self) {
        self.last = None;
    }

    /// How long `cost` will take; before anything is known, if it is served at the speed of
    /// `slots` processors.
    pub fn time_for(&self, cost: Cost, slots: usize) -> Nanos {
        let known = self.cost > 0.0 && self.time > 0.0;
        let speed = if known { self.cost / self.time } else { slots.max(1) as f64 };
        Nanos((cost.0 as f64 / speed) as u64)
    }
}

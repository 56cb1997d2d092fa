//! The slot of one request before the backend: whether it needs one, has one, or is stalled.
//!
//! A request holds a slot only while the backend can work for it. While the backend waits for a
//! slow client, other requests use the slot. The queue itself: `admission`. How a request waits:
//! `turn`.

use crate::admission::{AdmissionEntry, AdmittedSlot, NoSlot};
use crate::forecast::RequestForecast;
use crate::lane::LaneShared;
use crate::pending::PendingRequest;
use crate::rules::EngineRules;
use evenkeel_core::classify::{self, LimitKey, LimitKeys};
use evenkeel_core::key::{KeyHash, KeyHasher, KeySeed};
use evenkeel_core::meter::estimate::{CostForecast, LearnedCosts, RouteHash};
use evenkeel_core::queue::standing::{Visit, VisitPass};
use evenkeel_core::queue::{Arrival, QueuePlace, RequestId};
use evenkeel_core::units::{Cost, Time};
use std::net::IpAddr;

/// The cost of a running request counts in the queue once it is this many times the estimate.
/// Smaller: requests that cost a little more than expected move the turn of their client at once,
/// and those that cost less only when they end, so clients with uneven requests get too little.
/// Larger: a client with requests that cost far more than expected gets too much for longer.
const PROGRESS_RATIO_MIN: u64 = 2;

/// The relation of a request to the queue.
#[derive(Clone, Copy)]
pub(crate) enum QueueSlot {
    /// The request needs no slot: no action is `queue`.
    Free,
    /// The request is exempt, or the whole door is in shadow. It never waits, but it will take a
    /// slot from the queue: when the shadow ends, the backend still works on what it let pass.
    Exempt,
    /// Such a request, with a slot beside the queue.
    Beside,
    /// The request has no slot. It would ask for one with this arrival.
    Outside(Arrival),
    /// The request holds this slot since this time.
    Held(RequestId, Arrival, Time),
    /// The request holds a slot beside the queue, because the backend has it in part and the
    /// requests with slots hang.
    Resumed(Arrival),
}

impl QueueSlot {
    /// The initial relation of a request to the queue. `latest` is its bucket furthest in debt.
    pub(crate) fn of(pending: &PendingRequest, latest: Option<LimitKey>) -> QueueSlot {
        let PendingRequest { request, keys, exempt, burns, weight, .. } = pending;
        let rules = &request.rules;
        if !rules.queues {
            return QueueSlot::Free;
        }
        if *exempt || rules.shadow {
            return QueueSlot::Exempt;
        }
        let place =
            latest.map_or(QueuePlace::Credit, |key| QueuePlace::Debt(rules.marks.flow(key)));
        let client = client(rules, keys, request.client);
        let weight = classify::weight(rules.limiter.limits(), keys).times(*weight);
        let RequestForecast { learned, reserved, .. } = request.forecast;
        let CostForecast { route, own, is_guess, .. } = learned;
        // For a model, the length of outputs is learned, which says less than the estimate.
        let (route, own) = if request.forecast.asks_model() { (None, None) } else { (route, own) };
        QueueSlot::Outside(Arrival {
            client,
            place,
            estimate: reserved.work,
            is_guess,
            route,
            own,
            weight,
            visit: Visit::Unknown,
            accepts_waiting_page: false,
            burns: *burns,
        })
    }
}

impl QueueSlot {
    /// A slot from now on. The backend may have a part of the request from now on, so the visitor
    /// is not sent to the waiting room any more.
    fn held(id: RequestId, arrival: Arrival, lane: &LaneShared) -> QueueSlot {
        let (now, engine) = (lane.now(), &lane.engine);
        if let Visit::Ticket(_) = arrival.visit
            && let Some(wait) = engine.gate.note_newcomer(id, now)
        {
            engine.watch.newcomer_waits.record(wait.0);
        }
        QueueSlot::Held(id, Arrival { accepts_waiting_page: false, ..arrival }, now)
    }
}

/// The identity of a client in the queue: its key under the first limit.
pub(crate) fn client(rules: &EngineRules, keys: &LimitKeys, address: IpAddr) -> KeyHash {
    let first = keys.as_slice().first().map(|key| key.hash);
    first.unwrap_or_else(|| address_hash(&rules.seed, address))
}

/// Stands for the client in the queue if no limit identifies it.
fn address_hash(seed: &KeySeed, client: IpAddr) -> KeyHash {
    let mut hasher = KeyHasher::new(seed);
    hasher.address(client);
    hasher.finish()
}

pub(super) struct HeldSlot {
    slot: QueueSlot,
    /// Whether the request has held its slot without a break.
    steady: bool,
    /// Whether the gate counts this request as stalled: the backend waits for the rest of it, and
    /// others use its slot.
    stalled: bool,
}

/// The answer of the queue to a request that asks for a slot.
pub(super) enum SlotEntry {
    /// The request has a slot or needs none.
    Room,
    /// The request waits since this time.
    Waits(RequestId, Time),
    /// The request gets no slot.
    NoSlot(Arrival, NoSlot),
}

impl HeldSlot {
    pub fn new(slot: QueueSlot) -> HeldSlot {
        HeldSlot { slot, steady: true, stalled: false }
    }

    /// Asks the queue for a slot. Does nothing for a request that has a slot or needs none.
    pub fn ask(&mut self, lane: &LaneShared) -> SlotEntry {
        self.end_stall(lane);
        let Some(arrival) = self.outside() else {
            if let QueueSlot::Exempt = self.slot {
                lane.engine.gate.enter_beside();
                self.slot = QueueSlot::Beside;
            }
            return SlotEntry::Room;
        };
        let now = lane.now();
        // A request that had a slot before has reached the backend.
        match lane.engine.gate.enter(arrival, !self.steady, now) {
            AdmissionEntry::Room(id) => {
                self.slot = QueueSlot::held(id, arrival, lane);
                SlotEntry::Room
            }
            AdmissionEntry::Waits(id) => SlotEntry::Waits(id, now),
            AdmissionEntry::NoSlot(why) => SlotEntry::NoSlot(arrival, why),
        }
    }

    /// Whether the request has never had a slot, so that the backend has nothing of it.
    pub fn is_first(&self) -> bool {
        self.steady && self.outside().is_some()
    }

    /// The arrival with which the request asks for a slot, if it has none and needs one.
    pub fn outside(&self) -> Option<Arrival> {
        match self.slot {
            QueueSlot::Outside(arrival) => Some(arrival),
            _ => None,
        }
    }

    /// Sets what is known of the visitor, before the request asks for a slot.
    pub fn set_visit(&mut self, visit: Visit, accepts_waiting_page: bool) {
        if let QueueSlot::Outside(arrival) = &mut self.slot {
            (arrival.visit, arrival.accepts_waiting_page) = (visit, accepts_waiting_page);
        }
    }

    /// The pass that the visitor of a request with a ticket gets, if it has a slot.
    pub fn new_pass(&self, lane: &LaneShared) -> Option<VisitPass> {
        match self.slot {
            QueueSlot::Held(id, Arrival { visit: Visit::Ticket(_), .. }, _) => {
                lane.engine.gate.pass_of(id)
            }
            _ => None,
        }
    }

    /// Takes the slot that the request has waited for.
    pub fn take(&mut self, slot: AdmittedSlot, arrival: Arrival, lane: &LaneShared) {
        self.slot = match slot {
            AdmittedSlot::Queue(id) => QueueSlot::held(id, arrival, lane),
            AdmittedSlot::Beside => QueueSlot::Resumed(arrival),
        };
    }

    /// Tells the queue what the request has cost so far, if that is far more than was expected.
    /// From then on that is its estimate.
    pub fn note_progress(&mut self, cost: Cost, lane: &LaneShared) {
        if let QueueSlot::Held(id, arrival, _) = &mut self.slot
            && cost.0 >= arrival.estimate.0.saturating_mul(PROGRESS_RATIO_MIN)
        {
            arrival.estimate = cost;
            lane.engine.gate.note_progress(*id, cost, lane.now());
        }
    }

    /// Gives the slot back until [`HeldSlot::ask`]. The request has cost `cost` so far.
    pub fn give_way(&mut self, cost: Cost, lane: &LaneShared) {
        self.steady = false;
        self.give_back(cost, None, |_| [None; 3], lane);
    }

    /// Gives the slot back for good; the request needs none any more.
    pub fn leave(&mut self, cost: Cost, lane: &LaneShared) {
        self.end_stall(lane);
        self.give_way(cost, lane);
        self.slot = QueueSlot::Free;
    }

    /// Ends the request, which has cost `cost`. `sample` is its route, if the cost is a sample of
    /// it. `learn` updates the estimate of the route: with the gate locked if the request has a
    /// slot of the queue.
    pub fn end(
        &mut self,
        cost: Cost,
        sample: Option<RouteHash>,
        learn: impl FnOnce(Time) -> LearnedCosts,
        lane: &LaneShared,
    ) {
        if let QueueSlot::Held(..) = self.slot {
            self.give_back(cost, sample, learn, lane);
        } else {
            self.give_back(cost, None, |_| [None; 3], lane);
            learn(lane.now());
        }
    }

    /// Frees the slot. The time for which it was held is a sample of the backend's speed only if
    /// the request held it from start to end. `learn` runs with the gate locked.
    fn give_back(
        &mut self,
        cost: Cost,
        sample: Option<RouteHash>,
        learn: impl FnOnce(Time) -> LearnedCosts,
        lane: &LaneShared,
    ) {
        let now = lane.now();
        match self.slot {
            QueueSlot::Held(id, arrival, since) => {
                self.slot = QueueSlot::Outside(arrival);
                let route = sample.filter(|_| self.steady && cost > Cost::ZERO);
                let worked = route.map(|route| (route, now.since(since)));
                lane.engine.gate.done(id, cost, worked, || learn(now), now);
            }
            QueueSlot::Beside => {
                self.slot = QueueSlot::Exempt;
                lane.engine.gate.leave_beside(now);
            }
            QueueSlot::Resumed(arrival) => {
                self.slot = QueueSlot::Outside(arrival);
                lane.engine.gate.leave_beside(now);
            }
            QueueSlot::Free | QueueSlot::Exempt | QueueSlot::Outside(_) => {}
        }
    }

    /// Gives the slot away while the backend waits for the rest of the request, which has cost
    /// `cost` so far. See [`Charge::stall`](super::Charge::stall).
    pub fn stall(&mut self, flows: bool, cost: Cost, lane: &LaneShared) -> bool {
        let (holds, arrival) = match self.slot {
            QueueSlot::Free | QueueSlot::Exempt => return true,
            QueueSlot::Beside => {
                self.give_way(cost, lane);
                return true;
            }
            // It would have to wait until the others hang again.
            QueueSlot::Resumed(_) if flows => return false,
            QueueSlot::Held(_, arrival, _) | QueueSlot::Resumed(arrival) => (true, arrival),
            QueueSlot::Outside(arrival) => (false, arrival),
        };
        let free = flows && arrival.place == QueuePlace::Credit;
        if !free && !self.stalled {
            self.stalled = lane.engine.gate.stall(arrival.client);
        }
        if holds && (free || self.stalled) {
            self.give_way(cost, lane);
        }
        !holds || free || self.stalled
    }

    /// Ends the stall, if the request is counted as stalled.
    pub fn end_stall(&mut self, lane: &LaneShared) {
        if std::mem::take(&mut self.stalled) {
            lane.engine.gate.end_stall();
        }
    }

    /// Whether the request waits for a slot in the queue, or holds one of the queue's slots.
    pub fn queues(&self) -> bool {
        matches!(self.slot, QueueSlot::Held(..) | QueueSlot::Resumed(_) | QueueSlot::Outside(_))
    }
}

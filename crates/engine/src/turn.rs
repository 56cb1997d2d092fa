//! The passage of a request through the queue: it asks for a slot, waits, and gives the slot back.
//!
//! A request holds a slot only while the backend can work for it. While the backend waits for a
//! slow client, other requests use the slot. The queue itself: `admission`.

use super::admission::AdmissionEntry;
use super::served::ruling::ReportedOutcome;
use super::{Charge, EngineLane, EngineRules, RequestRefusal};
use evenkeel_core::classify::{self, LimitKey, LimitKeys};
use evenkeel_core::key::{KeyHash, KeyHasher, KeySeed};
use evenkeel_core::limiter::Reason;
use evenkeel_core::meter::estimate::{CostForecast, RouteHash};
use evenkeel_core::queue::{Arrival, QueuePlace, RequestId};
use evenkeel_core::units::{Cost, Nanos, Time, Weight};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The relation of a request to the queue.
#[derive(Clone, Copy)]
pub(super) enum QueueSlot {
    /// The request needs no slot: no action is `queue`, or the whole door is in shadow.
    Free,
    /// The request is exempt. It never waits, but it will take a slot from the queue.
    Exempt,
    /// The request is exempt and holds a slot beside the queue.
    Beside,
    /// The request has no slot. It would ask for one with this arrival.
    Outside(Arrival),
    /// The request holds this slot since this time.
    Held(RequestId, Arrival, Time),
}

impl QueueSlot {
    /// Applies the weight that an operator has set for the client.
    pub(super) fn weighed(self, weight: Weight) -> QueueSlot {
        match self {
            QueueSlot::Outside(arrival) => {
                QueueSlot::Outside(Arrival { weight: arrival.weight.times(weight), ..arrival })
            }
            slot => slot,
        }
    }
}

/// The answer to [`Charge::enter`].
pub enum QueueAdmission {
    /// The request may run now.
    Room,
    /// The request has to wait for this turn.
    Waits(QueueTurn),
    /// The queue is full.
    Refused(RequestRefusal),
}

/// The place of a waiting request in the queue. Dropping it leaves the queue.
pub struct QueueTurn {
    lane: EngineLane,
    id: Option<RequestId>,
    since: Time,
}

/// The result of waiting. If it holds a slot and is dropped before [`Charge::accept_turn`], the
/// slot is given back.
pub struct TurnResult {
    turn: QueueTurn,
    how: Result<RequestId, Nanos>,
    waited: Nanos,
}

impl Future for QueueTurn {
    type Output = TurnResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<TurnResult> {
        let Some(id) = self.id else { return Poll::Pending };
        let desk = &self.lane.0;
        match desk.engine.gate.poll(id, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(how) => {
                let waited = desk.now().since(self.since);
                self.id = None;
                let turn = QueueTurn { lane: self.lane.clone(), id: how.ok(), since: self.since };
                Poll::Ready(TurnResult { turn, how, waited })
            }
        }
    }
}

impl Drop for QueueTurn {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let desk = &self.lane.0;
            desk.engine.gate.cancel(id, desk.now());
        }
    }
}

impl Charge {
    /// Asks the queue for a slot. Does nothing for a request that has a slot or needs none.
    pub fn enter(&mut self) -> QueueAdmission {
        self.leave_gate();
        self.end_stall();
        let QueueSlot::Outside(arrival) = self.slot else {
            if let QueueSlot::Exempt = self.slot {
                self.lane.0.engine.gate.enter_beside();
                self.slot = QueueSlot::Beside;
            }
            return QueueAdmission::Room;
        };
        let now = self.lane.0.now();
        match self.lane.0.engine.gate.enter(arrival, now) {
            AdmissionEntry::Room(id) => {
                self.slot = QueueSlot::Held(id, arrival, now);
                QueueAdmission::Room
            }
            AdmissionEntry::Waits(id) => QueueAdmission::Waits(QueueTurn {
                lane: self.lane.clone(),
                id: Some(id),
                since: now,
            }),
            AdmissionEntry::Full(retry_after) => {
                QueueAdmission::Refused(self.turned_away(arrival, retry_after))
            }
        }
    }

    /// Accepts the result of waiting, and with it the slot.
    ///
    /// # Errors
    /// The request waited for too long, or later arrivals pushed it out of the queue.
    pub fn accept_turn(&mut self, mut turned: TurnResult) -> Result<(), RequestRefusal> {
        let QueueSlot::Outside(arrival) = self.slot else { return Ok(()) };
        self.waited = self.waited.plus(turned.waited);
        match turned.how {
            Ok(id) => {
                turned.turn.id = None;
                self.slot = QueueSlot::Held(id, arrival, self.lane.0.now());
                self.queued("queue", arrival, turned.waited);
                Ok(())
            }
            Err(retry_after) => Err(self.turned_away(arrival, retry_after)),
        }
    }

    /// Gives the slot back while the backend can do nothing for this request until the client acts.
    /// [`Charge::enter`] asks for another slot.
    pub fn give_way(&mut self) {
        self.steady = false;
        let (cost, _) = self.measured();
        self.give_back(cost, |_, _| None);
    }

    /// Ends the request, which has cost `cost`: gives its slot back, and updates the estimate of
    /// its route.
    pub(super) fn end(&mut self, cost: Cost) {
        match self.slot {
            QueueSlot::Held(..) => self.give_back(cost, |charge, now| charge.learn(cost, now)),
            _ => {
                self.give_back(cost, |_, _| None);
                self.learn(cost, self.lane.0.now());
            }
        }
    }

    /// Updates the estimate of the request's route and returns it; `None` if the cost is no sample.
    /// Takes the lock of the estimates. [`Charge::end`] calls it with the gate locked if the
    /// request has a slot.
    fn learn(&self, cost: Cost, now: Time) -> Option<(RouteHash, Cost)> {
        let route = self.route.filter(|_| self.whole && cost > Cost::ZERO)?;
        Some((route, self.lane.0.engine.estimates.lock().learn(route, cost, now)))
    }

    /// Frees the slot. The time for which it was held is a sample of the backend's speed only if
    /// the request held it from start to end. `learn` runs with the gate locked.
    fn give_back(
        &mut self,
        cost: Cost,
        learn: impl FnOnce(&Charge, Time) -> Option<(RouteHash, Cost)>,
    ) {
        let now = self.lane.0.now();
        match self.slot {
            QueueSlot::Held(id, arrival, since) => {
                self.slot = QueueSlot::Outside(arrival);
                let route = self.route.filter(|_| self.steady && self.whole);
                let worked = route.filter(|_| cost > Cost::ZERO);
                let worked = worked.map(|route| (route, now.since(since)));
                let gate = &self.lane.0.engine.gate;
                gate.done(id, cost, worked, || learn(self, now), now);
            }
            QueueSlot::Beside => {
                self.slot = QueueSlot::Exempt;
                self.lane.0.engine.gate.leave_beside(now);
            }
            QueueSlot::Free | QueueSlot::Exempt | QueueSlot::Outside(_) => {}
        }
    }

    /// Counts and logs that a request had to wait, or was refused by the queue.
    fn queued(&mut self, verdict: &'static str, arrival: Arrival, wait: Nanos) {
        self.reported = true;
        let key = self.bucket(arrival);
        let now = self.lane.0.now();
        let limiter = &self.rules.limiter;
        let reason = Reason { wait, ..limiter.standing_without_own(&self.ticket, key, now) };
        // A request that is in the queue does wait, even if the limit that names it is in shadow.
        let ruling = ReportedOutcome::new(verdict, false);
        self.lane.report(ruling, &self.rules, self.client, reason, None);
    }

    fn turned_away(&mut self, arrival: Arrival, retry_after: Nanos) -> RequestRefusal {
        self.queued("reject", arrival, retry_after);
        let index = usize::from(self.bucket(arrival).limit);
        let limit = self.rules.limiter.limits().get(index);
        RequestRefusal {
            limit: limit.map_or_else(|| "queue".to_owned(), |limit| limit.name.to_string()),
            retry_after_secs: retry_after.retry_after_secs(),
            by_rate: false,
        }
    }

    /// The bucket that the log names for a place in the queue: the one in debt, else the first of
    /// the client's enforced limits. If there is none, the key has no limit (`u8::MAX`).
    fn bucket(&self, arrival: Arrival) -> LimitKey {
        let nobody = LimitKey { limit: u8::MAX, hash: arrival.client };
        match arrival.place {
            QueuePlace::Debt(key) => key,
            QueuePlace::Credit => {
                let limits = self.rules.limiter.limits();
                let has_a_say = |key: &&LimitKey| {
                    limits.get(usize::from(key.limit)).is_some_and(|limit| !limit.shadow)
                };
                self.ticket.keys().as_slice().iter().find(has_a_say).copied().unwrap_or(nobody)
            }
        }
    }
}

/// The initial relation of a request to the queue. `latest` is its bucket furthest in debt.
pub(super) fn slot(
    rules: &EngineRules,
    keys: &LimitKeys,
    exempt: bool,
    latest: Option<LimitKey>,
    foreseen: CostForecast,
    client: IpAddr,
) -> QueueSlot {
    if !rules.queues || rules.shadow {
        return QueueSlot::Free;
    }
    if exempt {
        return QueueSlot::Exempt;
    }
    let first = keys.as_slice().first().map(|key| key.hash);
    let place = latest.map_or(QueuePlace::Credit, QueuePlace::Debt);
    let client = first.unwrap_or_else(|| address_hash(&rules.seed, client));
    let weight = classify::weight(rules.limiter.limits(), keys);
    let CostForecast { route, cost: estimate, is_guess } = foreseen;
    QueueSlot::Outside(Arrival { client, place, estimate, is_guess, route, weight })
}

/// Stands for the client in the queue if no limit identifies it.
fn address_hash(seed: &KeySeed, client: IpAddr) -> KeyHash {
    let mut hasher = KeyHasher::new(seed);
    hasher.address(client);
    hasher.finish()
}

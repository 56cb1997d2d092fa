//! A request's way through the queue: it asks for room, waits, and gives its slot back.
//!
//! A slot is held while the backend can work for the request, and no longer: while it waits for a
//! slow client others use it. The queue itself: `gate`.

use super::gate::Entry;
use super::served::ruling::Ruling;
use super::{Charge, Lane, Refusal, Rules};
use evenkeel_core::classify::{self, Key, Keys};
use evenkeel_core::key::{KeyHash, KeyHasher, Seed};
use evenkeel_core::limiter::Reason;
use evenkeel_core::meter::estimate::{Foreseen, RouteHash};
use evenkeel_core::queue::{Arrival, Id, Place};
use evenkeel_core::units::{Cost, Nanos, Time, Weight};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

/// How a request stands with the queue.
#[derive(Clone, Copy)]
pub(super) enum Slot {
    /// It needs none: nobody queues here, or nothing is enforced.
    Free,
    /// It is exempt: it waits for nobody, but whoever waits knows of it.
    Exempt,
    /// It holds one beside the queue.
    Beside,
    /// It has none, and this is how it would ask.
    Outside(Arrival),
    /// It has one, since when.
    Held(Id, Arrival, Time),
}

impl Slot {
    /// The same for a client that an operator has weighed.
    pub(super) fn weighed(self, weight: Weight) -> Slot {
        match self {
            Slot::Outside(arrival) => {
                Slot::Outside(Arrival { weight: arrival.weight.times(weight), ..arrival })
            }
            slot => slot,
        }
    }
}

/// The answer to a request that asks for room.
pub enum Entered {
    /// It may run now.
    Room,
    /// It has to wait.
    Waits(Turn),
    /// There is no room to wait in.
    Refused(Refusal),
}

/// The turn of a request that waits. Its place is free as soon as this is dropped.
pub struct Turn {
    lane: Lane,
    id: Option<Id>,
    since: Time,
}

/// How waiting ended. A slot that it has led to is given back if the request does not take it.
pub struct Turned {
    turn: Turn,
    how: Result<Id, Nanos>,
    waited: Nanos,
}

impl Future for Turn {
    type Output = Turned;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Turned> {
        let Some(id) = self.id else { return Poll::Pending };
        let desk = &self.lane.0;
        match desk.engine.gate.poll(id, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(how) => {
                let waited = desk.now().since(self.since);
                self.id = None;
                let turn = Turn { lane: self.lane.clone(), id: how.ok(), since: self.since };
                Poll::Ready(Turned { turn, how, waited })
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let desk = &self.lane.0;
            desk.engine.gate.cancel(id, desk.now());
        }
    }
}

impl Charge {
    /// Asks for room. Nothing is asked by a request that has a slot or needs none.
    pub fn enter(&mut self) -> Entered {
        self.leave_gate();
        self.goes_on();
        let Slot::Outside(arrival) = self.slot else {
            if let Slot::Exempt = self.slot {
                self.lane.0.engine.gate.enter_beside();
                self.slot = Slot::Beside;
            }
            return Entered::Room;
        };
        let now = self.lane.0.now();
        match self.lane.0.engine.gate.enter(arrival, now) {
            Entry::Room(id) => {
                self.slot = Slot::Held(id, arrival, now);
                Entered::Room
            }
            Entry::Waits(id) => {
                Entered::Waits(Turn { lane: self.lane.clone(), id: Some(id), since: now })
            }
            Entry::Full(retry_after) => Entered::Refused(self.turned_away(arrival, retry_after)),
        }
    }

    /// Waiting is over.
    ///
    /// # Errors
    /// It waited for too long, or others came who pushed it out.
    pub fn turned(&mut self, mut turned: Turned) -> Result<(), Refusal> {
        let Slot::Outside(arrival) = self.slot else { return Ok(()) };
        self.waited = self.waited.plus(turned.waited);
        match turned.how {
            Ok(id) => {
                turned.turn.id = None;
                self.slot = Slot::Held(id, arrival, self.lane.0.now());
                self.queued("queue", arrival, turned.waited);
                Ok(())
            }
            Err(retry_after) => Err(self.turned_away(arrival, retry_after)),
        }
    }

    /// The backend can do nothing for this request until the client does something: others may
    /// have its slot. Asks with [`Charge::enter`] for another.
    pub fn give_way(&mut self) {
        self.steady = false;
        let (cost, _) = self.measured();
        self.give_back(cost, |_, _| None);
    }

    /// The request is over, and has cost `cost`: what there is to learn of it is learned.
    pub(super) fn end(&mut self, cost: Cost) {
        match self.slot {
            Slot::Held(..) => self.give_back(cost, |charge, now| charge.learn(cost, now)),
            _ => {
                self.give_back(cost, |_, _| None);
                self.learn(cost, self.lane.0.now());
            }
        }
    }

    /// What requests on its route are taken to cost, this one included, if it tells anything.
    fn learn(&self, cost: Cost, now: Time) -> Option<(RouteHash, Cost)> {
        let route = self.route.filter(|_| self.whole && cost > Cost::ZERO)?;
        Some((route, self.lane.0.engine.estimates.lock().learn(route, cost, now)))
    }

    /// The slot is free. How long it was taken says something of the backend if it was taken for
    /// the whole of the request.
    fn give_back(
        &mut self,
        cost: Cost,
        learn: impl FnOnce(&Charge, Time) -> Option<(RouteHash, Cost)>,
    ) {
        let now = self.lane.0.now();
        match self.slot {
            Slot::Held(id, arrival, since) => {
                self.slot = Slot::Outside(arrival);
                let route = self.route.filter(|_| self.steady && self.whole);
                let worked = route.filter(|_| cost > Cost::ZERO);
                let worked = worked.map(|route| (route, now.since(since)));
                let gate = &self.lane.0.engine.gate;
                gate.done(id, cost, worked, || learn(self, now), now);
            }
            Slot::Beside => {
                self.slot = Slot::Exempt;
                self.lane.0.engine.gate.leave_beside(now);
            }
            Slot::Free | Slot::Exempt | Slot::Outside(_) => {}
        }
    }

    /// Counts and logs that a request had to wait, or was turned away.
    fn queued(&mut self, verdict: &'static str, arrival: Arrival, wait: Nanos) {
        self.reported = true;
        let key = self.bucket(arrival);
        let now = self.lane.0.now();
        let limiter = &self.rules.limiter;
        let reason = Reason { wait, ..limiter.standing_beside(&self.ticket, key, now) };
        // It has a place in the queue, so it waits, whatever the limit that names it does.
        let ruling = Ruling::new(verdict, false);
        self.lane.report(ruling, &self.rules, self.client, reason, None);
    }

    fn turned_away(&mut self, arrival: Arrival, retry_after: Nanos) -> Refusal {
        self.queued("reject", arrival, retry_after);
        let index = usize::from(self.bucket(arrival).limit);
        let limit = self.rules.limiter.limits().get(index);
        Refusal {
            limit: limit.map_or_else(|| "queue".to_owned(), |limit| limit.name.to_string()),
            retry_after_secs: retry_after.retry_after_secs(),
            by_rate: false,
        }
    }

    /// The bucket that a place in the queue goes by: the one in debt, else the client's first of
    /// those that have a say. Of no limit where there is none.
    fn bucket(&self, arrival: Arrival) -> Key {
        let nobody = Key { limit: u8::MAX, hash: arrival.client };
        match arrival.place {
            Place::Debt(key) => key,
            Place::Credit => {
                let limits = self.rules.limiter.limits();
                let has_a_say = |key: &&Key| {
                    limits.get(usize::from(key.limit)).is_some_and(|limit| !limit.shadow)
                };
                self.ticket.keys().as_slice().iter().find(has_a_say).copied().unwrap_or(nobody)
            }
        }
    }
}

/// How a request stands with the queue; `latest` is its bucket furthest in debt.
pub(super) fn slot(
    rules: &Rules,
    keys: &Keys,
    exempt: bool,
    latest: Option<Key>,
    foreseen: Foreseen,
    client: IpAddr,
) -> Slot {
    if !rules.queues || rules.shadow {
        return Slot::Free;
    }
    if exempt {
        return Slot::Exempt;
    }
    let first = keys.as_slice().first().map(|key| key.hash);
    let place = latest.map_or(Place::Credit, Place::Debt);
    let client = first.unwrap_or_else(|| address_hash(&rules.seed, client));
    let weight = classify::weight(rules.limiter.limits(), keys);
    let Foreseen { route, cost: estimate, is_guess } = foreseen;
    Slot::Outside(Arrival { client, place, estimate, is_guess, route, weight })
}

/// Whose turn it is where no limit says who a client is.
fn address_hash(seed: &Seed, client: IpAddr) -> KeyHash {
    let mut hasher = KeyHasher::new(seed);
    hasher.address(client);
    hasher.finish()
}

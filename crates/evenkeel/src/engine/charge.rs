//! The open account of one request: on the clock while the backend works, charged when that is
//! known, settled when it is dropped.
//!
//! Where it waits for room: `turn`. What is charged: `evenkeel_core::limiter`; by what clock:
//! `evenkeel_core::meter`.

pub mod begun;
pub(super) mod delivery;

use super::counted::views::Seen;
use super::domains::gatekeeper::Passage;
use super::served::ruling::Ruling;
use super::turn::Slot;
use super::{Lane, Rules, named};
use crate::client::hosts::Known;
use crate::config::settings::CostSource;
use crate::watch::counts::tiers::Tier;
use delivery::Delivery;
use evenkeel_core::classify::Key;
use evenkeel_core::limit::{Action, Unit};
use evenkeel_core::limiter::{Shadowed, Ticket};
use evenkeel_core::meter::estimate::RouteHash;
use evenkeel_core::meter::{self, Measure, Reading};
use evenkeel_core::units::{Cost, Nanos, Time};
use std::net::IpAddr;
use std::sync::Arc;

/// The open account of one request. Settles when dropped.
pub struct Charge {
    pub(super) lane: Lane,
    pub(super) rules: Arc<Rules>,
    pub(super) ticket: Ticket,
    /// Whether it was counted as delayed, held or, in shadow, refused.
    pub(super) reported: bool,
    pub(super) delayed: bool,
    pub(super) waited: Nanos,
    pub(super) client: IpAddr,
    /// Where the virtual clock stood when the backend last began to work; `None` while it rests.
    pub(super) reading: Option<Reading>,
    /// When the backend last began to work; `None` while it rests.
    pub(super) began: Option<Time>,
    /// For how long the backend has worked so far, by the clock on the wall.
    pub(super) worked: Nanos,
    /// What has been measured so far.
    pub(super) cost: Cost,
    /// What the backend said it cost.
    pub(super) stated: Option<Cost>,
    /// Whose cost is learned by this.
    pub(super) route: Option<RouteHash>,
    pub(super) slot: Slot,
    /// Whether the backend came to its end with it, so that its cost says something of others.
    pub(super) whole: bool,
    /// Whether it has had its slot from its start.
    pub(super) steady: bool,
    /// How far it has come on its way to the backend.
    pub(super) delivery: Delivery,
    /// Whether it counts among those whose slot others have while the backend waits for the rest.
    pub(super) stalled: bool,
    /// Whether the clock has stopped for good.
    pub(super) left: bool,
    /// What whoever had it served said, and how it is known.
    pub(super) told: Option<(Cost, Measure)>,
    /// The `User-Agent`, where the notice of a block may have to name it.
    pub(super) agent: Option<Box<str>>,
    /// What a gatekeeper said, where there is one.
    pub(super) passage: Option<Passage>,
    /// Who else is told what it cost.
    pub(super) tell: Option<Tell>,
    /// Where it is counted beside the limits.
    pub(super) seen: Seen,
    /// When it came.
    pub(super) came: Time,
    /// How its client stands.
    pub(super) tier: Tier,
}

/// Takes what a request cost, when its place was taken, and when the cost was known.
pub type Tell = Box<dyn FnOnce(Cost, Time, Time) + Send>;

impl Charge {
    /// Until when the request must wait before the backend sees it.
    #[must_use]
    pub fn delay_until(&self) -> Option<Time> {
        let own = self.delayed.then(|| self.ticket.starts_at());
        own.max(self.gated_until())
    }

    /// Until when a master has it wait.
    pub(super) fn gated_until(&self) -> Option<Time> {
        self.passage.as_ref().and_then(Passage::until)
    }

    /// It waits no longer before it runs.
    pub(super) fn leave_gate(&mut self) {
        self.passage.iter_mut().for_each(Passage::entered);
    }

    /// Has somebody told what it cost, once that is known.
    pub fn tell(&mut self, tell: Tell) {
        self.tell = Some(tell);
    }

    /// The name of the header in which the backend states costs, if there is one.
    #[must_use]
    pub fn cost_header(&self) -> Option<&str> {
        match &self.rules.cost {
            CostSource::Header(name) => Some(name),
            _ => None,
        }
    }

    /// From here on the backend is not working for this request, whatever it sends: an answer that
    /// has no end. Its slot and the clock are for others.
    pub fn leave(&mut self) {
        self.rest();
        self.goes_on();
        self.give_way();
        self.slot = Slot::Free;
        self.left = true;
    }

    /// The backend works for this request from now on.
    pub fn work(&mut self) {
        if self.reading.is_none() && !self.left {
            let now = self.lane.0.now();
            self.reading = Some(self.lane.0.engine.meter.lock().enter(now));
            self.began = Some(now);
        }
    }

    /// The backend does not work for this request any more, or we wait for the client.
    pub fn rest(&mut self) {
        if let Some(reading) = self.reading.take() {
            let now = self.lane.0.now();
            let cost = self.lane.0.engine.meter.lock().leave(reading, now);
            self.cost = self.cost.plus(cost);
            let since = self.began.take().map_or(Nanos::ZERO, |began| now.since(began));
            self.worked = self.worked.plus(since);
        }
    }

    /// The head of the answer is here, perhaps with what the backend says the request cost. The
    /// clock rests. Returns until when the head is to be held.
    pub fn head(&mut self, stated: Option<&[u8]>) -> Option<Time> {
        self.rest();
        if let Some(value) = stated {
            self.state(value);
        }
        let now = self.lane.0.now();
        self.delivery_is_answered(now);
        let (cost, measure) = self.measured();
        let reason = self.rules.limiter.charge(&mut self.ticket, cost, now);
        self.held_in_shadow(cost, measure, now);
        let reason = reason?;
        let until = self.ticket.starts_at().plus(reason.wait);
        if until <= now {
            return None;
        }
        let rules = &self.rules;
        // What would have happened to it first is told already.
        if !(self.reported && rules.shadow) {
            let ruling = Ruling::new("hold", rules.shadow);
            self.lane.report(ruling, rules, self.client, reason, Some((cost, measure)));
        }
        self.reported = true;
        self.tier = Tier::Debt;
        self.waited = self.waited.plus(until.since(now));
        (!rules.shadow).then_some(until)
    }

    /// Tells of a limit in shadow that would hold the answer.
    fn held_in_shadow(&mut self, cost: Cost, measure: Measure, now: Time) {
        let Some(Shadowed { action: Action::Hold, reason }) = self.ticket.shadowed() else {
            return;
        };
        if self.ticket.starts_at().plus(reason.wait) > now {
            let (ruling, known) = (Ruling::new("hold", true), Some((cost, measure)));
            self.lane.report(ruling, &self.rules, self.client, reason, known);
            self.reported = true;
            self.tier = Tier::Debt;
        }
    }

    /// Takes over what the backend says of itself; what cannot be believed is counted.
    fn state(&mut self, value: &[u8]) {
        match meter::header_cost(value) {
            Ok(Some(cost)) => self.stated = Some(Cost::cpu(cost)),
            Ok(None) => {}
            Err(_) => self.lane.0.engine.watch.cost_header_faults.increment(1),
        }
    }

    /// The backend's connection had to be closed: nobody knows what it still does. Charged is what
    /// such a request costs, if it has not cost more already, and of the time in which it may have
    /// worked on a part of the request at most `most`.
    pub fn cut(&mut self, most: Nanos) {
        self.rest();
        self.whole = false;
        self.delivery_is_cut(most);
    }

    /// The cost so far, and how it was measured.
    pub(super) fn measured(&self) -> (Cost, Measure) {
        if let Some(told) = self.told {
            return told;
        }
        match (self.stated, &self.rules.cost) {
            (Some(cost), _) => (cost, Measure::Header),
            (None, CostSource::Wall) => (self.cost, Measure::Wall),
            (None, CostSource::Cgroup(_)) => (self.cost, Measure::Cgroup),
            (None, _) => (self.cost, Measure::Shared),
        }
    }
}

impl Charge {
    /// What it has taken out of the bucket of one of its keys.
    fn spent(&self, key: Key, cost: Cost) -> Cost {
        let limit = self.rules.limiter.limits().get(usize::from(key.limit));
        match limit.map(|limit| limit.unit) {
            Some(Unit::Hits) => Cost::hits(1),
            Some(Unit::Cpu) | None => cost,
        }
    }

    /// What one of its keys is called, where that needs nothing of the request, which is over.
    fn name_of(&self, key: &Key, known: Known) -> Option<String> {
        let limit = self.rules.limiter.limits().get(usize::from(key.limit))?;
        named::name(limit, key.hash, self.client, self.rules.group(known))
    }
}

/// How long it waited for each of its buckets: for the one that was over for longest all the time,
/// for another by so much less as that was within its limit earlier, for one in credit not at all.
/// Where none was over it waited for room, and so for all alike.
impl Charge {
    fn longest_overdue(&self, waited: Nanos) -> Nanos {
        if waited == Nanos::ZERO {
            return Nanos::ZERO;
        }
        let places = 0..self.ticket.keys().as_slice().len();
        let overdue = places.map(|place| self.rules.limiter.overdue(&self.ticket, place));
        overdue.max().unwrap_or(Nanos::ZERO)
    }

    fn waited_for(&self, place: usize, waited: Nanos, longest: Nanos) -> Nanos {
        if longest == Nanos::ZERO {
            return waited;
        }
        match self.rules.limiter.overdue(&self.ticket, place) {
            Nanos::ZERO => Nanos::ZERO,
            own => waited.minus(longest.minus(own)),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.rest();
        self.goes_on();
        let now = self.lane.0.now();
        self.delivery_is_settled(now);
        let (cost, measure) = self.measured();
        let mut blocks = Vec::new();
        // Who was in credit when it came and spent that meanwhile waited for its own requests.
        if self.rules.limiter.owes(&self.ticket, now) {
            self.tier = Tier::Debt;
        }
        self.rules.limiter.settle_and(&self.ticket, cost, now, |block| blocks.push(block));
        if let Some(tell) = self.tell.take() {
            tell(cost, self.ticket.asked_at(), now);
        }
        blocks.into_iter().for_each(|block| self.notice(block, measure, now));
        // Its name may have become known while it ran.
        let known = self.rules.known(self.client.to_canonical(), now);
        self.lane.0.engine.named(self.client.to_canonical(), known);
        self.end(cost);
        let held_up = self.passage.as_ref().is_some_and(Passage::held_up);
        if !self.reported && !held_up {
            self.lane.0.engine.watch.allowed.increment(1);
        }
        let waited = if self.rules.shadow { Nanos::ZERO } else { self.waited };
        self.lane.0.engine.watch.charged(cost, waited, self.worked, self.tier);
        // What has no end, and what somebody else served and told nothing of, took nobody knows how
        // long.
        let whole = !self.left && measure != Measure::Estimate;
        let took = whole.then(|| now.since(self.came));
        self.lane.0.engine.watch.tiers.served(self.tier, cost, took);
        let mut books = self.lane.0.books.lock();
        books.spend(&self.rules, &self.ticket.counted(), Unit::Cpu, cost);
        books.views.add(self.seen, cost, waited, now);
        let longest = self.longest_overdue(waited);
        for (place, key) in self.ticket.keys().as_slice().iter().enumerate() {
            if let Some(top) = books.tops.get_mut(usize::from(key.limit)) {
                let waited = self.waited_for(place, waited, longest);
                // A flood of others may have pushed it out while it ran.
                if top.add(key.hash, self.spent(*key, cost), waited, now)
                    && let Some(name) = self.name_of(key, known)
                {
                    top.call(key.hash, name);
                }
            }
        }
    }
}

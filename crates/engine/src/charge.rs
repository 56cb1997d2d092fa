//! The open account of one request. Its clock runs while the backend works, its cost is charged as
//! soon as it is known, and dropping the account settles it.
//!
//! How the request waits for a slot: `turn`. What is charged to which bucket:
//! `evenkeel_core::limiter`. How cost is measured: `evenkeel_core::meter`.

pub(super) mod delivery;
pub mod pending;

use super::domains::gatekeeper::OrderGuard;
use super::served::ruling::ReportedOutcome;
use super::turn::QueueSlot;
use super::view::views::ViewKeys;
use super::{EngineLane, EngineRules, host_names};
use delivery::Delivery;
use evenkeel_config::settings::CostSource;
use evenkeel_core::classify::LimitKey;
use evenkeel_core::limit::{LimitAction, LimitUnit};
use evenkeel_core::limiter::{ShadowEffect, Ticket};
use evenkeel_core::meter::estimate::RouteHash;
use evenkeel_core::meter::{self, Measure, Reading};
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_identity::hosts::HostPolicy;
use evenkeel_telemetry::counts::tiers::Tier;
use std::net::IpAddr;
use std::sync::Arc;

/// The open account of one request. Dropping it settles the account. The drop takes the locks of
/// the meter, the gate and the books, so it must not happen while one of them is held.
pub struct Charge {
    pub(super) lane: EngineLane,
    pub(super) rules: Arc<EngineRules>,
    pub(super) ticket: Ticket,
    /// Whether the request was already counted as delayed, held, queued or refused (in shadow, as
    /// one that would have been).
    pub(super) reported: bool,
    pub(super) delayed: bool,
    pub(super) waited: Nanos,
    pub(super) client: IpAddr,
    /// The virtual clock when the backend last began to work; `None` while the backend does not
    /// work.
    pub(super) reading: Option<Reading>,
    /// The time when the backend last began to work; `None` while the backend does not work.
    pub(super) began: Option<Time>,
    /// The wall-clock time for which the backend has worked so far.
    pub(super) worked: Nanos,
    /// The cost measured so far.
    pub(super) cost: Cost,
    /// The cost that the backend has stated in its answer.
    pub(super) stated: Option<Cost>,
    /// The route for which this request's cost is a sample; `None` if no limit needs estimates.
    pub(super) route: Option<RouteHash>,
    pub(super) slot: QueueSlot,
    /// Whether the backend finished the request, so that its cost is a sample of its route.
    pub(super) whole: bool,
    /// Whether the request has held its slot without a break.
    pub(super) steady: bool,
    /// How much of the request the backend has.
    pub(super) delivery: Delivery,
    /// Whether the gate counts this request as stalled: the backend waits for the rest of it, and
    /// others use its slot.
    pub(super) stalled: bool,
    /// Whether the clock has stopped for good.
    pub(super) left: bool,
    /// The cost that an external server has reported, and how it is known.
    pub(super) told: Option<(Cost, Measure)>,
    /// The `User-Agent`, if the notice of a block may have to show it.
    pub(super) agent: Option<Box<str>>,
    /// The decision of a gatekeeper, if one has decided.
    pub(super) passage: Option<OrderGuard>,
    /// A callback that reports the final cost, for a store.
    pub(super) tell: Option<CostCallback>,
    /// The request's route and user agent in the lists that no limit counts by.
    pub(super) seen: ViewKeys,
    /// When the request arrived.
    pub(super) came: Time,
    /// The class of the request in the metrics: in credit or in debt.
    pub(super) tier: Tier,
}

/// Receives the cost of a request, the time as of which the request was charged, and the time at
/// which the cost was known.
pub type CostCallback = Box<dyn FnOnce(Cost, Time, Time) + Send>;

impl Charge {
    /// The time until which the request must wait before it is sent to the backend.
    #[must_use]
    pub fn delay_until(&self) -> Option<Time> {
        let own = self.delayed.then(|| self.ticket.starts_at());
        own.max(self.gated_until())
    }

    /// The time until which a master's order delays the request.
    pub(super) fn gated_until(&self) -> Option<Time> {
        self.passage.as_ref().and_then(OrderGuard::until)
    }

    /// Ends the gatekeeper's delay, and frees the request's place among the delayed ones.
    pub(super) fn leave_gate(&mut self) {
        self.passage.iter_mut().for_each(OrderGuard::end_delay);
    }

    /// Sets the callback that reports the final cost.
    pub fn tell(&mut self, tell: CostCallback) {
        self.tell = Some(tell);
    }

    /// The name of the header in which the backend states the cost, if one is configured.
    #[must_use]
    pub fn cost_header(&self) -> Option<&str> {
        match &self.rules.cost {
            CostSource::Header(name) => Some(name),
            _ => None,
        }
    }

    /// Stops the clock for good and gives the slot back. For an answer without end: whatever the
    /// backend sends from here on is no work for this request.
    pub fn leave(&mut self) {
        self.rest();
        self.end_stall();
        self.give_way();
        self.slot = QueueSlot::Free;
        self.left = true;
    }

    /// Starts the clock: the backend works for this request from now on.
    pub fn work(&mut self) {
        if self.reading.is_none() && !self.left {
            let now = self.lane.0.now();
            self.reading = Some(self.lane.0.engine.meter.lock().enter(now));
            self.began = Some(now);
        }
    }

    /// Stops the clock: the backend no longer works for this request, or the proxy waits for the
    /// client.
    pub fn rest(&mut self) {
        if let Some(reading) = self.reading.take() {
            let now = self.lane.0.now();
            let cost = self.lane.0.engine.meter.lock().leave(reading, now);
            self.cost = self.cost.plus(cost);
            let since = self.began.take().map_or(Nanos::ZERO, |began| now.since(began));
            self.worked = self.worked.plus(since);
        }
    }

    /// Records that the head of the answer has arrived, perhaps with the cost that the backend
    /// states, and stops the clock. Returns the time until which the answer must be held.
    pub fn head(&mut self, stated: Option<&[u8]>) -> Option<Time> {
        self.rest();
        if let Some(value) = stated {
            self.state(value);
        }
        let now = self.lane.0.now();
        self.answer_delivery(now);
        let (cost, measure) = self.measured();
        let reason = self.rules.limiter.charge(&mut self.ticket, cost, now);
        self.held_in_shadow(cost, measure, now);
        let reason = reason?;
        let until = self.ticket.starts_at().plus(reason.wait);
        if until <= now {
            return None;
        }
        let rules = &self.rules;
        // In shadow, the first action that would have been taken is already logged.
        if !(self.reported && rules.shadow) {
            let ruling = ReportedOutcome::new("hold", rules.shadow);
            self.lane.report(ruling, rules, self.client, reason, Some((cost, measure)));
        }
        self.reported = true;
        self.tier = Tier::Debt;
        self.waited = self.waited.plus(until.since(now));
        (!rules.shadow).then_some(until)
    }

    /// Logs that a limit in shadow would hold the answer.
    fn held_in_shadow(&mut self, cost: Cost, measure: Measure, now: Time) {
        let Some(ShadowEffect { action: LimitAction::Hold, reason }) = self.ticket.shadowed()
        else {
            return;
        };
        if self.ticket.starts_at().plus(reason.wait) > now {
            let (ruling, known) = (ReportedOutcome::new("hold", true), Some((cost, measure)));
            self.lane.report(ruling, &self.rules, self.client, reason, known);
            self.reported = true;
            self.tier = Tier::Debt;
        }
    }

    /// Accepts the cost that the backend states. A malformed value is counted and ignored.
    fn state(&mut self, value: &[u8]) {
        match meter::header_cost(value) {
            Ok(Some(cost)) => self.stated = Some(Cost::cpu(cost)),
            Ok(None) => {}
            Err(_) => self.lane.0.engine.watch.cost_header_faults.increment(1),
        }
    }

    /// Records that the connection to the backend had to be closed, so the backend may still be
    /// working. The charge is at least the usual cost of such a request. Of the time in which the
    /// backend may have worked on a part of the request, at most `most` is charged.
    pub fn cut(&mut self, most: Nanos) {
        self.rest();
        self.whole = false;
        self.cut_delivery(most);
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
    /// The amount charged to the bucket of one key: one hit, or the cost.
    fn spent(&self, key: LimitKey, cost: Cost) -> Cost {
        let limit = self.rules.limiter.limits().get(usize::from(key.limit));
        match limit.map(|limit| limit.unit) {
            Some(LimitUnit::Hits) => Cost::hits(1),
            Some(LimitUnit::Cpu) | None => cost,
        }
    }

    /// The readable name of a key, if it can be found without the request, which is over.
    fn name_of(&self, key: &LimitKey, known: HostPolicy) -> Option<String> {
        let limit = self.rules.limiter.limits().get(usize::from(key.limit))?;
        host_names::name(limit, key.hash, self.client, self.rules.group(known))
    }
}

/// The time that the request waited because of each of its buckets. The bucket that was overdue for
/// longest is blamed for the whole wait. Another one is blamed for as much less as it was within
/// its limit earlier, and a bucket in credit for none. If no bucket was overdue, the request waited
/// for a slot, and all buckets are blamed alike.
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
        self.end_stall();
        let now = self.lane.0.now();
        self.settle_delivery(now);
        let (cost, measure) = self.measured();
        let mut blocks = Vec::new();
        // A client that was in credit on arrival and has spent it since then waited because of its
        // own requests.
        if self.rules.limiter.owes(&self.ticket, now) {
            self.tier = Tier::Debt;
        }
        self.rules.limiter.settle_and(&self.ticket, cost, now, |block| blocks.push(block));
        if let Some(tell) = self.tell.take() {
            tell(cost, self.ticket.asked_at(), now);
        }
        blocks.into_iter().for_each(|block| self.notice(block, measure, now));
        // The client's name may have become known while the request ran.
        let known = self.rules.known(self.client.to_canonical(), now);
        self.lane.0.engine.merge_group_debt(self.client.to_canonical(), known);
        // Locks the gate, with the estimates inside it.
        self.end(cost);
        let held_up = self.passage.as_ref().is_some_and(OrderGuard::held_up);
        if !self.reported && !held_up {
            self.lane.0.engine.watch.allowed.increment(1);
        }
        let waited = if self.rules.shadow { Nanos::ZERO } else { self.waited };
        self.lane.0.engine.watch.record_charge(cost, waited, self.worked, self.tier);
        // The duration is unknown for an answer without end and for a request served elsewhere
        // without a report.
        let whole = !self.left && measure != Measure::Estimate;
        let took = whole.then(|| now.since(self.came));
        self.lane.0.engine.watch.tiers.record_served(self.tier, cost, took);
        // Locked last and to the end: inside it only the spin bits of buckets are taken.
        let mut books = self.lane.0.books.lock();
        books.spend(&self.rules, &self.ticket.counted(), LimitUnit::Cpu, cost);
        books.views.add(self.seen, cost, waited, now);
        let longest = self.longest_overdue(waited);
        for (place, key) in self.ticket.keys().as_slice().iter().enumerate() {
            if let Some(top) = books.top(&self.rules, usize::from(key.limit)) {
                let waited = self.waited_for(place, waited, longest);
                // A flood of other keys may have evicted this one while the request ran.
                if top.add(key.hash, self.spent(*key, cost), waited, now)
                    && let Some(name) = self.name_of(key, known)
                {
                    top.set_name(key.hash, name);
                }
            }
        }
    }
}

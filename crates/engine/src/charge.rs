//! The open account of one request. Its clock runs while the backend works, its cost is charged as
//! soon as it is known, and dropping the account settles it.
//!
//! The account has four parts: what arrived (`pending`), what was measured (`work`), the slot
//! before the backend (`slot`) and what is reported (here). How the request waits for a slot:
//! `turn`. The end: `settle`. What is charged to which bucket: `evenkeel_core::limiter`. How cost
//! is measured: `evenkeel_core::meter`.

mod delivery;
pub mod quotas;
pub mod served;
mod settle;
pub(crate) mod slot;
pub mod turn;
mod work;

use crate::domains::gatekeeper::OrderGuard;
use crate::lane::EngineLane;
use crate::outcome::DecisionDetails;
use crate::pending::ArrivedRequest;
use evenkeel_config::settings::CostSource;
use evenkeel_core::limit::{LimitAction, UnitCosts};
use evenkeel_core::limiter::{Reason, ShadowEffect, Ticket};
use evenkeel_core::meter::Measure;
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_telemetry::counts::tiers::Tier;
use slot::{HeldSlot, QueueSlot};
use work::MeasuredWork;
pub use work::TokenCosts;

/// A running request is charged again after this much more work. Less: the buckets are locked more
/// often. More: a client that asks for long outputs stays within its limits for longer.
const CHARGE_STEP: Cost = Cost::tokens(64);

/// The open account of one request. Dropping it settles the account. The drop takes the locks of
/// the meter, the gate and the lane, so it must not happen while one of them is held.
pub struct Charge {
    lane: EngineLane,
    request: ArrivedRequest,
    ticket: Ticket,
    work: MeasuredWork,
    slot: HeldSlot,
    report: DelayReport,
    /// The decision of a gatekeeper, if one has decided.
    passage: Option<OrderGuard>,
    /// The work that was charged while the request ran.
    so_far: Cost,
    /// How long the request waited for the first byte of a model's answer.
    first_byte: Option<Nanos>,
    /// A callback that reports the final cost, for a store.
    tell: Option<CostCallback>,
}

/// The delay of a request, as it is reported in the log, in the metrics and in the lists.
pub(crate) struct DelayReport {
    /// Whether the request was already counted as delayed, held, queued or refused (in shadow, as
    /// one that would have been).
    pub(crate) reported: bool,
    /// Whether a limit delays the request.
    pub(crate) delayed: bool,
    /// The time that the request has waited, or must wait.
    pub(crate) waited: Nanos,
    /// The class of the request in the metrics: in credit or in debt.
    pub(crate) tier: Tier,
}

/// Receives the cost of a request, the time as of which the request was charged, and the time at
/// which the cost was known.
pub type CostCallback = Box<dyn FnOnce(UnitCosts, Time, Time) + Send>;

impl Charge {
    /// Opens the account of a request that may run.
    pub(crate) fn open(
        lane: EngineLane,
        request: ArrivedRequest,
        ticket: Ticket,
        slot: QueueSlot,
        report: DelayReport,
        passage: Option<OrderGuard>,
    ) -> Charge {
        Charge {
            lane,
            request,
            ticket,
            work: MeasuredWork::new(),
            slot: HeldSlot::new(slot),
            report,
            passage,
            so_far: Cost::ZERO,
            first_byte: None,
            tell: None,
        }
    }

    /// The time until which the request must wait before it is sent to the backend.
    pub fn delay_until(&self) -> Option<Time> {
        let own = self.report.delayed.then(|| self.ticket.starts_at());
        own.max(self.gated_until())
    }

    /// The time until which a master's order delays the request.
    fn gated_until(&self) -> Option<Time> {
        self.passage.as_ref().and_then(|passage| passage.until)
    }

    /// Ends the gatekeeper's delay, and frees the request's place among the delayed ones.
    fn leave_gate(&mut self) {
        self.passage.iter_mut().for_each(OrderGuard::end_delay);
    }

    /// Sets the callback that reports the final cost.
    pub fn tell(&mut self, tell: CostCallback) {
        self.tell = Some(tell);
    }

    /// The name of the header in which the backend states the cost, if one is configured.
    pub fn cost_header(&self) -> Option<&str> {
        match &self.request.rules.cost {
            CostSource::Header(name) => Some(name),
            _ => None,
        }
    }

    /// Records that the head of a language model's answer has arrived, and is held until `until`.
    pub fn record_first_byte(&mut self, until: Option<Time>) {
        let ArrivedRequest { rules, came, .. } = &self.request;
        let now = self.lane.0.now();
        let in_debt = self.report.tier == Tier::Debt || rules.limiter.owes(&self.ticket, now);
        let took = until.map_or(now, |until| until.max(now)).since(*came);
        self.lane.0.engine.watch.tiers.record_first_byte(Tier::of(in_debt), took);
        self.first_byte = Some(took);
    }

    /// Sets the cost so far of the tokens that the answer states, or that were counted in it. It
    /// replaces the measured cost. From time to time it is charged while the request runs.
    pub fn set_tokens(&mut self, tokens: TokenCosts) {
        self.work.tokens = Some(tokens);
        if tokens.cost.work >= self.so_far.plus(CHARGE_STEP) {
            self.record_progress(tokens.cost.work);
            self.so_far = tokens.cost.work;
            let limiter = &self.request.rules.limiter;
            limiter.charge_so_far(&mut self.ticket, tokens.cost, self.lane.0.now());
            self.slot.note_progress(tokens.cost.work, &self.lane.0);
        }
    }

    /// Counts the cost of the request beyond what was charged before.
    fn record_progress(&self, cost: Cost) {
        self.lane.0.engine.watch.tiers.record_progress(cost, self.so_far);
    }

    /// Charges for tokens that are not known: the number that the model makes in the time that it
    /// has worked or, if its rate is unknown, the expected number.
    pub fn assume_tokens(&mut self) {
        let rates = &self.lane.0.engine.output_rates;
        let unread = self.request.forecast.unread(self.work.worked, rates);
        self.work.tokens = unread.map(TokenCosts::assumed);
    }

    /// Stops the clock for good and gives the slot back. For an answer without end: whatever the
    /// backend sends from here on is no work for this request.
    pub fn leave(&mut self) {
        self.rest();
        self.slot.leave(self.measured().0.work, &self.lane.0);
        self.request.open.set(None, self.lane.0.now());
        self.work.left = true;
    }

    /// Starts the clock: the backend works for this request from now on.
    pub fn work(&mut self) {
        self.work.start(&self.lane.0);
    }

    /// Stops the clock: the backend no longer works for this request, or the proxy waits for the
    /// client.
    pub fn rest(&mut self) {
        self.work.stop(&self.lane.0);
    }

    /// Records that the backend has the head of the request, and the body follows.
    pub fn begin_delivery(&mut self) {
        self.work.begin_delivery(&self.lane.0);
    }

    /// Records that `bytes` more bytes of the body were sent to the backend.
    pub fn note_delivered(&mut self, bytes: usize) {
        self.work.delivery.note(bytes, &self.lane.0);
    }

    /// Records that the backend has the whole request.
    pub fn finish_delivery(&mut self) {
        self.work.delivery.finish(&self.lane.0);
    }

    /// Records that there is no answer. If the backend has a part of the request, the exchange is
    /// cut.
    pub fn abandon(&mut self, most: Nanos) {
        if self.work.delivery.is_partial() {
            self.cut(most);
        }
    }

    /// Records that the connection to the backend had to be closed, so the backend may still be
    /// working. The charge is at least the usual cost of such a request. Of the time in which the
    /// backend may have worked on a part of the request, at most `most` is charged.
    pub fn cut(&mut self, most: Nanos) {
        self.rest();
        self.work.cut(most, &self.lane.0);
    }

    /// Records that the head of the answer has arrived, perhaps with the cost that the backend
    /// states, and stops the clock. Returns the time until which the answer must be held.
    pub fn head(&mut self, stated: Option<&[u8]>) -> Option<Time> {
        self.rest();
        if let Some(value) = stated {
            self.work.state(value, &self.lane.0);
        }
        self.work.answer(&self.lane.0);
        let now = self.lane.0.now();
        let (costs, measure) = self.measured();
        let cost = costs.work;
        let reason = self.request.rules.limiter.charge(&mut self.ticket, costs, now);
        self.held_in_shadow(cost, measure, now);
        let reason = reason?;
        let until = self.ticket.starts_at().plus(reason.wait);
        if until <= now {
            return None;
        }
        let shadow = self.request.rules.shadow;
        // In shadow, the first action that would have been taken is already logged.
        if !(self.report.reported && shadow) {
            self.report("hold", shadow, reason, DecisionDetails::of_cost(cost, measure));
        }
        self.report.tier = Tier::Debt;
        self.report.waited = self.report.waited.plus(until.since(now));
        if !shadow {
            self.request.open.set(None, now);
        }
        (!shadow).then_some(until)
    }

    /// Logs that a limit in shadow would hold the answer.
    fn held_in_shadow(&mut self, cost: Cost, measure: Measure, now: Time) {
        let Some(ShadowEffect { action: LimitAction::Hold, reason }) = self.ticket.shadowed()
        else {
            return;
        };
        if self.ticket.starts_at().plus(reason.wait) > now {
            self.report("hold", true, reason, DecisionDetails::of_cost(cost, measure));
            self.report.tier = Tier::Debt;
        }
    }

    /// Counts and logs that the request is, or would be, held, delayed, queued or refused.
    fn report(
        &mut self,
        verdict: &'static str,
        shadow: bool,
        reason: Reason,
        details: DecisionDetails,
    ) {
        let ArrivedRequest { rules, client, .. } = &self.request;
        self.lane.report((verdict, shadow), rules, *client, reason, details);
        self.report.reported = true;
    }

    /// The cost so far, and how it was measured.
    fn measured(&self) -> (UnitCosts, Measure) {
        self.work.measured(&self.request.rules.cost)
    }
}

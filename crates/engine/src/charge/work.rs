//! What was measured of one request: when the backend works for it, and what that costs.
//!
//! The clock runs while the backend works. A cost that the backend states, or that another program
//! reports, replaces the measured one. The time before the backend has the whole request:
//! `delivery`. The buckets that are charged: `charge`.

use super::delivery::Delivery;
use crate::lane::LaneShared;
use evenkeel_config::settings::CostSource;
use evenkeel_core::limit::UnitCosts;
use evenkeel_core::meter::estimate::RouteHash;
use evenkeel_core::meter::{self, Measure, Reading};
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_telemetry::counts::models::{TokenCounts, TokenSource};

/// The cost of the tokens of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCosts {
    /// The cost of the prompt and the output.
    pub cost: UnitCosts,
    /// How the tokens are known.
    pub source: TokenSource,
    /// The tokens; zero if they are assumed.
    pub counts: TokenCounts,
}

impl TokenCosts {
    /// Tokens that cannot be read, for which `cost` was expected.
    pub(super) fn assumed(cost: UnitCosts) -> TokenCosts {
        TokenCosts { cost, source: TokenSource::Assumed, counts: TokenCounts::default() }
    }

    /// The number of tokens of the output, if it is known.
    pub(super) fn output(&self) -> Option<Cost> {
        (self.source != TokenSource::Assumed).then_some(Cost::tokens(self.counts.output))
    }
}

/// The measurements of one request.
pub(super) struct MeasuredWork {
    /// The virtual clock and the time when the backend last began to work; `None` while it does not
    /// work.
    running: Option<(Reading, Time)>,
    /// The wall-clock time for which the backend has worked so far.
    pub(super) worked: Nanos,
    /// The cost measured so far.
    pub(super) cost: Cost,
    /// The cost that the backend has stated in its answer.
    stated: Option<Cost>,
    /// The tokens of the answer so far, if it is one of a language model.
    pub(super) tokens: Option<TokenCosts>,
    /// The cost that an external server has reported, and how it is known.
    told: Option<(Cost, Measure)>,
    /// How much of the request the backend has.
    pub(super) delivery: Delivery,
    /// Whether the backend finished the request, so that its cost is a sample of its route.
    whole: bool,
    /// Whether the backend has begun its answer.
    is_answered: bool,
    /// Whether the clock has stopped for good.
    pub(super) left: bool,
}

impl MeasuredWork {
    pub fn new() -> MeasuredWork {
        MeasuredWork {
            running: None,
            worked: Nanos::ZERO,
            cost: Cost::ZERO,
            stated: None,
            tokens: None,
            told: None,
            delivery: Delivery::Whole,
            whole: true,
            is_answered: false,
            left: false,
        }
    }

    /// Starts the clock, unless it has stopped for good.
    pub fn start(&mut self, lane: &LaneShared) {
        if self.running.is_none() && !self.left {
            let now = lane.now();
            self.running = Some((lane.engine.meter(now).enter(now), now));
        }
    }

    pub fn stop(&mut self, lane: &LaneShared) {
        if let Some((reading, began)) = self.running.take() {
            let now = lane.now();
            let cost = lane.engine.meter(now).leave(reading, now);
            self.cost = self.cost.plus(cost);
            self.worked = self.worked.plus(now.since(began));
        }
    }

    /// Accepts the cost that the backend states. A malformed value is counted and ignored.
    pub fn state(&mut self, value: &[u8], lane: &LaneShared) {
        match meter::header_cost(value) {
            Ok(Some(cost)) => self.stated = Some(Cost::cpu(cost)),
            Ok(None) => {}
            Err(_) => lane.engine.watch.cost_header_faults.increment(1),
        }
    }

    /// Accepts the cost that another program reports. An estimate is no sample of the route.
    pub fn tell(&mut self, cost: Cost, measure: Measure) {
        self.whole = measure != Measure::Estimate;
        self.told = Some((cost, measure));
    }

    /// Records that the backend has the head of the request, and the body follows.
    pub fn begin_delivery(&mut self, lane: &LaneShared) {
        if !self.left {
            self.delivery.begin(lane);
        }
    }

    /// Records that the backend answers. If it does not have the whole request yet, the provisional
    /// time is charged.
    pub fn answer(&mut self, lane: &LaneShared) {
        self.is_answered = true;
        if self.delivery.is_partial() {
            self.cost = self.cost.plus(self.delivery.cut(Cost(u64::MAX), lane));
        }
    }

    /// Records that the exchange was broken off. The backend may have worked in the meantime, but
    /// the client may equally have lost its connection, so of the provisional time at most `most`
    /// is charged.
    pub fn cut(&mut self, most: Nanos, lane: &LaneShared) {
        self.whole = false;
        self.cost = self.cost.plus(self.delivery.cut(Cost::cpu(most), lane));
    }

    /// Raises the cost of a finished request to the usual cost of its route, within the bound of
    /// its delivery. Locks the estimates and then the meter, one after the other.
    pub fn settle(&mut self, route: Option<RouteHash>, lane: &LaneShared) {
        let (Some(more), Some(route)) = (self.delivery.end(lane), route) else { return };
        let most = self.cost.plus(more);
        let usual = lane.engine.estimates.lock().of(route).min(most);
        if usual > self.cost {
            lane.engine.meter(lane.now()).confirm(usual.minus(self.cost));
            self.cost = usual;
            self.whole = false;
        }
    }

    /// Whether the backend has worked on the request without answering.
    pub fn is_unanswered(&self) -> bool {
        self.worked > Nanos::ZERO && !self.is_answered
    }

    /// Whether the tokens are assumed, not known.
    pub fn assumes_tokens(&self) -> bool {
        self.tokens.is_some_and(|tokens| tokens.source == TokenSource::Assumed)
    }

    /// The cost so far, and how it is known.
    pub fn measured(&self, source: &CostSource) -> (UnitCosts, Measure) {
        if let Some(tokens) = self.tokens {
            return (tokens.cost, Measure::Tokens);
        }
        let (work, measure) = self.told.unwrap_or_else(|| self.work_by(source));
        (work.into(), measure)
    }

    /// The work so far without a report, and how it is known.
    fn work_by(&self, source: &CostSource) -> (Cost, Measure) {
        match (self.stated, source) {
            (Some(cost), _) => (cost, Measure::Header),
            (None, CostSource::Wall) => (self.cost, Measure::Wall),
            (None, CostSource::Cgroup(_)) => (self.cost, Measure::Cgroup),
            (None, _) => (self.cost, Measure::Shared),
        }
    }

    /// `route`, if the cost is a sample of it.
    pub fn sample(&self, route: Option<RouteHash>) -> Option<RouteHash> {
        route.filter(|_| self.whole)
    }
}

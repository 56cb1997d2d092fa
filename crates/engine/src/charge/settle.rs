//! The end of an account: the final charge, the notice of a block, and what the lists and metrics
//! learn of the request.
//!
//! It runs when the account is dropped. The order of locks: [`Engine`](crate::Engine).

use super::Charge;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::classify::LimitKey;
use evenkeel_core::limit::{LimitUnit, UnitCosts};
use evenkeel_core::limiter::BlockStarted;
use evenkeel_core::meter::Measure;
use evenkeel_core::meter::estimate::CostForecast;
use evenkeel_core::top::AnsweredRequest;
use evenkeel_core::units::{Cost, Nanos, Time};
use evenkeel_identity::hosts::HostPolicy;
use evenkeel_telemetry::counts::models::{TokenCounts, TokenSource};
use evenkeel_telemetry::counts::tiers::Tier;
use evenkeel_telemetry::decision::notice::BlockNotice;

impl Charge {
    /// The amount charged to the bucket of one key.
    fn spent(&self, key: LimitKey, cost: UnitCosts) -> Cost {
        let limit = self.request.rules.limiter.limits().get(usize::from(key.limit));
        limit.map_or(cost.work, |limit| cost.of(limit.unit))
    }

    /// The readable name of a key, if it can be found without the request, which is over.
    fn name_of(&self, key: &LimitKey, known: HostPolicy) -> Option<String> {
        let limit = self.request.rules.limiter.limits().get(usize::from(key.limit))?;
        self.request.rules.name(limit, key.hash, self.request.client, known)
    }

    /// Logs and counts that the cost of this request has started a block.
    fn notice(&self, block: BlockStarted, measure: Measure, now: Time) {
        let index = usize::from(block.key.limit);
        let limits = self.request.rules.limiter.limits();
        let Some(limit) = limits.get(index) else { return };
        let Algorithm::Sliding(window) = &limit.algorithm else { return };
        let name = self.lane.0.books.lock().name(&self.request.rules, index, block.key.hash);
        let notice = BlockNotice {
            limit: &limit.name,
            key: name.as_deref().unwrap_or("?"),
            client: self.request.client,
            sum: block.sum,
            max: window.max(),
            window: window.window(),
            measure,
            agent: self.request.agent.as_deref().unwrap_or_default(),
            shadow: self.request.rules.shadow || limit.shadow,
        };
        self.lane.0.engine.watch.record_block(&notice, now);
    }

    /// Raises the cost of a request that ended without an answer to the usual cost.
    fn settle_work(&mut self) {
        let forecast = &self.request.forecast;
        let route = forecast.learned.route.filter(|_| !forecast.asks_model());
        self.work.settle(route, &self.lane.0);
        if self.work.is_unanswered() || self.work.assumes_tokens() {
            self.assume_tokens();
        }
    }

    /// Counts the tokens of a request to a language model, and the money that it was charged.
    fn record_tokens(&self, money: Cost) {
        if !self.request.forecast.asks_model() {
            return;
        }
        let (source, counts) = match self.work.tokens {
            Some(tokens) => (tokens.source, tokens.counts),
            None => (TokenSource::None, TokenCounts::default()),
        };
        self.lane.0.engine.watch.models.record(source, counts, money);
    }

    /// Gives the slot back, and updates the estimate of the request's route.
    fn end(&mut self, cost: Cost) {
        let forecast = &self.request.forecast;
        let CostForecast { own, route, .. } = forecast.learned;
        let sample = self.work.sample(route);
        let output = self.work.tokens.and_then(|tokens| tokens.output());
        let beyond = output.and_then(|output| forecast.exceeded(output, self.ticket.keys()));
        // For a model, the length of its outputs is learned.
        let learned = if forecast.asks_model() { output } else { Some(cost) };
        let lane = &self.lane.0;
        if let (Some(route), Some(output)) = (sample, output) {
            lane.engine.output_rates.learn(route, output, self.work.worked, lane.now());
        }
        let learn = |now| {
            let Some(route) = sample.filter(|_| cost > Cost::ZERO) else { return [None; 3] };
            let Some(learned) = learned else { return [None; 3] };
            // Lock order: the gate may be locked.
            let mut estimates = lane.engine.estimates.lock();
            if let Some(beyond) = beyond {
                estimates.learn(beyond, learned, now);
            }
            estimates.learn_request(route, own, learned, now)
        };
        self.slot.end(cost, sample, learn, lane);
    }
}

/// The time that the request waited because of each of its buckets. The bucket that was overdue for
/// longest is blamed for the whole wait. Another one is blamed for as much less as it was within
/// its limit earlier, and a bucket in credit for none. If no bucket was overdue, the request waited
/// for a slot, and all buckets are blamed alike. A limit in shadow delays no request, so it is
/// never overdue.
impl Charge {
    fn longest_overdue(&self, waited: Nanos) -> Nanos {
        if waited == Nanos::ZERO {
            return Nanos::ZERO;
        }
        let places = 0..self.ticket.keys().as_slice().len();
        places.map(|place| self.overdue(place)).max().unwrap_or(Nanos::ZERO)
    }

    /// The time for which the bucket at `place` delays the request; zero for a limit in shadow.
    fn overdue(&self, place: usize) -> Nanos {
        let limiter = &self.request.rules.limiter;
        let key = self.ticket.keys().as_slice().get(place);
        let limit = key.and_then(|key| limiter.limits().get(usize::from(key.limit)));
        match limit {
            Some(limit) if !limit.shadow => limiter.overdue(&self.ticket, place),
            _ => Nanos::ZERO,
        }
    }

    fn waited_for(&self, place: usize, waited: Nanos, longest: Nanos) -> Nanos {
        if longest == Nanos::ZERO {
            return waited;
        }
        match self.overdue(place) {
            Nanos::ZERO => Nanos::ZERO,
            own => waited.minus(longest.minus(own)),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.rest();
        self.slot.end_stall(&self.lane.0);
        self.settle_work();
        let now = self.lane.0.now();
        let (costs, measure) = self.measured();
        let cost = costs.work;
        let mut blocks = Vec::new();
        // A client that was in credit on arrival and has spent it since then waited because of its
        // own requests.
        if self.request.rules.limiter.owes(&self.ticket, now) {
            self.report.tier = Tier::Debt;
        }
        self.request.rules.limiter.settle_and(&self.ticket, costs, now, |block| blocks.push(block));
        if let Some(tell) = self.tell.take() {
            tell(costs, self.ticket.asked_at(), now);
        }
        blocks.into_iter().for_each(|block| self.notice(block, measure, now));
        // The client's name may have become known while the request ran.
        let known = self.request.rules.known(self.request.client.to_canonical(), now);
        self.lane.0.engine.merge_group_debt(self.request.client.to_canonical(), known);
        // Locks the gate, with the estimates inside it.
        self.end(cost);
        let held_up = self.passage.as_ref().is_some_and(|passage| passage.held_up);
        if !self.report.reported && !held_up {
            self.lane.0.engine.watch.allowed.increment(1);
        }
        let waited = if self.request.rules.shadow { Nanos::ZERO } else { self.report.waited };
        self.record_tokens(costs.money);
        self.record_progress(cost);
        self.lane.0.engine.watch.record_charge(cost, waited, self.work.worked, self.report.tier);
        // The duration is unknown for an answer without end and for a request served elsewhere
        // without a report.
        let whole = !self.work.left && measure != Measure::Estimate;
        let took = whole.then(|| now.since(self.request.came));
        self.lane.0.engine.watch.tiers.record_served(self.report.tier, cost, took);
        // Locked last and to the end: inside it only the spin bits of buckets are taken.
        let mut books = self.lane.0.books.lock();
        self.request.open.release(&mut books.own.open);
        let spent = |unit| (unit != LimitUnit::Hits).then(|| costs.of(unit));
        books.spend(&self.request.rules, &self.ticket.counted(), spent);
        books.own.views.add(self.request.seen, cost, waited, now);
        let longest = self.longest_overdue(waited);
        // How long an answer of a model takes depends on its length.
        let took = if self.request.forecast.asks_model() { self.first_byte } else { took };
        let (in_debt, usual) = (self.report.tier == Tier::Debt, self.request.seen.0);
        let answer = Some(AnsweredRequest { took, in_debt, usual });
        for (place, key) in self.ticket.keys().as_slice().iter().enumerate() {
            if let Some(top) = books.top(&self.request.rules, usize::from(key.limit)) {
                let waited = self.waited_for(place, waited, longest);
                // A flood of other keys may have evicted this one while the request ran.
                if top.add_answered(key.hash, self.spent(*key, costs), waited, now, answer)
                    && let Some(name) = self.name_of(key, known)
                {
                    top.set_name(key.hash, name);
                }
            }
        }
    }
}

//! The expected cost of a request when it arrives.
//!
//! Costs are learned by route and client (`evenkeel_core::meter::estimate`). Of a request to a
//! language model the prompt is known. The number of output tokens is learned, and how many a model
//! puts out in a second.

use crate::rules::EngineRules;
use evenkeel_core::classify::{self, LimitKeys, ModelCall, RequestAttributes};
use evenkeel_core::key::KeyHash;
use evenkeel_core::limit::UnitCosts;
use evenkeel_core::meter::estimate::{CostForecast, Estimates, RouteHash};
use evenkeel_core::units::{Cost, Nanos, SECOND, Time};
use parking_lot::Mutex;

/// The expected output of a model before any output is known, and the minimum that is reserved for
/// an output without a bound.
const OUTPUT_DEFAULT: Cost = Cost::tokens(256);
/// An output without a bound is expected to exceed the mean by at most this many times the mean
/// distance from it. Fewer: requests that run at once exceed a quota. More: quotas are held back
/// for outputs that hardly ever occur.
const SPREADS_RESERVED: u64 = 3;
/// A shorter output says little about the rate at which a model puts out tokens: most of its time
/// went into the prompt.
const RATED_OUTPUT_MIN: Cost = Cost::tokens(32);
/// The number of routes for which the rate of output tokens is remembered.
const RATED_ROUTES_MAX: usize = 256;

/// The number of tokens that a model puts out in a second, by route.
pub(crate) struct OutputRates(Mutex<Estimates>);

impl OutputRates {
    pub fn new() -> OutputRates {
        OutputRates(Mutex::new(Estimates::new(RATED_ROUTES_MAX)))
    }

    /// Learns from a complete answer that took the model `worked`.
    pub fn learn(&self, route: RouteHash, output: Cost, worked: Nanos, now: Time) {
        if output >= RATED_OUTPUT_MIN && worked > Nanos::ZERO {
            let rate = u128::from(output.0) * u128::from(SECOND) / u128::from(worked.0);
            let rate = Cost(u64::try_from(rate).unwrap_or(u64::MAX));
            self.0.lock().learn(route, rate, now);
        }
    }

    /// The likely output after the model has worked for this time. A route without a rate is
    /// expected to have that of others. `None` if no rate is known at all.
    fn output_in(&self, route: RouteHash, worked: Nanos) -> Option<Cost> {
        let rates = self.0.lock();
        let output = u128::from(rates.of(route).0) * u128::from(worked.0) / u128::from(SECOND);
        (!rates.is_empty()).then(|| Cost(u64::try_from(output).unwrap_or(u64::MAX)))
    }
}

/// The cost of the tokens of a request to a language model.
#[derive(Clone, Copy, Debug)]
struct ModelCosts {
    prompt: UnitCosts,
    /// A thousand tokens of output.
    output: UnitCosts,
}

impl ModelCosts {
    fn with_output(&self, tokens: Cost) -> UnitCosts {
        self.prompt.plus(self.output.for_tokens(tokens))
    }
}

/// The expected cost of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestForecast {
    /// The learned value of its route: the work, or the tokens of a model's output.
    pub learned: CostForecast,
    /// The likely cost.
    pub expected: UnitCosts,
    /// The charge or reservation at admission: the likely work, and the most tokens and money.
    pub reserved: UnitCosts,
    /// The number of tokens that its output is not expected to exceed, if it states one.
    output_max: Option<Cost>,
    /// Present if it asks a language model.
    model: Option<ModelCosts>,
}

/// The route under which outputs beyond their bounds are learned, for one client.
fn beyond_bound(route: RouteHash, client: Option<KeyHash>) -> RouteHash {
    /// Distinguishes it from the route of the client.
    const MARK: KeyHash = KeyHash::from_bits(1);
    client.map_or(route, |client| route.used_by(client)).used_by(MARK)
}

impl RequestForecast {
    /// The forecast for a request that is counted by `keys`; zero if no limit needs one.
    pub fn of(
        rules: &EngineRules,
        estimates: &Mutex<Estimates>,
        keys: &LimitKeys,
        request: &impl RequestAttributes,
    ) -> RequestForecast {
        if !rules.foresees {
            return RequestForecast::default();
        }
        let path = classify::normal_path(request.path());
        let client = keys.as_slice().first().map(|key| key.hash);
        if let Some(call) = request.model_call() {
            // A model takes the place of the method, which is the same for all.
            let route = RouteHash::of(&rules.seed, call.model, &path);
            let estimates = estimates.lock();
            let mut learned = estimates.forecast(route, client);
            if estimates.is_empty() {
                (learned.cost, learned.spread) = (OUTPUT_DEFAULT, OUTPUT_DEFAULT);
            }
            let exceeds = |route| !estimates.forecast(beyond_bound(route, client), None).is_guess;
            // Some backends do not count reasoning, or ignore the bound.
            let bound = call.output_max.map(Cost::tokens);
            let bound = bound.filter(|most| *most >= learned.cost || !exceeds(route));
            return RequestForecast::of_model(&call, learned, bound);
        }
        let route = RouteHash::of(&rules.seed, request.method(), &path);
        let learned = estimates.lock().forecast(route, client);
        let expected = UnitCosts::from(learned.cost);
        let reserved = expected;
        RequestForecast { learned, expected, reserved, output_max: None, model: None }
    }

    fn of_model(
        call: &ModelCall<'_>,
        learned: CostForecast,
        bound: Option<Cost>,
    ) -> RequestForecast {
        let likely = bound.map_or(learned.cost, |most| learned.cost.min(most));
        let most = learned.cost.plus(Cost(learned.spread.0.saturating_mul(SPREADS_RESERVED)));
        // A client may have sent short requests before many long ones.
        let most = most.max(OUTPUT_DEFAULT);
        let model = ModelCosts { prompt: call.prompt, output: call.output };
        let expected = model.with_output(likely);
        let most = model.with_output(bound.unwrap_or(most));
        let reserved = UnitCosts { work: expected.work, ..most };
        RequestForecast { learned, expected, reserved, output_max: bound, model: Some(model) }
    }

    /// Whether the request asks a language model.
    pub fn asks_model(&self) -> bool {
        self.model.is_some()
    }

    /// The likely cost of an output that cannot be read, or did not arrive, after the model has
    /// worked for this time; `None` if the request asks no model.
    pub fn unread(&self, worked: Nanos, rates: &OutputRates) -> Option<UnitCosts> {
        let model = self.model?;
        let made = self.learned.route.and_then(|route| rates.output_in(route, worked));
        let bounded = |made: Cost| self.output_max.map_or(made, |most| made.min(most));
        Some(made.map_or(self.expected, |made| model.with_output(bounded(made))))
    }

    /// The route under which to learn that outputs of a client exceed their bounds, after one of
    /// `output` tokens; `None` if it does not exceed its bound.
    pub fn exceeded(&self, output: Cost, keys: &LimitKeys) -> Option<RouteHash> {
        self.output_max.filter(|most| output > *most)?;
        Some(beyond_bound(self.learned.route?, keys.as_slice().first().map(|key| key.hash)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::key::KeySeed;

    fn call(output_max: Option<u64>) -> ModelCall<'static> {
        let one = |tokens| UnitCosts {
            work: Cost::tokens(tokens),
            tokens: Cost::tokens(tokens),
            money: Cost(0),
        };
        ModelCall { model: "m", prompt: one(100), output: one(1_000), output_max }
    }

    fn forecast(bound: Option<u64>) -> RequestForecast {
        let (cost, spread) = (Cost::tokens(50), Cost::tokens(20));
        let learned = CostForecast { cost, spread, ..CostForecast::default() };
        RequestForecast::of_model(&call(bound), learned, bound.map(Cost::tokens))
    }

    #[test]
    fn the_likely_output_is_charged_and_the_longest_is_reserved() {
        let forecast = forecast(Some(400));
        assert_eq!(forecast.reserved.work, Cost::tokens(150));
        assert_eq!(forecast.reserved.tokens, Cost::tokens(500));
        assert_eq!(forecast.expected.tokens, Cost::tokens(150));
    }

    #[test]
    fn an_output_is_expected_to_keep_its_bound() {
        let forecast = forecast(Some(10));
        assert_eq!(forecast.reserved.work, Cost::tokens(110));
        assert_eq!(forecast.reserved.tokens, Cost::tokens(110));
    }

    #[test]
    fn an_unread_answer_costs_what_the_model_makes_in_its_time() {
        let rates = OutputRates::new();
        let route = RouteHash::of(&KeySeed([7; 16]), "m", "/v1/chat/completions");
        let with_route = |forecast: RequestForecast| RequestForecast {
            learned: CostForecast { route: Some(route), ..forecast.learned },
            ..forecast
        };
        let [bounded, unbounded] = [Some(400), None].map(forecast).map(with_route);
        let second = Nanos::from_secs(1);
        let output = |forecast: &RequestForecast, seconds: u64| {
            let cost = forecast.unread(Nanos(second.0 * seconds), &rates).expect("a model");
            cost.tokens.minus(Cost::tokens(100))
        };
        assert_eq!(output(&bounded, 7), Cost::tokens(50), "what was expected");
        rates.learn(route, RATED_OUTPUT_MIN.minus(Cost(1)), second, Time(0));
        assert_eq!(output(&bounded, 7), Cost::tokens(50), "too short to say anything");
        rates.learn(route, Cost::tokens(200), Nanos(second.0 * 2), Time(0));
        assert_eq!(output(&bounded, 3), Cost::tokens(300));
        assert_eq!(output(&bounded, 7), Cost::tokens(400), "no more than it asks for");
        assert_eq!(output(&unbounded, 7), Cost::tokens(700));
        let other = RouteHash::of(&KeySeed([7; 16]), "other", "/v1/chat/completions");
        let elsewhere = CostForecast { route: Some(other), ..unbounded.learned };
        let unknown = RequestForecast { learned: elsewhere, ..unbounded };
        assert_eq!(output(&unknown, 7), Cost::tokens(700), "the rate of other models");
        assert_eq!(RequestForecast::default().unread(second, &rates), None);
    }

    #[test]
    fn an_output_without_a_bound_may_be_longer_than_usual() {
        let forecast = forecast(None);
        assert_eq!(forecast.reserved.tokens, Cost::tokens(100 + 256), "the least");
        let learned =
            CostForecast { cost: Cost::tokens(500), spread: Cost::tokens(20), ..forecast.learned };
        let longer = RequestForecast::of_model(&call(None), learned, None);
        assert_eq!(longer.reserved.tokens, Cost::tokens(100 + 500 + 3 * 20));
    }
}

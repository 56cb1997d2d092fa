//! The handles for requests to language models: tokens, money, and how the tokens were known.
//!
//! The engine counts each request once, when its account is settled. The time to the first byte is
//! counted by tier: `tiers.rs`. `telemetry::metrics` has the meaning of each metric.

use crate::metrics::{MODEL_REQUESTS, MONEY, TOKENS};
use crate::registry::{Counter, Registry};
use evenkeel_core::units::Cost;

/// How the tokens of an answer are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// The answer states them.
    Stated,
    /// They were counted in the answer, or follow from its length.
    Counted,
    /// The answer could not be read, or there was none: the expected tokens are charged.
    Assumed,
    /// No tokens were used: the request failed, or was not sent to the backend.
    None,
}

/// The label value of every [`TokenSource`], in the order of the enum.
const SOURCE_LABELS: [&str; 4] = ["stated", "counted", "assumed", "none"];

/// The tokens that one request has used, each in one number only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Tokens of the prompt that the backend did not have in its cache.
    pub prompt: u64,
    /// Tokens of the prompt that the backend had in its cache.
    pub cached: u64,
    /// Tokens of the output.
    pub output: u64,
}

impl TokenCounts {
    /// The labels of the numbers, in the order of [`TokenCounts::by_kind`].
    pub const KINDS: [&'static str; 3] = ["prompt", "cached", "output"];

    /// The numbers, in the order of [`TokenCounts::KINDS`].
    #[must_use]
    pub const fn by_kind(self) -> [u64; 3] {
        [self.prompt, self.cached, self.output]
    }
}

/// What is counted of requests to language models.
#[derive(Debug)]
pub struct ModelCounts {
    tokens: [Counter; TokenCounts::KINDS.len()],
    money: Counter,
    requests: [Counter; SOURCE_LABELS.len()],
}

impl ModelCounts {
    /// Makes the handles.
    pub fn new(registry: &Registry) -> ModelCounts {
        ModelCounts {
            tokens: TokenCounts::KINDS.map(|kind| registry.counter(&TOKENS, &[kind])),
            money: registry.nanos(&MONEY, &[]),
            requests: SOURCE_LABELS.map(|source| registry.counter(&MODEL_REQUESTS, &[source])),
        }
    }

    /// Counts a request that is over. `tokens` are those that were stated or counted, and zero
    /// otherwise; `money` is what it was charged.
    pub fn record(&self, source: TokenSource, tokens: TokenCounts, money: Cost) {
        self.requests[source as usize].increment(1);
        for (counter, count) in self.tokens.iter().zip(tokens.by_kind()) {
            counter.increment(count);
        }
        self.money.increment(money.0);
    }

    /// The number of tokens of each kind so far, in the order of [`TokenCounts::KINDS`].
    pub fn tokens(&self) -> [u64; TokenCounts::KINDS.len()] {
        self.tokens.each_ref().map(Counter::get)
    }

    /// The number of requests whose tokens were known in this way.
    pub fn requests(&self, source: TokenSource) -> u64 {
        self.requests[source as usize].get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_is_counted_once_and_each_request_by_its_source() {
        let registry = Registry::default();
        let counts = ModelCounts::new(&registry);
        let used = TokenCounts { prompt: 60, cached: 40, output: 50 };
        counts.record(TokenSource::Stated, used, Cost(2_500_000));
        counts.record(TokenSource::Counted, used, Cost(500_000));
        counts.record(TokenSource::None, TokenCounts::default(), Cost::ZERO);
        assert_eq!(counts.tokens(), [120, 80, 100]);
        assert_eq!(registry.counter(&TOKENS, &["cached"]).get(), 80);
        let sources = ["stated", "counted", "assumed", "none"];
        let requests = sources.map(|source| registry.counter(&MODEL_REQUESTS, &[source]).get());
        assert_eq!(requests, [1, 1, 0, 1]);
        assert_eq!(counts.requests(TokenSource::Stated), 1);
        assert_eq!(registry.nanos(&MONEY, &[]).get(), 3_000_000);
    }
}

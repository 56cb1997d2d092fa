//! One decision, as it is logged.
//!
//! A line has the same fields for every verdict, so lines can be searched and counted. Text and
//! JSON use the same field names. `Watch` and `sampler` decide which lines are written.

pub mod notice;

use evenkeel_core::meter::Measure;
use evenkeel_core::units::{Cost, Nanos, SECOND};
use std::net::IpAddr;

/// A decision to hold, delay or refuse a request.
#[derive(Clone, Debug)]
pub struct Decision<'a> {
    /// The verdict: `hold`, `delay`, `queue`, `reject` or `deny`.
    pub verdict: &'static str,
    /// The name of the limit.
    pub limit: &'a str,
    /// The name of the bucket.
    pub key: &'a str,
    /// The address of the client, if it has one.
    pub client: Option<IpAddr>,
    /// The remaining budget, in nano-units of cost; `None` if unknown.
    pub level: Option<i64>,
    /// How long the request has to wait.
    pub wait: Nanos,
    /// The cost of the request so far, and how it was measured; `None` before the request ran.
    pub cost: Option<(Cost, Measure)>,
    /// Why the queue refused the request; `None` for all other decisions.
    pub refused: Option<QueueRefusal>,
    /// The request, if a rule denies it; `None` for all other decisions.
    pub denied: Option<DeniedRequest<'a>>,
    /// Shadow mode: the decision was made but not enforced.
    pub shadow: bool,
}

/// A refusal by the queue, which no limit has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRefusal {
    /// The setting of `proxy.queue` that was exceeded: `wait_max` or `len_max`.
    pub cause: &'static str,
    /// How long the request waited.
    pub waited: Nanos,
}

/// A request that a rule denies. No limit has a bucket that would say what it is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeniedRequest<'a> {
    /// Its path without the query, readable and of bounded length.
    pub path: &'a str,
    /// Its `User-Agent`, likewise; empty if it has none.
    pub agent: &'a str,
}

impl Decision<'_> {
    /// Writes the line. Levels and costs are in CPU-seconds, or thousands of weighted tokens;
    /// levels of a limit with `rate`, in its unit (requests, thousands of tokens, money). Waits
    /// are in seconds. Unknown fields are left out.
    pub fn log(&self) {
        let message = match (self.verdict, self.shadow) {
            ("hold", false) => "answer held",
            ("hold", true) => "answer would be held",
            ("delay", false) => "request delayed",
            ("delay", true) => "request would be delayed",
            ("queue", false) => "request waited for room",
            ("queue", true) => "request would wait for room",
            (_, false) => "request refused",
            (_, true) => "request would be refused",
        };
        tracing::info!(
            target: "evenkeel::decision",
            verdict = self.verdict,
            limit = self.limit,
            key = self.key,
            client = self.client.map(tracing::field::display),
            level = self.level.map(|level| rounded(level as f64 / SECOND as f64)),
            wait = rounded(self.wait.as_secs_f64()),
            cost = self.cost.map(|(cost, _)| rounded(cost.as_units())),
            measured = self.cost.map(|(_, measure)| measure.name()),
            cause = self.refused.map(|refused| refused.cause),
            waited_ms = self.refused.map(|refused| refused.waited.0 / 1_000_000),
            path = self.denied.map(|denied| denied.path),
            agent = self.denied.map(|denied| denied.agent),
            shadow = self.shadow,
            "{message}"
        );
    }
}

/// Rounds to microseconds, which is exact enough for people, and short.
pub(super) fn rounded(seconds: f64) -> f64 {
    // Adding 0.0 turns -0 into 0.
    (seconds * 1e6).round() / 1e6 + 0.0
}

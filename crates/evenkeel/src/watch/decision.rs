//! One decision, as it is logged.
//!
//! A line has the same fields whatever the verdict, so that it can be searched and counted; text
//! and JSON have the same names. Which lines are written: `watch` and `sampler`.

pub mod notice;

use evenkeel_core::meter::Measure;
use evenkeel_core::units::{Cost, Nanos, SECOND};
use std::net::IpAddr;

/// Why a request was held, delayed or refused.
#[derive(Clone, Debug)]
pub struct Decision<'a> {
    /// `hold`, `delay`, `queue` or `reject`.
    pub verdict: &'static str,
    /// The limit's name.
    pub limit: &'a str,
    /// The bucket's name.
    pub key: &'a str,
    /// Who asked, where it has an address.
    pub client: Option<IpAddr>,
    /// What was left, in nano-units of cost.
    pub level: Option<i64>,
    /// How long it has to wait.
    pub wait: Nanos,
    /// What the request cost so far, and how that was measured; `None` before it ran.
    pub cost: Option<(Cost, Measure)>,
    /// Decided but not enforced.
    pub shadow: bool,
}

impl Decision<'_> {
    /// Writes the line. Levels and costs are in CPU-seconds (a limit in requests: in requests),
    /// waits in seconds; what is not known is left out.
    pub fn log(&self) {
        let message = match self.verdict {
            "hold" => "answer held",
            "delay" => "request delayed",
            "queue" => "request waited for room",
            _ => "request refused",
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
            shadow = self.shadow,
            "{message}"
        );
    }
}

/// To microseconds: enough for people, and short.
pub(super) fn rounded(seconds: f64) -> f64 {
    // The sum turns -0 into 0.
    (seconds * 1e6).round() / 1e6 + 0.0
}

//! The notice of a block: one log line when a client reaches the maximum of a window.
//!
//! The line answers the first questions of an operator: which client, how much in how long, how
//! busy the machine was, and what the client calls itself. Each request refused during the block
//! has its own line (`decision`). `Watch` and `telemetry::sampler` decide which notices are
//! written.

use super::rounded;
use evenkeel_core::meter::Measure;
use evenkeel_core::units::{Cost, Nanos};
use std::net::IpAddr;

/// A block that begins.
#[derive(Clone, Debug)]
pub struct BlockNotice<'a> {
    /// The name of the limit.
    pub limit: &'a str,
    /// The name of the bucket.
    pub key: &'a str,
    /// The client that made the request with which the block begins.
    pub client: IpAddr,
    /// The sum charged within the window.
    pub sum: Cost,
    /// The sum at which a block begins.
    pub max: Cost,
    /// The length of the window, which is also the length of the block.
    pub window: Nanos,
    /// How the cost of the last request was measured.
    pub measure: Measure,
    /// The `User-Agent` of the client; empty if it sent none.
    pub agent: &'a str,
    /// Shadow mode: the block was decided but is not enforced.
    pub shadow: bool,
}

impl BlockNotice<'_> {
    /// Writes the line. Sums are in CPU-seconds, the window in seconds; `load` is the machine's
    /// load average over 1, 5 and 15 minutes.
    pub fn log(&self) {
        let agent = if self.agent.is_empty() { "unknown" } else { self.agent };
        tracing::warn!(
            target: "evenkeel::decision",
            limit = self.limit,
            key = self.key,
            client = %self.client,
            sum = rounded(self.sum.as_units()),
            max = rounded(self.max.as_units()),
            window = rounded(self.window.as_secs_f64()),
            load = load_average(),
            agent,
            measured = self.measure.name(),
            shadow = self.shadow,
            "client blocked"
        );
    }
}

/// The load averages, as in the first three fields of `/proc/loadavg`.
fn load_average() -> String {
    let loads = rustix::system::sysinfo().loads;
    let texts = loads.map(|load| format!("{:.2}", load as f64 / 65_536.0));
    texts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_average_is_three_numbers() {
        let text = load_average();
        let numbers = text.split(' ').map(|number| number.parse::<f64>().expect("a number"));
        assert_eq!(numbers.filter(|load| *load >= 0.0).count(), 3, "{text}");
    }
}

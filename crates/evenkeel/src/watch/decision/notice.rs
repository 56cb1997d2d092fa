//! The notice of a block: one line when a client has reached the most that a window allows.
//!
//! It says what an operator asks first: who, how much in how long, how busy the machine was, and
//! what the client calls itself. What is refused during the block has a line of its own each
//! (`decision`). Which notices are written: `watch` and `watch::sampler`.

use super::rounded;
use evenkeel_core::meter::Measure;
use evenkeel_core::units::{Cost, Nanos};
use std::net::IpAddr;

/// A block that starts.
#[derive(Clone, Debug)]
pub struct Notice<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// The bucket's name.
    pub key: &'a str,
    /// Whose request started it.
    pub client: IpAddr,
    /// What was charged within the window.
    pub sum: Cost,
    /// What may not be reached.
    pub max: Cost,
    /// How long the window is, and the block.
    pub window: Nanos,
    /// How the last cost came to be known.
    pub measure: Measure,
    /// What the client calls itself; empty if it does not.
    pub agent: &'a str,
    /// Decided but not enforced.
    pub shadow: bool,
}

impl Notice<'_> {
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

/// As /proc/loadavg begins.
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

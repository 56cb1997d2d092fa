//! The units of work, levels and costs, and their words for people.
//!
//! In the JSON of a snapshot, tokens are in thousands, as a CPU-second is one: a share of a backend
//! means the same with both. Tables and lines have single tokens.

use serde::{Deserialize, Serialize};

/// The name of the unit of levels in CPU-seconds.
pub const UNIT_CPU: &str = "cpu";
/// The name of the unit of levels in requests, or in any other number that is counted.
pub const UNIT_HITS: &str = "hits";
/// The unit of levels in thousands of tokens of language models.
pub const UNIT_TOKENS: &str = "tokens";
/// The unit of levels in money.
pub const UNIT_MONEY: &str = "money";
/// The number of tokens in one unit of a snapshot.
pub(super) const TOKENS: f64 = 1_000.0;

/// The unit of a backend's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadUnit {
    /// CPU-seconds.
    #[default]
    Cpu,
    /// Thousands of weighted tokens of language models (`cost: tokens`).
    Tokens,
    /// Seconds for which programs hold turns.
    Slots,
}

impl LoadUnit {
    /// An amount of work in words: `80.5 CPU-s`, `80500 tokens`.
    #[must_use]
    pub fn work(self, amount: f64) -> String {
        match self {
            LoadUnit::Cpu => format!("{amount:.1} CPU-s"),
            LoadUnit::Slots => format!("{amount:.1} s"),
            LoadUnit::Tokens => format!("{:.0} tokens", amount * TOKENS),
        }
    }
}

/// The unit of the figures of a limit, as tables show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownUnit {
    /// CPU-seconds.
    CpuSeconds,
    /// Requests, or any other number that is counted.
    Hits,
    /// Weighted tokens.
    WeightedTokens,
    /// Tokens of prompts and outputs as they are.
    Tokens,
    /// Money.
    Money,
}

impl ShownUnit {
    /// The unit of a limit that counts in `unit`, with a backend that counts its work in `work`.
    #[must_use]
    pub fn of(unit: &str, work: LoadUnit) -> ShownUnit {
        match (unit, work) {
            (UNIT_HITS, _) => ShownUnit::Hits,
            (UNIT_TOKENS, _) => ShownUnit::Tokens,
            (UNIT_MONEY, _) => ShownUnit::Money,
            (_, LoadUnit::Tokens) => ShownUnit::WeightedTokens,
            (_, LoadUnit::Cpu | LoadUnit::Slots) => ShownUnit::CpuSeconds,
        }
    }

    /// The unit of the limit, if the heads of the columns do not show it.
    #[must_use]
    pub const fn words(self) -> Option<&'static str> {
        match self {
            ShownUnit::CpuSeconds | ShownUnit::Hits => None,
            ShownUnit::WeightedTokens => Some("weighted tokens"),
            ShownUnit::Tokens => Some("tokens"),
            ShownUnit::Money => Some("money"),
        }
    }

    /// The head of a column of costs per second.
    #[must_use]
    pub const fn head(self) -> &'static str {
        match self {
            ShownUnit::CpuSeconds => "Cpu/s",
            ShownUnit::Hits => "Hits/s",
            ShownUnit::WeightedTokens | ShownUnit::Tokens => "Tokens/s",
            ShownUnit::Money => "Money/s",
        }
    }

    /// An amount of a snapshot as tables show it; `digits` decimals for CPU-seconds and requests.
    #[must_use]
    pub fn amount(self, amount: f64, digits: usize) -> String {
        match self {
            ShownUnit::CpuSeconds | ShownUnit::Hits => format!("{amount:.digits$}"),
            ShownUnit::WeightedTokens | ShownUnit::Tokens => format!("{:.0}", amount * TOKENS),
            ShownUnit::Money => format!("{amount:.4}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_has_its_figures() {
        let figures = |unit: ShownUnit| unit.amount(-1.234_56, 2);
        assert_eq!(figures(ShownUnit::CpuSeconds), "-1.23");
        assert_eq!(figures(ShownUnit::Hits), "-1.23");
        assert_eq!(figures(ShownUnit::WeightedTokens), "-1235");
        assert_eq!(figures(ShownUnit::Tokens), "-1235");
        assert_eq!(figures(ShownUnit::Money), "-1.2346");
        assert_eq!(LoadUnit::Cpu.work(80.54), "80.5 CPU-s");
        assert_eq!(LoadUnit::Tokens.work(80.54), "80540 tokens");
    }
}

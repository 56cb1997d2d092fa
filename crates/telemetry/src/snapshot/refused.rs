//! A refused configuration, as `/api/top` returns it and `doctor`, `top` and the page say it.
//!
//! It is there from the first reload that is refused until one succeeds.

use super::length::length;
use serde::{Deserialize, Serialize};

/// The configuration on disk, which is not in force because it has faults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RefusedConfig {
    /// The first fault of the last refusal, with its place.
    pub fault: String,
    /// The number of its faults.
    pub faults: usize,
    /// What applies until a configuration is taken over, such as `the previous one is in force`.
    pub meanwhile: String,
    /// The time of the first refusal since a configuration was taken over, in seconds since the
    /// Unix epoch.
    pub since: f64,
    /// Seconds since then.
    pub seconds: f64,
}

/// One line for people: `configuration on disk refused for 4 min, the previous one is in force:
/// evenkeel.yaml:10:3: ... (and 2 more)`.
impl std::fmt::Display for RefusedConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RefusedConfig { fault, faults, meanwhile, seconds, .. } = self;
        write!(f, "configuration on disk refused for {}, ", length(*seconds))?;
        write!(f, "{meanwhile}: {fault}")?;
        match faults.saturating_sub(1) {
            0 => Ok(()),
            more => write!(f, " (and {more} more)"),
        }
    }
}

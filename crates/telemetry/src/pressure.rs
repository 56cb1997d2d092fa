//! The log lines with which pressure at a backend begins and ends: clients in credit ask for more
//! than it can do.
//!
//! Pressure ends only after ten quiet seconds, so there are at most twelve of these lines a minute.
//! What follows from pressure: `evenkeel_core::queue::standing`.

use evenkeel_core::units::{Cost, Nanos};

/// A change that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PressureNotice {
    /// The pressure begins.
    Begins {
        /// The number of waiting requests in credit.
        waiting: usize,
    },
    /// The pressure has ended.
    Ends {
        /// How long it lasted, with the quiet seconds at its end.
        lasted: Nanos,
        /// The cost of requests of strangers in this time; `None` if another instance has it.
        strangers_cost: Option<Cost>,
        /// The number of waiting pages that were sent in this time; `None` likewise.
        pages: Option<u64>,
    },
}

/// A group of strangers that begins to wait behind all others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurningNotice<'a> {
    /// What its requests have in common, in words.
    pub group: &'a str,
    /// The same as a condition of the configuration.
    pub when: &'a str,
    /// Its part of what strangers ask for, from 0 to 1.
    pub cost_part: f64,
    /// The largest part of returning clients that may be like it, from 0 to 1.
    pub clients_part: f64,
}

impl BurningNotice<'_> {
    /// Writes the line.
    pub fn log(&self) {
        let percent = |part: f64| (part * 1e3).round() / 10.0;
        tracing::warn!(
            target: "evenkeel::queue",
            group = self.group,
            when = self.when,
            percent_of_strangers = percent(self.cost_part),
            percent_of_clients = percent(self.clients_part),
            "strangers of this group wait behind all others: few returning clients are like them"
        );
    }
}

impl PressureNotice {
    /// Writes the line.
    pub fn log(&self) {
        match self {
            PressureNotice::Begins { waiting } => tracing::warn!(
                target: "evenkeel::queue", waiting,
                "swarm or crowd: clients ask for more than the backend can do; returning \
                 clients go first"
            ),
            PressureNotice::Ends { lasted, strangers_cost, pages } => tracing::info!(
                target: "evenkeel::queue",
                lasted = lasted.as_secs_f64().round(),
                strangers_cost = strangers_cost.map(|cost| (cost.as_units() * 10.0).round() / 10.0),
                pages,
                "swarm or crowd over: the backend can serve all requests again"
            ),
        }
    }
}

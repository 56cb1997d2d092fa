//! What can be seen of a running Tollgate: counters, decision log, doctor.

pub mod decision;

use decision::Decision;
use metrics::{Counter, Histogram};
use tollgate_core::units::Cost;

/// Handles of everything that is counted on the path of a request.
pub struct Watch {
    /// Requests that passed at once.
    pub allowed: Counter,
    /// Cost headers that could not be believed.
    pub cost_header_faults: Counter,
    cost: Histogram,
}

impl Watch {
    /// A request was held, delayed or refused.
    pub fn decided(&self, decision: &Decision<'_>) {
        let _ = decision;
    }

    /// A request was charged.
    pub fn charged(&self, cost: Cost) {
        self.cost.record(cost.as_units());
    }
}

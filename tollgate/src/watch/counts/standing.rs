//! How those in credit fare beside those in debt: how long their requests take, and what they cost.
//!
//! This is what a throttle is for, so it is counted on its own. Who stands how is the engine's
//! word; what the metric means: `watch::metrics`.

use crate::watch::metrics::REQUEST_TOOK;
use crate::watch::registry::{Counter, Histogram, Registry};
use tollgate_core::units::{Cost, Nanos};

/// How a client stood when its request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Within all its limits.
    Credit,
    /// Over one of them, or held up by one.
    Debt,
}

impl Side {
    /// Both, in the order in which they are counted.
    pub const ALL: [Side; 2] = [Side::Credit, Side::Debt];

    /// As it is written in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Side::Credit => "credit",
            Side::Debt => "debt",
        }
    }
}

/// What is counted of each [`Side`].
#[derive(Debug)]
pub struct StandingCounts {
    took: [Histogram; 2],
    spent: [Counter; 2],
}

impl StandingCounts {
    /// The handles.
    #[must_use]
    pub fn new(registry: &Registry) -> StandingCounts {
        let took = Side::ALL.map(|side| registry.histogram(&REQUEST_TOOK, &[side.name()]));
        StandingCounts { took, spent: Default::default() }
    }

    /// A request that cost `cost` has ended, `took` after it came; `None`: that says nothing.
    pub fn served(&self, side: Side, cost: Cost, took: Option<Nanos>) {
        self.spent[side as usize].increment(cost.0);
        if let Some(took) = took {
            self.took[side as usize].record(took.0);
        }
    }

    /// How long requests of this side took.
    #[must_use]
    pub fn took(&self, side: Side) -> &Histogram {
        &self.took[side as usize]
    }

    /// What they have cost so far, in nano-units.
    #[must_use]
    pub fn spent(&self, side: Side) -> u64 {
        self.spent[side as usize].get()
    }
}

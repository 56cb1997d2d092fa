//! What a client is told of its quotas: how many requests in how long, how many are left, when all
//! are there again.
//!
//! Limits in requests alone, and of those the ones that refill; what CPU time is left would tell
//! nobody anything. Nothing is decided here. How it is written: `doors/proxy/headers.rs`.

use super::{Charge, Lane, Refusal};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::limit::{Limit, Unit};

/// A quota, and how a client stands by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The name of the limit.
    pub name: String,
    /// Requests at most.
    pub requests: u64,
    /// In so many seconds.
    pub window_secs: u64,
    /// Requests left.
    pub left: u64,
    /// After so many seconds all are there again; of a refused one, the next.
    pub reset_secs: u64,
}

/// The requests that a limit lets a client save up, and how many it gets a second.
fn figures(limit: &Limit) -> Option<(f64, f64)> {
    match &limit.algorithm {
        Algorithm::Debt(debt) if limit.unit == Unit::Hits && !limit.shadow => {
            Some((debt.burst().as_units(), debt.rate().per_second()))
        }
        _ => None,
    }
}

fn seconds(of: f64) -> u64 {
    // A hair above a whole number is that number, and no request waits for no time at all.
    (of - 1e-6).ceil().max(1.0) as u64
}

fn quota(limit: &Limit, left: f64, reset_secs: impl Fn(f64, f64) -> u64) -> Option<Quota> {
    let (burst, rate) = figures(limit)?;
    let left = (left + 1e-6).clamp(0.0, burst);
    Some(Quota {
        name: limit.name.to_string(),
        requests: burst as u64,
        window_secs: seconds(burst / rate),
        left: left as u64,
        reset_secs: reset_secs(burst - left, rate),
    })
}

impl Charge {
    /// How its client stands by each limit in requests that counts it; in shadow nobody is told.
    #[must_use]
    pub fn quotas(&self) -> Vec<Quota> {
        let now = self.lane.0.now();
        let limiter = &self.rules.limiter;
        let keys = self.ticket.keys().as_slice().iter().filter(|_| !self.rules.shadow);
        let standing = keys.filter_map(|key| {
            let index = usize::from(key.limit);
            let limit = limiter.limits().get(index).filter(|limit| figures(limit).is_some())?;
            let level = limiter.standing_of(index, key.hash, now).level?;
            quota(limit, level as f64 / 1e9, |missing, rate| seconds(missing / rate))
        });
        standing.collect()
    }
}

impl Lane {
    /// The quota that a client was refused by, if it is one of requests.
    #[must_use]
    pub fn quota_of(&self, refusal: &Refusal) -> Option<Quota> {
        let rules = self.0.engine.rules.load();
        let limit = rules.limiter.limits().iter().find(|limit| *limit.name == *refusal.limit)?;
        quota(limit, 0.0, |_, _| refusal.retry_after_secs)
    }
}

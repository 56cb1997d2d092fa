//! The quotas that a client is shown: the number of requests or tokens per window, the number left,
//! and the time until all are available again.
//!
//! Only limits that refill and count requests or tokens have a quota. The CPU time or the money
//! that is left would be of no use to a client. No decision is made here. The header fields:
//! `proxy/src/headers.rs`, and for language models `models/src/answer.rs`.

use super::Charge;
use crate::lane::EngineLane;
use crate::rules::RequestRefusal;
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::limit::{Limit, LimitUnit};

/// A quota, and the rest of it that a client has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The name of the limit.
    pub name: String,
    /// The unit of the limit: requests, or tokens of language models.
    pub unit: LimitUnit,
    /// The number of requests or tokens per window.
    pub limit: u64,
    /// The length of the window, in seconds.
    pub window_secs: u64,
    /// The number of requests or tokens left.
    pub left: u64,
    /// The number of seconds until all of them are available again; after a refusal, until the next
    /// request may pass.
    pub reset_secs: u64,
}

/// The burst of a limit in requests or tokens, and its rate per second; `None` if the limit has no
/// quota.
fn figures(limit: &Limit) -> Option<(f64, f64)> {
    let per_unit = per_unit(limit.unit)?;
    let bucket = match &limit.algorithm {
        Algorithm::Debt(bucket) => bucket,
        Algorithm::Quota(quota) => quota.bucket(),
        _ => return None,
    };
    let figures = (bucket.burst().as_units() * per_unit, bucket.rate().per_second() * per_unit);
    (!limit.shadow).then_some(figures)
}

/// The requests or tokens that are one unit of cost; `None` if the limit counts neither.
fn per_unit(unit: LimitUnit) -> Option<f64> {
    match unit {
        LimitUnit::Cpu | LimitUnit::Money => None,
        LimitUnit::Hits => Some(1.0),
        LimitUnit::Tokens => Some(1e3),
    }
}

fn seconds(of: f64) -> u64 {
    // A value just above a whole number is rounding error, and the result is at least one second.
    (of - 1e-6).ceil().max(1.0) as u64
}

fn quota(limit: &Limit, left: f64, reset_secs: impl Fn(f64, f64) -> u64) -> Option<Quota> {
    let (burst, rate) = figures(limit)?;
    let left = (left + 1e-6).clamp(0.0, burst);
    Some(Quota {
        name: limit.name.to_string(),
        unit: limit.unit,
        limit: burst as u64,
        window_secs: seconds(burst / rate),
        left: left as u64,
        reset_secs: reset_secs(burst - left, rate),
    })
}

impl Charge {
    /// The client's quotas under all limits in requests or tokens that count this request; empty
    /// in shadow.
    pub fn quotas(&self) -> Vec<Quota> {
        let now = self.lane.0.now();
        let limiter = &self.request.rules.limiter;
        let keys = self.ticket.keys().as_slice().iter().filter(|_| !self.request.rules.shadow);
        let standing = keys.filter_map(|key| {
            let index = usize::from(key.limit);
            let limit = limiter.limits().get(index).filter(|limit| figures(limit).is_some())?;
            let level = limiter.standing_of(index, key.hash, now).level?;
            let left = level as f64 / 1e9 * per_unit(limit.unit)?;
            quota(limit, left, |missing, rate| seconds(missing / rate))
        });
        standing.collect()
    }
}

impl EngineLane {
    /// The quota of the limit that refused a client, if that limit has one.
    pub fn quota_of(&self, refusal: &RequestRefusal) -> Option<Quota> {
        let rules = self.0.engine.shards.rules();
        let limit = rules.limiter.limits().iter().find(|limit| *limit.name == *refusal.limit)?;
        quota(limit, 0.0, |_, _| refusal.retry_after_secs)
    }
}

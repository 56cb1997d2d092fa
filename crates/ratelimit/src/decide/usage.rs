//! Charges usage that Envoys report to the counters of the rules, for the rate limit quota service.
//!
//! A bucket's name is a set of pairs without an order, so the pairs are tried in any order that the
//! rules have. The reported requests are charged even if they exceed the limit, because they
//! already passed. How much each Envoy may let pass next is decided in `quota`.

use super::matching::{self, DescriptorMatch};
use super::{RatelimitDecider, Time};
use crate::rules::RuleLimit;
use evenkeel_core::key::KeyHash;
use evenkeel_core::units::{Nanos, SECOND};
use evenkeel_core::windows::{CounterWindow, Hit, WindowAlgorithm, WindowPolicy};
use std::sync::atomic::Ordering::Relaxed;

/// The usage of a bucket since its last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketUsage {
    /// Requests that passed.
    pub allowed: u64,
    /// Requests that were refused.
    pub denied: u64,
    /// The time since the last report.
    pub elapsed: Nanos,
    /// The largest number of these requests that can have passed before the current window began.
    pub before: u64,
}

/// The limit that applies to a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketBound {
    /// No limit applies.
    Free,
    /// A limit, and the key of its counter.
    Limit(KeyHash, RuleLimit),
}

/// The state of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterStanding {
    /// The number of requests that may still pass in this window.
    pub left: u32,
    /// The end of the window, in seconds since the epoch.
    pub end: u32,
    /// The time until the end of the window, in whole seconds, at least 1.
    pub seconds_left: u32,
    /// The time since the window began.
    pub begun: Nanos,
}

impl BucketUsage {
    /// The number of requests that passed within the current window. It assumes that requests were
    /// spread evenly over the time since the last report, with at most [`BucketUsage::before`] of
    /// them before the window.
    fn within(&self, hit: &Hit, now: Time) -> u64 {
        let begun = begun(hit.window, now);
        if hit.algorithm != WindowAlgorithm::Fixed || self.elapsed <= begun {
            return self.allowed;
        }
        let part = u128::from(self.allowed) * u128::from(begun.0) / u128::from(self.elapsed.0);
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        part.max(self.allowed.saturating_sub(self.before))
    }
}

/// The time since a window began.
fn begun(window: CounterWindow, now: Time) -> Nanos {
    let begin = u64::from(window.end.saturating_sub(window.seconds)) * SECOND;
    now.since(Time(begin))
}

impl RatelimitDecider {
    /// Charges the usage of a bucket to the rule that it matches. Returns the limit that applies to
    /// the bucket, and the number of requests that passed in the current window. Requests from
    /// before this window are not charged to it. In shadow mode the bucket is charged, but no limit
    /// applies to it. `name` is put into the order of the rules.
    pub fn charge(
        &self,
        domain: &str,
        name: &mut [(&str, &str)],
        used: BucketUsage,
        now: Time,
    ) -> (BucketBound, u64) {
        let rules = self.rules.load();
        let settings = self.settings.load();
        let rules = rules.as_deref().and_then(|rules| rules.domain(domain));
        let rule = rules.and_then(|rules| rules.rule_in_any_order(name));
        let DescriptorMatch::Limited(limited) = DescriptorMatch::by_rule(rule) else {
            return (BucketBound::Free, used.allowed);
        };
        let BucketUsage { allowed, denied, .. } = used;
        let hit = self.counter_domain(domain).hit(&limited, name, (0, false), now);
        let counted = used.within(&hit, now);
        let hits = u32::try_from(counted).unwrap_or(u32::MAX);
        let hit = self.force(Hit { hits, ..hit }, now);
        self.report_to_store(&limited, hit, (domain, name));
        if let Some(mut look) = self.counters.look() {
            matching::sample(&mut look, &hit, domain, name);
        }
        let tally = self.tally(&limited, domain, name);
        let near = limited.near(settings.near_limit_ratio);
        tally.attribute(hit.before.into(), hit.after.into(), hit.limit.into(), near);
        tally.over_limit.fetch_add(denied, Relaxed);
        let charged = u64::from(hit.after - hit.before);
        tally.other_hits.fetch_add(allowed.saturating_sub(charged), Relaxed);
        let shadow = settings.shadow || limited.rule.is_some_and(|rule| rule.shadow);
        let bound = match shadow {
            true => BucketBound::Free,
            false => BucketBound::Limit(hit.key, limited.limit),
        };
        (bound, counted)
    }

    /// The state of a counter; no hit is counted.
    #[must_use]
    pub fn standing(&self, key: KeyHash, limit: RuleLimit, now: Time) -> CounterStanding {
        let window = limit.length.window(now);
        let mut hit = [Hit::new(key, window, limit.requests, 0)];
        hit[0].algorithm = limit.algorithm;
        self.counters.count(&mut hit, &mut Vec::new(), WindowPolicy::default(), now);
        CounterStanding {
            left: hit[0].remaining(),
            end: window.end,
            seconds_left: window.left(now),
            begun: begun(window, now),
        }
    }

    /// Counts hits that already happened, whether they exceed the limit or not. A token bucket
    /// cannot go below zero, so it is emptied.
    fn force(&self, hit: Hit, now: Time) -> Hit {
        let mut hits = [Hit { hits: 0, ..hit }];
        let mut room = Vec::new();
        if hit.algorithm == WindowAlgorithm::Bucket {
            self.counters.count(&mut hits, &mut room, WindowPolicy::default(), now);
            hits[0].hits = hit.hits.min(hits[0].remaining());
        } else {
            hits[0] = Hit { limit: u32::MAX, ..hit };
        }
        self.counters.count(&mut hits, &mut room, WindowPolicy::default(), now);
        let [counted] = hits;
        Hit { limit: hit.limit, ..counted }
    }
}

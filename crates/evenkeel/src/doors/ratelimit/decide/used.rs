//! What others let pass, charged to the counters of the rules: for the rate limit quota service.
//!
//! A bucket's name is a set of pairs, so they are taken in whatever order the rules have them. What
//! passed is charged whether the limit allowed it or not: it has happened. Who may let how much
//! pass next is `quota`'s business.

use super::meet::Met;
use super::{Decider, Time};
use crate::doors::ratelimit::rules::{Limit, Rules};
use evenkeel_core::key::KeyHash;
use evenkeel_core::units::{Nanos, SECOND};
use evenkeel_core::windows::{Algorithm, Hit, Policy, Window};
use std::sync::atomic::Ordering::Relaxed;

/// What was used of a bucket since it was last reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Requests that passed.
    pub allowed: u64,
    /// Requests that were refused.
    pub denied: u64,
    /// When that was, up to now.
    pub elapsed: Nanos,
    /// The most that can have passed before the window that counts now began.
    pub before: u64,
}

/// What a bucket meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Nothing limits it.
    Free,
    /// A limit, and the counter that it counts in.
    Limit(KeyHash, Limit),
}

/// How a counter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// What may still pass in this window.
    pub left: u32,
    /// The second at which the window ends, since the epoch.
    pub end: u32,
    /// Until then, in whole seconds, at least 1.
    pub seconds_left: u32,
    /// Since it began.
    pub begun: Nanos,
}

impl Used {
    /// What passed within the window, if it passed evenly and no more before it than could.
    fn within(&self, hit: &Hit, now: Time) -> u64 {
        let begun = begun(hit.window, now);
        if hit.algorithm != Algorithm::Fixed || self.elapsed <= begun {
            return self.allowed;
        }
        let part = u128::from(self.allowed) * u128::from(begun.0) / u128::from(self.elapsed.0);
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        part.max(self.allowed.saturating_sub(self.before))
    }
}

/// How long a window has lasted.
fn begun(window: Window, now: Time) -> Nanos {
    let begin = u64::from(window.end.saturating_sub(window.seconds)) * SECOND;
    now.since(Time(begin))
}

impl Decider {
    /// Charges what a bucket used, and says what it meets, and how much of it was used in the
    /// window that counts now: what was used before it began is not held against this one. `name`
    /// is put into the order of the rules.
    pub fn charge(
        &self,
        domain: &str,
        name: &mut [(&str, &str)],
        used: Used,
        now: Time,
    ) -> (Bound, u64) {
        let rules = self.rules.load();
        let settings = self.settings.load();
        let Some(Met::Limited(mut limited)) = self.met(rules.as_deref(), domain, name, now) else {
            return (Bound::Free, used.allowed);
        };
        let Used { allowed, denied, .. } = used;
        let counted = used.within(&limited.hit, now);
        let hits = u32::try_from(counted).unwrap_or(u32::MAX);
        limited.hit = self.force(Hit { hits, ..limited.hit }, now);
        self.tell(&mut limited);
        if let Some(mut look) = self.counters.look() {
            limited.show(&mut look, domain, name);
        }
        let tally = limited.tally();
        tally.total_hits.fetch_add(allowed.saturating_add(denied), Relaxed);
        let Hit { before, after, .. } = limited.hit;
        let limit = limited.limit.requests;
        let near = (limit as f32 * settings.near_limit_ratio).floor() as u64;
        tally.attribute(before.into(), after.into(), limit.into(), near);
        tally.over_limit.fetch_add(denied, Relaxed);
        let shadow = settings.shadow || limited.rule.is_some_and(|rule| rule.shadow);
        let bound = if shadow { Bound::Free } else { Bound::Limit(limited.hit.key, limited.limit) };
        (bound, counted)
    }

    fn met<'r>(
        &self,
        rules: Option<&'r Rules>,
        domain: &str,
        name: &mut [(&str, &str)],
        now: Time,
    ) -> Option<Met<'r>> {
        let rule = rules?.domain(domain)?.rule_in_any_order(name)?;
        Some(self.by_rule(rule, domain, name, (0, false), now))
    }

    /// How a counter stands.
    #[must_use]
    pub fn standing(&self, key: KeyHash, limit: Limit, now: Time) -> Standing {
        let window = limit.length.window(now);
        let mut hit = [Hit::new(key, window, limit.requests, 0)];
        hit[0].algorithm = limit.algorithm;
        self.counters.count(&mut hit, &mut Vec::new(), Policy::default(), now);
        Standing {
            left: hit[0].remaining(),
            end: window.end,
            seconds_left: window.left(now),
            begun: begun(window, now),
        }
    }

    /// Counts hits that have happened, over the limit or not. A bucket of tokens cannot owe, so
    /// it is emptied.
    fn force(&self, hit: Hit, now: Time) -> Hit {
        let mut hits = [Hit { hits: 0, ..hit }];
        let mut room = Vec::new();
        if hit.algorithm == Algorithm::Bucket {
            self.counters.count(&mut hits, &mut room, Policy::default(), now);
            hits[0].hits = hit.hits.min(hits[0].remaining());
        } else {
            hits[0] = Hit { limit: u32::MAX, ..hit };
        }
        self.counters.count(&mut hits, &mut room, Policy::default(), now);
        let [counted] = hits;
        Hit { limit: hit.limit, ..counted }
    }
}

//! The metrics of each rule, under the names of the reference server.
//!
//! A rule keeps its metrics over reloads because they are found by its path. Some paths depend on
//! what a request says (`detailed_metric`, `value_to_metric`, limits that the request carries). The
//! number of these paths is bounded, and requests beyond the bound are counted together, so that no
//! client can fill the memory with names. How metrics are sent: `metrics`.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The maximum number of paths made from requests; further paths are counted under
/// [`OTHER_PATHS_NAME`].
pub const PATHS_MAX: usize = 20_000;

/// The name after the domain under which paths beyond the bound are counted.
pub const OTHER_PATHS_NAME: &str = "other";

/// The metrics of one path.
#[derive(Debug, Default)]
pub struct RuleTally {
    /// Hits that are neither in `over_limit` nor in `within_limit`: the first hits of a request
    /// that went over the limit, hits that another limit kept from being counted, and hits without
    /// a limit. Hits that are given back are left out.
    pub other_hits: AtomicU64,
    /// Hits over the limit, also in shadow mode.
    pub over_limit: AtomicU64,
    /// Hits within the limit, above the near-limit ratio.
    pub near_limit: AtomicU64,
    /// Hits over the limit that were not counted because their counter was already over it.
    pub over_limit_with_local_cache: AtomicU64,
    /// Hits within the limit.
    pub within_limit: AtomicU64,
    /// Hits over the limit of a rule in shadow mode.
    pub shadow_mode: AtomicU64,
    /// Hits that were given back.
    pub total_negative_hits: AtomicU64,
}

impl RuleTally {
    /// Returns each metric with its name. The order is fixed, and callers rely on it.
    pub fn figures(&self) -> [(&'static str, u64); 7] {
        let (over, within) = (self.over_limit.load(Relaxed), self.within_limit.load(Relaxed));
        [
            ("total_hits", self.other_hits.load(Relaxed).wrapping_add(over).wrapping_add(within)),
            ("over_limit", over),
            ("near_limit", self.near_limit.load(Relaxed)),
            ("over_limit_with_local_cache", self.over_limit_with_local_cache.load(Relaxed)),
            ("within_limit", within),
            ("shadow_mode", self.shadow_mode.load(Relaxed)),
            ("total_negative_hits", self.total_negative_hits.load(Relaxed)),
        ]
    }

    /// Divides the hits that moved a counter from `before` to `after` into those within, near and
    /// over `limit`. `near` is the count above which a hit is near the limit. `after` must not be
    /// less than `before`. Returns the number of hits over the limit.
    pub fn attribute(&self, before: u64, after: u64, limit: u64, near: u64) -> u64 {
        let hits = after - before;
        if after > limit {
            let over = if before >= limit { hits } else { after - limit };
            self.over_limit.fetch_add(over, Relaxed);
            if before < limit {
                let nearly = limit.saturating_sub(near.max(before));
                self.near_limit.fetch_add(nearly, Relaxed);
                self.other_hits.fetch_add(hits - over, Relaxed);
            }
            return over;
        }
        self.within_limit.fetch_add(hits, Relaxed);
        if after > near {
            let nearly = if before >= near { hits } else { after - near };
            self.near_limit.fetch_add(nearly, Relaxed);
        }
        0
    }
}

type PathTallies = RwLock<HashMap<Box<str>, Arc<RuleTally>>>;

/// The metrics of all paths.
#[derive(Debug, Default)]
pub struct RuleTallies {
    rules: PathTallies,
    requests: PathTallies,
}

impl RuleTallies {
    /// The metrics of a rule; the same ones at each call with this path.
    pub fn for_rule(&self, path: &str) -> Arc<RuleTally> {
        let mut rules = self.rules.write();
        Arc::clone(rules.entry(path.into()).or_default())
    }

    /// The metrics of a path that a request made. If a rule has this path, they are the rule's.
    pub fn for_request(&self, domain: &str, path: &str) -> Arc<RuleTally> {
        for paths in [&self.rules, &self.requests] {
            if let Some(found) = paths.read().get(path) {
                return Arc::clone(found);
            }
        }
        let mut requests = self.requests.write();
        if requests.len() < PATHS_MAX {
            return Arc::clone(requests.entry(path.into()).or_default());
        }
        // The rules bound the number of domains, so these entries exceed the bound only slightly.
        let other = format!("{domain}.{OTHER_PATHS_NAME}");
        Arc::clone(requests.entry(other.into()).or_default())
    }

    /// Every path and its metrics, sorted by path.
    pub fn all(&self) -> Vec<(Box<str>, Arc<RuleTally>)> {
        let both = [self.rules.read(), self.requests.read()];
        let paths = both.iter().flat_map(|paths| paths.iter());
        let mut all: Vec<_> =
            paths.map(|(path, tally)| (path.clone(), Arc::clone(tally))).collect();
        all.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributed(before: u64, after: u64, limit: u64) -> (u64, u64, u64) {
        let tally = RuleTally::default();
        tally.attribute(before, after, limit, limit * 8 / 10);
        let figures = tally.figures();
        assert_eq!(figures[0], ("total_hits", after - before));
        (figures[1].1, figures[2].1, figures[4].1)
    }

    #[test]
    fn c67_hits_are_attributed_to_over_near_and_within() {
        assert_eq!(attributed(16, 19, 20), (0, 3, 3));
        assert_eq!(attributed(19, 22, 20), (2, 1, 0));
        assert_eq!(attributed(15, 22, 20), (2, 4, 0));
        assert_eq!(attributed(27, 30, 20), (3, 0, 0));
        assert_eq!(attributed(14, 17, 20), (0, 1, 3));
        assert_eq!(attributed(0, 0, 0), (0, 0, 0));
        // With a ratio over 1, no hit is near the limit.
        let tally = RuleTally::default();
        assert_eq!((tally.attribute(0, 4, 10, 12), tally.attribute(4, 13, 10, 12)), (0, 3));
        assert_eq!((tally.figures()[1].1, tally.figures()[2].1), (3, 0));
    }

    #[test]
    fn too_many_paths_are_counted_together() {
        let tallies = RuleTallies::default();
        for n in 0..PATHS_MAX + 10 {
            tallies.for_request("d", &format!("d.{n}")).other_hits.fetch_add(1, Relaxed);
        }
        assert_eq!(tallies.all().len(), PATHS_MAX + 1);
        assert_eq!(tallies.for_request("d", "d.other").figures()[0].1, 10);
        tallies.for_rule("d.rule").other_hits.fetch_add(1, Relaxed);
        assert_eq!(tallies.for_request("d", "d.rule").figures()[0].1, 1, "a rule has always room");
    }
}

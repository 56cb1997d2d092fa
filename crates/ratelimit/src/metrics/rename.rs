//! Renames metrics by the operator's patterns.
//!
//! The result for each name is cached, because patterns take time and the same names return with
//! every flush. The cache holds at most one entry for each metric, and the number of metrics is
//! bounded.

use evenkeel_config::settings::rename::MetricRename;
use std::collections::HashMap;

/// The maximum number of cached names; when it is reached, the cache is cleared.
const CACHED_NAMES_MAX: usize = 500_000;

/// The rules for names, with a cache of their results.
#[derive(Debug, Default)]
pub struct MetricRenamer {
    rules: Vec<MetricRename>,
    /// The results by original name; `None` if a rule drops the metric.
    cache: HashMap<Box<str>, Option<RenamedMetric>>,
}

/// A new name with its tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenamedMetric {
    /// The name of the metric.
    pub name: String,
    /// Tags of StatsD, or labels of Prometheus, as keys and values.
    pub tags: Vec<(String, String)>,
}

impl MetricRenamer {
    /// Renames by `rules`; the first rule that matches a name applies.
    pub fn new(rules: Vec<MetricRename>) -> MetricRenamer {
        MetricRenamer { rules, cache: HashMap::new() }
    }

    /// The new name of `name`; `None` if a rule drops the metric. A name that no rule matches
    /// stays.
    pub fn name_for(&mut self, name: &str) -> Option<&RenamedMetric> {
        if !self.cache.contains_key(name) {
            if self.cache.len() >= CACHED_NAMES_MAX {
                self.cache.clear();
            }
            let named = self.apply_rules(name);
            self.cache.insert(name.into(), named);
        }
        self.cache.get(name).and_then(Option::as_ref)
    }

    fn apply_rules(&self, name: &str) -> Option<RenamedMetric> {
        for rule in &self.rules {
            let Some(found) = rule.pattern.find(name) else { continue };
            let tag = |(key, tag): &(String, _)| (key.clone(), filled(tag, &found));
            let tags = rule.tags.iter().map(tag).collect();
            return rule
                .name
                .as_ref()
                .map(|name| RenamedMetric { name: filled(name, &found), tags });
        }
        Some(RenamedMetric { name: name.to_owned(), tags: Vec::new() })
    }
}

fn filled(template: &evenkeel_config::settings::rename::NameTemplate, found: &[&str]) -> String {
    template.filled(found)
}

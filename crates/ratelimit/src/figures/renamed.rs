//! Renames metrics by the operator's patterns.
//!
//! The result for each name is cached, because patterns take time and the same names return with
//! every flush. The cache holds at most one entry for each metric, and the number of metrics is
//! bounded.

use evenkeel_config::settings::rename::Rename;
use std::collections::HashMap;

/// The maximum number of cached names; when it is reached, the cache is cleared.
const KEPT_MAX: usize = 500_000;

/// The rules for names, with a cache of their results.
#[derive(Debug, Default)]
pub struct Renamed {
    rules: Vec<Rename>,
    /// The results by original name; `None` if a rule drops the metric.
    known: HashMap<Box<str>, Option<Named>>,
}

/// A new name with its tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The name of the metric.
    pub name: String,
    /// Tags of StatsD, or labels of Prometheus, as keys and values.
    pub tags: Vec<(String, String)>,
}

impl Renamed {
    /// Renames by `rules`; the first rule that matches a name applies.
    #[must_use]
    pub fn new(rules: Vec<Rename>) -> Renamed {
        Renamed { rules, known: HashMap::new() }
    }

    /// The new name of `name`; `None` if a rule drops the metric. A name that no rule matches
    /// stays.
    pub fn of(&mut self, name: &str) -> Option<&Named> {
        if !self.known.contains_key(name) {
            if self.known.len() >= KEPT_MAX {
                self.known.clear();
            }
            let named = self.look(name);
            self.known.insert(name.into(), named);
        }
        self.known.get(name).and_then(Option::as_ref)
    }

    fn look(&self, name: &str) -> Option<Named> {
        for rule in &self.rules {
            let Some(found) = rule.pattern.find(name) else { continue };
            let tag = |(key, tag): &(String, _)| (key.clone(), filled(tag, &found));
            let tags = rule.tags.iter().map(tag).collect();
            return rule.name.as_ref().map(|name| Named { name: filled(name, &found), tags });
        }
        Some(Named { name: name.to_owned(), tags: Vec::new() })
    }
}

fn filled(template: &evenkeel_config::settings::rename::Template, found: &[&str]) -> String {
    template.filled(found)
}

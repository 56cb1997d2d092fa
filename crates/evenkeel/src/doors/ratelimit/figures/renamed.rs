//! Figures under other names: what the operator's patterns make of the reference's.
//!
//! A name is looked through once and what came out is kept, as patterns take their time and names
//! come again with every flush. There are no more names kept than figures, which are bounded.

use crate::config::settings::rename::Rename;
use std::collections::HashMap;

/// The most names that are kept; if there are ever more, all are looked through again.
const KEPT_MAX: usize = 500_000;

/// Rules, and what they made of the names so far.
#[derive(Debug, Default)]
pub struct Renamed {
    rules: Vec<Rename>,
    /// `None`: it is not told.
    known: HashMap<Box<str>, Option<Named>>,
}

/// A name and its tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// What it is called.
    pub name: String,
    /// Tags, or labels.
    pub tags: Vec<(String, String)>,
}

impl Renamed {
    /// By these rules, of which the first that fits counts.
    #[must_use]
    pub fn new(rules: Vec<Rename>) -> Renamed {
        Renamed { rules, known: HashMap::new() }
    }

    /// What `name` is called; `None`: it is not told at all.
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

fn filled(template: &crate::config::settings::rename::Template, found: &[&str]) -> String {
    template.filled(found)
}

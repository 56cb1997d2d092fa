//! One level of a domain's rules: what a key and a value lead to.
//!
//! Keys and values are compared apart, so that the rule `a_b` and the rule `a` with the value `b`
//! are two rules. The reference joins them with `_` and cannot tell these apart; who relies on
//! that gets it back with `EVENKEEL_COMPAT_KEYS` (`joined`), and with it its duplicates.

use super::pattern::Pattern;
use super::{Rule, push_entry};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::sync::Arc;

/// What a key and a value lead to.
#[derive(Debug, Default)]
pub struct Node {
    /// The rule that applies if the descriptor ends here.
    pub rule: Option<Arc<Rule>>,
    /// What comes after.
    pub below: Level,
}

/// The nodes of one level.
#[derive(Debug, Default)]
pub struct Level {
    joined: bool,
    nodes: Vec<Node>,
    keys: HashMap<Box<str>, Values, RandomState>,
    /// Joined keys and values with a star in them; unused unless `joined`.
    patterns: Vec<(Pattern, usize)>,
}

/// What the values of one key lead to.
#[derive(Debug, Default)]
struct Values {
    exact: HashMap<Box<str>, usize, RandomState>,
    patterns: Vec<(Pattern, usize)>,
    /// Any other value.
    any: Option<usize>,
}

impl Level {
    /// An empty level; `joined`: keys and values are compared as one text.
    #[must_use]
    pub fn new(joined: bool) -> Level {
        Level { joined, ..Level::default() }
    }

    /// Adds what `key` and `value` lead to; an empty value is none. `false`: there was one.
    pub fn insert(&mut self, key: &str, value: &str, node: Node) -> bool {
        let fresh = match self.joined {
            true => self.insert_joined(key, value),
            false => self.insert_apart(key, value),
        };
        if fresh {
            self.nodes.push(node);
        }
        fresh
    }

    fn insert_apart(&mut self, key: &str, value: &str) -> bool {
        let index = self.nodes.len();
        let values = self.keys.entry(key.into()).or_default();
        if value.is_empty() {
            let fresh = values.any.is_none();
            values.any.get_or_insert(index);
            return fresh;
        }
        if values.exact.contains_key(value) {
            return false;
        }
        // A pattern is found by its own text as well.
        values.exact.insert(value.into(), index);
        values.patterns.extend(Pattern::new(value).map(|pattern| (pattern, index)));
        true
    }

    fn insert_joined(&mut self, key: &str, value: &str) -> bool {
        let index = self.nodes.len();
        let mut text = String::new();
        push_entry(&mut text, key, value);
        let pattern = Pattern::new(&text);
        let values = self.keys.entry(text.into()).or_default();
        let fresh = values.any.is_none();
        values.any.get_or_insert(index);
        self.patterns.extend(pattern.filter(|_| fresh).map(|pattern| (pattern, index)));
        fresh
    }

    /// The rule that applies to entries, each a key and a value.
    #[must_use]
    pub fn rule(&self, entries: &[(&str, &str)]) -> Option<&Rule> {
        let (last, before) = entries.split_last()?;
        let mut level = self;
        for (key, value) in before {
            level = &level.find(key, value)?.below;
        }
        level.find(last.0, last.1)?.rule.as_deref()
    }

    /// The rule that applies to entries in whatever order the rules have their keys, and puts them
    /// into it. Of several ways the one goes first whose keys come first in `entries`. No part of
    /// the tree is looked at twice.
    pub fn rule_in_any_order(&self, entries: &mut [(&str, &str)]) -> Option<&Rule> {
        for first in 0..entries.len() {
            // To the front, and the others keep their order.
            entries[..=first].rotate_right(1);
            let (key, value) = entries[0];
            let found = self.find(key, value).and_then(|node| match &mut entries[1..] {
                [] => node.rule.as_deref(),
                rest => node.below.rule_in_any_order(rest),
            });
            if found.is_some() {
                return found;
            }
            entries[..=first].rotate_left(1);
        }
        None
    }

    /// What an entry leads to.
    #[must_use]
    pub fn find(&self, key: &str, value: &str) -> Option<&Node> {
        let index = match self.joined {
            true => self.find_joined(key, value)?,
            false => self.keys.get(key)?.find(value)?,
        };
        self.nodes.get(index)
    }

    fn find_joined(&self, key: &str, value: &str) -> Option<usize> {
        let text = format!("{key}_{value}");
        let whole = |text: &str| self.keys.get(text).and_then(|values| values.any);
        whole(&text).or_else(|| covering(&self.patterns, &text)).or_else(|| whole(key))
    }

    /// Shows every rule of this level and those below.
    pub fn for_each(&self, show: &mut impl FnMut(&Rule)) {
        for node in &self.nodes {
            node.rule.iter().for_each(|rule| show(rule));
            node.below.for_each(show);
        }
    }
}

impl Values {
    fn find(&self, value: &str) -> Option<usize> {
        let exact = self.exact.get(value).copied();
        exact.or_else(|| covering(&self.patterns, value)).or(self.any)
    }
}

/// The first of the patterns, as they were written, that covers `text`.
fn covering(patterns: &[(Pattern, usize)], text: &str) -> Option<usize> {
    patterns.iter().find(|(pattern, _)| pattern.covers(text)).map(|(_, index)| *index)
}

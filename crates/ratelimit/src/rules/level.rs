//! One level of a domain's rules: the nodes for each key and value.
//!
//! Keys and values are compared separately, so the rule `a_b` and the rule `a` with the value `b`
//! are two rules. The reference server joins them with `_` and cannot distinguish them. With
//! `EVENKEEL_COMPAT_KEYS` Evenkeel does the same (`joined`), and then also reports such rules as
//! duplicates.

use super::pattern::ValuePattern;
use super::{RatelimitRule, push_entry};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::sync::Arc;

/// The rule and the next level for a key and a value.
#[derive(Debug, Default)]
pub struct RuleNode {
    /// The rule that applies if the descriptor ends here.
    pub rule: Option<Arc<RatelimitRule>>,
    /// The next level, for the next entry of the descriptor.
    pub below: RuleLevel,
}

/// The nodes of one level.
#[derive(Debug, Default)]
pub struct RuleLevel {
    joined: bool,
    nodes: Vec<RuleNode>,
    keys: HashMap<Box<str>, KeyValues, RandomState>,
    /// Patterns for joined keys and values; unused unless `joined`.
    patterns: Vec<(ValuePattern, usize)>,
}

/// The nodes for the values of one key, as indexes into `RuleLevel::nodes`.
#[derive(Debug, Default)]
struct KeyValues {
    exact: HashMap<Box<str>, usize, RandomState>,
    patterns: Vec<(ValuePattern, usize)>,
    /// The node for any other value.
    any: Option<usize>,
}

impl RuleLevel {
    /// An empty level. With `joined`, a key and its value are compared as one text.
    pub fn new(joined: bool) -> RuleLevel {
        RuleLevel { joined, ..RuleLevel::default() }
    }

    /// Adds the node for `key` and `value`; an empty value stands for any value. Returns false if
    /// there is already a node for them.
    pub fn insert(&mut self, key: &str, value: &str, node: RuleNode) -> bool {
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
        // The text of a pattern itself also matches exactly.
        values.exact.insert(value.into(), index);
        values.patterns.extend(ValuePattern::new(value).map(|pattern| (pattern, index)));
        true
    }

    fn insert_joined(&mut self, key: &str, value: &str) -> bool {
        let index = self.nodes.len();
        let mut text = String::new();
        push_entry(&mut text, key, value);
        let pattern = ValuePattern::new(&text);
        let values = self.keys.entry(text.into()).or_default();
        let fresh = values.any.is_none();
        values.any.get_or_insert(index);
        self.patterns.extend(pattern.filter(|_| fresh).map(|pattern| (pattern, index)));
        fresh
    }

    /// The rule that applies to entries, which are pairs of key and value.
    pub fn rule(&self, entries: &[(&str, &str)]) -> Option<&RatelimitRule> {
        let (last, before) = entries.split_last()?;
        let mut level = self;
        for (key, value) in before {
            level = &level.find(key, value)?.below;
        }
        level.find(last.0, last.1)?.rule.as_deref()
    }

    /// Finds the rule that applies to entries in any order, and puts the entries into the order of
    /// the rule. If several orders match, the one whose first keys come earliest in `entries` wins.
    /// No part of the tree is visited twice.
    pub fn rule_in_any_order(&self, entries: &mut [(&str, &str)]) -> Option<&RatelimitRule> {
        for first in 0..entries.len() {
            // Move this entry to the front; the others keep their order.
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

    /// The node for an entry.
    pub fn find(&self, key: &str, value: &str) -> Option<&RuleNode> {
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

    /// Passes every rule of this level and of the levels below to `show`.
    pub fn for_each(&self, show: &mut impl FnMut(&RatelimitRule)) {
        for node in &self.nodes {
            node.rule.iter().for_each(|rule| show(rule));
            node.below.for_each(show);
        }
    }
}

impl KeyValues {
    fn find(&self, value: &str) -> Option<usize> {
        let exact = self.exact.get(value).copied();
        exact.or_else(|| covering(&self.patterns, value)).or(self.any)
    }
}

/// The index of the first pattern, in the order of the file, that covers `text`.
fn covering(patterns: &[(ValuePattern, usize)], text: &str) -> Option<usize> {
    patterns.iter().find(|(pattern, _)| pattern.covers(text)).map(|(_, index)| *index)
}

//! The fields of one section of a rule file, read in the same way as the reference server reads
//! them.
//!
//! If a key occurs twice, its last value counts. A value of a wrong kind is an error. Texts are
//! taken as written: `404` and `true` are texts where a text is expected. The names of keys have
//! already been checked (`keys`).

use super::super::faults::RuleFaults;
use super::super::keys::shown;
use evenkeel_config::fault::{ConfigFault, TextPlace};
use evenkeel_config::tree::scalar::ScalarKind;
use evenkeel_config::tree::{YamlKey, YamlNode, YamlValue};

pub struct RuleFields<'n> {
    /// The position of the section in its file.
    pub place: TextPlace,
    entries: &'n [(YamlKey, YamlNode)],
}

impl<'n> RuleFields<'n> {
    /// The fields of a node; a null value has none. A node of another kind is reported.
    pub fn of(node: &'n YamlNode, faults: &mut RuleFaults) -> RuleFields<'n> {
        let entries: &[(YamlKey, YamlNode)] = match &node.value {
            YamlValue::Map(entries) => entries,
            YamlValue::Null => &[],
            YamlValue::List(_) | YamlValue::Text(_) => {
                faults.push(wrong(node.place, "expected a section with keys and values"));
                &[]
            }
        };
        RuleFields { place: node.place, entries }
    }

    /// The value of a key; `None` if the key is missing or null.
    pub fn get(&self, key: &str) -> Option<&'n YamlNode> {
        let (_, node) = self.entries.iter().rev().find(|(k, _)| k.name == key)?;
        (node.value != YamlValue::Null).then_some(node)
    }

    /// The position of a key's value, or of the section if the key is missing.
    pub fn place_of(&self, key: &str) -> TextPlace {
        self.get(key).map_or(self.place, |node| node.place)
    }

    /// The text of a key; a list or a map is reported.
    pub fn text(&self, key: &str, faults: &mut RuleFaults) -> Option<String> {
        let node = self.get(key)?;
        match &node.value {
            YamlValue::Text(text) => Some(text.clone()),
            _ => {
                faults.push(wrong(node.place, &format!("`{key}` must be a single value")));
                None
            }
        }
    }

    /// The boolean of a key, false if the key is missing; a value of another kind is reported.
    pub fn flag(&self, key: &str, faults: &mut RuleFaults) -> bool {
        let Some(node) = self.get(key) else { return false };
        if let YamlValue::Text(text) = &node.value
            && let ScalarKind::Bool(truth) = ScalarKind::of(text)
            && node.plain
        {
            return truth;
        }
        faults.push(wrong(node.place, &format!("`{key}` must be true or false")));
        false
    }

    /// The 32-bit number of a key; a value of another kind is reported.
    pub fn number(&self, key: &str, faults: &mut RuleFaults) -> Option<u32> {
        let node = self.get(key)?;
        let text = match &node.value {
            YamlValue::Text(text) if node.plain => text.as_str(),
            _ => "",
        };
        let number = match ScalarKind::of(text) {
            ScalarKind::Whole(number) => u32::try_from(number).ok(),
            _ => None,
        };
        if number.is_none() {
            let what = format!("`{key}` must be a whole number from 0 to {}", u32::MAX);
            let what = if text.is_empty() { what } else { format!("{what}, not {}", shown(text)) };
            faults.push(wrong(node.place, &what));
        }
        number
    }

    /// The list of a key, empty if the key is missing; a value of another kind is reported.
    pub fn list(&self, key: &str, faults: &mut RuleFaults) -> &'n [YamlNode] {
        let Some(node) = self.get(key) else { return &[] };
        match &node.value {
            YamlValue::List(items) => items,
            _ => {
                faults.push(wrong(node.place, &format!("`{key}` must be a list")));
                &[]
            }
        }
    }
}

fn wrong(place: TextPlace, what: &str) -> ConfigFault {
    ConfigFault::new(place, format!("error loading config file: {what}"))
}

/// Replaces merge keys (`<<`) by the entries that they refer to. Keys written in the map itself
/// take precedence.
pub fn merged(mut node: YamlNode) -> YamlNode {
    match &mut node.value {
        YamlValue::Null | YamlValue::Text(_) => {}
        YamlValue::List(items) => {
            for item in items {
                *item = merged(std::mem::replace(item, YamlNode::made(YamlValue::Null)));
            }
        }
        YamlValue::Map(entries) => {
            let written = std::mem::take(entries);
            let mut brought = Vec::new();
            for (key, node) in written {
                let node = merged(node);
                match (key.name == "<<" && key.plain, node.value) {
                    (true, YamlValue::Map(more)) => brought.extend(more),
                    (true, YamlValue::List(maps)) => {
                        // The first of several maps takes precedence. They are reversed here
                        // because the last of equal keys counts.
                        let maps = maps.into_iter().rev().filter_map(|map| match map.value {
                            YamlValue::Map(more) => Some(more),
                            _ => None,
                        });
                        brought.extend(maps.flatten());
                    }
                    (_, value) => entries.push((key, YamlNode { value, ..node })),
                }
            }
            entries.splice(0..0, brought);
        }
    }
    node
}

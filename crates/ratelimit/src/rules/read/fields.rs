//! The fields of one section of a rule file, read in the same way as the reference server reads
//! them.
//!
//! If a key occurs twice, its last value counts. A value of a wrong kind is an error. Texts are
//! taken as written: `404` and `true` are texts where a text is expected. The names of keys have
//! already been checked (`keys`).

use super::super::keys::shown;
use evenkeel_config::fault::{Fault, Place};
use evenkeel_config::tree::scalar::Kind;
use evenkeel_config::tree::{Key, Node, Value};

/// The fields of one section.
pub struct Fields<'n> {
    /// The position of the section in its file.
    pub place: Place,
    entries: &'n [(Key, Node)],
}

impl<'n> Fields<'n> {
    /// The fields of a node; a null value has none. A node of another kind is reported.
    pub fn of(node: &'n Node, faults: &mut Vec<Fault>) -> Fields<'n> {
        let entries: &[(Key, Node)] = match &node.value {
            Value::Map(entries) => entries,
            Value::Null => &[],
            Value::List(_) | Value::Text(_) => {
                faults.push(wrong(node.place, "a section with keys and values is wanted here"));
                &[]
            }
        };
        Fields { place: node.place, entries }
    }

    /// The value of a key; `None` if the key is missing or null.
    pub fn get(&self, key: &str) -> Option<&'n Node> {
        let (_, node) = self.entries.iter().rev().find(|(k, _)| k.name == key)?;
        (node.value != Value::Null).then_some(node)
    }

    /// The position of a key's value, or of the section if the key is missing.
    pub fn place_of(&self, key: &str) -> Place {
        self.get(key).map_or(self.place, |node| node.place)
    }

    /// The text of a key; a list or a map is reported.
    pub fn text(&self, key: &str, faults: &mut Vec<Fault>) -> Option<String> {
        let node = self.get(key)?;
        match &node.value {
            Value::Text(text) => Some(text.clone()),
            _ => {
                faults.push(wrong(node.place, &format!("`{key}` must be a single value")));
                None
            }
        }
    }

    /// The boolean of a key, false if the key is missing; a value of another kind is reported.
    pub fn flag(&self, key: &str, faults: &mut Vec<Fault>) -> bool {
        let Some(node) = self.get(key) else { return false };
        if let Value::Text(text) = &node.value
            && let Kind::Bool(truth) = Kind::of(text)
            && node.plain
        {
            return truth;
        }
        faults.push(wrong(node.place, &format!("`{key}` must be true or false")));
        false
    }

    /// The 32-bit number of a key; a value of another kind is reported.
    pub fn number(&self, key: &str, faults: &mut Vec<Fault>) -> Option<u32> {
        let node = self.get(key)?;
        let text = match &node.value {
            Value::Text(text) if node.plain => text.as_str(),
            _ => "",
        };
        let number = match Kind::of(text) {
            Kind::Whole(number) => u32::try_from(number).ok(),
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
    pub fn list(&self, key: &str, faults: &mut Vec<Fault>) -> &'n [Node] {
        let Some(node) = self.get(key) else { return &[] };
        match &node.value {
            Value::List(items) => items,
            _ => {
                faults.push(wrong(node.place, &format!("`{key}` must be a list")));
                &[]
            }
        }
    }
}

fn wrong(place: Place, what: &str) -> Fault {
    Fault::new(place, format!("error loading config file: {what}"))
}

/// Replaces merge keys (`<<`) by the entries that they refer to. Keys written in the map itself
/// take precedence.
pub fn merged(mut node: Node) -> Node {
    match &mut node.value {
        Value::Null | Value::Text(_) => {}
        Value::List(items) => {
            for item in items {
                *item = merged(std::mem::replace(item, Node::made(Value::Null)));
            }
        }
        Value::Map(entries) => {
            let written = std::mem::take(entries);
            let mut brought = Vec::new();
            for (key, node) in written {
                let node = merged(node);
                match (key.name == "<<" && key.plain, node.value) {
                    (true, Value::Map(more)) => brought.extend(more),
                    (true, Value::List(maps)) => {
                        // The first of several maps takes precedence. They are reversed here
                        // because the last of equal keys counts.
                        let maps = maps.into_iter().rev().filter_map(|map| match map.value {
                            Value::Map(more) => Some(more),
                            _ => None,
                        });
                        brought.extend(maps.flatten());
                    }
                    (_, value) => entries.push((key, Node { value, ..node })),
                }
            }
            entries.splice(0..0, brought);
        }
    }
    node
}

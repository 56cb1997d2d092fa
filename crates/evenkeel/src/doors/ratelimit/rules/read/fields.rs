//! The keys of one section of a rule file, read as the reference reads them.
//!
//! Of two equal keys the last counts, and a value of the wrong form is a fault of the file. Texts
//! are taken as they are written: `404` and `true` are texts where a text is wanted. Which keys
//! may be there has been looked at before (`keys`).

use super::super::keys::shown;
use crate::config::fault::{Fault, Place};
use crate::config::tree::scalar::Kind;
use crate::config::tree::{Key, Node, Value};

/// One section.
pub struct Fields<'n> {
    /// Where it begins.
    pub place: Place,
    entries: &'n [(Key, Node)],
}

impl<'n> Fields<'n> {
    /// The section that a node holds; nothing is an empty one.
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

    /// The value of a key, unless it is nothing.
    pub fn get(&self, key: &str) -> Option<&'n Node> {
        let (_, node) = self.entries.iter().rev().find(|(k, _)| k.name == key)?;
        (node.value != Value::Null).then_some(node)
    }

    /// Where a key's value is; if there is none, the section.
    pub fn place_of(&self, key: &str) -> Place {
        self.get(key).map_or(self.place, |node| node.place)
    }

    /// A text.
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

    /// A truth value; false if it is not there.
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

    /// A number of 32 bits.
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

    /// A list; nothing is an empty one.
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

/// The tree with what merge keys (`<<`) name put in; keys that are written out go first.
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
                        // Of several, the first goes first; the last of equal keys counts.
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

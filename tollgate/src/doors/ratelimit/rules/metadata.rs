//! A rule's `metadata`: any YAML, kept as JSON, which is what both wires can carry.
//!
//! What is written without quotes is a number, a truth value or nothing if it looks like one, as
//! YAML has it. Numbers become those of JSON and protobuf: 64 bits, floating. A list or text at
//! the top is not metadata.

use crate::config::tree::{Node, Value as Yaml};
use serde_json::{Map, Number, Value};

/// The metadata that a node holds; `None` if it is no map.
pub fn read(node: &Node) -> Option<Map<String, Value>> {
    match value(node) {
        Value::Object(map) => Some(map),
        _ => None,
    }
}

fn value(node: &Node) -> Value {
    match &node.value {
        Yaml::Null => Value::Null,
        Yaml::Text(text) if node.plain => plain(text),
        Yaml::Text(text) => Value::String(text.clone()),
        Yaml::List(items) => Value::Array(items.iter().map(value).collect()),
        Yaml::Map(entries) => {
            Value::Object(entries.iter().map(|(k, node)| (k.name.clone(), value(node))).collect())
        }
    }
}

fn plain(text: &str) -> Value {
    match super::keys::Kind::of(text) {
        super::keys::Kind::Bool(truth) => Value::Bool(truth),
        super::keys::Kind::Number(number) => {
            Number::from_f64(number).map_or_else(|| Value::String(text.to_owned()), Value::Number)
        }
        super::keys::Kind::Float(number) => {
            Number::from_f64(number).map_or_else(|| Value::String(text.to_owned()), Value::Number)
        }
        super::keys::Kind::Text => Value::String(text.to_owned()),
    }
}

/// What both have, deep: where they disagree `first` stays.
pub fn merge(first: &mut Map<String, Value>, second: &Map<String, Value>) {
    for (key, value) in second {
        match (first.get_mut(key), value) {
            (None, _) => {
                first.insert(key.clone(), value.clone());
            }
            (Some(Value::Object(mine)), Value::Object(theirs)) => merge(mine, theirs),
            (Some(_), _) => {}
        }
    }
}

//! The `metadata` of a rule: arbitrary YAML, stored as the protobuf message that answers carry.
//!
//! An unquoted value is a number, a boolean or null if YAML 1.1 says so (`config::tree::scalar`).
//! All numbers become 64-bit floating-point numbers. Keys become texts: below the top level, a key
//! that is a number or a boolean is written in its canonical form; at the top level keys stay as
//! written.

use evenkeel_config::tree::scalar::ScalarKind as Scalar;
use evenkeel_config::tree::{YamlKey, YamlNode, YamlValue as Yaml};
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

/// The metadata in a node; `None` if the node is not a map.
pub fn read(node: &YamlNode) -> Option<Struct> {
    let Yaml::Map(entries) = &node.value else { return None };
    let entry = |(key, node): &(YamlKey, YamlNode)| (top(key), value(node));
    Some(Struct { fields: entries.iter().map(entry).collect() })
}

fn value(node: &YamlNode) -> Value {
    let kind = match &node.value {
        Yaml::Null => Kind::NullValue(0),
        Yaml::Text(text) => match scalar(text, node.plain) {
            Scalar::Bool(truth) => Kind::BoolValue(truth),
            Scalar::Whole(number) => Kind::NumberValue(number as f64),
            Scalar::Float(number) => Kind::NumberValue(number),
            Scalar::Null | Scalar::Text => Kind::StringValue(text.clone()),
        },
        Yaml::List(items) => {
            Kind::ListValue(ListValue { values: items.iter().map(value).collect() })
        }
        Yaml::Map(entries) => {
            let entry = |(key, node): &(YamlKey, YamlNode)| (below(key), value(node));
            Kind::StructValue(Struct { fields: entries.iter().map(entry).collect() })
        }
    };
    Value { kind: Some(kind) }
}

fn scalar(text: &str, plain: bool) -> Scalar {
    if plain { Scalar::of(text) } else { Scalar::Text }
}

/// A key at the top level, as it is written.
fn top(key: &YamlKey) -> String {
    match scalar(&key.name, key.plain) {
        Scalar::Null => String::new(),
        _ => key.name.clone(),
    }
}

/// A key below the top level, in the form that the reference server's language, Go, prints.
fn below(key: &YamlKey) -> String {
    match scalar(&key.name, key.plain) {
        Scalar::Null => "<nil>".to_owned(),
        Scalar::Bool(truth) => truth.to_string(),
        Scalar::Whole(number) => number.to_string(),
        Scalar::Float(number) => number.to_string(),
        Scalar::Text => key.name.clone(),
    }
}

/// Merges `second` into `first`, recursively. If both have a value for a key, the one in `first`
/// stays.
pub fn merge(first: &mut Struct, second: &Struct) {
    for (key, value) in &second.fields {
        match (first.fields.get_mut(key).map(|mine| &mut mine.kind), &value.kind) {
            (None, _) => _ = first.fields.insert(key.clone(), value.clone()),
            (Some(Some(Kind::StructValue(mine))), Some(Kind::StructValue(theirs))) => {
                merge(mine, theirs);
            }
            (Some(_), _) => {}
        }
    }
}

//! The first check of a rule file: the names of keys and the kinds of values.
//!
//! As in the reference server, one list of names applies to all levels, and the content of
//! `metadata` is not checked. A value written as a floating-point number is refused, because it
//! would be read as something else than was meant. The values themselves are parsed in
//! `rules::read`.

use evenkeel_config::fault::{Fault, nearest, quoted};
use evenkeel_config::tree::scalar::Kind;
use evenkeel_config::tree::{Key, Node, Value};

/// The keys of the reference server, followed by those that only Evenkeel has.
const KNOWN: [&str; 19] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
    "algorithm",
    "unit_multiplier",
    "calendar",
];

/// Reports every unknown key and every value of a wrong kind.
pub fn check(node: &Node, faults: &mut Vec<Fault>) {
    match &node.value {
        Value::Null | Value::Text(_) => {}
        Value::List(items) => {
            for item in items {
                match &item.value {
                    Value::Map(_) => check(item, faults),
                    other => faults.push(Fault::new(item.place, list_of(other))),
                }
            }
        }
        Value::Map(entries) => entries.iter().for_each(|entry| check_entry(entry, faults)),
    }
}

fn check_entry((key, node): &(Key, Node), faults: &mut Vec<Fault>) {
    if key.plain && Kind::of(&key.name) != Kind::Text {
        let what = format!("config error, key is not of type string: {}", shown(&key.name));
        faults.push(Fault::new(key.place, what));
        return;
    }
    if !KNOWN.contains(&key.name.as_str()) {
        let what = format!("config error, unknown key '{}'{}", shown(&key.name), near(&key.name));
        faults.push(Fault::new(key.place, what));
        return;
    }
    if key.name == "metadata" {
        return;
    }
    match &node.value {
        Value::Text(text) if node.plain && matches!(Kind::of(text), Kind::Float(_)) => {
            let what = match text.bytes().all(|b| b.is_ascii_digit()) {
                true => "is no whole number of 64 bits, nor octal; quote it",
                false => "is a float; quote it",
            };
            let what = format!("error checking config: {} {what}", quoted(text));
            faults.push(Fault::new(node.place, what));
        }
        _ => check(node, faults),
    }
}

fn list_of(value: &Value) -> String {
    let what = "config error, yaml file contains list of type other than map: ";
    match value {
        Value::Text(text) => format!("{what}{}", shown(text)),
        Value::List(_) => format!("{what}a list"),
        // The reference server is written in Go, which prints a null value like this.
        _ => format!("{what}<nil>"),
    }
}

fn near(name: &str) -> String {
    let known = nearest(name, &KNOWN);
    known.map(|known| format!("; did you mean `{known}`?")).unwrap_or_default()
}

/// Shortens and escapes a text for an error message.
pub fn shown(text: &str) -> String {
    let text = quoted(text);
    text.trim_matches('`').to_owned()
}

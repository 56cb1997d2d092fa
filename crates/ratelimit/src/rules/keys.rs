//! The first check of a rule file: the names of keys and the kinds of values.
//!
//! As in the reference server, one list of names applies to all levels, and the content of
//! `metadata` is not checked. A value written as a floating-point number is refused, because it
//! would be read as something else than was meant. The values themselves are parsed in
//! `rules::read`.

use super::faults::RuleFaults;
use evenkeel_config::fault::{ConfigFault, nearest, quoted};
use evenkeel_config::tree::scalar::ScalarKind;
use evenkeel_config::tree::{YamlKey, YamlNode, YamlValue};

/// The keys of the reference server, followed by those that only Evenkeel has.
const RULE_KEYS: [&str; 19] = [
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
pub fn check(node: &YamlNode, faults: &mut RuleFaults) {
    match &node.value {
        YamlValue::Null | YamlValue::Text(_) => {}
        YamlValue::List(items) => {
            for item in items {
                match &item.value {
                    YamlValue::Map(_) => check(item, faults),
                    other => faults.push(ConfigFault::new(item.place, list_of(other))),
                }
            }
        }
        YamlValue::Map(entries) => entries.iter().for_each(|entry| check_entry(entry, faults)),
    }
}

fn check_entry((key, node): &(YamlKey, YamlNode), faults: &mut RuleFaults) {
    if key.plain && ScalarKind::of(&key.name) != ScalarKind::Text {
        let what = format!("config error, key is not of type string: {}", shown(&key.name));
        faults.push(ConfigFault::new(key.place, what));
        return;
    }
    if !RULE_KEYS.contains(&key.name.as_str()) {
        let what = format!("config error, unknown key '{}'{}", shown(&key.name), near(&key.name));
        faults.push(ConfigFault::new(key.place, what));
        return;
    }
    if key.name == "metadata" {
        return;
    }
    match &node.value {
        YamlValue::Text(text)
            if node.plain && matches!(ScalarKind::of(text), ScalarKind::Float(_)) =>
        {
            let what = match text.bytes().all(|b| b.is_ascii_digit()) {
                true => "is neither a whole number of 64 bits nor octal; quote it",
                false => "is a float; quote it",
            };
            let what = format!("error checking config: {} {what}", quoted(text));
            faults.push(ConfigFault::new(node.place, what));
        }
        _ => check(node, faults),
    }
}

fn list_of(value: &YamlValue) -> String {
    let what = "config error, yaml file contains list of type other than map: ";
    match value {
        YamlValue::Text(text) => format!("{what}{}", shown(text)),
        YamlValue::List(_) => format!("{what}a list"),
        // The reference server is written in Go, which prints a null value like this.
        _ => format!("{what}<nil>"),
    }
}

fn near(name: &str) -> String {
    let known = nearest(name, &RULE_KEYS);
    known.map(|known| format!("; did you mean `{known}`?")).unwrap_or_default()
}

/// Shortens and escapes a text for an error message.
pub fn shown(text: &str) -> String {
    let text = quoted(text);
    text.trim_matches('`').to_owned()
}

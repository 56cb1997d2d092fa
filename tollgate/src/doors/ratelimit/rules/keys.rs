//! The first look at a rule file: which keys there are and of what kind values are.
//!
//! As in the reference, one list of names serves all levels, what lies below `metadata` is not
//! looked at, and a value written as a floating number is refused: it could not have been meant
//! as it would be read. What the values say is read in `read`.

use crate::config::fault::{Fault, quoted};
use crate::config::tree::{Key, Node, Value};

/// Every key of the reference, and behind them ours.
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

/// What YAML takes an unquoted text for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `true`, `no`, `on` and the like.
    Bool(bool),
    /// A whole number.
    Number(f64),
    /// Any other number.
    Float(f64),
    /// None of these.
    Text,
}

impl Kind {
    /// What `text` is.
    #[must_use]
    pub fn of(text: &str) -> Kind {
        match text {
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                return Kind::Bool(true);
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off"
            | "OFF" => return Kind::Bool(false),
            ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "-.inf" => {
                return Kind::Float(f64::NAN);
            }
            _ => {}
        }
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let float = |b: u8| b.is_ascii_digit() || b".eE+-".contains(&b);
        let number = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
            && digits.bytes().any(|b| b.is_ascii_digit())
            && digits.bytes().all(float);
        match text.parse::<f64>() {
            Ok(number) if whole => Kind::Number(number),
            Ok(value) if number => Kind::Float(value),
            _ => Kind::Text,
        }
    }
}

/// Reports every key that is not known and every value of a kind that is not.
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
            let what = format!("error checking config: {} is a float; quote it", quoted(text));
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
        // As the reference's language writes nothing.
        _ => format!("{what}<nil>"),
    }
}

fn near(name: &str) -> String {
    let short = name.len() <= 64;
    let far = |known: &&str| strsim::damerau_levenshtein(known, name);
    let nearest = KNOWN.iter().filter(|_| short).min_by_key(|known| far(known));
    match nearest.filter(|known| far(known) <= 1 + known.len() / 4) {
        Some(known) => format!("; did you mean `{known}`?"),
        None => String::new(),
    }
}

/// Short and clean enough for a message.
pub fn shown(text: &str) -> String {
    let text = quoted(text);
    text.trim_matches('`').to_owned()
}

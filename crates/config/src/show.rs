//! Writes a tree as readable YAML.
//!
//! Sections are in block form, lists of single values on one line. Text that YAML could interpret
//! differently is quoted as JSON, which is a subset of YAML.

pub mod schema;

use super::keys::{KeyRow, SectionTable};
use super::tree::{YamlNode, YamlValue};
use super::variables;
use std::fmt::Write;

/// Replaces the secret parts of the values of a section, as the rows define them.
#[must_use]
pub fn masked(node: &YamlNode, table: &SectionTable) -> YamlNode {
    let YamlValue::Map(entries) = &node.value else { return node.clone() };
    let entries = entries.iter().map(|(key, node)| {
        let node = table.row(&key.name).map_or_else(|| node.clone(), |row| masked_key(node, row));
        (key.clone(), node)
    });
    YamlNode::made(YamlValue::Map(entries.collect()))
}

fn masked_key(node: &YamlNode, row: &dyn KeyRow) -> YamlNode {
    match (&node.value, row.section(), row.facts().mask) {
        (YamlValue::List(items), ..) => {
            let items = items.iter().map(|item| masked_key(item, row));
            YamlNode::made(YamlValue::List(items.collect()))
        }
        (YamlValue::Map(_), Some(key), _) => masked(node, key.table),
        (YamlValue::Text(text), _, Some(mask)) => YamlNode::text(mask(text)),
        _ => node.clone(),
    }
}

/// Formats `node` as a document.
#[must_use]
pub fn yaml(node: &YamlNode) -> String {
    let mut out = String::new();
    if let YamlValue::Map(entries) = &node.value {
        for (key, node) in entries {
            entry(&mut out, &key.name, node, 0);
        }
    }
    out
}

fn entry(out: &mut String, key: &str, node: &YamlNode, indent: usize) {
    let _ = write!(out, "{:indent$}{}:", "", quoted(key));
    match &node.value {
        YamlValue::Null => out.push('\n'),
        YamlValue::Text(text) => {
            let _ = writeln!(out, " {}", scalar(text));
        }
        YamlValue::List(items)
            if items.iter().all(|item| matches!(item.value, YamlValue::Text(_))) =>
        {
            let _ = writeln!(out, " {}", inline(items));
        }
        YamlValue::List(items) => {
            out.push('\n');
            items.iter().for_each(|item| list_item(out, item, indent + 2));
        }
        YamlValue::Map(entries) if entries.is_empty() => out.push_str(" {}\n"),
        YamlValue::Map(entries) => {
            out.push('\n');
            entries.iter().for_each(|(key, node)| entry(out, &key.name, node, indent + 2));
        }
    }
}

/// Writes a value or a section in a list of both; the first key of a section follows the dash.
fn list_item(out: &mut String, item: &YamlNode, indent: usize) {
    let mut shown = String::new();
    match &item.value {
        YamlValue::Map(entries) => {
            entries.iter().for_each(|(key, node)| entry(&mut shown, &key.name, node, indent + 2));
        }
        YamlValue::Text(text) => shown = format!("{}\n", scalar(text)),
        YamlValue::Null | YamlValue::List(_) => {}
    }
    let _ = write!(out, "{:indent$}- {}", "", shown.trim_start());
}

fn inline(items: &[YamlNode]) -> String {
    let texts = items.iter().filter_map(|item| match &item.value {
        YamlValue::Text(text) => Some(scalar(text)),
        _ => None,
    });
    format!("[{}]", texts.collect::<Vec<_>>().join(", "))
}

/// A value. When it is read again, no part of it may be taken for a variable.
fn scalar(text: &str) -> String {
    quoted(&variables::escaped(text))
}

fn quoted(text: &str) -> String {
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"-_./%:+".contains(&b);
    let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/');
    let odd = text.ends_with(':') || text.eq_ignore_ascii_case("null");
    if starts && !odd && text.bytes().all(safe) {
        return text.to_owned();
    }
    serde_json::to_string(text).unwrap_or_default()
}

//! What a reload cannot change: the values of restart-only keys are taken from the running
//! configuration.
//!
//! Which keys these are is in the rows (`settings`). Values are compared by their meaning: `60s`
//! and `1m` are the same. Whether the new and the kept values work together is not checked here.

use super::keys::{KeyRow, SectionCount, SectionTable};
use super::settings::ROOT;
use super::tree::{YamlKey, YamlNode, YamlValue};

/// Gives each restart-only key in `new` the value that it has in `running`. Returns the paths of
/// the keys for which that makes a difference.
pub fn keep_running_values(new: &mut YamlNode, running: &YamlNode) -> Vec<String> {
    let mut changed = Vec::new();
    keep(new, running, ROOT, "", &mut changed);
    changed
}

fn keep(
    new: &mut YamlNode,
    running: &YamlNode,
    table: &SectionTable,
    path: &str,
    changed: &mut Vec<String>,
) {
    for row in table.keys {
        let name = row.facts().name;
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let before = running.find(&[name]);
        if row.facts().restart {
            if !same_key(*row, new.find(&[name]), before) {
                replace(new, name, before);
                changed.push(path);
            }
        } else if let Some(key) = row.section().filter(|key| key.count == SectionCount::One)
            && let (Some(new), Some(before)) = (new.find_mut(&[name]), before)
        {
            keep(new, before, key.table, &path, changed);
        }
    }
}

/// Sets a key, or removes it.
fn replace(section: &mut YamlNode, name: &str, node: Option<&YamlNode>) {
    if let YamlValue::Map(entries) = &mut section.value {
        entries.retain(|(key, _)| key.name != name);
        entries.extend(node.map(|node| (YamlKey::made(name), node.clone())));
    }
}

/// Whether a key has the same value twice.
fn same_key(row: &dyn KeyRow, one: Option<&YamlNode>, other: Option<&YamlNode>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => same(row, one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

fn same(row: &dyn KeyRow, one: &YamlNode, other: &YamlNode) -> bool {
    match (&one.value, &other.value) {
        (YamlValue::Text(one), YamlValue::Text(other)) => row.same(one, other),
        (YamlValue::List(one), YamlValue::List(other)) => {
            let mut both = one.iter().zip(other);
            one.len() == other.len() && both.all(|(one, other)| same(row, one, other))
        }
        (YamlValue::Map(_), YamlValue::Map(_)) => row.section().is_some_and(|key| {
            key.table.keys.iter().all(|row| {
                let name = row.facts().name;
                same_key(*row, one.find(&[name]), other.find(&[name]))
            })
        }),
        (one, other) => one == other,
    }
}

//! The rules by which the sections of two files become one.
//!
//! The rows of the keys decide: sections are joined key by key; lists are appended, a single value
//! being a list of one; names, such as those of groups, are joined, each from one file. Any other
//! key that two files set is a fault that names both places. A key without a row is kept for the
//! reader, which reports it.

use crate::fault::{ConfigFault, TextPlace, quoted};
use crate::keys::{KeyRow, SectionCount, SectionTable};
use crate::tree::{YamlKey, YamlNode, YamlValue};

/// Joins trees of several files.
pub(super) struct FileMerger<'m> {
    /// Name of the file with number 0.
    pub main: &'m str,
    /// Names of the other files.
    pub included: &'m [String],
    pub faults: &'m mut Vec<ConfigFault>,
}

impl FileMerger<'_> {
    /// Adds the keys of `part`, which another file has, to the section `whole`.
    pub fn merge(
        &mut self,
        table: &'static SectionTable,
        path: &str,
        whole: &mut YamlNode,
        part: YamlNode,
    ) {
        let YamlNode { value: YamlValue::Map(added), place, .. } = part else { return };
        if whole.value == YamlValue::Null {
            *whole = YamlNode { place, ..YamlNode::made(YamlValue::Map(Vec::new())) };
        }
        let YamlValue::Map(entries) = &mut whole.value else { return };
        for (key, node) in added {
            // A key that occurs twice in one file is left to the reader.
            let is_other = |(other, _): &&mut (YamlKey, YamlNode)| {
                other.name == key.name && other.place.file != key.place.file
            };
            let before = entries.iter_mut().find(is_other);
            match (before, table.row(&key.name)) {
                (Some((first, before)), Some(row)) => {
                    let path = match path {
                        "" => key.name.clone(),
                        _ => format!("{path}.{}", key.name),
                    };
                    self.join(row, &path, (first, before), (key, node));
                }
                _ => entries.push((key, node)),
            }
        }
    }

    /// Joins two values of one key.
    fn join(
        &mut self,
        row: &'static dyn KeyRow,
        path: &str,
        (first, before): (&YamlKey, &mut YamlNode),
        (key, node): (YamlKey, YamlNode),
    ) {
        let is_map = |node: &YamlNode| matches!(node.value, YamlValue::Map(_));
        match row.section() {
            _ if node.value == YamlValue::Null => {}
            _ if before.value == YamlValue::Null => *before = node,
            Some(section) if section.count == SectionCount::One => {
                match is_map(before) && is_map(&node) {
                    true => self.merge(section.table, path, before, node),
                    false => self.twice(path, first.place, key.place),
                }
            }
            Some(section) if section.count == SectionCount::List => append(before, node),
            Some(_) => self.names((first, before), (key, node)),
            None if row.is_map() && (is_map(before) || is_map(&node)) => {
                self.names((first, before), (key, node));
            }
            None if row.is_list() => append(before, node),
            None => self.twice(path, first.place, key.place),
        }
    }

    /// Joins names with values. A name may be in one of the files only.
    fn names(
        &mut self,
        (first, before): (&YamlKey, &mut YamlNode),
        (key, node): (YamlKey, YamlNode),
    ) {
        let (YamlValue::Map(entries), YamlValue::Map(added)) = (&mut before.value, node.value)
        else {
            return self.twice(&key.name, first.place, key.place);
        };
        for (name, node) in added {
            let is_other = |(other, _): &&(YamlKey, YamlNode)| {
                other.name == name.name && other.place.file != name.place.file
            };
            match entries.iter().find(is_other).map(|(other, _)| other.place) {
                Some(other) => self.twice(&name.name, other, name.place),
                None => entries.push((name, node)),
            }
        }
    }

    fn twice(&mut self, name: &str, first: TextPlace, place: TextPlace) {
        let TextPlace { file, line, column } = first;
        let included = usize::from(file).checked_sub(1).and_then(|at| self.included.get(at));
        let file = included.map_or(self.main, String::as_str);
        let what = format!("{} is already set in {file}:{line}:{column}; remove one", quoted(name));
        self.faults.push(ConfigFault::new(place, what));
    }
}

/// Appends one list to another. A single value is a list of one.
fn append(before: &mut YamlNode, node: YamlNode) {
    let mut items = before.items().to_vec();
    items.extend(node.items().iter().cloned());
    before.value = YamlValue::List(items);
}

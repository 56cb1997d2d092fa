//! Reads one section of the tree, key by key, and records what it has read.
//!
//! Each key that the code asks for becomes known. When the section is closed, every other key is
//! reported as unknown, with the most similar known key. Each value, written or default, is also
//! kept as text, so that `show` prints exactly the active configuration. A fault does not stop the
//! reading: the default replaces the faulty value, and the whole configuration is rejected at the
//! end.

mod outline;

use super::fault::{ConfigFault, TextPlace, nearest, quoted};
use super::keys::{ConfigKey, DefaultedKey, ListKey};
use super::tree::{YamlKey, YamlNode, YamlValue};
pub use super::values::{Read, one_of, within};
use std::collections::HashMap;
use std::fmt::Display;

pub use outline::{KeyForm, ScalarForm, SectionOutline};

/// Number of faults after which the keys of a section are no longer checked. More would not be read
/// anyway.
const FAULTS_MAX: usize = 100;

/// Maximum length of a list of single values. Some lists are scanned for each request.
const ENTRIES_MAX: usize = 1024;

/// A row that can be read from a section.
pub trait ReadKey {
    /// The value: optional, certain or a list, by the kind of the row.
    type Value;

    /// Reads the value and records it for `show`.
    fn read_in(&'static self, section: &mut SectionReader<'_, '_>) -> Self::Value;
}

/// A section while it is read.
pub struct SectionReader<'n, 'f> {
    /// Place where the section begins.
    pub place: TextPlace,
    name: &'static str,
    entries: &'n [(YamlKey, YamlNode)],
    asked: Vec<&'static str>,
    shown: Vec<(&'static str, YamlNode)>,
    faults: &'f mut Vec<ConfigFault>,
    /// The record of all keys that were asked for, if [`SectionReader::note`] was called.
    outline: Option<SectionOutline>,
}

impl<'n, 'f> SectionReader<'n, 'f> {
    /// Opens the section in `node`. If it is absent or empty, all keys have their defaults.
    pub fn open(
        name: &'static str,
        node: Option<&'n YamlNode>,
        place: TextPlace,
        faults: &'f mut Vec<ConfigFault>,
    ) -> SectionReader<'n, 'f> {
        let place = node.map_or(place, |node| node.place);
        let entries: &[(YamlKey, YamlNode)] = match node.map(|node| &node.value) {
            Some(YamlValue::Map(entries)) => entries,
            None | Some(YamlValue::Null) => &[],
            Some(_) => {
                let what = format!("`{name}` must be a section: keys with values");
                faults.push(ConfigFault::new(place, what));
                &[]
            }
        };
        SectionReader {
            place,
            name,
            entries,
            asked: Vec::new(),
            shown: Vec::new(),
            faults,
            outline: None,
        }
    }

    /// The settings of a section without any key.
    pub fn defaults<T>(read: impl FnOnce(&mut SectionReader<'_, '_>) -> T) -> T {
        let mut faults = Vec::new();
        read(&mut SectionReader::open("", None, TextPlace::default(), &mut faults))
    }

    /// Starts to record the keys that are asked for.
    pub fn note(&mut self) {
        self.outline.get_or_insert_default();
    }

    /// Takes the recorded keys; empty if they were not recorded.
    pub fn noted(&mut self) -> SectionOutline {
        self.outline.take().unwrap_or_default()
    }

    /// Records a further value of `key` for the schema: this word, or any text if it is `None`.
    pub fn takes(&mut self, key: &'static str, word: Option<&str>) {
        self.note_form(key, || {
            let words = word.map(str::to_owned).into_iter().collect();
            let single = ScalarForm { words, free: word.is_none(), ..ScalarForm::default() };
            KeyForm { single: Some(single), ..KeyForm::default() }
        });
    }

    fn note_form(&mut self, key: &'static str, form: impl FnOnce() -> KeyForm) {
        if let Some(outline) = &mut self.outline {
            outline.note(key, form());
        }
    }

    fn note_single<T>(&mut self, key: &'static str, many: bool, read: impl Fn(&str) -> Read<T>) {
        self.note_form(key, || KeyForm {
            single: Some(ScalarForm::from_message(read)),
            many,
            ..KeyForm::default()
        });
    }

    /// Ends the section: reports keys that nobody asked for, and those that are there twice.
    /// Returns what was read.
    pub fn close(self) -> YamlNode {
        let mut seen = HashMap::new();
        for (key, _) in self.entries {
            let name = key.name.as_str();
            let first = *seen.entry(name).or_insert(key.place);
            let what = if first != key.place {
                format!("{} is here twice, first in line {}; remove one", quoted(name), first.line)
            } else if !self.asked.contains(&name) {
                unknown(name, self.name, &self.asked)
            } else {
                continue;
            };
            self.faults.push(ConfigFault::new(key.place, what));
            if self.faults.len() > FAULTS_MAX {
                break;
            }
        }
        YamlNode::map(self.shown)
    }

    /// Whether the section has this key with a value.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(k, node)| k.name == key && node.value != YamlValue::Null)
    }

    /// Whether the section has this key, with or without a value.
    #[must_use]
    pub fn written(&self, key: &str) -> bool {
        self.entries.iter().any(|(k, _)| k.name == key)
    }

    /// Place of a key's value; the place of the section if it has no such key.
    #[must_use]
    pub fn place_of(&self, key: &str) -> TextPlace {
        self.entries.iter().find(|e| e.0.name == key).map_or(self.place, |e| e.1.place)
    }

    /// Reports a fault at `key`.
    pub fn fault(&mut self, key: &str, what: impl Into<String>) {
        let place = self.place_of(key);
        self.faults.push(ConfigFault::new(place, what));
    }

    /// The node of `key`. `None` if the key is absent or has no value.
    pub fn node(&mut self, key: &'static str) -> Option<&'n YamlNode> {
        self.allow(key);
        let (_, node) = self.entries.iter().find(|(k, _)| k.name == key)?;
        (node.value != YamlValue::Null).then_some(node)
    }

    /// Makes a key known without reading it.
    pub fn allow(&mut self, key: &'static str) {
        if !self.asked.contains(&key) {
            self.asked.push(key);
            self.note_form(key, KeyForm::default);
        }
    }

    /// Records the active value of `key` for `show`. It replaces an earlier record.
    pub fn show(&mut self, key: &'static str, node: YamlNode) {
        self.shown.retain(|(shown, _)| *shown != key);
        self.shown.push((key, node));
    }

    /// Reads the key of a row.
    pub fn key<K: ReadKey>(&mut self, key: &'static K) -> K::Value {
        key.read_in(self)
    }

    /// Reads the key of a row whose default depends on something else.
    pub fn key_or<T: Clone>(&mut self, key: &'static ConfigKey<T>, default: T) -> T {
        self.key(key).unwrap_or_else(|| {
            self.show(key.name(), YamlNode::text(key.write(&default)));
            default
        })
    }

    /// Reads a single value. `None` if the key is absent or the value is faulty.
    pub fn optional<T>(&mut self, key: &'static str, read: impl Fn(&str) -> Read<T>) -> Option<T> {
        self.note_single(key, false, &read);
        let node = self.node(key)?;
        let value = self.read(key, node, &read)?;
        if let YamlValue::Text(text) = &node.value {
            self.show(key, YamlNode::text(text));
        }
        Some(value)
    }

    /// Reads a single value, or returns the default.
    pub fn value<T: Display>(
        &mut self,
        key: &'static str,
        default: T,
        read: impl Fn(&str) -> Read<T>,
    ) -> T {
        self.optional(key, read).unwrap_or_else(|| {
            self.show(key, YamlNode::text(default.to_string()));
            self.note_form(key, || {
                let single =
                    ScalarForm { defaults: vec![default.to_string()], ..ScalarForm::default() };
                KeyForm { single: Some(single), ..KeyForm::default() }
            });
            default
        })
    }

    /// Reads a list or a single value as a list of one. Returns the default if the key is absent.
    pub fn list<T: Display>(
        &mut self,
        key: &'static str,
        default: Vec<T>,
        read: impl Fn(&str) -> Read<T>,
    ) -> Vec<T> {
        let values = self.values(key, read);
        if !values.is_empty() {
            return values;
        }
        let default = match self.node(key).map(|node| &node.value) {
            Some(YamlValue::List(items)) if items.is_empty() => Vec::new(),
            _ => default,
        };
        let texts = default.iter().map(|value| YamlNode::text(value.to_string())).collect();
        self.show(key, YamlNode::made(YamlValue::List(texts)));
        default
    }

    /// Reads a list or a single value as a list of one. Returns an empty list if the key is absent.
    pub fn values<T>(&mut self, key: &'static str, read: impl Fn(&str) -> Read<T>) -> Vec<T> {
        self.note_single(key, true, &read);
        let Some(node) = self.node(key) else { return Vec::new() };
        let items = match &node.value {
            YamlValue::List(items) => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        if items.len() > ENTRIES_MAX {
            let what =
                format!("{} entries are too many; at most {ENTRIES_MAX} are read", items.len());
            self.faults.push(ConfigFault::new(node.place, what));
            return Vec::new();
        }
        let values = items.iter().filter_map(|item| self.read(key, item, &read)).collect();
        if !items.is_empty() {
            self.show(key, YamlNode::made(YamlValue::List(items.to_vec())));
        }
        values
    }

    /// Reads an inner section. If it is absent, all its keys have their defaults.
    pub fn section<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut SectionReader<'n, '_>) -> T,
    ) -> T {
        let node = self.node(key);
        let (value, shown, noted) = self.inner(key, node, read);
        self.note_form(key, || KeyForm { section: Some(Box::new(noted)), ..KeyForm::default() });
        if !matches!(&shown.value, YamlValue::Map(entries) if entries.is_empty()) {
            self.show(key, shown);
        }
        value
    }

    /// Reads the list of sections `nodes`, which belongs to `key`.
    pub fn sections<T>(
        &mut self,
        key: &'static str,
        nodes: &'n [YamlNode],
        mut read: impl FnMut(&mut SectionReader<'n, '_>) -> T,
    ) -> Vec<T> {
        let mut values = Vec::with_capacity(nodes.len());
        let mut shown = Vec::with_capacity(nodes.len());
        for node in nodes {
            let (value, node, noted) = self.inner(key, Some(node), &mut read);
            self.note_form(key, || KeyForm {
                sections: Some(Box::new(noted)),
                ..KeyForm::default()
            });
            values.push(value);
            shown.push(node);
        }
        self.show(key, YamlNode::made(YamlValue::List(shown)));
        values
    }

    /// Reads a section with names as keys, each with a list of sections or a single one.
    pub fn named<T>(
        &mut self,
        key: &'static str,
        mut read: impl FnMut(&mut SectionReader<'n, '_>) -> T,
    ) -> Vec<(&'n str, Vec<T>)> {
        let Some(node) = self.node(key) else { return Vec::new() };
        let YamlValue::Map(entries) = &node.value else {
            self.fault(key, format!("`{key}` must be a section of names"));
            return Vec::new();
        };
        let (mut all, mut shown): (Vec<(&str, Vec<T>)>, _) = (Vec::new(), Vec::new());
        for (name, node) in entries {
            let nodes = match &node.value {
                YamlValue::List(nodes) => nodes.as_slice(),
                YamlValue::Null => &[],
                _ => std::slice::from_ref(node),
            };
            let (mut values, mut sections) = (Vec::new(), Vec::new());
            for node in nodes {
                let (value, node, noted) = self.inner(key, Some(node), &mut read);
                self.note_form(key, || KeyForm {
                    named: Some(Box::new(noted)),
                    ..KeyForm::default()
                });
                values.push(value);
                sections.push(node);
            }
            if all.iter().any(|(other, _)| *other == name.name) {
                let what = format!("{} is there twice; remove one", quoted(&name.name));
                self.faults.push(ConfigFault::new(name.place, what));
            }
            all.push((&name.name, values));
            shown.push((&*name.name, YamlNode::made(YamlValue::List(sections))));
        }
        self.show(key, YamlNode::map(shown));
        all
    }

    fn inner<T>(
        &mut self,
        key: &'static str,
        node: Option<&'n YamlNode>,
        read: impl FnOnce(&mut SectionReader<'n, '_>) -> T,
    ) -> (T, YamlNode, SectionOutline) {
        let mut section = SectionReader::open(key, node, self.place, self.faults);
        section.outline = self.outline.as_ref().map(|_| SectionOutline::default());
        let value = read(&mut section);
        let noted = section.noted();
        (value, section.close(), noted)
    }

    fn read<T>(&mut self, key: &str, node: &YamlNode, read: impl Fn(&str) -> Read<T>) -> Option<T> {
        let result = match &node.value {
            YamlValue::Text(text) => {
                read(text).map_err(|why| format!("`{key}` is {}: {why}", quoted(text)))
            }
            YamlValue::Null => Err(format!("`{key}` has an empty entry; remove it")),
            YamlValue::List(_) => Err(format!("`{key}` must be a single value, not a list")),
            YamlValue::Map(_) => Err(format!("`{key}` must be a single value, not a section")),
        };
        result.map_err(|what| self.faults.push(ConfigFault::new(node.place, what))).ok()
    }
}

fn unknown(name: &str, section: &str, known: &[&'static str]) -> String {
    let place = if section.is_empty() { String::new() } else { format!(" in `{section}`") };
    let start = format!("there is no key {}{place}", quoted(name));
    match nearest(name, known) {
        Some(nearest) => format!("{start}; did you mean `{nearest}`?"),
        None => format!("{start}; known are {}", known.join(", ")),
    }
}

impl<T: Clone> ReadKey for ConfigKey<T> {
    type Value = Option<T>;

    fn read_in(&'static self, section: &mut SectionReader<'_, '_>) -> Option<T> {
        section.optional(self.name(), |text| self.parse(text))
    }
}

impl<T: Clone> ReadKey for DefaultedKey<T> {
    type Value = T;

    fn read_in(&'static self, section: &mut SectionReader<'_, '_>) -> T {
        section.key_or(self.key(), self.preset())
    }
}

impl<T: Clone> ReadKey for ListKey<T> {
    type Value = Vec<T>;

    fn read_in(&'static self, section: &mut SectionReader<'_, '_>) -> Vec<T> {
        let key = self.key();
        let values = section.values(key.name(), |text| key.parse(text));
        let Some(preset) = self.preset().filter(|_| values.is_empty()) else { return values };
        let values = match section.node(key.name()).map(|node| &node.value) {
            Some(YamlValue::List(items)) if items.is_empty() => Vec::new(),
            _ => preset,
        };
        let texts = values.iter().map(|value| YamlNode::text(key.write(value))).collect();
        section.show(key.name(), YamlNode::made(YamlValue::List(texts)));
        values
    }
}

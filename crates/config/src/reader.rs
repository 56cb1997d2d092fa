//! Reads one section of the tree, key by key, and records what it has read.
//!
//! The keys are the rows of the section's table (`keys`). When the section is closed, every other
//! key is reported as unknown, with the most similar known key. Each value, written or default, is
//! also kept as text, so that `show` prints exactly the active configuration. A fault does not stop
//! the reading: the default replaces the faulty value, and the whole configuration is rejected at
//! the end.

mod unknown;

use super::fault::{ConfigFault, TextPlace, quoted};
use super::keys::{ConfigKey, DefaultedKey, KeyRow, ListKey, SectionTable, SubsectionKey};
use super::tree::{YamlKey, YamlNode, YamlValue};
use super::values::Read;
use std::collections::HashMap;

/// Number of faults after which the keys of a section are no longer checked. More would not be read
/// anyway.
const FAULTS_MAX: usize = 100;

/// Maximum length of a list of single values. Some lists are scanned for each request.
const ENTRIES_MAX: usize = 1024;

/// Beginning of keys that every section may have, and that mean nothing.
pub(crate) const IGNORED_PREFIX: &str = "x-";

/// A row that can be read from a section.
pub trait ReadKey {
    /// The value: optional, certain or a list, by the kind of the row.
    type Value;

    /// Reads the value and records it for `show`.
    fn read_in(&'static self, section: &mut SectionReader<'_, '_>) -> Self::Value;
}

/// Declares the settings of a section and the function that reads them. The comment above a key is
/// its description for users, too.
///
/// After the head, which names the struct and its function, each entry is one of these:
/// - `pub field: Type, ROW: Kind = row;` a field that is filled by the key of this row;
/// - `pub field: Type, ROW: Kind = row => expression;` one that the expression fills;
/// - `pub field: Type = expression;` a field that is computed, perhaps from the fields before it;
/// - `ROW: Kind = row;` a row that an expression reads;
/// - `let name = expression;` a value for the fields after it.
///
/// With `, TABLE = "path"` in the head, the rows are the table of this section (`keys::section`).
macro_rules! settings {
    // The head. The entries follow one by one, and each goes into the lists that it belongs to: the
    // fields of the struct, the statements that read them, their names, and the rows.
    (
        $(#[$about:meta])*
        pub struct $name:ident from $read:ident($section:ident $(, $more:ident: $kind:ty)*)
        $(, $table:ident = $path:literal)?;
        $($entries:tt)+
    ) => {
        $crate::reader::settings! {
            @ [$(#[$about])* $name $read [$($more: $kind),*]] $section
            [] [] [] [$($table = $path;)?] $($entries)+
        }
    };
    // A field that its row fills is one that an expression fills.
    (
        @ $head:tt $section:ident $fields:tt $reads:tt $names:tt $rows:tt
        $(#[doc = $doc:literal])+ pub $field:ident: $type:ty, $row:ident: $kind:ty = $key:expr;
        $($entries:tt)*
    ) => {
        $crate::reader::settings! {
            @ $head $section $fields $reads $names $rows $(#[doc = $doc])+
            pub $field: $type, $row: $kind = $key => $section.key(&$row).into(); $($entries)*
        }
    };
    // A field with a row and an expression.
    (
        @ $head:tt $section:ident [$($fields:tt)*] [$($reads:tt)*] [$($names:tt)*] [$($rows:tt)*]
        $(#[doc = $doc:literal])+
        pub $field:ident: $type:ty, $row:ident: $kind:ty = $key:expr => $value:expr;
        $($entries:tt)*
    ) => {
        $crate::reader::settings! {
            @ $head $section [$($fields)* $(#[doc = $doc])+ pub $field: $type,]
            [$($reads)* let $field: $type = $value;] [$($names)* $field,]
            [$($rows)* $(#[doc = $doc])+ $row: $kind = $key;] $($entries)*
        }
    };
    // A field without a row.
    (
        @ $head:tt $section:ident [$($fields:tt)*] [$($reads:tt)*] [$($names:tt)*] $rows:tt
        $(#[doc = $doc:literal])+ pub $field:ident: $type:ty = $value:expr;
        $($entries:tt)*
    ) => {
        $crate::reader::settings! {
            @ $head $section [$($fields)* $(#[doc = $doc])+ pub $field: $type,]
            [$($reads)* let $field: $type = $value;] [$($names)* $field,] $rows $($entries)*
        }
    };
    // A value for the fields after it.
    (
        @ $head:tt $section:ident $fields:tt [$($reads:tt)*] $names:tt $rows:tt
        let $value:ident = $read:expr; $($entries:tt)*
    ) => {
        $crate::reader::settings! {
            @ $head $section $fields [$($reads)* let $value = $read;] $names $rows $($entries)*
        }
    };
    // A row without a field.
    (
        @ $head:tt $section:ident $fields:tt $reads:tt $names:tt [$($rows:tt)*]
        $(#[doc = $doc:literal])+ $row:ident: $kind:ty = $key:expr;
        $($entries:tt)*
    ) => {
        $crate::reader::settings! {
            @ $head $section $fields $reads $names
            [$($rows)* $(#[doc = $doc])+ $row: $kind = $key;] $($entries)*
        }
    };
    // No more entries: the lists are complete.
    (
        @ [$(#[$about:meta])* $name:ident $read:ident [$($more:ident: $kind:ty),*]] $section:ident
        [$($fields:tt)*] [$($reads:tt)*] [$($names:tt)*] [$($rows:tt)*]
    ) => {
        $(#[$about])*
        pub struct $name {
            $($fields)*
        }

        /// Reads the section.
        pub(crate) fn $read(
            $section: &mut $crate::reader::SectionReader<'_, '_>
            $(, $more: $kind)*
        ) -> $name {
            $($reads)*
            $name { $($names)* }
        }

        $crate::keys::section! { $($rows)* }
    };
}
pub(crate) use settings;

/// A section while it is read.
pub struct SectionReader<'n, 'f> {
    /// Place where the section begins.
    pub place: TextPlace,
    name: &'static str,
    entries: &'n [(YamlKey, YamlNode)],
    table: &'static SectionTable,
    /// Whether there is something else in its place, which has been reported.
    is_malformed: bool,
    shown: Vec<(&'static str, YamlNode)>,
    faults: &'f mut Vec<ConfigFault>,
}

impl<'n, 'f> SectionReader<'n, 'f> {
    /// Opens the section in `node`. If it is absent or empty, all keys have their defaults.
    pub fn open(
        name: &'static str,
        table: &'static SectionTable,
        node: Option<&'n YamlNode>,
        place: TextPlace,
        faults: &'f mut Vec<ConfigFault>,
    ) -> SectionReader<'n, 'f> {
        let place = node.map_or(place, |node| node.place);
        let (entries, is_malformed): (&[(YamlKey, YamlNode)], _) =
            match node.map(|node| &node.value) {
                Some(YamlValue::Map(entries)) => (entries, false),
                None | Some(YamlValue::Null) => (&[], false),
                Some(_) => {
                    let what = match name {
                        "" => "the file must be a section: keys with values, such as `proxy:`; \
                               perhaps it is not YAML"
                            .to_owned(),
                        _ => format!("`{name}` must be a section: keys with values"),
                    };
                    faults.push(ConfigFault::new(place, what));
                    (&[], true)
                }
            };
        SectionReader { place, name, table, entries, is_malformed, shown: Vec::new(), faults }
    }

    /// The settings of a section without any key.
    pub fn defaults<T>(
        table: &'static SectionTable,
        read: impl FnOnce(&mut SectionReader<'_, '_>) -> T,
    ) -> T {
        let mut faults = Vec::new();
        read(&mut SectionReader::open("", table, None, TextPlace::default(), &mut faults))
    }

    /// Ends the section: reports unknown keys and those that are present twice.
    /// Returns what was read.
    pub fn close(self) -> YamlNode {
        let mut seen = HashMap::new();
        for (key, value) in self.entries {
            let name = key.name.as_str();
            if self.is_ignored(name) {
                continue;
            }
            let first = *seen.entry(name).or_insert(key.place);
            let what = if first != key.place && first.file == key.place.file {
                format!("{} occurs twice, first in line {}; remove one", quoted(name), first.line)
            } else if self.table.row(name).is_none() {
                unknown::message(name, value, (self.name, self.table))
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

    /// Whether the section has no keys at all. What is no section is not blank: it is a fault
    /// already.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.entries.iter().all(|(key, _)| self.is_ignored(&key.name)) && !self.is_malformed
    }

    /// Whether the key is for the user alone, such as one that holds anchors.
    fn is_ignored(&self, name: &str) -> bool {
        name.starts_with(IGNORED_PREFIX) && self.table.row(name).is_none()
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

    /// Reports a fault of the value of `key`. The message begins with the key, or with the flag or
    /// variable that the value comes from; `what` is the rest of the sentence.
    pub fn fault_of(&mut self, key: &str, what: impl Into<String>) {
        let input = self.node(key).and_then(|node| node.input.clone());
        let fault = ConfigFault::new(self.place_of(key), what);
        self.faults.push(fault.about(key, input));
    }

    /// Reports a fault at `key`.
    pub fn fault(&mut self, key: &str, what: impl Into<String>) {
        let place = self.place_of(key);
        self.faults.push(ConfigFault::new(place, what));
    }

    /// Reports a fault at `place`.
    pub fn fault_at(&mut self, place: TextPlace, what: impl Into<String>) {
        self.faults.push(ConfigFault::new(place, what));
    }

    /// Reports faults that were found apart from this section.
    pub fn report(&mut self, faults: impl IntoIterator<Item = ConfigFault>) {
        self.faults.extend(faults);
    }

    /// Warns at `place`, without refusing the configuration.
    pub fn warn(&mut self, place: TextPlace, what: impl Into<String>) {
        self.faults.push(ConfigFault::new(place, what).as_warning());
    }

    /// Reports each of `keys` that has no value, by the message that `what` makes of its name.
    pub fn require(&mut self, keys: &[&str], what: impl Fn(&str) -> String) {
        for key in keys.iter().filter(|key| !self.has(key)).collect::<Vec<_>>() {
            self.fault(key, what(key));
        }
    }

    /// Reports each of `keys` that has a value, which is of no use; `what` says why.
    pub fn refuse(&mut self, keys: &[&str], what: &str) {
        for key in keys.iter().filter(|key| self.has(key)).collect::<Vec<_>>() {
            self.fault_of(key, what);
        }
    }

    /// Reports each key that is written without a value: nothing, or an empty list or section.
    pub fn refuse_empty(&mut self) {
        for (key, node) in self.entries.iter().filter(|(_, node)| node.is_empty()) {
            let Some(row) = self.table.row(&key.name) else { continue };
            let place = if node.value == YamlValue::Null { key.place } else { node.place };
            let fault = ConfigFault::new(place, "is empty; remove the key, or write a value");
            self.faults.push(fault.about(row.facts().name, None));
        }
    }

    /// The node of `key`. `None` if the key is absent or has no value.
    #[must_use]
    pub fn node(&self, key: &str) -> Option<&'n YamlNode> {
        let (_, node) = self.entries.iter().find(|(k, _)| k.name == key)?;
        (node.value != YamlValue::Null).then_some(node)
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
            self.show_default(key, &default);
            default
        })
    }

    /// Records a default for `show`.
    pub fn show_default<T: Clone>(&mut self, key: &'static ConfigKey<T>, default: &T) {
        self.show(key.name(), YamlNode::text(key.write(default)));
    }

    /// Reads the key of a row whose values depend on something else.
    pub fn key_with<T>(&mut self, key: &str, read: impl Fn(&str) -> Read<T>) -> Option<T> {
        let (key, node) = self.row_and_node(key)?;
        let value = self.read(key, node, &read)?;
        if let YamlValue::Text(text) = &node.value {
            self.show(key, YamlNode::text(text));
        }
        Some(value)
    }

    /// Reads a list or a single value as a list of one. Returns an empty list if the key is absent.
    pub fn list_with<T>(&mut self, key: &str, read: impl Fn(&str) -> Read<T>) -> Vec<T> {
        let Some((key, node)) = self.row_and_node(key) else { return Vec::new() };
        let items = self.items(node);
        let values = items.iter().filter_map(|item| self.read(key, item, &read)).collect();
        if !items.is_empty() {
            self.show(key, YamlNode::made(YamlValue::List(items.to_vec())));
        }
        values
    }

    /// The entries of a list; a single value is a list of one. Too many are reported.
    fn items(&mut self, node: &'n YamlNode) -> &'n [YamlNode] {
        let items = match &node.value {
            YamlValue::List(items) => items.as_slice(),
            _ => std::slice::from_ref(node),
        };
        if items.len() > ENTRIES_MAX {
            let what =
                format!("{} entries are too many; at most {ENTRIES_MAX} are read", items.len());
            self.faults.push(ConfigFault::new(node.place, what));
            return &[];
        }
        items
    }

    /// Reads names with values: `{accept: ["*html*", absent]}`. `None` if the key has another form.
    pub fn map_with<N, T>(
        &mut self,
        key: &str,
        name: impl Fn(&str) -> Read<N>,
        read: impl Fn(&str) -> Read<T>,
    ) -> Option<Vec<(N, Vec<T>)>> {
        let (key, node) = self.row_and_node(key)?;
        let YamlValue::Map(entries) = &node.value else { return None };
        let mut all = Vec::new();
        for (written, node) in entries {
            let named =
                name(&written.name).map_err(|why| format!("{}: {why}", quoted(&written.name)));
            let items = self.items(node);
            if items.is_empty() {
                let fault = ConfigFault::new(node.place, "has an empty entry; remove it");
                self.faults.push(fault.about(key, None));
            }
            let values = items.iter().filter_map(|item| self.read(key, item, &read));
            let values = values.collect::<Vec<_>>();
            match named {
                Ok(name) => all.push((name, values)),
                Err(what) => self.faults.push(ConfigFault::new(written.place, what)),
            }
        }
        self.show(key, node.clone());
        Some(all)
    }

    /// Reads a list of values and sections. Returns the values, and what `inner` makes of the
    /// sections.
    pub fn list_and_sections<T: Clone + PartialEq + Sync, S>(
        &mut self,
        key: &'static ListKey<T>,
        mut inner: impl FnMut(&mut SectionReader<'n, '_>) -> S,
    ) -> (Vec<T>, Vec<S>) {
        let (name, one) = (key.name(), key.key());
        let Some(node) = self.node(name) else { return (self.key(key), Vec::new()) };
        let (mut values, mut sections, mut shown) = (Vec::new(), Vec::new(), Vec::new());
        for item in self.items(node) {
            let table = key.entry_table().filter(|_| matches!(item.value, YamlValue::Map(_)));
            let Some(table) = table else {
                values.extend(self.read(name, item, |text| one.parse(text)));
                shown.push(item.clone());
                continue;
            };
            let mut section = SectionReader::open(name, table, Some(item), item.place, self.faults);
            sections.push(inner(&mut section));
            shown.push(section.close());
        }
        self.show(name, YamlNode::made(YamlValue::List(shown)));
        (values, sections)
    }

    /// Reads a list whose default depends on something else.
    pub fn list_or<T: Clone>(&mut self, key: &'static ListKey<T>, default: Vec<T>) -> Vec<T> {
        let one = key.key();
        let values = self.list_with(one.name(), |text| one.parse(text));
        if !values.is_empty() {
            return values;
        }
        let values = match self.node(one.name()).map(|node| &node.value) {
            Some(YamlValue::List(items)) if items.is_empty() => Vec::new(),
            _ => default,
        };
        let texts = values.iter().map(|value| YamlNode::text(one.write(value))).collect();
        self.show(one.name(), YamlNode::made(YamlValue::List(texts)));
        values
    }

    /// The name of a key as its row has it, and its node. `None` if the key has no value.
    fn row_and_node(&self, key: &str) -> Option<(&'static str, &'n YamlNode)> {
        let row = self.table.row(key);
        debug_assert!(row.is_some(), "`{key}` has no row in `{}`", self.table.path);
        row.map(|row| row.facts().name).zip(self.node(key))
    }

    /// Reads an inner section. If it is absent, all its keys have their defaults.
    pub fn section<T>(
        &mut self,
        key: &'static SubsectionKey,
        read: impl FnOnce(&mut SectionReader<'n, '_>) -> T,
    ) -> T {
        let node = self.node(key.name());
        let (value, shown) = self.inner(key, node, read);
        if !matches!(&shown.value, YamlValue::Map(entries) if entries.is_empty()) {
            self.show(key.name(), shown);
        }
        value
    }

    /// Reads an inner section if its key is present, with or without a value.
    pub fn section_if_written<T>(
        &mut self,
        key: &'static SubsectionKey,
        read: impl FnOnce(&mut SectionReader<'n, '_>) -> T,
    ) -> Option<T> {
        self.written(key.name()).then(|| self.section(key, read))
    }

    /// The nodes of a list of sections. A single section is a list of one.
    #[must_use]
    pub fn nodes_of(&self, key: &'static SubsectionKey) -> Option<&'n [YamlNode]> {
        let node = self.node(key.name())?;
        Some(match &node.value {
            YamlValue::List(nodes) => nodes.as_slice(),
            _ => std::slice::from_ref(node),
        })
    }

    /// Reads the list of sections `nodes`, which belongs to `key`.
    pub fn sections<T>(
        &mut self,
        key: &'static SubsectionKey,
        nodes: &'n [YamlNode],
        mut read: impl FnMut(&mut SectionReader<'n, '_>) -> T,
    ) -> Vec<T> {
        let read = nodes.iter().map(|node| self.inner(key, Some(node), &mut read));
        let (values, shown): (Vec<T>, Vec<YamlNode>) = read.unzip();
        self.show(key.name(), YamlNode::made(YamlValue::List(shown)));
        values
    }

    /// Reads a section with names as keys, each with a list of sections or a single one.
    pub fn named<T>(
        &mut self,
        key: &'static SubsectionKey,
        mut read: impl FnMut(&mut SectionReader<'n, '_>) -> T,
    ) -> Vec<(&'n str, Vec<T>)> {
        let mut all = Vec::new();
        self.named_with(
            key,
            &mut all,
            |section, _| read(section),
            |all, name, values| {
                all.push((name, values));
                Ok(())
            },
        );
        all
    }

    /// Like [`SectionReader::named`]: `done` adds what is read under each name to `so_far`, which
    /// the names after it can use. Its error is reported at the name.
    pub fn named_with<S, T>(
        &mut self,
        key: &'static SubsectionKey,
        so_far: &mut S,
        mut read: impl FnMut(&mut SectionReader<'n, '_>, &S) -> T,
        mut done: impl FnMut(&mut S, &'n str, Vec<T>) -> Result<(), String>,
    ) {
        let Some(node) = self.node(key.name()) else { return };
        let YamlValue::Map(entries) = &node.value else {
            return self.fault(key.name(), format!("`{}` must be a section of names", key.name()));
        };
        let mut shown: Vec<(&str, YamlNode)> = Vec::new();
        for (name, node) in entries {
            let nodes = match &node.value {
                YamlValue::List(nodes) => nodes.as_slice(),
                YamlValue::Null => &[],
                _ => std::slice::from_ref(node),
            };
            let values = nodes
                .iter()
                .map(|node| self.inner(key, Some(node), |section| read(section, so_far)));
            let (values, sections) = values.unzip();
            if shown.iter().any(|(other, _)| *other == name.name) {
                let what = format!("{} occurs twice; remove one", quoted(&name.name));
                self.faults.push(ConfigFault::new(name.place, what));
            } else if let Err(what) = done(so_far, &name.name, values) {
                self.faults.push(ConfigFault::new(name.place, what));
            }
            shown.push((&*name.name, YamlNode::made(YamlValue::List(sections))));
        }
        self.show(key.name(), YamlNode::map(shown));
    }

    fn inner<T>(
        &mut self,
        key: &'static SubsectionKey,
        node: Option<&'n YamlNode>,
        read: impl FnOnce(&mut SectionReader<'n, '_>) -> T,
    ) -> (T, YamlNode) {
        let (name, place) = (key.name(), self.place);
        let mut section = SectionReader::open(name, key.table, node, place, self.faults);
        let value = read(&mut section);
        (value, section.close())
    }

    fn read<T>(&mut self, key: &str, node: &YamlNode, read: impl Fn(&str) -> Read<T>) -> Option<T> {
        let result = match &node.value {
            YamlValue::Text(text) => {
                read(text).map_err(|why| format!("is {}: {why}", quoted(text)))
            }
            YamlValue::Null => Err("has an empty entry; remove it".to_owned()),
            YamlValue::List(_) => Err("must be a single value, not a list".to_owned()),
            YamlValue::Map(_) => Err("must be a single value, not a section".to_owned()),
        };
        let fault = |what| ConfigFault::new(node.place, what).about(key, node.input.clone());
        result.map_err(|what| self.faults.push(fault(what))).ok()
    }
}

impl<T: Clone> ReadKey for ConfigKey<T> {
    type Value = Option<T>;

    fn read_in(&'static self, section: &mut SectionReader<'_, '_>) -> Option<T> {
        section.key_with(self.name(), |text| self.parse(text))
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
        match self.preset() {
            Some(preset) => section.list_or(self, preset),
            None => section.list_with(self.key().name(), |text| self.key().parse(text)),
        }
    }
}

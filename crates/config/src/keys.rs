//! A configuration key as one row of a table: name, form, range, default, description, restart.
//!
//! Six things are derived from a row: how the key is read, the messages about a faulty value, the
//! default that `show` prints, the JSON schema, the table of the guide, and whether a reload can
//! change it. The rows are in the files of `settings`, which read them with `SectionReader::key`.
//! This file does not read trees.

use super::values::{self, Read};
use evenkeel_core::units::Nanos;
use std::fmt::Display;
use std::path::PathBuf;

/// The facts about a key that do not depend on the type of its value.
#[derive(Clone, Copy, Debug)]
pub struct KeyFacts {
    /// Name of the key in its section.
    pub name: &'static str,
    /// What the key means, with its unit; one or two sentences, which may contain Markdown links.
    pub doc: &'static str,
    /// What goes wrong if the value is too low. Empty if nothing does.
    pub low: &'static str,
    /// What goes wrong if the value is too high. Empty if nothing does.
    pub high: &'static str,
    /// A value that is accepted. Empty if the default is example enough.
    pub example: &'static str,
    /// Whether a change takes effect only at a restart.
    pub restart: bool,
    /// How a value is written.
    pub syntax: ValueSyntax,
    /// The range in words, if it is more than a least and a greatest value.
    pub range_note: &'static str,
    /// The default in words, if it depends on other keys or on the machine; or `required`.
    pub default_note: &'static str,
    /// Hides the secret parts of a value in what `show` prints.
    pub mask: Option<fn(&str) -> String>,
}

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueSyntax {
    /// One of several words.
    Words,
    /// A whole number without a sign, or one of the words of the row's note, such as `auto`.
    Whole(&'static [&'static str]),
    /// A decimal number without a sign.
    Number,
    /// A duration such as `250ms`.
    Duration,
    /// A number of bytes, such as `64k`.
    Size,
    /// Any other text.
    Text,
    /// A section of keys.
    Section,
}

/// A row without the type of its value.
pub trait KeyRow: Sync {
    /// The facts about the key.
    fn facts(&self) -> &KeyFacts;

    /// The words that are accepted, in the order of the messages. Empty if other text is accepted.
    fn words(&self) -> Vec<&'static str>;

    /// The least and the greatest value, as they are written.
    fn range(&self) -> Option<[String; 2]>;

    /// The default values, as they are written: one, or those of a list. `None` if the key has no
    /// default of its own.
    fn defaults(&self) -> Option<Vec<String>>;

    /// Whether a list of values is accepted.
    fn is_list(&self) -> bool {
        false
    }

    /// Whether names with values are accepted in place of a list: `{accept: "*html*"}`.
    fn is_map(&self) -> bool {
        false
    }

    /// The keys of a section that is accepted in place of a value.
    fn entry_table(&self) -> Option<&'static SectionTable> {
        None
    }

    /// Whether `text` is accepted.
    ///
    /// # Errors
    /// The message about the value.
    fn accepts(&self, text: &str) -> Read<()>;

    /// Whether two texts mean the same value.
    fn same(&self, one: &str, other: &str) -> bool;

    /// The section that the key opens.
    fn section(&self) -> Option<&SubsectionKey> {
        None
    }
}

/// The keys of one section.
pub struct SectionTable {
    /// Path of the section, such as `proxy.queue`. Empty for the file itself.
    pub path: &'static str,
    /// The keys, in the order of the guide.
    pub keys: &'static [&'static dyn KeyRow],
}

impl SectionTable {
    /// This section and all inner ones, in the order of the file; one that several sections share
    /// is there once.
    #[must_use]
    pub fn all(&'static self) -> Vec<&'static SectionTable> {
        let mut all = vec![self];
        let mut at = 0;
        while let Some(table) = all.get(at).copied() {
            for inner in table.inner() {
                if all.iter().all(|old| !std::ptr::eq(*old, inner)) {
                    all.push(inner);
                }
            }
            at += 1;
        }
        all
    }

    /// The tables of the sections that the keys open or accept.
    fn inner(&self) -> impl Iterator<Item = &'static SectionTable> {
        let opened = |row: &'static dyn KeyRow| row.section().map(|key| key.table);
        self.keys.iter().filter_map(move |row| opened(*row).or(row.entry_table()))
    }

    /// Whether the section may contain sections like itself, at any depth.
    #[must_use]
    pub fn is_recursive(&'static self) -> bool {
        self.all().iter().any(|table| table.inner().any(|inner| std::ptr::eq(inner, self)))
    }

    /// The row of a key.
    #[must_use]
    pub fn row(&self, name: &str) -> Option<&'static dyn KeyRow> {
        self.keys.iter().find(|row| row.facts().name == name).copied()
    }
}

/// A key without a default of its own: an optional or a required one, or one whose default depends
/// on something else.
pub struct ConfigKey<T: 'static> {
    facts: KeyFacts,
    /// The words, if only words are accepted.
    words: &'static [(&'static str, T)],
    parse: fn(&str) -> Read<T>,
    range: Option<(T, T)>,
    is_within: fn(&T, &(T, T)) -> bool,
    write: fn(&ConfigKey<T>, &T) -> String,
}

/// A key with a default.
pub struct DefaultedKey<T: 'static> {
    key: ConfigKey<T>,
    default: Preset<T>,
}

/// A key with a list of values. A single value is a list of one.
pub struct ListKey<T: 'static> {
    key: ConfigKey<T>,
    /// `None`: no values, and `show` does not print the key.
    default: Option<fn() -> Vec<T>>,
    is_map: bool,
    /// The keys of sections among the values, if these are accepted.
    entries: Option<&'static SectionTable>,
}

/// A default. Values that own memory are made when they are needed.
enum Preset<T> {
    Value(T),
    Made(fn() -> T),
}

impl KeyFacts {
    const fn new(name: &'static str, syntax: ValueSyntax) -> KeyFacts {
        KeyFacts {
            name,
            doc: "",
            low: "",
            high: "",
            example: "",
            restart: false,
            syntax,
            range_note: "",
            default_note: "",
            mask: None,
        }
    }
}

/// The part of a row that says more about its key. All rows have these methods, in any order.
macro_rules! describe {
    ($($facts:ident).+) => {
        /// Describes the key, with its unit, in one or two sentences.
        pub const fn doc(mut self, doc: &'static str) -> Self {
            self.$($facts).+.doc = doc.trim_ascii_start();
            self
        }

        /// Says what goes wrong with a value that is too low.
        pub const fn low(mut self, low: &'static str) -> Self {
            self.$($facts).+.low = low;
            self
        }

        /// Says what goes wrong with a value that is too high.
        pub const fn high(mut self, high: &'static str) -> Self {
            self.$($facts).+.high = high;
            self
        }

        /// Gives a value that is accepted.
        pub const fn example(mut self, example: &'static str) -> Self {
            self.$($facts).+.example = example;
            self
        }

        /// Makes the key restart-only.
        pub const fn restart(mut self) -> Self {
            self.$($facts).+.restart = true;
            self
        }

        /// Describes a range that is more than a least and a greatest value.
        pub const fn range_note(mut self, note: &'static str) -> Self {
            self.$($facts).+.range_note = note;
            self
        }

        /// Describes a default that depends on something else, or what applies without the key.
        pub const fn default_note(mut self, note: &'static str) -> Self {
            self.$($facts).+.default_note = note;
            self
        }

        /// Says that the key must be present.
        pub const fn required(self) -> Self {
            self.default_note("required")
        }

        /// Hides the secret parts of a value in what `show` prints.
        pub const fn masked(mut self, mask: fn(&str) -> String) -> Self {
            self.$($facts).+.mask = Some(mask);
            self
        }

        /// Name of the key.
        pub const fn name(&self) -> &'static str {
            self.$($facts).+.name
        }
    };
}

/// Declares rows. The comment above a row is its description, for users.
///
/// `TABLE = "path";` at the beginning also declares the table of the section at this path, with
/// these rows in this order. `TABLE = "path": A, B;` declares only a table, of rows that exist.
macro_rules! section {
    () => {};
    ($($table:ident = $path:literal: $($row:expr),+);+ $(;)?) => {
        $(
            pub(crate) static $table: $crate::keys::SectionTable =
                $crate::keys::SectionTable { path: $path, keys: &[$(&$row),+] };
        )+
    };
    (
        $table:ident = $path:literal;
        $($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $row:expr;)+
    ) => {
        $crate::keys::section! { $table = $path: $($name),+ }
        $crate::keys::section! { $($(#[doc = $doc])+ $name: $kind = $row;)+ }
    };
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $row:expr;)+) => {
        $(
            $(#[doc = $doc])+
            pub(crate) static $name: $kind = $row.doc(concat!($($doc),+));
        )+
    };
}
pub(crate) use section;

impl<T: 'static> ConfigKey<T> {
    describe!(facts);

    /// A key whose value has no written form of its own, such as the path of a file.
    pub const fn opaque(name: &'static str, parse: fn(&str) -> Read<T>) -> ConfigKey<T> {
        ConfigKey {
            facts: KeyFacts::new(name, ValueSyntax::Text),
            words: &[],
            parse,
            range: None,
            is_within: |_, _| true,
            write: |_, _| String::new(),
        }
    }

    /// Says how a value is written as text.
    pub const fn written(mut self, write: fn(&ConfigKey<T>, &T) -> String) -> ConfigKey<T> {
        self.write = write;
        self
    }

    /// Ends the row with a default.
    pub const fn default(self, value: T) -> DefaultedKey<T> {
        DefaultedKey { key: self, default: Preset::Value(value) }
    }

    /// Ends the row with a default that owns memory.
    pub const fn default_with(self, make: fn() -> T) -> DefaultedKey<T> {
        DefaultedKey { key: self, default: Preset::Made(make) }
    }

    /// Makes it a key with a list of values, which is empty by default.
    pub const fn list(self) -> ListKey<T> {
        ListKey { key: self, default: None, is_map: false, entries: None }
    }

    /// Makes it a key with a list of values and a default that `show` prints.
    pub const fn list_with(self, make: fn() -> Vec<T>) -> ListKey<T> {
        ListKey { key: self, default: Some(make), is_map: false, entries: None }
    }
}

impl<T: Display + 'static> ConfigKey<T> {
    /// A key whose value is written as it is displayed.
    pub const fn new(
        name: &'static str,
        syntax: ValueSyntax,
        parse: fn(&str) -> Read<T>,
    ) -> ConfigKey<T> {
        let mut key = ConfigKey::opaque(name, parse);
        key.facts.syntax = syntax;
        key.write = |_, value| value.to_string();
        key
    }

    /// A key with any text.
    pub const fn text(name: &'static str, parse: fn(&str) -> Read<T>) -> ConfigKey<T> {
        ConfigKey::new(name, ValueSyntax::Text, parse)
    }
}

impl<T: Copy + PartialOrd + 'static> ConfigKey<T> {
    /// Bounds the value, both ends included.
    pub const fn within(mut self, least: T, most: T) -> ConfigKey<T> {
        self.range = Some((least, most));
        self.is_within = |value, (least, most)| (least..=most).contains(&value);
        self
    }
}

impl<T: Clone + PartialEq + 'static> ConfigKey<T> {
    /// A key with one of several words.
    pub const fn words(name: &'static str, words: &'static [(&'static str, T)]) -> ConfigKey<T> {
        let mut key = ConfigKey::opaque(name, |_| Err(String::new()));
        key.facts.syntax = ValueSyntax::Words;
        key.words = words;
        key.write = |key, value| {
            let word = key.words.iter().find(|(_, one)| one == value);
            word.map_or("", |(word, _)| word).to_owned()
        };
        key
    }
}

impl ConfigKey<bool> {
    /// `true` or `false`.
    pub const fn truth(name: &'static str) -> ConfigKey<bool> {
        ConfigKey::words(name, &[("true", true), ("false", false)])
    }
}

impl ConfigKey<Nanos> {
    /// A duration.
    pub const fn duration(name: &'static str) -> ConfigKey<Nanos> {
        ConfigKey::new(name, ValueSyntax::Duration, values::duration)
    }
}

impl<T: TryFrom<u64> + Display + 'static> ConfigKey<T> {
    /// A whole number.
    pub const fn whole(name: &'static str) -> ConfigKey<T> {
        ConfigKey::new(name, ValueSyntax::Whole(&[]), values::whole)
    }

    /// A number of bytes.
    pub const fn size(name: &'static str) -> ConfigKey<T> {
        ConfigKey::new(name, ValueSyntax::Size, values::size)
    }
}

impl ConfigKey<PathBuf> {
    /// The path of a file.
    pub const fn path(name: &'static str) -> ConfigKey<PathBuf> {
        ConfigKey::opaque(name, values::path)
    }
}

impl<T: Clone + 'static> ConfigKey<T> {
    /// Reads a value.
    ///
    /// # Errors
    /// The message about the value.
    pub fn parse(&self, text: &str) -> Read<T> {
        let value = match self.words {
            [] => (self.parse)(text)?,
            words => values::one_of(text, words)?,
        };
        match &self.range {
            Some(range) if !(self.is_within)(&value, range) => {
                Err(format!("must be from {} to {}", self.write(&range.0), self.write(&range.1)))
            }
            _ => Ok(value),
        }
    }

    /// Writes a value as it is read.
    pub fn write(&self, value: &T) -> String {
        (self.write)(self, value)
    }
}

impl<T: 'static> DefaultedKey<T> {
    describe!(key.facts);
}

impl<T: 'static> ListKey<T> {
    describe!(key.facts);

    /// Accepts names with values in place of a list.
    pub const fn or_map(mut self) -> ListKey<T> {
        self.is_map = true;
        self
    }

    /// Accepts sections among the values.
    pub const fn or_sections(mut self, table: &'static SectionTable) -> ListKey<T> {
        self.entries = Some(table);
        self
    }
}

impl<T: Clone + 'static> DefaultedKey<T> {
    /// The row without its default.
    pub const fn key(&self) -> &ConfigKey<T> {
        &self.key
    }

    /// The default.
    pub fn preset(&self) -> T {
        match &self.default {
            Preset::Value(value) => value.clone(),
            Preset::Made(make) => make(),
        }
    }
}

impl<T: Clone + 'static> ListKey<T> {
    /// The row of one value.
    pub const fn key(&self) -> &ConfigKey<T> {
        &self.key
    }

    /// The default, if it is one that `show` prints.
    pub fn preset(&self) -> Option<Vec<T>> {
        self.default.map(|make| make())
    }
}

impl<T: Clone + PartialEq + Sync + 'static> KeyRow for ConfigKey<T> {
    fn facts(&self) -> &KeyFacts {
        &self.facts
    }

    fn words(&self) -> Vec<&'static str> {
        self.words.iter().map(|(word, _)| *word).collect()
    }

    fn range(&self) -> Option<[String; 2]> {
        self.range.as_ref().map(|(least, most)| [self.write(least), self.write(most)])
    }

    fn defaults(&self) -> Option<Vec<String>> {
        None
    }

    fn accepts(&self, text: &str) -> Read<()> {
        self.parse(text).map(drop)
    }

    fn same(&self, one: &str, other: &str) -> bool {
        match (self.parse(one), self.parse(other)) {
            (Ok(one), Ok(other)) => one == other,
            _ => one == other,
        }
    }
}

/// Passes the questions about one value on to the row of that value.
macro_rules! as_its_key {
    () => {
        fn facts(&self) -> &KeyFacts {
            &self.key.facts
        }

        fn words(&self) -> Vec<&'static str> {
            self.key.words()
        }

        fn range(&self) -> Option<[String; 2]> {
            self.key.range()
        }

        fn accepts(&self, text: &str) -> Read<()> {
            self.key.accepts(text)
        }

        fn same(&self, one: &str, other: &str) -> bool {
            self.key.same(one, other)
        }
    };
}

impl<T: Clone + PartialEq + Sync + 'static> KeyRow for DefaultedKey<T> {
    as_its_key!();

    fn defaults(&self) -> Option<Vec<String>> {
        Some(vec![self.key.write(&self.preset())])
    }
}

impl<T: Clone + PartialEq + Sync + 'static> KeyRow for ListKey<T> {
    as_its_key!();

    fn defaults(&self) -> Option<Vec<String>> {
        let values = self.preset()?;
        Some(values.iter().map(|value| self.key.write(value)).collect())
    }

    fn is_list(&self) -> bool {
        true
    }

    fn is_map(&self) -> bool {
        self.is_map
    }

    fn entry_table(&self) -> Option<&'static SectionTable> {
        self.entries
    }
}

/// How many sections a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionCount {
    /// One section.
    One,
    /// One section, or a list of them.
    List,
    /// Names, each with one section or a list of them.
    Named,
}

/// A key that opens a section.
pub struct SubsectionKey {
    facts: KeyFacts,
    /// Words that are accepted in place of the section.
    words: &'static [&'static str],
    /// How many sections it takes.
    pub count: SectionCount,
    /// The keys of the section.
    pub table: &'static SectionTable,
}

impl SubsectionKey {
    describe!(facts);

    /// A key with one section.
    pub const fn one(name: &'static str, table: &'static SectionTable) -> SubsectionKey {
        let facts = KeyFacts::new(name, ValueSyntax::Section);
        SubsectionKey { facts, words: &[], count: SectionCount::One, table }
    }

    /// A key with one section or a list of them.
    pub const fn list(name: &'static str, table: &'static SectionTable) -> SubsectionKey {
        SubsectionKey { count: SectionCount::List, ..SubsectionKey::one(name, table) }
    }

    /// A key with names, each with one section or a list of them.
    pub const fn named(name: &'static str, table: &'static SectionTable) -> SubsectionKey {
        SubsectionKey { count: SectionCount::Named, ..SubsectionKey::one(name, table) }
    }

    /// Accepts words in place of the section.
    pub const fn or_words(self, words: &'static [&'static str]) -> SubsectionKey {
        SubsectionKey { words, ..self }
    }
}

impl KeyRow for SubsectionKey {
    fn facts(&self) -> &KeyFacts {
        &self.facts
    }

    fn words(&self) -> Vec<&'static str> {
        self.words.to_vec()
    }

    fn range(&self) -> Option<[String; 2]> {
        None
    }

    fn defaults(&self) -> Option<Vec<String>> {
        None
    }

    fn accepts(&self, text: &str) -> Read<()> {
        let known = self.words.contains(&text);
        known.then_some(()).ok_or_else(|| "must be a section: keys with values".to_owned())
    }

    fn same(&self, one: &str, other: &str) -> bool {
        one == other
    }

    fn section(&self) -> Option<&SubsectionKey> {
        Some(self)
    }
}

//! The record of the keys that a reader was asked for: their forms, words and defaults.
//!
//! It is only made for the schema (`config::show::schema`). Words and advice are taken from the
//! reader's own message about an impossible value.

use super::Read;
use std::collections::BTreeMap;

/// A value that no key accepts. The message about it describes the accepted values.
const IMPOSSIBLE_VALUE: &str = "\u{1}";

/// Text before the list of words in a message.
const WORD_LIST_PREFIX: &str = "must be one of: ";

/// The keys of a section.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SectionOutline(BTreeMap<&'static str, KeyForm>);

/// All forms in which a key was read. Without any form, the key is known but was not read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyForm {
    /// A single value.
    pub single: Option<ScalarForm>,
    /// Also a list of such values.
    pub many: bool,
    /// A section.
    pub section: Option<Box<SectionOutline>>,
    /// A list of sections.
    pub sections: Option<Box<SectionOutline>>,
    /// Names, each with a list of sections.
    pub named: Option<Box<SectionOutline>>,
}

/// A single value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScalarForm {
    /// The words that are accepted.
    pub words: Vec<String>,
    /// Whether other text is accepted too.
    pub free: bool,
    /// The message about an invalid value.
    pub advice: Option<String>,
    /// The default. There are several if it depends on other keys or on the machine.
    pub defaults: Vec<String>,
}

impl ScalarForm {
    /// Derives words and advice from the message of `read` about an impossible value.
    pub fn from_message<T>(read: impl Fn(&str) -> Read<T>) -> ScalarForm {
        let advice = read(IMPOSSIBLE_VALUE).err();
        let words = advice.as_deref().and_then(|advice| advice.strip_prefix(WORD_LIST_PREFIX));
        let words: Option<Vec<String>> =
            words.map(|words| words.split(", ").map(str::to_owned).collect());
        let free = words.is_none();
        let said = |advice: &String| !advice.contains(IMPOSSIBLE_VALUE);
        let words = words.unwrap_or_default();
        ScalarForm { words, free, advice: advice.filter(said), defaults: Vec::new() }
    }

    fn merge(&mut self, other: ScalarForm) {
        for (mine, other) in [(&mut self.words, other.words), (&mut self.defaults, other.defaults)]
        {
            for one in other {
                if !mine.contains(&one) {
                    mine.push(one);
                }
            }
        }
        self.free |= other.free;
        self.advice = self.advice.take().or(other.advice);
    }
}

impl KeyForm {
    fn merge(&mut self, other: KeyForm) {
        let inner =
            |mine: &mut Option<Box<SectionOutline>>, other: Option<Box<SectionOutline>>| match mine
            {
                None => *mine = other,
                Some(mine) => other.into_iter().for_each(|other| mine.merge(*other)),
            };
        match &mut self.single {
            None => self.single = other.single,
            Some(single) => other.single.into_iter().for_each(|other| single.merge(other)),
        }
        self.many |= other.many;
        inner(&mut self.section, other.section);
        inner(&mut self.sections, other.sections);
        inner(&mut self.named, other.named);
    }

    /// Whether any form of the key was read.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let inner = [&self.section, &self.sections, &self.named];
        self.single.is_some() || inner.iter().any(|inner| inner.is_some())
    }
}

impl SectionOutline {
    /// All keys with their forms, sorted by key.
    pub fn keys(&self) -> impl Iterator<Item = (&'static str, &KeyForm)> {
        self.0.iter().map(|(key, form)| (*key, form))
    }

    /// Records a further form of `key`.
    pub fn note(&mut self, key: &'static str, form: KeyForm) {
        self.0.entry(key).or_default().merge(form);
    }

    /// Merges another record into this one.
    pub fn merge(&mut self, other: SectionOutline) {
        other.0.into_iter().for_each(|(key, form)| self.note(key, form));
    }
}

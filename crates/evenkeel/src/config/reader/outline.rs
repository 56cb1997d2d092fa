//! What a reader was asked: which keys, in which form, with which words and defaults.
//!
//! Noted only where somebody wants to know (`config::schema`). Advice and words are what the reader
//! itself says of a value that nobody could have meant.

use super::Read;
use std::collections::BTreeMap;

/// What no key takes, to hear what it takes.
const NONSENSE: &str = "\u{1}";

/// What a message lists words after.
const WORDS: &str = "must be one of: ";

/// The keys of a section.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outline(BTreeMap<&'static str, Form>);

/// In which forms a key was asked for. None at all: it is known, and nobody has read it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Form {
    /// A single value.
    pub single: Option<Single>,
    /// A list of such values, too.
    pub many: bool,
    /// A section.
    pub section: Option<Box<Outline>>,
    /// A list of sections.
    pub sections: Option<Box<Outline>>,
    /// Names, with a list of sections each.
    pub named: Option<Box<Outline>>,
}

/// A single value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Single {
    /// What it may be.
    pub words: Vec<String>,
    /// It may be other text, of some form.
    pub free: bool,
    /// What is said of a value that is not good.
    pub advice: Option<String>,
    /// What it is if nobody says; several where that depends on other keys, or on the machine.
    pub defaults: Vec<String>,
}

impl Single {
    /// As `read` takes it.
    pub fn heard<T>(read: impl Fn(&str) -> Read<T>) -> Single {
        let advice = read(NONSENSE).err();
        let words = advice.as_deref().and_then(|advice| advice.strip_prefix(WORDS));
        let words: Option<Vec<String>> =
            words.map(|words| words.split(", ").map(str::to_owned).collect());
        let free = words.is_none();
        let said = |advice: &String| !advice.contains(NONSENSE);
        let words = words.unwrap_or_default();
        Single { words, free, advice: advice.filter(said), defaults: Vec::new() }
    }

    fn merge(&mut self, other: Single) {
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

impl Form {
    fn merge(&mut self, other: Form) {
        let inner = |mine: &mut Option<Box<Outline>>, other: Option<Box<Outline>>| match mine {
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

    /// Whether anybody has read it.
    #[must_use]
    pub fn is_known(&self) -> bool {
        let inner = [&self.section, &self.sections, &self.named];
        self.single.is_some() || inner.iter().any(|inner| inner.is_some())
    }
}

impl Outline {
    /// Every key with its form, in order.
    pub fn keys(&self) -> impl Iterator<Item = (&'static str, &Form)> {
        self.0.iter().map(|(key, form)| (*key, form))
    }

    /// Notes that `key` was asked for in this form, too.
    pub fn note(&mut self, key: &'static str, form: Form) {
        self.0.entry(key).or_default().merge(form);
    }

    /// Takes over what was noted elsewhere.
    pub fn merge(&mut self, other: Outline) {
        other.0.into_iter().for_each(|(key, form)| self.note(key, form));
    }
}

//! What is wrong with a configuration, and where.
//!
//! All faults of a file are collected and told at once, each with its place and how to mend it. A
//! configuration with a fault never runs: there are no warnings that would be overlooked.

use std::fmt;

/// A place in a file; both numbers count from 1. Zero: it was not written in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// What, and how to mend it.
    pub what: String,
}

impl Fault {
    /// A fault at `place`.
    pub fn new(place: Place, what: impl Into<String>) -> Fault {
        Fault { place, what: what.into() }
    }
}

/// Everything that is wrong with one file, in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The file, as it was named.
    pub file: String,
    /// At least one fault.
    pub faults: Vec<Fault>,
}

impl Faults {
    /// The faults of `file`, sorted by place.
    #[must_use]
    pub fn new(file: &str, mut faults: Vec<Fault>) -> Faults {
        faults.sort();
        faults.dedup();
        Faults { file: file.to_owned(), faults }
    }
}

/// One line per fault: `file:line:column: what`.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            let Place { line, column } = fault.place;
            let end = if index > 0 { "\n" } else { "" };
            match line {
                0 => write!(f, "{end}{}: {}", self.file, fault.what)?,
                _ => write!(f, "{end}{}:{line}:{column}: {}", self.file, fault.what)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// Text from a file, short enough and clean enough for a message.
#[must_use]
pub fn quoted(text: &str) -> String {
    // Who mistypes an address with a password in it shall not find that in a log.
    let hidden = text.split_once("://").zip(text.rsplit_once('@'));
    let hidden = hidden.map(|((scheme, _), (_, host))| format!("{scheme}://***@{host}"));
    let text = hidden.as_deref().unwrap_or(text);
    let clean: String =
        text.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect();
    let more = if text.chars().nth(60).is_some() { "..." } else { "" };
    format!("`{clean}{more}`")
}

/// The one of `known` that a name was most likely meant to be, if any is near enough.
#[must_use]
pub fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let short = name.len() <= 64;
    let near = known.iter().filter(|_| short);
    let near = near.map(|known| (strsim::damerau_levenshtein(known, name), *known));
    near.filter(|(far, known)| *far <= 1 + known.len() / 4).min().map(|(_, known)| known)
}

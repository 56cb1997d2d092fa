//! Faults of a configuration and their places.
//!
//! All faults of a file are collected and reported at once, each with its place and its fix. A
//! configuration with a fault never runs.

use std::fmt;
use std::sync::Arc;

/// A place in a file. Both numbers start at 1; zero means that the value does not come from a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextPlace {
    /// Number of the file: 0 for the configuration itself, then the files that it includes.
    pub file: u16,
    /// Number of the line.
    pub line: usize,
    /// Number of the column, in characters.
    pub column: usize,
}

impl TextPlace {
    /// A place in the configuration itself.
    #[must_use]
    pub const fn at(line: usize, column: usize) -> TextPlace {
        TextPlace { file: 0, line, column }
    }
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigFault {
    /// Place of the fault in a file.
    pub place: TextPlace,
    /// The key that the message begins with, if it is about the value of one key.
    pub key: Option<String>,
    /// The flag or variable that the value comes from; the message names it in place of the key.
    pub input: Option<Arc<str>>,
    /// Description of the fault and of its fix; the rest of the sentence if there is a `key`.
    pub what: String,
    /// Whether it is only a warning: the configuration is valid, but may not do what it seems to.
    pub is_warning: bool,
}

impl ConfigFault {
    /// Creates a fault at `place`.
    pub fn new(place: TextPlace, what: impl Into<String>) -> ConfigFault {
        ConfigFault { place, key: None, input: None, what: what.into(), is_warning: false }
    }

    /// The same as a warning.
    #[must_use]
    pub fn as_warning(self) -> ConfigFault {
        ConfigFault { is_warning: true, ..self }
    }

    /// The same about the value of `key`: the message begins with the key, or with `input`, the
    /// flag or variable that the value comes from.
    #[must_use]
    pub fn about(self, key: &str, input: Option<Arc<str>>) -> ConfigFault {
        ConfigFault { key: Some(key.to_owned()), input, ..self }
    }
}

/// The message, without the place.
impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.key, &self.input) {
            (None, _) => f.write_str(&self.what),
            (Some(_), Some(input)) => write!(f, "{input} {}", self.what),
            (Some(key), None) => write!(f, "`{key}` {}", self.what),
        }
    }
}

/// All faults of a configuration, in the order of their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFaults {
    /// Name of the file, as the user gave it.
    pub file: String,
    /// Names of the files that it includes, in the order of their numbers.
    pub included: Vec<String>,
    /// The faults, at least one.
    pub faults: Vec<ConfigFault>,
    /// Warnings about the same file, each with its place. They are not part of the message.
    pub warnings: Vec<String>,
}

impl ConfigFaults {
    /// Collects the faults of `file`, sorted by place and without duplicates.
    #[must_use]
    pub fn new(file: &str, mut faults: Vec<ConfigFault>) -> ConfigFaults {
        faults.sort();
        faults.dedup();
        let (file, included) = (file.to_owned(), Vec::new());
        ConfigFaults { file, included, faults, warnings: Vec::new() }
    }

    /// The same, of which some may be in these files that the configuration includes.
    #[must_use]
    pub fn in_files(self, included: &[String]) -> ConfigFaults {
        ConfigFaults { included: included.to_vec(), ..self }
    }

    /// Name of the file with this number.
    fn name(&self, file: u16) -> &str {
        let included = usize::from(file).checked_sub(1).and_then(|at| self.included.get(at));
        included.unwrap_or(&self.file)
    }

    /// The same with these warnings.
    #[must_use]
    pub fn with_warnings(self, warnings: Vec<String>) -> ConfigFaults {
        ConfigFaults { warnings, ..self }
    }
}

/// One line per fault: `file:line:column: what`.
impl fmt::Display for ConfigFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            let TextPlace { file, line, column } = fault.place;
            let file = self.name(file);
            let end = if index > 0 { "\n" } else { "" };
            match line {
                0 => write!(f, "{end}{file}: {fault}")?,
                _ => write!(f, "{end}{file}:{line}:{column}: {fault}")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigFaults {}

/// Quotes text from a file for a message. Cuts it at 60 characters and replaces control characters.
#[must_use]
pub fn quoted(text: &str) -> String {
    // An address may contain a password, which must not get into a log.
    let hidden = text.split_once("://").zip(text.rsplit_once('@'));
    let hidden = hidden.map(|((scheme, _), (_, host))| format!("{scheme}://***@{host}"));
    let text = hidden.as_deref().unwrap_or(text);
    let clean: String =
        text.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect();
    let more = if text.chars().nth(60).is_some() { "..." } else { "" };
    format!("`{clean}{more}`")
}

/// The name in `known` that is most similar to `name`, if one is similar enough.
#[must_use]
pub fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    let short = name.len() <= 64;
    let near = known.iter().filter(|_| short);
    let near = near.map(|known| (strsim::damerau_levenshtein(known, name), *known));
    near.filter(|(far, known)| *far <= 1 + known.len() / 4).min().map(|(_, known)| known)
}

/// Flags that clap accepts but that make no valid configuration, and the command with the flags.
#[derive(Debug, thiserror::Error)]
#[error("{0}\nFor more information, try 'evenkeel {1} --help'.")]
pub struct Misuse(pub ConfigFaults, pub &'static str);

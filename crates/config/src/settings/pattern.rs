//! Regular expressions over names of metrics, for settings that rename them.
//!
//! The syntax is that of `regex-lite`: RE2 without Unicode classes, with classes and flags in
//! ASCII. Of several ways to match, the leftmost counts, and of those the one that is written
//! first, as in RE2. Names come from requests, so the time of a match is bounded by the length
//! of the name times the size of the pattern, and that size is bounded too.

pub mod rename;

use regex_lite::{Regex, RegexBuilder};
use std::fmt;

/// Maximum length of a pattern, in bytes.
const BYTES_MAX: usize = 1_024;
/// The memory that a compiled pattern may take, in bytes: repetitions are written out.
const COMPILED_MAX: usize = 256 * 1_024;
/// How deep groups may be nested.
const DEPTH_MAX: u32 = 50;

/// A regular expression.
#[derive(Clone)]
pub struct NameRegex(Regex);

impl NameRegex {
    /// Compiles a pattern of at most 1024 bytes.
    ///
    /// # Errors
    /// The reason why the pattern is refused.
    pub fn new(text: &str) -> Result<NameRegex, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("a pattern may have {BYTES_MAX} bytes"));
        }
        let mut builder = RegexBuilder::new(text);
        let regex = builder.size_limit(COMPILED_MAX).nest_limit(DEPTH_MAX).build();
        regex.map(NameRegex).map_err(|why| why.to_string())
    }

    /// The number of groups, the whole match included.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.0.captures_len()
    }

    /// Finds the first match. Returns group 0 (the whole match), then each group; a group that took
    /// no part is empty.
    #[must_use]
    pub fn find<'t>(&self, text: &'t str) -> Option<Vec<&'t str>> {
        let found = self.0.captures(text)?;
        Some(found.iter().map(|group| group.map_or("", |group| group.as_str())).collect())
    }
}

impl PartialEq for NameRegex {
    fn eq(&self, other: &NameRegex) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for NameRegex {}

impl fmt::Debug for NameRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", self.0.as_str())
    }
}

impl fmt::Display for NameRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

#[cfg(test)]
mod tests;

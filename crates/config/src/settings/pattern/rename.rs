//! Rules that rename metrics and turn parts of their names into tags.
//!
//! The first rule with a matching pattern applies. Rules come from the settings of `StatsD`, or
//! from a mapping file for Prometheus (`config/source/mapper`). The pattern syntax is described in
//! `pattern`; the rate limit service applies the rules to its metrics.

use super::NameRegex;
use std::fmt;

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricRename {
    /// The pattern that a name must contain.
    pub pattern: NameRegex,
    /// The new name. `None`: a metric that matches is not reported at all.
    pub name: Option<NameTemplate>,
    /// Tags (labels) to add, as key and value.
    pub tags: Vec<(String, NameTemplate)>,
}

/// A text with references to the groups of a pattern: `$1` or `${1}`; `$0` is the whole match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTemplate {
    text: String,
    parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Group(usize),
}

impl NameTemplate {
    /// Parses a template for `pattern`. A `$` that names no group stays as it is.
    ///
    /// # Errors
    /// If it names a group that the pattern does not have.
    pub fn new(text: &str, pattern: &NameRegex) -> Result<NameTemplate, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            let (inner, closed) = match after.strip_prefix('{') {
                Some(inner) => (inner, true),
                None => (after, false),
            };
            let digits = inner.bytes().take_while(u8::is_ascii_digit).count();
            let behind = &inner[digits..];
            let behind = if closed { behind.strip_prefix('}') } else { Some(behind) };
            let (Some(behind), Ok(group)) = (behind, inner[..digits].parse::<usize>()) else {
                parts.push(TemplatePart::Text(format!("{before}$")));
                rest = after;
                continue;
            };
            if group >= pattern.groups() {
                let last = pattern.groups() - 1;
                return Err(format!("`{pattern}` has no group {group}; the last is {last}"));
            }
            parts.extend([TemplatePart::Text(before.to_owned()), TemplatePart::Group(group)]);
            rest = behind;
        }
        parts.push(TemplatePart::Text(rest.to_owned()));
        Ok(NameTemplate { text: text.to_owned(), parts })
    }

    /// The text with each reference replaced by the group in `found`.
    #[must_use]
    pub fn filled(&self, found: &[&str]) -> String {
        let part = |part: &TemplatePart| match part {
            TemplatePart::Text(text) => text.clone(),
            TemplatePart::Group(group) => found.get(*group).copied().unwrap_or_default().to_owned(),
        };
        self.parts.iter().map(part).collect()
    }
}

impl fmt::Display for NameTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_take_what_groups_found() {
        let pattern = NameRegex::new(r"(\w+)\.(\w+)").expect("sound");
        let found = pattern.find("a.b").expect("found");
        for (text, filled) in [
            ("plain", "plain"),
            ("$2_x$1", "b_xa"),
            ("${1}2$0", "a2a.b"),
            ("costs $ and ${x} $", "costs $ and ${x} $"),
        ] {
            assert_eq!(NameTemplate::new(text, &pattern).expect("sound").filled(&found), filled);
        }
        let why = NameTemplate::new("$3", &pattern).expect_err("refused");
        assert!(why.contains("has no group 3; the last is 2"), "{why}");
    }
}

//! Rules that rename metrics and turn parts of their names into tags.
//!
//! The first rule with a matching pattern applies. Rules come from the settings of `StatsD`, or
//! from a mapping file for Prometheus (`config/source/mapper`). The pattern syntax is described in
//! `pattern`; the rate limit service applies the rules to its metrics.

use super::Pattern;
use std::fmt;

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    /// The pattern that a name must contain.
    pub pattern: Pattern,
    /// The new name. `None`: a metric that matches is not reported at all.
    pub name: Option<Template>,
    /// Tags (labels) to add, as key and value.
    pub tags: Vec<(String, Template)>,
}

/// A text with references to the groups of a pattern: `$1` or `${1}`; `$0` is the whole match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Group(usize),
}

impl Template {
    /// Parses a template for `pattern`. A `$` that names no group stays as it is.
    ///
    /// # Errors
    /// If it names a group that the pattern does not have.
    pub fn new(text: &str, pattern: &Pattern) -> Result<Template, String> {
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
                parts.push(Part::Text(format!("{before}$")));
                rest = after;
                continue;
            };
            if group >= pattern.groups() {
                let last = pattern.groups() - 1;
                return Err(format!("`{pattern}` has no group {group}; the last is {last}"));
            }
            parts.extend([Part::Text(before.to_owned()), Part::Group(group)]);
            rest = behind;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Template { text: text.to_owned(), parts })
    }

    /// The text with each reference replaced by the group in `found`.
    #[must_use]
    pub fn filled(&self, found: &[&str]) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Group(group) => found.get(*group).copied().unwrap_or_default().to_owned(),
        };
        self.parts.iter().map(part).collect()
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_take_what_groups_found() {
        let pattern = Pattern::new(r"(\w+)\.(\w+)").expect("sound");
        let found = pattern.find("a.b").expect("found");
        for (text, filled) in [
            ("plain", "plain"),
            ("$2_x$1", "b_xa"),
            ("${1}2$0", "a2a.b"),
            ("costs $ and ${x} $", "costs $ and ${x} $"),
        ] {
            assert_eq!(Template::new(text, &pattern).expect("sound").filled(&found), filled);
        }
        let why = Template::new("$3", &pattern).expect_err("refused");
        assert!(why.contains("has no group 3; the last is 2"), "{why}");
    }
}

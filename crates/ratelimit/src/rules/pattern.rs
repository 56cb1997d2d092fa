//! Patterns for values, in which each `*` stands for any text, also for an empty one.
//!
//! A pattern has to match the whole value. A literal star cannot be escaped, but an exactly equal
//! text is found before any pattern is tried. Matching is linear in the length of the value for
//! each part between stars, without backtracking, so no value makes it slow.

/// A text with at least one `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePattern {
    before: Box<str>,
    between: Box<[Box<str>]>,
    after: Box<str>,
}

impl ValuePattern {
    /// Parses a pattern; `None` if the text has no `*`.
    pub fn new(text: &str) -> Option<ValuePattern> {
        let (before, rest) = text.split_once('*')?;
        let (between, after) = rest.rsplit_once('*').unwrap_or(("", rest));
        let between = between.split('*').filter(|part| !part.is_empty()).map(Into::into);
        Some(ValuePattern {
            before: before.into(),
            between: between.collect(),
            after: after.into(),
        })
    }

    /// Whether the pattern matches the whole of `text`.
    pub fn covers(&self, text: &str) -> bool {
        let rest = text.strip_prefix(&*self.before);
        let Some(mut rest) = rest.and_then(|rest| rest.strip_suffix(&*self.after)) else {
            return false;
        };
        for part in &self.between {
            match rest.find(&**part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c45_stars_stand_for_any_text() {
        for (pattern, good, bad) in [
            ("bar*b", &["barb", "bar123b"][..], &["bara", "xbarb", "bar", "ba"][..]),
            ("foo*bar*baz", &["foobarbaz", "foo1bar2baz"], &["foo123baz", "foobarba"]),
            ("*", &["", "a", "*"], &[]),
            ("a*a", &["aa", "aba"], &["a"]),
            ("*x*x*", &["xx", "axbxc"], &["x"]),
            ("**", &["", "a"], &[]),
            ("ä*", &["ä", "äö"], &["a"]),
        ] {
            let covers = |text: &str| ValuePattern::new(pattern).expect("a pattern").covers(text);
            good.iter().for_each(|text| assert!(covers(text), "{pattern} and {text}"));
            bad.iter().for_each(|text| assert!(!covers(text), "{pattern} and {text}"));
        }
        assert_eq!(ValuePattern::new("plain"), None);
    }
}

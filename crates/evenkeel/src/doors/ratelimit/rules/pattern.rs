//! Patterns of values: each `*` stands for any text, also none.
//!
//! A pattern covers the whole value. There is no way to write a star that means a star, but an
//! equal text is found before any pattern is tried. It takes time in the length of the value for
//! each part between stars, and there is no going back, so no value makes it slow.

/// A text with at least one `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    before: Box<str>,
    between: Box<[Box<str>]>,
    after: Box<str>,
}

impl Pattern {
    /// Reads a pattern; `None` if the text has no `*`.
    #[must_use]
    pub fn new(text: &str) -> Option<Pattern> {
        let (before, rest) = text.split_once('*')?;
        let (between, after) = rest.rsplit_once('*').unwrap_or(("", rest));
        let between = between.split('*').filter(|part| !part.is_empty()).map(Into::into);
        Some(Pattern { before: before.into(), between: between.collect(), after: after.into() })
    }

    /// Whether the whole of `text` is covered.
    #[must_use]
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
            let covers = |text: &str| Pattern::new(pattern).expect("a pattern").covers(text);
            good.iter().for_each(|text| assert!(covers(text), "{pattern} and {text}"));
            bad.iter().for_each(|text| assert!(!covers(text), "{pattern} and {text}"));
        }
        assert_eq!(Pattern::new("plain"), None);
    }
}

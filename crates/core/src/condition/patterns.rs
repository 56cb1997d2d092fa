//! Lists of patterns, compiled so that one pass over a text finds whether any of them matches.
//!
//! A pattern is a text in which `*` stands for any run of characters and everything else for
//! itself, or `re:` and a regular expression. Letters match in any case. A pattern matches a whole
//! text; a regular expression matches anywhere in it. Regular expressions have no backreferences
//! and no look-around, so the time is linear in the length of the text.

use crate::condition::Truth;
use crate::percent::decoded;
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::fmt::Write;
use regex_automata::meta::Regex;
use regex_automata::util::syntax;

/// The beginning of a regular expression.
pub const EXPRESSION: &str = "re:";
/// Texts without `*` up to this number are compared one by one, which is faster than a search.
const EXACT_MAX: usize = 8;
/// Upper bound of the memory of a compiled list, and of its cache in each thread, in bytes. A list
/// of a thousand names takes a tenth of it.
const BYTES_MAX: usize = 4 << 20;

/// A pattern that cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    /// Index of the pattern in the list; `None` if the list as a whole is too large.
    pub index: Option<usize>,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl core::error::Error for PatternError {}

/// A list of patterns. Without patterns nothing matches.
#[derive(Clone, Default)]
pub struct Patterns {
    /// The patterns as they were given.
    given: Vec<Box<str>>,
    /// Whether a pattern matches every text.
    any: bool,
    /// Texts that match as a whole, if they are few.
    exact: Vec<Box<str>>,
    /// All other patterns.
    search: Option<Regex>,
}

impl PartialEq for Patterns {
    fn eq(&self, other: &Patterns) -> bool {
        self.given == other.given
    }
}

impl Eq for Patterns {}

impl fmt::Debug for Patterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Patterns").field(&self.given).finish()
    }
}

impl Patterns {
    /// Compiles a list of patterns.
    ///
    /// # Errors
    /// A regular expression is invalid, or the list is too large when compiled.
    pub fn new<T: AsRef<str>>(
        patterns: impl IntoIterator<Item = T>,
    ) -> Result<Patterns, PatternError> {
        let given: Vec<Box<str>> = patterns.into_iter().map(|one| one.as_ref().into()).collect();
        let any = given.iter().any(|one| **one == *"*");
        let exact = few_exact(&given);
        let searched = |one: &str| exact.is_empty() || !is_exact(one);
        let search = compiled(&given, searched, "", true)?;
        Ok(Patterns { given, any, exact, search })
    }

    /// The pattern `*`.
    #[must_use]
    pub fn any() -> Patterns {
        Patterns { given: alloc::vec!["*".into()], any: true, ..Patterns::default() }
    }

    /// Whether a pattern matches the text.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        self.any
            || self.exact.iter().any(|one| one.as_bytes().eq_ignore_ascii_case(text))
            || self.search.as_ref().is_some_and(|search| search.is_match(text))
    }

    /// The patterns as they were given.
    #[must_use]
    pub fn given(&self) -> &[Box<str>] {
        &self.given
    }
}

/// A list of patterns for paths. A pattern also matches all paths below a path that it matches.
#[derive(Clone)]
pub struct PathPatterns {
    given: Vec<Box<str>>,
    /// Paths without `*`.
    exact: Vec<Box<str>>,
    /// All other patterns, in any case, and with letters as they are written.
    search: Option<(Regex, Regex)>,
}

impl PartialEq for PathPatterns {
    fn eq(&self, other: &PathPatterns) -> bool {
        self.given == other.given
    }
}

impl Eq for PathPatterns {}

impl fmt::Debug for PathPatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PathPatterns").field(&self.given).finish()
    }
}

impl PathPatterns {
    /// Compiles a list of patterns. Each is a normal path (`classify::normal_path`), in which `*`
    /// stands for any run of characters, or `re:` and a regular expression.
    ///
    /// # Errors
    /// A regular expression is invalid, or the list is too large when compiled.
    pub fn new<T: AsRef<str>>(
        patterns: impl IntoIterator<Item = T>,
    ) -> Result<PathPatterns, PatternError> {
        let given: Vec<Box<str>> = patterns.into_iter().map(|one| one.as_ref().into()).collect();
        let exact = few_exact(&given);
        let searched = |one: &str| exact.is_empty() || !is_exact(one);
        let any_case = compiled(&given, searched, PATH_END, true)?;
        let as_written = compiled(&given, searched, PATH_END, false)?;
        Ok(PathPatterns { given, exact, search: any_case.zip(as_written) })
    }

    /// Whether a pattern matches a normal path. Backends differ in whether letters of another case
    /// are the same.
    #[must_use]
    pub fn matches(&self, path: &str) -> Truth {
        let exact = |same: fn(&str, &str) -> bool| {
            self.exact.iter().any(|prefix| is_below(path, prefix, same))
        };
        let found = |search: &Regex| search.is_match(path);
        if exact(|a, b| a == b) || self.search.as_ref().is_some_and(|(_, search)| found(search)) {
            return Truth::Yes;
        }
        let in_any_case = exact(str::eq_ignore_ascii_case)
            || self.search.as_ref().is_some_and(|(search, _)| found(search));
        if in_any_case { Truth::Maybe } else { self.expression_matches_decoded(path) }
    }

    /// Whether a regular expression matches the path as people write it: `re:^/a b` means `/a%20b`.
    fn expression_matches_decoded(&self, path: &str) -> Truth {
        let Some((search, as_written)) = &self.search else { return Truth::No };
        let has_expression = || self.given.iter().any(|one| one.starts_with(EXPRESSION));
        if !path.contains('%') || !has_expression() {
            return Truth::No;
        }
        let decoded = decoded(path, b'+');
        match (as_written.is_match(&decoded), search.is_match(&decoded)) {
            (true, _) => Truth::Yes,
            (false, true) => Truth::Maybe,
            (false, false) => Truth::No,
        }
    }

    /// Whether a pattern may match a path of which some segments do not count. A path without `*`
    /// needs its segments, in their order, and one with `*` at least all of its texts.
    pub fn may_match_some_of(&self, segments: &[&str]) -> bool {
        let contained = |prefix: &str| {
            let mut segments = segments.iter();
            let mut wanted = prefix.split('/').filter(|segment| !segment.is_empty());
            wanted.all(|wanted| segments.any(|segment| segment.eq_ignore_ascii_case(wanted)))
        };
        let has = |text: &str| {
            let wanted = text.as_bytes();
            let mut all =
                segments.iter().flat_map(|segment| segment.as_bytes().windows(wanted.len()));
            all.any(|part| part.eq_ignore_ascii_case(wanted))
        };
        let has_texts = |one: &str| one.split(['*', '/']).filter(|text| !text.is_empty()).all(has);
        self.given.iter().any(|one| {
            one.starts_with(EXPRESSION)
                || if one.contains('*') { has_texts(one) } else { contained(one) }
        })
    }

    /// The patterns as they were given.
    #[must_use]
    pub fn given(&self) -> &[Box<str>] {
        &self.given
    }
}

/// The patterns that are compared one by one: those without `*`, if they are few.
fn few_exact(given: &[Box<str>]) -> Vec<Box<str>> {
    let exact: Vec<Box<str>> = given.iter().filter(|one| is_exact(one)).cloned().collect();
    if exact.len() > EXACT_MAX { Vec::new() } else { exact }
}

/// Whether a pattern matches only itself.
fn is_exact(pattern: &str) -> bool {
    !pattern.contains('*') && !pattern.starts_with(EXPRESSION)
}

/// The end of a pattern for paths: a path below it matches, too.
const PATH_END: &str = "(?:/.*)?";

fn is_below(path: &str, prefix: &str, same: fn(&str, &str) -> bool) -> bool {
    let prefix = prefix.trim_end_matches('/');
    let rest = path.get(prefix.len()..).unwrap_or("no");
    (rest.is_empty() || rest.starts_with('/'))
        && path.get(..prefix.len()).is_some_and(|begin| same(begin, prefix))
}

/// Compiles the patterns that `searched` selects into one search. `None` if there are none.
fn compiled(
    given: &[Box<str>],
    searched: impl Fn(&str) -> bool,
    end: &str,
    any_case: bool,
) -> Result<Option<Regex>, PatternError> {
    let selected = given.iter().enumerate().filter(|(_, one)| searched(one));
    let (places, texts): (Vec<usize>, Vec<String>) =
        selected.map(|(at, one)| (at, expression(one, end))).unzip();
    if texts.is_empty() {
        return Ok(None);
    }
    let syntax = syntax::Config::new()
        .case_insensitive(any_case)
        .dot_matches_new_line(true)
        .unicode(false)
        .utf8(false);
    let bounds = Regex::config()
        .utf8_empty(false)
        .nfa_size_limit(Some(BYTES_MAX))
        .onepass_size_limit(Some(BYTES_MAX))
        .hybrid_cache_capacity(BYTES_MAX);
    let built = Regex::builder().syntax(syntax).configure(bounds).build_many(&texts);
    built.map(Some).map_err(|error| {
        let at = error.pattern().and_then(|id| places.get(id.as_usize()).copied());
        let what = match error.syntax_error() {
            Some(syntax) => last_line_of(&syntax.to_string()),
            None => "too large when compiled; use fewer repetitions".to_owned(),
        };
        PatternError { index: at, what }
    })
}

/// The sentence of an error of the regular expression, which comes last, after a drawing.
fn last_line_of(text: &str) -> String {
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let what = last.trim().trim_start_matches("error: ");
    alloc::format!("not a regular expression: {what}")
}

/// The regular expression of a pattern. `end` may follow a text.
fn expression(pattern: &str, end: &str) -> String {
    if let Some(expression) = pattern.strip_prefix(EXPRESSION) {
        return expression.to_owned();
    }
    let (open_start, text) = match pattern.strip_prefix('*') {
        Some(rest) => (true, rest.trim_start_matches('*')),
        None => (false, pattern),
    };
    let (open_end, text) = match text.strip_suffix('*') {
        Some(rest) => (true, rest.trim_end_matches('*')),
        None => (false, text),
    };
    let mut expression = String::from(if open_start { "" } else { "^" });
    for (index, piece) in text.split('*').enumerate() {
        if index > 0 {
            expression.push_str(".*");
        }
        for sign in piece.chars() {
            // Letters and digits stand for themselves. Writing to a String cannot fail.
            let _ = match sign {
                'a'..='z' | 'A'..='Z' | '0'..='9' => write!(expression, "{sign}"),
                _ => sign
                    .encode_utf8(&mut [0; 4])
                    .bytes()
                    .try_for_each(|byte| write!(expression, "\\x{byte:02X}")),
            };
        }
    }
    if !open_end {
        expression.push_str(end);
        expression.push('$');
    }
    expression
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec;

    fn patterns(all: &[&str]) -> Patterns {
        Patterns::new(all).expect("patterns")
    }

    fn matches(pattern: &str, text: &str) -> bool {
        patterns(&[pattern]).matches(text.as_bytes())
    }

    #[test]
    fn a_star_is_any_run_of_characters_and_all_else_is_itself() {
        for (pattern, text, expected) in [
            ("*GPTBot*", "Mozilla/5.0 (compatible; GPTBot/1.2)", true),
            ("*gptbot*", "GPTBOT", true),
            ("GPTBot", "GPTBot/1.2", false),
            ("GPTBot*", "GPTBot/1.2", true),
            ("*.example.com", "www.example.com", true),
            ("*.example.com", "wwwXexampleXcom", false),
            ("a*b*c", "a--b\n--c", true),
            ("a*b*c", "a--c--b", false),
            ("*", "", true),
            ("**", "x", true),
            ("", "", true),
            ("", "x", false),
            ("a.b", "axb", false),
            ("*(*", "a(b", true),
            ("*é*", "café", true),
            ("re:^a.c$", "ABC", true),
            ("re:b+", "abbc", true),
            ("re:(?-i)b", "B", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} and {text}");
        }
        assert!(patterns(&["*x*"]).matches(b"\xff\x00x\xfe"));
        assert!(!Patterns::default().matches(b""));
        assert!(Patterns::any().matches(b"anything"));
    }

    #[test]
    fn a_long_list_matches_as_each_of_its_patterns_does() {
        let names: Vec<String> = (0..1000).map(|at| format!("*robot{at}x*")).collect();
        let list = Patterns::new(&names).expect("patterns");
        assert!(list.matches(b"a Robot7x") && list.matches(b"ROBOT999X/1"));
        assert!(!list.matches(b"robot1000x") && !list.matches(b"robot77"));
        let exact: Vec<String> = (0..50).map(|at| format!("word{at}")).collect();
        let list = Patterns::new(&exact).expect("patterns");
        assert!(list.matches(b"WORD49") && !list.matches(b"word50") && !list.matches(b"a word1"));
    }

    #[test]
    fn a_pattern_may_match_some_segments_only_if_its_texts_are_there() {
        let of = |pattern: &str, segments: &[&str]| {
            PathPatterns::new([pattern]).expect("ok").may_match_some_of(segments)
        };
        for (pattern, segments, expected) in [
            ("/*.php", ["wiki", "A"].as_slice(), false),
            ("/*.php", &["wiki", "A.PHP"], true),
            ("/wp-*/x", &["a", "..", "wp-1", "x"], true),
            ("/wp-*/x", &["a", "..", "x"], false),
            ("/a/b", &["a", "..", "b"], true),
            ("/a/b", &["b", "..", "a"], false),
            ("re:b", &["a"], true),
        ] {
            assert_eq!(of(pattern, segments), expected, "{pattern} {segments:?}");
        }
    }

    #[test]
    fn a_path_matches_with_all_below_it() {
        let of =
            |pattern: &str, path: &str| PathPatterns::new([pattern]).expect("ok").matches(path);
        for (pattern, path, expected) in [
            ("/login", "/login", Truth::Yes),
            ("/login", "/login/x", Truth::Yes),
            ("/login", "/loginx", Truth::No),
            ("/login", "/LOGIN", Truth::Maybe),
            ("/", "/anything", Truth::Yes),
            ("/*.php", "/a/b.php", Truth::Yes),
            ("/*.php", "/a.php/info", Truth::Yes),
            ("/*.php", "/a.PHP", Truth::Maybe),
            ("/*.php", "/a.phpx", Truth::No),
            ("/wiki/*:*", "/wiki/Special:Log", Truth::Yes),
            ("re:/[0-9]+$", "/a/17", Truth::Yes),
            ("re:^/a b$", "/a%20b", Truth::Yes),
            ("re:^/a b$", "/A%20b", Truth::Maybe),
            ("re:^/öl$", "/%C3%B6l", Truth::Yes),
            ("/a*%20*c", "/ax c", Truth::No),
            ("re:^/[a-z]$", "/A", Truth::Maybe),
        ] {
            assert_eq!(of(pattern, path), expected, "{pattern} and {path}");
        }
    }

    #[test]
    fn a_faulty_expression_is_named_with_its_place() {
        let fault = Patterns::new(["*a*", "re:("]).expect_err("faulty");
        assert_eq!(fault.index, Some(1));
        assert!(fault.what.starts_with("not a regular expression: "), "{}", fault.what);
        assert!(fault.what.contains("unclosed group"), "{}", fault.what);
        let large = Patterns::new(["re:(a{1000}){1000}"]).expect_err("too large");
        assert!(large.what.contains("too large"), "{}", large.what);
        assert_eq!(patterns(&["a", "re:b"]).given(), vec![Box::from("a"), Box::from("re:b")]);
    }

    #[test]
    fn lists_are_equal_if_they_were_given_equal() {
        assert_eq!(patterns(&["*a*"]), patterns(&["*a*"]));
        assert_ne!(patterns(&["*a*"]), patterns(&["*b*"]));
        assert_eq!(format!("{:?}", patterns(&["a"])), "Patterns([\"a\"])");
    }
}

//! A Rust file as the scans see it: its lines as written, and the same lines with comments, strings
//! and character literals blanked out, so that prose and messages cannot trigger a rule.
//!
//! A file is divided at its `#[cfg(test)]`: the part before is code, the rest is tests. This module
//! does not parse; the scans need braces and words only.

use std::fs;
use std::path::{Path, PathBuf};

/// One Rust file of the workspace.
pub struct Source {
    /// The path from the root of the workspace, with forward slashes.
    pub path: String,
    /// The lines as written.
    pub lines: Vec<String>,
    /// The same lines with comments, strings and character literals blanked out.
    pub code: Vec<String>,
    /// The number of lines before the file's tests; zero if the whole file is a test.
    pub code_lines: usize,
}

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("a workspace")
}

impl Source {
    /// Every Rust file of all crates.
    pub fn all() -> Vec<Source> {
        let root = root();
        let mut paths = Vec::new();
        collect(&root.join("crates"), &mut paths);
        paths.sort();
        assert!(paths.len() > 20, "found only {} files below {}", paths.len(), root.display());
        paths.iter().map(|path| Source::read(&root, path)).collect()
    }

    fn read(root: &Path, path: &Path) -> Source {
        let text = fs::read_to_string(path).expect("a readable source");
        let name = path.strip_prefix(root).expect("below the root").to_string_lossy();
        Source::new(&name.replace('\\', "/"), &text)
    }

    /// A source from a path and a text.
    pub fn new(path: &str, text: &str) -> Source {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let code: Vec<String> = blank(text).lines().map(str::to_owned).collect();
        let tests = lines.iter().position(|line| line.starts_with("#[cfg(test)]"));
        let code_lines = match in_tests(path) {
            true => 0,
            false => tests.unwrap_or(lines.len()),
        };
        Source { path: path.to_owned(), lines, code, code_lines }
    }

    /// Whether this file is shipped, as opposed to a test or a benchmark.
    pub fn is_shipped(&self) -> bool {
        !in_tests(&self.path)
    }

    /// The blanked lines before the tests, numbered from one.
    pub fn shipped_code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.numbered().take(self.code_lines)
    }

    /// The blanked lines of the tests, numbered from one.
    pub fn test_code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.numbered().skip(self.code_lines)
    }

    fn numbered(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.iter().enumerate().map(|(index, line)| (index + 1, line.as_str()))
    }
}

fn in_tests(path: &str) -> bool {
    let folder = |name: &str| path.split('/').any(|part| part == name);
    folder("tests")
        || folder("testing")
        || folder("benches")
        || folder("examples")
        || path.ends_with("/tests.rs")
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

/// Replaces comments and the content of strings and characters by spaces; line ends stay.
pub fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match token(bytes, at) {
            Some(end) => {
                out.extend(text[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
                end
            }
            None => {
                let next = text[at..].chars().next().expect("within the text");
                out.push(next);
                at + next.len_utf8()
            }
        };
        at = end;
    }
    out
}

/// The end of the comment, string or character that begins at `at`; `None` if none begins there.
fn token(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    match rest {
        [b'/', b'/', ..] => Some(at + find(rest, b"\n").unwrap_or(rest.len())),
        [b'/', b'*', ..] => Some(at + find(rest, b"*/").map_or(rest.len(), |end| end + 2)),
        [b'"', ..] => Some(at + string(rest)),
        [b'r', b'"' | b'#', ..] if !word_before(bytes, at) => raw(rest).map(|end| at + end),
        [b'\'', b'\\', _, ..] => Some(at + 3 + find(&rest[3..], b"'").map_or(0, |end| end + 1)),
        [b'\'', ..] => character(rest).map(|end| at + end),
        _ => None,
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn word_before(bytes: &[u8], at: usize) -> bool {
    // The `b` of `br"..."` belongs to the string.
    let before = at.checked_sub(1).map(|at| bytes[at]);
    before.is_some_and(|b| b != b'b' && (b.is_ascii_alphanumeric() || b == b'_'))
}

fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw(bytes: &[u8]) -> Option<usize> {
    let hashes = bytes[1..].iter().take_while(|b| **b == b'#').count();
    (bytes.get(1 + hashes) == Some(&b'"')).then_some(())?;
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let start = 2 + hashes;
    Some(find(&bytes[start..], &close).map_or(bytes.len(), |end| start + end + close.len()))
}

/// The length of a character literal: one character between two quotes, as opposed to a lifetime.
fn character(bytes: &[u8]) -> Option<usize> {
    let close = (2..=5).find(|at| bytes.get(*at) == Some(&b'\''))?;
    let inside = std::str::from_utf8(&bytes[1..close]).ok()?;
    (inside.chars().count() == 1).then_some(close + 1)
}

#[test]
fn comments_and_strings_are_blanked() {
    let text = "a(\"b // c\"); // d\nlet e = 'f'; let g: &'h str = r#\"i \" j\"#; /* k\nl */ m";
    let words: Vec<_> = blank(text).split_whitespace().map(str::to_owned).collect();
    assert_eq!(words.join(" "), "a( ); let e = ; let g: &'h str = ; m");
    assert_eq!(blank(text).lines().count(), text.lines().count());
    assert_eq!(blank("'\\'' x '\\n' y '\\u{1f}' z").split_whitespace().count(), 3);
}

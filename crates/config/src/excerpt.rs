//! Errors and warnings for a terminal, each with the line of the file and a mark below its place.
//!
//! The first line of a message stays as it is, `FILE:LINE:COLUMN: what`, so that editors and
//! scripts can read it; the excerpt follows on lines of its own. Colors are used only on a
//! terminal, and not if `NO_COLOR` is set. Passwords are not shown: neither those in addresses, nor
//! a line with a key that `show` masks. The messages themselves come from `fault`; the log has
//! them without excerpts.

use crate::settings::ROOT;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

/// The largest file that an excerpt is taken from, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// The widest excerpt, in characters.
const WIDTH_MAX: usize = 96;
/// Number of characters before the place that a cut excerpt keeps.
const CONTEXT: usize = 40;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Severity {
    Error,
    Warning,
}

/// Errors as standard error shows them.
#[must_use]
pub fn errors<'m>(messages: impl IntoIterator<Item = &'m str>) -> String {
    all(messages, Severity::Error)
}

/// Warnings as standard error shows them.
#[must_use]
pub fn warnings<'m>(messages: impl IntoIterator<Item = &'m str>) -> String {
    all(messages, Severity::Warning)
}

/// The error that ends a program, which may be several errors of a file, and their number.
#[must_use]
pub fn last_error(text: &str) -> String {
    let errors = text.lines().filter(|line| place(line).is_some()).count();
    all(text.lines(), Severity::Error) + &count(errors, 0)
}

/// A line with the number of errors and warnings; empty if there are none.
#[must_use]
pub fn count(errors: usize, warnings: usize) -> String {
    let severity = if errors > 0 { Severity::Error } else { Severity::Warning };
    let numbers = numbers(errors, warnings);
    numbers.map_or_else(String::new, |text| Paint::of_stderr().mark(severity, &text) + "\n")
}

fn all<'m>(messages: impl IntoIterator<Item = &'m str>, severity: Severity) -> String {
    let mut printer = Printer { paint: Paint::of_stderr(), files: HashMap::new() };
    messages.into_iter().map(|message| printer.message(message, severity)).collect()
}

/// `2 errors, 1 warning`; `None` if there are none.
fn numbers(errors: usize, warnings: usize) -> Option<String> {
    let number = |count: usize, noun: &str| match count {
        0 => None,
        1 => Some(format!("1 {noun}")),
        _ => Some(format!("{count} {noun}s")),
    };
    let parts = [number(errors, "error"), number(warnings, "warning")];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Whether colors may be written to `output`: it is a terminal that has them, and `NO_COLOR` is not
/// set.
pub fn shows_colors(output: &impl IsTerminal) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    output.is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// The colors of a terminal, or none.
#[derive(Clone, Copy)]
struct Paint {
    is_on: bool,
}

impl Paint {
    fn of_stderr() -> Paint {
        Paint { is_on: shows_colors(&io::stderr()) }
    }

    fn with(self, codes: &str, text: &str) -> String {
        if self.is_on { format!("\x1b[{codes}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Red for an error, yellow for a warning.
    fn mark(self, severity: Severity, text: &str) -> String {
        self.with(if severity == Severity::Error { "1;31" } else { "1;33" }, text)
    }
}

/// Prints the messages of one kind. It reads each file once.
struct Printer {
    paint: Paint,
    /// The lines of each file; none if it cannot be read.
    files: HashMap<String, Vec<String>>,
}

impl Printer {
    /// The message, and the excerpt if the message has a place in a file that can be read.
    fn message(&mut self, message: &str, severity: Severity) -> String {
        let mut out = String::new();
        if severity == Severity::Warning {
            out.push_str(&self.paint.mark(severity, "warning:"));
            out.push(' ');
        }
        let Some((file, line, column)) = place(message) else {
            return out + message + "\n";
        };
        let position = format!("{file}:{line}:{column}:");
        out.push_str(&self.paint.with("1", &position));
        out.push_str(&message[position.len()..]);
        out.push('\n');
        let lines = self.files.entry(file.to_owned()).or_insert_with(|| lines(Path::new(file)));
        let text = line.checked_sub(1).and_then(|at| lines.get(at));
        if let Some((text, before)) = text.and_then(|text| excerpt(text, column)) {
            let (number, gutter) = (line.to_string(), self.paint.with("34", "|"));
            let margin = " ".repeat(number.len());
            let caret = self.paint.mark(severity, "^");
            let indent = " ".repeat(before);
            let number = self.paint.with("34", &number);
            // A string takes all that is written to it.
            let _ = write!(out, " {number} {gutter} {text}\n {margin} {gutter} {indent}{caret}\n");
        }
        out
    }
}

/// The place that a message begins with: file, line and column.
fn place(message: &str) -> Option<(&str, usize, usize)> {
    for (at, _) in message.match_indices(':') {
        let Some((line, rest)) = message[at + 1..].split_once(':') else { break };
        let Some((column, _)) = rest.split_once(": ") else { break };
        if let (Ok(line), Ok(column)) = (line.parse(), column.parse()) {
            return Some((&message[..at], line, column));
        }
    }
    None
}

/// The lines of a regular file; none if it cannot be read. A pipe could be read only once.
fn lines(path: &Path) -> Vec<String> {
    let is_file = std::fs::metadata(path).is_ok_and(|meta| meta.is_file());
    let Some(file) = is_file.then(|| File::open(path).ok()).flatten() else { return Vec::new() };
    let mut bytes = Vec::new();
    match file.take(FILE_BYTES_MAX).read_to_end(&mut bytes) {
        Ok(_) => String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect(),
        Err(_) => Vec::new(),
    }
}

/// The part of a line around a column, and the number of characters before the place in it. `None`
/// if the place is within a password or the line is too short.
fn excerpt(line: &str, column: usize) -> Option<(String, usize)> {
    let line = line.trim_start_matches('\u{feff}');
    if masked_keys().any(|key| line.contains(&format!("{key}:"))) {
        return None;
    }
    let at = column.checked_sub(1)?;
    let start = line.char_indices().map(|(byte, _)| byte).chain([line.len()]).nth(at)?;
    let (mut shown, mut before) = (line.to_owned(), at);
    if let Some((from, to)) = password(line) {
        if start > from && start < to {
            return None;
        }
        shown = format!("{}***{}", &line[..from], &line[to..]);
        if start >= to {
            before = before + 3 - line[from..to].chars().count();
        }
    }
    let shown = shown.trim_end();
    let skipped = match shown.chars().count() > WIDTH_MAX {
        true => before.saturating_sub(CONTEXT),
        false => 0,
    };
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut part: String = shown.chars().skip(skipped).take(WIDTH_MAX).map(clean).collect();
    if shown.chars().count() > skipped + WIDTH_MAX {
        part.push_str("...");
    }
    if skipped > 0 {
        part.insert_str(0, "...");
        return Some((part, before - skipped + 3));
    }
    Some((part, before))
}

/// The keys whose values `show` masks.
fn masked_keys() -> impl Iterator<Item = &'static str> {
    let rows = ROOT.all().into_iter().flat_map(|table| table.keys.iter());
    rows.filter(|row| row.facts().mask.is_some()).map(|row| row.facts().name)
}

/// Where a user and a password may be in a line: from the first `://` to the last `@`.
fn password(line: &str) -> Option<(usize, usize)> {
    let from = line.find("://")? + 3;
    let to = line.rfind('@')?;
    (to > from).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_found_in_a_message() {
        assert_eq!(place("a.yaml:3:9: `x` is"), Some(("a.yaml", 3, 9)));
        assert_eq!(place("/a:b/c.yaml:12:1: no: 3:4: it"), Some(("/a:b/c.yaml", 12, 1)));
        for none in ["a.yaml: cannot be read", "a.yaml:3: wrong", "", "::", "cannot listen on 1:2"]
        {
            assert_eq!(place(none), None, "{none}");
        }
    }

    #[test]
    fn the_caret_is_below_the_place() {
        let at = |line: &str, column| {
            excerpt(line, column).map(|(text, before)| {
                let under: String = text.chars().skip(before).take(5).collect();
                (text, under)
            })
        };
        let shown = |text: &str, under: &str| Some((text.to_owned(), under.to_owned()));
        assert_eq!(at("  cpus: xyz", 9), shown("  cpus: xyz", "xyz"));
        assert_eq!(at("\tö: xyz  ", 5), shown(" ö: xyz", "xyz"));
        assert_eq!(at("abc", 4), shown("abc", ""));
        assert_eq!(at("abc", 5), None);
        assert_eq!(at("abc", 0), None);
        let long = format!("{}here{}", "x".repeat(500), "y".repeat(500));
        let (text, under) = at(&long, 501).expect("it is long enough");
        assert!(under == "herey" && text.len() < 110 && text.starts_with("..."), "{text}");
        assert!(text.ends_with("..."), "{text}");
    }

    #[test]
    fn passwords_are_hidden() {
        let line = "{tell: 'http://ann:secret@h', peer: wrong}";
        let at = line.find("wrong").expect("there") + 1;
        let (text, before) = excerpt(line, at).expect("shown");
        assert_eq!(text, "{tell: 'http://***@h', peer: wrong}");
        assert_eq!(&text[before..], "wrong}");
        let within = line.find("secret").expect("there") + 1;
        assert_eq!(excerpt(line, within), None);
        assert_eq!(excerpt(line, 8).expect("shown").1, 7);
        assert_eq!(excerpt("store: {redis: h, credentials: 'secret'}", 3), None);
    }

    #[test]
    fn colors_are_only_for_terminals() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.yaml");
        std::fs::write(&path, "proxy:\n  cpus: x\n").expect("written");
        let message = format!("{}:2:9: wrong", path.display());
        let printed = |is_on| {
            let mut printer = Printer { paint: Paint { is_on }, files: HashMap::new() };
            printer.message(&message, Severity::Warning)
        };
        let plain = "\n 2 |   cpus: x\n   |         ^\n";
        assert_eq!(printed(false), format!("warning: {message}{plain}"));
        assert!(printed(true).contains("\x1b[1;33m^\x1b[0m"));
    }

    #[test]
    fn findings_are_counted() {
        assert_eq!(numbers(0, 0), None);
        assert_eq!(numbers(2, 1).as_deref(), Some("2 errors, 1 warning"));
        assert_eq!(numbers(1, 0).as_deref(), Some("1 error"));
        assert_eq!(numbers(0, 2).as_deref(), Some("2 warnings"));
    }
}

//! The maximum sizes of files and functions. The figures are a ratchet: lower them when the code
//! allows it.
//!
//! The aims are a median function of 8 lines, and nine in ten functions below 30. The figures here
//! are the bounds that must not be exceeded. Only shipped code counts for these two; the hard
//! limits also apply to tests.

use crate::allowed::allowed;
use crate::source::Source;

const FILE_LINES_MAX: usize = 650;
const LINE_COLUMNS_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;
const FUNCTION_LINES_MEDIAN_MAX: usize = 8;
const FUNCTION_LINES_P90_MAX: usize = 30;
/// The aim is 3 to 10 lines; the rest is room for one comment about the design.
const HEADER_LINES: std::ops::RangeInclusive<usize> = 3..=24;

pub fn files(sources: &[Source]) -> Vec<String> {
    let length = |source: &Source| match source.is_shipped() {
        true => source.code_lines,
        false => source.lines.len(),
    };
    let long = sources.iter().filter(|s| length(s) > FILE_LINES_MAX);
    let long = long.filter(|s| !allowed("file-size", &s.path));
    long.map(|s| {
        let lines = length(s);
        format!("{}: {lines} lines, at most {FILE_LINES_MAX}; split it: foo.rs + foo/", s.path)
    })
    .collect()
}

pub fn lines(sources: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources {
        for (index, line) in source.lines.iter().enumerate() {
            let columns = line.chars().count();
            if columns > LINE_COLUMNS_MAX {
                let place = format!("{}:{}", source.path, index + 1);
                faults.push(format!("{place}: {columns} columns, at most {LINE_COLUMNS_MAX}"));
            }
        }
    }
    faults
}

pub fn headers(sources: &[Source]) -> Vec<String> {
    let header = |s: &Source| s.lines.iter().take_while(|line| line.starts_with("//!")).count();
    let shipped = sources.iter().filter(|s| s.is_shipped());
    shipped
        .filter(|s| !HEADER_LINES.contains(&header(s)))
        .map(|s| {
            let (lines, path) = (header(s), &s.path);
            format!(
                "{path}: a header of {lines} `//!` lines, not {HEADER_LINES:?}; say what it is, \
                 what it deliberately does not do, where to read next"
            )
        })
        .collect()
}

/// A function: its first line and its number of lines.
struct Function {
    line: usize,
    lines: usize,
}

pub fn functions(sources: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut shipped = Vec::new();
    for source in sources {
        for function in functions_of(source) {
            if function.line <= source.code_lines {
                shipped.push(function.lines);
            }
            if function.lines > FUNCTION_LINES_MAX {
                let place = format!("{}:{}", source.path, function.line);
                let lines = function.lines;
                faults.push(format!(
                    "{place}: a function of {lines} lines, at most {FUNCTION_LINES_MAX}; \
                     take it apart"
                ));
            }
        }
    }
    shipped.sort_unstable();
    let bars = [("half", 2, 1, FUNCTION_LINES_MEDIAN_MAX), ("90 %", 10, 9, FUNCTION_LINES_P90_MAX)];
    for (name, parts, part, max) in bars {
        let lines = shipped[(shipped.len() - 1) * part / parts];
        if lines > max {
            faults.push(format!("{name} of all functions have up to {lines} lines; aim at {max}"));
        }
    }
    faults
}

fn functions_of(source: &Source) -> Vec<Function> {
    let starts = source.code.iter().enumerate().filter(|(_, line)| declares_function(line));
    starts
        .filter_map(|(index, _)| {
            let lines = body_lines(&source.code[index..])?;
            Some(Function { line: index + 1, lines })
        })
        .collect()
}

fn declares_function(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let modifiers = ["pub", "const", "async", "extern", "pub(crate)", "pub(super)"];
    words.find(|word| !modifiers.contains(word)) == Some("fn")
}

/// The number of lines of the function that begins on the first line of `code`; `None` if it has no
/// body.
fn body_lines(code: &[String]) -> Option<usize> {
    let (mut braces, mut brackets) = (0_i32, 0_i32);
    for (index, line) in code.iter().enumerate() {
        for byte in line.bytes() {
            match byte {
                b'(' | b'[' => brackets += 1,
                b')' | b']' => brackets -= 1,
                b';' if braces == 0 && brackets == 0 => return None,
                b'{' => braces += 1,
                b'}' => braces -= 1,
                _ => {}
            }
            if byte == b'}' && braces == 0 {
                return Some(index + 1);
            }
        }
    }
    None
}

#[test]
fn functions_are_measured() {
    let text = "trait T {\n    fn none(&self);\n    fn three() {\n        {}\n    }\n}\n\
                pub const fn five(\n    a: [u8; 3],\n) -> u8 {\n    1\n}\nfn one() {}\n";
    let found = functions_of(&Source::new("x.rs", text));
    let found: Vec<_> = found.iter().map(|f| (f.line, f.lines)).collect();
    assert_eq!(found, [(3, 3), (7, 5), (12, 1)]);
}

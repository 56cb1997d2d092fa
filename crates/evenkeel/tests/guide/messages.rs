//! The guide has every message that the program logs at the levels `warn` and `error`.

use super::{below, root};
use std::fs;

/// The macros with such messages.
const MACROS: [&str; 2] = ["tracing::warn!(", "tracing::error!("];
/// The number of bytes of a message that the page must contain; some messages end with figures and
/// keys.
const BYTES: usize = 48;

/// The arguments of a macro, up to its closing parenthesis.
fn arguments(rest: &str) -> &str {
    let (mut depth, mut quoted, mut escaped) = (1, false, false);
    for (at, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &rest[..at];
        }
    }
    rest
}

/// The last string literal of the arguments, on one line.
fn message(arguments: &str) -> Option<String> {
    let literal = arguments.rsplit('"').nth(1)?;
    let lines = literal.split("\\\n").map(str::trim_start);
    let whole = lines.collect::<String>();
    // The rest after the first placeholder differs each time.
    whole.split('{').next().map(str::to_owned)
}

fn messages() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let crates = root().join("crates");
    for path in below(&crates) {
        let name = path.strip_prefix(&crates).expect("below it").display().to_string();
        if name.contains("/tests") || !name.ends_with(".rs") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("text");
        let shipped = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for called in MACROS {
            let calls = shipped.split(called).skip(1).map(arguments);
            found.extend(calls.filter_map(message).map(|message| (name.clone(), message)));
        }
    }
    found
}

#[test]
fn the_guide_has_every_warning_and_error() {
    let page = fs::read_to_string(root().join("docs/guide/messages.md")).expect("the page");
    let mut seen = 0;
    for (path, message) in messages() {
        // The page has configuration keys in code blocks, without backticks.
        let plain = message.replace('`', "");
        let begins = plain.char_indices().map(|(at, _)| at).find(|at| *at >= BYTES);
        let begins = plain[..begins.unwrap_or(plain.len())].trim_end_matches([' ', ';']);
        // A message that only passes on another text, such as an error with its position, has no
        // text of its own.
        if begins.len() < 8 {
            continue;
        }
        seen += 1;
        assert!(page.contains(begins), "docs/guide/messages.md has not: {begins} ({path})");
    }
    assert!(seen > 60, "only {seen} messages were found");
}

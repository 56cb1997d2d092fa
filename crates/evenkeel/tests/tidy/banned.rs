//! Words that no source may contain, and their replacements.
//!
//! Words are searched in code only: comments and strings are blanked out before. Some words that
//! clippy refuses anyway (`unwrap_used`, `todo`) are also here, so that the message can name the
//! project's own replacement.

use crate::allowed::allowed;
use crate::source::Source;

/// The files in which a word is banned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    /// Shipped code.
    Shipped,
    /// Tests of the core and of the binary's crate.
    Tests,
    /// All files.
    All,
}

/// A word, the files in which it is banned, the name of the rule, and the replacement.
const BANNED: [(&str, Where, &str, &str); 24] = [
    ("Instant::now(", Where::Shipped, "clock", "`clock::Clock::now`, or `now` as an argument"),
    ("SystemTime::now(", Where::Shipped, "clock", "`clock::Clock::now`"),
    (".elapsed()", Where::Shipped, "clock", "`Time::since` with `now` as an argument"),
    ("thread::sleep", Where::Shipped, "sleep", "the runtime's timers"),
    ("sleep(", Where::Tests, "sleep", "wait for what you wait for, with a deadline (`wait_for`)"),
    ("todo!(", Where::All, "todo", "build it, or leave it out"),
    ("unimplemented!(", Where::All, "todo", "build it, or leave it out"),
    ("dbg!(", Where::All, "todo", "a log line, or nothing"),
    (".unwrap()", Where::Shipped, "unwrap", "`?`, a default, or a type that cannot fail"),
    (".expect(", Where::Shipped, "unwrap", "`?`, a default, or a type that cannot fail"),
    ("panic!(", Where::Shipped, "unwrap", "an error, or a type that cannot fail"),
    ("unreachable!(", Where::Shipped, "unwrap", "a type that cannot fail"),
    ("env::var", Where::Shipped, "outside", "a setting: only `config` reads the environment"),
    ("std::fs", Where::Shipped, "outside", "a setting: only `config` reads files"),
    ("tokio::fs", Where::Shipped, "outside", "a setting: only `config` reads files"),
    ("File::open", Where::Shipped, "outside", "a setting: only `config` reads files"),
    ("thread::spawn", Where::Shipped, "spawn", "`runtime::thread`, whose end is waited for"),
    ("thread::Builder", Where::Shipped, "spawn", "`runtime::thread`, whose end is waited for"),
    ("unbounded_channel", Where::All, "unbounded", "a channel with a bound, and a counter for it"),
    ("mpsc::channel()", Where::Shipped, "unbounded", "`sync_channel` with a bound"),
    ("println!(", Where::Shipped, "print", "`tracing`, or the writer that the command was given"),
    ("static mut", Where::All, "global", "state that has an owner"),
    ("#[allow(", Where::Shipped, "allow", "mend what is warned of; else `#[expect(.., reason)]`"),
    ("dead_code", Where::All, "allow", "delete what nobody uses"),
];

/// Words that appear in comments, so they are searched in the text as written.
const NOTES: [&str; 3] = ["TODO", "FIXME", "XXX"];

/// `fuzz/run` finds harnesses by name, and sets the time that they run.
fn harnesses(source: &Source) -> Vec<String> {
    let mut function = "";
    let mut faults = Vec::new();
    for (index, line) in source.code.iter().enumerate() {
        if line.trim_start().starts_with("fn ") {
            function = line.trim();
        }
        let harness = contains_word(line, "fuzz()");
        if harness && (!function.starts_with("fn fuzz_") || line.contains("with_iterations")) {
            let place = format!("{}:{}", source.path, index + 1);
            faults.push(format!("{place}: a harness is named `fuzz_..` and sets no iterations"));
        }
    }
    faults
}

pub fn faults(sources: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources.iter().filter(|s| !s.path.starts_with("crates/evenkeel/tests/tidy")) {
        faults.extend(words(source));
        faults.extend(notes(source));
        faults.extend(harnesses(source));
    }
    faults
}

fn words(source: &Source) -> Vec<String> {
    let shipped = source.shipped_code().map(|line| (Where::Shipped, line));
    let tests = source.test_code().map(|line| (Where::Tests, line));
    let mut faults = Vec::new();
    for (place, (line, text)) in shipped.chain(tests) {
        for (word, banned, rule, instead) in BANNED {
            let here = banned == Where::All || banned == place;
            if here && contains_word(text, word) && !allowed(rule, &source.path) {
                let path = &source.path;
                faults.push(format!("{path}:{line}: `{word}` [{rule}]; use {instead}"));
            }
        }
    }
    faults
}

/// Whether `text` contains `word`, but not as the end of a longer word.
fn contains_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let joined = |c: char| c == '_' || c.is_alphanumeric();
        !word.starts_with(joined) || !before.is_some_and(joined)
    })
}

fn notes(source: &Source) -> Vec<String> {
    let lines = source.lines.iter().enumerate();
    lines
        .filter_map(|(index, line)| {
            let note = NOTES.iter().find(|note| contains_word(line, note))?;
            let place = format!("{}:{}", source.path, index + 1);
            Some(format!("{place}: `{note}`; do it now, or say in an issue what is missing"))
        })
        .collect()
}

/// Whether a file contains a word of the rule anywhere.
pub fn occurs(rule: &str, source: &Source) -> bool {
    let words = BANNED.iter().filter(|(_, _, name, _)| *name == rule);
    words.into_iter().any(|(word, ..)| source.code.iter().any(|line| contains_word(line, word)))
}

#[test]
fn words_are_found_whole() {
    assert!(contains_word("x.sleep(3)", "sleep("));
    assert!(!contains_word("no_sleep(3)", "sleep("));
    assert!(contains_word("a().unwrap()", ".unwrap()"));
    let source =
        Source::new("crates/evenkeel/src/x.rs", "fn a() { // todo!()\n    b().unwrap() }\n");
    assert_eq!(words(&source).len(), 1);
}

//! The tables of docs/guide/configuration.md and the JSON schema are those of the rows.
//!
//! `EVENKEEL_WRITE_REFERENCE=1 cargo test -p evenkeel-config --test reference` writes both again;
//! without it, the test fails if a committed file differs. A table stands between the lines
//! `<!-- keys of proxy.queue -->` and `<!-- end -->`.

use evenkeel_config::keys::{KeyFacts, KeyRow, SectionTable, ValueSyntax};
use evenkeel_config::settings::ROOT;
use evenkeel_config::show::schema::schema;
use serde_json::Value;
use std::collections::HashSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares a committed file with its text, or writes it if that is requested.
fn compare(path: &str, text: &str) {
    let file = root().join(path);
    if std::env::var_os("EVENKEEL_WRITE_REFERENCE").is_some() {
        fs::write(&file, text).expect("written");
    }
    let is = fs::read_to_string(&file).is_ok_and(|read| read == text);
    assert!(is, "{path} is stale: run with EVENKEEL_WRITE_REFERENCE=1 and commit");
}

/// Groups the digits of long numbers: `1 000 000`.
fn grouped(text: &str) -> String {
    if text.len() < 5 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.to_owned();
    }
    let groups = text.as_bytes().rchunks(3).rev();
    let groups: Vec<&str> =
        groups.map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(" ")
}

/// A number of bytes with the largest unit that leaves a whole number.
fn bytes(text: &str) -> String {
    let number: u64 = text.parse().expect("a number of bytes");
    let units = [(30, "g"), (20, "m"), (10, "k")];
    let unit = units.iter().find(|(shift, _)| number > 0 && number.is_multiple_of(1 << shift));
    unit.map_or_else(|| number.to_string(), |(shift, name)| format!("{}{name}", number >> shift))
}

fn shown(syntax: ValueSyntax, text: &str) -> String {
    if syntax == ValueSyntax::Size { bytes(text) } else { text.to_owned() }
}

fn range(row: &dyn KeyRow) -> String {
    let KeyFacts { range_note, syntax, .. } = row.facts();
    match row.range().filter(|_| range_note.is_empty()) {
        Some([least, most]) => {
            let (least, most) = (shown(*syntax, &least), shown(*syntax, &most));
            format!("{} to {}", grouped(&least), grouped(&most))
        }
        None if !range_note.is_empty() => (*range_note).to_owned(),
        None if row.section().is_none() => {
            row.words().iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
        }
        None => String::new(),
    }
}

fn default(row: &dyn KeyRow) -> String {
    let facts = row.facts();
    let Some(values) = row.defaults() else {
        let none = facts.default_note.is_empty() && row.section().is_none();
        return if none { "none" } else { facts.default_note }.to_owned();
    };
    let values = values.iter().map(|value| format!("`{}`", shown(facts.syntax, value)));
    let values = values.collect::<Vec<_>>().join(", ");
    if values.is_empty() { "none".to_owned() } else { values }
}

/// The cells of a row, in the order of [`HEADS`].
fn cells(row: &dyn KeyRow) -> [String; 6] {
    let facts = row.facts();
    let mut meaning = facts.doc.to_owned();
    if facts.restart {
        meaning.push_str(" A change needs a restart.");
    }
    let name = format!("`{}`", facts.name);
    [name, meaning, range(row), default(row), facts.low.to_owned(), facts.high.to_owned()]
}

const HEADS: [&str; 6] = ["key", "meaning", "range", "default", "too low", "too high"];

/// The table of a section. A column without text is left out.
fn table(section: &SectionTable) -> String {
    let rows: Vec<[String; 6]> = section.keys.iter().map(|row| cells(*row)).collect();
    let used: Vec<usize> =
        (0..HEADS.len()).filter(|at| rows.iter().any(|row| !row[*at].is_empty())).collect();
    let mut text = String::new();
    let mut line = |cells: Vec<&str>| {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    line(used.iter().map(|at| HEADS[*at]).collect());
    line(used.iter().map(|_| "---").collect());
    rows.iter().for_each(|row| line(used.iter().map(|at| &*row[*at]).collect()));
    text
}

/// The page with all its tables made anew. Panics if a section has no table in it, except the file
/// itself, which the page explains section by section, and a part of a section that is shown.
fn page(old: &str) -> String {
    let mut text = old.to_owned();
    let not_shown = ["", "proxy.limits.when.not"];
    for section in ROOT.all().iter().filter(|section| !not_shown.contains(&section.path)) {
        let start = format!("<!-- keys of {} -->\n", section.path);
        let (before, rest) = text.split_once(&start).unwrap_or_else(|| panic!("no {start}"));
        let (_, after) = rest.split_once("<!-- end -->\n").expect("an end");
        text = format!("{before}{start}\n{}\n<!-- end -->\n{after}", table(section));
    }
    text
}

#[test]
fn the_tables_of_the_guide_are_the_rows() {
    let path = "docs/guide/configuration.md";
    let old = fs::read_to_string(root().join(path)).expect("the page");
    compare(path, &page(&old));
}

#[test]
fn the_schema_for_editors_is_that_of_the_rows() {
    let text = serde_json::to_string_pretty(&schema()).expect("JSON");
    compare("packaging/evenkeel.schema.json", &format!("{text}\n"));
}

/// Every property of a schema that has a pattern, with its default and its examples.
fn patterns<'s>(schema: &'s Value, all: &mut Vec<(&'s str, Vec<&'s str>)>) {
    if let Some(pattern) = schema["pattern"].as_str() {
        let examples = schema["examples"].as_array().into_iter().flatten();
        let texts = examples.chain(Some(&schema["default"])).filter_map(Value::as_str);
        all.push((pattern, texts.collect()));
    }
    match schema {
        Value::Object(entries) => entries.values().for_each(|inner| patterns(inner, all)),
        Value::Array(items) => items.iter().for_each(|inner| patterns(inner, all)),
        _ => {}
    }
}

#[test]
fn defaults_and_examples_match_their_patterns() {
    let schema = schema();
    let mut all = Vec::new();
    patterns(&schema, &mut all);
    assert!(!all.is_empty());
    for (pattern, texts) in all {
        let regex = regex_lite::Regex::new(pattern).expect(pattern);
        texts.iter().for_each(|text| assert!(regex.is_match(text), "{text}: {pattern}"));
    }
}

#[test]
fn defaults_and_examples_are_accepted() {
    for (section, row) in
        ROOT.all().iter().flat_map(|one| one.keys.iter().map(move |row| (one, row)))
    {
        let KeyFacts { name, example, default_note, .. } = row.facts();
        let at = format!("{}.{name}", section.path);
        let defaults = row.defaults().unwrap_or_default();
        for text in
            defaults.iter().map(String::as_str).chain(Some(*example).filter(|e| !e.is_empty()))
        {
            assert_eq!(row.accepts(text), Ok(()), "{at}: {text}");
            assert!(row.same(text, text), "{at}: {text}");
        }
        let none = defaults.is_empty() && row.words().is_empty() && row.section().is_none();
        assert!(!none || !example.is_empty() || !default_note.is_empty(), "{at} needs an example");
    }
}

#[test]
fn each_key_has_one_row_and_a_plain_description() {
    for section in ROOT.all() {
        let mut names = HashSet::new();
        for row in section.keys {
            let KeyFacts { name, doc, low, high, .. } = row.facts();
            let at = format!("{}.{name}", section.path);
            assert!(names.insert(*name), "{at} has two rows");
            assert!(doc.ends_with('.'), "{at}: {doc}");
            assert!(!low.ends_with('.') && !high.ends_with('.'), "{at}");
            assert!([doc, low, high].iter().all(|text| !text.contains(['|', '\n'])), "{at}");
        }
    }
}

/// The sources below a folder, each with the name of its module.
fn sources(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("there").path());
    let files = |path: PathBuf| match path.is_dir() {
        true => sources(&path),
        false => vec![source(&path)],
    };
    entries.flat_map(files).collect()
}

fn source(file: &Path) -> (String, String) {
    let module = file.file_stem().expect("a name").to_string_lossy().into_owned();
    (module, fs::read_to_string(file).expect("text"))
}

/// A row that no section reads would be a key that is accepted and has no effect.
#[test]
fn every_row_is_read_by_a_section() {
    let folder = root().join("crates/config/src");
    let mut sections = sources(&folder.join("settings"));
    sections.push(source(&folder.join("settings.rs")));
    let kinds = "ConfigKey|DefaultedKey|ListKey|SubsectionKey";
    let row = format!(r"(?m)^    (pub .*, )?([A-Z0-9_]+): (?:{kinds})\b");
    let row = regex_lite::Regex::new(&row).expect("a pattern");
    let rows = sections
        .iter()
        .flat_map(|(module, text)| row.captures_iter(text).map(move |found| (module, text, found)));
    let mut seen = 0;
    for (module, text, found) in rows {
        let (name, rest) = (&found[2], &text[found.get(0).expect("a row").end()..]);
        let key = rest.split('"').nth(1).expect("a name");
        let ends = [")", ",", "]"];
        let here = ends.map(|end| format!("&{name}{end}"));
        let by_name = [format!("key_with(\"{key}\""), format!("list_with(\"{key}\"")];
        let there = [module, "super"].map(|from| ends.map(|end| format!("&{from}::{name}{end}")));
        // A row that follows a field fills it.
        let is_read = found.get(1).is_some()
            || here.iter().chain(&by_name).any(|one| text.contains(one))
            || there.iter().flatten().any(|one| sections.iter().any(|(_, all)| all.contains(one)));
        assert!(is_read, "nothing reads {name} ({key}) of {module}");
        seen += 1;
    }
    assert!(seen > 200, "only {seen} rows");
}

//! The JSON schema of the configuration, for editors: keys, their forms, ranges and descriptions.
//!
//! It is made from the rows (`keys`), so schema and reader always have the same keys. It has no
//! dependencies between keys; `check` verifies those. Like the reader, it accepts a single value as
//! a list of one. Numbers and booleans of YAML are text for the reader, so each value may also be a
//! string. A range of whole numbers becomes `minimum` and `maximum`.

use crate::keys::{KeyFacts, KeyRow, SectionCount, SectionTable, SubsectionKey, ValueSyntax};
use crate::reader::IGNORED_PREFIX;
use crate::settings::ROOT;
use serde_json::{Map, Value, json};

/// Text of a duration. The reader accepts longer names of units, too.
const DURATION_PATTERN: &str = r"^\s*[0-9.]+\s*[a-z]+$";
/// Text of a number of bytes.
const SIZE_PATTERN: &str = "^[0-9]+[kKmMgG]?$";

/// Title of the schema in an editor.
const TITLE: &str = "Evenkeel's configuration";

/// The schema, in draft 7, which editors support.
#[must_use]
pub fn schema() -> Value {
    let mut schema = object(ROOT);
    if let Value::Object(schema) = &mut schema {
        schema.insert("$schema".into(), "http://json-schema.org/draft-07/schema#".into());
        schema.insert("title".into(), TITLE.into());
        let shared = ROOT.all().into_iter().filter(|table| table.is_recursive());
        let shared: Map<String, Value> =
            shared.map(|table| (table.path.to_owned(), properties(table))).collect();
        schema.insert("definitions".into(), shared.into());
    }
    schema
}

/// A section. One that may contain itself is written once, among the definitions.
fn object(table: &'static SectionTable) -> Value {
    match table.is_recursive() {
        true => json!({"$ref": format!("#/definitions/{}", table.path)}),
        false => properties(table),
    }
}

/// A section with these keys and no others, except those that are ignored; an empty one is valid.
fn properties(table: &SectionTable) -> Value {
    let properties: Map<String, Value> =
        table.keys.iter().map(|row| (row.facts().name.to_owned(), property(*row))).collect();
    let ignored = format!("^{IGNORED_PREFIX}");
    json!({"type": ["object", "null"], "properties": properties,
           "patternProperties": {ignored: {}}, "additionalProperties": false})
}

/// The property of a key.
fn property(row: &dyn KeyRow) -> Value {
    let mut property = match row.section() {
        Some(key) => section(key),
        None => value(row),
    };
    describe(row, &mut property);
    Value::Object(property)
}

/// The forms of a section: one, a list, names with lists, or a word in its place.
fn section(key: &SubsectionKey) -> Map<String, Value> {
    let one = object(key.table);
    let words = key.words();
    let or_word = |one: Value| match words.is_empty() {
        true => one,
        false => json!({"anyOf": [{"enum": enumerated(&words)}, one]}),
    };
    let form = match key.count {
        SectionCount::One => one,
        SectionCount::List => several(or_word(one)),
        SectionCount::Named => {
            json!({"type": ["object", "null"], "additionalProperties": several(one)})
        }
    };
    let form = match words.is_empty() {
        // A description beside `$ref` would hide the keys from some editors.
        true if form.get("$ref").is_some() => json!({"allOf": [form]}),
        true => form,
        false => json!({"anyOf": [{"enum": enumerated(&words)}, form]}),
    };
    if let Value::Object(form) = form { form } else { Map::new() }
}

/// One section, or a list of such sections.
fn several(one: Value) -> Value {
    json!({"anyOf": [one.clone(), {"type": ["array", "null"], "items": one}]})
}

/// The forms of a value.
fn value(row: &dyn KeyRow) -> Map<String, Value> {
    if !row.is_list() {
        return single(row);
    }
    let mut one = Value::Object(single(row));
    if let Some(table) = row.entry_table() {
        one = json!({"anyOf": [one, object(table)]});
    }
    let list = json!({"type": ["array", "null"], "items": one});
    let mut forms = vec![one, list];
    if row.is_map() {
        let values = json!({"anyOf": forms});
        forms.push(json!({"type": "object", "additionalProperties": values}));
    }
    Map::from_iter([("anyOf".to_owned(), forms.into())])
}

/// Adds the description, the default and an example.
fn describe(row: &dyn KeyRow, property: &mut Map<String, Value>) {
    let facts = row.facts();
    property.insert("description".into(), description(row).into());
    if let Some(default) = default(row) {
        property.insert("default".into(), default);
    }
    if !facts.example.is_empty() {
        property.insert("examples".into(), json!([typed(facts.syntax, facts.example)]));
    }
}

/// The forms of one value.
fn single(row: &dyn KeyRow) -> Map<String, Value> {
    let words = row.words();
    let schema = match row.facts().syntax {
        ValueSyntax::Words => json!({"enum": enumerated(&words)}),
        ValueSyntax::Whole(words) => {
            let or: String = words.iter().map(|word| format!("|{word}")).collect();
            json!({"type": ["integer", "string", "null"], "pattern": format!("^([0-9]+{or})$")})
        }
        ValueSyntax::Number => {
            json!({"type": ["number", "string", "null"], "pattern": "^[0-9.]+$"})
        }
        ValueSyntax::Duration => json!({"type": ["string", "null"], "pattern": DURATION_PATTERN}),
        ValueSyntax::Size => {
            json!({"type": ["integer", "string", "null"], "pattern": SIZE_PATTERN})
        }
        ValueSyntax::Text | ValueSyntax::Section => {
            json!({"type": ["string", "number", "boolean", "null"]})
        }
    };
    let Value::Object(mut schema) = schema else { return Map::new() };
    if let Some([least, most]) = row.range() {
        for (word, text) in [("minimum", least), ("maximum", most)] {
            if let Value::Number(number) = typed(row.facts().syntax, &text) {
                schema.insert(word.into(), number.into());
            }
        }
    }
    schema
}

/// The words of an enumeration. `true` and numbers are accepted with and without quotes.
fn enumerated(words: &[&str]) -> Vec<Value> {
    let written = words.iter().flat_map(|word| match typed(ValueSyntax::Words, word) {
        Value::String(_) => vec![json!(word)],
        other => vec![other, json!(word)],
    });
    written.chain([Value::Null]).collect()
}

/// A value as an editor would write it.
fn typed(syntax: ValueSyntax, text: &str) -> Value {
    let plain = match syntax {
        ValueSyntax::Text | ValueSyntax::Duration | ValueSyntax::Section => None,
        _ => serde_json::from_str::<Value>(text).ok(),
    };
    plain.filter(|one| one.is_number() || one.is_boolean()).unwrap_or_else(|| text.into())
}

fn default(row: &dyn KeyRow) -> Option<Value> {
    let values = row.defaults()?;
    let mut values = values.iter().map(|text| typed(row.facts().syntax, text));
    Some(if row.is_list() { values.collect() } else { values.next()? })
}

/// What an editor shows: meaning, range, default in words, and what goes wrong.
fn description(row: &dyn KeyRow) -> String {
    let KeyFacts { doc, low, high, restart, range_note, default_note, .. } = *row.facts();
    let mut text = without_links(doc);
    match (range_note, row.range()) {
        ("", Some([least, most])) => text.push_str(&format!(" From {least} to {most}.")),
        ("", None) => {}
        (note, _) => text.push_str(&format!(" Range: {note}.")),
    }
    match default_note {
        "" => {}
        "required" => text.push_str(" Required."),
        note => text.push_str(&format!(" Default: {note}.")),
    }
    for (start, note) in [("Too low", low), ("Too high", high)] {
        if !note.is_empty() {
            text.push_str(&format!(" {start}: {note}."));
        }
    }
    if restart {
        text.push_str(" A change needs a restart.");
    }
    without_links(&text)
}

/// Replaces Markdown links by their text.
fn without_links(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, label, after)) = link(rest) {
        plain.push_str(before);
        plain.push_str(label);
        rest = after;
    }
    plain.push_str(rest);
    plain
}

/// The text before the first link, the text of the link, and the text after it.
fn link(text: &str) -> Option<(&str, &str, &str)> {
    let (head, tail) = text.split_once("](")?;
    let (before, label) = head.rsplit_once('[')?;
    let (_, after) = tail.split_once(')')?;
    Some((before, label, after))
}

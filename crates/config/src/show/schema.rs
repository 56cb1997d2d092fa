//! The JSON schema of the configuration, for editors: keys, their forms, ranges and descriptions.
//!
//! It is made from the rows (`keys`), so schema and reader always have the same keys. It has no
//! dependencies between keys; `check` verifies those. Like the reader, it accepts a single value as
//! a list of one.

mod row;

use crate::keys::{KeyRow, SectionCount, SectionTable, SubsectionKey};
use crate::rows;
use serde_json::{Map, Value, json};

/// Title of the schema in an editor.
const TITLE: &str = "Evenkeel's configuration";

/// The schema, in draft 7, which editors support.
#[must_use]
pub fn schema() -> Value {
    let mut schema = object(rows::ROOT);
    if let Value::Object(schema) = &mut schema {
        schema.insert("$schema".into(), "http://json-schema.org/draft-07/schema#".into());
        schema.insert("title".into(), TITLE.into());
    }
    schema
}

/// A section with these keys and no others; an empty one is valid.
fn object(table: &SectionTable) -> Value {
    let properties: Map<String, Value> =
        table.keys.iter().map(|row| (row.facts().name.to_owned(), property(*row))).collect();
    json!({"type": ["object", "null"], "properties": properties, "additionalProperties": false})
}

/// The property of a key.
fn property(row: &dyn KeyRow) -> Value {
    let mut property = match row.section() {
        Some(key) => section(key),
        None => row::value(row),
    };
    row::describe(row, &mut property);
    Value::Object(property)
}

/// The forms of a section: one, a list, names with lists, or a word in its place.
fn section(key: &SubsectionKey) -> Map<String, Value> {
    let one = object(key.table);
    let form = match key.count {
        SectionCount::One => one,
        SectionCount::List => several(one),
        SectionCount::Named => {
            json!({"type": ["object", "null"], "additionalProperties": several(one)})
        }
    };
    let words = key.words();
    let form = match words.is_empty() {
        true => form,
        false => json!({"anyOf": [{"enum": row::enumerated(&words)}, form]}),
    };
    if let Value::Object(form) = form { form } else { Map::new() }
}

/// One section, or a list of such sections.
fn several(one: Value) -> Value {
    json!({"anyOf": [one.clone(), {"type": ["array", "null"], "items": one}]})
}

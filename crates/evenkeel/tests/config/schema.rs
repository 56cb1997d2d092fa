//! The JSON schema has every key that the reader knows, accepts every configuration that the reader
//! accepts, and refuses unknown keys.
//!
//! A validator for the few keywords that the schema uses checks it.

use super::good;
use evenkeel_config::show::schema::schema;
use evenkeel_config::tree::{self, YamlNode};
use evenkeel_testing::{evenkeel, examples};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Checks that `value` conforms to `schema`, and otherwise reports where it does not.
fn check(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.strip_prefix("#/definitions/").expect("a definition");
        let all = evenkeel_config::show::schema::schema();
        return check(&all["definitions"][name], value, at);
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        check(part, value, at)?;
    }
    if schema["allOf"].is_array() {
        return Ok(());
    }
    if let Some(ways) = schema["anyOf"].as_array() {
        let faults: Vec<_> = ways.iter().filter_map(|way| check(way, value, at).err()).collect();
        return if faults.len() < ways.len() { Ok(()) } else { Err(faults.join("; ")) };
    }
    if let Some(words) = schema["enum"].as_array() {
        return if words.contains(value) { Ok(()) } else { Err(format!("{at}: {value}")) };
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds = schema["type"].as_array().map_or(&[][..], Vec::as_slice);
    let is = |kind: &str| schema["type"] == kind || kinds.iter().any(|one| one == kind);
    let fits = is(kind) || kind == "integer" && is("number");
    if !fits {
        return Err(format!("{at}: {kind}, not {}", schema["type"]));
    }
    let beyond = |least: &Value, most: &Value| {
        value.as_f64() < least.as_f64()
            || most.as_f64().is_some_and(|most| value.as_f64() > Some(most))
    };
    if value.is_number() && beyond(&schema["minimum"], &schema["maximum"]) {
        return Err(format!("{at}: {value} is out of range"));
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check(&schema["items"], item, &format!("{at}[{index}]"))?;
    }
    for (key, inner) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{key}");
        match (&schema["properties"][key], &schema["additionalProperties"]) {
            (Value::Null, Value::Object(_)) => check(&schema["additionalProperties"], inner, &at)?,
            (Value::Null, _) if key.starts_with("x-") => {
                assert!(schema["patternProperties"]["^x-"].is_object(), "{schema}");
            }
            (Value::Null, _) => return Err(format!("{at}: no such key")),
            (known, _) => check(known, inner, &at)?,
        }
    }
    Ok(())
}

/// A node as an editor's YAML parser reads it: numbers and booleans are not texts.
fn json(node: &YamlNode) -> Value {
    match &node.value {
        tree::YamlValue::Null => Value::Null,
        tree::YamlValue::Text(text) => {
            let plain = serde_json::from_str::<Value>(text).ok();
            let plain = plain.filter(|value| value.is_number() || value.is_boolean());
            plain.unwrap_or_else(|| text.as_str().into())
        }
        tree::YamlValue::List(items) => items.iter().map(json).collect(),
        tree::YamlValue::Map(entries) => {
            entries.iter().map(|(key, node)| (key.name.to_string(), json(node))).collect()
        }
    }
}

fn fits(text: &str) -> Result<(), String> {
    let tree = tree::parse(text.as_bytes()).expect("YAML");
    check(&schema(), &json(&tree), "")
}

/// Every configuration of this project: the examples, and the blocks in the guide and in packages.
fn configurations() -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    for folder in ["examples", "packaging/debian", "packaging/container", "docs/guide"] {
        for entry in fs::read_dir(root().join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
            if !["yaml", "md"].contains(&kind) {
                continue;
            }
            let text = fs::read_to_string(&path).expect("text");
            if kind == "yaml" {
                all.push((path, text));
                continue;
            }
            let blocks =
                text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
            // Files of other programs are read as they are, and have keys of their own.
            let foreign = path.ends_with("from-smockron.md");
            let whole = blocks.filter(|block| !block.starts_with("limits:") && !foreign);
            all.extend(whole.map(|block| (path.clone(), examples::beside_its_files(block))));
        }
    }
    all
}

#[test]
fn every_configuration_fits_and_so_does_what_it_means() {
    let all = configurations();
    assert!(all.len() > 30, "only {}", all.len());
    for (path, text) in all {
        fits(&text).unwrap_or_else(|fault| panic!("{}: {fault}\n{text}", path.display()));
        let name = examples::path("block").display().to_string();
        let native = evenkeel_config::parse(&name, text.as_bytes(), 4.0).expect("good").native;
        fits(&native).unwrap_or_else(|fault| panic!("{}: {fault}\n{native}", path.display()));
    }
}

#[test]
fn files_of_groups_fit_below_groups() {
    for entry in fs::read_dir(examples::path("groups")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("text");
        let below = format!("groups:\n  {}", text.replace('\n', "\n  "));
        fits(&below).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
    }
}

#[test]
fn a_key_that_is_not_there_does_not_fit_anywhere() {
    for text in [
        "proxi: {}",
        "proxy: {listn: 1}",
        "proxy: {limits: [{name: a, by: ip/32, shar: 1%}]}",
        "proxy: {timeouts: {conect: 1s}}",
        "master: {domains: {a: [{rat: 1/s}]}}",
        "ratelimit: {xds: {tls: {c: 1}}}",
        "proxy: {action: quue}",
        "log: {level: [info]}",
        "proxy: {queue: {len_max: 0}}",
        "proxy: {queue: {len_max: 1.5}}",
        "proxy: {queue: {len_max: 1000001}}",
        "proxy: {queue: {wait_max: 30}}",
        "admin: on",
    ] {
        assert!(fits(text).is_err(), "{text}");
    }
    for text in ["", "admin: off", "proxy:", "proxy: {listen: off, shadow: true}", "log: {}"] {
        fits(text).unwrap_or_else(|fault| panic!("{text}: {fault}"));
        good(text);
    }
}

#[test]
fn the_file_for_editors_is_what_the_program_prints() {
    let printed = evenkeel!().arg("schema").output();
    let printed = String::from_utf8(printed.expect("it runs").stdout).expect("text");
    let file = fs::read_to_string(root().join("packaging/evenkeel.schema.json")).expect("a file");
    assert!(file == printed, "evenkeel schema >packaging/evenkeel.schema.json");
}

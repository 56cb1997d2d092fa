//! The JSON schema of the configuration, for editors: keys, their forms and the accepted words.
//!
//! It is derived from the reader, which records what it is asked while it reads a few
//! configurations with all sections. So schema and reader always have the same keys. The schema has
//! no ranges and no dependencies between keys; `check` verifies those. Like the reader, it accepts
//! a single value as a list of one.

mod row;

pub use crate::reader::SectionOutline;
use crate::reader::{KeyForm, ScalarForm};
use crate::{rows, section, tree};
use serde_json::{Map, Value, json};

/// Configurations that together ask for every key. Their values do not matter, nor do their faults.
const PROBES: [&str; 4] = [
    "
metrics: {statsd: a:1, graphite: a:1, otlp: {tls: {}}}
traces: {tls: {}}
state: {file: a}
proxy:
  tls: {cert: a, key: a, ca: a, certificates: [{cert: a, key: a}]}
  backend: https://a
  backend_tls: {ca: a}
  merge: [{match: a, as: a}]
  limits:
    - {name: a, by: ip/32, share: 1%}
    - {name: b, by: ip/32, rate: 1/s}
    - {name: c, by: ip/32, window: 15s, max: 1s, when: {}}
check:
line: {limits: [{prefix: a, rate: 1/s}]}
ratelimit:
  tls: {cert: a, key: a}
  headers: {limit: a}
  xds: {tls: {ca: a}}
  statsd: {rename: [{match: a, name: a}]}
  prometheus: {listen: 127.0.0.1:1}
peers: {via: mesh, tls: {cert: a}}
master: {domains: {a: [{rate: 1/s}]}}
gatekeeper: {identifier: ip/32, log_info: path}
store: {redis: a, tls: {ca: a}, per_second: {redis: a, tls: {ca: a}}}
",
    "
proxy: {backend_tls: {}, queue: {}}
ratelimit: {headers: true, xds: {tls: true}}
peers: {via: multicast}
gatekeeper: {}
",
    "
peers: {via: nats}
gatekeeper: [{identifier: ip/32, log_info: path}]
",
    "admin: {listen: 127.0.0.1:1}",
];

/// Title of the schema in an editor.
const TITLE: &str = "Evenkeel's configuration";

/// The schema, in draft 7, which editors support.
#[must_use]
pub fn schema() -> Value {
    let mut schema = object(&outline(), "");
    if let Value::Object(schema) = &mut schema {
        schema.insert("$schema".into(), "http://json-schema.org/draft-07/schema#".into());
        schema.insert("title".into(), TITLE.into());
    }
    schema
}

/// All keys that the reader asks for.
#[must_use]
pub fn outline() -> SectionOutline {
    let mut outline = SectionOutline::default();
    for probe in PROBES {
        if let Ok(root) = tree::parse(probe.as_bytes()) {
            // A default that differs between machines is not part of the schema.
            for cpus in [1.0, 64.0] {
                outline.merge(section::outline(&root, cpus));
            }
        }
    }
    outline
}

/// A section with these keys and no others; an empty one is valid.
fn object(outline: &SectionOutline, path: &str) -> Value {
    let table = rows::SECTIONS.iter().find(|table| table.path == path);
    let properties: Map<String, Value> = outline
        .keys()
        .map(|(key, form)| {
            let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            let row = table.and_then(|table| table.row(key));
            (key.to_owned(), row.map_or_else(|| of(form, &path), row::property))
        })
        .collect();
    json!({"type": ["object", "null"], "properties": properties, "additionalProperties": false})
}

fn of(form: &KeyForm, path: &str) -> Value {
    let object = |outline: &SectionOutline| object(outline, path);
    let mut ways = Vec::new();
    if let Some(single) = &form.single {
        ways.push(scalar(single));
    }
    ways.extend(form.section.as_deref().map(&object));
    ways.extend(form.sections.as_deref().map(|of| several(object(of))));
    if let Some(named) = &form.named {
        let of = several(object(named));
        ways.push(json!({"type": ["object", "null"], "additionalProperties": of}));
    }
    let schema = match <[Value; 1]>::try_from(ways) {
        Ok([way]) => way,
        Err(ways) => json!({"anyOf": ways}),
    };
    let mut schema = match form.many && form.single.is_some() {
        true => several(schema),
        false => schema,
    };
    if let (Value::Object(schema), Some(single)) = (&mut schema, &form.single) {
        if let [default] = single.defaults.as_slice() {
            schema.insert("default".into(), default.clone().into());
        }
        if let Some(advice) = single.advice.as_ref().filter(|_| single.free) {
            schema.insert("description".into(), advice.clone().into());
        }
    }
    schema
}

/// One value, or a list of such values.
fn several(one: Value) -> Value {
    json!({"anyOf": [one.clone(), {"type": ["array", "null"], "items": one}]})
}

/// A single value. Numbers and booleans of YAML are text for the reader.
fn scalar(single: &ScalarForm) -> Value {
    if single.free {
        return json!({"type": ["string", "number", "boolean", "null"]});
    }
    let written = single.words.iter().flat_map(|word| match word.as_str() {
        "true" => vec![json!(true), json!("true")],
        "false" => vec![json!(false), json!("false")],
        number if number.parse::<f64>().is_ok() => {
            vec![json!(number), json!(number.parse::<f64>().unwrap_or_default())]
        }
        word => vec![json!(word)],
    });
    json!({"enum": written.chain([Value::Null]).collect::<Vec<_>>()})
}

//! Requests and answers as JSON, in the form that protobuf gives them.
//!
//! Names may be `camelCase` or `snake_case`, numbers of 64 bits may be texts, units may be names
//! or numbers, and a field that is not known is a fault. Answers leave out what is zero. What is
//! done with a request: `decide`; how it comes in: `http`.

use super::wire::{Code, Descriptor, Entry, Override, Request, Response, Status};
use prost_types::value::Kind;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Why a text is no request. Whoever sent it is at fault.
#[derive(Debug, thiserror::Error)]
#[error("not a request: {0}")]
pub struct Fault(#[from] serde_json::Error);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRequest {
    domain: Option<String>,
    descriptors: Option<Vec<JsonDescriptor>>,
    #[serde(alias = "hits_addend", rename = "hitsAddend")]
    hits_addend: Option<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonDescriptor {
    entries: Option<Vec<JsonEntry>>,
    limit: Option<JsonOverride>,
    #[serde(alias = "hits_addend", rename = "hitsAddend")]
    hits_addend: Option<Number>,
    #[serde(alias = "is_negative_hits", rename = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonOverride {
    #[serde(alias = "requests_per_unit", rename = "requestsPerUnit")]
    requests_per_unit: Option<Number>,
    unit: Option<JsonUnit>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum JsonUnit {
    Number(i32),
    Name(Unit),
}

/// The units that a request may name; a week has a number only.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Unit {
    Unknown,
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Year,
}

/// A whole number, or one in quotes.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Plain(u64),
    Quoted(#[serde(deserialize_with = "quoted")] u64),
}

impl Number {
    fn value(&self) -> u64 {
        let (Number::Plain(n) | Number::Quoted(n)) = self;
        *n
    }
}

fn quoted<'de, D: serde::Deserializer<'de>>(source: D) -> Result<u64, D::Error> {
    let text = String::deserialize(source)?;
    text.parse().map_err(|_| serde::de::Error::custom("not a whole number"))
}

/// Reads a request.
///
/// # Errors
/// If it is not JSON, has fields that are not known, or values that do not fit.
pub fn request(bytes: &[u8]) -> Result<Request, Fault> {
    let json: JsonRequest = serde_json::from_slice(bytes)?;
    let descriptors = json.descriptors.unwrap_or_default();
    Ok(Request {
        domain: json.domain.unwrap_or_default(),
        descriptors: descriptors.into_iter().map(descriptor).collect::<Result<_, _>>()?,
        hits_addend: narrow(json.hits_addend.as_ref())?,
    })
}

fn descriptor(json: JsonDescriptor) -> Result<Descriptor, Fault> {
    let entry = |entry: JsonEntry| Entry {
        key: entry.key.unwrap_or_default(),
        value: entry.value.unwrap_or_default(),
    };
    let limit = json.limit.map(|limit| {
        let unit = match limit.unit {
            None => 0,
            Some(JsonUnit::Number(number)) => number,
            Some(JsonUnit::Name(unit)) => unit as i32,
        };
        let requests_per_unit = narrow(limit.requests_per_unit.as_ref())?;
        Ok::<_, Fault>(Override { requests_per_unit, unit })
    });
    Ok(Descriptor {
        entries: json.entries.unwrap_or_default().into_iter().map(entry).collect(),
        limit: limit.transpose()?,
        hits_addend: json.hits_addend.as_ref().map(Number::value),
        is_negative_hits: json.is_negative_hits.unwrap_or_default(),
    })
}

fn narrow(number: Option<&Number>) -> Result<u32, Fault> {
    let wide = || <serde_json::Error as serde::de::Error>::custom("more than 32 bits");
    let number = number.map_or(0, Number::value);
    Ok(u32::try_from(number).map_err(|_| wide())?)
}

/// An answer as JSON.
#[must_use]
pub fn response(response: &Response) -> Value {
    let mut all = Map::new();
    all.insert("overallCode".into(), code(response.overall_code()).into());
    if !response.statuses.is_empty() {
        let statuses = response.statuses.iter().map(status).collect();
        all.insert("statuses".into(), Value::Array(statuses));
    }
    if !response.response_headers_to_add.is_empty() {
        let headers = response.response_headers_to_add.iter();
        let headers = headers.map(|header| json!({"key": header.key, "value": header.value}));
        all.insert("responseHeadersToAdd".into(), Value::Array(headers.collect()));
    }
    if let Some(data) = &response.dynamic_metadata {
        all.insert("dynamicMetadata".into(), metadata(data));
    }
    Value::Object(all)
}

fn status(status: &Status) -> Value {
    let mut all = Map::new();
    all.insert("code".into(), code(status.code()).into());
    if let Some(limit) = &status.current_limit {
        let mut current = Map::new();
        if !limit.name.is_empty() {
            current.insert("name".into(), limit.name.clone().into());
        }
        if limit.requests_per_unit != 0 {
            current.insert("requestsPerUnit".into(), limit.requests_per_unit.into());
        }
        current.insert("unit".into(), limit.unit().as_str_name().into());
        all.insert("currentLimit".into(), Value::Object(current));
    }
    if status.limit_remaining != 0 {
        all.insert("limitRemaining".into(), status.limit_remaining.into());
    }
    if let Some(reset) = &status.duration_until_reset {
        all.insert("durationUntilReset".into(), format!("{}s", reset.seconds).into());
    }
    Value::Object(all)
}

fn code(code: Code) -> &'static str {
    code.as_str_name()
}

/// Dynamic metadata as JSON.
#[must_use]
pub fn metadata(data: &prost_types::Struct) -> Value {
    let fields = data.fields.iter().map(|(key, one)| (key.clone(), value(one)));
    Value::Object(fields.collect())
}

fn value(one: &prost_types::Value) -> Value {
    match &one.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(truth)) => Value::Bool(*truth),
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => Value::String(text.clone()),
        Some(Kind::ListValue(list)) => Value::Array(list.values.iter().map(value).collect()),
        Some(Kind::StructValue(data)) => metadata(data),
    }
}

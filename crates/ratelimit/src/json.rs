//! Requests and answers as JSON, in protobuf's JSON mapping.
//!
//! Names may be `camelCase` or `snake_case`. Numbers may be strings and may have a point or an
//! exponent if their value is whole. Units may be names or numbers. An unknown field is an error.
//! Answers leave out fields that are zero. How a request is decided: `decide`; how it arrives:
//! `http`.

use super::wire::{Descriptor, Entry, Override, RateLimitUnit, Request, Response, Status};
use prost_types::value::Kind;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// The reason why a text is not a request. The caller is at fault.
#[derive(Debug, thiserror::Error)]
#[error("not a request: {0}")]
pub struct JsonRequestError(#[from] serde_json::Error);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRequest<'a> {
    domain: Option<String>,
    #[serde(borrow)]
    descriptors: Option<Vec<JsonObject<JsonDescriptor<'a>>>>,
    #[serde(borrow, alias = "hits_addend", rename = "hitsAddend")]
    hits_addend: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonDescriptor<'a> {
    entries: Option<Vec<JsonObject<JsonEntry>>>,
    #[serde(borrow)]
    limit: Option<JsonObject<JsonOverride<'a>>>,
    #[serde(borrow, alias = "hits_addend", rename = "hitsAddend")]
    hits_addend: Option<&'a RawValue>,
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
struct JsonOverride<'a> {
    #[serde(borrow, alias = "requests_per_unit", rename = "requestsPerUnit")]
    requests_per_unit: Option<&'a RawValue>,
    #[serde(borrow)]
    unit: Option<&'a RawValue>,
}

/// A message, which must be an object. Without this type, serde would accept an array of its fields
/// too.
struct JsonObject<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<JsonObject<T>, D::Error> {
        let raw = <&RawValue>::deserialize(source)?.get();
        if !raw.starts_with('{') {
            return Err(D::Error::custom("a message must be an object"));
        }
        serde_json::from_str(raw).map(JsonObject).map_err(D::Error::custom)
    }
}

/// Reads a request.
///
/// # Errors
/// [`JsonRequestError`] if the text is not JSON, or has unknown fields or values that do not fit.
pub fn request(bytes: &[u8]) -> Result<Request, JsonRequestError> {
    let JsonObject(json) = serde_json::from_slice::<JsonObject<JsonRequest<'_>>>(bytes)?;
    let descriptors = json.descriptors.unwrap_or_default();
    Ok(Request {
        domain: json.domain.unwrap_or_default(),
        descriptors: descriptors.into_iter().map(descriptor).collect::<Result<_, _>>()?,
        hits_addend: json.hits_addend.map(number).transpose()?.unwrap_or_default(),
    })
}

fn descriptor(
    JsonObject(json): JsonObject<JsonDescriptor<'_>>,
) -> Result<Descriptor, JsonRequestError> {
    let entry = |JsonObject(entry): JsonObject<JsonEntry>| Entry {
        key: entry.key.unwrap_or_default(),
        value: entry.value.unwrap_or_default(),
    };
    let limit = |JsonObject(limit): JsonObject<JsonOverride<'_>>| {
        let requests_per_unit = limit.requests_per_unit.map(number).transpose()?;
        let unit = limit.unit.map(unit).transpose()?.unwrap_or_default();
        Ok::<_, JsonRequestError>(Override {
            requests_per_unit: requests_per_unit.unwrap_or_default(),
            unit,
        })
    };
    Ok(Descriptor {
        entries: json.entries.unwrap_or_default().into_iter().map(entry).collect(),
        limit: json.limit.map(limit).transpose()?,
        hits_addend: json.hits_addend.map(number).transpose()?,
        is_negative_hits: json.is_negative_hits.unwrap_or_default(),
    })
}

/// A whole number in any notation of JSON, quoted or not.
fn number<T: TryFrom<i128>>(raw: &RawValue) -> Result<T, JsonRequestError> {
    let text = raw.get();
    let written = match text.starts_with('"') {
        true => serde_json::from_str::<String>(text)?,
        false => text.to_owned(),
    };
    let fits = whole(&written).and_then(|number| T::try_from(number).ok());
    fits.ok_or_else(|| unfit("not a whole number that fits"))
}

/// A unit, given by its name or its number.
fn unit(raw: &RawValue) -> Result<i32, JsonRequestError> {
    let text = raw.get();
    if !text.starts_with('"') {
        return number(raw);
    }
    let name: String = serde_json::from_str(text)?;
    let unit = RateLimitUnit::from_str_name(&name).map(|unit| unit as i32);
    unit.ok_or_else(|| unfit("unknown unit"))
}

fn unfit(what: &str) -> JsonRequestError {
    serde_json::Error::custom(what).into()
}

/// Reads `2`, `2.0` or `20e-1` exactly, without a conversion to a floating-point number.
fn whole(text: &str) -> Option<i128> {
    let is_json = serde_json::from_str::<&RawValue>(text).is_ok_and(|raw| raw.get() == text);
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    if !is_json || !unsigned.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (before, behind) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = [before, behind].concat();
    let kept = digits.trim_end_matches('0');
    if kept.is_empty() {
        return Some(0);
    }
    let cut = i64::try_from(digits.len() - kept.len()).ok()?;
    let places = i64::try_from(behind.len()).ok()?;
    let shift = exponent.parse::<i64>().ok()?.checked_add(cut)?.checked_sub(places)?;
    let power = 10_i128.checked_pow(u32::try_from(shift).ok()?)?;
    let number = kept.parse::<i128>().ok()?.checked_mul(power)?;
    Some(if text.starts_with('-') { -number } else { number })
}

/// Converts an answer to protobuf's JSON form, in which fields that are zero are left out.
pub fn response(response: &Response) -> Value {
    let mut all = Map::new();
    all.insert("overallCode".into(), response.overall_code().as_str_name().into());
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
    all.insert("code".into(), status.code().as_str_name().into());
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

/// Converts dynamic metadata to JSON.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The values read from `text` as the 32-bit and the 64-bit `hitsAddend`; `None` if it is
    /// refused.
    fn read(text: &str) -> (Option<u32>, Option<u64>) {
        let all = request(format!("{{\"hitsAddend\":{text}}}").as_bytes());
        let one = request(format!("{{\"descriptors\":[{{\"hits_addend\":{text}}}]}}").as_bytes());
        let one = one.ok().and_then(|request| request.descriptors[0].hits_addend);
        (all.ok().map(|request| request.hits_addend), one)
    }

    #[test]
    fn numbers_are_those_of_protobufs_json() {
        for (text, number) in [
            ("2.0", 2),
            ("2e0", 2),
            ("2E+0", 2),
            ("\"2.0\"", 2),
            ("\"20e-1\"", 2),
            ("0.2e1", 2),
            ("10.50e1", 105),
            ("100e-2", 1),
            ("-0", 0),
            ("-0.0", 0),
            ("0e999999", 0),
            ("\"2\\u0030\"", 20),
            ("4.294967295e9", u32::MAX),
        ] {
            assert_eq!(read(text), (Some(number), Some(number.into())), "{text}");
        }
        for text in [
            "-1",
            "2.5",
            "1e-5",
            "\" 2\"",
            "\"2 \"",
            "\"\"",
            "\"+2\"",
            "\"0x2\"",
            "\"02\"",
            "02",
            "5.",
            "\".5e1\"",
            "\"1_0\"",
            "\"NaN\"",
            "\"[2]\"",
            "1e999999",
            "1e99999999999999999999",
            "true",
            "[2]",
            "{\"value\":2}",
        ] {
            assert_eq!(read(text), (None, None), "{text}");
        }
        assert_eq!(read("null"), (Some(0), None));
        assert_eq!(read("1e10"), (None, Some(10_000_000_000)));
        for text in
            ["18446744073709551615.0", "1.8446744073709551615e19", "184467440737095516150e-1"]
        {
            assert_eq!(read(text), (None, Some(u64::MAX)), "{text}");
        }
        assert_eq!(read("18446744073709551616"), (None, None));
    }

    #[test]
    fn units_are_names_or_numbers() {
        let unit = |text: &str| {
            let text = format!("{{\"descriptors\":[{{\"limit\":{{\"unit\":{text}}}}}]}}");
            let limit = request(text.as_bytes()).ok()?.descriptors[0].limit;
            limit.map(|limit| limit.unit)
        };
        for (text, number) in
            [("\"HOUR\"", 3), ("3.0", 3), ("3e0", 3), ("7", 7), ("-1", -1), ("null", 0), ("99", 99)]
        {
            assert_eq!(unit(text), Some(number), "{text}");
        }
        for text in ["\"3\"", "\"hour\"", "\"WEEK\"", "3.5", "4294967296", "\"\"", "true"] {
            assert_eq!(unit(text), None, "{text}");
        }
    }

    #[test]
    fn a_message_is_an_object() {
        for text in [
            "null",
            "[]",
            "[\"d\",[],1]",
            "{\"descriptors\":[null]}",
            "{\"descriptors\":[[]]}",
            "{\"descriptors\":[{\"entries\":[[\"k\",\"v\"]]}]}",
            "{\"descriptors\":[{\"limit\":[1,3]}]}",
            "{\"descriptors\":{}}",
            "{\"domain\":\"a\",\"domain\":\"b\"}",
            "{\"hitsAddend\":1,\"hits_addend\":2}",
            "{\"domain\":\"\\ud800\"}",
            "{} {}",
        ] {
            assert!(request(text.as_bytes()).is_err(), "{text}");
        }
        let nothing = " {\"descriptors\": [ { \"entries\" : null, \"limit\": null } ] }";
        let nothing = request(nothing.as_bytes()).expect("sound");
        assert_eq!(nothing.descriptors, [Descriptor::default()]);
    }
}

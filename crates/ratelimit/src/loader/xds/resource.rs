//! Converts the resources of a management server to trees from which rules are read.
//!
//! Each resource holds the rules of one domain and is treated like a file with its name. The same
//! checks apply and the same errors are reported, but without line numbers. A limit without a unit
//! and a level without a limit mean the same as in a file. The total size is bounded by
//! `DESCRIPTORS_MAX`.

use crate::rules::RateUnit;
use crate::wire::conf::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};
use evenkeel_config::fault::TextPlace;
use evenkeel_config::tree::{YamlKey, YamlNode, YamlValue};
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Any, Struct, Value as Proto};

/// The maximum number of descriptors and metadata values over all resources of a message.
const DESCRIPTORS_MAX: usize = 500_000;
const COUNTED_NOUNS: &str = "descriptors and values of metadata";

/// Converts each resource to a tree with a name.
///
/// # Errors
/// The first error in the resources, as text.
pub fn trees(resources: &[Any]) -> Result<Vec<(String, YamlNode)>, String> {
    let mut room = DESCRIPTORS_MAX;
    let mut trees = Vec::with_capacity(resources.len());
    for (index, resource) in resources.iter().enumerate() {
        if resource.type_url != super::TYPE_URL {
            return Err(format!("resource {index} is of the type {}", resource.type_url));
        }
        let config = RateLimitConfig::decode(&*resource.value);
        let config = config.map_err(|error| format!("resource {index}: {error}"))?;
        let name = match config.name.is_empty() {
            true => format!("resource {index}"),
            false => config.name.clone(),
        };
        let descriptors = list(config.descriptors, &mut room);
        let descriptors =
            descriptors.ok_or_else(|| format!("more than {DESCRIPTORS_MAX} {COUNTED_NOUNS}"))?;
        let tree = [("domain", text(config.domain)), ("descriptors", descriptors)];
        trees.push((name, YamlNode::map(tree)));
    }
    Ok(trees)
}

/// Converts a list of descriptors; `None` if there are too many for `room`.
fn list(descriptors: Vec<RateLimitDescriptor>, room: &mut usize) -> Option<YamlNode> {
    *room = room.checked_sub(descriptors.len())?;
    let nodes = descriptors.into_iter().map(|descriptor| node(descriptor, room));
    Some(YamlNode::made(YamlValue::List(nodes.collect::<Option<_>>()?)))
}

fn node(descriptor: RateLimitDescriptor, room: &mut usize) -> Option<YamlNode> {
    let flags = [
        ("shadow_mode", descriptor.shadow_mode),
        ("detailed_metric", descriptor.detailed_metric),
        ("quota_mode", descriptor.quota_mode),
    ];
    let mut entries = vec![
        ("key", text(descriptor.key)),
        ("value", text(descriptor.value)),
        ("descriptors", list(descriptor.descriptors, room)?),
    ];
    entries.extend(descriptor.rate_limit.map(|limit| ("rate_limit", policy(limit))));
    if let Some(fields) = descriptor.metadata {
        entries.push(("metadata", metadata(fields, room)?));
    }
    entries.extend(flags.map(|(key, truth)| (key, YamlNode::text(truth.to_string()))));
    Some(YamlNode::map(entries))
}

fn policy(limit: RateLimitPolicy) -> YamlNode {
    let unit = RateUnit::from_wire(limit.unit).map_or("", RateUnit::name);
    let replaces = limit.replaces.into_iter().map(|one| YamlNode::map([("name", text(one.name))]));
    let mut entries = vec![
        ("requests_per_unit", YamlNode::text(limit.requests_per_unit.to_string())),
        ("unlimited", YamlNode::text(limit.unlimited.to_string())),
        ("replaces", YamlNode::made(YamlValue::List(replaces.collect()))),
        ("unit", YamlNode::text(unit)),
    ];
    if !limit.name.is_empty() {
        entries.push(("name", text(limit.name)));
    }
    YamlNode::map(entries)
}

/// Converts metadata to the form that it has in a file; `None` if there are too many values for
/// `room`.
fn metadata(fields: Struct, room: &mut usize) -> Option<YamlNode> {
    let entry = |(name, field)| {
        let key = YamlKey { place: TextPlace::default(), plain: false, name };
        Some((key, value(field, room)?))
    };
    let entries = fields.fields.into_iter().map(entry).collect::<Option<_>>()?;
    Some(YamlNode::made(YamlValue::Map(entries)))
}

fn value(value: Proto, room: &mut usize) -> Option<YamlNode> {
    *room = room.checked_sub(1)?;
    Some(match value.kind {
        None | Some(Kind::NullValue(_)) => YamlNode::made(YamlValue::Null),
        Some(Kind::BoolValue(truth)) => YamlNode::text(truth.to_string()),
        Some(Kind::NumberValue(number)) => YamlNode::text(number.to_string()),
        Some(Kind::StringValue(written)) => text(written),
        Some(Kind::StructValue(fields)) => metadata(fields, room)?,
        Some(Kind::ListValue(list)) => {
            let items = list.values.into_iter().map(|item| self::value(item, room));
            YamlNode::made(YamlValue::List(items.collect::<Option<_>>()?))
        }
    })
}

/// A text that is never read as a number or a boolean.
fn text(text: String) -> YamlNode {
    YamlNode { plain: false, ..YamlNode::text(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::read::{RuleOptions, read_trees};
    use crate::tally::RuleTallies;
    use evenkeel_fuzz::fuzz;

    fn resource(value: Vec<u8>) -> Any {
        Any { type_url: super::super::TYPE_URL.to_owned(), value }
    }

    #[test]
    fn values_are_texts_and_what_is_wrong_is_told_as_of_a_file() {
        let limit = RateLimitPolicy { unit: 7, requests_per_unit: 3, ..RateLimitPolicy::default() };
        let descriptor = |key: &str, value: &str, limit: &RateLimitPolicy| RateLimitDescriptor {
            key: key.to_owned(),
            value: value.to_owned(),
            rate_limit: Some(limit.clone()),
            ..RateLimitDescriptor::default()
        };
        let config = |descriptors| RateLimitConfig {
            name: "one".to_owned(),
            domain: "d".to_owned(),
            descriptors,
        };
        let read = |config: RateLimitConfig| {
            let trees = trees(&[resource(config.encode_to_vec())]).expect("sound");
            read_trees(trees, RuleOptions::default(), &RuleTallies::default())
        };
        let sound = config(vec![descriptor("k", "1.5", &limit), descriptor("k", "true", &limit)]);
        let dump = read(sound).expect("sound").dump();
        assert!(dump.contains("d.k_1.5: unit=WEEK requests_per_unit=3"), "{dump}");
        let none = RateLimitPolicy { unit: 0, ..limit };
        let refused = read(config(vec![descriptor("k", "", &none)])).expect_err("no unit");
        assert_eq!(refused[0].to_string().trim(), "one: invalid rate limit unit ''");
        assert!(trees(&[Any::default()]).expect_err("no type").contains("is of the type"));
    }

    #[test]
    fn metadata_is_what_it_would_be_in_a_file() {
        let kind = |kind| Proto { kind: Some(kind) };
        let list = [kind(Kind::NumberValue(-2.5)), kind(Kind::BoolValue(true)), Proto::default()];
        let list = prost_types::ListValue { values: list.to_vec() };
        let inner = Struct { fields: [("list".to_owned(), kind(Kind::ListValue(list)))].into() };
        let fields = [
            ("text".to_owned(), kind(Kind::StringValue("1.5".to_owned()))),
            ("404".to_owned(), kind(Kind::NumberValue(1e20))),
            ("inner".to_owned(), kind(Kind::StructValue(inner))),
        ];
        let fields = Struct { fields: fields.into() };
        let node = metadata(fields.clone(), &mut 10).expect("few enough");
        let read = crate::rules::metadata::read(&node).expect("a map");
        let expected = serde_json::json!({
            "text": "1.5", "404": 1e20, "inner": {"list": [-2.5, true, null]},
        });
        assert_eq!(crate::json::metadata(&read), expected);
        assert_eq!(metadata(fields, &mut 5), None, "six values are more than five");
    }

    #[test]
    fn fuzz_resources() {
        fuzz().for_each(|bytes: &[u8]| {
            if let Ok(trees) = trees(&[resource(bytes.to_vec())]) {
                let _ = read_trees(trees, RuleOptions::default(), &RuleTallies::default());
            }
        });
    }
}

//! Checks how an Envoy asks Evenkeel: the settings of its external processing filter that do harm.
//!
//! A file of Envoy, an `EnvoyFilter` of Istio and an `EnvoyExtensionPolicy` of Envoy Gateway are
//! recognised by what is in them. Nothing else in these files is checked. What the settings mean:
//! docs/guide/ext-proc.md.

use crate::fault::{ConfigFault, ConfigFaults};
use crate::tree::{self, YamlDialect, YamlNode, YamlValue};
use evenkeel_core::units::Nanos;
use std::fs;
use std::path::Path;

const DIALECT: YamlDialect =
    YamlDialect { bytes_max: 16 << 20, depth_max: 64, nodes_max: 500_000, ..tree::CONFIGURATION };
/// The ends of the types of what is checked.
const FILTER: &str = ".ext_proc.v3.ExternalProcessor";
const MANAGER: &str = ".HttpConnectionManager";
const POLICY: &str = "EnvoyExtensionPolicy";
/// The default of `proxy.queue.wait_max`.
const WAIT_MAX: Nanos = Nanos::from_secs(30);
/// The default of `max_requests` of a cluster.
const REQUESTS_MAX: u64 = 1_024;

/// Checks a file. Returns its warnings; its faults, if requests cannot wait for their turns. `None`
/// if there is no external processing in the file.
#[must_use]
pub fn check(path: &Path) -> Option<Result<Vec<String>, ConfigFaults>> {
    let text = fs::read_to_string(path).ok()?;
    let notes = notes(&text)?;
    let name = path.display().to_string();
    if notes.iter().any(|note| !note.is_warning) {
        return Some(Err(ConfigFaults::new(&name, notes)));
    }
    let lines = ConfigFaults::new(&name, notes).to_string();
    Some(Ok(lines.lines().map(str::to_owned).collect()))
}

/// What is wrong; `None` if there is no external processing.
fn notes(text: &str) -> Option<Vec<ConfigFault>> {
    let documents = documents(text).into_iter();
    let documents = documents.map(|one| tree::parse_as(one.as_bytes(), DIALECT));
    let documents = documents.collect::<Result<Vec<_>, _>>().ok()?;
    let mut all = Vec::new();
    documents.iter().for_each(|document| nodes(document, &mut all));
    let is = |end: &'static str| {
        let typed = move |node: &&&YamlNode| text_at(node, &["@type"]).ends_with(end);
        all.iter().filter(typed).copied()
    };
    let policies: Vec<&YamlNode> = all
        .iter()
        .filter(|node| text_at(node, &["kind"]) == POLICY)
        .flat_map(|policy| policy.find(&["spec", "extProc"]).map(YamlNode::items))
        .flatten()
        .collect();
    let filters: Vec<&YamlNode> = is(FILTER).collect();
    if filters.is_empty() && policies.is_empty() {
        return None;
    }
    let mut notes = Vec::new();
    for filter in &filters {
        of_filter(filter, &mut notes);
        of_cluster(filter, &all, &mut notes);
    }
    policies.iter().for_each(|policy| of_policy(policy, &mut notes));
    let says_source = |filter: &&YamlNode| {
        let attributes = filter.find(&["request_attributes"]).map_or(&[][..], YamlNode::items);
        attributes.iter().any(|one| one.as_text() == Some("source.address"))
    };
    if !filters.iter().all(says_source) {
        let believes = |manager: &&YamlNode| text_at(manager, &["use_remote_address"]) != "true";
        notes.extend(is(MANAGER).filter(believes).map(|manager| {
            let what = "Evenkeel believes what clients write in X-Forwarded-For; set \
                        `use_remote_address: true` here, or `request_attributes: [source.address]` \
                        in the filter";
            ConfigFault::new(manager.place, what).as_warning()
        }));
    }
    Some(notes)
}

/// The documents of a file. Each begins with an empty line for each line before it, so that the
/// places in it are those in the file.
fn documents(text: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for (number, line) in text.lines().enumerate() {
        if line.trim_end() == "---" {
            all.push("\n".repeat(number + 1));
        } else if let Some(last) = all.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    all
}

/// All nodes of a tree.
fn nodes<'a>(node: &'a YamlNode, into: &mut Vec<&'a YamlNode>) {
    into.push(node);
    match &node.value {
        YamlValue::Map(entries) => entries.iter().for_each(|(_, below)| nodes(below, into)),
        YamlValue::List(items) => items.iter().for_each(|below| nodes(below, into)),
        YamlValue::Null | YamlValue::Text(_) => {}
    }
}

/// The text at a path; empty if there is none.
fn text_at<'a>(node: &'a YamlNode, way: &[&str]) -> &'a str {
    node.find(way).and_then(YamlNode::as_text).unwrap_or_default()
}

/// Whether a time is given and is longer than requests may wait.
fn is_long(node: &YamlNode, key: &str) -> bool {
    text_at(node, &[key]).parse().is_ok_and(|time: Nanos| time > WAIT_MAX)
}

/// Checks a filter of Envoy.
fn of_filter(filter: &YamlNode, notes: &mut Vec<ConfigFault>) {
    let at = |key: &str| filter.find(&[key]).map_or(filter.place, |node| node.place);
    let mode = |key: &str| text_at(filter, &["processing_mode", key]);
    if !is_long(filter, "message_timeout") && !is_long(filter, "max_message_timeout") {
        let what = "a request cannot wait for its turn: set `message_timeout`, which is 200 ms by \
                    default, to more than `proxy.queue.wait_max` (30 s), such as 35s";
        notes.push(ConfigFault::new(at("message_timeout"), what));
    }
    if let Some(timeout) = filter.find(&["grpc_service", "timeout"]) {
        let what = "this is the time for a request from its arrival to the end of its response, \
                    not for a message; remove it";
        notes.push(ConfigFault::new(timeout.place, what));
    }
    if mode("request_header_mode") == "SKIP" {
        let what = "Evenkeel does not see requests; set `request_header_mode: SEND`";
        notes.push(ConfigFault::new(at("processing_mode"), what));
    }
    if text_at(filter, &["observability_mode"]) == "true" {
        let what = "requests do not wait for their turns, they are only charged; remove it";
        notes.push(ConfigFault::new(at("observability_mode"), what).as_warning());
    }
    if text_at(filter, &["failure_mode_allow"]) != "true" {
        let what = "if Evenkeel cannot be reached, all requests fail; set \
                    `failure_mode_allow: true`";
        notes.push(ConfigFault::new(at("failure_mode_allow"), what).as_warning());
    }
    if mode("response_header_mode") == "SKIP" {
        let what = "the cost of a request includes the time in which its client reads the \
                    response; set `response_header_mode: SEND`";
        notes.push(ConfigFault::new(at("processing_mode"), what).as_warning());
    }
    if mode("response_trailer_mode") != "SEND" && matches!(mode("response_body_mode"), "" | "NONE")
    {
        let what = "a request loses its slot when its response begins; set \
                    `response_trailer_mode: SEND`, so that Evenkeel learns of the end";
        notes.push(ConfigFault::new(at("processing_mode"), what).as_warning());
    }
}

/// Checks the cluster with Evenkeel, if it is in the file.
fn of_cluster(filter: &YamlNode, all: &[&YamlNode], notes: &mut Vec<ConfigFault>) {
    let name = text_at(filter, &["grpc_service", "envoy_grpc", "cluster_name"]);
    let is_cluster = |node: &&&YamlNode| {
        text_at(node, &["name"]) == name && node.find(&["connect_timeout"]).is_some()
    };
    let Some(cluster) = all.iter().find(is_cluster) else { return };
    let thresholds = cluster.find(&["circuit_breakers", "thresholds"]);
    let most = thresholds.and_then(|all| all.items().first());
    let most = most.map(|first| text_at(first, &["max_requests"])).unwrap_or_default();
    if most.parse().unwrap_or(REQUESTS_MAX) <= REQUESTS_MAX {
        let what = "with more than 1024 requests at once, those beyond are not asked about; set \
                    `circuit_breakers: {thresholds: [{max_requests: 100000}]}`";
        notes.push(ConfigFault::new(cluster.place, what).as_warning());
    }
}

/// Checks external processing in a policy of Envoy Gateway.
fn of_policy(policy: &YamlNode, notes: &mut Vec<ConfigFault>) {
    let at = |key: &str| policy.find(&[key]).map_or(policy.place, |node| node.place);
    if !is_long(policy, "messageTimeout") {
        let what = "a request cannot wait for its turn: set `messageTimeout`, which is 200 ms by \
                    default, to more than `proxy.queue.wait_max` (30 s), such as 35s";
        notes.push(ConfigFault::new(at("messageTimeout"), what));
    }
    if policy.find(&["processingMode", "request"]).is_none() {
        let what = "Evenkeel does not see requests; set `processingMode: {request: {}, response: \
                    {body: Streamed}}`";
        notes.push(ConfigFault::new(at("processingMode"), what));
    } else if policy.find(&["processingMode", "response", "body"]).is_none() {
        let what = "a request loses its slot when its response begins; set `body: Streamed` in \
                    `response`, so that Evenkeel learns of the end";
        notes.push(ConfigFault::new(at("processingMode"), what).as_warning());
    }
    if text_at(policy, &["failOpen"]) != "true" {
        let what = "if Evenkeel cannot be reached, all requests fail; set `failOpen: true`";
        notes.push(ConfigFault::new(at("failOpen"), what).as_warning());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = include_str!("../../../examples/envoy/ext-proc.yaml");

    /// The places of the notes about this text, each with the beginning of the note.
    fn found(text: &str) -> Vec<(usize, bool, String)> {
        let notes = notes(text).expect("it has external processing");
        let row = |note: ConfigFault| {
            (note.place.line, note.is_warning, note.what.chars().take(20).collect())
        };
        notes.into_iter().map(row).collect()
    }

    #[test]
    fn the_example_is_good_and_other_files_are_not_looked_at() {
        assert_eq!(found(GOOD), []);
        assert_eq!(notes("proxy: {backend: http://a}"), None);
        assert_eq!(notes("a: ["), None);
    }

    #[test]
    fn each_trap_is_named() {
        for (is, becomes, warns, told) in [
            ("message_timeout: 35s", "message_timeout: 5s", false, "a request cannot wai"),
            ("              message_timeout: 35s\n", "", false, "a request cannot wai"),
            ("failure_mode_allow: true", "failure_mode_allow: false", true, "if Evenkeel cannot b"),
            ("response_trailer_mode: SEND", "", true, "a request loses its "),
            (
                "request_header_mode: SEND",
                "request_header_mode: SKIP",
                false,
                "Evenkeel does not se",
            ),
            (
                "response_header_mode: SEND",
                "response_header_mode: SKIP",
                true,
                "the cost of a reques",
            ),
            ("max_requests: 100000}", "max_connections: 9}", true, "with more than 1024 "),
            ("{envoy_grpc:", "{timeout: 1s, envoy_grpc:", false, "this is the time for"),
        ] {
            let text = GOOD.replace(is, becomes);
            assert_ne!(text, GOOD, "{is} is in the example");
            let all = found(&text);
            assert_eq!(all.len(), 1, "{is}: {all:?}");
            assert_eq!((all[0].1, &*all[0].2), (warns, told), "{is}");
        }
        let spoofed = GOOD
            .replace("use_remote_address: true", "use_remote_address: false")
            .replace("request_attributes: [source.address]", "");
        assert_eq!(found(&spoofed)[0].2, "Evenkeel believes wh");
    }

    #[test]
    fn a_policy_of_envoy_gateway_is_checked_in_any_document() {
        let text = "kind: Service\n---\nkind: EnvoyExtensionPolicy\nspec:\n  extProc:\n  - \
                    messageTimeout: 1s\n    failOpen: true\n    processingMode: {request: {}}\n";
        let told = [(6, false, "a request cannot wai"), (8, true, "a request loses its ")];
        let found = found(text);
        let found: Vec<_> =
            found.iter().map(|(line, warns, what)| (*line, *warns, &**what)).collect();
        assert_eq!(found, told);
    }
}

//! Checks how an Envoy asks Evenkeel: the settings of its external processing filter that do harm.
//!
//! A file of Envoy, an `EnvoyFilter` of Istio and an `EnvoyExtensionPolicy` of Envoy Gateway are
//! recognised by what is in them. Nothing else in these files is checked. What the settings mean:
//! docs/guide/ext-proc.md.

use crate::fault::{ConfigFault, ConfigFaults, TextPlace};
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
/// if the file is not of Envoy, or not to be read.
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

/// What is wrong; `None` if the file is not of Envoy.
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
        let place = documents.iter().find_map(bootstrap)?;
        let what = "this is a configuration of Envoy without external processing, so no request \
                    waits for its turn here, and nothing in it is checked; \
                    docs/guide/ext-proc.md has the filter to add";
        return Some(vec![ConfigFault::new(place, what).as_warning()]);
    }
    let mut notes = Vec::new();
    for filter in &filters {
        of_filter(filter, &mut notes);
        of_bodies(filter, &mut notes);
        of_cluster(filter, &all, &mut notes);
        of_endpoints(filter, &all, &mut notes);
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

/// Where the resources of an Envoy begin, if the document is its configuration.
fn bootstrap(document: &YamlNode) -> Option<TextPlace> {
    let keys = ["static_resources", "dynamic_resources"];
    keys.into_iter().find_map(|key| document.find(&[key])).map(|node| node.place)
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

/// Checks how bodies are sent, from which the tokens of language models are read.
fn of_bodies(filter: &YamlNode, notes: &mut Vec<ConfigFault>) {
    let place = |key: &str| {
        let found = filter.find(&["processing_mode", key]);
        found.or_else(|| filter.find(&["processing_mode"])).map_or(filter.place, |node| node.place)
    };
    let mut warn = |key: &str, what: &str| {
        notes.push(ConfigFault::new(place(key), what).as_warning());
    };
    let [request, response] = [REQUEST_BODY, RESPONSE_BODY].map(|key| mode_of(filter, key));
    match (request, response) {
        ("" | "NONE", "" | "NONE") => {}
        ("" | "NONE", _) => warn(
            REQUEST_BODY,
            "with `cost: tokens`, the model, the prompt and `max_tokens` of a request are unknown; \
             set `request_body_mode: BUFFERED`",
        ),
        (_, "" | "NONE") => warn(
            RESPONSE_BODY,
            "with `cost: tokens`, the tokens of answers are guessed; set \
             `response_body_mode: STREAMED`",
        ),
        _ => {}
    }
    if matches!(response, "BUFFERED" | "BUFFERED_PARTIAL") {
        let what = "a stream reaches its client only when it is complete; set \
                    `response_body_mode: STREAMED`";
        warn(RESPONSE_BODY, what);
    }
    if request == "FULL_DUPLEX_STREAMED" && text_at(filter, &["failure_mode_allow"]) == "true" {
        let what = "if Evenkeel cannot be reached, requests with a body fail in this mode, in \
                    spite of `failure_mode_allow`; set `request_body_mode: BUFFERED`";
        warn(REQUEST_BODY, what);
    }
}

const REQUEST_BODY: &str = "request_body_mode";
const RESPONSE_BODY: &str = "response_body_mode";

/// How a filter sends what this key is about.
fn mode_of<'a>(filter: &'a YamlNode, key: &str) -> &'a str {
    text_at(filter, &["processing_mode", key])
}

/// Checks clusters whose server a header names, which `ext_proc.endpoint` chooses.
fn of_endpoints(filter: &YamlNode, all: &[&YamlNode], notes: &mut Vec<ConfigFault>) {
    const NAME: &[&str] = &["original_dst_lb_config", "http_header_name"];
    let takes_header =
        |node: &&&YamlNode| text_at(node, &["original_dst_lb_config", "use_http_header"]) == "true";
    let mut clusters = all.iter().filter(takes_header).peekable();
    if clusters.peek().is_none() {
        return;
    }
    for cluster in clusters.filter(|cluster| text_at(cluster, NAME) != ENDPOINT_HEADER) {
        let place = cluster.find(NAME).map_or(cluster.place, |name| name.place);
        let what = "Evenkeel names the server in another header; set \
                    `http_header_name: x-gateway-destination-endpoint`";
        notes.push(ConfigFault::new(place, what));
    }
    if matches!(mode_of(filter, REQUEST_BODY), "STREAMED" | "BUFFERED_PARTIAL") {
        let place = filter.find(&["processing_mode"]).map_or(filter.place, |node| node.place);
        let what = "in this mode, the server is chosen before the prompt is known, so that prompts \
                    do not find their caches; set `request_body_mode: BUFFERED`";
        notes.push(ConfigFault::new(place, what).as_warning());
    }
    let removes = |node: &&YamlNode| text_at(node, &["remove"]) == ENDPOINT_HEADER;
    let is_open = text_at(filter, &["failure_mode_allow"]) == "true";
    if is_open && !all.iter().any(removes) {
        let what = "if Evenkeel cannot be reached, clients choose where Envoy connects to; remove \
                    `x-gateway-destination-endpoint` from their requests in \
                    `early_header_mutation_extensions`";
        notes.push(ConfigFault::new(filter.place, what).as_warning());
    }
}

/// The header in which Evenkeel names the server of a request.
const ENDPOINT_HEADER: &str = "x-gateway-destination-endpoint";

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
    const ENDPOINT: &str = include_str!("../../../examples/envoy/ext-proc.endpoint.yaml");

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
        assert_eq!((found(GOOD), found(ENDPOINT)), (vec![], vec![]));
        let without = found("admin: {}\nstatic_resources:\n  listeners: []\n");
        assert_eq!(without, vec![(3, true, "this is a configurat".to_owned())]);
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
    fn each_trap_of_bodies_and_endpoints_is_named() {
        for (is, becomes, warns, told) in [
            ("request_body_mode: BUFFERED", "", true, "with `cost: tokens`, the model"),
            ("response_body_mode: STREAMED", "", true, "with `cost: tokens`, the token"),
            (
                "response_body_mode: STREAMED",
                "response_body_mode: BUFFERED",
                true,
                "a stream reaches its client on",
            ),
            (
                "request_body_mode: BUFFERED",
                "request_body_mode: FULL_DUPLEX_STREAMED",
                true,
                "if Evenkeel cannot be reached,",
            ),
            (
                "request_body_mode: BUFFERED",
                "request_body_mode: STREAMED",
                true,
                "in this mode, the server is ch",
            ),
            (
                "http_header_name: x-gateway-destination-endpoint",
                "http_header_name: x-other",
                false,
                "Evenkeel names the server in a",
            ),
            (
                "[{remove: x-gateway-destination-endpoint}]",
                "[]",
                true,
                "if Evenkeel cannot be reached,",
            ),
        ] {
            let text = ENDPOINT.replace(is, becomes);
            assert_ne!(text, ENDPOINT, "{is} is in the example");
            let notes = notes(&text).expect("it has external processing");
            assert_eq!(notes.len(), 1, "{is}: {notes:?}");
            assert!(notes[0].what.starts_with(told), "{is}: {}", notes[0].what);
            assert_eq!(notes[0].is_warning, warns, "{is}");
        }
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

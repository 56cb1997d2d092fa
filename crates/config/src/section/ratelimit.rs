//! The `ratelimit` section: the Envoy rate limit service.
//!
//! The keys are described in `rows::ratelimit`, the settings in `settings/ratelimit`. The reference
//! server's environment variables are converted into this section (`config/environment`), so both
//! are checked in the same way.

use super::std_time;
use crate::reader::SectionReader;
use crate::rows::{common, exports, ratelimit as rows, rlqs, tls, xds};
use crate::settings::rename::{MetricRename, NameTemplate};
use crate::settings::tls::{ClientTls, ServerTls};
use crate::settings::{
    PrometheusSettings, RatelimitAnswers, RatelimitSettings, RatelimitStatsd, RlqsSettings,
    RuleFiles, XdsSettings,
};
use crate::tree::{YamlNode, YamlValue};
use crate::values::truth;
use evenkeel_core::units::Nanos;
use evenkeel_core::windows::WindowPolicy;
use std::net::SocketAddr;
use std::time::Duration;

/// Reads the section.
pub fn read(section: &mut SectionReader<'_, '_>) -> RatelimitSettings {
    let grpc_unix = section.key(&rows::GRPC_UNIX);
    let port = SocketAddr::from(([0, 0, 0, 0], 8081));
    let grpc = if grpc_unix.is_some() { Vec::new() } else { vec![port] };
    let (tls, http_tls) = section.section_if_written(&rows::TLS, tls).unwrap_or_default();
    RatelimitSettings {
        grpc: section.list_or(&rows::GRPC, grpc),
        grpc_unix,
        http: section.key(&rows::HTTP),
        debug: section.key(&rows::DEBUG),
        tls,
        http_tls,
        rules: rules(section),
        xds: section.has("xds").then(|| section.section(&rows::XDS, xds)),
        answers: answers(section),
        keys_max: section.key(&rows::KEYS),
        connections_max: section.key(&rows::CONNECTIONS),
        handshake_timeout: std_time(section.key(&rows::HANDSHAKE_TIMEOUT)),
        connection_age: age(section.key(&rows::CONNECTION_AGE)),
        connection_age_grace: age(section.key(&rows::CONNECTION_AGE_GRACE)),
        rlqs: section.section(&rows::RLQS, rlqs),
        healthy_with_rules: section.key(&rows::HEALTHY_WITH_RULES),
        healthy_with_store: section.key(&rows::HEALTHY_WITH_STORE),
        statsd: section.has("statsd").then(|| section.section(&rows::STATSD, statsd)),
        prometheus: section
            .has("prometheus")
            .then(|| section.section(&rows::PROMETHEUS, prometheus)),
        drain: std_time(section.key(&rows::DRAIN)),
    }
}

/// Reads `tls`. Also returns whether the HTTP port uses it.
fn tls(tls: &mut SectionReader<'_, '_>) -> (Option<ServerTls>, bool) {
    (super::tls::server(tls), tls.key(&tls::HTTP))
}

fn rules(section: &mut SectionReader<'_, '_>) -> RuleFiles {
    match (section.has("rules"), section.has("xds")) {
        (false, false) => {
            let what = "`ratelimit` needs `rules`: a file or folder, or `off` to allow all \
                        requests; or a server, `xds`";
            section.fault("rules", what);
        }
        (true, true) => {
            section.fault("xds", "rules come from `rules` or from `xds`; remove one");
        }
        _ => {}
    }
    RuleFiles {
        path: section.key(&rows::RULES).filter(|path| path.as_os_str() != "off"),
        ignore_dot_files: section.key(&rows::IGNORE_DOT_FILES),
        merge_domains: section.key(&rows::MERGE_DOMAINS),
        compat_keys: section.key(&rows::COMPAT_KEYS),
        calendar: section.key(&rows::CALENDAR),
    }
}

fn answers(section: &mut SectionReader<'_, '_>) -> RatelimitAnswers {
    RatelimitAnswers {
        near_limit_ratio: section.key(&rows::NEAR_LIMIT_RATIO),
        shadow: section.key(&rows::SHADOW),
        quota: section.key(&rows::QUOTA),
        policy: WindowPolicy {
            stop_when_over: section.key(&rows::STOP_WHEN_OVER),
            spare_over: section.key(&rows::SPARE_OVER),
        },
        dynamic_metadata: section.key(&rows::DYNAMIC_METADATA),
        headers: headers(section),
    }
}

/// Reads `headers: true`, or a section with the names of the headers.
fn headers(section: &mut SectionReader<'_, '_>) -> Option<[String; 3]> {
    let names = |names: &mut SectionReader<'_, '_>| {
        [&rows::LIMIT, &rows::REMAINING, &rows::RESET].map(|key| names.key(key))
    };
    match section.node("headers").map(|node| &node.value) {
        None => None,
        Some(YamlValue::Map(_)) => Some(section.section(&rows::HEADERS, names)),
        Some(_) => section
            .key_with("headers", truth)?
            .then(|| SectionReader::defaults(&rows::HEADER_NAMES, names)),
    }
}

fn xds(section: &mut SectionReader<'_, '_>) -> XdsSettings {
    let retry = section.key(&xds::RETRY);
    XdsSettings {
        server: section.key(&xds::SERVER),
        node_id: section.key(&xds::NODE_ID),
        metadata: section.key(&xds::METADATA),
        headers: section.key(&xds::HEADERS),
        tls: client_tls(section),
        retry: std_time(retry),
        retry_stream: std_time(section.key_or(&xds::RETRY_STREAM, retry)),
        retry_max: std_time(section.key(&xds::RETRY_MAX)),
        retry_spread: section.key(&xds::RETRY_SPREAD),
        message_bytes_max: section.key(&xds::MESSAGE_BYTES),
    }
}

/// Reads `tls: true`, which trusts the system's authorities, or a section with more keys.
fn client_tls(section: &mut SectionReader<'_, '_>) -> Option<ClientTls> {
    match section.node("tls").map(|node| &node.value) {
        None => None,
        Some(YamlValue::Map(_)) => Some(section.section(&xds::TLS, super::tls::client)),
        Some(_) => section.key_with("tls", truth)?.then(ClientTls::default),
    }
}

fn rlqs(section: &mut SectionReader<'_, '_>) -> RlqsSettings {
    RlqsSettings {
        ttl: std_time(section.key(&rlqs::TTL)),
        idle: std_time(section.key(&rlqs::IDLE)),
        streams_max: section.key(&rlqs::STREAMS),
        buckets_max: section.key(&rlqs::BUCKETS),
        per_unit: section.key(&rlqs::PER_UNIT),
    }
}

fn statsd(section: &mut SectionReader<'_, '_>) -> RatelimitStatsd {
    RatelimitStatsd {
        address: section.key(&exports::ADDRESS),
        udp: section.key(&exports::UDP),
        dog: section.key(&exports::DOGSTATSD),
        every: std_time(section.key(&exports::EVERY)),
        tags: section.key(&exports::TAGS),
        rename: renames(section),
    }
}

/// Reads `rename: [{match: REGEX, name: TEXT, tags: [key:text]}]`.
fn renames(section: &mut SectionReader<'_, '_>) -> Vec<MetricRename> {
    let nodes: &[YamlNode] = match section.node("rename").map(|node| &node.value) {
        None => return Vec::new(),
        Some(YamlValue::List(nodes)) => nodes,
        Some(_) => {
            section.fault_of("rename", "must be a list of sections: match, name, tags");
            return Vec::new();
        }
    };
    let rules = section.sections(&exports::RENAME, nodes, |rule| {
        for key in ["match", "name"] {
            if !rule.has(key) {
                rule.fault(key, format!("`rename` needs `{key}`"));
            }
        }
        let pattern = rule.key(&exports::MATCH);
        let template = |text: &str| match &pattern {
            Some(pattern) => NameTemplate::new(text, pattern).map(Some),
            None => Ok(None),
        };
        let name = rule.key_with("name", template).flatten();
        let tags = rule.list_with("tags", |text| {
            let (key, text) = common::tag(text)?;
            Ok(template(&text)?.map(|template| (key, template)))
        });
        let tags = tags.into_iter().flatten().collect();
        Some(MetricRename { name: Some(name?), pattern: pattern?, tags })
    });
    rules.into_iter().flatten().collect()
}

fn prometheus(section: &mut SectionReader<'_, '_>) -> PrometheusSettings {
    PrometheusSettings {
        listen: section.key(&exports::LISTEN),
        path: section.key(&exports::PATH),
        mapper: section.key(&exports::MAPPER),
    }
}

/// The age of a connection. 0 means no limit and becomes `Duration::MAX`.
fn age(age: Nanos) -> Duration {
    if age.0 == 0 { Duration::MAX } else { std_time(age) }
}

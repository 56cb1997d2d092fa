//! The `ratelimit` section: the Envoy rate limit service.
//!
//! Each key is read with its default and its range. The settings are described in
//! `settings/ratelimit`. The reference server's environment variables are converted into this
//! section (`config/environment`), so both are checked in the same way.

use super::proxy::{count, duration, truth};
use crate::address;
use crate::reader::{Read, SectionReader, within};
use crate::settings::pattern::NameRegex;
use crate::settings::rename::{MetricRename, NameTemplate};
use crate::settings::tls::{ClientTls, ServerTls};
use crate::settings::{
    PrometheusSettings, RatelimitAnswers, RatelimitSettings, RatelimitStatsd, RlqsSettings,
    RuleFiles, XdsSettings,
};
use crate::tree::{YamlNode, YamlValue};
use evenkeel_core::units::{Nanos, SECOND};
use evenkeel_core::windows::WindowPolicy;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Default header names, as in the reference server.
const HEADERS: [&str; 3] = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];

/// Reads the section.
pub fn read(section: &mut SectionReader<'_, '_>) -> RatelimitSettings {
    let everywhere = |port| vec![SocketAddr::from(([0, 0, 0, 0], port))];
    let grpc_unix = section.optional("grpc_unix", path);
    let grpc = if grpc_unix.is_some() { Vec::new() } else { everywhere(8081) };
    let (tls, http_tls) = tls(section);
    RatelimitSettings {
        grpc: section.list("grpc", grpc, address::listen),
        grpc_unix,
        http: section.list("http", everywhere(8080), address::listen),
        debug: section.list("debug", Vec::new(), address::listen),
        tls,
        http_tls,
        rules: rules(section),
        xds: xds(section),
        answers: answers(section),
        keys_max: section.value("keys_max", 1_000_000, number(1..=100_000_000)),
        connections_max: section.value("connections", 10_000, number(1..=1_000_000)),
        handshake_timeout: time(section, "handshake_timeout", Nanos::from_secs(10)),
        connection_age: age(section, "connection_age", Nanos::from_secs(86_400)),
        connection_age_grace: age(section, "connection_age_grace", Nanos::from_secs(3_600)),
        rlqs: section.section("rlqs", rlqs),
        healthy_with_rules: section.value("healthy_with_rules", false, truth),
        healthy_with_store: section.value("healthy_with_store", false, truth),
        statsd: statsd(section),
        prometheus: prometheus(section),
        drain: time(section, "drain", Nanos::from_secs(30)),
    }
}

/// Reads `tls`. Also returns whether the HTTP port uses it.
fn tls(section: &mut SectionReader<'_, '_>) -> (Option<ServerTls>, bool) {
    if !section.written("tls") {
        section.allow("tls");
        return (None, false);
    }
    section.section("tls", |tls| (super::tls::server(tls), tls.value("http", false, truth)))
}

fn rules(section: &mut SectionReader<'_, '_>) -> RuleFiles {
    match (section.has("rules"), section.has("xds")) {
        (false, false) => {
            let what = "`ratelimit` needs `rules`: a file or folder, or `off` to let everything \
                        pass; or a server, `xds`";
            section.fault("rules", what);
        }
        (true, true) => {
            section.fault("xds", "rules come from `rules` or from `xds`; remove one");
        }
        _ => {}
    }
    let path = section.optional("rules", path).filter(|path| path.as_os_str() != "off");
    RuleFiles {
        path,
        ignore_dot_files: section.value("ignore_dot_files", false, truth),
        merge_domains: section.value("merge_domains", false, truth),
        compat_keys: section.value("compat_keys", false, truth),
        calendar: section.value("calendar", false, truth),
    }
}

fn answers(section: &mut SectionReader<'_, '_>) -> RatelimitAnswers {
    let ratio = |text: &str| {
        let number = text.parse::<f32>().ok().filter(|number| *number >= 0.0);
        number.ok_or_else(|| "must be from 0, and over 1 nothing is near its limit".to_owned())
    };
    RatelimitAnswers {
        near_limit_ratio: section.value("near_limit_ratio", 0.8, ratio),
        shadow: section.value("shadow", false, truth),
        quota: section.value("quota", false, truth),
        policy: WindowPolicy {
            stop_when_over: section.value("stop_when_over", false, truth),
            spare_over: section.value("spare_over", false, truth),
        },
        dynamic_metadata: section.value("dynamic_metadata", false, truth),
        headers: headers(section),
    }
}

/// Reads `headers: true`, or a section with the names of the headers.
fn headers(section: &mut SectionReader<'_, '_>) -> Option<[String; 3]> {
    match section.node("headers").map(|node| &node.value) {
        None => None,
        Some(YamlValue::Map(_)) => Some(section.section("headers", |names| {
            let name = |text: &str| super::limits::header_name(text).map(|_| text.to_owned());
            [("limit", HEADERS[0]), ("remaining", HEADERS[1]), ("reset", HEADERS[2])]
                .map(|(key, default)| names.value(key, default.to_owned(), name))
        })),
        Some(_) => section.value("headers", false, truth).then(|| HEADERS.map(str::to_owned)),
    }
}

fn xds(section: &mut SectionReader<'_, '_>) -> Option<XdsSettings> {
    if !section.has("xds") {
        section.allow("xds");
        return None;
    }
    Some(section.section("xds", |section| {
        let header = |text: &str| {
            let (name, value) = tag(text)?;
            let sound = http::HeaderValue::from_str(&value).is_ok();
            super::limits::header_name(&name)?;
            if sound { Ok((name, value)) } else { Err("this is no header".to_owned()) }
        };
        let spread = |text: &str| {
            let number = text.parse::<f64>().map_err(|_| "not a number from 0 to 1".to_owned());
            within(number?, 0.0..=1.0)
        };
        let retry = time(section, "retry", Nanos::from_secs(3));
        let again = Nanos(u64::try_from(retry.as_nanos()).unwrap_or(u64::MAX));
        XdsSettings {
            server: section.value("server", "localhost:18000".to_owned(), host_port),
            node_id: section.value("node_id", "default".to_owned(), |text| Ok(text.to_owned())),
            metadata: section.values("metadata", tag),
            headers: section.values("headers", header),
            tls: client_tls(section),
            retry,
            retry_stream: time(section, "retry_stream", again),
            retry_max: time(section, "retry_max", Nanos::from_secs(60)),
            retry_spread: section.value("retry_spread", 0.5, spread),
            message_bytes_max: section.value(
                "message_bytes",
                16 << 20,
                number(1 << 10..=256 << 20),
            ),
        }
    }))
}

/// Reads `tls: true`, which trusts the system's authorities, or a section with more keys.
fn client_tls(section: &mut SectionReader<'_, '_>) -> Option<ClientTls> {
    match section.node("tls").map(|node| &node.value) {
        None => None,
        Some(YamlValue::Map(_)) => Some(section.section("tls", super::tls::client)),
        Some(_) => section.value("tls", false, truth).then(ClientTls::default),
    }
}

fn rlqs(section: &mut SectionReader<'_, '_>) -> RlqsSettings {
    let seconds = |text: &str| {
        let nanos = within(duration(text)?, Nanos::from_secs(2)..=Nanos::from_secs(3_600))?;
        match nanos.0.is_multiple_of(SECOND) {
            true => Ok(nanos),
            false => Err("must be whole seconds".to_owned()),
        }
    };
    RlqsSettings {
        ttl: Duration::from_nanos(section.value("ttl", Nanos::from_secs(60), seconds).0),
        idle: time(section, "idle", Nanos::from_secs(600)),
        streams_max: section.value("streams", 1_000, number(1..=100_000)),
        buckets_max: section.value("buckets", 100_000, number(1..=10_000_000)),
        per_unit: section.value("per_unit", false, truth),
    }
}

fn statsd(section: &mut SectionReader<'_, '_>) -> Option<RatelimitStatsd> {
    if !section.has("statsd") {
        section.allow("statsd");
        return None;
    }
    let statsd = section.section("statsd", |section| RatelimitStatsd {
        address: section.value("address", "localhost:8125".to_owned(), host_port),
        udp: section.value("udp", false, truth),
        dog: section.value("dogstatsd", false, truth),
        every: time(section, "every", Nanos::from_secs(10)),
        tags: section.values("tags", tag),
        rename: renames(section),
    });
    Some(statsd)
}

/// Reads `rename: [{match: REGEX, name: TEXT, tags: [key:text]}]`.
fn renames(section: &mut SectionReader<'_, '_>) -> Vec<MetricRename> {
    let nodes: &[YamlNode] = match section.node("rename").map(|node| &node.value) {
        None => return Vec::new(),
        Some(YamlValue::List(nodes)) => nodes,
        Some(_) => {
            section.fault("rename", "`rename` must be a list of sections: match, name, tags");
            return Vec::new();
        }
    };
    let rules = section.sections("rename", nodes, |rule| {
        for key in ["match", "name"] {
            if !rule.has(key) {
                rule.fault(key, format!("`rename` needs `{key}`"));
            }
        }
        let pattern = rule.optional("match", NameRegex::new);
        let template = |text: &str| match &pattern {
            Some(pattern) => NameTemplate::new(text, pattern).map(Some),
            None => Ok(None),
        };
        let name = rule.optional("name", template).flatten();
        let tags = rule.values("tags", |text| {
            let (key, text) = tag(text)?;
            Ok(template(&text)?.map(|template| (key, template)))
        });
        let tags = tags.into_iter().flatten().collect();
        Some(MetricRename { name: Some(name?), pattern: pattern?, tags })
    });
    rules.into_iter().flatten().collect()
}

fn prometheus(section: &mut SectionReader<'_, '_>) -> Option<PrometheusSettings> {
    if !section.has("prometheus") {
        section.allow("prometheus");
        return None;
    }
    Some(section.section("prometheus", |section| {
        let default = SocketAddr::from(([0, 0, 0, 0], 9090));
        let path = |text: &str| match text.starts_with('/') {
            true => Ok(text.to_owned()),
            false => Err("a path begins with /".to_owned()),
        };
        PrometheusSettings {
            listen: section.value("listen", default, address::listen),
            path: section.value("path", "/metrics".to_owned(), path),
            mapper: section.optional("mapper", self::path),
        }
    }))
}

fn time(section: &mut SectionReader<'_, '_>, key: &'static str, default: Nanos) -> Duration {
    let range = Nanos::from_millis(1)..=Nanos::from_secs(366 * 86_400);
    let nanos = section.value(key, default, |text| within(duration(text)?, range.clone()));
    Duration::from_nanos(nanos.0)
}

/// Reads the age of a connection. 0 means no limit and becomes `Duration::MAX`.
fn age(section: &mut SectionReader<'_, '_>, key: &'static str, default: Nanos) -> Duration {
    let range = Nanos(0)..=Nanos::from_secs(366 * 86_400);
    let nanos = section.value(key, default, |text| within(duration(text)?, range.clone()));
    if nanos.0 == 0 { Duration::MAX } else { Duration::from_nanos(nanos.0) }
}

fn number(range: std::ops::RangeInclusive<u64>) -> impl Fn(&str) -> Read<usize> {
    move |text| within(count(text)?, range.clone()).map(|n| n as usize)
}

fn path(text: &str) -> Read<PathBuf> {
    if text.is_empty() { Err("name a file or folder".to_owned()) } else { Ok(text.into()) }
}

fn host_port(text: &str) -> Read<String> {
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    match !host.is_empty() && port.parse::<u16>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("write host:port".to_owned()),
    }
}

fn tag(text: &str) -> Read<(String, String)> {
    let (key, value) = text.split_once(':').ok_or("write key:value")?;
    let plain = |c: char| !c.is_control() && !",|#\n".contains(c);
    match !key.is_empty() && text.chars().all(plain) {
        true => Ok((key.to_owned(), value.to_owned())),
        false => Err("a tag is key:value, without , | # and line ends".to_owned()),
    }
}

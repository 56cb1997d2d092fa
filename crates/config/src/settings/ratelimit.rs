//! The `ratelimit` section: the Envoy rate limit service.
//!
//! The reference server's environment variables are converted into this section
//! (`config/environment`), so both are checked in the same way.

pub(super) mod exports;
pub(super) mod rlqs;
pub(super) mod xds;

use super::tls::{self, ServerTls};
use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, ValueSyntax, section};
use crate::reader::{SectionReader, settings};
use crate::tree::YamlValue;
use crate::values::{Read, YEAR, header_name, std_time, truth};
use evenkeel_core::units::Nanos;
use evenkeel_core::windows::WindowPolicy;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

settings! {
    /// The rate limit service.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RatelimitSettings from service(
        section, unix: Option<PathBuf>, server: Option<ServerTls>, secured: bool
    );

    /// Addresses to listen on for gRPC.
    pub grpc: Vec<SocketAddr>, GRPC: ListKey<SocketAddr> =
        ConfigKey::text("grpc", address::listen).list().restart().example("127.0.0.1:8081")
            .default_note("`0.0.0.0:8081`; none with `grpc_unix`")
        => grpc(section, unix.is_some());
    /// A Unix socket to listen on for gRPC.
    pub grpc_unix: Option<PathBuf>, GRPC_UNIX: ConfigKey<PathBuf> =
        ConfigKey::opaque("grpc_unix", path).restart().example("/run/evenkeel/grpc.sock") => unix;
    /// Addresses to listen on for `/json` and `/healthcheck`.
    pub http: Vec<SocketAddr>, HTTP: ListKey<SocketAddr> = ConfigKey::text("http", address::listen)
        .list_with(|| vec![SocketAddr::from(([0, 0, 0, 0], 8080))]).restart();
    /// Addresses to listen on for `/rlconfig` and `/stats`.
    pub debug: Vec<SocketAddr>, DEBUG: ListKey<SocketAddr> =
        ConfigKey::text("debug", address::listen).list_with(Vec::new).restart()
            .example("127.0.0.1:6070");
    /// [TLS](#ratelimittls) of the gRPC port and socket.
    pub tls: Option<ServerTls>, TLS: SubsectionKey =
        SubsectionKey::one("tls", &tls::SERVER).default_note("no TLS").restart() => server;
    /// Whether `/json` and `/healthcheck` use the same TLS settings.
    pub http_tls: bool = secured;
    /// Location of the rule files, and how they are read.
    pub rules: RuleFiles = rules(section);
    /// [Rules from a server](#ratelimitxds) instead of `rules`.
    pub xds: Option<xds::XdsSettings>, XDS: SubsectionKey =
        SubsectionKey::one("xds", &xds::TABLE).restart()
        => section.has("xds").then(|| section.section(&XDS, xds::read));
    /// How requests are answered.
    pub answers: RatelimitAnswers = answers(section);
    /// Windows that are counted at once, 24 bytes each. When the table is full, windows that have
    /// ended are evicted first, then those with the fewest hits.
    pub keys_max: usize, KEYS: DefaultedKey<usize> = ConfigKey::whole("keys_max")
        .within(1, 100_000_000).default(1_000_000).restart()
        .low("limits are forgotten and admit more").high("memory");
    /// gRPC connections at once. Further ones are closed at once.
    pub connections_max: usize, CONNECTIONS: DefaultedKey<usize> = ConfigKey::whole("connections")
        .within(1, 1_000_000).default(10_000).restart()
        .low("Envoys cannot connect, and let each request pass").high("open files");
    /// Time for a new connection to begin TLS, if it must, and HTTP/2. Then it is closed.
    pub handshake_timeout: Duration, HANDSHAKE_TIMEOUT: DefaultedKey<Nanos> =
        time("handshake_timeout").default(Nanos::from_secs(10)).restart()
            .low("slow Envoys cannot connect").high("silent connections keep their place");
    // Both ages are `Duration::MAX` if they are 0.
    /// Age at which a connection is asked to end. `0s`: never.
    pub connection_age: Duration, CONNECTION_AGE: DefaultedKey<Nanos> =
        ConfigKey::duration("connection_age")
            .within(Nanos::ZERO, YEAR).default(Nanos::from_secs(86_400)).restart()
            .low("clients reconnect all the time")
            .high("new instances behind a load balancer get no calls")
        => age(section.key(&CONNECTION_AGE));
    /// Time for running calls of such a connection to end. `0s`: no limit.
    pub connection_age_grace: Duration, CONNECTION_AGE_GRACE: DefaultedKey<Nanos> =
        ConfigKey::duration("connection_age_grace")
            .within(Nanos::ZERO, YEAR).default(Nanos::from_secs(3_600)).restart()
            .low("calls are cut off").high("old connections stay open")
        => age(section.key(&CONNECTION_AGE_GRACE));
    /// [Assignments](#ratelimitrlqs) for Envoys that [decide by
    /// themselves](ratelimit.md#envoys-that-decide-by-themselves).
    pub rlqs: rlqs::RlqsSettings, RLQS: SubsectionKey =
        SubsectionKey::one("rlqs", &rlqs::TABLE).restart() => section.section(&RLQS, rlqs::read);
    /// Whether health needs at least one domain with rules.
    pub healthy_with_rules: bool, HEALTHY_WITH_RULES: DefaultedKey<bool> =
        ConfigKey::truth("healthy_with_rules").default(false).restart();
    /// Whether health needs a connection to the `store`. With `true`, Envoys are sent elsewhere
    /// although this instance could decide.
    pub healthy_with_store: bool, HEALTHY_WITH_STORE: DefaultedKey<bool> =
        ConfigKey::truth("healthy_with_store").default(false).restart();
    /// A [StatsD server](#ratelimitstatsd) that gets the metrics of the reference server.
    pub statsd: Option<exports::RatelimitStatsd>, STATSD: SubsectionKey =
        SubsectionKey::one("statsd", &exports::STATSD).restart()
        => section.has("statsd").then(|| section.section(&STATSD, exports::statsd));
    /// A [port](#ratelimitprometheus) with the metrics of the reference server under its names.
    pub prometheus: Option<exports::PrometheusSettings>, PROMETHEUS: SubsectionKey =
        SubsectionKey::one("prometheus", &exports::PROMETHEUS).restart()
        => section.has("prometheus").then(|| section.section(&PROMETHEUS, exports::prometheus));
    /// Time for running calls to end when the process stops.
    pub drain: Duration, DRAIN: DefaultedKey<Nanos> = time("drain").default(Nanos::from_secs(30))
        .low("calls are cut off").high("stopping takes long");
}

settings! {
    /// Where rules come from and how they are read.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RuleFiles from rule_files(section);

    /// A rule file, or a folder with all rule files below it. `off`: no rules, each request passes.
    /// The path need not exist yet: until it does, each request passes, with a warning.
    pub path: Option<PathBuf>, RULES: ConfigKey<PathBuf> = ConfigKey::opaque("rules", path)
        .default_note("required, unless there is `xds`").restart().example("/etc/evenkeel/rules")
        => section.key(&RULES).filter(|path| path.as_os_str() != "off");
    /// Whether rule files with a name that begins with a dot are ignored. Those with two dots
    /// always are.
    pub ignore_dot_files: bool, IGNORE_DOT_FILES: DefaultedKey<bool> =
        ConfigKey::truth("ignore_dot_files").default(false).restart();
    /// Whether several files may have rules for one domain.
    pub merge_domains: bool, MERGE_DOMAINS: DefaultedKey<bool> =
        ConfigKey::truth("merge_domains").default(false).restart();
    /// Whether key and value are compared joined by `_`, as the reference server does.
    pub compat_keys: bool, COMPAT_KEYS: DefaultedKey<bool> =
        ConfigKey::truth("compat_keys").default(false).restart();
    /// Whether months and years are those of the calendar (UTC), not 30 and 365 days, for rules
    /// that do not say.
    pub calendar: bool, CALENDAR: DefaultedKey<bool> =
        ConfigKey::truth("calendar").default(false).restart();
}

settings! {
    /// How requests are answered.
    #[derive(Clone, Debug, PartialEq)]
    pub struct RatelimitAnswers from answers(section);

    /// The part of a limit above which hits count as near it. Above 1 none do.
    pub near_limit_ratio: f32, NEAR_LIMIT_RATIO: DefaultedKey<f32> =
        ConfigKey::new("near_limit_ratio", ValueSyntax::Number, ratio).range_note("from 0")
            .default(0.8);
    /// Whether each request passes; statuses and metrics state what would have happened.
    pub shadow: bool, SHADOW: DefaultedKey<bool> = ConfigKey::truth("shadow").default(false);
    /// Whether a request is refused only if all of its limits are over.
    pub quota: bool, QUOTA: DefaultedKey<bool> = ConfigKey::truth("quota").default(false);
    /// Which hits of refused requests are not counted.
    pub policy: WindowPolicy = WindowPolicy {
        stop_when_over: section.key(&STOP_WHEN_OVER),
        spare_over: section.key(&SPARE_OVER),
    };
    /// Whether answers contain the question and the `metadata` of rules, for other filters of
    /// Envoy.
    pub dynamic_metadata: bool, DYNAMIC_METADATA: DefaultedKey<bool> =
        ConfigKey::truth("dynamic_metadata").default(false);
    /// `true`, or a section with the names of the headers for `limit`, `remaining` and `reset`.
    pub headers: Option<[String; 3]>, HEADERS: SubsectionKey =
        SubsectionKey::one("headers", &HEADER_NAMES).default_note("`false`")
            .or_words(&["true", "false"]) => headers(section);
}

section! {
    TABLE = "ratelimit":
        RULES, XDS, GRPC, GRPC_UNIX, HTTP, DEBUG, IGNORE_DOT_FILES, MERGE_DOMAINS, COMPAT_KEYS,
        CALENDAR, NEAR_LIMIT_RATIO, SHADOW, QUOTA, STOP_WHEN_OVER, SPARE_OVER, DYNAMIC_METADATA,
        HEADERS, KEYS, RLQS, CONNECTIONS, TLS, HANDSHAKE_TIMEOUT, CONNECTION_AGE,
        CONNECTION_AGE_GRACE, HEALTHY_WITH_RULES, HEALTHY_WITH_STORE, DRAIN, STATSD, PROMETHEUS;
}

section! {
    /// Whether the other limits of a request are not counted if one of them would go over.
    STOP_WHEN_OVER: DefaultedKey<bool> = ConfigKey::truth("stop_when_over").default(false);
    /// Whether hits of a limit that is already over are refused without being counted.
    SPARE_OVER: DefaultedKey<bool> = ConfigKey::truth("spare_over").default(false);
}

section! {
    HEADER_NAMES = "ratelimit.headers";

    /// Name of the header with the limit.
    LIMIT: DefaultedKey<String> = header("limit").default_with(|| "RateLimit-Limit".to_owned());
    /// Name of the header with the remaining requests.
    REMAINING: DefaultedKey<String> =
        header("remaining").default_with(|| "RateLimit-Remaining".to_owned());
    /// Name of the header with the seconds until the window ends.
    RESET: DefaultedKey<String> = header("reset").default_with(|| "RateLimit-Reset".to_owned());
}

/// Reads the section.
pub(crate) fn read(section: &mut SectionReader<'_, '_>) -> RatelimitSettings {
    let unix = section.key(&GRPC_UNIX);
    let (tls, http_tls) = section.section_if_written(&TLS, tls).unwrap_or_default();
    service(section, unix, tls, http_tls)
}

/// Reads `grpc`, whose default is a port, or none if there is a Unix socket.
fn grpc(section: &mut SectionReader<'_, '_>, unix: bool) -> Vec<SocketAddr> {
    let port = SocketAddr::from(([0, 0, 0, 0], 8081));
    section.list_or(&GRPC, if unix { Vec::new() } else { vec![port] })
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
    rule_files(section)
}

impl Default for RatelimitAnswers {
    fn default() -> RatelimitAnswers {
        SectionReader::defaults(&TABLE, answers)
    }
}

/// Reads `headers: true`, or a section with the names of the headers.
fn headers(section: &mut SectionReader<'_, '_>) -> Option<[String; 3]> {
    let names =
        |names: &mut SectionReader<'_, '_>| [&LIMIT, &REMAINING, &RESET].map(|key| names.key(key));
    match section.node("headers").map(|node| &node.value) {
        None => None,
        Some(YamlValue::Map(_)) => Some(section.section(&HEADERS, names)),
        Some(_) => section
            .key_with("headers", truth)?
            .then(|| SectionReader::defaults(&HEADER_NAMES, names)),
    }
}

/// The age of a connection. 0 means no limit and becomes `Duration::MAX`.
fn age(age: Nanos) -> Duration {
    if age.0 == 0 { Duration::MAX } else { std_time(age) }
}

/// A name of a header; default is that of the reference server.
const fn header(name: &'static str) -> ConfigKey<String> {
    ConfigKey::text(name, |text| header_name(text).map(|_| text.to_owned()))
}

fn path(text: &str) -> Read<PathBuf> {
    if text.is_empty() { Err("name a file or folder".to_owned()) } else { Ok(text.into()) }
}

fn ratio(text: &str) -> Read<f32> {
    let number = text.parse::<f32>().ok().filter(|number| *number >= 0.0);
    number.ok_or_else(|| "must be at least 0; above 1 no request is near its limit".to_owned())
}

/// A duration of 1 ms to 366 days.
const fn time(name: &'static str) -> ConfigKey<Nanos> {
    ConfigKey::duration(name).within(Nanos::from_millis(1), YEAR)
}

/// Reads `host:port`.
fn host_port(text: &str) -> Read<String> {
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    match !host.is_empty() && port.parse::<u16>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("write host:port".to_owned()),
    }
}

/// Reads `key:value`.
fn tag(text: &str) -> Read<(String, String)> {
    let (key, value) = text.split_once(':').ok_or("write key:value")?;
    let plain = |c: char| !c.is_control() && !",|#\n".contains(c);
    match !key.is_empty() && text.chars().all(plain) {
        true => Ok((key.to_owned(), value.to_owned())),
        false => Err("a tag is key:value, without , | # and line ends".to_owned()),
    }
}

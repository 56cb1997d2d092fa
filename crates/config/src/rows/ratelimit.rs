//! The keys of `ratelimit`: the Envoy rate limit service.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::address;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey, ValueSyntax};
use crate::rows::common::time;
use crate::rows::{exports, rlqs, tls, xds};
use crate::values::{Read, YEAR, header_name};
use evenkeel_core::units::Nanos;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The rows of the section.
pub static TABLE: SectionTable = SectionTable {
    path: "ratelimit",
    keys: &[
        &RULES,
        &XDS,
        &GRPC,
        &GRPC_UNIX,
        &HTTP,
        &DEBUG,
        &IGNORE_DOT_FILES,
        &MERGE_DOMAINS,
        &COMPAT_KEYS,
        &CALENDAR,
        &NEAR_LIMIT_RATIO,
        &SHADOW,
        &QUOTA,
        &STOP_WHEN_OVER,
        &SPARE_OVER,
        &DYNAMIC_METADATA,
        &HEADERS,
        &KEYS,
        &RLQS,
        &CONNECTIONS,
        &TLS,
        &HANDSHAKE_TIMEOUT,
        &CONNECTION_AGE,
        &CONNECTION_AGE_GRACE,
        &HEALTHY_WITH_RULES,
        &HEALTHY_WITH_STORE,
        &DRAIN,
        &STATSD,
        &PROMETHEUS,
    ],
};

/// The rows of `ratelimit.headers`.
pub static HEADER_NAMES: SectionTable =
    SectionTable { path: "ratelimit.headers", keys: &[&LIMIT, &REMAINING, &RESET] };

pub(crate) static RULES: ConfigKey<PathBuf> = ConfigKey::opaque(
    "rules",
    path,
    "A rule file, or a folder with all rule files below it. `off`: no rules, each request passes. \
     The path need not exist yet: until it does, each request passes, with a warning.",
)
.restart()
.default_note("required, unless there is `xds`")
.example("/etc/evenkeel/rules");

pub(crate) static XDS: SubsectionKey = SubsectionKey::one(
    "xds",
    &xds::TABLE,
    "[Rules from a server](#ratelimitxds) instead of `rules`.",
)
.restart();

pub(crate) static GRPC: ListKey<SocketAddr> =
    ConfigKey::text("grpc", address::listen, "Addresses to listen on for gRPC.")
        .restart()
        .default_note("`0.0.0.0:8081`; none with `grpc_unix`")
        .example("127.0.0.1:8081")
        .list();

pub(crate) static GRPC_UNIX: ConfigKey<PathBuf> =
    ConfigKey::opaque("grpc_unix", path, "A Unix socket to listen on for gRPC.")
        .restart()
        .example("/run/evenkeel/grpc.sock");

pub(crate) static HTTP: ListKey<SocketAddr> = ConfigKey::text(
    "http",
    address::listen,
    "Addresses to listen on for `/json` and `/healthcheck`.",
)
.restart()
.list_with(|| vec![SocketAddr::from(([0, 0, 0, 0], 8080))]);

pub(crate) static DEBUG: ListKey<SocketAddr> = ConfigKey::text(
    "debug",
    address::listen,
    "Addresses to listen on for `/rlconfig` and `/stats`.",
)
.restart()
.example("127.0.0.1:6070")
.list_with(Vec::new);

pub(crate) static IGNORE_DOT_FILES: DefaultedKey<bool> = ConfigKey::truth(
    "ignore_dot_files",
    "Whether rule files with a name that begins with a dot are ignored. Those with two dots always \
     are.",
)
.restart()
.default(false);

pub(crate) static MERGE_DOMAINS: DefaultedKey<bool> =
    ConfigKey::truth("merge_domains", "Whether several files may have rules for one domain.")
        .restart()
        .default(false);

pub(crate) static COMPAT_KEYS: DefaultedKey<bool> = ConfigKey::truth(
    "compat_keys",
    "Whether key and value are compared joined by `_`, as the reference server does.",
)
.restart()
.default(false);

pub(crate) static CALENDAR: DefaultedKey<bool> = ConfigKey::truth(
    "calendar",
    "Whether months and years are those of the calendar (UTC), not 30 and 365 days, for rules that \
     do not say.",
)
.restart()
.default(false);

pub(crate) static NEAR_LIMIT_RATIO: DefaultedKey<f32> = ConfigKey::new(
    "near_limit_ratio",
    ValueSyntax::Number,
    ratio,
    "The part of a limit above which hits count as near it. Above 1 none do.",
)
.range_note("from 0")
.default(0.8);

pub(crate) static SHADOW: DefaultedKey<bool> = ConfigKey::truth(
    "shadow",
    "Whether each request passes; statuses and metrics state what would have happened.",
)
.default(false);

pub(crate) static QUOTA: DefaultedKey<bool> =
    ConfigKey::truth("quota", "Whether a request is refused only if all of its limits are over.")
        .default(false);

pub(crate) static STOP_WHEN_OVER: DefaultedKey<bool> = ConfigKey::truth(
    "stop_when_over",
    "Whether the other limits of a request are not counted if one of them would go over.",
)
.default(false);

pub(crate) static SPARE_OVER: DefaultedKey<bool> = ConfigKey::truth(
    "spare_over",
    "Whether hits of a limit that is already over are refused without being counted.",
)
.default(false);

pub(crate) static DYNAMIC_METADATA: DefaultedKey<bool> = ConfigKey::truth(
    "dynamic_metadata",
    "Whether answers contain the question and the `metadata` of rules, for other filters of Envoy.",
)
.default(false);

pub(crate) static HEADERS: SubsectionKey = SubsectionKey::one(
    "headers",
    &HEADER_NAMES,
    "`true`, or a section with the names of the headers for `limit`, `remaining` and `reset`.",
)
.or_words(&["true", "false"])
.default_note("`false`");

pub(crate) static KEYS: DefaultedKey<usize> = ConfigKey::whole(
    "keys_max",
    "Windows that are counted at once, 24 bytes each. When the table is full, windows that have \
     ended are evicted first, then those with the fewest hits.",
)
.restart()
.within(1, 100_000_000)
.low("limits are forgotten and admit more")
.high("memory")
.default(1_000_000);

pub(crate) static RLQS: SubsectionKey = SubsectionKey::one(
    "rlqs",
    &rlqs::TABLE,
    "[Assignments](#ratelimitrlqs) for Envoys that [decide by \
     themselves](ratelimit.md#envoys-that-decide-by-themselves).",
)
.restart();

pub(crate) static CONNECTIONS: DefaultedKey<usize> =
    ConfigKey::whole("connections", "gRPC connections at once. Further ones are closed at once.")
        .restart()
        .within(1, 1_000_000)
        .low("Envoys cannot connect, and let each request pass")
        .high("open files")
        .default(10_000);

pub(crate) static TLS: SubsectionKey =
    SubsectionKey::one("tls", &tls::SERVER, "[TLS](#ratelimittls) of the gRPC port and socket.")
        .restart()
        .default_note("no TLS");

pub(crate) static HANDSHAKE_TIMEOUT: DefaultedKey<Nanos> = time(
    "handshake_timeout",
    "Time for a new connection to begin TLS, if it must, and HTTP/2. Then it is closed.",
)
.restart()
.low("slow Envoys cannot connect")
.high("silent connections keep their place")
.default(Nanos::from_secs(10));

pub(crate) static CONNECTION_AGE: DefaultedKey<Nanos> = ConfigKey::duration(
    "connection_age",
    "Age at which a connection is asked to end. `0s`: never.",
)
.restart()
.within(Nanos::ZERO, YEAR)
.low("clients reconnect all the time")
.high("new instances behind a load balancer get no calls")
.default(Nanos::from_secs(86_400));

pub(crate) static CONNECTION_AGE_GRACE: DefaultedKey<Nanos> = ConfigKey::duration(
    "connection_age_grace",
    "Time for running calls of such a connection to end. `0s`: no limit.",
)
.restart()
.within(Nanos::ZERO, YEAR)
.low("calls are cut off")
.high("old connections stay open")
.default(Nanos::from_secs(3_600));

pub(crate) static HEALTHY_WITH_RULES: DefaultedKey<bool> =
    ConfigKey::truth("healthy_with_rules", "Whether health needs at least one domain with rules.")
        .restart()
        .default(false);

pub(crate) static HEALTHY_WITH_STORE: DefaultedKey<bool> = ConfigKey::truth(
    "healthy_with_store",
    "Whether health needs a connection to the `store`. With `true`, Envoys are sent elsewhere \
     although this instance could decide.",
)
.restart()
.default(false);

pub(crate) static DRAIN: DefaultedKey<Nanos> =
    time("drain", "Time for running calls to end when the process stops.")
        .low("calls are cut off")
        .high("stopping takes long")
        .default(Nanos::from_secs(30));

pub(crate) static STATSD: SubsectionKey = SubsectionKey::one(
    "statsd",
    &exports::STATSD,
    "A [StatsD server](#ratelimitstatsd) that gets the metrics of the reference server.",
)
.restart();

pub(crate) static PROMETHEUS: SubsectionKey = SubsectionKey::one(
    "prometheus",
    &exports::PROMETHEUS,
    "A [port](#ratelimitprometheus) with the metrics of the reference server under its names.",
)
.restart();

/// A name of a header; default is that of the reference server.
const fn header(name: &'static str, doc: &'static str) -> ConfigKey<String> {
    ConfigKey::text(name, |text| header_name(text).map(|_| text.to_owned()), doc)
}

pub(crate) static LIMIT: DefaultedKey<String> =
    header("limit", "Name of the header with the limit.")
        .default_with(|| "RateLimit-Limit".to_owned());

pub(crate) static REMAINING: DefaultedKey<String> =
    header("remaining", "Name of the header with the remaining requests.")
        .default_with(|| "RateLimit-Remaining".to_owned());

pub(crate) static RESET: DefaultedKey<String> =
    header("reset", "Name of the header with the seconds until the window ends.")
        .default_with(|| "RateLimit-Reset".to_owned());

fn path(text: &str) -> Read<PathBuf> {
    if text.is_empty() { Err("name a file or folder".to_owned()) } else { Ok(text.into()) }
}

fn ratio(text: &str) -> Read<f32> {
    let number = text.parse::<f32>().ok().filter(|number| *number >= 0.0);
    number.ok_or_else(|| "must be at least 0; above 1 no request is near its limit".to_owned())
}

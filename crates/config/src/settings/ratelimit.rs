//! Settings of the Envoy rate limit service.
//!
//! The keys, with their ranges and defaults, are in `config/section/ratelimit`, the reference
//! server's environment variables in `config/environment`. The rules are not part of the settings:
//! they have files of their own, which the door reads.

use super::rename::MetricRename;
use super::tls::{ClientTls, ServerTls};
use evenkeel_core::windows::WindowPolicy;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The rate limit service.
#[derive(Clone, Debug, PartialEq)]
pub struct RatelimitSettings {
    /// Addresses to listen on for gRPC.
    pub grpc: Vec<SocketAddr>,
    /// Unix socket that also accepts gRPC.
    pub grpc_unix: Option<PathBuf>,
    /// Addresses that serve `/json` and `/healthcheck`.
    pub http: Vec<SocketAddr>,
    /// Addresses that serve `/rlconfig` and `/stats`.
    pub debug: Vec<SocketAddr>,
    /// TLS for gRPC, on ports and on the Unix socket.
    pub tls: Option<ServerTls>,
    /// Whether `/json` and `/healthcheck` use the same TLS settings.
    pub http_tls: bool,
    /// Location of the rule files, and how they are read.
    pub rules: RuleFiles,
    /// The xDS server that sends rules, instead of files.
    pub xds: Option<XdsSettings>,
    /// How requests are answered.
    pub answers: RatelimitAnswers,
    /// Maximum number of windows that are counted at once, 24 bytes each.
    pub keys_max: usize,
    /// Maximum number of gRPC connections over all threads; further ones are closed at once.
    pub connections_max: usize,
    /// Time for a new connection to begin TLS, if it must, and HTTP/2; then it is closed.
    pub handshake_timeout: Duration,
    /// Age at which a client is asked to reconnect; 0: never. Stored as `Duration::MAX` for 0.
    pub connection_age: Duration,
    /// Time for such a connection to finish its calls; 0: no end. Stored as `Duration::MAX` for 0.
    pub connection_age_grace: Duration,
    /// How limits are shared out among Envoys that decide by themselves.
    pub rlqs: RlqsSettings,
    /// Whether the health check fails while there is no domain.
    pub healthy_with_rules: bool,
    /// Whether the health check fails while there is no connection to the store.
    pub healthy_with_store: bool,
    /// StatsD server that gets the metrics.
    pub statsd: Option<RatelimitStatsd>,
    /// Port that serves the reference server's metrics to Prometheus.
    pub prometheus: Option<PrometheusSettings>,
    /// Time for running calls to end when the process stops.
    pub drain: Duration,
}

/// A management server that sends rules by xDS, the complete state in each message.
#[derive(Clone, Debug, PartialEq)]
pub struct XdsSettings {
    /// Host and port, resolved at each connect.
    pub server: String,
    /// Name of this instance at the server.
    pub node_id: String,
    /// Further metadata of this instance, as key and value.
    pub metadata: Vec<(String, String)>,
    /// Headers that are added to the call, as name and value.
    pub headers: Vec<(String, String)>,
    /// TLS of the connection.
    pub tls: Option<ClientTls>,
    /// Delay before the next attempt if the server was unreachable; it doubles each time.
    pub retry: Duration,
    /// The same delay if the server was reached but its stream ended at once.
    pub retry_stream: Duration,
    /// The longest delay between two attempts.
    pub retry_max: Duration,
    /// Random variation of each delay, as a fraction of it.
    pub retry_spread: f64,
    /// Maximum size of a message in bytes; a larger one ends the stream.
    pub message_bytes_max: usize,
}

/// The rate limit quota service: how limits are shared out among Envoys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RlqsSettings {
    /// How long an Envoy may use its last assignment, in whole seconds.
    pub ttl: Duration,
    /// A bucket without requests for this time is no longer tracked.
    pub idle: Duration,
    /// Maximum number of Envoys at once. Further ones are refused and behave as without a server.
    pub streams_max: usize,
    /// Maximum number of buckets of all Envoys, up to 2 KiB each. Further ones get no assignment.
    pub buckets_max: usize,
    /// Whether assignments are written as requests per time unit where one fits.
    pub per_unit: bool,
}

/// Where rules come from and how they are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFiles {
    /// A file, or a folder with all files below it. `None`: there are no rules and every request
    /// passes.
    pub path: Option<PathBuf>,
    /// Whether files with names that begin with a dot are skipped.
    pub ignore_dot_files: bool,
    /// Whether several files may have rules for the same domain.
    pub merge_domains: bool,
    /// Whether keys and values are compared joined by `_`, as the reference does.
    pub compat_keys: bool,
    /// Whether months and years are those of the calendar, not 30 and 365 days.
    pub calendar: bool,
}

/// How requests are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct RatelimitAnswers {
    /// Fraction of a limit above which hits count as near the limit, from 0; above 1 no hit does.
    pub near_limit_ratio: f32,
    /// Every request passes, and statuses report what the decision would have been.
    pub shadow: bool,
    /// All limits are quotas: a request is refused only if all of its limits are exceeded.
    pub quota: bool,
    /// Which hits of refused requests are not counted.
    pub policy: WindowPolicy,
    /// Whether answers carry the descriptors of the request, for Envoy's other filters.
    pub dynamic_metadata: bool,
    /// Names of the headers for limit, remaining and reset. `None`: answers have no such headers.
    pub headers: Option<[String; 3]>,
}

/// A StatsD server, and how metrics are sent to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatelimitStatsd {
    /// Host and port, resolved at each connect.
    pub address: String,
    /// `true`: UDP datagrams. `false`: a TCP connection.
    pub udp: bool,
    /// Whether tags have the format of `DogStatsD`.
    pub dog: bool,
    /// Interval between two messages.
    pub every: Duration,
    /// Tags that are added to every metric, as key and value.
    pub tags: Vec<(String, String)>,
    /// Rules that rename metrics and turn parts of their names into tags. The first match applies.
    pub rename: Vec<MetricRename>,
}

/// The port that Prometheus scrapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusSettings {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Path of the metrics, which begins with `/`.
    pub path: String,
    /// A mapping file in the format of statsd_exporter.
    pub mapper: Option<PathBuf>,
}

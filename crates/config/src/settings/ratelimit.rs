//! Settings of the Envoy rate limit service.
//!
//! Here are meaning, range and default of each value. The keys are in `config/section/ratelimit`,
//! the reference server's environment variables in `config/environment`. The rules are not part of
//! the settings: they have files of their own, which the door reads.

use super::rename::MetricRename;
use super::tls::{ClientTls, ServerTls};
use evenkeel_core::windows::WindowPolicy;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The rate limit service.
#[derive(Clone, Debug, PartialEq)]
pub struct RatelimitSettings {
    /// Addresses to listen on for gRPC. Default: 0.0.0.0:8081; none if there is a Unix socket.
    pub grpc: Vec<SocketAddr>,
    /// Unix socket that also accepts gRPC. Default: none.
    pub grpc_unix: Option<PathBuf>,
    /// Addresses that serve `/json` and `/healthcheck`. Default: 0.0.0.0:8080.
    pub http: Vec<SocketAddr>,
    /// Addresses that serve `/rlconfig` and `/stats`. Default: none.
    pub debug: Vec<SocketAddr>,
    /// TLS for gRPC, on ports and on the Unix socket. Default: none, plain connections.
    pub tls: Option<ServerTls>,
    /// Whether `/json` and `/healthcheck` use the same TLS settings. Default: false.
    pub http_tls: bool,
    /// Location of the rule files, and how they are read.
    pub rules: RuleFiles,
    /// The xDS server that sends rules, instead of files. Default: none.
    pub xds: Option<XdsSettings>,
    /// How requests are answered.
    pub answers: RatelimitAnswers,
    /// Maximum number of windows that are counted at once, 1 to 100 million, 24 bytes each. When
    /// the table is full, windows that have ended are evicted first, then those with the fewest
    /// hits. Too low: limits are forgotten and admit more. Too high: memory. Default: 1 000 000.
    pub keys_max: usize,
    /// Maximum number of gRPC connections over all threads, 1 to 1 000 000; further ones are closed
    /// at once. Too low: Envoys cannot connect, and admit every request. Too high: open files.
    /// Default: 10 000.
    pub connections_max: usize,
    /// Time for a new connection to complete the TLS handshake, if there is one, and the HTTP/2
    /// preface; then it is closed. Too low: slow Envoys cannot connect. Too high: silent
    /// connections keep their slot. Default: 10 s.
    pub handshake_timeout: Duration,
    /// Age at which a client is asked to reconnect; 0: never. Too low: clients reconnect all the
    /// time. Too high: new instances behind a load balancer get no calls. Default: 1 d. Stored as
    /// `Duration::MAX` for 0.
    pub connection_age: Duration,
    /// Time for such a connection to finish its calls; 0: no end. Default: 1 h. Stored as
    /// `Duration::MAX` for 0.
    pub connection_age_grace: Duration,
    /// How limits are shared out among Envoys that decide by themselves.
    pub rlqs: RlqsSettings,
    /// Whether the health check fails while there is no domain. Default: false.
    pub healthy_with_rules: bool,
    /// Whether the health check fails while there is no connection to the store. Default: false.
    pub healthy_with_store: bool,
    /// StatsD server that gets the metrics. Default: none.
    pub statsd: Option<RatelimitStatsd>,
    /// Port that serves the reference server's metrics to Prometheus. Default: none.
    pub prometheus: Option<PrometheusSettings>,
    /// Time for running calls to end when the process stops. Too low: calls are cut off. Too high:
    /// stopping takes long. Default: 30 s.
    pub drain: Duration,
}

/// A management server that sends rules by xDS, the complete state in each message.
#[derive(Clone, Debug, PartialEq)]
pub struct XdsSettings {
    /// Host and port, resolved at each connect. Default: localhost:18000.
    pub server: String,
    /// Name of this instance at the server. Default: `default`.
    pub node_id: String,
    /// Further metadata of this instance, as key and value.
    pub metadata: Vec<(String, String)>,
    /// Headers that are added to the call, as name and value.
    pub headers: Vec<(String, String)>,
    /// TLS of the connection. Default: none, a plain connection.
    pub tls: Option<ClientTls>,
    /// Delay before the next attempt if the server was unreachable; it doubles each time. Too low:
    /// constant attempts. Too high: an old state for long. Default: 3 s.
    pub retry: Duration,
    /// The same delay if the server was reached but its stream ended at once. Default: as `retry`.
    pub retry_stream: Duration,
    /// The longest delay between two attempts. Too high: an old state long after the server is
    /// back. Default: 60 s.
    pub retry_max: Duration,
    /// Random variation of each delay, as a fraction of it, 0 to 1, so that many instances do not
    /// reconnect at the same moment. Default: 0.5.
    pub retry_spread: f64,
    /// Maximum size of a message in bytes, 1 KiB to 256 MiB; a larger one ends the stream. Too low:
    /// rules do not arrive. Too high: memory. Default: 16 MiB.
    pub message_bytes_max: usize,
}

/// The rate limit quota service: how limits are shared out among Envoys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RlqsSettings {
    /// How long an Envoy may use its last assignment, in whole seconds from 2 s to 1 h, and so how
    /// long limits hold while Evenkeel is unreachable. Too low: more messages, and limits end soon
    /// after an outage begins. Too high: an Envoy refuses for longer during an outage. Default: 60
    /// s.
    pub ttl: Duration,
    /// A bucket without requests for this time is no longer tracked. Default: 10 minutes.
    pub idle: Duration,
    /// Maximum number of Envoys at once, 1 to 100 000. Further ones are refused and behave as
    /// without a server. Default: 1000.
    pub streams_max: usize,
    /// Maximum number of buckets of all Envoys, 1 to 10 million, up to 2 KiB each. Further ones get
    /// no assignment. Default: 100 000.
    pub buckets_max: usize,
    /// Whether assignments are written as requests per time unit where one fits. Envoy's filter
    /// (1.40) does not support this form. Default: false.
    pub per_unit: bool,
}

/// Where rules come from and how they are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFiles {
    /// A file, or a folder with all files below it. `None`: there are no rules and every request
    /// passes.
    pub path: Option<PathBuf>,
    /// Whether files with names that begin with a dot are skipped. Default: false.
    pub ignore_dot_files: bool,
    /// Whether several files may have rules for the same domain. Default: false.
    pub merge_domains: bool,
    /// Whether keys and values are compared joined by `_`, as the reference does. Default: false.
    pub compat_keys: bool,
    /// Whether months and years are those of the calendar, not 30 and 365 days. Default: false.
    pub calendar: bool,
}

/// How requests are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct RatelimitAnswers {
    /// Fraction of a limit above which hits count as near the limit, from 0; above 1 no hit does.
    /// Default: 0.8.
    pub near_limit_ratio: f32,
    /// Every request passes, and statuses report what the decision would have been. Default: false.
    pub shadow: bool,
    /// All limits are quotas: a request is refused only if all of its limits are exceeded. Default:
    /// false.
    pub quota: bool,
    /// Which hits of refused requests are not counted. Default: all hits are counted.
    pub policy: WindowPolicy,
    /// Whether answers carry the descriptors of the request, for Envoy's other filters. Default:
    /// false.
    pub dynamic_metadata: bool,
    /// Names of the headers for limit, remaining and reset. `None`: answers have no such headers.
    /// Default: none.
    pub headers: Option<[String; 3]>,
}

impl Default for RatelimitAnswers {
    fn default() -> RatelimitAnswers {
        RatelimitAnswers {
            near_limit_ratio: 0.8,
            shadow: false,
            quota: false,
            policy: WindowPolicy::default(),
            dynamic_metadata: false,
            headers: None,
        }
    }
}

/// A StatsD server, and how metrics are sent to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RatelimitStatsd {
    /// Host and port, resolved at each connect. Default: localhost:8125.
    pub address: String,
    /// `true`: UDP datagrams. `false`: a TCP connection. Default: false.
    pub udp: bool,
    /// Whether tags have the format of `DogStatsD`. Default: false.
    pub dog: bool,
    /// Interval between two messages, 1 ms to 366 d. Default: 10 s.
    pub every: Duration,
    /// Tags that are added to every metric, as key and value.
    pub tags: Vec<(String, String)>,
    /// Rules that rename metrics and turn parts of their names into tags. The first match applies.
    pub rename: Vec<MetricRename>,
}

/// The port that Prometheus scrapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusSettings {
    /// Address to listen on. Default: 0.0.0.0:9090.
    pub listen: SocketAddr,
    /// Path of the metrics, which begins with `/`. Default: `/metrics`.
    pub path: String,
    /// A mapping file in the format of statsd_exporter. Default: the reference server's own names
    /// and labels.
    pub mapper: Option<PathBuf>,
}

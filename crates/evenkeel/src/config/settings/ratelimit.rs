//! What runs of the rate limit service.
//!
//! Meaning, range and default of every figure; how they are written: `config/section/ratelimit`,
//! or as the reference server's environment variables (`config/environment`). The rules are not
//! here: they have files of their own and are read by the door.

use super::rename::Rename;
use super::tls::{ClientTls, ServerTls};
use evenkeel_core::windows::Policy;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The rate limit service.
#[derive(Clone, Debug, PartialEq)]
pub struct Ratelimit {
    /// Where gRPC is served. Default: 0.0.0.0:8081; none if there is a socket file.
    pub grpc: Vec<SocketAddr>,
    /// A Unix socket where gRPC is served as well. Default: none.
    pub grpc_unix: Option<PathBuf>,
    /// Where `/json` and `/healthcheck` are served. Default: 0.0.0.0:8080.
    pub http: Vec<SocketAddr>,
    /// Where `/rlconfig` and `/stats` are served. Default: nowhere.
    pub debug: Vec<SocketAddr>,
    /// How gRPC is protected, on ports and the socket file alike. Default: not at all.
    pub tls: Option<ServerTls>,
    /// Whether `/json` and `/healthcheck` are protected likewise. Default: false.
    pub http_tls: bool,
    /// Where the rules come from and how they are read.
    pub rules: RuleFiles,
    /// The server that rules come from in place of files. Default: none.
    pub xds: Option<Xds>,
    /// How it answers.
    pub answers: RatelimitAnswers,
    /// Windows counted at once; when there are more, those that have ended and then those with
    /// the fewest hits are forgotten. 1 to 100 million, 24 bytes each. Default: a million.
    pub keys_max: usize,
    /// gRPC connections at once on all threads; more are closed at once. Default: 10 000.
    pub connections_max: usize,
    /// For a connection to show that it speaks TLS, if it must, and HTTP/2; then it is closed.
    /// Default: 10 s.
    pub handshake_timeout: Duration,
    /// After this a connection is asked to make room for a new one; 0: never. Default: a day.
    pub connection_age: Duration,
    /// How long it then has to end what it is at; 0: as long as it takes. Default: an hour.
    pub connection_age_grace: Duration,
    /// How limits are shared out among Envoys that decide by themselves.
    pub rlqs: Rlqs,
    /// Without any domain, health says no. Default: false.
    pub healthy_with_rules: bool,
    /// Without a connection to the store, health says no. Default: false.
    pub healthy_with_store: bool,
    /// Where figures are sent. Default: nowhere.
    pub statsd: Option<Statsd>,
    /// Where Prometheus finds the reference's figures. Default: nowhere.
    pub prometheus: Option<Prometheus>,
    /// For calls that run when the program stops. Default: 30 s.
    pub drain: Duration,
}

/// A management server that sends rules: xDS, the whole state each time.
#[derive(Clone, Debug, PartialEq)]
pub struct Xds {
    /// Host and port, resolved at each connect.
    pub server: String,
    /// What this instance is called there. Default: `default`.
    pub node_id: String,
    /// What else is told of it.
    pub metadata: Vec<(String, String)>,
    /// Headers of the call.
    pub headers: Vec<(String, String)>,
    /// How the connection is protected. Default: not at all.
    pub tls: Option<ClientTls>,
    /// Before another attempt when there is no server, twice as long each time. Default: 3 s.
    pub retry: Duration,
    /// The same when there was a server and its stream ended at once. Default: as `retry`.
    pub retry_stream: Duration,
    /// The longest of these. Default: 60 s.
    pub retry_max: Duration,
    /// By how much of itself each is longer or shorter, by chance, 0 to 1: so many instances do
    /// not come at once. Default: 0.5.
    pub retry_spread: f64,
    /// The longest message, in bytes, 1 KiB to 256 MiB; a longer one ends the stream.
    /// Default: 16 MiB.
    pub message_bytes_max: usize,
}

/// The rate limit quota service: how limits are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlqs {
    /// How long an Envoy may go by what it was told last, in whole seconds from 2 s to an hour: so
    /// long limits hold when this server is gone. Default: 60 s.
    pub ttl: Duration,
    /// A bucket without requests for so long is not tracked any more. Default: 10 minutes.
    pub idle: Duration,
    /// Envoys at once; more are refused, and pass what they pass without a server. Default: 1000.
    pub streams_max: usize,
    /// Buckets of all Envoys at once, up to 2 KiB each; more get no assignment. Default: 100 000.
    pub buckets_max: usize,
    /// Parts are written as requests per unit where a unit fits. Envoy's filter (1.40) does not
    /// know these. Default: false.
    pub per_unit: bool,
}

/// Where rules come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFiles {
    /// A file, or a folder with everything below it; `None`: no rules, and everything passes.
    pub path: Option<PathBuf>,
    /// Names that begin with a dot are passed over. Default: false.
    pub ignore_dot_files: bool,
    /// Several files may have rules for one domain. Default: false.
    pub merge_domains: bool,
    /// Keys and values are compared joined by `_`, as the reference does. Default: false.
    pub compat_keys: bool,
    /// Months and years are those of the calendar. Default: false.
    pub calendar: bool,
}

/// How requests are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct RatelimitAnswers {
    /// The part of a limit above which hits count as near it; over 1 none does. Default: 0.8.
    pub near_limit_ratio: f32,
    /// Everything passes, and statuses say what would have been. Default: false.
    pub shadow: bool,
    /// All limits are quotas: a request is refused only if all of its limits are over.
    /// Default: false.
    pub quota: bool,
    /// What is not counted of requests that are over. Default: all is counted.
    pub policy: Policy,
    /// Answers carry what was asked, for Envoy's other filters. Default: false.
    pub dynamic_metadata: bool,
    /// The names of the headers that tell clients limit, remaining and reset. Default: none.
    pub headers: Option<[String; 3]>,
}

impl Default for RatelimitAnswers {
    fn default() -> RatelimitAnswers {
        RatelimitAnswers {
            near_limit_ratio: 0.8,
            shadow: false,
            quota: false,
            policy: Policy::default(),
            dynamic_metadata: false,
            headers: None,
        }
    }
}

/// Where figures are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statsd {
    /// Host and port, resolved at each connect.
    pub address: String,
    /// In datagrams, not over a connection. Default: false.
    pub udp: bool,
    /// Tags are written as `DogStatsD` has them. Default: false.
    pub dog: bool,
    /// How often, 1 ms to a year. Default: 10 s.
    pub every: Duration,
    /// Tags behind every name.
    pub tags: Vec<(String, String)>,
    /// Other names, and tags made of parts of the reference's.
    pub rename: Vec<Rename>,
}

/// The port that Prometheus asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prometheus {
    /// Where it is. Default: 0.0.0.0:9090.
    pub listen: SocketAddr,
    /// What is asked for. Default: `/metrics`.
    pub path: String,
    /// A mapping file, as statsd_exporter reads it. Default: the reference's own names and labels.
    pub mapper: Option<PathBuf>,
}

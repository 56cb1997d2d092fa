//! The checked configuration: every default is filled in and every value has its final type.
//!
//! Each door receives only its own part of [`Settings`]. The range and the default of each key, and
//! whether a change needs a restart, are in its row (`section`); the reference for users,
//! docs/guide/configuration.md, is made from the rows.

mod backend;
pub mod gatekeeper;
pub mod hosts;
pub mod master;
pub mod otlp;
pub mod pattern;
pub mod peers;
mod ratelimit;
pub mod sockets;

pub mod store;
pub mod tags;
pub mod tls;

use crate::values::word_enum;
pub use backend::{BACKENDS_MAX, BackendAddress, BackendProtocol, BackendScheme, BackendTls};
use evenkeel_core::limit::{Limit, LimitAction, LimitCondition};
use evenkeel_core::units::Nanos;
pub use gatekeeper::GatekeeperSettings;
use hosts::HostSettings;
use ipnet::IpNet;
pub use master::MasterSettings;
pub use pattern::rename;
pub use peers::PeersSettings;
pub use ratelimit::{
    PrometheusSettings, RatelimitAnswers, RatelimitSettings, RatelimitStatsd, RlqsSettings,
    RuleFiles, XdsSettings,
};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
pub use store::StoreSettings;
use tags::{LimitsFile, TagRules};
use tls::FrontTls;

/// The whole configuration of one process. A reload builds a new one.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The admin door (metrics, health, JSON). `None` if the file says `admin: off`.
    pub admin: Option<AdminSettings>,
    /// How log lines are written, and from which severity on.
    pub log: LogSettings,
    /// The receivers to which Evenkeel pushes metrics. Prometheus pulls and needs no setting here.
    pub metrics: MetricsSettings,
    /// The collector that receives spans of requests. `None`: no request is traced.
    pub traces: Option<otlp::TracesSettings>,
    /// The snapshot on disk that survives a restart.
    pub state: StateSettings,
    /// The reverse proxy. `None` if the file has neither a `proxy` nor a `check` section; with
    /// `check` alone it holds only limits and `listen` is empty.
    pub proxy: Option<ProxySettings>,
    /// The check door, for servers with their own front end. `None` without such a section.
    pub check: Option<CheckSettings>,
    /// The line door, which answers questions about tags. `None` if the file has no such section.
    pub line: Option<LineSettings>,
    /// The Envoy rate limit service. `None` if the file has no such section.
    pub ratelimit: Option<RatelimitSettings>,
    /// The master of gatekeepers. `None` if the file has no such section.
    pub master: Option<MasterSettings>,
    /// The gates that a master decides on, at most 64, in the order of the file. Empty if none.
    pub gatekeepers: Vec<GatekeeperSettings>,
    /// The instances that this one counts together with. `None` if it counts alone.
    pub peers: Option<PeersSettings>,
    /// The Redis store with one count for all instances. `None`: each instance counts by itself.
    pub store: Option<StoreSettings>,
}

impl Settings {
    /// Names of the sections that open a door for clients. The admin door is not among them.
    #[must_use]
    pub fn doors(&self) -> Vec<&'static str> {
        let proxy = self.proxy.iter().filter(|proxy| !proxy.listen.is_empty()).map(|_| "proxy");
        let check = self.check.iter().map(|_| "check");
        let line = self.line.iter().map(|_| "line");
        let ratelimit = self.ratelimit.iter().map(|_| "ratelimit");
        let master = self.master.iter().map(|_| "master");
        proxy.chain(check).chain(line).chain(ratelimit).chain(master).collect()
    }

    /// The longest drain time of all doors, which bounds a shutdown. Zero if no door is open.
    #[must_use]
    pub fn drain(&self) -> Duration {
        let proxy = self.proxy.iter().map(|proxy| proxy.timeouts.drain);
        let line = self.line.iter().map(|line| line.drain);
        let ratelimit = self.ratelimit.iter().map(|door| door.drain);
        let master = self.master.iter().map(|door| door.drain);
        proxy.chain(line).chain(ratelimit).chain(master).max().unwrap_or_default()
    }

    /// Total number of limits over all doors, including the rules of a master's domains.
    #[must_use]
    pub fn limits(&self) -> usize {
        let proxy = self.proxy.as_ref().map_or(0, |proxy| proxy.limits.len());
        let line = self.line.as_ref().map_or(0, |line| line.limits.len());
        let domains = self.master.iter().flat_map(|master| &master.domains);
        proxy + line + domains.map(|domain| domain.rules.len()).sum::<usize>()
    }
}

/// The admin door: metrics, health, JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminSettings {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// Whether `listen` is not the default. Only then a port in use stops the start.
    pub asked_for: bool,
    /// File with the token that callers must send, except for `/healthz`, `/readyz` and `/metrics`.
    /// Required to listen beyond loopback.
    pub token_file: Option<PathBuf>,
}

/// The check door: a server asks it before each request, and reports the cost afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckSettings {
    /// Addresses to listen on.
    pub listen: Vec<SocketAddr>,
    /// UDP addresses that receive access logs by syslog.
    pub syslog: Vec<SyslogAddress>,
    /// How long an admitted request waits for its report, before it is charged an average.
    pub report_within: Duration,
    /// Admitted requests that wait for their report, some 500 bytes each; the oldest settles early.
    pub open_max: usize,
    /// Questions of clients that have to wait; further clients are refused.
    pub waiting_max: usize,
}

/// A UDP address that receives datagrams, written `udp://127.0.0.1:5514`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyslogAddress(pub SocketAddr);

impl fmt::Display for SyslogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "udp://{}", self.0)
    }
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// The least severe level that is written.
    pub level: LogLevel,
    /// Text for people or JSON for machines.
    pub format: LogFormat,
}

/// Receivers to which Evenkeel pushes metrics, and the metrics that each one gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsSettings {
    /// An OpenTelemetry collector.
    pub otlp: Option<otlp::OtlpMetricsSettings>,
    /// A StatsD server.
    pub statsd: Option<StatsdSink>,
    /// Host and port of a Graphite server with the plaintext protocol over TCP.
    pub graphite: Option<String>,
    /// Prefix of its names, the host's name filled in.
    pub graphite_prefix: String,
    /// Which metrics Graphite gets.
    pub graphite_lines: GraphiteSelection,
    /// A client counts as held if the average wait of its requests is longer.
    pub held_above: Nanos,
}

/// A StatsD server and the format of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsdSink {
    /// Host and port.
    pub address: String,
    /// `true`: one line per metric over TCP. `false`: UDP datagrams.
    pub tcp: bool,
    /// Where the labels of a metric are written.
    pub labels: StatsdLabels,
    /// Prefix for Smockron's metrics, which may be empty. `None`: they are not sent.
    pub smockron: Option<String>,
}

word_enum! {
    /// Where a StatsD line has the values of a metric's labels.
    pub enum StatsdLabels {
        /// As parts of the name, which every StatsD server understands.
        Name = "name",
        /// As tags (`|#door:proxy`), which DogStatsD and compatible servers understand.
        Tags = "tags",
    }
}

word_enum! {
    /// Which metrics Graphite gets.
    pub enum GraphiteSelection {
        /// Every metric.
        All = "all",
        /// Only the number of held clients of each limit, under its bare name, as Tempomat sent it.
        Limits = "limits",
    }
}

/// The state that survives a restart: debts and the counters of `ratelimit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSettings {
    /// Path of the snapshot, in a writable folder.
    pub file: Option<PathBuf>,
    /// Time between two snapshots, the most that a crash loses.
    pub every: Duration,
    /// Number of keys for each limit that has no `keys_max` of its own. `None`: the default of the
    /// limit's kind.
    pub keys_max: Option<usize>,
}

word_enum! {
    /// Severity of a log line.
    pub enum LogLevel {
        /// An operation failed.
        Error = "error",
        /// Something needs the operator's attention, but Evenkeel continues to work.
        Warn = "warn",
        /// Decisions, starts and reloads.
        Info = "info",
        /// Events of single requests.
        Debug = "debug",
        /// All log lines.
        Trace = "trace",
    }
}

word_enum! {
    /// Format of a log line.
    pub enum LogFormat {
        /// Text for people.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}

/// The reverse proxy, and the limits that the check door shares with it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProxySettings {
    /// Addresses to listen on, at most 64. Empty if the section only holds the limits of `check`.
    pub listen: Vec<SocketAddr>,
    /// Certificates, and which addresses of `listen` use TLS.
    pub tls: Option<FrontTls>,
    /// Whether clients may use HTTP/2.
    pub http2: bool,
    /// The servers behind the proxy, at least one and at most [`BACKENDS_MAX`].
    pub backends: Vec<BackendAddress>,
    /// How the proxy authenticates TLS backends, and itself to them.
    pub backend_tls: BackendTls,
    /// Protocols, in lower case, that a client may switch to by `Upgrade`.
    pub upgrades: Vec<String>,
    /// CPU-seconds per second to share out.
    pub cpus: f64,
    /// How the cost of a request is measured.
    pub cost: CostSource,
    /// What happens to a client in debt if its limit has no action of its own.
    pub action: LimitAction,
    /// How requests wait for capacity, where the action is `queue`.
    pub queue: ProxyQueueSettings,
    /// The longest wait; a request that would have to wait longer is refused.
    pub max_delay: Nanos,
    /// Networks from which forwarded headers are trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Where a trusted proxy writes the client's address.
    pub client_address: ClientAddress,
    /// Time limits of connections and requests.
    pub timeouts: ProxyTimeouts,
    /// Upper bounds of connections, sizes and streams.
    pub bounds: ProxyBounds,
    /// Clients in these networks are neither counted nor held.
    pub exempt: Vec<IpNet>,
    /// Requests that meet one of these conditions are neither counted nor held.
    pub exempt_when: Vec<LimitCondition>,
    /// Clients by host name: those that are exempt and those that count together.
    pub hosts: HostSettings,
    /// Decide, count and report, but enforce nothing.
    pub shadow: bool,
    /// Whether answers carry `RateLimit` headers for limits with a `rate`.
    pub headers: bool,
    /// Whether the backend's cost header is passed on to the client.
    pub keep_cost_header: bool,
    /// Number of clients per limit that each thread can show by name, some 300 bytes each.
    pub names_max: usize,
    /// The limits, in the order of the file; at most `LIMITS_MAX`.
    pub limits: Vec<Limit>,
}

/// How requests wait for capacity at the backend. Ranges and defaults: `section::proxy::queue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyQueueSettings {
    /// Number of requests that the backend works on at once.
    pub concurrency: ConcurrencySetting,
    /// Additional slots for clients in credit without a request at the backend.
    pub reserve: usize,
    /// Upper bound of a bucket's debt, in CPU time. `None`: the burst of the bucket.
    pub debt_max: Option<Nanos>,
    /// Maximum number of requests in the admission queue.
    pub len_max: usize,
    /// The longest time that a request waits in the queue; after that it is refused.
    pub wait_max: Nanos,
    /// Number of clients that are remembered as established. 0: all clients are treated alike.
    pub known_max: usize,
}

/// Number of requests that the backend works on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConcurrencySetting {
    /// Found by measuring: the number up to which more requests at once still increase throughput.
    Auto,
    /// A fixed number, 1 to 1 000 000. Too low: the backend idles. Too high: requests wait there.
    Fixed(usize),
}

impl fmt::Display for ConcurrencySetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConcurrencySetting::Auto => f.write_str("auto"),
            ConcurrencySetting::Fixed(count) => write!(f, "{count}"),
        }
    }
}

impl ProxyQueueSettings {
    /// The form that the core uses. With `Auto`, the search for the best concurrency starts at
    /// `cpus`.
    #[must_use]
    pub fn bounds(&self, cpus: f64) -> evenkeel_core::queue::QueueSettings {
        let concurrency = match self.concurrency {
            ConcurrencySetting::Auto => cpus.ceil().max(1.0) as usize,
            ConcurrencySetting::Fixed(count) => count,
        };
        evenkeel_core::queue::QueueSettings {
            concurrency,
            reserve: self.reserve,
            len_max: self.len_max,
            wait_max: self.wait_max,
            known_max: self.known_max,
        }
    }
}

/// The line door, which answers questions about tags.
#[derive(Clone, Debug, PartialEq)]
pub struct LineSettings {
    /// Streams to listen on.
    pub listen: Vec<StreamAddress>,
    /// Permission bits of Unix sockets.
    pub socket_mode: u32,
    /// Addresses to listen on for Redis clients.
    pub resp: Vec<SocketAddr>,
    /// Maximum length of a tag in bytes; a longer tag is served but not counted.
    pub tag_bytes: usize,
    /// Keys that a limit without its own `keys_max` remembers, 24 bytes each.
    pub keys_max: usize,
    /// Connections at once; then the longest silent one is closed. 0: the limit of open files.
    pub connections: usize,
    /// Time for replies to be sent when the process stops.
    pub drain: Duration,
    /// The limits, each with its own table. The first one counts the tags that match no prefix.
    pub limits: Vec<Limit>,
    /// The prefix rules that are written in the configuration itself.
    pub written: tags::TagRulesBuilder,
    /// An optional file with more prefix rules.
    pub limits_file: Option<LimitsFile>,
    /// All prefix rules: those of the configuration and those of the file.
    pub rules: Arc<TagRules>,
}

/// An address on which the line door accepts streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamAddress {
    /// A TCP address, written `tcp://127.0.0.1:7070`.
    Tcp(SocketAddr),
    /// A Unix socket, written `unix:///run/evenkeel/line.sock`.
    Unix(PathBuf),
}

impl fmt::Display for StreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamAddress::Tcp(address) => write!(f, "tcp://{address}"),
            StreamAddress::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// How the cost of a request is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// Elapsed time while the backend works.
    Wall,
    /// Elapsed time, divided among the running requests when there are more of them than CPUs.
    Shared,
    /// The value that the backend sends in this header (lower case); if it sends none, as `Shared`.
    Header(String),
    /// As `Shared`, corrected by the CPU time of this cgroup (version 2). The path is as written.
    Cgroup(PathBuf),
}

impl fmt::Display for CostSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CostSource::Wall => f.write_str("wall"),
            CostSource::Shared => f.write_str("shared"),
            CostSource::Header(name) => write!(f, "header:{name}"),
            CostSource::Cgroup(path) => write!(f, "cgroup:{}", path.display()),
        }
    }
}

/// Where a trusted proxy writes the client's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAddress {
    /// `X-Forwarded-For`, read from the right past trusted proxies; without it `X-Real-IP`.
    XForwardedFor,
    /// `Forwarded` (RFC 7239), read in the same way.
    Forwarded,
    /// A header (lower case) that holds one address.
    Header(String),
    /// The PROXY protocol, version 1 or 2, before the first byte of each connection.
    ProxyProtocol,
}

impl fmt::Display for ClientAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientAddress::XForwardedFor => f.write_str("xff"),
            ClientAddress::Forwarded => f.write_str("forwarded"),
            ClientAddress::ProxyProtocol => f.write_str("proxy-protocol"),
            ClientAddress::Header(name) => write!(f, "header:{name}"),
        }
    }
}

/// Time limits of connections and requests. Too low: slow but honest peers are cut off. Too high:
/// dead peers keep their connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyTimeouts {
    /// From the first byte, or the start of the connection, until the head is complete.
    pub header: Duration,
    /// Until a connection to the backend is established.
    pub connect: Duration,
    /// Without a byte, on a connection between two requests or inside a body.
    pub idle: Duration,
    /// From the complete request until the backend begins its answer.
    pub backend: Duration,
    /// For running requests to end when the process stops.
    pub drain: Duration,
    /// How long an aborted request still costs.
    pub abort_linger: Duration,
    /// Without a byte in either direction on an upgraded connection.
    pub tunnel: Duration,
}

/// Upper bounds of connections, sizes and streams. Zero is no bound, except where noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyBounds {
    /// Client connections at once, at most 10 000 000.
    pub connections: usize,
    /// Client connections at once from one address, or from one /64 network of IPv6.
    pub connections_per_address: usize,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// Bytes of a request's body.
    pub body_bytes: u64,
    /// A body of up to this many bytes is read before the backend gets the request. 0: none.
    pub body_buffer: usize,
    /// Requests on one client connection.
    pub requests_per_connection: u64,
    /// HTTP/2 streams on one client connection.
    pub streams: u32,
    /// HTTP/2 streams on one backend connection, and no more than it allows.
    pub backend_streams: u32,
}

//! What runs: the configuration after checking, every default filled in, every figure in its type.
//!
//! Doors take their part of it and nothing else. How it is written in a file and what can be wrong
//! with it: `config/section.rs`.

mod backend;
pub mod gatekeeper;
pub mod hosts;
pub mod master;
pub mod openings;
pub mod otlp;
pub mod pattern;
pub mod peers;
mod ratelimit;

pub mod store;
pub mod tags;
pub mod tls;

pub use backend::{BACKENDS_MAX, Backend, BackendTls, Protocol, Scheme};
use evenkeel_core::limit::{Action, Limit, When};
use evenkeel_core::units::Nanos;
pub use gatekeeper::Gatekeeper;
use hosts::Hosts;
use ipnet::IpNet;
pub use master::Master;
pub use pattern::rename;
pub use peers::Peers;
pub use ratelimit::{Prometheus, Ratelimit, RatelimitAnswers, Rlqs, RuleFiles, Statsd, Xds};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
pub use store::Store;
use tags::{LimitsFile, TagRules};
use tls::FrontTls;

/// Everything that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The admin door; `None` if it is off.
    pub admin: Option<Admin>,
    /// The log.
    pub log: Log,
    /// Who is sent metrics without asking.
    pub metrics: Metrics,
    /// Where spans of requests go; `None`: nothing is traced.
    pub traces: Option<otlp::Traces>,
    /// What is kept on the disk.
    pub state: State,
    /// The reverse proxy; `None` if the file has neither that section nor `check`.
    pub proxy: Option<Proxy>,
    /// The door for servers that keep their own front.
    pub check: Option<Check>,
    /// The door that is asked about tags; `None` if the file has no such section.
    pub line: Option<Line>,
    /// The rate limit service; `None` if the file has no such section.
    pub ratelimit: Option<Ratelimit>,
    /// The master of gatekeepers; `None` if the file has no such section.
    pub master: Option<Master>,
    /// The gate that a master decides on; `None` if the file has no such section.
    pub gatekeepers: Vec<Gatekeeper>,
    /// The instances that this one counts together with; `None` if it counts alone.
    pub peers: Option<Peers>,
    /// Where one count for all instances is kept; `None` if each counts by itself.
    pub store: Option<Store>,
}

impl Settings {
    /// The sections that open a door for others than the operator.
    #[must_use]
    pub fn doors(&self) -> Vec<&'static str> {
        let proxy = self.proxy.iter().filter(|proxy| !proxy.listen.is_empty()).map(|_| "proxy");
        let check = self.check.iter().map(|_| "check");
        let line = self.line.iter().map(|_| "line");
        let ratelimit = self.ratelimit.iter().map(|_| "ratelimit");
        let master = self.master.iter().map(|_| "master");
        proxy.chain(check).chain(line).chain(ratelimit).chain(master).collect()
    }

    /// The longest time that any door may take to end what runs.
    #[must_use]
    pub fn drain(&self) -> Duration {
        let proxy = self.proxy.iter().map(|proxy| proxy.timeouts.drain);
        let line = self.line.iter().map(|line| line.drain);
        let ratelimit = self.ratelimit.iter().map(|door| door.drain);
        let master = self.master.iter().map(|door| door.drain);
        proxy.chain(line).chain(ratelimit).chain(master).max().unwrap_or_default()
    }

    /// How many limits all doors have.
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
pub struct Admin {
    /// Where it listens. Default: 127.0.0.1:9970.
    pub listen: Vec<SocketAddr>,
    /// Whether it is another address than the default. Else a taken port is a warning, not an end.
    pub asked_for: bool,
    /// Holds the token that callers from beyond loopback must send.
    pub token_file: Option<PathBuf>,
}

/// The door for servers that keep their own front: may this request run, and what did it cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Where it listens. Default: 127.0.0.1:9971.
    pub listen: Vec<SocketAddr>,
    /// Where access logs come in. Default: nowhere.
    pub syslog: Vec<Datagrams>,
    /// After this a pass of which nothing was told costs what its route does on average. Too
    /// short: long requests are charged a guess. Too long: where nothing is told, debts are known
    /// late. Default: 300 s.
    pub report_within: Duration,
    /// Passes waiting for their report; beyond it the oldest settles early. Default: 65 536.
    pub open_max: usize,
    /// Questions that are answered late because the client has to wait; beyond it such are
    /// refused. Default: 1024.
    pub waiting_max: usize,
}

/// An address that datagrams come in at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagrams(pub SocketAddr);

impl fmt::Display for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "udp://{}", self.0)
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// The least severe level that is written. Default: info.
    pub level: Level,
    /// Text for people or JSON for machines. Default: text.
    pub format: Format,
}

/// Who is sent metrics without asking, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// A collector of OpenTelemetry's. Default: none.
    pub otlp: Option<otlp::Figures>,
    /// A StatsD. Default: none.
    pub statsd: Option<StatsdSink>,
    /// Host and port of a Graphite that takes lines. Default: none.
    pub graphite: Option<String>,
    /// What its names begin with, the host's name filled in. Default: evenkeel.{hostname}.
    pub graphite_prefix: String,
    /// What it is sent. Default: all.
    pub graphite_lines: Lines,
    /// Clients whose requests wait for longer on average count as held. Default: 3 s.
    pub held_above: Nanos,
}

/// A StatsD, and how it is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsdSink {
    /// Host and port.
    pub address: String,
    /// Over TCP, a line each, rather than in datagrams. Default: false.
    pub tcp: bool,
    /// How labels are written. Default: within the name.
    pub labels: Labels,
    /// What the names of Smockron's figures begin with, which are sent too then. Default: none are.
    pub smockron: Option<String>,
}

/// Where the values of a metric's labels are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// As parts of the name, which every StatsD understands.
    Name,
    /// As tags, `|#door:proxy`, which those after DogStatsD understand.
    Tags,
}

impl Labels {
    /// How each is written.
    pub const WORDS: [(&str, Labels); 2] = [("name", Labels::Name), ("tags", Labels::Tags)];
}

impl std::fmt::Display for Labels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = Labels::WORDS.iter().find(|(_, labels)| labels == self);
        f.write_str(word.map_or("", |(word, _)| word))
    }
}

/// What Graphite is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Every metric.
    All,
    /// For each limit how many clients it holds, under its bare name, as Tempomat did.
    Limits,
}

impl Lines {
    /// How each is written.
    pub const WORDS: [(&str, Lines); 2] = [("all", Lines::All), ("limits", Lines::Limits)];
}

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Lines::WORDS[*self as usize].0)
    }
}

/// What outlives the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Where debts are kept. Default: nowhere; a restart forgives them.
    pub file: Option<PathBuf>,
    /// What a crash may lose, at most. Default: 5 s.
    pub every: Duration,
    /// How many keys a limit remembers that does not say so itself.
    pub keys_max: Option<usize>,
}

/// How severe a log line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something is not as it should be.
    Warn,
    /// Decisions, starts, reloads.
    Info,
    /// What happens to single requests.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    /// How each is written.
    pub const WORDS: [(&str, Level); 5] = [
        ("error", Level::Error),
        ("warn", Level::Warn),
        ("info", Level::Info),
        ("debug", Level::Debug),
        ("trace", Level::Trace),
    ];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Level::WORDS[*self as usize].0)
    }
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Format {
    /// How each is written.
    pub const WORDS: [(&str, Format); 2] = [("text", Format::Text), ("json", Format::Json)];
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Format::WORDS[*self as usize].0)
    }
}

/// The reverse proxy.
#[derive(Clone, Debug, PartialEq)]
pub struct Proxy {
    /// Where it listens; nowhere if it only has the limits of `check`. Default: 0.0.0.0:8888.
    pub listen: Vec<SocketAddr>,
    /// Its certificates, and which of `listen` they are for. Default: none, nothing is under TLS.
    pub tls: Option<FrontTls>,
    /// Whether clients may speak HTTP/2. Default: true.
    pub http2: bool,
    /// The servers it stands in front of, at least one and at most [`BACKENDS_MAX`].
    pub backends: Vec<Backend>,
    /// Whom it believes of those under TLS.
    pub backend_tls: BackendTls,
    /// Protocols, lower case, that a client may switch to by `Upgrade`. Default: websocket.
    pub upgrades: Vec<String>,
    /// CPU-seconds per second to share out. Default: this machine's, or its cgroup's quota.
    pub cpus: f64,
    /// How a request's cost is measured. Default: shared.
    pub cost: CostSource,
    /// What happens to a client in debt where its limit does not say.
    pub action: Action,
    /// How requests wait for room, where the action is `queue`.
    pub queue: Queue,
    /// Who would wait longer is refused. Default: 30 s.
    pub max_delay: Nanos,
    /// Whose forwarded headers are believed. Default: nobody's.
    pub trusted_proxies: Vec<IpNet>,
    /// Where a trusted proxy writes the client's address. Default: X-Forwarded-For.
    pub client_address: ClientAddress,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// How much of everything there may be.
    pub bounds: Bounds,
    /// Neither counted nor held.
    pub exempt: Vec<IpNet>,
    /// Nor are requests for which one of these holds.
    pub exempt_when: Vec<When>,
    /// Clients by name: exempt, or counted together.
    pub hosts: Hosts,
    /// Decide, count and show, but enforce nothing. Default: false.
    pub shadow: bool,
    /// Tell clients how they stand by limits in requests. Default: false.
    pub headers: bool,
    /// Pass the backend's cost header on to the client. Default: false.
    pub keep_cost_header: bool,
    /// How many clients of each limit each thread knows by name. Default: 1000.
    pub names_max: usize,
    /// The limits, in the order of the file.
    pub limits: Vec<Limit>,
}

/// How requests wait for room before the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// How many requests the backend works on at once. Default: found out by measuring.
    pub concurrency: Concurrency,
    /// How many more for clients in credit that have nothing there. Default: two per CPU, at
    /// least two.
    pub reserve: usize,
    /// Where the debt of a bucket stops. Default: its burst.
    pub debt_max: Option<Nanos>,
    /// How many requests wait at most. Default: 4096.
    pub len_max: usize,
    /// How long a request waits at most. Default: 30 s.
    pub wait_max: Nanos,
    /// How many clients are remembered as known; strangers share one turn. Default: 0, nobody is
    /// told apart.
    pub known_max: usize,
}

/// How many requests the backend works on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// As many as it turns out to do some good.
    Auto,
    /// So many.
    Fixed(usize),
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Concurrency::Auto => f.write_str("auto"),
            Concurrency::Fixed(count) => write!(f, "{count}"),
        }
    }
}

impl Queue {
    /// The defaults for a backend of `cpus`.
    #[must_use]
    pub fn for_cpus(cpus: f64) -> Queue {
        Queue {
            concurrency: Concurrency::Auto,
            reserve: (2.0 * cpus).ceil().max(2.0) as usize,
            debt_max: None,
            len_max: 4_096,
            wait_max: Nanos::from_secs(30),
            known_max: 0,
        }
    }

    /// As the core takes it; `cpus` is where a search for the best concurrency begins.
    #[must_use]
    pub fn bounds(&self, cpus: f64) -> evenkeel_core::queue::Settings {
        let concurrency = match self.concurrency {
            Concurrency::Auto => cpus.ceil().max(1.0) as usize,
            Concurrency::Fixed(count) => count,
        };
        evenkeel_core::queue::Settings {
            concurrency,
            reserve: self.reserve,
            len_max: self.len_max,
            wait_max: self.wait_max,
            known_max: self.known_max,
        }
    }
}

/// The door that is asked about tags.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Where it listens for lines. Default: tcp://127.0.0.1:7070.
    pub listen: Vec<Listen>,
    /// Who may connect to sockets that are files, as mode bits. Default: 666, everybody who can
    /// reach the folder.
    pub socket_mode: u32,
    /// Where it listens for Redis clients. Default: nowhere.
    pub resp: Vec<SocketAddr>,
    /// The most bytes of a tag; a longer one is served and not counted. Default: 1024.
    pub tag_bytes: usize,
    /// Keys that are remembered where a limit does not say. Default: 262144.
    pub keys_max: usize,
    /// Connections at once; beyond it the one that was silent longest is closed. 0: as many as
    /// there are files for. Default: 10 000.
    pub connections: usize,
    /// For what has been sent to be answered when the program stops. Default: 5 s.
    pub drain: Duration,
    /// Tables, the first that of tags which no prefix takes.
    pub limits: Vec<Limit>,
    /// The rules that are written in the configuration,
    pub written: tags::Builder,
    /// and a file with more.
    pub limits_file: Option<LimitsFile>,
    /// All of them.
    pub rules: Arc<TagRules>,
}

/// Where to listen for streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// `tcp://127.0.0.1:7070`.
    Tcp(SocketAddr),
    /// `unix:///run/evenkeel/line.sock`.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "tcp://{address}"),
            Listen::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// How a request's cost is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// Elapsed time while the backend works.
    Wall,
    /// Elapsed time, shared out equally among the requests that run when there are more than cpus.
    Shared,
    /// What the backend says in this header (lower case), else `Shared`.
    Header(String),
    /// As `Shared`, brought into line with what this cgroup (version 2) has used, as written.
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
    /// `X-Forwarded-For`, walked from the right past trusted proxies; else `X-Real-IP`.
    XForwardedFor,
    /// `Forwarded` (RFC 7239), walked likewise.
    Forwarded,
    /// One address in this header (lower case).
    Header(String),
    /// Before the first byte of a connection, by the PROXY protocol, version 1 or 2.
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

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a request's head to arrive. Default: 10 s.
    pub header: Duration,
    /// To connect to the backend. Default: 3 s.
    pub connect: Duration,
    /// Without a byte, on a connection between requests or inside a body. Default: 60 s.
    pub idle: Duration,
    /// For the backend to begin its answer. Default: 300 s.
    pub backend: Duration,
    /// For running requests to end when the program stops. Default: 30 s.
    pub drain: Duration,
    /// How long an aborted request's clock runs on. Default: 5 s.
    pub abort_linger: Duration,
    /// Without a byte on a connection that was upgraded. Default: 1 h.
    pub tunnel: Duration,
}

/// How much of everything there may be; zero: no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Client connections at once. Default: 10 000.
    pub connections: usize,
    /// Client connections at once from one address, an IPv6 network of 64 bits counting as one,
    /// other than trusted proxies. Default: 0.
    pub connections_per_address: usize,
    /// Bytes of a request's head. Default: 64 KiB.
    pub header_bytes: usize,
    /// Bytes of a request's body. Default: 0.
    pub body_bytes: u64,
    /// Bytes of a request's body that are read before the backend is asked; zero: none. A body
    /// that is longer is passed on as it comes. Default: 64 KiB.
    pub body_buffer: usize,
    /// Requests on one connection. Default: 0.
    pub requests_per_connection: u64,
    /// Requests at once on one connection, over HTTP/2; at least one. Default: 100.
    pub streams: u32,
    /// Requests at once on one connection to a backend, over HTTP/2; at least one, and no more
    /// than the backend allows. Default: 100.
    pub backend_streams: u32,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            header: Duration::from_secs(10),
            connect: Duration::from_secs(3),
            idle: Duration::from_secs(60),
            backend: Duration::from_secs(300),
            drain: Duration::from_secs(30),
            abort_linger: Duration::from_secs(5),
            tunnel: Duration::from_secs(3_600),
        }
    }
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            connections: 10_000,
            connections_per_address: 0,
            header_bytes: 64 * 1024,
            body_bytes: 0,
            body_buffer: 64 * 1024,
            requests_per_connection: 0,
            streams: 100,
            backend_streams: 100,
        }
    }
}

//! Where OpenTelemetry's signals go, and which.
//!
//! Meaning, range and default of every figure; how they are written: `config/section/otlp`, or as
//! environment variables (`config/environment`). What is done with them: `watch::otlp`.

use super::tls::ClientTls;
use std::fmt;
use std::time::Duration;

/// A collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// Where it is. Default: <http://127.0.0.1:4318>, or with gRPC <http://127.0.0.1:4317>.
    pub endpoint: Endpoint,
    /// How it is spoken to. Default: over HTTP.
    pub protocol: Protocol,
    /// Headers of every request.
    pub headers: Vec<(String, String)>,
    /// Requests are compressed with gzip. Default: false.
    pub gzip: bool,
    /// For a request to be answered, 1 ms to an hour. Default: 10 s.
    pub timeout: Duration,
    /// Whom to believe where the endpoint is `https`. Default: the system's authorities.
    pub tls: ClientTls,
}

/// The address of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether it speaks TLS.
    pub tls: bool,
    /// Host and port, resolved at each connect.
    pub authority: String,
    /// What is asked for; empty: what the protocol says.
    pub path: String,
}

impl Endpoint {
    /// The host alone, as a certificate names it.
    #[must_use]
    pub fn host(&self) -> &str {
        self.authority.rsplit_once(':').map_or(&*self.authority, |(host, _)| host)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

/// How a collector is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Messages in protobuf over HTTP/1.1.
    Http,
    /// gRPC.
    Grpc,
}

impl Protocol {
    /// How each is written.
    pub const WORDS: [(&str, Protocol); 2] = [("http", Protocol::Http), ("grpc", Protocol::Grpc)];
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Protocol::WORDS[*self as usize].0)
    }
}

/// Traces: spans of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Traces {
    /// Where they go.
    pub collector: Collector,
    /// What this program is called there. Default: evenkeel.
    pub service: String,
    /// What else is told of it.
    pub attributes: Vec<(String, String)>,
    /// The part of requests that are traced, 0 to 1, where the caller has not decided: one that is
    /// traced itself, or is not, decides for us. Default: 1.
    pub sampling: f64,
    /// How long a span may wait for others before it is sent, 1 ms to an hour. Default: 5 s.
    pub every: Duration,
    /// Spans that wait; more are dropped and counted, 1 to 1 000 000. Default: 2048.
    pub queue_max: usize,
    /// Spans of one request, 1 to 10 000. Default: 512.
    pub batch_max: usize,
}

/// Metrics: the whole table, again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Where they go.
    pub collector: Collector,
    /// What this program is called there. Default: evenkeel.
    pub service: String,
    /// What else is told of it.
    pub attributes: Vec<(String, String)>,
    /// Between two messages, 1 s to an hour. Default: 10 s.
    pub every: Duration,
}

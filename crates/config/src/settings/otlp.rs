//! OpenTelemetry signals: the collector, and which signals it gets.
//!
//! The keys, with their ranges and defaults, are in `config/section/metrics/otlp`, the equivalent
//! environment variables in `config/environment`. The sender is `export::otlp`.

use super::tls::ClientTls;
use crate::values::word_enum;
use std::fmt;
use std::time::Duration;

/// A collector and the connection to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorSettings {
    /// Address of the collector.
    pub endpoint: OtlpEndpoint,
    /// Protocol of the requests.
    pub protocol: OtlpProtocol,
    /// Headers that are added to every request, as name and value.
    pub headers: Vec<(String, String)>,
    /// Whether requests are compressed with gzip.
    pub gzip: bool,
    /// Time until a request must be answered.
    pub timeout: Duration,
    /// Authorities and own certificate, for an `https` endpoint.
    pub tls: ClientTls,
}

/// URL of a collector, in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint {
    /// Whether the connection uses TLS (`https`).
    pub tls: bool,
    /// Host and port, resolved at each connect.
    pub authority: String,
    /// Path of the request; empty: the default path of the protocol.
    pub path: String,
}

impl OtlpEndpoint {
    /// The host alone, as a certificate names it.
    #[must_use]
    pub fn host(&self) -> &str {
        self.authority.rsplit_once(':').map_or(&*self.authority, |(host, _)| host)
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

word_enum! {
    /// Protocol of requests to a collector.
    pub enum OtlpProtocol {
        /// Protobuf messages over HTTP/1.1.
        Http = "http",
        /// gRPC.
        Grpc = "grpc",
    }
}

/// Traces: spans of requests.
#[derive(Clone, Debug, PartialEq)]
pub struct TracesSettings {
    /// The collector that receives them.
    pub collector: CollectorSettings,
    /// Name of this service at the collector.
    pub service: String,
    /// Further attributes of this service, as key and value.
    pub attributes: Vec<(String, String)>,
    /// The fraction of requests that are traced if their caller has not decided.
    pub sampling: f64,
    /// The longest time that a span waits for others before it is sent.
    pub every: Duration,
    /// Maximum number of waiting spans, up to 3 KiB each; further ones are dropped and counted.
    pub queue_max: usize,
    /// Maximum number of spans in one request.
    pub batch_max: usize,
}

/// Metrics: the complete set of metrics, sent periodically.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpMetricsSettings {
    /// The collector that receives them.
    pub collector: CollectorSettings,
    /// Name of this service at the collector.
    pub service: String,
    /// Further attributes of this service, as key and value.
    pub attributes: Vec<(String, String)>,
    /// Time between two messages.
    pub every: Duration,
}

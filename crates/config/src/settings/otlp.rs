//! The `traces` section and `metrics.otlp`: a collector and the signals that it gets.
//!
//! Host names are not resolved. The environment variables of the reference rate limit service and
//! of OpenTelemetry are converted into this section (`config/environment`).

use super::tls::ClientTls;
use crate::keys::{ConfigKey, DefaultedKey, ListKey, SubsectionKey, ValueSyntax, section};
use crate::reader::{SectionReader, settings};
use crate::settings::tls;
use crate::values::{HOUR, Read, header_name, part, word_enum};
use evenkeel_core::units::Nanos;
use std::fmt;
use std::time::Duration;

settings! {
    /// A collector and the connection to it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CollectorSettings from collector(section);

    /// `http` (protobuf over HTTP/1.1) or `grpc`.
    pub protocol: OtlpProtocol, PROTOCOL: DefaultedKey<OtlpProtocol> =
        ConfigKey::words("protocol", OtlpProtocol::WORDS).default(OtlpProtocol::Http);
    /// [TLS](#tracestls) for an endpoint of `https://`.
    pub tls: ClientTls, COLLECTOR_TLS: SubsectionKey = SubsectionKey::one("tls", &tls::CLIENT)
        => section.section_if_written(&COLLECTOR_TLS, tls::client).unwrap_or_default();
    /// `http://host:port` or `https://host:port`, resolved at each connect. A path is used
    /// unchanged.
    pub endpoint: OtlpEndpoint, ENDPOINT: ConfigKey<OtlpEndpoint> =
        ConfigKey::text("endpoint", |text| url(text, 4318))
            .default_note("`http://127.0.0.1:4318`; with gRPC port 4317")
            .example("http://collector.example:4318") => endpoint(section, protocol);
    /// Headers of each request, as `name:value`.
    pub headers: Vec<(String, String)>, HEADERS: ListKey<(String, String)> =
        ConfigKey::opaque("headers", header).list().example("authorization:Bearer abc");
    /// Compression of requests.
    pub gzip: bool, COMPRESSION: DefaultedKey<bool> =
        ConfigKey::words("compression", &[("none", false), ("gzip", true)]).default(false);
    /// Time for a request to be answered.
    pub timeout: Duration, TIMEOUT: DefaultedKey<Nanos> = ConfigKey::duration("timeout")
        .within(Nanos::from_millis(1), HOUR).default(Nanos::from_secs(10))
        .low("data is sent twice or lost")
        .high("a collector that does not respond is noticed late");
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

settings! {
    /// Traces: spans of requests.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TracesSettings from traces(section);

    /// The collector that receives them.
    pub collector: CollectorSettings = collector(section);
    /// Name of this program at the collector.
    pub service: String, SERVICE: DefaultedKey<String> = ConfigKey::text("service", service)
        .range_note("at least 1 character").default_with(|| "evenkeel".to_owned());
    /// Attributes of this program at the collector, as `key:value`.
    pub attributes: Vec<(String, String)>, ATTRIBUTES: ListKey<(String, String)> =
        ConfigKey::opaque("attributes", |text| pair(text, "an attribute is key:value")).list()
            .example("zone:eu-1");
    /// The part of calls that is traced if the caller has not decided.
    pub sampling: f64, SAMPLING: DefaultedKey<f64> =
        ConfigKey::new("sampling", ValueSyntax::Number, part).within(0.0, 1.0).default(1.0)
            .high("load on the collector");
    /// Longest time that a span waits for others.
    pub every: Duration, EVERY: DefaultedKey<Nanos> = ConfigKey::duration("every")
        .within(Nanos::from_millis(1), HOUR).default(Nanos::from_secs(5)).low("many small requests")
        .high("spans arrive late");
    /// Spans that wait. Beyond it spans are dropped and counted.
    pub queue_max: usize, QUEUE: DefaultedKey<usize> = ConfigKey::whole("queue")
        .within(1, 1_000_000).default(2_048).low("bursts of spans are lost")
        .high("memory, up to 3 KiB each");
    /// Spans per request.
    pub batch_max: usize, BATCH: DefaultedKey<usize> = ConfigKey::whole("batch").within(1, 10_000)
        .default(512).low("many small requests").high("large requests");
}

settings! {
    /// Metrics: the complete set of metrics, sent periodically.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct OtlpMetricsSettings from figures(section);

    /// The collector that receives them.
    pub collector: CollectorSettings = collector(section);
    /// Name of this service at the collector.
    pub service: String = section.key(&SERVICE);
    /// Further attributes of this service, as key and value.
    pub attributes: Vec<(String, String)> = section.key(&ATTRIBUTES);
    /// Time between two messages.
    pub every: Duration, OTLP_EVERY: DefaultedKey<Nanos> = ConfigKey::duration("every")
        .within(Nanos::from_secs(1), HOUR).default(Nanos::from_secs(10));
}

section! {
    METRICS = "metrics.otlp":
        ENDPOINT, PROTOCOL, HEADERS, COMPRESSION, TIMEOUT, COLLECTOR_TLS, SERVICE, ATTRIBUTES,
        OTLP_EVERY;
    TRACES = "traces":
        ENDPOINT, PROTOCOL, HEADERS, COMPRESSION, TIMEOUT, COLLECTOR_TLS, SERVICE, ATTRIBUTES,
        SAMPLING, EVERY, QUEUE, BATCH;
}

/// Reads `endpoint`, whose default port is that of the protocol.
fn endpoint(section: &mut SectionReader<'_, '_>, protocol: OtlpProtocol) -> OtlpEndpoint {
    let port = if protocol == OtlpProtocol::Grpc { 4317 } else { 4318 };
    let written = section.key_with("endpoint", |text| url(text, port));
    written.unwrap_or_else(|| {
        let authority = format!("127.0.0.1:{port}");
        let default = OtlpEndpoint { tls: false, authority, path: String::new() };
        section.show_default(&ENDPOINT, &default);
        default
    })
}

/// Reads `http://host:port/path`. The default of the port is that of the protocol.
fn url(text: &str, port: u16) -> Read<OtlpEndpoint> {
    let wrong = || "write http://host:port or https://host:port".to_owned();
    let uri: http::Uri = text.parse().map_err(|_| wrong())?;
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(wrong()),
    };
    let authority = uri.authority().ok_or_else(wrong)?;
    if authority.as_str().contains('@') || uri.query().is_some() {
        return Err(
            "only a host, a port and a path are allowed; use `headers` for a secret".to_owned()
        );
    }
    let port = authority.port_u16().unwrap_or(port);
    let path = if uri.path() == "/" { "" } else { uri.path() };
    Ok(OtlpEndpoint {
        tls,
        authority: format!("{}:{port}", authority.host()),
        path: path.to_owned(),
    })
}

fn header(text: &str) -> Read<(String, String)> {
    let (name, value) = pair(text, "a header is name:value")?;
    header_name(&name)?;
    let sound = http::HeaderValue::from_str(&value).is_ok();
    if sound { Ok((name, value)) } else { Err("this is not a header".to_owned()) }
}

fn pair(text: &str, form: &str) -> Read<(String, String)> {
    let (key, value) = text.split_once(':').ok_or(form)?;
    let (key, value) = (key.trim(), value.trim());
    match !key.is_empty() && !text.contains(char::is_control) {
        true => Ok((key.to_owned(), value.to_owned())),
        false => Err(form.to_owned()),
    }
}

fn service(text: &str) -> Read<String> {
    if text.is_empty() { Err("write a name".to_owned()) } else { Ok(text.to_owned()) }
}

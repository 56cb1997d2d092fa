//! The keys of `metrics` and `traces`: receivers of metrics, and the collector of spans.
//!
//! Each row has the name, form, range, default and meaning of one key (`keys`). Combinations of
//! keys that do not work together are reported where the section is read (`section`).

use crate::keys::{ConfigKey, DefaultedKey, ListKey, SectionTable, SubsectionKey, ValueSyntax};
use crate::rows::tls;
use crate::settings::otlp::{OtlpEndpoint, OtlpProtocol};
use crate::settings::{GraphiteSelection, StatsdLabels};
use crate::values::{DAY, HOUR, Read, header_name, within};
use evenkeel_core::units::Nanos;

/// The rows of `metrics`.
pub static TABLE: SectionTable = SectionTable {
    path: "metrics",
    keys: &[
        &GRAPHITE,
        &GRAPHITE_PREFIX,
        &GRAPHITE_LINES,
        &STATSD,
        &STATSD_LABELS,
        &STATSD_SMOCKRON,
        &OTLP,
        &HELD_ABOVE,
    ],
};

/// The rows of `metrics.otlp`.
pub static OTLP_TABLE: SectionTable = SectionTable {
    path: "metrics.otlp",
    keys: &[
        &ENDPOINT,
        &PROTOCOL,
        &HEADERS,
        &COMPRESSION,
        &TIMEOUT,
        &COLLECTOR_TLS,
        &SERVICE,
        &ATTRIBUTES,
        &OTLP_EVERY,
    ],
};

/// The rows of `traces`.
pub static TRACES: SectionTable = SectionTable {
    path: "traces",
    keys: &[
        &ENDPOINT,
        &PROTOCOL,
        &HEADERS,
        &COMPRESSION,
        &TIMEOUT,
        &COLLECTOR_TLS,
        &SERVICE,
        &ATTRIBUTES,
        &SAMPLING,
        &EVERY,
        &QUEUE,
        &BATCH,
    ],
};

/// Maximum length of a prefix, in bytes.
const PREFIX_BYTES_MAX: usize = 200;

pub(crate) static GRAPHITE: ConfigKey<String> = ConfigKey::text(
    "graphite",
    |text| peer(text, "tcp"),
    "A Graphite server with the plaintext protocol over TCP: `host:port` or `tcp://host:port`.",
)
.example("graphite.example:2003");

pub(crate) static GRAPHITE_PREFIX: DefaultedKey<String> = ConfigKey::text(
    "graphite_prefix",
    graphite_prefix,
    "Prefix of the names of metrics; `{hostname}` is replaced by the name of this machine. Needs \
     `graphite`.",
)
.range_note("1 to 200 visible characters")
.default_with(|| "evenkeel.{hostname}".to_owned());

pub(crate) static GRAPHITE_LINES: DefaultedKey<GraphiteSelection> = ConfigKey::words(
    "graphite_lines",
    &GraphiteSelection::WORDS,
    "`all`: each metric. `limits`: only the number of held clients of each limit, as \
     `prefix.limit`, like Tempomat. Needs `graphite`.",
)
.default(GraphiteSelection::All);

pub(crate) static STATSD: ConfigKey<(String, bool)> = ConfigKey::opaque(
    "statsd",
    statsd,
    "A StatsD server: `host:port` or `udp://host:port` for UDP, `tcp://host:port` for TCP.",
)
.example("statsd.example:8125");

pub(crate) static STATSD_LABELS: DefaultedKey<StatsdLabels> = ConfigKey::words(
    "statsd_labels",
    &StatsdLabels::WORDS,
    "`name`: labels are parts of the name. `tags`: labels are tags at the end of the line, as in \
     DogStatsD. Needs `statsd`.",
)
.default(StatsdLabels::Name);

pub(crate) static STATSD_SMOCKRON: ConfigKey<String> = ConfigKey::text(
    "statsd_smockron",
    statsd_prefix,
    "Also sends metrics under the names of Smockron's master, with this prefix, which may be \
     empty: `request.status.ACCEPTED`, `request.status.DELAYED`, `request.total`, and the timer \
     `request.delayed_by`. Needs `statsd`.",
)
.range_note("up to 200 visible characters without `:`, `@`, `#` and the vertical bar")
.default_note("not sent")
.example("smockron.");

pub(crate) static OTLP: SubsectionKey = SubsectionKey::one(
    "otlp",
    &OTLP_TABLE,
    "An [OpenTelemetry collector](#metricsotlp); over HTTP the path is `/v1/metrics`.",
);

pub(crate) static HELD_ABOVE: DefaultedKey<Nanos> = ConfigKey::duration(
    "held_above",
    "A client counts as held if the average wait of its requests is longer than this.",
)
.within(Nanos::ZERO, DAY)
.default(Nanos::from_secs(3));

pub(crate) static ENDPOINT: ConfigKey<OtlpEndpoint> = ConfigKey::text(
    "endpoint",
    |text| endpoint(text, 4318),
    "`http://host:port` or `https://host:port`, resolved at each connect. A path is used \
     unchanged.",
)
.default_note("`http://127.0.0.1:4318`; with gRPC port 4317")
.example("http://collector.example:4318");

pub(crate) static PROTOCOL: DefaultedKey<OtlpProtocol> = ConfigKey::words(
    "protocol",
    &OtlpProtocol::WORDS,
    "`http` (protobuf over HTTP/1.1) or `grpc`.",
)
.default(OtlpProtocol::Http);

pub(crate) static HEADERS: ListKey<(String, String)> =
    ConfigKey::opaque("headers", header, "Headers of each request, as `name:value`.")
        .example("authorization:Bearer abc")
        .list();

pub(crate) static COMPRESSION: DefaultedKey<bool> =
    ConfigKey::words("compression", &[("none", false), ("gzip", true)], "Compression of requests.")
        .default(false);

pub(crate) static TIMEOUT: DefaultedKey<Nanos> =
    ConfigKey::duration("timeout", "Time for a request to be answered.")
        .within(Nanos::from_millis(1), HOUR)
        .low("data is sent twice or lost")
        .high("a collector that does not respond is noticed late")
        .default(Nanos::from_secs(10));

pub(crate) static COLLECTOR_TLS: SubsectionKey =
    SubsectionKey::one("tls", &tls::CLIENT, "[TLS](#tracestls) for an endpoint of `https://`.");

pub(crate) static SERVICE: DefaultedKey<String> =
    ConfigKey::text("service", service, "Name of this program at the collector.")
        .range_note("at least 1 character")
        .default_with(|| "evenkeel".to_owned());

pub(crate) static ATTRIBUTES: ListKey<(String, String)> = ConfigKey::opaque(
    "attributes",
    |text| pair(text, "an attribute is key:value"),
    "Attributes of this program at the collector, as `key:value`.",
)
.example("zone:eu-1")
.list();

pub(crate) static OTLP_EVERY: DefaultedKey<Nanos> =
    ConfigKey::duration("every", "Time between two messages.")
        .within(Nanos::from_secs(1), HOUR)
        .default(Nanos::from_secs(10));

pub(crate) static SAMPLING: DefaultedKey<f64> = ConfigKey::new(
    "sampling",
    ValueSyntax::Number,
    sampling,
    "The part of calls that is traced if the caller has not decided.",
)
.within(0.0, 1.0)
.high("load on the collector")
.default(1.0);

pub(crate) static EVERY: DefaultedKey<Nanos> =
    ConfigKey::duration("every", "Longest time that a span waits for others.")
        .within(Nanos::from_millis(1), HOUR)
        .low("many small requests")
        .high("spans arrive late")
        .default(Nanos::from_secs(5));

pub(crate) static QUEUE: DefaultedKey<usize> =
    ConfigKey::whole("queue", "Spans that wait. Beyond it spans are dropped and counted.")
        .within(1, 1_000_000)
        .low("bursts of spans are lost")
        .high("memory, up to 3 KiB each")
        .default(2_048);

pub(crate) static BATCH: DefaultedKey<usize> = ConfigKey::whole("batch", "Spans per request.")
    .within(1, 10_000)
    .low("many small requests")
    .high("large requests")
    .default(512);

fn statsd(text: &str) -> Read<(String, bool)> {
    let tcp = text.starts_with("tcp://");
    let wrong = "write udp://host:port, tcp://host:port, or host:port for UDP";
    Ok((peer(text, if tcp { "tcp" } else { "udp" }).map_err(|_| wrong)?, tcp))
}

/// Reads host and port, with or without `scheme://`.
fn peer(text: &str, scheme: &str) -> Read<String> {
    let wrong = || format!("write {scheme}://host:port, or host:port");
    let rest = match text.split_once("://") {
        Some((named, rest)) if named == scheme => rest.trim_end_matches('/'),
        Some(_) => return Err(wrong()),
        None => text,
    };
    let authority: http::uri::Authority = rest.parse().map_err(|_| wrong())?;
    let whole = !authority.host().is_empty() && !rest.contains('@');
    let port = authority.port_u16().filter(|port| *port > 0);
    port.filter(|_| whole).map(|_| rest.to_owned()).ok_or_else(wrong)
}

fn graphite_prefix(text: &str) -> Read<String> {
    let fits = |c: char| c.is_ascii_graphic();
    if text.is_empty() || text.len() > PREFIX_BYTES_MAX || !text.chars().all(fits) {
        return Err(format!(
            "must be 1 to {PREFIX_BYTES_MAX} letters, digits and signs, no spaces"
        ));
    }
    Ok(text.trim_end_matches('.').to_owned())
}

/// Reads the prefix of metric names. It is used unchanged and may be empty.
fn statsd_prefix(text: &str) -> Read<String> {
    let fits = |c: char| c.is_ascii_graphic() && !":|@#".contains(c);
    if text.len() > PREFIX_BYTES_MAX || !text.chars().all(fits) {
        return Err(format!(
            "must be at most {PREFIX_BYTES_MAX} letters, digits and signs, no spaces or : | @ #"
        ));
    }
    Ok(text.to_owned())
}

/// Reads `http://host:port/path`. The default of the port is that of the protocol.
pub(crate) fn endpoint(text: &str, port: u16) -> Read<OtlpEndpoint> {
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

fn sampling(text: &str) -> Read<f64> {
    let number = text.parse::<f64>().map_err(|_| "not a number from 0 to 1".to_owned());
    within(number?, 0.0..=1.0)
}

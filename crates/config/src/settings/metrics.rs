//! The `metrics` section: the receivers to which metrics are pushed.
//!
//! Host names are not resolved. What is sent: `telemetry::metrics`. Prometheus pulls its metrics
//! and needs no configuration here.

use super::otlp;
use crate::keys::{ConfigKey, DefaultedKey, SubsectionKey, section};
use crate::reader::{SectionReader, settings};
use crate::values::{DAY, Read, word_enum};
use evenkeel_core::units::Nanos;

settings! {
    /// Receivers to which Evenkeel pushes metrics, and the metrics that each one gets.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MetricsSettings from read(metrics);

    /// A StatsD server: `host:port` or `udp://host:port` for UDP, `tcp://host:port` for TCP.
    pub statsd: Option<StatsdSink>, STATSD: ConfigKey<(String, bool)> =
        ConfigKey::opaque("statsd", statsd).example("statsd.example:8125") => statsd_sink(metrics);
    /// A Graphite server with the plaintext protocol over TCP: `host:port` or `tcp://host:port`.
    pub graphite: Option<String>, GRAPHITE: ConfigKey<String> =
        ConfigKey::text("graphite", |text| peer(text, "tcp")).example("graphite.example:2003");
    /// Prefix of the names of metrics; `{hostname}` is replaced by the name of this machine. Needs
    /// `graphite`.
    pub graphite_prefix: String, GRAPHITE_PREFIX: DefaultedKey<String> =
        ConfigKey::text("graphite_prefix", graphite_prefix)
            .range_note("1 to 200 visible characters")
            .default_with(|| "evenkeel.{hostname}".to_owned())
        => graphite_key(metrics, &GRAPHITE_PREFIX).replace("{hostname}", &hostname());
    /// `all`: each metric. `limits`: only the number of held clients of each limit, as
    /// `prefix.limit`, like Tempomat. Needs `graphite`.
    pub graphite_lines: GraphiteSelection, GRAPHITE_LINES: DefaultedKey<GraphiteSelection> =
        ConfigKey::words("graphite_lines", GraphiteSelection::WORDS)
            .default(GraphiteSelection::All) => graphite_key(metrics, &GRAPHITE_LINES);
    /// An [OpenTelemetry collector](#metricsotlp); over HTTP the path is `/v1/metrics`.
    pub otlp: Option<otlp::OtlpMetricsSettings>, OTLP: SubsectionKey =
        SubsectionKey::one("otlp", &otlp::METRICS)
        => metrics.section_if_written(&OTLP, otlp::figures);
    /// A client counts as held if the average wait of its requests is longer than this.
    pub held_above: Nanos, HELD_ABOVE: DefaultedKey<Nanos> =
        ConfigKey::duration("held_above").within(Nanos::ZERO, DAY).default(Nanos::from_secs(3));
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

section! {
    TABLE = "metrics":
        GRAPHITE, GRAPHITE_PREFIX, GRAPHITE_LINES, STATSD, STATSD_LABELS, STATSD_SMOCKRON, OTLP,
        HELD_ABOVE;
}

section! {
    /// `name`: labels are parts of the name. `tags`: labels are tags at the end of the line, as in
    /// DogStatsD. Needs `statsd`.
    STATSD_LABELS: DefaultedKey<StatsdLabels> =
        ConfigKey::words("statsd_labels", StatsdLabels::WORDS).default(StatsdLabels::Name);
    /// Also sends metrics under the names of Smockron's master, with this prefix, which may be
    /// empty: `request.status.ACCEPTED`, `request.status.DELAYED`, `request.total`, and the timer
    /// `request.delayed_by`. Needs `statsd`.
    STATSD_SMOCKRON: ConfigKey<String> = ConfigKey::text("statsd_smockron", statsd_prefix)
        .range_note("up to 200 visible characters without `:`, `@`, `#` and the vertical bar")
        .default_note("not sent").example("smockron.");
}

/// Maximum length of a prefix, in bytes.
const PREFIX_BYTES_MAX: usize = 200;

/// Reads a key that has an effect, and is shown, only if there is `graphite`.
fn graphite_key<T: Clone>(metrics: &mut SectionReader<'_, '_>, key: &'static DefaultedKey<T>) -> T {
    if metrics.has("graphite") {
        return metrics.key(key);
    }
    metrics.refuse(&[key.name()], "needs `graphite`; name it, or remove the key");
    key.preset()
}

fn statsd_sink(metrics: &mut SectionReader<'_, '_>) -> Option<StatsdSink> {
    let address = metrics.key(&STATSD);
    if !metrics.has("statsd") {
        let keys = ["statsd_labels", "statsd_smockron"];
        metrics.refuse(&keys, "needs `statsd`; name it, or remove the key");
        return None;
    }
    let labels = metrics.key(&STATSD_LABELS);
    let smockron = metrics.key(&STATSD_SMOCKRON);
    address.map(|(address, tcp)| StatsdSink { address, tcp, labels, smockron })
}

/// The host name of this machine.
fn hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

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

//! The `metrics` section: the receivers to which metrics are pushed.
//!
//! Each key is read with its default and its range; host names are not resolved. What is sent:
//! `telemetry::metrics`. Prometheus pulls its metrics and needs no configuration here.

pub mod otlp;

use super::super::reader::{Read, SectionReader, one_of, within};
use super::super::settings::{GraphiteSelection, MetricsSettings, StatsdLabels, StatsdSink};
use super::proxy::duration;
use evenkeel_core::units::Nanos;

/// Maximum length of a prefix, in bytes.
const PREFIX_BYTES_MAX: usize = 200;

/// Reads the section.
pub fn read(metrics: &mut SectionReader<'_, '_>) -> MetricsSettings {
    let statsd = statsd(metrics);
    let graphite = metrics.optional("graphite", |text| peer(text, "tcp"));
    let mut prefix = "evenkeel.{hostname}".to_owned();
    let mut graphite_lines = GraphiteSelection::All;
    let wanted = metrics.has("graphite");
    if wanted {
        prefix = metrics.value("graphite_prefix", prefix, read_prefix);
        graphite_lines = metrics.value("graphite_lines", GraphiteSelection::All, |text| {
            one_of(text, &GraphiteSelection::WORDS)
        });
    }
    for key in ["graphite_prefix", "graphite_lines"] {
        if !wanted && metrics.has(key) {
            metrics.fault(key, format!("`{key}` needs `graphite`; name it, or remove the key"));
        }
        metrics.allow(key);
    }
    let wanted = metrics.written("otlp");
    let otlp = wanted.then(|| metrics.section("otlp", otlp::figures));
    metrics.allow("otlp");
    let limit = Nanos::ZERO..=Nanos::from_secs(86_400);
    let held_above = |text: &str| within(duration(text)?, limit.clone());
    MetricsSettings {
        otlp,
        statsd,
        graphite,
        graphite_prefix: prefix.replace("{hostname}", &hostname()),
        graphite_lines,
        held_above: metrics.value("held_above", Nanos::from_secs(3), held_above),
    }
}

fn statsd(metrics: &mut SectionReader<'_, '_>) -> Option<StatsdSink> {
    let address = metrics.optional("statsd", |text| {
        let tcp = text.starts_with("tcp://");
        let wrong = "write udp://host:port, tcp://host:port, or host:port for UDP";
        Ok((peer(text, if tcp { "tcp" } else { "udp" }).map_err(|_| wrong)?, tcp))
    });
    if !metrics.has("statsd") {
        for key in ["statsd_labels", "statsd_smockron"] {
            if metrics.has(key) {
                metrics.fault(key, format!("`{key}` needs `statsd`; name it, or remove the key"));
            }
            metrics.allow(key);
        }
        return None;
    }
    let labels = |text: &str| one_of(text, &StatsdLabels::WORDS);
    let labels = metrics.value("statsd_labels", StatsdLabels::Name, labels);
    let smockron = metrics.optional("statsd_smockron", statsd_prefix);
    address.map(|(address, tcp)| StatsdSink { address, tcp, labels, smockron })
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

fn read_prefix(text: &str) -> Read<String> {
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

/// The host name of this machine.
fn hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

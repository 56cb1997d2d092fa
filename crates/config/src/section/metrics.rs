//! The `metrics` section: the receivers to which metrics are pushed.
//!
//! The keys are described in `rows::metrics`; host names are not resolved. What is sent:
//! `telemetry::metrics`. Prometheus pulls its metrics and needs no configuration here.

pub mod otlp;

use crate::reader::SectionReader;
use crate::rows::metrics as rows;
use crate::settings::{MetricsSettings, StatsdSink};

/// Reads the section.
pub fn read(metrics: &mut SectionReader<'_, '_>) -> MetricsSettings {
    let statsd = statsd(metrics);
    let graphite = metrics.key(&rows::GRAPHITE);
    let wanted = metrics.has("graphite");
    let (mut prefix, mut graphite_lines) =
        (rows::GRAPHITE_PREFIX.preset(), rows::GRAPHITE_LINES.preset());
    if wanted {
        prefix = metrics.key(&rows::GRAPHITE_PREFIX);
        graphite_lines = metrics.key(&rows::GRAPHITE_LINES);
    }
    for key in ["graphite_prefix", "graphite_lines"] {
        if !wanted && metrics.has(key) {
            metrics.fault_of(key, "needs `graphite`; name it, or remove the key");
        }
    }
    let otlp = metrics.section_if_written(&rows::OTLP, otlp::figures);
    MetricsSettings {
        otlp,
        statsd,
        graphite,
        graphite_prefix: prefix.replace("{hostname}", &hostname()),
        graphite_lines,
        held_above: metrics.key(&rows::HELD_ABOVE),
    }
}

fn statsd(metrics: &mut SectionReader<'_, '_>) -> Option<StatsdSink> {
    let address = metrics.key(&rows::STATSD);
    if !metrics.has("statsd") {
        for key in ["statsd_labels", "statsd_smockron"] {
            if metrics.has(key) {
                metrics.fault_of(key, "needs `statsd`; name it, or remove the key");
            }
        }
        return None;
    }
    let labels = metrics.key(&rows::STATSD_LABELS);
    let smockron = metrics.key(&rows::STATSD_SMOCKRON);
    address.map(|(address, tcp)| StatsdSink { address, tcp, labels, smockron })
}

/// The host name of this machine.
fn hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

//! The text format of Prometheus, version 0.0.4.
//!
//! Metric families come in the order of the table. Each family has its help and type lines, even if
//! it has no values. Label values are escaped as the format requires.

use super::metrics::{Metric, MetricKind, SERIES_FOLDED, TABLE};
use super::registry::{BOUNDS_NS, Histogram, MetricCell, Registry};
use evenkeel_core::units::SECOND;
use std::fmt::Write;

/// The media type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A value that is not counted by a handle but read from the engine for this output.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedMetric {
    /// The metric in the table.
    pub metric: &'static Metric,
    /// The label values, in the order of [`Metric::labels`].
    pub labels: Vec<String>,
    /// The current value.
    pub value: f64,
}

/// All counted and all observed values, as text.
pub fn text(registry: &Registry, observed: &[ObservedMetric]) -> String {
    let (series, folded) = registry.all();
    let mut text = String::with_capacity(32 * 1024);
    for metric in TABLE {
        let (name, kind) = (metric.name, metric.kind.name());
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", metric.help);
        for one in series.iter().filter(|one| std::ptr::eq(one.metric, *metric)) {
            cell(&mut text, metric, &one.labels, &one.cell);
        }
        for one in observed.iter().filter(|one| std::ptr::eq(one.metric, *metric)) {
            sample(&mut text, name, &labels(metric, &one.labels), one.value);
        }
        if std::ptr::eq(*metric, &SERIES_FOLDED) {
            sample(&mut text, name, "", folded as f64);
        }
    }
    text
}

fn cell(text: &mut String, metric: &Metric, values: &[String], cell: &MetricCell) {
    let labels = labels(metric, values);
    match cell {
        MetricCell::Counter(counter) => sample(text, metric.name, &labels, counter.get() as f64),
        MetricCell::Nanos(counter) => sample(text, metric.name, &labels, seconds(counter.get())),
        MetricCell::Gauge(gauge) => sample(text, metric.name, &labels, gauge.get() as f64),
        MetricCell::NanosGauge(gauge) => {
            sample(text, metric.name, &labels, gauge.get() as f64 / SECOND as f64);
        }
        MetricCell::Histogram(histogram) => spread(text, metric, &labels, histogram),
    }
}

fn spread(text: &mut String, metric: &Metric, labels: &str, histogram: &Histogram) {
    debug_assert_eq!(metric.kind, MetricKind::Histogram);
    let comma = if labels.is_empty() { "" } else { "," };
    let name = metric.name;
    let (counts, sum) = (histogram.counts(), histogram.sum());
    let bounds = BOUNDS_NS.iter().map(|bound| seconds(*bound).to_string());
    let mut so_far = 0;
    for (bound, count) in bounds.chain(["+Inf".into()]).zip(counts) {
        so_far += count;
        let labels = format!("{labels}{comma}le=\"{bound}\"");
        sample(text, &format!("{name}_bucket"), &labels, so_far as f64);
    }
    sample(text, &format!("{name}_sum"), labels, seconds(sum));
    sample(text, &format!("{name}_count"), labels, so_far as f64);
}

fn sample(text: &mut String, name: &str, labels: &str, value: f64) {
    let _ = match labels {
        "" => writeln!(text, "{name} {value}"),
        labels => writeln!(text, "{name}{{{labels}}} {value}"),
    };
}

fn labels(metric: &Metric, values: &[String]) -> String {
    let mut text = String::new();
    for (name, value) in metric.labels.iter().zip(values) {
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{name}=\"{}\"", escaped(value));
    }
    text
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / SECOND as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{CHARGED, COST, KEYS_MAX, RELOADS};

    #[test]
    fn every_family_is_there_and_values_are_in_seconds() {
        let registry = Registry::default();
        registry.counter(&RELOADS, &["ok"]).increment(3);
        registry.nanos(&CHARGED, &[]).increment(1_250_000_000);
        let cost = registry.histogram(&COST, &[]);
        for nanos in [50_000, 100_000, 2_000_000_000, 300_000_000_000] {
            cost.record(nanos);
        }
        let labels = vec!["proxy".into(), "a \"b\"\\\n".into()];
        let observed = ObservedMetric { metric: &KEYS_MAX, labels, value: 1e6 };
        let text = text(&registry, &[observed]);
        for line in [
            "evenkeel_config_reloads_total{result=\"ok\"} 3",
            "evenkeel_cost_seconds_total 1.25",
            "evenkeel_request_cost_seconds_bucket{le=\"0.0001\"} 2",
            "evenkeel_request_cost_seconds_bucket{le=\"2.5\"} 3",
            "evenkeel_request_cost_seconds_bucket{le=\"120\"} 3",
            "evenkeel_request_cost_seconds_bucket{le=\"+Inf\"} 4",
            "evenkeel_request_cost_seconds_count 4",
            "evenkeel_request_cost_seconds_sum 302.00015",
            "evenkeel_table_keys_max{door=\"proxy\",limit=\"a \\\"b\\\"\\\\\\n\"} 1000000",
            "# TYPE evenkeel_up gauge",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert_eq!(text.matches("# HELP ").count(), TABLE.len());
    }
}

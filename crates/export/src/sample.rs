//! Every series as one number with one dotted name, which is all that Graphite and StatsD accept.
//!
//! The name is that of the metric without `evenkeel_`, followed by the label values; label values
//! consist of letters, digits, `_` and `-`. A histogram becomes two numbers: the count of its
//! values and their sum. `graphite` and `statsd` send the numbers; `prometheus` has all labels and
//! buckets.

use evenkeel_core::units::SECOND;
use evenkeel_telemetry::metrics::{Metric, MetricKind, SERIES_FOLDED};
use evenkeel_telemetry::prometheus::ObservedMetric;
use evenkeel_telemetry::registry::{MetricCell, MetricSeries, Registry, Timings};

/// One number with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSample {
    /// The dotted name, label values included.
    pub name: String,
    /// The dotted name without label values.
    pub bare: String,
    /// The labels as tags: `name:value`, separated by commas.
    pub tags: String,
    /// Whether the value only grows.
    pub counts: bool,
    /// The current value.
    pub value: f64,
}

/// Single durations with one name.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricTimings {
    /// The dotted name as in [`MetricSample`], without `_seconds`.
    pub name: String,
    /// The name without label values, as in [`MetricSample`].
    pub bare: String,
    /// The labels as tags, as in [`MetricSample`].
    pub tags: String,
    /// The durations in milliseconds.
    pub values: Vec<f64>,
    /// The share of all durations that `values` holds, as a fraction from 0 to 1.
    pub rate: f64,
}

/// The single durations since the last call, of each histogram that keeps them.
#[must_use]
pub fn timings(registry: &Registry) -> Vec<MetricTimings> {
    let timing = |(series, timings): (MetricSeries, Timings)| {
        let MetricSeries { metric, labels, .. } = &series;
        let named = |labels| named(metric, labels, "").replacen("_seconds", "", 1);
        MetricTimings {
            name: named(labels),
            bare: named(&[]),
            tags: tags(metric, labels),
            rate: timings.values.len() as f64 / timings.count as f64,
            values: timings.values.iter().map(|nanos| *nanos as f64 / 1e6).collect(),
        }
    };
    registry.timings().into_iter().map(timing).collect()
}

/// All counted and all observed values.
#[must_use]
pub fn samples(registry: &Registry, observed: &[ObservedMetric]) -> Vec<MetricSample> {
    let (series, folded) = registry.all();
    let mut all = Vec::with_capacity(series.len() + observed.len() + 1);
    let mut push = |metric: &Metric, labels: &[String], end: &str, value: f64| {
        let (name, bare) = (named(metric, labels, end), named(metric, &[], end));
        let tags = tags(metric, labels);
        all.push(MetricSample {
            name,
            bare,
            tags,
            counts: metric.kind != MetricKind::Gauge,
            value,
        });
    };
    for one in &series {
        let (metric, labels) = (one.metric, &one.labels);
        match &one.cell {
            MetricCell::Counter(counter) => push(metric, labels, "", counter.get() as f64),
            MetricCell::Nanos(counter) => push(metric, labels, "", seconds(counter.get())),
            MetricCell::Gauge(gauge) => push(metric, labels, "", gauge.get() as f64),
            MetricCell::NanosGauge(gauge) => {
                push(metric, labels, "", gauge.get() as f64 / SECOND as f64);
            }
            MetricCell::Histogram(spread) => {
                push(metric, labels, ".count", spread.counts().iter().sum::<u64>() as f64);
                push(metric, labels, ".sum", seconds(spread.sum()));
            }
        }
    }
    observed.iter().for_each(|one| push(one.metric, &one.labels, "", one.value));
    push(&SERIES_FOLDED, &[], "", folded as f64);
    all
}

fn named(metric: &Metric, labels: &[String], end: &str) -> String {
    let mut name = metric.name.trim_start_matches("evenkeel_").to_owned();
    for label in labels {
        name.push('.');
        name.push_str(&word(label));
    }
    name + end
}

fn tags(metric: &Metric, labels: &[String]) -> String {
    let pairs = metric.labels.iter().zip(labels);
    let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}:{}", tag(value))).collect();
    pairs.join(",")
}

/// Text as the value of a tag; characters that would end the tag or the line become `_`.
fn tag(text: &str) -> String {
    let ends = |c: char| c.is_control() || c.is_whitespace() || ",|#:@".contains(c);
    text.chars().map(|c| if ends(c) { '_' } else { c }).collect()
}

/// Text as one part of a dotted name; other characters become `_`, and an empty text `none`.
#[must_use]
pub fn word(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    match text {
        "" => "none".to_owned(),
        _ => text.chars().map(|c| if fits(c) { c } else { '_' }).collect(),
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / SECOND as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_telemetry::metrics::{BUILD, CHARGED, DECISIONS, KEYS_MAX, WAITS};

    #[test]
    fn labels_are_tags_that_end_no_line() {
        let labels = vec!["proxy".into(), "a b|c,d\n#e:f\u{e4}".into()];
        let observed = [ObservedMetric { metric: &KEYS_MAX, labels, value: 7.0 }];
        let found = samples(&Registry::default(), &observed);
        assert_eq!(found[0].bare, "table_keys_max");
        assert_eq!(found[0].tags, "door:proxy,limit:a_b_c_d__e_f\u{e4}");
        assert_eq!((found[1].bare.as_str(), found[1].tags.as_str()), ("series_folded_total", ""));
    }

    #[test]
    fn every_series_has_a_name_of_its_own() {
        let registry = Registry::default();
        registry.counter(&DECISIONS, &["allow", "", "false"]).increment(3);
        registry.nanos(&CHARGED, &[]).increment(1_500_000_000);
        registry.gauge(&BUILD, &["0.1.0"]).set(1);
        let waits = registry.histogram(&WAITS, &["debt"]);
        [1_000_000_000, 2_000_000_000].into_iter().for_each(|wait| waits.record(wait));
        let labels = vec!["proxy".into(), "a b.c\n\u{e4}".into()];
        let observed = [ObservedMetric { metric: &KEYS_MAX, labels, value: 7.0 }];
        let found = samples(&registry, &observed);
        let found: Vec<_> = found.iter().map(|s| (s.name.as_str(), s.counts, s.value)).collect();
        assert_eq!(
            found,
            [
                ("decisions_total.allow.none.false", true, 3.0),
                ("cost_seconds_total", true, 1.5),
                ("build_info.0_1_0", false, 1.0),
                ("wait_seconds.debt.count", true, 2.0),
                ("wait_seconds.debt.sum", true, 3.0),
                ("table_keys_max.proxy.a_b_c__", false, 7.0),
                ("series_folded_total", true, 0.0),
            ]
        );
    }
}

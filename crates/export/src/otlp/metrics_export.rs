//! Metrics for OpenTelemetry: the whole table, every few seconds, to a collector.
//!
//! Sums and histograms are cumulative since the start of the program. So the next message covers
//! whatever an unreachable collector missed, and no message is kept or sent again.
//! `telemetry::metrics` has the table; `client` delivers the messages; `metrics::push` runs this
//! sender.

use super::client::{METRICS_SERVICE, OtlpClient, OtlpDeliveryError};
use crate::push_counts::PushCounts;
use evenkeel_config::settings::otlp::OtlpMetricsSettings;
use evenkeel_core::units::{SECOND, Time};
use evenkeel_telemetry::metrics::{self, MetricKind, SERIES_FOLDED, TABLE};
use evenkeel_telemetry::otlp::wire::metrics::{
    AggregationTemporality, ExportMetricsServiceRequest, ExportMetricsServiceResponse, Gauge,
    Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
    metric, number_data_point,
};
use evenkeel_telemetry::otlp::wire::{InstrumentationScope, KeyValue, Resource, text};
use evenkeel_telemetry::prometheus::ObservedMetric;
use evenkeel_telemetry::registry::{self, BOUNDS_NS, MetricCell, MetricSeries};
use prost::Message;
use tokio::sync::mpsc::Receiver;

/// Sums and histograms count from the start of the program.
const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// All values at one moment.
pub struct OtlpReading {
    /// The moment.
    pub now: Time,
    /// The values that are counted by handles.
    pub series: Vec<MetricSeries>,
    /// The number of label combinations that were folded into `other`.
    pub folded: u64,
    /// The values that were read from the engine.
    pub observed: Vec<ObservedMetric>,
}

/// Sends metrics to a collector.
pub struct OtlpMetricsSender {
    to: OtlpMetricsSettings,
    client: OtlpClient,
    /// The time at which counting began.
    started: Time,
    counts: PushCounts,
    told: bool,
}

impl OtlpMetricsSender {
    /// Makes a sender for a program that began to count at `started`.
    #[must_use]
    pub fn new(to: OtlpMetricsSettings, started: Time, counts: PushCounts) -> OtlpMetricsSender {
        let client = OtlpClient::new(to.collector.clone(), METRICS_SERVICE);
        OtlpMetricsSender { to, client, started, counts, told: false }
    }

    /// Sends each reading from `queue` until the queue is closed.
    pub async fn send(mut self, mut queue: Receiver<OtlpReading>) {
        while let Some(look) = queue.recv().await {
            let (count, request) = self.request(&look);
            match self.client.deliver(&request).await {
                Ok(answer) => self.taken(count, &answer),
                Err(error) => {
                    self.counts.failures.increment(1);
                    self.counts.dropped.increment(count);
                    self.tell(&error);
                }
            }
        }
    }

    fn taken(&mut self, count: u64, answer: &[u8]) {
        let answer = ExportMetricsServiceResponse::decode(answer).unwrap_or_default();
        let part = answer.partial_success.unwrap_or_default();
        let refused = u64::try_from(part.rejected_data_points).unwrap_or(0).min(count);
        self.counts.lines.increment(count - refused);
        self.counts.dropped.increment(refused);
        if std::mem::take(&mut self.told) {
            let endpoint = &self.to.collector.endpoint;
            tracing::info!(
                target: "evenkeel::metrics", %endpoint, "the collector accepts metrics again"
            );
        }
    }

    fn tell(&mut self, error: &OtlpDeliveryError) {
        if !std::mem::replace(&mut self.told, true) {
            let endpoint = &self.to.collector.endpoint;
            tracing::warn!(
                target: "evenkeel::metrics", %endpoint, %error,
                "the collector does not accept metrics; the next export contains the full totals"
            );
        }
    }

    /// The message, and the number of data points in it.
    fn request(&self, look: &OtlpReading) -> (u64, ExportMetricsServiceRequest) {
        let named = |(key, value): &(String, String)| text(key, value.as_str());
        let service = text("service.name", self.to.service.as_str());
        let attributes: Vec<KeyValue> =
            std::iter::once(service).chain(self.to.attributes.iter().map(named)).collect();
        let scope = InstrumentationScope {
            name: "evenkeel".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let all: Vec<(u64, Metric)> =
            TABLE.iter().filter_map(|metric| self.metric(metric, look)).collect();
        let count = all.iter().map(|(points, _)| points).sum();
        let metrics = all.into_iter().map(|(_, metric)| metric).collect();
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics }];
        let resource = Some(Resource { attributes });
        let resource_metrics = vec![ResourceMetrics { resource, scope_metrics }];
        (count, ExportMetricsServiceRequest { resource_metrics })
    }

    /// One metric with all its data points and their number; `None` if it has no point.
    fn metric(
        &self,
        metric: &'static metrics::Metric,
        look: &OtlpReading,
    ) -> Option<(u64, Metric)> {
        let is = |other: &'static metrics::Metric| std::ptr::eq(metric, other);
        let (start, now) = (self.started.0, look.now.0);
        let number = |labels: &[String], value: f64| NumberDataPoint {
            start_time_unix_nano: start,
            time_unix_nano: now,
            value: Some(number_data_point::Value::AsDouble(value)),
            attributes: attributes(metric, labels),
        };
        let (mut numbers, mut spreads) = (Vec::new(), Vec::new());
        for one in look.series.iter().filter(|one| is(one.metric)) {
            match &one.cell {
                MetricCell::Counter(counter) => {
                    numbers.push(number(&one.labels, counter.get() as f64))
                }
                MetricCell::Nanos(counter) => {
                    numbers.push(number(&one.labels, seconds(counter.get())))
                }
                MetricCell::Gauge(gauge) => numbers.push(number(&one.labels, gauge.get() as f64)),
                MetricCell::NanosGauge(gauge) => {
                    numbers.push(number(&one.labels, gauge.get() as f64 / SECOND as f64));
                }
                MetricCell::Histogram(spread) => spreads.push(HistogramDataPoint {
                    start_time_unix_nano: start,
                    time_unix_nano: now,
                    attributes: attributes(metric, &one.labels),
                    ..point(spread)
                }),
            }
        }
        let observed = look.observed.iter().filter(|one| is(one.metric));
        numbers.extend(observed.map(|one| number(&one.labels, one.value)));
        if is(&SERIES_FOLDED) {
            numbers.push(number(&[], look.folded as f64));
        }
        let count = (numbers.len() + spreads.len()) as u64;
        let data = match metric.kind {
            MetricKind::Gauge => metric::Data::Gauge(Gauge { data_points: numbers }),
            MetricKind::Counter => metric::Data::Sum(Sum {
                data_points: numbers,
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            }),
            MetricKind::Histogram => metric::Data::Histogram(Histogram {
                data_points: spreads,
                aggregation_temporality: CUMULATIVE,
            }),
        };
        let (name, description) = (metric.name.to_owned(), metric.help.to_owned());
        let metric = Metric { name, description, unit: unit(metric.unit), data: Some(data) };
        (count > 0).then_some((count, metric))
    }
}

fn point(spread: &registry::Histogram) -> HistogramDataPoint {
    let (counts, sum) = (spread.counts(), spread.sum());
    HistogramDataPoint {
        count: counts.iter().sum(),
        sum: Some(seconds(sum)),
        bucket_counts: counts.to_vec(),
        explicit_bounds: BOUNDS_NS.iter().map(|bound| seconds(*bound)).collect(),
        ..HistogramDataPoint::default()
    }
}

fn attributes(metric: &metrics::Metric, labels: &[String]) -> Vec<KeyValue> {
    metric.labels.iter().zip(labels).map(|(name, value)| text(name, value.as_str())).collect()
}

/// A unit in the form of the Unified Code for Units of Measure; unknown units are put in braces.
fn unit(unit: &str) -> String {
    match unit {
        "seconds" | "CPU-seconds" => "s".to_owned(),
        "milliseconds" => "ms".to_owned(),
        "bytes" => "By".to_owned(),
        "state" => "1".to_owned(),
        other => format!("{{{other}}}"),
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / SECOND as f64
}

//! The values of all metrics: counters, gauges and histograms behind cheap handles.
//!
//! A handle is a shared atomic, so counting needs no lock, no look-up and no global. Histograms
//! keep counts for fixed bounds and nothing else. (The exporter of the `metrics` crate keeps every
//! single value until the next scrape, which costs 16 bytes and four times the time per request;
//! and its counters hold whole numbers only.) The table of metrics is in `metrics`; the text format
//! in `prometheus`.

use super::metrics::{Metric, MetricKind};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// The maximum number of label combinations of one metric; more are counted as `other`.
pub const SERIES_MAX: usize = 512;

/// The bounds of all histograms, in nanoseconds (of time or CPU time): 100 us to 2 minutes.
pub const BOUNDS_NS: [u64; 19] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    120_000_000_000,
];

/// A number that only grows.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Adds `n`.
    pub fn increment(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The current number of something.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    /// Adds one until the returned value is dropped.
    #[must_use]
    pub fn hold(&self) -> GaugeGuard {
        self.0.fetch_add(1, Relaxed);
        GaugeGuard(self.clone())
    }

    /// Sets the number.
    pub fn set(&self, n: i64) {
        self.0.store(n, Relaxed);
    }

    /// The current number.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// One unit of a [`Gauge`]; dropping it subtracts one.
#[derive(Debug)]
pub struct GaugeGuard(Gauge);

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// The distribution of values in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Histogram(Arc<HistogramCells>);

/// Single values of a histogram in the order of arrival, for outputs that send each value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// The values in nanoseconds; a thousand at most between two calls of [`Registry::timings`].
    pub values: Vec<u64>,
    /// The number of all values, those beyond the thousand included.
    pub count: u64,
}

/// The maximum number of single values kept between two calls of [`Registry::timings`].
const TIMINGS_MAX: usize = 1_000;

#[derive(Debug, Default)]
struct HistogramCells {
    /// The number of values in each interval; the last interval is above all bounds.
    counts: [AtomicU64; BOUNDS_NS.len() + 1],
    sum: AtomicU64,
    /// The values since the last [`Registry::timings`]; `None` if single values are not kept.
    timings: Option<Mutex<Timings>>,
}

impl Histogram {
    /// A histogram that also keeps single values. `record` then takes a lock, so use it only for
    /// values that are seldom recorded.
    fn timer() -> Histogram {
        Histogram(Arc::new(HistogramCells {
            timings: Some(Mutex::default()),
            ..HistogramCells::default()
        }))
    }

    /// Counts one value.
    pub fn record(&self, nanos: u64) {
        let place = BOUNDS_NS.partition_point(|bound| *bound < nanos);
        self.0.counts[place].fetch_add(1, Relaxed);
        self.0.sum.fetch_add(nanos, Relaxed);
        if let Some(timings) = &self.0.timings {
            let mut timings = timings.lock();
            timings.count += 1;
            if timings.values.len() < TIMINGS_MAX {
                timings.values.push(nanos);
            }
        }
    }

    /// The single values since the last call; `None` if the histogram keeps none.
    fn take_timings(&self) -> Option<Timings> {
        let timings = self.0.timings.as_ref()?;
        Some(std::mem::take(&mut *timings.lock()))
    }

    /// The number of values in each interval between the bounds, and above the last bound.
    pub fn counts(&self) -> [u64; BOUNDS_NS.len() + 1] {
        std::array::from_fn(|place| self.0.counts[place].load(Relaxed))
    }

    /// The sum of all values, in nanoseconds.
    pub fn sum(&self) -> u64 {
        self.0.sum.load(Relaxed)
    }
}

/// One handle of any kind.
#[derive(Clone, Debug)]
pub enum MetricCell {
    /// A whole number that only grows.
    Counter(Counter),
    /// A number of nanoseconds that only grows, shown in seconds.
    Nanos(Counter),
    /// A whole number that goes up and down.
    Gauge(Gauge),
    /// A number of nanoseconds that goes up and down, shown in seconds.
    NanosGauge(Gauge),
    /// A distribution of nanoseconds, shown in seconds.
    Histogram(Histogram),
}

/// One metric with its label values and its value.
#[derive(Clone, Debug)]
pub struct MetricSeries {
    /// The metric in the table.
    pub metric: &'static Metric,
    /// The label values, in the order of [`Metric::labels`].
    pub labels: Vec<String>,
    /// The handle with the value.
    pub cell: MetricCell,
}

/// All series for which handles were made.
#[derive(Debug, Default)]
pub struct Registry {
    series: Mutex<Vec<MetricSeries>>,
    folded: Counter,
}

impl Registry {
    /// The counter for these label values; each call with the same values returns the same counter.
    pub fn counter(&self, metric: &'static Metric, labels: &[&str]) -> Counter {
        debug_assert_eq!(metric.kind, MetricKind::Counter);
        match self.cell(metric, labels, || MetricCell::Counter(Counter::default())) {
            MetricCell::Counter(counter) | MetricCell::Nanos(counter) => counter,
            _ => Counter::default(),
        }
    }

    /// A counter of nanoseconds, shown as seconds.
    pub fn nanos(&self, metric: &'static Metric, labels: &[&str]) -> Counter {
        debug_assert_eq!(metric.kind, MetricKind::Counter);
        match self.cell(metric, labels, || MetricCell::Nanos(Counter::default())) {
            MetricCell::Counter(counter) | MetricCell::Nanos(counter) => counter,
            _ => Counter::default(),
        }
    }

    /// The gauge for these label values; each call with the same values returns the same gauge.
    pub fn gauge(&self, metric: &'static Metric, labels: &[&str]) -> Gauge {
        debug_assert_eq!(metric.kind, MetricKind::Gauge);
        match self.cell(metric, labels, || MetricCell::Gauge(Gauge::default())) {
            MetricCell::Gauge(gauge) | MetricCell::NanosGauge(gauge) => gauge,
            _ => Gauge::default(),
        }
    }

    /// A gauge of nanoseconds, shown as seconds.
    pub fn nanos_gauge(&self, metric: &'static Metric, labels: &[&str]) -> Gauge {
        debug_assert_eq!(metric.kind, MetricKind::Gauge);
        match self.cell(metric, labels, || MetricCell::NanosGauge(Gauge::default())) {
            MetricCell::Gauge(gauge) | MetricCell::NanosGauge(gauge) => gauge,
            _ => Gauge::default(),
        }
    }

    /// The histogram for these label values; each call with the same values returns the same
    /// histogram.
    pub fn histogram(&self, metric: &'static Metric, labels: &[&str]) -> Histogram {
        debug_assert_eq!(metric.kind, MetricKind::Histogram);
        match self.cell(metric, labels, || MetricCell::Histogram(Histogram::default())) {
            MetricCell::Histogram(histogram) => histogram,
            _ => Histogram::default(),
        }
    }

    /// A histogram that also keeps its single values until the next [`Registry::timings`].
    pub fn timer(&self, metric: &'static Metric, labels: &[&str]) -> Histogram {
        debug_assert_eq!(metric.kind, MetricKind::Histogram);
        match self.cell(metric, labels, || MetricCell::Histogram(Histogram::timer())) {
            MetricCell::Histogram(histogram) => histogram,
            _ => Histogram::default(),
        }
    }

    /// The single values since the last call, for each histogram made by [`Registry::timer`].
    pub fn timings(&self) -> Vec<(MetricSeries, Timings)> {
        let series = self.series.lock();
        let taken = series.iter().filter_map(|one| match &one.cell {
            MetricCell::Histogram(histogram) => Some((one.clone(), histogram.take_timings()?)),
            _ => None,
        });
        taken.filter(|(_, timings)| timings.count > 0).collect()
    }

    /// All series, and the number of label combinations that were folded into `other`.
    pub fn all(&self) -> (Vec<MetricSeries>, u64) {
        (self.series.lock().clone(), self.folded.get())
    }

    /// Calls `each` with the label values and the value of each counter of this metric.
    pub fn visit(&self, metric: &'static Metric, mut each: impl FnMut(&[String], u64)) {
        for series in self.series.lock().iter() {
            if let (true, MetricCell::Counter(counter) | MetricCell::Nanos(counter)) =
                (std::ptr::eq(series.metric, metric), &series.cell)
            {
                each(&series.labels, counter.get());
            }
        }
    }

    /// Finds a series or makes it. Beyond [`SERIES_MAX`] series of a metric, it returns the one
    /// with all labels `other`.
    fn cell(
        &self,
        metric: &'static Metric,
        labels: &[&str],
        make: impl FnOnce() -> MetricCell,
    ) -> MetricCell {
        debug_assert_eq!(metric.labels.len(), labels.len(), "{}", metric.name);
        let mut all = self.series.lock();
        let is = |series: &&MetricSeries, labels: &[&str]| {
            std::ptr::eq(series.metric, metric) && series.labels == labels
        };
        if let Some(found) = all.iter().find(|series| is(series, labels)) {
            return found.cell.clone();
        }
        let other = vec!["other"; labels.len()];
        let count = all.iter().filter(|series| std::ptr::eq(series.metric, metric)).count();
        let labels = if count < SERIES_MAX { labels } else { &other };
        if count >= SERIES_MAX {
            self.folded.increment(1);
            if let Some(found) = all.iter().find(|series| is(series, labels)) {
                return found.cell.clone();
            }
        }
        let labels = labels.iter().map(ToString::to_string).collect();
        let cell = make();
        all.push(MetricSeries { metric, labels, cell: cell.clone() });
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{CONNECTIONS, DECISIONS, WAITS};

    #[test]
    fn the_same_labels_mean_the_same_series() {
        let registry = Registry::default();
        registry.counter(&DECISIONS, &["hold", "ip", "false"]).increment(2);
        registry.counter(&DECISIONS, &["hold", "ip", "false"]).increment(3);
        assert_eq!(registry.counter(&DECISIONS, &["hold", "ip", "false"]).get(), 5);
        assert_eq!(registry.counter(&DECISIONS, &["hold", "net", "false"]).get(), 0);
    }

    #[test]
    fn too_many_label_values_are_counted_together() {
        let registry = Registry::default();
        for n in 0..SERIES_MAX + 10 {
            registry.counter(&DECISIONS, &["hold", &n.to_string(), "false"]).increment(1);
        }
        let (series, folded) = registry.all();
        assert_eq!((series.len(), folded), (SERIES_MAX + 1, 10));
        assert_eq!(registry.counter(&DECISIONS, &["hold", "another", "false"]).get(), 10);
    }

    #[test]
    fn what_is_held_is_counted_until_it_is_dropped() {
        let gauge = Registry::default().gauge(&CONNECTIONS, &["proxy"]);
        let held = (gauge.hold(), gauge.hold());
        assert_eq!(gauge.get(), 2);
        drop(held);
        assert_eq!(gauge.get(), 0);
    }

    #[test]
    fn a_value_on_a_bound_lies_within_it() {
        let histogram = Registry::default().histogram(&WAITS, &["debt"]);
        for nanos in [0, BOUNDS_NS[0], BOUNDS_NS[0] + 1, u64::MAX >> 1] {
            histogram.record(nanos);
        }
        let counts = histogram.counts();
        assert_eq!((counts[0], counts[1], counts[BOUNDS_NS.len()]), (2, 1, 1));
        assert_eq!(counts.iter().sum::<u64>(), 4);
    }
}

//! The thread that pushes metrics to Graphite, StatsD and OpenTelemetry collectors.
//!
//! The thread has its own runtime, so a slow network delays nothing else. Once a second it reads
//! all metrics and puts them into queues; other tasks send them (`graphite`, `statsd`,
//! `otlp::metrics_export`). Dropping the thread's handle ends it without waiting for pending lines.

use super::graphite::{self, GRAPHITE_TIMEOUTS, GraphiteBatch, QUEUE_SECONDS_MAX};
use super::push_counts::PushCounts;
use super::sample::{samples, timings};
use super::statsd::{self, StatsdSender};
use crate::otlp::metrics_export;
use evenkeel_config::settings::MetricsSettings;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_runtime::clock::Clock;
use evenkeel_runtime::thread::OwnedThread;
use evenkeel_telemetry::Watch;
use evenkeel_telemetry::prometheus::ObservedMetric;
use evenkeel_telemetry::registry::Registry;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};

/// The time between two readings of all metrics.
const PUSH_PERIOD: Duration = Duration::from_secs(1);

/// Reads the values that are not counted by handles, as they are at this moment.
pub type ObserveMetrics = Box<dyn Fn() -> Vec<ObservedMetric> + Send>;

/// The running thread; it ends when this is dropped.
pub type PushThread = OwnedThread<oneshot::Sender<()>>;

/// Starts the thread; `None` if no destination is configured.
///
/// # Errors
/// Returns the error of the system if the thread or its runtime cannot be created.
pub fn start(
    settings: &MetricsSettings,
    watch: &Arc<Watch>,
    clock: Clock,
    look: ObserveMetrics,
) -> io::Result<Option<PushThread>> {
    let MetricsSettings { graphite, statsd, otlp, .. } = settings;
    if graphite.is_none() && statsd.is_none() && otlp.is_none() {
        return Ok(None);
    }
    let (stop, stopped) = oneshot::channel();
    let pusher =
        MetricsPusher { settings: settings.clone(), watch: Arc::clone(watch), clock, look };
    OwnedThread::serve("metrics", stop, (), move || pusher.run(stopped)).map(Some)
}

struct MetricsPusher {
    settings: MetricsSettings,
    watch: Arc<Watch>,
    clock: Clock,
    look: ObserveMetrics,
}

impl MetricsPusher {
    async fn run(self, stopped: oneshot::Receiver<()>) {
        tokio::select! {
            () = self.push() => {}
            // An error means that the sender was dropped, which is the signal to stop.
            _ = stopped => {}
        }
    }

    async fn push(&self) {
        let registry = self.watch.registry();
        let to_graphite = self.settings.graphite.clone().map(|address| {
            let (batches, queue) = mpsc::channel(QUEUE_SECONDS_MAX);
            let counts = PushCounts::new(registry, "graphite");
            tokio::spawn(graphite::send(
                address,
                queue,
                counts.clone(),
                self.clock,
                GRAPHITE_TIMEOUTS,
            ));
            (batches, counts)
        });
        let start = samples(registry, &(self.look)());
        let to_statsd = self.settings.statsd.clone().map(|address| {
            let (looks, queue) = mpsc::channel(1);
            let sender = StatsdSender::new(address, &start, PushCounts::new(registry, "statsd"));
            tokio::spawn(sender.send(queue));
            looks
        });
        let mut to_collector = self.settings.otlp.clone().map(|to| {
            let (looks, queue) = mpsc::channel(1);
            let every = to.every;
            let counts = PushCounts::new(registry, "otlp");
            tokio::spawn(
                metrics_export::OtlpMetricsSender::new(to, self.watch.started, counts).send(queue),
            );
            CollectorQueue { looks, every, next: Time::ZERO }
        });
        let mut seconds = interval(PUSH_PERIOD);
        seconds.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            seconds.tick().await;
            let observed = (self.look)();
            let samples = samples(registry, &observed);
            if let Some((batches, counts)) = &to_graphite {
                let MetricsSettings { graphite_prefix, graphite_lines, .. } = &self.settings;
                let second = self.clock.now().second();
                let batch =
                    graphite::batch(graphite_prefix, *graphite_lines, &samples, &observed, second);
                hand_over(batches, batch, counts);
            }
            if let Some(collected) = &mut to_collector {
                collected.look(self.clock.now(), registry, &observed);
            }
            if let Some(looks) = &to_statsd {
                // If the queue is full, these counts are included in the next message.
                if let Ok(room) = looks.try_reserve() {
                    room.send(statsd::StatsdReading { samples, timings: timings(registry) });
                }
            }
        }
    }
}

/// The queue to the collector, and when the next message is due.
struct CollectorQueue {
    looks: mpsc::Sender<metrics_export::OtlpReading>,
    every: Duration,
    next: Time,
}

impl CollectorQueue {
    fn look(&mut self, now: Time, registry: &Registry, observed: &[ObservedMetric]) {
        if now < self.next {
            return;
        }
        self.next = now.plus(Nanos(u64::try_from(self.every.as_nanos()).unwrap_or(u64::MAX)));
        let (series, folded) = registry.all();
        // If the previous message still waits, this one is dropped; the next one covers its values.
        let _ = self.looks.try_send(metrics_export::OtlpReading {
            now,
            series,
            folded,
            observed: observed.to_vec(),
        });
    }
}

/// Puts a batch into the queue. The sending task drops old batches to make room; if the queue is
/// full nevertheless, the new batch is dropped.
fn hand_over(batches: &mpsc::Sender<GraphiteBatch>, batch: GraphiteBatch, counts: &PushCounts) {
    if let Err(TrySendError::Full(batch) | TrySendError::Closed(batch)) = batches.try_send(batch) {
        counts.dropped.increment(batch.lines);
    }
}

#[cfg(test)]
mod tests;

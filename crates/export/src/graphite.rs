//! Metrics for Graphite: lines of `name value seconds`, sent each second over TCP.
//!
//! A Graphite that is unreachable or slow delays no request: the queue for it is bounded, and lines
//! that do not fit are dropped and counted. Sending a line twice is harmless, so a batch that a
//! broken connection may have swallowed is sent again. `sample` makes the numbers; `push` runs this
//! sender.

use super::push_counts::PushCounts;
use super::sample::{MetricSample, word};
use evenkeel_config::settings::GraphiteSelection;
use evenkeel_runtime::clock::Clock;
use evenkeel_telemetry::metrics::CLIENTS_HELD;
use evenkeel_telemetry::prometheus::ObservedMetric;
use evenkeel_telemetry::sampler::WarningThrottle;
use std::fmt::Write;
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

/// The maximum number of seconds of which lines wait.
pub const QUEUE_SECONDS_MAX: usize = 60;
/// The maximum length of an attempt with its pause, in seconds, plus one.
const ATTEMPT_SECONDS_MAX: usize = 10;

/// The time limits of the connection to Graphite.
#[derive(Clone, Copy, Debug)]
pub struct GraphiteTimeouts {
    /// The maximum time to connect.
    pub connect: Duration,
    /// The maximum time to write the lines of one second.
    pub write: Duration,
    /// The pause between two attempts.
    pub pause: Duration,
}

/// The limits in production. Invariant: their sum is less than `ATTEMPT_SECONDS_MAX`.
pub const GRAPHITE_TIMEOUTS: GraphiteTimeouts = GraphiteTimeouts {
    connect: Duration::from_secs(3),
    write: Duration::from_secs(5),
    pause: Duration::from_secs(1),
};

/// The lines of one second.
#[derive(Debug)]
pub struct GraphiteBatch {
    /// The text of the lines.
    pub text: String,
    /// The number of lines.
    pub lines: u64,
}

/// Makes the batch of one second. `Lines::Limits` includes only the number of held clients of each
/// limit.
#[must_use]
pub fn batch(
    prefix: &str,
    lines: GraphiteSelection,
    samples: &[MetricSample],
    observed: &[ObservedMetric],
    second: u64,
) -> GraphiteBatch {
    let mut batch = GraphiteBatch { text: String::new(), lines: 0 };
    let mut push = |name: &str, value: f64| {
        batch.lines += 1;
        // Writing to a String cannot fail.
        let _ = writeln!(batch.text, "{prefix}.{name} {value} {second}");
    };
    match lines {
        GraphiteSelection::All => {
            samples.iter().for_each(|sample| push(&sample.name, sample.value))
        }
        GraphiteSelection::Limits => {
            let held = observed.iter().filter(|one| std::ptr::eq(one.metric, &CLIENTS_HELD));
            held.for_each(|one| {
                push(&one.labels.last().map_or_else(String::new, |l| word(l)), one.value)
            });
        }
    }
    batch
}

/// Sends each batch from `queue` until the queue is closed.
pub async fn send(
    address: String,
    mut queue: Receiver<GraphiteBatch>,
    counts: PushCounts,
    clock: Clock,
    patience: GraphiteTimeouts,
) {
    let mut connection = GraphiteConnection { address, stream: None, patience };
    let complaints = WarningThrottle::default();
    let mut failing = false;
    while let Some(mut batch) = queue.recv().await {
        while let Err(error) = connection.deliver(batch.text.as_bytes()).await {
            connection.stream = None;
            failing = true;
            counts.failures.increment(1);
            if complaints.ask(clock.now()) {
                tracing::warn!(
                    target: "evenkeel::metrics", address = connection.address, %error,
                    "Graphite does not accept metrics; the lines of the last minute are kept"
                );
            }
            tokio::time::sleep(patience.pause).await;
            make_room(&mut batch, &mut queue, &counts);
        }
        counts.lines.increment(batch.lines);
        if std::mem::take(&mut failing) {
            let address = &connection.address;
            tracing::info!(target: "evenkeel::metrics", address, "Graphite accepts metrics again");
        }
    }
}

/// Drops the oldest batches if the queue would be full before the next attempt.
fn make_room(batch: &mut GraphiteBatch, queue: &mut Receiver<GraphiteBatch>, counts: &PushCounts) {
    while queue.len() + ATTEMPT_SECONDS_MAX > QUEUE_SECONDS_MAX
        && let Ok(next) = queue.try_recv()
    {
        counts.dropped.increment(batch.lines);
        *batch = next;
    }
}

/// The connection to Graphite.
struct GraphiteConnection {
    address: String,
    stream: Option<TcpStream>,
    patience: GraphiteTimeouts,
}

impl GraphiteConnection {
    /// Sends one batch, on a new connection if the old one is closed.
    async fn deliver(&mut self, text: &[u8]) -> io::Result<()> {
        if self.stream.as_ref().is_some_and(ended) {
            self.stream = None;
        }
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let stream = timeout(self.patience.connect, TcpStream::connect(&self.address));
                self.stream.insert(stream.await.map_err(|_| io::ErrorKind::TimedOut)??)
            }
        };
        let written = timeout(self.patience.write, stream.write_all(text));
        written.await.map_err(|_| io::ErrorKind::TimedOut)?
    }
}

/// Whether Graphite has closed the connection. Any bytes that it sends are read and dropped.
fn ended(stream: &TcpStream) -> bool {
    let mut nothing = [0; 512];
    match stream.try_read(&mut nothing) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

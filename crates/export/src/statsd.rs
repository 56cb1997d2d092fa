//! Metrics for StatsD: lines `name:value|kind`, each second, in datagrams or over TCP.
//!
//! A counter is sent as its growth since the last line, a gauge as its value, and single durations
//! as timers if they are kept. There is no answer to wait for, and no line is queued: lines that
//! cannot be sent are dropped and counted, and the growth of their counters is included in the next
//! ones. Labels are part of the name, or tags at the end of the line. `sample` makes the numbers;
//! `push` runs this sender.

use super::push_counts::PushCounts;
use super::sample::{MetricSample, MetricTimings};
use evenkeel_config::settings::{StatsdLabels, StatsdSink};
use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

/// The maximum size of a datagram in bytes: an Ethernet packet without its headers.
const DATAGRAM_BYTES_MAX: usize = 1_432;

/// The maximum time to connect, and to write lines. A slower StatsD loses them.
const STATSD_TIMEOUT: Duration = Duration::from_secs(3);

/// All values at one moment.
pub struct StatsdReading {
    /// The values of all series.
    pub samples: Vec<MetricSample>,
    /// The single durations since the previous reading.
    pub timings: Vec<MetricTimings>,
}

/// Metrics and the names that Smockron's master used for them: two counters, which it also added to
/// a total, and a timer.
const SMOCKRON_COUNTERS: [(&str, &str); 2] =
    [("master_messages_total.accepted", "ACCEPTED"), ("master_messages_total.delayed", "DELAYED")];
const SMOCKRON_TIMER: (&str, &str) = ("master_delayed", "request.delayed_by");

/// The destination of the lines, and the last value sent of each counter.
pub struct StatsdSender {
    to: StatsdSink,
    way: Option<StatsdTransport>,
    /// The value of each counter when it was last sent. There is one entry for each series at most.
    sent: HashMap<String, f64>,
    counts: PushCounts,
}

/// The transport of the lines.
enum StatsdTransport {
    Datagrams(UdpSocket),
    Stream(TcpStream),
}

impl StatsdSender {
    /// Makes a sender; counters are sent as their growth from their values in `samples`.
    #[must_use]
    pub fn new(to: StatsdSink, samples: &[MetricSample], counts: PushCounts) -> StatsdSender {
        let counters = samples.iter().filter(|sample| sample.counts);
        let sent = counters.map(|sample| (sample.name.clone(), sample.value)).collect();
        StatsdSender { to, way: None, sent, counts }
    }

    /// Sends the news of each reading from `queue` until the queue is closed.
    pub async fn send(mut self, mut queue: Receiver<StatsdReading>) {
        while let Some(look) = queue.recv().await {
            let parcels = parcels(&look, &self.sent, &self.to);
            for (place, StatsdPacket { text, lines, counters }) in parcels.iter().enumerate() {
                if self.send_one(text.as_bytes()).await.is_ok() {
                    self.counts.lines.increment(*lines);
                    self.sent.extend(counters.iter().cloned());
                    continue;
                }
                self.counts.failures.increment(1);
                // Resolve the name again, because it may mean another machine by now.
                self.way = None;
                if self.to.tcp {
                    // The rest would fail too, and each failure takes time.
                    let rest = parcels[place..].iter().map(|parcel| parcel.lines).sum();
                    self.counts.dropped.increment(rest);
                    break;
                }
                self.counts.dropped.increment(*lines);
            }
        }
    }

    async fn send_one(&mut self, text: &[u8]) -> io::Result<()> {
        if matches!(&self.way, Some(StatsdTransport::Stream(stream)) if ended(stream)) {
            self.way = None;
        }
        let way = match &mut self.way {
            Some(way) => way,
            None => self.way.insert(reach(&self.to).await?),
        };
        match way {
            StatsdTransport::Datagrams(socket) => socket.send(text).await.map(drop),
            StatsdTransport::Stream(stream) => {
                let written = timeout(STATSD_TIMEOUT, stream.write_all(text));
                written.await.map_err(|_| io::ErrorKind::TimedOut)?
            }
        }
    }
}

async fn reach(to: &StatsdSink) -> io::Result<StatsdTransport> {
    if to.tcp {
        let connected = timeout(STATSD_TIMEOUT, TcpStream::connect(&to.address));
        return Ok(StatsdTransport::Stream(connected.await.map_err(|_| io::ErrorKind::TimedOut)??));
    }
    let to = lookup_host(&to.address).await?.next().ok_or(io::ErrorKind::NotFound)?;
    let from = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(from).await?;
    socket.connect(to).await?;
    Ok(StatsdTransport::Datagrams(socket))
}

/// Whether StatsD has closed the connection. Any bytes that it sends are read and dropped.
fn ended(stream: &TcpStream) -> bool {
    let mut nothing = [0; 512];
    match stream.try_read(&mut nothing) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// The lines that are sent with one write or in one datagram.
#[derive(Default)]
struct StatsdPacket {
    text: String,
    lines: u64,
    /// The counters in this parcel with their values, to be remembered when it is sent.
    counters: Vec<(String, f64)>,
}

fn parcels(
    look: &StatsdReading,
    sent: &HashMap<String, f64>,
    to: &StatsdSink,
) -> Vec<StatsdPacket> {
    let mut all: Vec<StatsdPacket> = Vec::new();
    for sample in &look.samples {
        let before =
            if sample.counts { sent.get(&sample.name).copied().unwrap_or(0.0) } else { 0.0 };
        let value = sample.value - before;
        if sample.counts && value <= 0.0 {
            continue;
        }
        let counter = sample.counts.then(|| (sample.name.clone(), sample.value));
        put(&mut all, &lines(sample, value, to), counter);
    }
    for timing in &look.timings {
        for value in &timing.values {
            put(&mut all, &timer_lines(timing, *value, to), None);
        }
    }
    all
}

/// Adds lines that must stay together, and the counter to which they belong.
fn put(all: &mut Vec<StatsdPacket>, lines: &str, counter: Option<(String, f64)>) {
    if all.last().is_none_or(|one| one.text.len() + lines.len() > DATAGRAM_BYTES_MAX) {
        all.push(StatsdPacket::default());
    }
    if let Some(parcel) = all.last_mut() {
        parcel.text.push_str(lines);
        parcel.lines += lines.matches('\n').count() as u64;
        parcel.counters.extend(counter);
    }
}

/// The lines of one number; for some numbers, Smockron's names are added to Evenkeel's own.
fn lines(sample: &MetricSample, value: f64, to: &StatsdSink) -> String {
    let kind = if sample.counts { 'c' } else { 'g' };
    let mut lines = line([&sample.name, &sample.bare, &sample.tags], value, &kind, to.labels);
    let status = SMOCKRON_COUNTERS.iter().find(|(name, _)| *name == sample.name);
    if let (Some(prefix), Some((_, status))) = (&to.smockron, status) {
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{prefix}request.status.{status}:{value}|c");
        let _ = writeln!(lines, "{prefix}request.total:{value}|c");
    }
    lines
}

/// The lines of one duration. If only some durations were kept, the line has the sampling rate.
fn timer_lines(timing: &MetricTimings, value: f64, to: &StatsdSink) -> String {
    let kind = if timing.rate < 1.0 { format!("ms|@{:.6}", timing.rate) } else { "ms".to_owned() };
    let mut lines = line([&timing.name, &timing.bare, &timing.tags], value, &kind, to.labels);
    let (name, theirs) = SMOCKRON_TIMER;
    if let Some(prefix) = to.smockron.as_ref().filter(|_| timing.name == name) {
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{prefix}{theirs}:{value}|{kind}");
    }
    lines
}

fn line(
    [name, bare, tags]: [&str; 3],
    value: f64,
    kind: &dyn Display,
    labels: StatsdLabels,
) -> String {
    match labels {
        StatsdLabels::Name => format!("evenkeel.{name}:{value}|{kind}\n"),
        StatsdLabels::Tags if tags.is_empty() => format!("evenkeel.{bare}:{value}|{kind}\n"),
        StatsdLabels::Tags => format!("evenkeel.{bare}:{value}|{kind}|#{tags}\n"),
    }
}

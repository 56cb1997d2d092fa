//! Metrics as StatsD reads them: lines `name:value|kind`, each second, in datagrams or over TCP.
//!
//! Counters are sent as what came since the last time, gauges as they are. There is no answer to
//! wait for and nothing is kept: what cannot be sent is dropped and counted, and its counts go
//! with the next. Labels stand in the name, or as tags behind the line. What is said: `sample`; who
//! runs this: `push`.

use super::push::Counts;
use super::sample::Sample;
use crate::config::settings::{Labels, StatsdSink};
use std::collections::HashMap;
use std::fmt::Write;
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

/// The largest datagram: what fits into one packet of Ethernet, headers off.
const DATAGRAM_BYTES_MAX: usize = 1_432;

/// For a connection to be made, or for lines to be taken. A StatsD that is slower loses them.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where lines go, and what was sent of each counter.
pub struct Sender {
    to: StatsdSink,
    way: Option<Way>,
    /// What each counter stood at when it was last sent. As many as there are series.
    sent: HashMap<String, f64>,
    counts: Counts,
}

/// How they go.
enum Way {
    Datagrams(UdpSocket),
    Stream(TcpStream),
}

impl Sender {
    /// Counts from what `samples` stand at.
    #[must_use]
    pub fn new(to: StatsdSink, samples: &[Sample], counts: Counts) -> Sender {
        let counters = samples.iter().filter(|sample| sample.counts);
        let sent = counters.map(|sample| (sample.name.clone(), sample.value)).collect();
        Sender { to, way: None, sent, counts }
    }

    /// Sends what is new in each look that comes in through `queue`, until it is closed.
    pub async fn send(mut self, mut queue: Receiver<Vec<Sample>>) {
        while let Some(samples) = queue.recv().await {
            let parcels = parcels(&samples, &self.sent, self.to.labels);
            for (place, Parcel { text, lines, counters }) in parcels.iter().enumerate() {
                if self.send_one(text.as_bytes()).await.is_ok() {
                    self.counts.lines.increment(*lines);
                    self.sent.extend(counters.iter().cloned());
                    continue;
                }
                self.counts.failures.increment(1);
                // Its name may mean another machine by now.
                self.way = None;
                if self.to.tcp {
                    // Nobody is there for the rest either, and to find out takes time.
                    let rest = parcels[place..].iter().map(|parcel| parcel.lines).sum();
                    self.counts.dropped.increment(rest);
                    break;
                }
                self.counts.dropped.increment(*lines);
            }
        }
    }

    async fn send_one(&mut self, text: &[u8]) -> io::Result<()> {
        if matches!(&self.way, Some(Way::Stream(stream)) if ended(stream)) {
            self.way = None;
        }
        let way = match &mut self.way {
            Some(way) => way,
            None => self.way.insert(reach(&self.to).await?),
        };
        match way {
            Way::Datagrams(socket) => socket.send(text).await.map(drop),
            Way::Stream(stream) => {
                let written = timeout(PATIENCE, stream.write_all(text));
                written.await.map_err(|_| io::ErrorKind::TimedOut)?
            }
        }
    }
}

async fn reach(to: &StatsdSink) -> io::Result<Way> {
    if to.tcp {
        let connected = timeout(PATIENCE, TcpStream::connect(&to.address));
        return Ok(Way::Stream(connected.await.map_err(|_| io::ErrorKind::TimedOut)??));
    }
    let to = lookup_host(&to.address).await?.next().ok_or(io::ErrorKind::NotFound)?;
    let from = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(from).await?;
    socket.connect(to).await?;
    Ok(Way::Datagrams(socket))
}

/// Whether the other end has closed; what it says is nothing to us.
fn ended(stream: &TcpStream) -> bool {
    let mut nothing = [0; 512];
    match stream.try_read(&mut nothing) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// What is sent at once.
#[derive(Default)]
struct Parcel {
    text: String,
    lines: u64,
    /// What the counters in it stand at.
    counters: Vec<(String, f64)>,
}

fn parcels(samples: &[Sample], sent: &HashMap<String, f64>, labels: Labels) -> Vec<Parcel> {
    let mut all: Vec<Parcel> = vec![Parcel::default()];
    for sample in samples {
        let before =
            if sample.counts { sent.get(&sample.name).copied().unwrap_or(0.0) } else { 0.0 };
        let value = sample.value - before;
        if sample.counts && value <= 0.0 {
            continue;
        }
        let line = line(sample, value, labels);
        if all.last().is_none_or(|one| one.text.len() + line.len() > DATAGRAM_BYTES_MAX) {
            all.push(Parcel::default());
        }
        if let Some(parcel) = all.last_mut() {
            parcel.text.push_str(&line);
            parcel.lines += 1;
            parcel.counters.extend(sample.counts.then(|| (sample.name.clone(), sample.value)));
        }
    }
    all.retain(|parcel| parcel.lines > 0);
    all
}

fn line(sample: &Sample, value: f64, labels: Labels) -> String {
    let kind = if sample.counts { 'c' } else { 'g' };
    let mut line = String::new();
    // Writing to a String cannot fail.
    let _ = match labels {
        Labels::Name => writeln!(line, "tollgate.{}:{value}|{kind}", sample.name),
        Labels::Tags if sample.tags.is_empty() => {
            writeln!(line, "tollgate.{}:{value}|{kind}", sample.bare)
        }
        Labels::Tags => writeln!(line, "tollgate.{}:{value}|{kind}|#{}", sample.bare, sample.tags),
    };
    line
}

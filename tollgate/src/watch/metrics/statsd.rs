//! Metrics as StatsD reads them: datagrams of lines `name:value|kind`, each second over UDP.
//!
//! Counters are sent as what came since the last time, gauges as they are. There is no answer to
//! wait for and nothing is kept: a datagram that cannot be sent is dropped and counted, and its
//! counts go with the next. What is said: `sample`; who runs this: `push`.

use super::push::Counts;
use super::sample::Sample;
use std::collections::HashMap;
use std::fmt::Write;
use std::io;
use tokio::net::UdpSocket;
use tokio::sync::mpsc::Receiver;

/// The largest datagram: what fits into one packet of Ethernet, headers off.
const DATAGRAM_BYTES_MAX: usize = 1_432;

/// Where datagrams go, and what was sent of each counter.
pub struct Sender {
    address: String,
    socket: Option<UdpSocket>,
    /// What each counter stood at when it was last sent. As many as there are series.
    sent: HashMap<String, f64>,
    counts: Counts,
}

impl Sender {
    /// Counts from what `samples` stand at.
    #[must_use]
    pub fn new(address: String, samples: &[Sample], counts: Counts) -> Sender {
        let counters = samples.iter().filter(|sample| sample.counts);
        let sent = counters.map(|sample| (sample.name.clone(), sample.value)).collect();
        Sender { address, socket: None, sent, counts }
    }

    /// Sends what is new in each look that comes in through `queue`, until it is closed.
    pub async fn send(mut self, mut queue: Receiver<Vec<Sample>>) {
        while let Some(samples) = queue.recv().await {
            for (text, lines, counters) in datagrams(&samples, &self.sent) {
                if self.send_one(text.as_bytes()).await.is_ok() {
                    self.counts.lines.increment(lines);
                    self.sent.extend(counters);
                } else {
                    self.counts.failures.increment(1);
                    self.counts.dropped.increment(lines);
                    // Its name may mean another machine by now.
                    self.socket = None;
                }
            }
        }
    }

    async fn send_one(&mut self, text: &[u8]) -> io::Result<usize> {
        let socket = match &self.socket {
            Some(socket) => socket,
            None => {
                let to = tokio::net::lookup_host(&self.address).await?.next();
                let to = to.ok_or(io::ErrorKind::NotFound)?;
                let from = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(from).await?;
                socket.connect(to).await?;
                self.socket.insert(socket)
            }
        };
        socket.send(text).await
    }
}

/// One datagram: its text, how many lines, and what the counters in it stand at.
type Datagram = (String, u64, Vec<(String, f64)>);

fn datagrams(samples: &[Sample], sent: &HashMap<String, f64>) -> Vec<Datagram> {
    let mut all: Vec<Datagram> = vec![Datagram::default()];
    for sample in samples {
        let before =
            if sample.counts { sent.get(&sample.name).copied().unwrap_or(0.0) } else { 0.0 };
        let (value, kind) = (sample.value - before, if sample.counts { 'c' } else { 'g' });
        if sample.counts && value <= 0.0 {
            continue;
        }
        let mut line = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(line, "tollgate.{}:{value}|{kind}", sample.name);
        if all.last().is_none_or(|(text, ..)| text.len() + line.len() > DATAGRAM_BYTES_MAX) {
            all.push(Datagram::default());
        }
        if let Some((text, lines, counters)) = all.last_mut() {
            text.push_str(&line);
            *lines += 1;
            counters.extend(sample.counts.then(|| (sample.name.clone(), sample.value)));
        }
    }
    all.retain(|(_, lines, _)| *lines > 0);
    all
}

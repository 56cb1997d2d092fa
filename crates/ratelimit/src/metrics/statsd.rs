//! Sends the metrics to StatsD or DogStatsD at the configured interval.
//!
//! It sends the increase of each counter since the last successful flush, so no count is lost while
//! StatsD is unreachable. It never delays a decision. An unreachable StatsD is logged once until a
//! flush succeeds again.

use super::rename::{MetricRenamer, RenamedMetric};
use super::{RESPONSE_TIME_NAME, for_each};
use crate::decide::RatelimitDecider;
use evenkeel_config::settings::RatelimitStatsd;
use evenkeel_telemetry::registry::BOUNDS_NS;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// The maximum size of a datagram, in bytes; any network carries it in one piece.
const DATAGRAM_BYTES_MAX: usize = 1_400;
/// The time limit for one flush.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The sender with the values that StatsD has received so far.
pub struct RatelimitStatsdSender {
    settings: RatelimitStatsd,
    decider: Arc<RatelimitDecider>,
    sent: HashMap<String, u64>,
    /// The counts of each histogram interval at the last successful flush.
    sent_durations: Vec<u64>,
    renamed: MetricRenamer,
    connection: Option<TcpStream>,
    unreachable_logged: bool,
}

impl RatelimitStatsdSender {
    /// A sender that has not sent anything.
    #[must_use]
    pub fn new(settings: RatelimitStatsd, decider: Arc<RatelimitDecider>) -> RatelimitStatsdSender {
        let renamed = MetricRenamer::new(settings.rename.clone());
        let (sent, timed) = (HashMap::new(), Vec::new());
        RatelimitStatsdSender {
            settings,
            decider,
            sent,
            sent_durations: timed,
            renamed,
            connection: None,
            unreachable_logged: false,
        }
    }

    /// Sends at each interval. It never returns.
    pub async fn run(mut self) {
        let mut ticks = interval(self.settings.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.flush().await;
        }
    }

    async fn flush(&mut self) {
        let (mut lines, sums) = self.grown();
        let timed = self.times(&mut lines);
        if lines.is_empty() {
            return;
        }
        let send = async {
            match self.settings.udp {
                true => send_udp(&self.settings.address, &lines).await,
                false => send_tcp(&mut self.connection, &self.settings.address, &lines).await,
            }
        };
        let outcome = timeout(FLUSH_TIMEOUT, send).await.unwrap_or_else(|late| Err(late.into()));
        match outcome {
            Ok(()) => {
                self.sent.extend(sums);
                self.sent_durations = timed;
                self.unreachable_logged = false;
            }
            Err(error) => {
                self.connection = None;
                if !std::mem::replace(&mut self.unreachable_logged, true) {
                    let address = &self.settings.address;
                    tracing::warn!(
                        target: "evenkeel::ratelimit", %address, %error,
                        "StatsD is unreachable; metrics are kept and sent later"
                    );
                }
            }
        }
    }

    /// The lines of all counters that have grown, and their current values.
    fn grown(&mut self) -> (Vec<String>, Vec<(String, u64)>) {
        let (mut lines, mut sums) = (Vec::new(), Vec::new());
        for_each(&self.decider, |name, figure| {
            let grown = figure - self.sent.get(name).copied().unwrap_or(0);
            if grown > 0 {
                let named = self.renamed.name_for(name);
                let value = format!("{grown}|c");
                lines.extend(named.map(|named| line(named, &value, &self.settings)));
                sums.push((name.to_owned(), figure));
            }
        });
        (lines, sums)
    }

    /// Adds the durations of calls. Each histogram interval with new calls gives one line: the
    /// value is the interval's end, and the sample rate stands for the number of calls. Returns the
    /// current count of each interval.
    fn times(&mut self, lines: &mut Vec<String>) -> Vec<u64> {
        let Some(took) = &self.decider.events.response_time else { return Vec::new() };
        let counts = took.counts();
        let Some(named) = self.renamed.name_for(RESPONSE_TIME_NAME) else { return counts.to_vec() };
        for (place, count) in counts.iter().enumerate() {
            let grown = count - self.sent_durations.get(place).copied().unwrap_or(0);
            let bound = BOUNDS_NS[place.min(BOUNDS_NS.len() - 1)] as f64 / 1e6;
            let value = match grown {
                0 => continue,
                1 => format!("{bound}|ms"),
                _ => format!("{bound}|ms|@{}", 1.0 / grown as f64),
            };
            lines.push(line(named, &value, &self.settings));
        }
        counts.to_vec()
    }
}

/// Formats a line. Texts from a request are cleaned so that they cannot break the format.
fn line(named: &RenamedMetric, value: &str, settings: &RatelimitStatsd) -> String {
    let clean = |text: &str, more: &[char]| -> String {
        let wrong = |c: char| c.is_control() || c == '#' || c == '@' || c == '|';
        text.chars().map(|c| if wrong(c) || more.contains(&c) { '_' } else { c }).collect()
    };
    let mut name = clean(&named.name, &[':']);
    let all = settings.tags.iter().chain(&named.tags);
    let tags = all.map(|(key, value)| (clean(key, &[':', ',']), clean(value, &[','])));
    let mut behind = String::new();
    if settings.dog {
        let tags: Vec<String> = tags.map(|(key, value)| format!("{key}:{value}")).collect();
        if !tags.is_empty() {
            behind = format!("|#{}", tags.join(","));
        }
    } else {
        name.extend(tags.map(|(key, value)| format!(".__{key}={}", value.replace(':', "_"))));
    }
    format!("{name}:{value}{behind}\n")
}

async fn send_tcp(
    connection: &mut Option<TcpStream>,
    address: &str,
    lines: &[String],
) -> io::Result<()> {
    let stream = match connection {
        Some(stream) => stream,
        None => connection.insert(TcpStream::connect(address).await?),
    };
    // Without this check, a connection that StatsD has closed would be noticed one flush too late.
    let mut nothing = [0; 64];
    if matches!(stream.try_read(&mut nothing), Ok(0)) {
        *stream = TcpStream::connect(address).await?;
    }
    stream.write_all(lines.concat().as_bytes()).await
}

async fn send_udp(address: &str, lines: &[String]) -> io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).await?;
    socket.connect(address).await?;
    let mut datagram = String::new();
    for line in lines {
        if !datagram.is_empty() && datagram.len() + line.len() > DATAGRAM_BYTES_MAX {
            socket.send(datagram.as_bytes()).await?;
            datagram.clear();
        }
        datagram.push_str(line);
    }
    socket.send(datagram.as_bytes()).await.map(|_| ())
}

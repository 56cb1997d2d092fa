//! Sends the figures to StatsD or DogStatsD, as often as the reference does.
//!
//! What is sent is how much each counter has grown; what could not be sent is sent the next time,
//! so a StatsD that is away for a while loses nothing. Nothing here is in the way of a decision,
//! and a StatsD that cannot be reached is told once.

use super::for_each;
use crate::config::settings::Statsd;
use crate::doors::ratelimit::decide::Decider;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// What fits into a datagram on any network.
const DATAGRAM_BYTES_MAX: usize = 1_400;
/// For StatsD to take what is sent.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What was sent so far.
pub struct Sender {
    settings: Statsd,
    decider: Arc<Decider>,
    sent: HashMap<String, u64>,
    connection: Option<TcpStream>,
    told: bool,
}

impl Sender {
    /// Nothing was sent yet.
    #[must_use]
    pub fn new(settings: Statsd, decider: Arc<Decider>) -> Sender {
        Sender { settings, decider, sent: HashMap::new(), connection: None, told: false }
    }

    /// Sends again and again.
    pub async fn run(mut self) {
        let mut ticks = interval(self.settings.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.flush().await;
        }
    }

    async fn flush(&mut self) {
        let (lines, sums) = self.grown();
        if lines.is_empty() {
            return;
        }
        let send = async {
            match self.settings.udp {
                true => send_udp(&self.settings.address, &lines).await,
                false => send_tcp(&mut self.connection, &self.settings.address, &lines).await,
            }
        };
        let outcome = timeout(TIMEOUT, send).await.unwrap_or_else(|late| Err(late.into()));
        match outcome {
            Ok(()) => {
                self.sent.extend(sums);
                self.told = false;
            }
            Err(error) => {
                self.connection = None;
                if !std::mem::replace(&mut self.told, true) {
                    let address = &self.settings.address;
                    tracing::warn!(
                        target: "tollgate::ratelimit", %address, %error,
                        "StatsD cannot be reached; figures are kept and sent later"
                    );
                }
            }
        }
    }

    /// The lines of all counters that have grown, and what they are at.
    fn grown(&self) -> (Vec<String>, Vec<(String, u64)>) {
        let tags = tags(&self.settings);
        let (mut lines, mut sums) = (Vec::new(), Vec::new());
        for_each(&self.decider, |name, figure| {
            let grown = figure - self.sent.get(name).copied().unwrap_or(0);
            if grown > 0 {
                lines.push(line(name, grown, &tags));
                sums.push((name.to_owned(), figure));
            }
        });
        (lines, sums)
    }
}

/// Tags as they stand within or behind a line.
struct Tags {
    within: String,
    behind: String,
}

fn tags(settings: &Statsd) -> Tags {
    let all = settings.tags.iter();
    let mut tags = Tags { within: String::new(), behind: String::new() };
    if settings.dog {
        let all: Vec<String> = all.map(|(key, value)| format!("{key}:{value}")).collect();
        tags.behind = if all.is_empty() { String::new() } else { format!("|#{}", all.join(",")) };
    } else {
        tags.within = all.map(|(key, value)| format!(".__{key}={value}")).collect();
    }
    tags
}

/// A name that came from a request keeps to its line.
fn line(name: &str, grown: u64, tags: &Tags) -> String {
    let clean = |c: char| if c.is_control() || c == '#' || c == '@' { '_' } else { c };
    let name: String = name.chars().map(clean).collect();
    format!("{name}{}:{grown}|c{}\n", tags.within, tags.behind)
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
    // Whoever closed the connection meanwhile would otherwise be noticed a flush too late.
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

//! A client of the line door for programs on tokio. It never blocks its program for long: the
//! timeout is short, a missing answer means yes, and after a failure the door is not asked for a
//! while.
//!
//! All tasks of a program share one connection, and queries made at the same time go out in one
//! write. A separate task owns the connection. If it fails, all waiting callers get
//! [`LineAnswer::Unanswered`] at once, and so do all callers until the pause is over. Everything is
//! bounded: if too many callers wait, further ones get the same answer at once. This file counts
//! and decides nothing. For services: [`layer`]. For jobs that take turns: [`turns`].
//!
//! ```no_run
//! use evenkeel_client::{LineAnswer, LineClient, LineTimeouts};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), evenkeel_client::LineAddressError> {
//! let door = "unix:///run/evenkeel/line.sock".parse()?;
//! let client = LineClient::new(door, LineTimeouts::default());
//! if client.ask(b"login:alice").await == LineAnswer::Refused {
//!     println!("too many logins of alice");
//! }
//! # Ok(())
//! # }
//! ```

pub mod layer;
pub mod turns;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

/// The maximum number of queries that wait to be sent, and of those that wait for their answer.
const WAITING_MAX: usize = 1024;
/// The maximum length of a tag in bytes: the largest that any door can be configured to accept.
const TAG_BYTES_MAX: usize = 8192;

/// The address of a line door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineAddress {
    /// `tcp://127.0.0.1:7070`; a name is resolved at each connect.
    Tcp(String),
    /// `unix:///run/evenkeel/line.sock`: a socket file.
    Unix(PathBuf),
}

/// The error for a text that is not the address of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the address of a line door; write tcp://127.0.0.1:7070 or unix:///run/line.sock")]
pub struct LineAddressError;

impl FromStr for LineAddress {
    type Err = LineAddressError;

    fn from_str(text: &str) -> Result<LineAddress, LineAddressError> {
        match text.split_once("://") {
            Some(("tcp", to))
                if to.rsplit_once(':').is_some_and(|(host, port)| {
                    !host.is_empty() && port.parse::<u16>().is_ok()
                }) =>
            {
                Ok(LineAddress::Tcp(to.to_owned()))
            }
            Some(("unix", path)) if path.starts_with('/') => Ok(LineAddress::Unix(path.into())),
            _ => Err(LineAddressError),
        }
    }
}

/// How long a client waits, and pauses after failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineTimeouts {
    /// The time limit for an answer, and for a connection. If it is too short, a busy machine is
    /// taken for a dead one. If it is too long, a dead one delays the first caller. Default: 50 ms.
    pub timeout: Duration,
    /// The pause after a failure, in which the door is not asked. It doubles with each further
    /// failure. Default: 1 s.
    pub pause: Duration,
    /// The maximum of the pause. Default: 30 s.
    pub pause_max: Duration,
}

impl Default for LineTimeouts {
    fn default() -> LineTimeouts {
        LineTimeouts {
            timeout: Duration::from_millis(50),
            pause: Duration::from_secs(1),
            pause_max: Duration::from_secs(30),
        }
    }
}

/// The result of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineAnswer {
    /// The hit was served, and counted.
    Served,
    /// The hit was refused.
    Refused,
    /// There was no answer. The hit may pass.
    Unanswered,
}

/// The runtime's instant `length` from now.
fn deadline(length: Duration) -> Instant {
    Instant::now() + length
}

/// A client. Its clones share one connection, which is closed when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct LineClient {
    questions: mpsc::Sender<LineQuery>,
}

#[derive(Debug)]
struct LineQuery {
    tag: Vec<u8>,
    answer: oneshot::Sender<LineAnswer>,
}

impl LineClient {
    /// Creates a client of the door at `address`. It connects when it is first used. Call this
    /// within a tokio runtime that has IO and time enabled.
    #[must_use]
    pub fn new(address: LineAddress, patience: LineTimeouts) -> LineClient {
        let (questions, asked) = mpsc::channel(WAITING_MAX);
        tokio::spawn(LineClientTask { address, patience, asked }.run());
        LineClient { questions }
    }

    /// Asks whether a hit of `tag` may happen now, and charges it if so.
    pub async fn ask(&self, tag: &[u8]) -> LineAnswer {
        if tag.len() > TAG_BYTES_MAX || tag.contains(&b'\n') {
            return LineAnswer::Unanswered;
        }
        let (answer, answered) = oneshot::channel();
        let question = LineQuery { tag: tag.to_vec(), answer };
        if self.questions.try_send(question).is_err() {
            return LineAnswer::Unanswered;
        }
        answered.await.unwrap_or(LineAnswer::Unanswered)
    }

    /// Whether a hit of `tag` may pass: true except for a refusal. Charges it like
    /// [`LineClient::ask`].
    pub async fn allows(&self, tag: &[u8]) -> bool {
        self.ask(tag).await != LineAnswer::Refused
    }
}

/// The task that owns the connection.
struct LineClientTask {
    address: LineAddress,
    patience: LineTimeouts,
    asked: mpsc::Receiver<LineQuery>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionEnd {
    /// The door closed it while no query was pending.
    Closed,
    /// The door did not answer, or not correctly. `answered`: it had answered before.
    Failed { answered: bool },
    /// All clients have been dropped.
    Over,
}

impl LineClientTask {
    async fn run(mut self) {
        let mut pause = self.patience.pause;
        while let Some(question) = self.asked.recv().await {
            match self.connected(question).await {
                ConnectionEnd::Over => return,
                ConnectionEnd::Closed => pause = self.patience.pause,
                ConnectionEnd::Failed { answered } => {
                    if answered {
                        pause = self.patience.pause;
                    }
                    tracing::warn!(target: "evenkeel::client", address = ?self.address, ?pause,
                        "Evenkeel does not answer: all requests are allowed until it does");
                    if !self.rest(pause).await {
                        return;
                    }
                    pause = (2 * pause).min(self.patience.pause_max);
                }
            }
        }
    }

    /// Leaves all queries unanswered for `pause`. Returns false if all clients have been dropped.
    async fn rest(&mut self, pause: Duration) -> bool {
        let end = deadline(pause);
        loop {
            tokio::select! {
                () = sleep_until(end) => return true,
                question = self.asked.recv() => match question {
                    // Dropping the query drops its sender, which makes the answer `Unanswered`.
                    Some(_) => {}
                    None => return false,
                },
            }
        }
    }

    /// Connects, then sends `first` and further queries until the connection ends.
    async fn connected(&mut self, first: LineQuery) -> ConnectionEnd {
        let failed = ConnectionEnd::Failed { answered: false };
        match &self.address {
            LineAddress::Tcp(to) => {
                let connected = timeout(self.patience.timeout, TcpStream::connect(to)).await;
                let Ok(Ok(stream)) = connected else { return failed };
                let _ = stream.set_nodelay(true);
                self.converse(stream, first).await
            }
            LineAddress::Unix(path) => {
                let connected = timeout(self.patience.timeout, UnixStream::connect(path)).await;
                let Ok(Ok(stream)) = connected else { return failed };
                self.converse(stream, first).await
            }
        }
    }

    async fn converse<S: AsyncRead + AsyncWrite>(
        &mut self,
        stream: S,
        first: LineQuery,
    ) -> ConnectionEnd {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut open = PendingQueries::default();
        open.ask(first, self.patience.timeout);
        let (mut input, mut batch) = ([0; 1024], Vec::new());
        loop {
            tokio::select! {
                read = reader.read(&mut input) => match read {
                    Ok(count @ 1..) if open.answered(&input[..count]) => {}
                    Ok(0) if open.waiting.is_empty() => return ConnectionEnd::Closed,
                    _ => return open.failed(),
                },
                sent = writer.write(&open.output[open.sent..]), if open.unsent() => match sent {
                    Ok(count @ 1..) => open.sent(count),
                    _ => return open.failed(),
                },
                count = self.asked.recv_many(&mut batch, 64), if open.has_room() => {
                    if count == 0 {
                        return ConnectionEnd::Over;
                    }
                    batch.drain(..).for_each(|one| open.ask(one, self.patience.timeout));
                },
                () = open.late() => return open.failed(),
            }
        }
    }
}

/// The queries in transit on a connection.
#[derive(Default)]
struct PendingQueries {
    output: Vec<u8>,
    sent: usize,
    /// The deadlines and senders of the queries that wait for an answer, in the order sent.
    waiting: VecDeque<(Instant, oneshot::Sender<LineAnswer>)>,
    /// The beginning of an answer.
    partial: Vec<u8>,
    answered: bool,
}

impl PendingQueries {
    fn ask(&mut self, question: LineQuery, patience: Duration) {
        self.output.extend_from_slice(&question.tag);
        self.output.push(b'\n');
        self.waiting.push_back((deadline(patience), question.answer));
    }

    fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    fn unsent(&self) -> bool {
        self.sent < self.output.len()
    }

    fn sent(&mut self, count: usize) {
        self.sent += count;
        if !self.unsent() {
            self.output.clear();
            self.sent = 0;
        }
    }

    /// Delivers answers. Returns false if the bytes are not answers, or no query is pending.
    fn answered(&mut self, bytes: &[u8]) -> bool {
        self.partial.extend_from_slice(bytes);
        let mut answers = self.partial.chunks_exact(3);
        for answer in &mut answers {
            let answer = match answer {
                b"OK\n" => LineAnswer::Served,
                b"NO\n" => LineAnswer::Refused,
                _ => return false,
            };
            let Some((_, asker)) = self.waiting.pop_front() else { return false };
            self.answered = true;
            // The caller may have stopped waiting in the meantime.
            let _ = asker.send(answer);
        }
        self.partial = answers.remainder().to_vec();
        true
    }

    /// Waits until the oldest pending answer is late.
    async fn late(&self) {
        match self.waiting.front() {
            Some((deadline, _)) => sleep_until(*deadline).await,
            None => std::future::pending().await,
        }
    }

    fn failed(&self) -> ConnectionEnd {
        ConnectionEnd::Failed { answered: self.answered }
    }
}

/// Compiles the code of README.md with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ClientReadme;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_whatever_a_door_sends_is_an_answer_to_somebody_or_a_failure() {
        evenkeel_fuzz::fuzz().with_type::<(u8, Vec<u8>)>().for_each(|(asked, bytes)| {
            // Make answers frequent.
            let bytes: Vec<u8> =
                bytes.iter().map(|byte| b"OK\nNO\nx"[usize::from(byte % 7)]).collect();
            let mut open = PendingQueries::default();
            let mut askers = Vec::new();
            for _ in 0..*asked {
                let (answer, asker) = oneshot::channel();
                open.waiting.push_back((deadline(Duration::ZERO), answer));
                askers.push(asker);
            }
            let good = bytes.chunks(2).all(|piece| open.answered(piece));
            let answered = askers.iter_mut().filter_map(|asker| asker.try_recv().ok()).count();
            assert_eq!(answered + open.waiting.len(), usize::from(*asked));
            let whole = bytes.chunks_exact(3).take_while(|one| {
                [b"OK\n", b"NO\n"].contains(&&one[..3].try_into().expect("three"))
            });
            let whole = whole.count().min(usize::from(*asked));
            assert_eq!(answered, whole);
            assert!(!good || open.partial.len() < 3);
        });
    }
}

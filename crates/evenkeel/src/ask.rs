//! A client of the line door for programs on tokio, with the habits that a limiter asks of its
//! clients: a short timeout, no answer means yes, and after a failure nothing is asked for a while.
//!
//! All tasks of a program share one connection: questions of the same moment go out in one write.
//! The connection belongs to a task of its own; when it fails, whoever waits is let through at
//! once, and so is whoever asks until the pause is over. Everything is bounded: who asks when too
//! many wait is let through as well. Nothing is counted or decided here. For services: `layer`; as
//! a master says: `gatekeeper`.

pub mod gatekeeper;
pub mod layer;

use crate::clock::Clock;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

/// Questions that wait to be sent, and as many that wait for their answer.
const WAITING_MAX: usize = 1024;
/// The longest tag: what any door can be told to take.
const TAG_BYTES_MAX: usize = 8192;

/// Where the door listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `tcp://127.0.0.1:7070`; a name is looked up at each connect.
    Tcp(String),
    /// `unix:///run/evenkeel/line.sock`.
    Unix(PathBuf),
}

/// The text is no address of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the address of a line door; write tcp://127.0.0.1:7070 or unix:///run/line.sock")]
pub struct AddressFault;

impl FromStr for Address {
    type Err = AddressFault;

    fn from_str(text: &str) -> Result<Address, AddressFault> {
        match text.split_once("://") {
            Some(("tcp", to))
                if to.rsplit_once(':').is_some_and(|(host, port)| {
                    !host.is_empty() && port.parse::<u16>().is_ok()
                }) =>
            {
                Ok(Address::Tcp(to.to_owned()))
            }
            Some(("unix", path)) if path.starts_with('/') => Ok(Address::Unix(path.into())),
            _ => Err(AddressFault),
        }
    }
}

/// How patient a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For an answer, and for a connection. Too short: a busy machine is taken for a dead one. Too
    /// long: a dead one delays whoever asks first. Default: 50 ms.
    pub timeout: Duration,
    /// After a failure nothing is asked for so long; doubled with each that follows. Default: 1 s.
    pub pause: Duration,
    /// The longest pause. Default: 30 s.
    pub pause_max: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            timeout: Duration::from_millis(50),
            pause: Duration::from_secs(1),
            pause_max: Duration::from_secs(30),
        }
    }
}

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The hit was served, and counted.
    Served,
    /// It was not.
    Refused,
    /// Nobody said. It may pass.
    Unanswered,
}

/// A client; its clones share one connection, which is closed when the last of them is dropped.
#[derive(Clone, Debug)]
pub struct Client {
    questions: mpsc::Sender<Question>,
}

#[derive(Debug)]
struct Question {
    tag: Vec<u8>,
    answer: oneshot::Sender<Answer>,
}

impl Client {
    /// A client of the door at `address`; it connects when it is first asked. To be called within
    /// a tokio runtime that has IO and time.
    #[must_use]
    pub fn new(address: Address, patience: Patience) -> Client {
        let (questions, asked) = mpsc::channel(WAITING_MAX);
        tokio::spawn(Talk { address, patience, asked }.run());
        Client { questions }
    }

    /// Asks whether a hit of `tag` may happen now, which charges it if so.
    pub async fn ask(&self, tag: &[u8]) -> Answer {
        if tag.len() > TAG_BYTES_MAX || tag.contains(&b'\n') {
            return Answer::Unanswered;
        }
        let (answer, answered) = oneshot::channel();
        let question = Question { tag: tag.to_vec(), answer };
        if self.questions.try_send(question).is_err() {
            return Answer::Unanswered;
        }
        answered.await.unwrap_or(Answer::Unanswered)
    }

    /// Whether it may: all but a refusal.
    pub async fn allows(&self, tag: &[u8]) -> bool {
        self.ask(tag).await != Answer::Refused
    }
}

/// The task that has the connection.
struct Talk {
    address: Address,
    patience: Patience,
    asked: mpsc::Receiver<Question>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The door closed it when nothing was asked.
    Closed,
    /// It did not answer, or not as it should; whether it ever had.
    Failed { answered: bool },
    /// There are no clients any more.
    Over,
}

impl Talk {
    async fn run(mut self) {
        let mut pause = self.patience.pause;
        while let Some(question) = self.asked.recv().await {
            match self.connected(question).await {
                End::Over => return,
                End::Closed => pause = self.patience.pause,
                End::Failed { answered } => {
                    if answered {
                        pause = self.patience.pause;
                    }
                    tracing::warn!(target: "evenkeel::ask", address = ?self.address, ?pause,
                        "the line door does not answer: everybody passes meanwhile");
                    if !self.rest(pause).await {
                        return;
                    }
                    pause = (2 * pause).min(self.patience.pause_max);
                }
            }
        }
    }

    /// Lets everybody through for so long. False: there is nobody any more.
    async fn rest(&mut self, pause: Duration) -> bool {
        let end = Clock::deadline(pause);
        loop {
            tokio::select! {
                () = sleep_until(end) => return true,
                question = self.asked.recv() => match question {
                    // Its answer is dropped with it.
                    Some(_) => {}
                    None => return false,
                },
            }
        }
    }

    /// Connects, asks `first` and what follows, until the connection ends.
    async fn connected(&mut self, first: Question) -> End {
        let failed = End::Failed { answered: false };
        match &self.address {
            Address::Tcp(to) => {
                let connected = timeout(self.patience.timeout, TcpStream::connect(to)).await;
                let Ok(Ok(stream)) = connected else { return failed };
                let _ = stream.set_nodelay(true);
                self.converse(stream, first).await
            }
            Address::Unix(path) => {
                let connected = timeout(self.patience.timeout, UnixStream::connect(path)).await;
                let Ok(Ok(stream)) = connected else { return failed };
                self.converse(stream, first).await
            }
        }
    }

    async fn converse<S: AsyncRead + AsyncWrite>(&mut self, stream: S, first: Question) -> End {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut open = Open::default();
        open.ask(first, self.patience.timeout);
        let (mut input, mut batch) = ([0; 1024], Vec::new());
        loop {
            tokio::select! {
                read = reader.read(&mut input) => match read {
                    Ok(count @ 1..) if open.answered(&input[..count]) => {}
                    Ok(0) if open.waiting.is_empty() => return End::Closed,
                    _ => return open.failed(),
                },
                sent = writer.write(&open.output[open.sent..]), if open.unsent() => match sent {
                    Ok(count @ 1..) => open.sent(count),
                    _ => return open.failed(),
                },
                count = self.asked.recv_many(&mut batch, 64), if open.has_room() => {
                    if count == 0 {
                        return End::Over;
                    }
                    batch.drain(..).for_each(|one| open.ask(one, self.patience.timeout));
                },
                () = open.late() => return open.failed(),
            }
        }
    }
}

/// What is under way on a connection.
#[derive(Default)]
struct Open {
    output: Vec<u8>,
    sent: usize,
    /// Who waits for an answer, and until when.
    waiting: VecDeque<(Instant, oneshot::Sender<Answer>)>,
    /// The beginning of an answer.
    partial: Vec<u8>,
    answered: bool,
}

impl Open {
    fn ask(&mut self, question: Question, patience: Duration) {
        self.output.extend_from_slice(&question.tag);
        self.output.push(b'\n');
        self.waiting.push_back((Clock::deadline(patience), question.answer));
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

    /// Hands answers out; false: these are none, or nobody asked.
    fn answered(&mut self, bytes: &[u8]) -> bool {
        self.partial.extend_from_slice(bytes);
        let mut answers = self.partial.chunks_exact(3);
        for answer in &mut answers {
            let answer = match answer {
                b"OK\n" => Answer::Served,
                b"NO\n" => Answer::Refused,
                _ => return false,
            };
            let Some((_, asker)) = self.waiting.pop_front() else { return false };
            self.answered = true;
            // Who has gone away meanwhile needs none.
            let _ = asker.send(answer);
        }
        self.partial = answers.remainder().to_vec();
        true
    }

    /// Until an answer is late.
    async fn late(&self) {
        match self.waiting.front() {
            Some((deadline, _)) => sleep_until(*deadline).await,
            None => std::future::pending().await,
        }
    }

    fn failed(&self) -> End {
        End::Failed { answered: self.answered }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_whatever_a_door_sends_is_an_answer_to_somebody_or_a_failure() {
        bolero::check!().with_type::<(u8, Vec<u8>)>().for_each(|(asked, bytes)| {
            // Answers often enough.
            let bytes: Vec<u8> =
                bytes.iter().map(|byte| b"OK\nNO\nx"[usize::from(byte % 7)]).collect();
            let mut open = Open::default();
            let mut askers = Vec::new();
            for _ in 0..*asked {
                let (answer, asker) = oneshot::channel();
                open.waiting.push_back((Clock::deadline(Duration::ZERO), answer));
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

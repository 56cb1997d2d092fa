//! Turns at a line door, for programs on tokio: a fair semaphore across processes and machines.
//!
//! Each turn has a connection of its own while it is waited for or held, because a closed
//! connection gives its turns back: a program that crashes does not block the others, and a future
//! or a [`Turn`] that is dropped gives back what it has. Idle connections are kept for later turns.
//! If the door does not answer, the program runs without a turn. This file decides nothing: whose
//! turn it is, and for how long a turn may be waited for, is up to the door.
//!
//! ```no_run
//! use evenkeel_client::turns::{TurnClient, TurnOptions, TurnTimeouts};
//! use std::time::Duration;
//!
//! # async fn convert() -> Result<(), Box<dyn std::error::Error>> {
//! let turns = TurnClient::new("tcp://127.0.0.1:7070".parse()?, TurnTimeouts::default());
//! let patient = TurnOptions { wait: Some(Duration::from_secs(30)), ..TurnOptions::default() };
//! let turn = turns.take(b"tenant-7", &patient).await?;
//! println!("converting");
//! turn.done(None).await;
//! # Ok(())
//! # }
//! ```

use super::{LineAddress, TAG_BYTES_MAX};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// The maximum number of idle connections that are kept.
const IDLE_MAX: usize = 16;
/// The maximum length of a reply in bytes; the longest tells what is wrong with a command.
const REPLY_BYTES_MAX: usize = 1024;
/// The longest time that a door accepts.
const TIME_MAX: Duration = Duration::from_secs(365 * 86_400);

/// How long a client of turns waits for a door that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnTimeouts {
    /// The time limit for a connection. If it is too short, a busy machine is taken for a dead one.
    /// If it is too long, a dead one delays each job. Default: 1 s.
    pub connect: Duration,
    /// The time limit for an answer, beyond the wait for the turn. It does not apply to
    /// [`TurnClient::take`] without `wait`. Default: 5 s.
    pub answer: Duration,
}

impl Default for TurnTimeouts {
    fn default() -> TurnTimeouts {
        TurnTimeouts { connect: Duration::from_secs(1), answer: Duration::from_secs(5) }
    }
}

/// What a program says about the turn that it wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnOptions {
    /// The cost that is expected. Default: what turns of the tag usually cost.
    pub cost: Option<Duration>,
    /// The longest wait. Default: as long as the door allows (`wait_max`).
    pub wait: Option<Duration>,
}

/// Why there is no turn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TurnError {
    /// The turn did not come in time. The job may be tried later.
    #[error("the turn did not come in time")]
    Late,
    /// No turn is free, or too many programs wait. The job may be tried later.
    #[error("no turn is free, or too many programs wait")]
    Busy,
    /// The door gives out no turns.
    #[error("the door gives out no turns: set `line.turns`")]
    NoTurns,
    /// The door refuses the command, for this reason.
    #[error("the door refuses the command: {0}")]
    Refused(String),
    /// The tag cannot be sent. The door was not asked.
    #[error("a tag has no newline, and at most 8192 bytes")]
    Tag,
}

/// A client. Its clones share their idle connections.
#[derive(Clone, Debug)]
pub struct TurnClient {
    door: Arc<TurnDoor>,
}

#[derive(Debug)]
struct TurnDoor {
    address: LineAddress,
    timeouts: TurnTimeouts,
    idle: Mutex<Vec<DoorConnection>>,
}

impl TurnClient {
    /// Creates a client of the door at `address`. It connects when a turn is taken.
    #[must_use]
    pub fn new(address: LineAddress, timeouts: TurnTimeouts) -> TurnClient {
        TurnClient { door: Arc::new(TurnDoor { address, timeouts, idle: Mutex::default() }) }
    }

    /// Waits for a turn of `tag`. If the door does not answer, the turn has no id.
    ///
    /// # Errors
    /// There is no turn: see [`TurnError`].
    pub async fn take(&self, tag: &[u8], options: &TurnOptions) -> Result<Turn, TurnError> {
        let limit = options.wait.map(|wait| wait.saturating_add(self.door.timeouts.answer));
        self.begin(&command("TAKE", tag, options)?, limit).await
    }

    /// Takes a turn of `tag` if one is free. `cost`: the cost that is expected.
    ///
    /// # Errors
    /// [`TurnError::Busy`] if no turn is free; or another [`TurnError`].
    pub async fn try_take(&self, tag: &[u8], cost: Option<Duration>) -> Result<Turn, TurnError> {
        let options = TurnOptions { cost, wait: None };
        self.begin(&command("TRY", tag, &options)?, Some(self.door.timeouts.answer)).await
    }

    async fn begin(&self, command: &[u8], limit: Option<Duration>) -> Result<Turn, TurnError> {
        let asked = match self.door.ask_idle(command, limit).await {
            Some(asked) => asked,
            None => self.door.ask_new(command, limit).await,
        };
        match asked {
            Ok((connection, Ok(id))) => {
                Ok(Turn { held: Some((id, connection)), door: Arc::clone(&self.door) })
            }
            Ok((connection, Err(refusal))) => {
                self.door.keep(connection);
                Err(refusal)
            }
            Err(error) => {
                tracing::warn!(target: "evenkeel::client", address = ?self.door.address, %error,
                    "no turn, because Evenkeel does not answer: the job runs without it");
                Ok(Turn { held: None, door: Arc::clone(&self.door) })
            }
        }
    }
}

/// A connection, and the turn that was taken over it. The error: the door does not answer.
type AskedTurn = io::Result<(DoorConnection, Result<u64, TurnError>)>;

impl TurnDoor {
    /// Asks over an idle connection. `None` if there is none, or if the door has closed it.
    async fn ask_idle(&self, command: &[u8], limit: Option<Duration>) -> Option<AskedTurn> {
        let idle = self.idle().pop()?;
        let asked = idle.take(command, limit).await;
        let is_closed = asked.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::TimedOut);
        (!is_closed).then_some(asked)
    }

    async fn ask_new(&self, command: &[u8], limit: Option<Duration>) -> AskedTurn {
        let connecting = DoorConnection::open(&self.address);
        let connection = within(Some(self.timeouts.connect), connecting).await?;
        connection.take(command, limit).await
    }

    fn keep(&self, connection: DoorConnection) {
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<DoorConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn that is held. If it is dropped, it is given back, and costs as long as it was held.
#[derive(Debug)]
#[must_use = "a turn is given back when it is dropped"]
pub struct Turn {
    /// The id, and the connection that the turn ends with; `None` if the door did not answer.
    held: Option<(u64, DoorConnection)>,
    door: Arc<TurnDoor>,
}

impl Turn {
    /// The id at the door. `None` if the door did not answer, so the job runs without a turn.
    #[must_use]
    pub fn id(&self) -> Option<u64> {
        self.held.as_ref().map(|(id, _)| *id)
    }

    /// Gives the turn back. `cost`: what it has cost; by default, as long as it was held.
    pub async fn done(self, cost: Option<Duration>) {
        let Some((id, mut connection)) = self.held else { return };
        let command = format!("DONE {id}{}\n", time_word("cost", cost));
        let asked = within(Some(self.door.timeouts.answer), connection.ask(command.as_bytes()));
        // If the door does not answer, the turn ends with the connection.
        if asked.await.is_ok() {
            self.door.keep(connection);
        }
    }
}

/// The command with this verb.
fn command(verb: &str, tag: &[u8], options: &TurnOptions) -> Result<Vec<u8>, TurnError> {
    if tag.len() > TAG_BYTES_MAX || tag.contains(&b'\n') {
        return Err(TurnError::Tag);
    }
    let words = [time_word("cost", options.cost), time_word("wait", options.wait)].concat();
    Ok([verb.as_bytes(), b" ", tag, words.as_bytes(), b"\n"].concat())
}

fn time_word(name: &str, time: Option<Duration>) -> String {
    time.map_or_else(String::new, |time| format!(" {name}={}ns", time.min(TIME_MAX).as_nanos()))
}

/// The id of the turn, or why there is none, from a reply without its newline. `None` if it is not
/// the reply of a door.
fn read_turn(reply: &[u8]) -> Option<Result<u64, TurnError>> {
    let text = String::from_utf8_lossy(reply);
    match text.split_once(' ').unwrap_or((&text, "")) {
        ("TURN", id) => id.parse().ok().map(Ok),
        ("ERR", reason) => Some(Err(TurnError::Refused(reason.to_owned()))),
        ("LATE", "") => Some(Err(TurnError::Late)),
        ("BUSY", "") => Some(Err(TurnError::Busy)),
        ("OK" | "NO", "") => Some(Err(TurnError::NoTurns)),
        _ => None,
    }
}

/// The result of some IO within a time limit.
async fn within<T>(
    limit: Option<Duration>,
    work: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    match limit {
        Some(limit) => timeout(limit, work).await?,
        None => work.await,
    }
}

/// A connection to a door, on which one command at a time is sent and answered.
#[derive(Debug)]
enum DoorConnection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl DoorConnection {
    async fn open(address: &LineAddress) -> io::Result<DoorConnection> {
        match address {
            LineAddress::Tcp(to) => {
                let stream = TcpStream::connect(to).await?;
                stream.set_nodelay(true)?;
                Ok(DoorConnection::Tcp(stream))
            }
            LineAddress::Unix(path) => UnixStream::connect(path).await.map(DoorConnection::Unix),
        }
    }

    /// Takes a turn with this command.
    async fn take(mut self, command: &[u8], limit: Option<Duration>) -> AskedTurn {
        let reply = within(limit, self.ask(command)).await?;
        let turn = read_turn(&reply).ok_or(io::ErrorKind::InvalidData)?;
        Ok((self, turn))
    }

    async fn ask(&mut self, command: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            DoorConnection::Tcp(stream) => exchange(stream, command).await,
            DoorConnection::Unix(stream) => exchange(stream, command).await,
        }
    }
}

/// Sends a command and reads its reply, which is returned without its newline.
async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    command: &[u8],
) -> io::Result<Vec<u8>> {
    stream.write_all(command).await?;
    let mut reply = Vec::new();
    while !reply.contains(&b'\n') {
        if reply.len() > REPLY_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if stream.read_buf(&mut reply).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    // Nothing may follow: the door answers one command.
    match reply.pop() {
        Some(b'\n') if !reply.contains(&b'\n') => Ok(reply),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests;

//! ZMTP 1.0, 2.0 and 3.0, the protocol between ZeroMQ sockets, as far as publishers and subscribers
//! speak it.
//!
//! Bytes in, events out; no sockets, no clock. `frame` takes single frames off the bytes,
//! `greeting` is how two ends meet, and [`Session`] is one connection from the first byte on. What
//! waits, how long, and how much may lie unsent is the business of those who have the connection.
//!
//! Written from the specifications (rfc.zeromq.org/spec/13, 15, 23, 29 and 37) and against libzmq
//! 2, 3 and 4. We say that we speak 3.0, so that peers send subscriptions as messages; those of
//! 3.1, which are commands, are understood as well. A subscriber of 1.0 says nothing and is sent
//! everything. Only the mechanism NULL is spoken: no passwords, no CURVE.
//!
//! What a peer sends is bounded: a message of too many bytes or parts is passed over and told of,
//! and one whose frame claims to be longer than [`FRAME_MAX`] ends the connection, since nothing
//! that follows could be found again.

mod frame;
mod greeting;

pub use frame::{message, subscription};
pub use greeting::{Role, SIGNATURE, Version};

use frame::{COMMAND, Head, MORE};
use greeting::{Met, Step};

/// A frame that claims to be longer ends the connection. Up to here it is passed over, at the
/// sender's cost.
pub const FRAME_MAX: u64 = 1 << 30;
/// The most parts of a message. Messages here have at most six.
pub const PARTS_MAX: usize = 16;
/// The most bytes of a command; the longest that matters is a subscription.
const COMMAND_MAX: usize = 4096;
/// A version 3.1 ping carries at most so many bytes to be sent back.
const CONTEXT_MAX: usize = 16;

/// What may be wrong with a peer; the connection is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The first bytes are not ZMTP's.
    #[error("it does not speak ZMTP")]
    Signature,
    /// A version that is not spoken here.
    #[error("it speaks revision {0} of ZMTP, which is unknown here; use ZeroMQ 2, 3.2 or later")]
    Version(u8),
    /// Security that is not spoken here.
    #[error("it wants a security mechanism; only NULL is spoken here")]
    Mechanism,
    /// Not the other end of publishing.
    #[error("its socket type does not fit: subscribers and publishers meet here")]
    SocketType,
    /// The handshake is not one.
    #[error("its handshake makes no sense")]
    Handshake,
    /// Flags that no version has.
    #[error("a frame with flags {0:#04x}")]
    Flags(u8),
    /// A frame longer than anybody sends.
    #[error("a frame of {0} bytes")]
    Length(u64),
    /// A command within a message, or one that makes no sense.
    #[error("a command that makes no sense")]
    Command,
    /// It refuses us.
    #[error("it answers with an error")]
    Refused,
}

/// What a peer says.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The handshake goes on: this is to be sent.
    Answer(&'static [u8]),
    /// The handshake is over.
    Ready,
    /// It is a subscriber, and wants what begins so.
    Subscribe(&'a [u8]),
    /// It wants that no more, if it did.
    Cancel(&'a [u8]),
    /// It is a publisher, and this is a message.
    Message(Message<'a>),
    /// A message of too many bytes or parts has been passed over.
    TooLarge,
    /// It wants to hear that we live: [`Session::pong`] is to be sent with this.
    Ping(&'a [u8]),
    /// Nothing that matters here.
    Nothing,
}

/// The parts of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    bytes: &'a [u8],
    parts: &'a [(usize, usize)],
}

impl<'a> Message<'a> {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// One of them; empty if there are not so many.
    #[must_use]
    pub fn part(&self, index: usize) -> &'a [u8] {
        let place = self.parts.get(index).copied().unwrap_or_default();
        self.bytes.get(place.0..place.1).unwrap_or_default()
    }
}

/// What has been heard of a connection so far.
#[derive(Debug)]
pub struct Session {
    role: Role,
    version: Version,
    stage: Stage,
    /// The most bytes of a message, frames' heads included.
    message_max: usize,
    /// Of the message that is being read: where its parts lie in the bytes not yet taken.
    parts: [(usize, usize); PARTS_MAX],
    count: usize,
    /// How far the bytes not yet taken have been read.
    read: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Meeting(Step),
    /// The handshake is over, and a subscriber of 1.0 wants everything.
    Everything,
    Ready,
    /// Within a message that is passed over: bytes of the frame that are still to come, and whether
    /// another follows.
    Passing(u64, bool),
}

impl Session {
    /// A connection whose end here is a `role`, and takes messages of up to `message_max` bytes.
    #[must_use]
    pub fn new(role: Role, message_max: usize) -> Session {
        let parts = [(0, 0); PARTS_MAX];
        let (version, stage) = (Version::Three, Stage::Meeting(Step::Signature));
        Session { role, version, stage, message_max, parts, count: 0, read: 0 }
    }

    /// What the peer speaks; known when the handshake is over.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Takes the next event off `bytes`, and says how many bytes of them are done with; `None` if
    /// more are needed. To be called with what is left until then, and again with more behind it.
    ///
    /// # Errors
    /// [`Fault`]: the connection is to be closed.
    pub fn next<'a>(&'a mut self, bytes: &'a [u8]) -> Result<Option<(usize, Event<'a>)>, Fault> {
        match self.stage {
            Stage::Meeting(step) => self.meet(step, bytes),
            Stage::Everything => {
                self.stage = Stage::Ready;
                Ok(Some((0, Event::Subscribe(b""))))
            }
            Stage::Ready => self.message(bytes),
            Stage::Passing(left, more) => self.pass(bytes, left, more),
        }
    }

    /// What is sent to answer a ping.
    pub fn pong(context: &[u8], out: &mut Vec<u8>) {
        frame::command(b"PONG", context, out);
    }

    fn meet<'a>(
        &mut self,
        step: Step,
        bytes: &'a [u8],
    ) -> Result<Option<(usize, Event<'a>)>, Fault> {
        let Some((taken, met)) = step.read(self.role, bytes)? else { return Ok(None) };
        let event = match met {
            Met::Next(answer, step) => {
                self.stage = Stage::Meeting(step);
                Event::Answer(answer)
            }
            Met::Over(version) => {
                let silent = version == Version::One && self.role == Role::Publisher;
                self.stage = if silent { Stage::Everything } else { Stage::Ready };
                self.version = version;
                Event::Ready
            }
        };
        Ok(Some((taken, event)))
    }

    fn message<'a>(&'a mut self, bytes: &'a [u8]) -> Result<Option<(usize, Event<'a>)>, Fault> {
        loop {
            let at = self.read;
            let head = Head::read(self.version, &bytes[at.min(bytes.len())..])?;
            let Some(head) = head else { return Ok(None) };
            if head.flags & COMMAND != 0 {
                return self.command(bytes, head);
            }
            let (start, more) = (at + head.size, head.flags & MORE != 0);
            let too_large = start as u64 + head.length > self.message_max as u64;
            if too_large || self.count == PARTS_MAX {
                (self.read, self.count) = (0, 0);
                self.stage = Stage::Passing(head.length, more);
                return Ok(Some((start, Event::Nothing)));
            }
            let end = start + head.length as usize;
            if end > bytes.len() {
                return Ok(None);
            }
            self.parts[self.count] = (start, end);
            self.count += 1;
            self.read = end;
            if !more {
                let message = Message { bytes, parts: &self.parts[..self.count] };
                (self.read, self.count) = (0, 0);
                return Ok(Some((end, self.role.event(message))));
            }
        }
    }

    fn command<'a>(
        &mut self,
        bytes: &'a [u8],
        head: Head,
    ) -> Result<Option<(usize, Event<'a>)>, Fault> {
        if self.count > 0 || head.length > COMMAND_MAX as u64 {
            return Err(Fault::Command);
        }
        let Some(body) = head.body(bytes) else { return Ok(None) };
        let event = match frame::name(body).ok_or(Fault::Command)? {
            (b"PING", rest) => {
                // Two bytes say how long it will wait for any sign of us; we answer at once.
                let context = rest.get(2..).ok_or(Fault::Command)?;
                Event::Ping(&context[..context.len().min(CONTEXT_MAX)])
            }
            (b"SUBSCRIBE", topic) if self.role == Role::Publisher => Event::Subscribe(topic),
            (b"CANCEL", topic) if self.role == Role::Publisher => Event::Cancel(topic),
            (b"ERROR", _) => return Err(Fault::Refused),
            _ => Event::Nothing,
        };
        Ok(Some((head.size + body.len(), event)))
    }

    /// Passes over the rest of a message.
    fn pass<'a>(
        &mut self,
        bytes: &[u8],
        left: u64,
        more: bool,
    ) -> Result<Option<(usize, Event<'a>)>, Fault> {
        if left > 0 {
            let taken = left.min(bytes.len() as u64);
            self.stage = Stage::Passing(left - taken, more);
            return Ok((taken > 0).then_some((taken as usize, Event::Nothing)));
        }
        if !more {
            self.stage = Stage::Ready;
            return Ok(Some((0, Event::TooLarge)));
        }
        let Some(head) = Head::read(self.version, bytes)? else { return Ok(None) };
        if head.flags & COMMAND != 0 {
            return Err(Fault::Command);
        }
        self.stage = Stage::Passing(head.length, head.flags & MORE != 0);
        Ok(Some((head.size, Event::Nothing)))
    }
}

#[cfg(test)]
mod tests;

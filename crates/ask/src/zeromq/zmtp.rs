//! ZMTP 1.0, 2.0 and 3.0, the protocol between ZeroMQ sockets, as far as publishers and subscribers
//! use it.
//!
//! This module turns bytes into events, without sockets or a clock. `frame` parses single frames,
//! `greeting` is the handshake, and [`ZmtpSession`] is one connection from the first byte on.
//! Timeouts and buffers for output are left to the owner of the connection.
//!
//! Written from the specifications (rfc.zeromq.org/spec/13, 15, 23, 29 and 37) and tested against
//! libzmq 2, 3 and 4. The session announces version 3.0, so peers send subscriptions as messages;
//! those of 3.1, which are commands, are understood as well. A subscriber of 1.0 sends nothing and
//! gets everything. The only security mechanism is NULL: no passwords, no CURVE.
//!
//! Input is bounded. A message with too many bytes or parts is skipped and reported. A frame that
//! claims to be longer than `FRAME_MAX` ends the connection, since nothing after it could be
//! found again.

mod error;
mod frame;
mod greeting;
mod version;

pub use error::ZmtpError;
pub use frame::{message, subscription};
pub use greeting::{SIGNATURE, SocketRole};
pub use version::ZmtpVersion;

use frame::{COMMAND, MORE, ZmtpFrameHead};
use greeting::{HandshakeProgress, HandshakeStep};

/// The maximum number of parts of a message. Messages here have at most six.
pub const PARTS_MAX: usize = 16;
/// The maximum size of a command in bytes. The longest relevant one is a subscription.
const COMMAND_MAX: usize = 4096;
/// The maximum number of bytes in a version 3.1 ping that are to be sent back.
const CONTEXT_MAX: usize = 16;

#[derive(Debug, PartialEq, Eq)]
pub enum ZmtpEvent<'a> {
    /// The handshake continues: these bytes are to be sent.
    Answer(&'static [u8]),
    /// The handshake is complete.
    Ready,
    /// The peer is a subscriber and wants topics with this prefix.
    Subscribe(&'a [u8]),
    /// The peer cancels a subscription, if it has one.
    Cancel(&'a [u8]),
    /// The peer is a publisher and sends a message.
    Message(ZmtpMessage<'a>),
    /// A message with too many bytes or parts has been skipped.
    TooLarge,
    /// The peer checks whether this end is alive: [`ZmtpSession::pong`] is to be sent with this
    /// context.
    Ping(&'a [u8]),
    /// An event that needs no action.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZmtpMessage<'a> {
    bytes: &'a [u8],
    parts: &'a [(usize, usize)],
}

impl<'a> ZmtpMessage<'a> {
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// Returns the part at `index`; empty if there is none.
    pub fn part(&self, index: usize) -> &'a [u8] {
        let place = self.parts.get(index).copied().unwrap_or_default();
        self.bytes.get(place.0..place.1).unwrap_or_default()
    }
}

/// The state of the protocol on one connection.
#[derive(Debug)]
pub struct ZmtpSession {
    role: SocketRole,
    version: ZmtpVersion,
    stage: ZmtpStage,
    /// The maximum size of a message in bytes, including the heads of its frames.
    message_max: usize,
    /// The parts of the message being parsed, as ranges of the bytes not yet consumed.
    parts: [(usize, usize); PARTS_MAX],
    count: usize,
    /// The position up to which the bytes not yet consumed have been parsed.
    read: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ZmtpStage {
    Meeting(HandshakeStep),
    /// The handshake is complete, and a subscriber of 1.0 gets everything.
    Everything,
    Ready,
    /// Skipping a message: the bytes of its frame still to come, and whether another frame follows.
    Passing(u64, bool),
}

impl ZmtpSession {
    /// A new connection on which this end is a `role` and accepts messages of up to `message_max`
    /// bytes.
    pub fn new(role: SocketRole, message_max: usize) -> ZmtpSession {
        let parts = [(0, 0); PARTS_MAX];
        let (version, stage) = (ZmtpVersion::Three, ZmtpStage::Meeting(HandshakeStep::Signature));
        ZmtpSession { role, version, stage, message_max, parts, count: 0, read: 0 }
    }

    /// Returns the peer's version, which is known when the handshake is complete.
    pub fn version(&self) -> ZmtpVersion {
        self.version
    }

    /// Parses the next event in `bytes`. Returns it with the number of bytes consumed, or `None` if
    /// more bytes are needed. Each call must pass all bytes that are not consumed yet, followed by
    /// new ones.
    ///
    /// # Errors
    /// [`ZmtpError`]: the connection is to be closed.
    pub fn next<'a>(
        &'a mut self,
        bytes: &'a [u8],
    ) -> Result<Option<(usize, ZmtpEvent<'a>)>, ZmtpError> {
        match self.stage {
            ZmtpStage::Meeting(step) => self.meet(step, bytes),
            ZmtpStage::Everything => {
                self.stage = ZmtpStage::Ready;
                Ok(Some((0, ZmtpEvent::Subscribe(b""))))
            }
            ZmtpStage::Ready => self.message(bytes),
            ZmtpStage::Passing(left, more) => self.pass(bytes, left, more),
        }
    }

    /// Writes the answer to a ping.
    pub fn pong(context: &[u8], out: &mut Vec<u8>) {
        frame::command(b"PONG", context, out);
    }

    fn meet<'a>(
        &mut self,
        step: HandshakeStep,
        bytes: &'a [u8],
    ) -> Result<Option<(usize, ZmtpEvent<'a>)>, ZmtpError> {
        let Some((taken, met)) = step.read(self.role, bytes)? else { return Ok(None) };
        let event = match met {
            HandshakeProgress::Next(answer, step) => {
                self.stage = ZmtpStage::Meeting(step);
                ZmtpEvent::Answer(answer)
            }
            HandshakeProgress::Over(version) => {
                let silent = version == ZmtpVersion::One && self.role == SocketRole::Publisher;
                self.stage = if silent { ZmtpStage::Everything } else { ZmtpStage::Ready };
                self.version = version;
                ZmtpEvent::Ready
            }
        };
        Ok(Some((taken, event)))
    }

    fn message<'a>(
        &'a mut self,
        bytes: &'a [u8],
    ) -> Result<Option<(usize, ZmtpEvent<'a>)>, ZmtpError> {
        loop {
            let at = self.read;
            let head = ZmtpFrameHead::read(self.version, &bytes[at.min(bytes.len())..])?;
            let Some(head) = head else { return Ok(None) };
            if head.flags & COMMAND != 0 {
                return self.command(bytes, head);
            }
            let (start, more) = (at + head.size, head.flags & MORE != 0);
            let too_large = start as u64 + head.length > self.message_max as u64;
            if too_large || self.count == PARTS_MAX {
                (self.read, self.count) = (0, 0);
                self.stage = ZmtpStage::Passing(head.length, more);
                return Ok(Some((start, ZmtpEvent::Nothing)));
            }
            let end = start + head.length as usize;
            if end > bytes.len() {
                return Ok(None);
            }
            self.parts[self.count] = (start, end);
            self.count += 1;
            self.read = end;
            if !more {
                let message = ZmtpMessage { bytes, parts: &self.parts[..self.count] };
                (self.read, self.count) = (0, 0);
                return Ok(Some((end, self.role.event(message))));
            }
        }
    }

    fn command<'a>(
        &mut self,
        bytes: &'a [u8],
        head: ZmtpFrameHead,
    ) -> Result<Option<(usize, ZmtpEvent<'a>)>, ZmtpError> {
        if self.count > 0 || head.length > COMMAND_MAX as u64 {
            return Err(ZmtpError::Command);
        }
        let Some(body) = head.body(bytes) else { return Ok(None) };
        let event = match frame::name(body).ok_or(ZmtpError::Command)? {
            (b"PING", rest) => {
                // The first two bytes are the time that the peer waits for a sign of life. The
                // answer is immediate, so they are ignored.
                let context = rest.get(2..).ok_or(ZmtpError::Command)?;
                ZmtpEvent::Ping(&context[..context.len().min(CONTEXT_MAX)])
            }
            (b"SUBSCRIBE", topic) if self.role == SocketRole::Publisher => {
                ZmtpEvent::Subscribe(topic)
            }
            (b"CANCEL", topic) if self.role == SocketRole::Publisher => ZmtpEvent::Cancel(topic),
            (b"ERROR", _) => return Err(ZmtpError::Refused),
            _ => ZmtpEvent::Nothing,
        };
        Ok(Some((head.size + body.len(), event)))
    }

    /// Skips the rest of a message.
    fn pass<'a>(
        &mut self,
        bytes: &[u8],
        left: u64,
        more: bool,
    ) -> Result<Option<(usize, ZmtpEvent<'a>)>, ZmtpError> {
        if left > 0 {
            let taken = left.min(bytes.len() as u64);
            self.stage = ZmtpStage::Passing(left - taken, more);
            return Ok((taken > 0).then_some((taken as usize, ZmtpEvent::Nothing)));
        }
        if !more {
            self.stage = ZmtpStage::Ready;
            return Ok(Some((0, ZmtpEvent::TooLarge)));
        }
        let Some(head) = ZmtpFrameHead::read(self.version, bytes)? else { return Ok(None) };
        if head.flags & COMMAND != 0 {
            return Err(ZmtpError::Command);
        }
        self.stage = ZmtpStage::Passing(head.length, head.flags & MORE != 0);
        Ok(Some((head.size, ZmtpEvent::Nothing)))
    }
}

#[cfg(test)]
mod tests;

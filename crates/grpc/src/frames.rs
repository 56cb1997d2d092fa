//! The frames of gRPC: a message has a byte and its length in front.
//!
//! Compressed messages are refused: no caller sends them unless asked to. The doors define the
//! contents of messages.

use crate::protobuf::ProtobufSink;
use bytes::Bytes;
use tonic::{Code, Status};

/// The length of the head of a frame, in bytes.
const HEAD_BYTES: usize = 5;

/// The most memory that a frame keeps in vain, in bytes. To move a shorter one costs more time.
const SPARE_BYTES_MAX: usize = 1024;

/// Encodes a message in a gRPC frame.
#[must_use]
pub fn encode_frame(message: &impl prost::Message) -> Bytes {
    write_frame(message.encoded_len(), |sink| sink.fields_of(message))
}

/// Writes a message of about `room` bytes in a gRPC frame.
#[must_use]
pub fn write_frame(room: usize, write: impl FnOnce(&mut ProtobufSink)) -> Bytes {
    let mut begun = Vec::with_capacity(HEAD_BYTES + room);
    begun.extend_from_slice(&[0; HEAD_BYTES]);
    let mut sink = ProtobufSink::new(begun);
    write(&mut sink);
    let mut frame = sink.into_bytes();
    let length = u32::try_from(frame.len() - HEAD_BYTES).unwrap_or(u32::MAX);
    frame[1..HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    // It stays in memory for as long as the peer does not read it.
    if frame.capacity() - frame.len() > SPARE_BYTES_MAX {
        frame.shrink_to_fit();
    }
    frame.into()
}

/// Splits a gRPC body that arrives in pieces into messages. Messages that lie within one piece are
/// not copied, and a long one leaves nothing of its memory behind.
#[derive(Debug)]
pub struct FrameReader {
    /// The begin of a message that ends in a later piece.
    begun: Vec<u8>,
    /// What is unread of the last piece; empty while a message is begun.
    rest: Bytes,
    message_bytes_max: usize,
}

impl FrameReader {
    /// An empty buffer for messages of at most `message_bytes_max` bytes.
    pub fn new(message_bytes_max: usize) -> FrameReader {
        FrameReader { begun: Vec::new(), rest: Bytes::new(), message_bytes_max }
    }

    /// Adds the next piece of the body.
    pub fn push(&mut self, piece: Bytes) {
        if self.begun.is_empty() && self.rest.is_empty() {
            self.rest = piece;
            return;
        }
        let due = self.length().ok().flatten().unwrap_or(0);
        let rest = std::mem::take(&mut self.rest);
        self.begun.extend_from_slice(&rest);
        let needed = self.begun.len() + piece.len();
        if self.begun.capacity() < needed {
            // It grows by what has arrived, not by what is announced, and never beyond the message.
            self.begun.reserve_exact(due.min(2 * needed).max(needed) - self.begun.len());
        }
        self.begun.extend_from_slice(&piece);
    }

    /// The number of buffered bytes.
    pub fn buffered_bytes(&self) -> usize {
        self.unread().len()
    }

    /// The length of the next message with its frame; `None` if that has not arrived.
    ///
    /// # Errors
    /// As [`FrameReader::take`].
    pub fn length(&self) -> Result<Option<usize>, FrameError> {
        let Some([compressed, length @ ..]) = self.unread().first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if *compressed != 0 {
            return Err(FrameError::Compressed);
        }
        if length > self.message_bytes_max {
            return Err(FrameError::Long(self.message_bytes_max));
        }
        Ok(Some(HEAD_BYTES + length))
    }

    /// Takes the next complete message; `None` until all of its bytes have arrived.
    ///
    /// # Errors
    /// [`FrameError`]; the rest of the body cannot be read then.
    pub fn take(&mut self) -> Result<Option<Bytes>, FrameError> {
        let length = self.length()?.filter(|length| *length <= self.buffered_bytes());
        let Some(length) = length else { return Ok(None) };
        if self.begun.is_empty() {
            return Ok(Some(self.rest.split_to(length).slice(HEAD_BYTES..)));
        }
        let mut frame = std::mem::take(&mut self.begun);
        self.rest = Bytes::copy_from_slice(&frame[length..]);
        frame.truncate(length);
        Ok(Some(Bytes::from(frame).slice(HEAD_BYTES..)))
    }

    /// Takes the message of a body that is exactly one.
    ///
    /// # Errors
    /// [`FrameError`]: there is none, more than one, or less than all of it.
    pub fn take_only(&mut self) -> Result<Bytes, FrameError> {
        match self.take()? {
            Some(message) if self.buffered_bytes() == 0 => Ok(message),
            None if self.buffered_bytes() < HEAD_BYTES => Err(FrameError::Missing),
            Some(_) | None => Err(FrameError::Length),
        }
    }

    fn unread(&self) -> &[u8] {
        if self.begun.is_empty() { &self.rest } else { &self.begun }
    }
}

/// The reason why a body cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The body is shorter than the head of a frame.
    #[error("no message")]
    Missing,
    /// The message is longer or shorter than its frame says, or there are several messages.
    #[error("the length of the message differs from its length field")]
    Length,
    /// The message is compressed, which is not supported.
    #[error("compressed messages are not supported; send them uncompressed")]
    Compressed,
    /// The message is longer than this number of bytes.
    #[error("a message may have at most {0} bytes")]
    Long(usize),
}

impl From<FrameError> for Status {
    fn from(fault: FrameError) -> Status {
        let code = match fault {
            FrameError::Compressed => Code::Unimplemented,
            FrameError::Long(_) => Code::ResourceExhausted,
            FrameError::Missing | FrameError::Length => Code::InvalidArgument,
        };
        Status::new(code, fault.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_frame_keeps_no_spare_memory() {
        let text = "x".repeat(100_000);
        let frame = write_frame(16, |sink| (0..3).for_each(|_| sink.text(1, &text)));
        let length = frame.len();
        let held = frame.try_into_mut().expect("it is not shared").capacity();
        assert!(held - length <= SPARE_BYTES_MAX, "{held} bytes for {length}");
    }

    #[test]
    fn bytes_after_the_only_message_are_a_wrong_length() {
        let only = |bytes: &'static [u8]| {
            let mut frames = FrameReader::new(9);
            frames.push(Bytes::from_static(bytes));
            frames.take_only()
        };
        assert_eq!(only(b"\0\0\0\0\x01x"), Ok(Bytes::from_static(b"x")));
        assert_eq!(only(b"\0\0\0\0\x01xy"), Err(FrameError::Length));
        assert_eq!(only(b"\0\0\0\0\x02x"), Err(FrameError::Length));
        assert_eq!(only(b"\0\0\0"), Err(FrameError::Missing));
    }
}

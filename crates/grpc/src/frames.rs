//! The frames of gRPC: a message has a byte and its length in front.
//!
//! Compressed messages are refused: no caller sends them unless asked to. What a message is, the
//! doors know.

use bytes::{BufMut, Bytes, BytesMut};
use tonic::{Code, Status};

/// Encodes a message in a gRPC frame.
#[must_use]
pub fn encode_frame(message: &impl prost::Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(5 + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Encoding fails only without enough space, and the buffer grows.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// Splits a gRPC body that arrives in pieces into messages.
#[derive(Debug)]
pub struct FrameReader {
    bytes: BytesMut,
    message_bytes_max: usize,
}

impl FrameReader {
    /// An empty buffer for messages of at most `message_bytes_max` bytes.
    pub fn new(message_bytes_max: usize) -> FrameReader {
        FrameReader { bytes: BytesMut::new(), message_bytes_max }
    }

    /// Adds the next piece of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The number of buffered bytes.
    pub fn buffered_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the next complete message; `None` until all of its bytes have arrived.
    ///
    /// # Errors
    /// [`FrameError`]; the rest of the body cannot be read then.
    pub fn take(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<5>() else { return Ok(None) };
        let [compressed, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 {
            return Err(FrameError::Compressed);
        }
        if length > self.message_bytes_max {
            return Err(FrameError::Long(self.message_bytes_max));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let frame = self.bytes.split_to(5 + length).freeze();
        Ok(Some(frame.slice(5..)))
    }
}

/// The message of a body that is exactly one frame.
pub fn decode_frame(mut bytes: Bytes) -> Result<Bytes, FrameError> {
    let Some([compressed, length @ ..]) = bytes.first_chunk::<5>().copied() else {
        return Err(FrameError::Missing);
    };
    if compressed != 0 {
        return Err(FrameError::Compressed);
    }
    let message = bytes.split_off(5);
    match message.len() == u32::from_be_bytes(length) as usize {
        true => Ok(message),
        false => Err(FrameError::Length),
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

//! Frames: a byte of flags, a length of one or eight bytes, and then the body. In 1.0 the length
//! comes before the flags.
//!
//! A message is a sequence of frames; all but the last have the flag [`MORE`]. A command (from 3.0
//! on) is a frame that begins with its name. No frame is stored here, and the meaning of frames is
//! up to the session.

use super::error::{FRAME_MAX, ZmtpError};
use super::version::ZmtpVersion;

/// The flag that another frame of the same message follows.
pub const MORE: u8 = 1;
/// The flag that the length has eight bytes.
const LONG: u8 = 2;
/// The flag of a command, which is not part of a message.
pub const COMMAND: u8 = 4;
/// The first length that needs eight bytes. In 1.0, in which the length includes the flags, a byte
/// with the value `LONG_OF_ONE` precedes those eight bytes.
const LONG_FROM: usize = 256;
const LONG_OF_ONE: u8 = 0xff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZmtpFrameHead {
    pub flags: u8,
    /// The size of the head itself, in bytes.
    pub size: usize,
    /// The length of the body, in bytes.
    pub length: u64,
}

impl ZmtpFrameHead {
    /// Parses a head at the start of `bytes`. Returns `None` if more bytes are needed.
    pub fn read(version: ZmtpVersion, bytes: &[u8]) -> Result<Option<ZmtpFrameHead>, ZmtpError> {
        let head = match version {
            ZmtpVersion::One => ZmtpFrameHead::of_one(bytes)?,
            ZmtpVersion::Two | ZmtpVersion::Three => ZmtpFrameHead::of_two(version, bytes)?,
        };
        match head {
            Some(ZmtpFrameHead { length, .. }) if length > FRAME_MAX => {
                Err(ZmtpError::Length(length))
            }
            head => Ok(head),
        }
    }

    /// Parses a head of 1.0: the length includes the byte of flags, which follows it.
    fn of_one(bytes: &[u8]) -> Result<Option<ZmtpFrameHead>, ZmtpError> {
        let (length, rest) = match bytes.split_first() {
            None => return Ok(None),
            Some((&LONG_OF_ONE, rest)) => match rest.split_first_chunk() {
                None => return Ok(None),
                Some((length, rest)) => (u64::from_be_bytes(*length), rest),
            },
            Some((&length, rest)) => (u64::from(length), rest),
        };
        let length = length.checked_sub(1).ok_or(ZmtpError::Length(0))?;
        let Some(&flags) = rest.first() else { return Ok(None) };
        if flags & !MORE != 0 {
            return Err(ZmtpError::Flags(flags));
        }
        Ok(Some(ZmtpFrameHead { flags, size: bytes.len() - rest.len() + 1, length }))
    }

    fn of_two(version: ZmtpVersion, bytes: &[u8]) -> Result<Option<ZmtpFrameHead>, ZmtpError> {
        let Some((&flags, rest)) = bytes.split_first() else { return Ok(None) };
        let known = if version == ZmtpVersion::Three { MORE | LONG | COMMAND } else { MORE | LONG };
        if flags & !known != 0 || flags & (COMMAND | MORE) == COMMAND | MORE {
            return Err(ZmtpError::Flags(flags));
        }
        if flags & LONG == 0 {
            let head = |length: &u8| ZmtpFrameHead { flags, size: 2, length: u64::from(*length) };
            return Ok(rest.first().map(head));
        }
        let head = |length: &[u8; 8]| ZmtpFrameHead {
            flags,
            size: 9,
            length: u64::from_be_bytes(*length),
        };
        Ok(rest.first_chunk().map(head))
    }

    /// Returns the body that follows the head in `bytes`, if it is complete.
    pub fn body<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let end = self.size.checked_add(usize::try_from(self.length).ok()?)?;
        bytes.get(self.size..end)
    }
}

/// Splits a command into its name and the rest. The first byte is the length of the name.
pub fn name(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = body.split_first()?;
    rest.split_at_checked(usize::from(length))
}

fn frame(flags: u8, length: usize, out: &mut Vec<u8>) {
    if length < LONG_FROM {
        out.extend([flags, length as u8]);
    } else {
        out.push(flags | LONG);
        out.extend((length as u64).to_be_bytes());
    }
}

fn frame_of_one(flags: u8, length: usize, out: &mut Vec<u8>) {
    let length = length + 1;
    if length < usize::from(LONG_OF_ONE) {
        out.push(length as u8);
    } else {
        out.push(LONG_OF_ONE);
        out.extend((length as u64).to_be_bytes());
    }
    out.push(flags);
}

/// Writes a message of these parts for a peer of this version.
pub fn message(version: ZmtpVersion, parts: &[&[u8]], out: &mut Vec<u8>) {
    for (index, part) in parts.iter().enumerate() {
        let flags = if index + 1 < parts.len() { MORE } else { 0 };
        match version {
            ZmtpVersion::One => frame_of_one(flags, part.len(), out),
            ZmtpVersion::Two | ZmtpVersion::Three => frame(flags, part.len(), out),
        }
        out.extend(*part);
    }
}

/// Writes a subscription to topics with this prefix. Writes nothing for a peer of 1.0, which sends
/// everything and reads nothing.
pub fn subscription(version: ZmtpVersion, topic: &[u8], out: &mut Vec<u8>) {
    if version != ZmtpVersion::One {
        message(version, &[&[&[1], topic].concat()], out);
    }
}

pub fn command(name: &[u8], body: &[u8], out: &mut Vec<u8>) {
    frame(COMMAND, 1 + name.len() + body.len(), out);
    out.push(name.len() as u8);
    out.extend(name);
    out.extend(body);
}

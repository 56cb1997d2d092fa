//! Frames: a byte of flags, a length of one byte or eight, and so many bytes.
//!
//! Messages are frames of which all but the last say that more follow; commands are frames that
//! begin with their name. Nothing is kept here; what frames mean is up to the session.

use super::{FRAME_MAX, Fault};

/// Another frame of the same message follows.
pub const MORE: u8 = 1;
/// The length has eight bytes.
const LONG: u8 = 2;
/// It is no part of a message.
pub const COMMAND: u8 = 4;
/// Lengths from here on have eight bytes.
const LONG_FROM: usize = 256;

/// What a frame begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub flags: u8,
    /// Bytes of the head itself,
    pub size: usize,
    /// and of what follows it.
    pub length: u64,
}

impl Head {
    /// Reads one off the start of `bytes`; `None` if more are needed.
    pub fn read(bytes: &[u8]) -> Result<Option<Head>, Fault> {
        let Some((&flags, rest)) = bytes.split_first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (COMMAND | MORE) == COMMAND | MORE {
            return Err(Fault::Flags(flags));
        }
        if flags & LONG == 0 {
            let head = |length: &u8| Head { flags, size: 2, length: u64::from(*length) };
            return Ok(rest.first().map(head));
        }
        let Some(length) = rest.first_chunk() else { return Ok(None) };
        let length = u64::from_be_bytes(*length);
        let head = Head { flags, size: 9, length };
        if length > FRAME_MAX { Err(Fault::Length(length)) } else { Ok(Some(head)) }
    }

    /// What follows it in `bytes`, if all of it is there.
    pub fn body<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let end = self.size.checked_add(usize::try_from(self.length).ok()?)?;
        bytes.get(self.size..end)
    }
}

/// Takes the name off a command: a byte says how long it is.
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

/// Writes a message of these parts.
pub fn message(parts: &[&[u8]], out: &mut Vec<u8>) {
    for (index, part) in parts.iter().enumerate() {
        frame(if index + 1 < parts.len() { MORE } else { 0 }, part.len(), out);
        out.extend(*part);
    }
}

/// Writes what subscribes to everything that begins with `topic`, in the form that versions 3.0
/// and later understand.
pub fn subscription(topic: &[u8], out: &mut Vec<u8>) {
    frame(0, 1 + topic.len(), out);
    out.push(1);
    out.extend(topic);
}

/// Writes a command.
pub fn command(name: &[u8], body: &[u8], out: &mut Vec<u8>) {
    frame(COMMAND, 1 + name.len() + body.len(), out);
    out.push(name.len() as u8);
    out.extend(name);
    out.extend(body);
}

//! How two ends meet, from the first byte until messages may be sent.
//!
//! Each version begins with bytes that its predecessor takes for something harmless, so nobody has
//! to be configured: the first bytes of a peer say what it speaks, and from then on we answer in
//! the same. The signature comes first, which 1.0 reads as the identity of a peer without a name.
//! A peer of 1.0 begins with its own identity. One of 2.0 sends the signature, a revision below 3,
//! the number of its socket type and its identity. One of 3.0 sends 64 bytes and then a command.
//!
//! Checked is that the other end speaks a version and mechanism that we do, and is the kind of
//! socket that belongs to ours; 1.0 does not say which kind it is. Identities mean nothing between
//! these kinds. Sources: rfc.zeromq.org/spec/13, 15 and 23.

use super::{COMMAND_MAX, Event, Fault, Message, frame};
use frame::{COMMAND, Head, MORE};
use std::fmt;

/// What we send first: the head of a frame of one byte, as 1.0 has it, and its flags.
pub const SIGNATURE: [u8; 10] = [FIRST, 0, 0, 0, 0, 0, 0, 0, 1, TENTH];
/// The first byte of a signature, and its tenth.
const FIRST: u8 = 0xff;
const TENTH: u8 = 0x7f;
/// The revision that we send.
const REVISION: &[u8] = &[3];
/// The rest of a greeting of 3.0: a minor version, the mechanism, and zeros.
const REST: &[u8; 53] = b"\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// Where the mechanism is in that.
const MECHANISM: std::ops::Range<usize> = 1..21;
/// The longest identity; one of 1.0 counts its flags too.
const IDENTITY_MAX: u64 = 255;

/// What a peer speaks. Later versions than 3.0 speak 3.0 to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// ZeroMQ 2. Publishers send everything, as subscribers do not say what they want.
    One,
    /// ZeroMQ 3.2 and later 3.
    Two,
    /// ZeroMQ 4 and later.
    Three,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::One => "1.0",
            Version::Two => "2.0",
            Version::Three => "3.0",
        })
    }
}

/// What our end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It sends messages to those who subscribe.
    Publisher,
    /// It subscribes, and is sent messages.
    Subscriber,
}

impl Role {
    /// What the other end may be: names, and numbers of 2.0.
    fn fitting(self) -> ([&'static [u8]; 2], [u8; 2]) {
        match self {
            Role::Publisher => ([b"SUB", b"XSUB"], [2, 10]),
            Role::Subscriber => ([b"PUB", b"XPUB"], [1, 9]),
        }
    }

    /// What this end says of itself in 2.0: the number of its type, and an identity without bytes.
    fn numbered(self) -> &'static [u8] {
        match self {
            Role::Publisher => &[1, 0, 0],
            Role::Subscriber => &[2, 0, 0],
        }
    }

    /// What it says of itself in 3.0.
    fn ready(self) -> &'static [u8] {
        match self {
            Role::Publisher => b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03PUB\x08Identity\0\0\0\0",
            Role::Subscriber => {
                b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03SUB\x08Identity\0\0\0\0"
            }
        }
    }

    /// What a message means that comes to this end.
    pub fn event(self, message: Message<'_>) -> Event<'_> {
        match (self, message.part(0).split_first()) {
            (Role::Subscriber, _) => Event::Message(message),
            (Role::Publisher, Some((1, topic))) if message.count() == 1 => Event::Subscribe(topic),
            (Role::Publisher, Some((0, topic))) if message.count() == 1 => Event::Cancel(topic),
            // A socket of the kind XSUB may send messages of its own; nobody reads them here.
            (Role::Publisher, _) => Event::Nothing,
        }
    }
}

/// How far two ends have met: what is to come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The signature, or the identity of a peer of 1.0.
    Signature,
    Revision,
    /// Socket type and identity of 2.0.
    Numbered,
    /// The rest of a greeting of 3.0.
    Rest,
    /// The command that ends the handshake of 3.0.
    Ready,
}

/// What comes of a step.
pub enum Met {
    /// This is to be sent, and that is next.
    Next(&'static [u8], Step),
    /// The handshake is over.
    Over(Version),
}

impl Step {
    /// Reads what is to come, and says how many bytes it has; `None` if more are needed. What is
    /// wrong is found as early as can be.
    pub fn read(self, role: Role, bytes: &[u8]) -> Result<Option<(usize, Met)>, Fault> {
        match self {
            Step::Signature => signature(bytes),
            Step::Revision => match bytes.first() {
                None => Ok(None),
                Some(0) => Err(Fault::Version(0)),
                Some(1..=2) => Ok(Some((1, Met::Next(role.numbered(), Step::Numbered)))),
                Some(_) => Ok(Some((1, Met::Next(REST, Step::Rest)))),
            },
            Step::Numbered => numbered(role, bytes),
            Step::Rest => {
                if bytes.get(MECHANISM).is_some_and(|mechanism| mechanism != &REST[MECHANISM]) {
                    return Err(Fault::Mechanism);
                }
                let whole = bytes.len() >= REST.len();
                Ok(whole.then_some((REST.len(), Met::Next(role.ready(), Step::Ready))))
            }
            Step::Ready => ready(role, bytes),
        }
    }
}

/// A signature has more than 1.0's flags of an identity in its tenth byte.
fn signature(bytes: &[u8]) -> Result<Option<(usize, Met)>, Fault> {
    match (bytes.first(), bytes.get(SIGNATURE.len() - 1)) {
        (Some(&FIRST), None) | (None, _) => Ok(None),
        (Some(&FIRST), Some(&TENTH)) => {
            Ok(Some((SIGNATURE.len(), Met::Next(REVISION, Step::Revision))))
        }
        _ => identity(bytes),
    }
}

/// The identity that a peer of 1.0 sends first. Strangers are told from it by its second byte.
fn identity(bytes: &[u8]) -> Result<Option<(usize, Met)>, Fault> {
    let head = Head::read(Version::One, bytes).map_err(|_| Fault::Signature)?;
    let Some(head) = head else { return Ok(None) };
    if head.flags & MORE != 0 || head.length > IDENTITY_MAX {
        return Err(Fault::Signature);
    }
    let body = head.body(bytes);
    Ok(body.map(|body| (head.size + body.len(), Met::Over(Version::One))))
}

/// The number of a socket type, and the identity in a frame of 2.0.
fn numbered(role: Role, bytes: &[u8]) -> Result<Option<(usize, Met)>, Fault> {
    let Some((kind, rest)) = bytes.split_first() else { return Ok(None) };
    if !role.fitting().1.contains(kind) {
        return Err(Fault::SocketType);
    }
    let Some(head) = Head::read(Version::Two, rest)? else { return Ok(None) };
    if head.flags & MORE != 0 || head.length > IDENTITY_MAX {
        return Err(Fault::Handshake);
    }
    let body = head.body(rest);
    Ok(body.map(|body| (1 + head.size + body.len(), Met::Over(Version::Two))))
}

/// The command with the properties of a peer of 3.0.
fn ready(role: Role, bytes: &[u8]) -> Result<Option<(usize, Met)>, Fault> {
    let Some(head) = Head::read(Version::Three, bytes)? else { return Ok(None) };
    if head.flags & COMMAND == 0 || head.length > COMMAND_MAX as u64 {
        return Err(Fault::Handshake);
    }
    let Some(body) = head.body(bytes) else { return Ok(None) };
    match frame::name(body).ok_or(Fault::Handshake)? {
        (b"READY", rest) => check(role, rest)?,
        (b"ERROR", _) => return Err(Fault::Refused),
        _ => return Err(Fault::Handshake),
    }
    Ok(Some((head.size + body.len(), Met::Over(Version::Three))))
}

/// Reads the properties of the other end, and whether it belongs to ours.
fn check(role: Role, mut properties: &[u8]) -> Result<(), Fault> {
    let mut kind = None;
    while !properties.is_empty() {
        let (name, value, rest) = property(properties).ok_or(Fault::Handshake)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            kind = Some(value);
        }
        properties = rest;
    }
    let fits = kind.is_some_and(|kind| role.fitting().0.contains(&kind));
    if fits { Ok(()) } else { Err(Fault::SocketType) }
}

/// Name, value and what follows.
fn property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = frame::name(bytes)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some((name, value, rest))
}

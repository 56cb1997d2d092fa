//! The handshake, from the first byte until messages may be sent.
//!
//! Each version begins with bytes that its predecessor reads as something harmless, so no version
//! has to be configured: the first bytes of a peer show its version, and this end then answers in
//! the same version. The signature comes first, which 1.0 reads as the identity of a peer without a
//! name. A peer of 1.0 begins with its own identity. A peer of 2.0 sends the signature, a revision
//! below 3, the number of its socket type and its identity. A peer of 3.0 sends 64 bytes and then a
//! command.
//!
//! The handshake checks the peer's version and mechanism, and that its socket type is the
//! counterpart of this end; 1.0 does not state its type. Identities mean nothing between these
//! types. Sources: rfc.zeromq.org/spec/13, 15 and 23.

use super::{COMMAND_MAX, Event, Fault, Message, frame};
use frame::{COMMAND, Head, MORE};
use std::fmt;

/// The first bytes that this end sends: in 1.0 the head of a frame of one byte, and its flags.
pub const SIGNATURE: [u8; 10] = [FIRST, 0, 0, 0, 0, 0, 0, 0, 1, TENTH];
/// The first and the tenth byte of a signature.
const FIRST: u8 = 0xff;
const TENTH: u8 = 0x7f;
/// The revision that this end sends.
const REVISION: &[u8] = &[3];
/// The rest of a 3.0 greeting: a minor version, the mechanism, and zeros.
const REST: &[u8; 53] = b"\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// The position of the mechanism in [`REST`].
const MECHANISM: std::ops::Range<usize> = 1..21;
/// The maximum length of an identity in bytes. In 1.0 the length includes the flags.
const IDENTITY_MAX: u64 = 255;

/// The protocol version of a peer. Versions later than 3.0 speak 3.0 to this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// ZeroMQ 2. Publishers send everything, since subscribers do not state what they want.
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

/// The role of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It sends messages to subscribers.
    Publisher,
    /// It subscribes and receives messages.
    Subscriber,
}

impl Role {
    /// Returns the socket types that the peer may have: their names, and their numbers in 2.0.
    fn fitting(self) -> ([&'static [u8]; 2], [u8; 2]) {
        match self {
            Role::Publisher => ([b"SUB", b"XSUB"], [2, 10]),
            Role::Subscriber => ([b"PUB", b"XPUB"], [1, 9]),
        }
    }

    /// Returns what this end sends in 2.0: the number of its type, and an empty identity.
    fn numbered(self) -> &'static [u8] {
        match self {
            Role::Publisher => &[1, 0, 0],
            Role::Subscriber => &[2, 0, 0],
        }
    }

    /// Returns what this end sends in 3.0: the READY command with its properties.
    fn ready(self) -> &'static [u8] {
        match self {
            Role::Publisher => b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03PUB\x08Identity\0\0\0\0",
            Role::Subscriber => {
                b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03SUB\x08Identity\0\0\0\0"
            }
        }
    }

    /// Returns the meaning of a message that arrives at this end.
    pub fn event(self, message: Message<'_>) -> Event<'_> {
        match (self, message.part(0).split_first()) {
            (Role::Subscriber, _) => Event::Message(message),
            (Role::Publisher, Some((1, topic))) if message.count() == 1 => Event::Subscribe(topic),
            (Role::Publisher, Some((0, topic))) if message.count() == 1 => Event::Cancel(topic),
            // A socket of type XSUB may send messages of its own, which are ignored here.
            (Role::Publisher, _) => Event::Nothing,
        }
    }
}

/// The next step of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The signature, or the identity of a peer of 1.0.
    Signature,
    Revision,
    /// The socket type and identity of 2.0.
    Numbered,
    /// The rest of a 3.0 greeting.
    Rest,
    /// The command that ends the handshake of 3.0.
    Ready,
}

/// The result of a step.
pub enum Met {
    /// The bytes to send, and the next step.
    Next(&'static [u8], Step),
    /// The handshake is complete, in this version.
    Over(Version),
}

impl Step {
    /// Parses this step. Returns the number of bytes consumed, or `None` if more are needed. Errors
    /// are found as early as possible.
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

/// Parses a signature. Its tenth byte is not a valid flags byte of a 1.0 identity.
fn signature(bytes: &[u8]) -> Result<Option<(usize, Met)>, Fault> {
    match (bytes.first(), bytes.get(SIGNATURE.len() - 1)) {
        (Some(&FIRST), None) | (None, _) => Ok(None),
        (Some(&FIRST), Some(&TENTH)) => {
            Ok(Some((SIGNATURE.len(), Met::Next(REVISION, Step::Revision))))
        }
        _ => identity(bytes),
    }
}

/// Parses the identity that a peer of 1.0 sends first. Other protocols differ from it in the second
/// byte.
fn identity(bytes: &[u8]) -> Result<Option<(usize, Met)>, Fault> {
    let head = Head::read(Version::One, bytes).map_err(|_| Fault::Signature)?;
    let Some(head) = head else { return Ok(None) };
    if head.flags & MORE != 0 || head.length > IDENTITY_MAX {
        return Err(Fault::Signature);
    }
    let body = head.body(bytes);
    Ok(body.map(|body| (head.size + body.len(), Met::Over(Version::One))))
}

/// Parses the socket type and the identity frame of 2.0.
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

/// Parses the command with the properties of a peer of 3.0.
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

/// Parses the peer's properties, and checks that its type is the counterpart of this end.
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

/// Splits off one property: its name, its value and the rest.
fn property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = frame::name(bytes)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some((name, value, rest))
}

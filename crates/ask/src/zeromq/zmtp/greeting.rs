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

use super::error::ZmtpError;
use super::frame::{self, COMMAND, MORE, ZmtpFrameHead};
use super::version::ZmtpVersion;
use super::{COMMAND_MAX, ZmtpEvent, ZmtpMessage};

/// The first bytes that this end sends: in 1.0 the head of a frame of one byte, and its flags.
pub const SIGNATURE: [u8; 10] = [SIGNATURE_FIRST, 0, 0, 0, 0, 0, 0, 0, 1, SIGNATURE_TENTH];
/// The first and the tenth byte of a signature.
const SIGNATURE_FIRST: u8 = 0xff;
const SIGNATURE_TENTH: u8 = 0x7f;
/// The revision that this end sends.
const REVISION: &[u8] = &[3];
/// The rest of a 3.0 greeting: a minor version, the mechanism, and zeros.
const GREETING_REST: &[u8; 53] = b"\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// The position of the mechanism in [`GREETING_REST`].
const MECHANISM: std::ops::Range<usize> = 1..21;
/// The maximum length of an identity in bytes. In 1.0 the length includes the flags.
const IDENTITY_MAX: u64 = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketRole {
    /// It sends messages to subscribers.
    Publisher,
    /// It subscribes and receives messages.
    Subscriber,
}

impl SocketRole {
    /// Returns the socket types that the peer may have: their names, and their numbers in 2.0.
    fn fitting(self) -> ([&'static [u8]; 2], [u8; 2]) {
        match self {
            SocketRole::Publisher => ([b"SUB", b"XSUB"], [2, 10]),
            SocketRole::Subscriber => ([b"PUB", b"XPUB"], [1, 9]),
        }
    }

    /// Returns what this end sends in 2.0: the number of its type, and an empty identity.
    fn numbered(self) -> &'static [u8] {
        match self {
            SocketRole::Publisher => &[1, 0, 0],
            SocketRole::Subscriber => &[2, 0, 0],
        }
    }

    /// Returns what this end sends in 3.0: the READY command with its properties.
    fn ready(self) -> &'static [u8] {
        match self {
            SocketRole::Publisher => {
                b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03PUB\x08Identity\0\0\0\0"
            }
            SocketRole::Subscriber => {
                b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03SUB\x08Identity\0\0\0\0"
            }
        }
    }

    /// Returns the meaning of a message that arrives at this end.
    pub fn event(self, message: ZmtpMessage<'_>) -> ZmtpEvent<'_> {
        match (self, message.part(0).split_first()) {
            (SocketRole::Subscriber, _) => ZmtpEvent::Message(message),
            (SocketRole::Publisher, Some((1, topic))) if message.count() == 1 => {
                ZmtpEvent::Subscribe(topic)
            }
            (SocketRole::Publisher, Some((0, topic))) if message.count() == 1 => {
                ZmtpEvent::Cancel(topic)
            }
            // A socket of type XSUB may send messages of its own, which are ignored here.
            (SocketRole::Publisher, _) => ZmtpEvent::Nothing,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// The signature, or the identity of a peer of 1.0.
    Signature,
    Revision,
    /// The socket type and identity of 2.0.
    Numbered,
    Rest,
    /// The command that ends the handshake of 3.0.
    Ready,
}

pub enum HandshakeProgress {
    /// The bytes to send, and the next step.
    Next(&'static [u8], HandshakeStep),
    /// The handshake is complete, in this version.
    Over(ZmtpVersion),
}

impl HandshakeStep {
    /// Parses this step. Returns the number of bytes consumed, or `None` if more are needed. Errors
    /// are found as early as possible.
    pub fn read(
        self,
        role: SocketRole,
        bytes: &[u8],
    ) -> Result<Option<(usize, HandshakeProgress)>, ZmtpError> {
        match self {
            HandshakeStep::Signature => signature(bytes),
            HandshakeStep::Revision => match bytes.first() {
                None => Ok(None),
                Some(0) => Err(ZmtpError::Version(0)),
                Some(1..=2) => {
                    Ok(Some((1, HandshakeProgress::Next(role.numbered(), HandshakeStep::Numbered))))
                }
                Some(_) => {
                    Ok(Some((1, HandshakeProgress::Next(GREETING_REST, HandshakeStep::Rest))))
                }
            },
            HandshakeStep::Numbered => numbered(role, bytes),
            HandshakeStep::Rest => {
                if bytes
                    .get(MECHANISM)
                    .is_some_and(|mechanism| mechanism != &GREETING_REST[MECHANISM])
                {
                    return Err(ZmtpError::Mechanism);
                }
                let whole = bytes.len() >= GREETING_REST.len();
                Ok(whole.then_some((
                    GREETING_REST.len(),
                    HandshakeProgress::Next(role.ready(), HandshakeStep::Ready),
                )))
            }
            HandshakeStep::Ready => ready(role, bytes),
        }
    }
}

/// Parses a signature. Its tenth byte is not a valid flags byte of a 1.0 identity.
fn signature(bytes: &[u8]) -> Result<Option<(usize, HandshakeProgress)>, ZmtpError> {
    match (bytes.first(), bytes.get(SIGNATURE.len() - 1)) {
        (Some(&SIGNATURE_FIRST), None) | (None, _) => Ok(None),
        (Some(&SIGNATURE_FIRST), Some(&SIGNATURE_TENTH)) => {
            Ok(Some((SIGNATURE.len(), HandshakeProgress::Next(REVISION, HandshakeStep::Revision))))
        }
        _ => identity(bytes),
    }
}

/// Parses the identity that a peer of 1.0 sends first. Other protocols differ from it in the second
/// byte.
fn identity(bytes: &[u8]) -> Result<Option<(usize, HandshakeProgress)>, ZmtpError> {
    let head = ZmtpFrameHead::read(ZmtpVersion::One, bytes).map_err(|_| ZmtpError::Signature)?;
    let Some(head) = head else { return Ok(None) };
    if head.flags & MORE != 0 || head.length > IDENTITY_MAX {
        return Err(ZmtpError::Signature);
    }
    let body = head.body(bytes);
    Ok(body.map(|body| (head.size + body.len(), HandshakeProgress::Over(ZmtpVersion::One))))
}

/// Parses the socket type and the identity frame of 2.0.
fn numbered(
    role: SocketRole,
    bytes: &[u8],
) -> Result<Option<(usize, HandshakeProgress)>, ZmtpError> {
    let Some((kind, rest)) = bytes.split_first() else { return Ok(None) };
    if !role.fitting().1.contains(kind) {
        return Err(ZmtpError::SocketType);
    }
    let Some(head) = ZmtpFrameHead::read(ZmtpVersion::Two, rest)? else { return Ok(None) };
    if head.flags & MORE != 0 || head.length > IDENTITY_MAX {
        return Err(ZmtpError::Handshake);
    }
    let body = head.body(rest);
    Ok(body.map(|body| (1 + head.size + body.len(), HandshakeProgress::Over(ZmtpVersion::Two))))
}

/// Parses the command with the properties of a peer of 3.0.
fn ready(role: SocketRole, bytes: &[u8]) -> Result<Option<(usize, HandshakeProgress)>, ZmtpError> {
    let Some(head) = ZmtpFrameHead::read(ZmtpVersion::Three, bytes)? else { return Ok(None) };
    if head.flags & COMMAND == 0 || head.length > COMMAND_MAX as u64 {
        return Err(ZmtpError::Handshake);
    }
    let Some(body) = head.body(bytes) else { return Ok(None) };
    match frame::name(body).ok_or(ZmtpError::Handshake)? {
        (b"READY", rest) => check(role, rest)?,
        (b"ERROR", _) => return Err(ZmtpError::Refused),
        _ => return Err(ZmtpError::Handshake),
    }
    Ok(Some((head.size + body.len(), HandshakeProgress::Over(ZmtpVersion::Three))))
}

/// Parses the peer's properties, and checks that its type is the counterpart of this end.
fn check(role: SocketRole, mut properties: &[u8]) -> Result<(), ZmtpError> {
    let mut kind = None;
    while !properties.is_empty() {
        let (name, value, rest) = property(properties).ok_or(ZmtpError::Handshake)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            kind = Some(value);
        }
        properties = rest;
    }
    let fits = kind.is_some_and(|kind| role.fitting().0.contains(&kind));
    if fits { Ok(()) } else { Err(ZmtpError::SocketType) }
}

/// Splits off one property: its name, its value and the rest.
fn property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = frame::name(bytes)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some((name, value, rest))
}

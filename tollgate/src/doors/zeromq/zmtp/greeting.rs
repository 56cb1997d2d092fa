//! How two ends meet: 64 bytes each, then a command each that says what socket it is.
//!
//! Checked is that the other end speaks a version and mechanism that we do, and is the kind of
//! socket that belongs to ours. Its other properties (an identity) mean nothing between these
//! kinds.

use super::{Event, Fault, Message, frame};

/// Bytes of a greeting.
const LENGTH: usize = 64;
/// The first byte, eight that say nothing, and the tenth.
const FIRST: u8 = 0xff;
const TENTH: u8 = 0x7f;
/// Where the version is, where the mechanism, and how long that is.
const VERSION: usize = 10;
const MECHANISM: std::ops::Range<usize> = 12..32;
const NULL: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// What our end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It sends messages to those who subscribe.
    Publisher,
    /// It subscribes, and is sent messages.
    Subscriber,
}

impl Role {
    fn name(self) -> &'static [u8] {
        match self {
            Role::Publisher => b"PUB",
            Role::Subscriber => b"SUB",
        }
    }

    /// What the other end may be.
    fn fitting(self) -> [&'static [u8]; 2] {
        match self {
            Role::Publisher => [b"SUB", b"XSUB"],
            Role::Subscriber => [b"PUB", b"XPUB"],
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

/// The greeting that both kinds send first.
#[must_use]
pub fn greeting() -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    (bytes[0], bytes[9], bytes[VERSION]) = (FIRST, TENTH, 3);
    bytes[MECHANISM].copy_from_slice(NULL);
    bytes
}

/// Reads a greeting; says how long it is once it is there, and what is wrong as early as can be.
pub fn read(bytes: &[u8]) -> Result<Option<usize>, Fault> {
    let wrong = |at: usize, expected: u8| bytes.get(at).is_some_and(|byte| *byte != expected);
    if wrong(0, FIRST) || wrong(9, TENTH) {
        return Err(Fault::Signature);
    }
    if let Some(version) = bytes.get(VERSION).filter(|version| **version < 3) {
        return Err(Fault::Version(*version));
    }
    if bytes.get(MECHANISM).is_some_and(|mechanism| mechanism != NULL) {
        return Err(Fault::Mechanism);
    }
    Ok((bytes.len() >= LENGTH).then_some(LENGTH))
}

/// Writes the command that ends our side of the handshake.
pub fn ready(role: Role, out: &mut Vec<u8>) {
    let mut properties = Vec::new();
    for (name, value) in [(&b"Socket-Type"[..], role.name()), (b"Identity", b"")] {
        properties.push(name.len() as u8);
        properties.extend(name);
        properties.extend((value.len() as u32).to_be_bytes());
        properties.extend(value);
    }
    frame::command(b"READY", &properties, out);
}

/// Reads the properties of the other end, and whether it belongs to ours.
pub fn check(role: Role, mut properties: &[u8]) -> Result<(), Fault> {
    let mut kind = None;
    while !properties.is_empty() {
        let (name, value, rest) = property(properties).ok_or(Fault::Handshake)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            kind = Some(value);
        }
        properties = rest;
    }
    let fits = kind.is_some_and(|kind| role.fitting().contains(&kind));
    if fits { Ok(()) } else { Err(Fault::SocketType) }
}

/// Name, value and what follows.
fn property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = frame::name(bytes)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    Some((name, value, rest))
}

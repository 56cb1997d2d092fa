//! Fingerprints of the program that a client uses, from the first bytes of its connection and from
//! its headers.
//!
//! Clients with the same program have the same fingerprint, so a fingerprint groups clients and
//! never names one. Everything here is a pure function over bytes that a client chose: bounded, and
//! without a result if they are malformed. Capturing the bytes: the front of `proxy`.

pub mod fetch;
pub mod h2;
pub mod ja4;
pub mod rtt;

/// The result of parsing the first bytes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrintParse<T> {
    /// The bytes are too few to decide.
    More,
    /// The fingerprint.
    Whole(T),
    /// The bytes are malformed or exceed the bounds.
    Bad,
}

/// Values that clients make up so that servers ignore what they do not know (GREASE, RFC 8701).
/// They differ from connection to connection.
fn is_grease(value: u16) -> bool {
    value & 0x0f0f == 0x0a0a && value >> 8 == value & 0xff
}

/// Takes values off the front of bytes, all in network byte order.
#[derive(Clone, Copy)]
struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of up to 4 bytes.
    fn number(&mut self, bytes: usize) -> Option<u32> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
    }

    fn u16(&mut self) -> Option<u16> {
        u16::try_from(self.number(2)?).ok()
    }

    /// Bytes behind their length, which itself takes `bytes`.
    fn vector(&mut self, bytes: usize) -> Option<ByteReader<'a>> {
        let count = usize::try_from(self.number(bytes)?).ok()?;
        self.take(count).map(ByteReader)
    }

    /// All that is left as a list of numbers of two bytes; `None` if a byte is left over.
    fn u16s(self) -> Option<impl Iterator<Item = u16> + 'a> {
        let (pairs, []) = self.0.as_chunks::<2>() else { return None };
        Some(pairs.iter().map(|pair| u16::from_be_bytes(*pair)))
    }

    fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

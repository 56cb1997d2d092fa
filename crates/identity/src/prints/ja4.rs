//! JA4, the fingerprint of a TLS client, from its ClientHello.
//!
//! It has the form `t13d1516h2_8daaf6152771_e5627efa2ab1`: protocol, version, server name, the
//! numbers of ciphers and extensions, the first application protocol; then hashes of the ciphers,
//! and of the extensions with the signature algorithms. Order does not matter, because browsers
//! shuffle their extensions. Specification: FoxIO, `technical_details/JA4.md`. Only JA4 itself is
//! free to use (BSD); JA4H, JA4T and the other members of JA4+ are not.

use super::{ByteReader, PrintParse, is_grease};
use aws_lc_rs::digest::{Context, SHA256};
use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};

/// The maximum length of a ClientHello with the headers of its records, in bytes. Those of browsers
/// have about 2 KiB.
pub const HELLO_BYTES_MAX: usize = 16 * 1024;

/// The maximum number of records of a ClientHello. Browsers send one; some programs split it to
/// get past filters.
const RECORDS_MAX: usize = 16;

/// How a record of a handshake begins: its content type, and the major version.
const HANDSHAKE_RECORD: [u8; 2] = [22, 3];

/// The type of a handshake message.
const CLIENT_HELLO: u8 = 1;

/// The number of bytes before the content: of a record (type, version, length), and of a handshake
/// message (type, length).
const RECORD_HEADER_BYTES: usize = 5;
const MESSAGE_HEADER_BYTES: usize = 4;

/// Extensions.
const SERVER_NAME: u16 = 0x0000;
const SIGNATURE_ALGORITHMS: u16 = 0x000d;
const ALPN: u16 = 0x0010;
const SUPPORTED_VERSIONS: u16 = 0x002b;

/// The number of hex digits that are kept of a hash.
const HASH_DIGITS: usize = 12;

/// The length of a fingerprint, in bytes.
const LENGTH: usize = 10 + 2 * (1 + HASH_DIGITS);

/// The value for a list without entries, in place of its hash.
const NO_HASH: [u8; HASH_DIGITS] = [b'0'; HASH_DIGITS];

/// The JA4 fingerprint of a TLS client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ja4([u8; LENGTH]);

impl Ja4 {
    /// The fingerprint as text, which is ASCII.
    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl Display for Ja4 {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Reads the fingerprint from `bytes`, the TLS records that a client has sent so far.
#[must_use]
pub fn read(bytes: &[u8]) -> PrintParse<Ja4> {
    let within = &bytes[..bytes.len().min(HELLO_BYTES_MAX)];
    let message = match message(within) {
        PrintParse::Whole(message) => message,
        PrintParse::More if bytes.len() < HELLO_BYTES_MAX => return PrintParse::More,
        PrintParse::More | PrintParse::Bad => return PrintParse::Bad,
    };
    let hello = ByteReader(&message[1..]).vector(3).and_then(ClientHello::parse);
    hello.map_or(PrintParse::Bad, |hello| PrintParse::Whole(hello.fingerprint()))
}

/// Gathers the first handshake message from its records. Bytes may follow it.
fn message(bytes: &[u8]) -> PrintParse<Cow<'_, [u8]>> {
    let (mut rest, mut message) = (ByteReader(bytes), Cow::Borrowed(&[][..]));
    for _ in 0..RECORDS_MAX {
        let Some(header) = rest.take(RECORD_HEADER_BYTES) else { return PrintParse::More };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[..2] != HANDSHAKE_RECORD || length == 0 || length > HELLO_BYTES_MAX {
            return PrintParse::Bad;
        }
        let content = rest.take(length.min(rest.0.len())).unwrap_or_default();
        if message.is_empty() {
            message = Cow::Borrowed(content);
        } else {
            message.to_mut().extend_from_slice(content);
        }
        match message_bytes(&message) {
            Some(bytes) if bytes > HELLO_BYTES_MAX => return PrintParse::Bad,
            Some(bytes) if message.len() >= bytes => return PrintParse::Whole(message),
            _ if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) => {
                return PrintParse::Bad;
            }
            _ if content.len() < length => return PrintParse::More,
            _ => {}
        }
    }
    PrintParse::Bad
}

/// Returns the length of the handshake message that begins with `bytes`, with its header.
fn message_bytes(bytes: &[u8]) -> Option<usize> {
    let length = ByteReader(bytes.get(1..)?).number(3)?;
    Some(MESSAGE_HEADER_BYTES + usize::try_from(length).ok()?)
}

/// The parts of a ClientHello that the fingerprint needs, without values of GREASE.
#[derive(Default)]
struct ClientHello<'a> {
    version: u16,
    ciphers: Vec<u16>,
    extensions: Vec<u16>,
    /// In the order of the client.
    signature_algorithms: Vec<u16>,
    /// The first application protocol.
    protocol: &'a [u8],
}

impl<'a> ClientHello<'a> {
    /// Parses the content of the message (RFC 8446, 4.1.2). A hello of old clients ends before the
    /// extensions.
    fn parse(mut reader: ByteReader<'a>) -> Option<ClientHello<'a>> {
        let version = reader.u16()?;
        let _random = reader.take(32)?;
        let _session = reader.vector(1)?;
        let ciphers = meaning(reader.vector(2)?)?;
        let _compressions = reader.vector(1)?;
        let mut hello = ClientHello { version, ciphers, ..ClientHello::default() };
        if reader.is_empty() {
            return Some(hello);
        }
        let mut extensions = reader.vector(2)?;
        while !extensions.is_empty() {
            let kind = extensions.u16()?;
            hello.add(kind, extensions.vector(2)?)?;
        }
        reader.is_empty().then_some(hello)
    }

    /// Adds an extension.
    fn add(&mut self, kind: u16, mut content: ByteReader<'a>) -> Option<()> {
        if is_grease(kind) {
            return Some(());
        }
        self.extensions.push(kind);
        match kind {
            SUPPORTED_VERSIONS => {
                let versions = meaning(content.vector(1)?)?;
                self.version = versions.into_iter().max().unwrap_or(0);
            }
            SIGNATURE_ALGORITHMS => self.signature_algorithms = meaning(content.vector(2)?)?,
            ALPN => {
                let mut protocols = content.vector(2)?;
                if !protocols.is_empty() {
                    self.protocol = protocols.vector(1)?.0;
                }
            }
            _ => {}
        }
        Some(())
    }

    fn fingerprint(mut self) -> Ja4 {
        self.ciphers.sort_unstable();
        self.extensions.sort_unstable();
        let count = |list: &[u16]| {
            let count = u8::try_from(list.len().min(99)).unwrap_or(99);
            [b'0' + count / 10, b'0' + count % 10]
        };
        let named = if self.extensions.contains(&SERVER_NAME) { b'd' } else { b'i' };
        let parts: [&[u8]; 10] = [
            b"t",
            version(self.version),
            &[named],
            &count(&self.ciphers),
            &count(&self.extensions),
            &ends(self.protocol),
            b"_",
            &self.cipher_hash(),
            b"_",
            &self.extension_hash(),
        ];
        let mut text = [0; LENGTH];
        let bytes = parts.into_iter().flatten();
        text.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Ja4(text)
    }

    fn cipher_hash(&self) -> [u8; HASH_DIGITS] {
        if self.ciphers.is_empty() {
            return NO_HASH;
        }
        let mut hash = Context::new(&SHA256);
        hash_list(&mut hash, self.ciphers.iter().copied());
        digits(hash)
    }

    /// The server name and the application protocols are left out: they are in the first part.
    fn extension_hash(&self) -> [u8; HASH_DIGITS] {
        let hashed = |kind: &u16| ![SERVER_NAME, ALPN].contains(kind);
        if !self.extensions.iter().any(hashed) {
            return NO_HASH;
        }
        let mut hash = Context::new(&SHA256);
        hash_list(&mut hash, self.extensions.iter().copied().filter(hashed));
        if !self.signature_algorithms.is_empty() {
            hash.update(b"_");
            hash_list(&mut hash, self.signature_algorithms.iter().copied());
        }
        digits(hash)
    }
}

/// The numbers of a list without those of GREASE.
fn meaning(list: ByteReader<'_>) -> Option<Vec<u16>> {
    Some(list.u16s()?.filter(|value| !is_grease(*value)).collect())
}

fn version(version: u16) -> &'static [u8; 2] {
    match version {
        0x0304 => b"13",
        0x0303 => b"12",
        0x0302 => b"11",
        0x0301 => b"10",
        0x0300 => b"s3",
        0x0002 => b"s2",
        0xfeff => b"d1",
        0xfefd => b"d2",
        0xfefc => b"d3",
        _ => b"00",
    }
}

/// The first and the last character of a protocol's name; of the name in hex if one of them is no
/// letter or digit.
fn ends(protocol: &[u8]) -> [u8; 2] {
    match *protocol {
        [] => *b"00",
        [first, .., last] if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() => {
            [first, last]
        }
        [only] if only.is_ascii_alphanumeric() => [only, only],
        [first, ..] => {
            let last = protocol[protocol.len() - 1];
            [hex(first >> 4), hex(last)]
        }
    }
}

/// The hex digit of the low half of `byte`.
fn hex(byte: u8) -> u8 {
    b"0123456789abcdef"[usize::from(byte & 0xf)]
}

/// Hashes numbers as four hex digits each, with commas between them.
fn hash_list(hash: &mut Context, list: impl Iterator<Item = u16>) {
    let mut comma: &[u8] = b"";
    for value in list {
        let [high, low] = value.to_be_bytes();
        hash.update(comma);
        hash.update(&[hex(high >> 4), hex(high), hex(low >> 4), hex(low)]);
        comma = b",";
    }
}

fn digits(hash: Context) -> [u8; HASH_DIGITS] {
    let digest = hash.finish();
    let mut digits = [0; HASH_DIGITS];
    for (pair, byte) in digits.as_chunks_mut::<2>().0.iter_mut().zip(digest.as_ref()) {
        *pair = [hex(byte >> 4), hex(*byte)];
    }
    digits
}

#[cfg(test)]
mod tests;

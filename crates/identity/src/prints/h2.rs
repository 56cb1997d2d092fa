//! The fingerprint of an HTTP/2 client, from the frames that its connection begins with.
//!
//! It has the form `1:65536;3:1000|15663105|0|m,a,s,p`: the settings in the order of the client;
//! by how much it enlarges the window of the connection (`00`: it does not); its priority frames as
//! stream, exclusive bit, parent and weight (`0`: none); the order of the pseudo-header fields of
//! the first request (method, authority, scheme, path). The form is that of "Passive Fingerprinting
//! of HTTP/2 Clients" (Akamai, 2017). Of header compression only the names of the first fields are
//! read: at the start of a connection they refer to the static table or are literal.

use super::{ByteReader, PrintParse, is_grease};
use std::fmt::Write;

/// The maximum number of bytes that are read for a fingerprint.
pub const BYTES_MAX: usize = 16 * 1024;

/// The maximum number of frames up to the first request. Browsers send two to seven.
const FRAMES_MAX: usize = 32;

/// The maximum number of settings. Seven are defined, and browsers send up to six.
const SETTINGS_MAX: usize = 32;

/// The connection preface (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The number of bytes of a frame before its content: length, type, flags and stream.
const FRAME_HEADER_BYTES: usize = 9;

/// The length that a frame may have before a setting permits more.
const FRAME_BYTES_MAX: usize = 16 * 1024;

/// Types of frames.
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Flags of frames.
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const HAS_PRIORITY: u8 = 0x20;

/// A pseudo-header field of requests.
struct PseudoField {
    letter: char,
    /// In the static table of HPACK (RFC 7541, appendix A).
    indices: [u32; 2],
    name: &'static [u8],
    /// The name in HPACK's Huffman code.
    coded: &'static [u8],
}

const FIELDS: [PseudoField; 4] = [
    PseudoField { letter: 'm', indices: [2, 3], name: b":method", coded: b"\xb9\x49\x53\x39\xe4" },
    PseudoField { letter: 'p', indices: [4, 5], name: b":path", coded: b"\xb9\x58\xd3\x3f" },
    PseudoField { letter: 's', indices: [6, 7], name: b":scheme", coded: b"\xb8\x82\x4e\x5a\x4b" },
    PseudoField {
        letter: 'a',
        indices: [1, 1],
        name: b":authority",
        coded: b"\xb8\x3b\x53\x39\xec\x32\x7d\x7f",
    },
];

/// Reads the fingerprint from `bytes`, what a client has sent so far, from the preface on.
#[must_use]
pub fn read(bytes: &[u8]) -> PrintParse<String> {
    let within = &bytes[..bytes.len().min(BYTES_MAX)];
    let mut found = FirstFrames::default();
    match found.read(ByteReader(within)) {
        Ok(order) => PrintParse::Whole(found.text(&order)),
        Err(FrameFault::More) if within.len() < BYTES_MAX => PrintParse::More,
        Err(_) => PrintParse::Bad,
    }
}

/// Why reading stopped without a result.
#[derive(PartialEq, Eq)]
enum FrameFault {
    /// The bytes end.
    More,
    /// The bytes are malformed, or too many.
    Bad,
}

/// The contents of the frames before the first request.
#[derive(Default)]
struct FirstFrames {
    settings: Vec<(u16, u32)>,
    window: Option<u32>,
    /// Stream, exclusive bit, parent and weight.
    priorities: Vec<(u32, bool, u32, u32)>,
}

impl FirstFrames {
    /// Reads frames up to the first request. Returns the letters of its pseudo-header fields.
    fn read(&mut self, mut rest: ByteReader<'_>) -> Result<String, FrameFault> {
        let common = rest.0.len().min(PREFACE.len());
        if rest.take(common) != Some(&PREFACE[..common]) {
            return Err(FrameFault::Bad);
        }
        for place in 0..FRAMES_MAX {
            let frame = FrameHeader::take(&mut rest)?;
            let is_settings = frame.kind == SETTINGS && frame.flags & ACK == 0 && frame.stream == 0;
            if place == 0 && !is_settings {
                return Err(FrameFault::Bad);
            }
            if frame.kind == HEADERS {
                return first_fields(frame, rest);
            }
            let content = rest.take(frame.length).ok_or(FrameFault::More)?;
            self.add(&frame, ByteReader(content)).ok_or(FrameFault::Bad)?;
        }
        Err(FrameFault::Bad)
    }

    /// Adds a frame before the first request. One of an unknown type is ignored.
    fn add(&mut self, frame: &FrameHeader, mut content: ByteReader<'_>) -> Option<()> {
        match frame.kind {
            SETTINGS if frame.flags & ACK == 0 => {
                while !content.is_empty() {
                    let setting = (content.u16()?, content.number(4)?);
                    if !is_grease(setting.0) {
                        self.settings.push(setting);
                    }
                }
                (self.settings.len() <= SETTINGS_MAX).then_some(())
            }
            WINDOW_UPDATE if frame.stream == 0 => {
                let more = content.number(4)? & 0x7fff_ffff;
                self.window.get_or_insert(more);
                Some(())
            }
            PRIORITY => {
                let parent = content.number(4)?;
                let weight = content.number(1)? + 1;
                self.priorities.push((
                    frame.stream,
                    parent >> 31 == 1,
                    parent & 0x7fff_ffff,
                    weight,
                ));
                Some(())
            }
            CONTINUATION => None,
            _ => Some(()),
        }
    }

    fn text(&self, order: &str) -> String {
        let mut text = String::new();
        for (id, value) in &self.settings {
            let separator = if text.is_empty() { "" } else { ";" };
            let _ = write!(text, "{separator}{id}:{value}");
        }
        match self.window {
            Some(window) => _ = write!(text, "|{window}|"),
            None => text.push_str("|00|"),
        }
        let mut separator = "";
        for (stream, exclusive, parent, weight) in &self.priorities {
            let exclusive = u8::from(*exclusive);
            let _ = write!(text, "{separator}{stream}:{exclusive}:{parent}:{weight}");
            separator = ",";
        }
        if self.priorities.is_empty() {
            text.push('0');
        }
        text.push('|');
        text.push_str(order);
        text
    }
}

/// The part of a frame before its content.
struct FrameHeader {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl FrameHeader {
    fn take(rest: &mut ByteReader<'_>) -> Result<FrameHeader, FrameFault> {
        let header = rest.take(FRAME_HEADER_BYTES).ok_or(FrameFault::More)?;
        let [high, middle, low, kind, flags, stream @ ..] = header else {
            return Err(FrameFault::Bad);
        };
        let length = usize::from(*middle) << 8 | usize::from(*low) | usize::from(*high) << 16;
        if length > FRAME_BYTES_MAX {
            return Err(FrameFault::Bad);
        }
        let stream = ByteReader(stream).number(4).ok_or(FrameFault::Bad)? & 0x7fff_ffff;
        Ok(FrameHeader { length, kind: *kind, flags: *flags, stream })
    }
}

/// Reads the pseudo-header fields of the first request from a frame with the header `frame` and the
/// content `rest`. The data after these fields may be missing.
fn first_fields(frame: FrameHeader, mut rest: ByteReader<'_>) -> Result<String, FrameFault> {
    let (mut block, mut frame) = (Vec::new(), frame);
    for _ in 0..FRAMES_MAX {
        let whole = rest.0.len() >= frame.length;
        let content = rest.take(frame.length.min(rest.0.len())).ok_or(FrameFault::Bad)?;
        block.extend_from_slice(fragment(&frame, content, whole)?);
        let ends = whole && frame.flags & END_HEADERS != 0;
        match order(ByteReader(&block), ends) {
            Err(FrameFault::More) if whole && !ends => {}
            Err(FrameFault::More) if whole => return Err(FrameFault::Bad),
            result => return result,
        }
        frame = FrameHeader::take(&mut rest)?;
        if frame.kind != CONTINUATION {
            return Err(FrameFault::Bad);
        }
    }
    Err(FrameFault::Bad)
}

/// Returns the part of a header block that a frame carries. A frame with padding has to be `whole`.
fn fragment<'a>(
    frame: &FrameHeader,
    content: &'a [u8],
    whole: bool,
) -> Result<&'a [u8], FrameFault> {
    let mut content = ByteReader(content);
    let short = || if whole { FrameFault::Bad } else { FrameFault::More };
    let has = |flag| frame.kind == HEADERS && frame.flags & flag != 0;
    let mut padding = 0;
    if has(PADDED) {
        padding = content.number(1).filter(|_| whole).ok_or_else(short)?;
    }
    if has(HAS_PRIORITY) {
        content.take(5).ok_or_else(short)?;
    }
    let padding = usize::try_from(padding).map_err(|_| FrameFault::Bad)?;
    let end = content.0.len().checked_sub(padding).ok_or(FrameFault::Bad)?;
    Ok(&content.0[..end])
}

/// Returns the letters of the pseudo-header fields at the start of a header block. `ends`: the
/// block ends with its bytes.
fn order(mut block: ByteReader<'_>, ends: bool) -> Result<String, FrameFault> {
    let mut letters = String::new();
    loop {
        if block.is_empty() && !ends {
            return Err(FrameFault::More);
        }
        let found = if block.is_empty() { Field::Other } else { field(&mut block)? };
        match found {
            Field::Letter(letter) if letters.len() < 2 * FIELDS.len() => {
                letters.push(letter);
                letters.push(',');
            }
            Field::Letter(_) => return Err(FrameFault::Bad),
            Field::Resized => {}
            Field::Other => {
                letters.pop();
                return Ok(letters);
            }
        }
    }
}

/// Finds the acknowledgement of the server's settings in what a client sends, in any pieces.
#[derive(Debug)]
pub struct AcknowledgementFinder {
    /// Bytes to skip: the preface, or the content of a frame.
    skip: usize,
    header: [u8; FRAME_HEADER_BYTES],
    /// The number of bytes of `header` that have arrived.
    have: usize,
}

impl Default for AcknowledgementFinder {
    fn default() -> AcknowledgementFinder {
        AcknowledgementFinder { skip: PREFACE.len(), header: [0; FRAME_HEADER_BYTES], have: 0 }
    }
}

impl AcknowledgementFinder {
    /// Reads on. Returns whether the acknowledgement has come.
    pub fn read(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = (FRAME_HEADER_BYTES - self.have).min(bytes.len());
            self.header[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have < FRAME_HEADER_BYTES {
                continue;
            }
            self.have = 0;
            let Ok(frame) = FrameHeader::take(&mut ByteReader(&self.header)) else { return false };
            if frame.kind == SETTINGS && frame.flags & ACK != 0 {
                return true;
            }
            self.skip = frame.length;
        }
        false
    }
}

/// A representation in a header block.
enum Field {
    /// The letter of a pseudo-header field.
    Letter(char),
    /// A field of another name: the pseudo-header fields have ended.
    Other,
    /// A change of the size of the dynamic table.
    Resized,
}

/// Takes a representation off the front of a header block (RFC 7541, 6). The value of a field that
/// is no pseudo-header field stays, and may be missing.
fn field(block: &mut ByteReader<'_>) -> Result<Field, FrameFault> {
    let first = block.0.first().ok_or(FrameFault::More)?;
    let (bits, has_value) = match first {
        0x80.. => (7, false),
        0x40.. => (6, true),
        0x20.. => (5, false),
        _ => (4, true),
    };
    let index = integer(block, bits)?;
    let found = match (index, bits) {
        (_, 5) => Field::Resized,
        (0, 7) => return Err(FrameFault::Bad),
        (0, _) => literal(string(block)?),
        (index, _) => indexed(index),
    };
    if has_value && matches!(found, Field::Letter(_)) {
        string(block)?;
    }
    Ok(found)
}

/// The field with an index. Those of the dynamic table are no pseudo-header fields that are still
/// to come, because each comes once.
fn indexed(index: u32) -> Field {
    let found = FIELDS.iter().find(|field| field.indices.contains(&index));
    found.map_or(Field::Other, |field| Field::Letter(field.letter))
}

/// The field with a literal name, which may be in Huffman code.
fn literal((is_coded, name): (bool, &[u8])) -> Field {
    let is = |field: &&PseudoField| name == if is_coded { field.coded } else { field.name };
    FIELDS.iter().find(is).map_or(Field::Other, |field| Field::Letter(field.letter))
}

/// Takes an integer that begins with the last `bits` of a byte (RFC 7541, 5.1).
fn integer(block: &mut ByteReader<'_>, bits: u32) -> Result<u32, FrameFault> {
    let most = (1 << bits) - 1;
    let mut value = block.number(1).ok_or(FrameFault::More)? & most;
    if value < most {
        return Ok(value);
    }
    for shift in [0, 7, 14] {
        let byte = block.number(1).ok_or(FrameFault::More)?;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(FrameFault::Bad)
}

/// Takes a string: whether it is in Huffman code, and its bytes.
fn string<'a>(block: &mut ByteReader<'a>) -> Result<(bool, &'a [u8]), FrameFault> {
    let is_coded = block.0.first().ok_or(FrameFault::More)? & 0x80 != 0;
    let length = usize::try_from(integer(block, 7)?).map_err(|_| FrameFault::Bad)?;
    Ok((is_coded, block.take(length).ok_or(FrameFault::More)?))
}

#[cfg(test)]
mod tests;

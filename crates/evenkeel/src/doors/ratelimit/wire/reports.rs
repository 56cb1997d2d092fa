//! Reports of usage as they lie in the bytes, for the rate limit quota service.
//!
//! Texts are borrowed, and what nobody needs is passed over. A bucket whose name is too long or
//! empty is left out and counted, and the rest of the message is read all the same: one odd bucket
//! must not cost an Envoy all its others. What is done with reports: `quota`.

use super::view::{Read, Source};

/// The most buckets in one message.
pub const USAGES_MAX: usize = 10_000;
/// The most pairs in the name of a bucket,
pub const PAIRS_MAX: usize = 16;
/// and the most bytes of all of them together.
pub const NAME_BYTES_MAX: usize = 1_024;

/// One message: what was used of some buckets since they were last reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports<'a> {
    /// The domain; may be empty in all messages of a stream but the first.
    pub domain: &'a str,
    /// What was used, bucket by bucket.
    pub usages: Vec<Usage<'a>>,
    /// Buckets that were left out for their names, or because there were too many.
    pub left_out: usize,
}

/// What was used of one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage<'a> {
    /// Its name: keys with values, in the order of the keys, each once.
    pub name: Vec<(&'a str, &'a str)>,
    /// Requests that passed.
    pub allowed: u64,
    /// Requests that were refused.
    pub denied: u64,
}

impl<'a> Reports<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// [`super::view::Fault`]
    pub fn decode(bytes: &'a [u8]) -> Read<Reports<'a>> {
        let mut reports = Reports::default();
        let mut source = Source(bytes);
        while let Some((field, kind)) = source.tag()? {
            match field {
                1 => reports.domain = source.text(kind)?,
                2 => {
                    let usage = usage(source.bytes(kind)?)?;
                    match usage.filter(|_| reports.usages.len() < USAGES_MAX) {
                        Some(usage) => reports.usages.push(usage),
                        None => reports.left_out += 1,
                    }
                }
                _ => source.skip(field, kind, 0)?,
            }
        }
        Ok(reports)
    }
}

/// `None`: no bucket can have this name.
fn usage(bytes: &[u8]) -> Read<Option<Usage<'_>>> {
    let mut usage = Usage::default();
    let (mut pairs, mut source) = (0, Source(bytes));
    while let Some((field, kind)) = source.tag()? {
        match field {
            1 => pairs += name(source.bytes(kind)?, &mut usage.name)?,
            3 => usage.allowed = source.number(kind)?,
            4 => usage.denied = source.number(kind)?,
            _ => source.skip(field, kind, 0)?,
        }
    }
    // Of a key that comes twice the last counts; the sort keeps the order of equal keys.
    usage.name.sort_by_key(|(key, _)| *key);
    usage.name.reverse();
    usage.name.dedup_by_key(|(key, _)| *key);
    usage.name.reverse();
    let length: usize = usage.name.iter().map(|(key, value)| key.len() + value.len()).sum();
    let good = (1..=PAIRS_MAX).contains(&pairs) && length <= NAME_BYTES_MAX;
    Ok(good.then_some(usage))
}

/// Adds the pairs of a name, as long as there are not too many, and says how many there were.
fn name<'a>(bytes: &'a [u8], name: &mut Vec<(&'a str, &'a str)>) -> Read<usize> {
    let (mut pairs, mut source) = (0, Source(bytes));
    while let Some((field, kind)) = source.tag()? {
        if field != 1 {
            source.skip(field, kind, 0)?;
            continue;
        }
        let pair = pair(source.bytes(kind)?)?;
        pairs += 1;
        if name.len() < PAIRS_MAX {
            name.push(pair);
        }
    }
    Ok(pairs)
}

fn pair(bytes: &[u8]) -> Read<(&str, &str)> {
    let mut pair = ("", "");
    let mut source = Source(bytes);
    while let Some((field, kind)) = source.tag()? {
        match field {
            1 => pair.0 = source.text(kind)?,
            2 => pair.1 = source.text(kind)?,
            _ => source.skip(field, kind, 0)?,
        }
    }
    Ok(pair)
}

/// Frames of gRPC out of a body that comes in pieces.
#[derive(Debug)]
pub struct Frames {
    bytes: bytes::BytesMut,
    message_bytes_max: usize,
}

/// The longest message of this service, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

impl Frames {
    /// Nothing has come; no message may be longer than this.
    #[must_use]
    pub fn new(message_bytes_max: usize) -> Frames {
        Frames { bytes: bytes::BytesMut::new(), message_bytes_max }
    }

    /// Adds what came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes that are kept because their message is not complete.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.bytes.len()
    }

    /// The next whole message.
    ///
    /// # Errors
    /// [`FrameFault`]; what follows cannot be read then.
    pub fn take(&mut self) -> Result<Option<bytes::Bytes>, FrameFault> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<5>() else { return Ok(None) };
        let [compressed, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 {
            return Err(FrameFault::Compressed);
        }
        if length > self.message_bytes_max {
            return Err(FrameFault::Long(self.message_bytes_max));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let frame = self.bytes.split_to(5 + length).freeze();
        Ok(Some(frame.slice(5..)))
    }
}

/// The message out of a body that is one frame.
///
/// # Errors
/// [`FrameFault`]
pub fn unframed(mut bytes: bytes::Bytes) -> Result<bytes::Bytes, FrameFault> {
    let Some([compressed, length @ ..]) = bytes.first_chunk::<5>().copied() else {
        return Err(FrameFault::Missing);
    };
    if compressed != 0 {
        return Err(FrameFault::Compressed);
    }
    let message = bytes.split_off(5);
    match message.len() == u32::from_be_bytes(length) as usize {
        true => Ok(message),
        false => Err(FrameFault::Length),
    }
}

/// Why a body cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// There is not even the head of a frame.
    #[error("no message")]
    Missing,
    /// The one message is longer or shorter than its frame, or there are several.
    #[error("the message is not as long as it says")]
    Length,
    /// Compressed messages are not read.
    #[error("compressed messages are not read; send them plain")]
    Compressed,
    /// A message that is too long.
    #[error("a message may have {0} bytes")]
    Long(usize),
}

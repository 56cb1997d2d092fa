//! Reads a request from its bytes without copying texts.
//!
//! Decoding ten descriptors into owned messages takes longer than the decision, so
//! `ShouldRateLimit` reads its requests here. This decoder accepts and refuses the same bytes as
//! the generated messages (`wire`), apart from the bounds below; a test compares both on arbitrary
//! bytes. Unknown fields are skipped.

use super::{Override, Request};
use evenkeel_grpc::protobuf::{ProtobufError, ProtobufSource, ProtobufTexts};
use std::ops::Range;

/// The maximum number of descriptors in a request; callers send a handful.
pub const DESCRIPTORS_MAX: usize = 1_000;
/// The maximum number of entries in a descriptor.
pub const ENTRIES_MAX: usize = 100;

/// The minimum size of a usual descriptor, and of a usual entry, in bytes. If a request has smaller
/// ones, its lists grow while it is read.
const DESCRIPTOR_BYTES: usize = 20;
const ENTRY_BYTES: usize = 16;

/// A request that borrows its texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestView<'a> {
    /// The domain of the rules.
    pub domain: &'a str,
    /// The number of hits for descriptors that give none; 0 counts as 1.
    pub hits_addend: u32,
    /// The descriptors to decide.
    pub descriptors: Vec<DescriptorView>,
    /// The keys and values of all descriptors, in order.
    entries: Vec<(&'a str, &'a str)>,
}

/// One descriptor of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct DescriptorView {
    /// The place of its keys and values in the list of the request.
    entries: Range<usize>,
    /// The limit that the descriptor carries.
    pub limit: Option<Override>,
    /// The number of hits of this descriptor.
    pub hits_addend: Option<u64>,
    /// Whether the hits are given back.
    pub is_negative_hits: bool,
}

/// The reason why bytes are not a request. The sender is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestViewError {
    /// They are no message.
    #[error(transparent)]
    Protobuf(#[from] ProtobufError),
    /// More than [`DESCRIPTORS_MAX`] descriptors, or more than [`ENTRIES_MAX`] entries in one of
    /// them.
    #[error("more than {DESCRIPTORS_MAX} descriptors, or more than {ENTRIES_MAX} entries in one")]
    TooMany,
}

pub(super) type ViewResult<T> = Result<T, RequestViewError>;

impl<'a> RequestView<'a> {
    /// Reads a request.
    pub fn decode(bytes: &'a [u8]) -> ViewResult<RequestView<'a>> {
        let usual = |size: usize| (bytes.len() / size + 1).min(DESCRIPTORS_MAX);
        let mut view = RequestView {
            descriptors: Vec::with_capacity(usual(DESCRIPTOR_BYTES)),
            entries: Vec::with_capacity(usual(ENTRY_BYTES)),
            ..RequestView::default()
        };
        let (texts, mut source) = (ProtobufTexts::of(bytes), ProtobufSource(bytes));
        while let Some((field, kind)) = source.tag()? {
            match field {
                1 => view.domain = texts.read(source.bytes(kind)?)?,
                2 if view.descriptors.len() >= DESCRIPTORS_MAX => {
                    return Err(RequestViewError::TooMany);
                }
                2 => {
                    let descriptor = view.descriptor(source.bytes(kind)?, texts)?;
                    view.descriptors.push(descriptor);
                }
                3 => view.hits_addend = source.number(kind)? as u32,
                _ => source.skip(field, kind)?,
            }
        }
        Ok(view)
    }

    /// A view of a decoded message.
    pub fn of(request: &'a Request) -> RequestView<'a> {
        let mut view = RequestView {
            domain: &request.domain,
            hits_addend: request.hits_addend,
            ..RequestView::default()
        };
        for descriptor in &request.descriptors {
            let begin = view.entries.len();
            let entries = descriptor.entries.iter();
            view.entries.extend(entries.map(|entry| (&*entry.key, &*entry.value)));
            view.descriptors.push(DescriptorView {
                entries: begin..view.entries.len(),
                limit: descriptor.limit,
                hits_addend: descriptor.hits_addend,
                is_negative_hits: descriptor.is_negative_hits,
            });
        }
        view
    }

    /// The keys and values of a descriptor of this request.
    #[must_use]
    pub fn entries(&self, descriptor: &DescriptorView) -> &[(&'a str, &'a str)] {
        &self.entries[descriptor.entries.clone()]
    }

    /// Reads a descriptor. Its entries are added to those of the request.
    fn descriptor(
        &mut self,
        bytes: &'a [u8],
        texts: ProtobufTexts<'a>,
    ) -> ViewResult<DescriptorView> {
        let begin = self.entries.len();
        let (mut limit, mut hits_addend, mut is_negative_hits) = (None, None, false);
        let mut source = ProtobufSource(bytes);
        while let Some((field, kind)) = source.tag()? {
            match field {
                1 if self.entries.len() - begin >= ENTRIES_MAX => {
                    return Err(RequestViewError::TooMany);
                }
                1 => self.entries.push(pair(source.bytes(kind)?, texts)?),
                // If a submessage occurs twice, the second occurrence is merged into the first.
                2 => limit = Some(merged(source.bytes(kind)?, limit.unwrap_or_default())?),
                3 => {
                    let before = hits_addend.unwrap_or_default();
                    hits_addend = Some(wrapped(source.bytes(kind)?, before)?);
                }
                4 => is_negative_hits = source.number(kind)? != 0,
                _ => source.skip(field, kind)?,
            }
        }
        let entries = begin..self.entries.len();
        Ok(DescriptorView { entries, limit, hits_addend, is_negative_hits })
    }
}

/// Reads a message of two texts: a key and its value.
pub(super) fn pair<'a>(
    bytes: &'a [u8],
    texts: ProtobufTexts<'a>,
) -> ViewResult<(&'a str, &'a str)> {
    let mut pair = ("", "");
    let mut source = ProtobufSource(bytes);
    while let Some((field, kind)) = source.tag()? {
        match field {
            1 => pair.0 = texts.read(source.bytes(kind)?)?,
            2 => pair.1 = texts.read(source.bytes(kind)?)?,
            _ => source.skip(field, kind)?,
        }
    }
    Ok(pair)
}

/// A limit, with the fields of `bytes` in place of its own.
fn merged(bytes: &[u8], mut limit: Override) -> ViewResult<Override> {
    let mut source = ProtobufSource(bytes);
    while let Some((field, kind)) = source.tag()? {
        match field {
            1 => limit.requests_per_unit = source.number(kind)? as u32,
            2 => limit.unit = source.number(kind)? as i32,
            _ => source.skip(field, kind)?,
        }
    }
    Ok(limit)
}

/// A number in a wrapper message, which distinguishes an absent number from zero.
fn wrapped(bytes: &[u8], mut number: u64) -> ViewResult<u64> {
    let mut source = ProtobufSource(bytes);
    while let Some((field, kind)) = source.tag()? {
        match field {
            1 => number = source.number(kind)?,
            _ => source.skip(field, kind)?,
        }
    }
    Ok(number)
}

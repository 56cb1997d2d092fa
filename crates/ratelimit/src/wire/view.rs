//! Reads a request from its bytes without copying texts.
//!
//! Decoding ten descriptors into owned messages takes longer than the decision, so
//! `ShouldRateLimit` reads its requests here. This decoder accepts and refuses the same bytes as
//! the generated messages (`wire`), apart from the bounds below; a test compares both on arbitrary
//! bytes. Unknown fields are skipped.

use super::{Override, Request};
use evenkeel_grpc::protobuf::{ProtobufError, ProtobufSource, ProtobufTexts};

/// The maximum number of descriptors in a request; callers send a handful.
pub const DESCRIPTORS_MAX: usize = 1_000;
/// The maximum number of entries in a descriptor.
pub const ENTRIES_MAX: usize = 100;

/// A request that borrows its texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestView<'a> {
    /// The domain of the rules.
    pub domain: &'a str,
    /// The number of hits for descriptors that give none; 0 counts as 1.
    pub hits_addend: u32,
    /// The descriptors to decide.
    pub descriptors: Vec<DescriptorView<'a>>,
}

/// One descriptor of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DescriptorView<'a> {
    /// The keys and values.
    pub entries: EntryList<'a>,
    /// The limit that the descriptor carries.
    pub limit: Option<Override>,
    /// The number of hits of this descriptor.
    pub hits_addend: Option<u64>,
    /// Whether the hits are given back.
    pub is_negative_hits: bool,
}

/// The entries of a descriptor. Nearly all descriptors have at most four, which need no allocation.
#[derive(Clone, Debug, Default)]
pub struct EntryList<'a> {
    count: usize,
    near: [(&'a str, &'a str); 4],
    far: Vec<(&'a str, &'a str)>,
}

impl<'a> EntryList<'a> {
    /// All entries, in order.
    pub fn as_slice(&self) -> &[(&'a str, &'a str)] {
        if self.far.is_empty() { &self.near[..self.count] } else { &self.far }
    }

    fn push(&mut self, entry: (&'a str, &'a str)) {
        if let Some(place) = self.near.get_mut(self.count) {
            *place = entry;
        } else {
            if self.far.is_empty() {
                self.far.extend_from_slice(&self.near);
            }
            self.far.push(entry);
        }
        self.count += 1;
    }
}

impl PartialEq for EntryList<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
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
        let mut view = RequestView::default();
        let (texts, mut source) = (ProtobufTexts::of(bytes), ProtobufSource(bytes));
        while let Some((field, kind)) = source.tag()? {
            match field {
                1 => view.domain = texts.read(source.bytes(kind)?)?,
                2 if view.descriptors.len() >= DESCRIPTORS_MAX => {
                    return Err(RequestViewError::TooMany);
                }
                2 => {
                    // Filled in its place: it is large.
                    let part = view.descriptors.push_mut(DescriptorView::default());
                    fill(part, source.bytes(kind)?, texts)?;
                }
                3 => view.hits_addend = source.number(kind)? as u32,
                _ => source.skip(field, kind)?,
            }
        }
        Ok(view)
    }

    /// A view of a decoded message.
    pub fn of(request: &'a Request) -> RequestView<'a> {
        let part = |descriptor: &'a super::Descriptor| {
            let mut entries = EntryList::default();
            descriptor.entries.iter().for_each(|entry| entries.push((&entry.key, &entry.value)));
            DescriptorView {
                entries,
                limit: descriptor.limit,
                hits_addend: descriptor.hits_addend,
                is_negative_hits: descriptor.is_negative_hits,
            }
        };
        RequestView {
            domain: &request.domain,
            hits_addend: request.hits_addend,
            descriptors: request.descriptors.iter().map(part).collect(),
        }
    }
}

/// Reads the fields of a descriptor.
fn fill<'a>(
    part: &mut DescriptorView<'a>,
    bytes: &'a [u8],
    texts: ProtobufTexts<'a>,
) -> ViewResult<()> {
    let mut source = ProtobufSource(bytes);
    while let Some((field, kind)) = source.tag()? {
        match field {
            1 if part.entries.count >= ENTRIES_MAX => return Err(RequestViewError::TooMany),
            1 => part.entries.push(pair(source.bytes(kind)?, texts)?),
            // If a submessage occurs twice, the second occurrence is merged into the first.
            2 => part.limit = Some(limit(source.bytes(kind)?, part.limit.unwrap_or_default())?),
            3 => {
                let before = part.hits_addend.unwrap_or_default();
                part.hits_addend = Some(wrapped(source.bytes(kind)?, before)?);
            }
            4 => part.is_negative_hits = source.number(kind)? != 0,
            _ => source.skip(field, kind)?,
        }
    }
    Ok(())
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

fn limit(bytes: &[u8], mut limit: Override) -> ViewResult<Override> {
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

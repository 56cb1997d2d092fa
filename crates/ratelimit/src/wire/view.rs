//! Reads a request from its bytes without copying texts.
//!
//! Decoding ten descriptors into owned messages takes longer than the decision, so
//! `ShouldRateLimit` reads its requests here. This decoder accepts and refuses the same bytes as
//! the generated messages (`wire`), apart from the bounds below; a test compares both on arbitrary
//! bytes. Unknown fields are skipped.

use super::{Override, Request};

/// The maximum number of descriptors in a request; callers send a handful.
pub const DESCRIPTORS_MAX: usize = 1_000;
/// The maximum number of entries in a descriptor.
pub const ENTRIES_MAX: usize = 100;

/// The maximum nesting depth of groups in unknown fields. The known messages have no groups.
const GROUPS_MAX: usize = 100;

/// A request that borrows its texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View<'a> {
    /// The domain of the rules.
    pub domain: &'a str,
    /// The number of hits for descriptors that give none; 0 counts as 1.
    pub hits_addend: u32,
    /// The descriptors to decide.
    pub descriptors: Vec<Part<'a>>,
}

/// One descriptor of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part<'a> {
    /// The keys and values.
    pub entries: Entries<'a>,
    /// The limit that the descriptor carries.
    pub limit: Option<Override>,
    /// The number of hits of this descriptor.
    pub hits_addend: Option<u64>,
    /// Whether the hits are given back.
    pub is_negative_hits: bool,
}

/// The entries of a descriptor. Nearly all descriptors have at most four, which need no allocation.
#[derive(Clone, Debug, Default)]
pub struct Entries<'a> {
    count: usize,
    near: [(&'a str, &'a str); 4],
    far: Vec<(&'a str, &'a str)>,
}

impl<'a> Entries<'a> {
    /// All entries, in order.
    #[must_use]
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

impl PartialEq for Entries<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

/// The reason why bytes are not a request. The sender is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes end within a field.
    #[error("it ends too early")]
    Short,
    /// A number, tag or length is impossible.
    #[error("a field is malformed")]
    Malformed,
    /// A known field has a wrong wire type.
    #[error("a field has the wrong type")]
    Type,
    /// More than [`DESCRIPTORS_MAX`] descriptors, or more than [`ENTRIES_MAX`] entries in one of
    /// them.
    #[error("more than {DESCRIPTORS_MAX} descriptors, or more than {ENTRIES_MAX} entries in one")]
    TooMany,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
}

pub(super) type Read<T> = Result<T, Fault>;

impl<'a> View<'a> {
    /// Reads a request.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn decode(bytes: &'a [u8]) -> Read<View<'a>> {
        let mut view = View::default();
        let mut source = Source(bytes);
        while let Some((field, kind)) = source.tag()? {
            match field {
                1 => view.domain = source.text(kind)?,
                2 if view.descriptors.len() >= DESCRIPTORS_MAX => return Err(Fault::TooMany),
                2 => view.descriptors.push(descriptor(source.bytes(kind)?)?),
                3 => view.hits_addend = source.number(kind)? as u32,
                _ => source.skip(field, kind, 0)?,
            }
        }
        Ok(view)
    }

    /// A view of a decoded message.
    #[must_use]
    pub fn of(request: &'a Request) -> View<'a> {
        let part = |descriptor: &'a super::Descriptor| {
            let mut entries = Entries::default();
            descriptor.entries.iter().for_each(|entry| entries.push((&entry.key, &entry.value)));
            Part {
                entries,
                limit: descriptor.limit,
                hits_addend: descriptor.hits_addend,
                is_negative_hits: descriptor.is_negative_hits,
            }
        };
        View {
            domain: &request.domain,
            hits_addend: request.hits_addend,
            descriptors: request.descriptors.iter().map(part).collect(),
        }
    }
}

fn descriptor(bytes: &[u8]) -> Read<Part<'_>> {
    let mut part = Part::default();
    let mut source = Source(bytes);
    while let Some((field, kind)) = source.tag()? {
        match field {
            1 if part.entries.count >= ENTRIES_MAX => return Err(Fault::TooMany),
            1 => part.entries.push(entry(source.bytes(kind)?)?),
            // If a submessage occurs twice, the second occurrence is merged into the first.
            2 => part.limit = Some(limit(source.bytes(kind)?, part.limit.unwrap_or_default())?),
            3 => {
                let before = part.hits_addend.unwrap_or_default();
                part.hits_addend = Some(wrapped(source.bytes(kind)?, before)?);
            }
            4 => part.is_negative_hits = source.number(kind)? != 0,
            _ => source.skip(field, kind, 0)?,
        }
    }
    Ok(part)
}

fn entry(bytes: &[u8]) -> Read<(&str, &str)> {
    let mut entry = ("", "");
    let mut source = Source(bytes);
    while let Some((field, kind)) = source.tag()? {
        match field {
            1 => entry.0 = source.text(kind)?,
            2 => entry.1 = source.text(kind)?,
            _ => source.skip(field, kind, 0)?,
        }
    }
    Ok(entry)
}

fn limit(bytes: &[u8], mut limit: Override) -> Read<Override> {
    let mut source = Source(bytes);
    while let Some((field, kind)) = source.tag()? {
        match field {
            1 => limit.requests_per_unit = source.number(kind)? as u32,
            2 => limit.unit = source.number(kind)? as i32,
            _ => source.skip(field, kind, 0)?,
        }
    }
    Ok(limit)
}

/// A number in a wrapper message, which distinguishes an absent number from zero.
fn wrapped(bytes: &[u8], mut number: u64) -> Read<u64> {
    let mut source = Source(bytes);
    while let Some((field, kind)) = source.tag()? {
        match field {
            1 => number = source.number(kind)?,
            _ => source.skip(field, kind, 0)?,
        }
    }
    Ok(number)
}

/// The wire type of a field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Number,
    Eight,
    Bytes,
    Begin,
    End,
    Four,
}

/// The bytes of a message that are still unread.
pub(super) struct Source<'a>(pub(super) &'a [u8]);

impl<'a> Source<'a> {
    /// The number and wire type of the next field; `None` at the end.
    pub(super) fn tag(&mut self) -> Read<Option<(u32, Kind)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = u32::try_from(self.varint()?).map_err(|_| Fault::Malformed)?;
        let kind = match tag & 7 {
            0 => Kind::Number,
            1 => Kind::Eight,
            2 => Kind::Bytes,
            3 => Kind::Begin,
            4 => Kind::End,
            5 => Kind::Four,
            _ => return Err(Fault::Malformed),
        };
        match tag >> 3 {
            0 => Err(Fault::Malformed),
            field => Ok(Some((field, kind))),
        }
    }

    fn varint(&mut self) -> Read<u64> {
        let mut number = 0;
        for (index, byte) in self.0.iter().enumerate().take(10) {
            // The tenth byte holds one bit only.
            if index == 9 && *byte > 1 {
                return Err(Fault::Malformed);
            }
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.0 = &self.0[index + 1..];
                return Ok(number);
            }
        }
        Err(if self.0.len() < 10 { Fault::Short } else { Fault::Malformed })
    }

    pub(super) fn number(&mut self, kind: Kind) -> Read<u64> {
        if kind == Kind::Number { self.varint() } else { Err(Fault::Type) }
    }

    pub(super) fn bytes(&mut self, kind: Kind) -> Read<&'a [u8]> {
        if kind != Kind::Bytes {
            return Err(Fault::Type);
        }
        let length = usize::try_from(self.varint()?).map_err(|_| Fault::Malformed)?;
        self.take(length)
    }

    pub(super) fn text(&mut self, kind: Kind) -> Read<&'a str> {
        std::str::from_utf8(self.bytes(kind)?).map_err(|_| Fault::Text)
    }

    fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Fault::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Skips an unknown field. `depth` is the number of groups around it, at most `GROUPS_MAX`.
    pub(super) fn skip(&mut self, field: u32, kind: Kind, depth: usize) -> Read<()> {
        match kind {
            Kind::Number => self.varint().map(|_| ()),
            Kind::Eight => self.take(8).map(|_| ()),
            Kind::Four => self.take(4).map(|_| ()),
            Kind::Bytes => self.bytes(kind).map(|_| ()),
            Kind::End => Err(Fault::Malformed),
            Kind::Begin if depth >= GROUPS_MAX => Err(Fault::Malformed),
            Kind::Begin => loop {
                match self.tag()?.ok_or(Fault::Short)? {
                    (end, Kind::End) if end == field => return Ok(()),
                    (_, Kind::End) => return Err(Fault::Malformed),
                    (inner, kind) => self.skip(inner, kind, depth + 1)?,
                }
            },
        }
    }
}

//! A request as it lies in the bytes that carried it: nothing is copied, and two lists hold all.
//!
//! Ten descriptors made into owned messages take longer than deciding them, so the one method that
//! matters is read here. What is read and refused is what the generated messages read and refuse
//! (`wire`): a test compares them on any bytes. Fields that are not known are passed over.

use super::{Override, Request};

/// The most descriptors in a request; callers send a handful.
pub const DESCRIPTORS_MAX: usize = 1_000;
/// The most entries in a descriptor.
pub const ENTRIES_MAX: usize = 100;

/// How deep groups of unknown fields may lie in each other: no message has any.
const GROUPS_MAX: usize = 100;

/// A request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View<'a> {
    /// Which rules are asked.
    pub domain: &'a str,
    /// Hits for descriptors that name none; 0 counts as 1.
    pub hits_addend: u32,
    /// What is asked about.
    pub descriptors: Vec<Part<'a>>,
}

/// One descriptor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part<'a> {
    /// Keys and values.
    pub entries: Entries<'a>,
    /// A limit that it brings along.
    pub limit: Option<Override>,
    /// Its own hits.
    pub hits_addend: Option<u64>,
    /// They are given back.
    pub is_negative_hits: bool,
}

/// The entries of a descriptor; nearly all have four or fewer, and those need no memory.
#[derive(Clone, Debug, Default)]
pub struct Entries<'a> {
    count: usize,
    near: [(&'a str, &'a str); 4],
    far: Vec<(&'a str, &'a str)>,
}

impl<'a> Entries<'a> {
    /// All of them, in order.
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

/// The bytes are no request. Whoever sent them is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// They end within something.
    #[error("it ends too early")]
    Short,
    /// A number, tag or length that cannot be.
    #[error("a field is malformed")]
    Malformed,
    /// A field of another kind than it must be.
    #[error("a field has the wrong type")]
    Type,
    /// More than anybody needs.
    #[error("more than {DESCRIPTORS_MAX} descriptors, or more than {ENTRIES_MAX} entries in one")]
    TooMany,
    /// A text that is not UTF-8.
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

    /// The same of a message.
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
            // Of a message that comes twice, the second adds to the first.
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

/// A number in a message of its own, which tells none from zero.
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

/// How a field lies in the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Number,
    Eight,
    Bytes,
    Begin,
    End,
    Four,
}

/// What is still to be read of a message.
pub(super) struct Source<'a>(pub(super) &'a [u8]);

impl<'a> Source<'a> {
    /// The number and kind of the next field; `None` at the end.
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
            // The tenth byte has room for one bit.
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

    /// Passes over a field that nobody knows.
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

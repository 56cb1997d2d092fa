//! Reads and writes protobuf messages field by field, without generated code.
//!
//! Decoding a message into owned values, or encoding one that has many messages in it, takes longer
//! than the decision about it. So the messages of each request are read and written with this. It
//! accepts and refuses the same bytes as generated messages do. Which fields a message has, the
//! doors know.

use prost::Message;

/// The maximum nesting depth of groups in unknown fields. The known messages have no groups.
const GROUPS_MAX: usize = 100;

/// The reason why bytes are not a message. The sender is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// The bytes end within a field.
    #[error("it ends too early")]
    Short,
    /// A number, tag or length is impossible.
    #[error("a field is malformed")]
    Malformed,
    /// A known field has a wrong wire type.
    #[error("a field has the wrong type")]
    Type,
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
}

/// A value, or the reason why there is none.
pub type ProtobufResult<T> = Result<T, ProtobufError>;

/// The wire type of a field. The discriminants are the numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireKind {
    /// A varint.
    Number = 0,
    /// Eight bytes.
    Eight = 1,
    /// A length and that number of bytes: texts, bytes and messages.
    Bytes = 2,
    /// The begin of a group.
    Begin = 3,
    /// The end of a group.
    End = 4,
    /// Four bytes.
    Four = 5,
}

/// The bytes of a message that are still unread.
pub struct ProtobufSource<'a>(pub &'a [u8]);

impl<'a> ProtobufSource<'a> {
    /// The number and wire type of the next field; `None` at the end.
    ///
    /// # Errors
    /// [`ProtobufError`], as all methods: the rest of the message cannot be read then.
    pub fn tag(&mut self) -> ProtobufResult<Option<(u32, WireKind)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = u32::try_from(self.varint()?).map_err(|_| ProtobufError::Malformed)?;
        let kind = match tag & 7 {
            0 => WireKind::Number,
            1 => WireKind::Eight,
            2 => WireKind::Bytes,
            3 => WireKind::Begin,
            4 => WireKind::End,
            5 => WireKind::Four,
            _ => return Err(ProtobufError::Malformed),
        };
        match tag >> 3 {
            0 => Err(ProtobufError::Malformed),
            field => Ok(Some((field, kind))),
        }
    }

    #[inline]
    fn varint(&mut self) -> ProtobufResult<u64> {
        if let [byte @ ..0x80, rest @ ..] = self.0 {
            self.0 = rest;
            return Ok(u64::from(*byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> ProtobufResult<u64> {
        let mut number = 0;
        for (index, byte) in self.0.iter().enumerate().take(10) {
            // The tenth byte holds one bit only.
            if index == 9 && *byte > 1 {
                return Err(ProtobufError::Malformed);
            }
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.0 = &self.0[index + 1..];
                return Ok(number);
            }
        }
        Err(if self.0.len() < 10 { ProtobufError::Short } else { ProtobufError::Malformed })
    }

    /// The value of a field that is a number.
    ///
    /// # Errors
    /// As [`ProtobufSource::tag`].
    pub fn number(&mut self, kind: WireKind) -> ProtobufResult<u64> {
        if kind == WireKind::Number { self.varint() } else { Err(ProtobufError::Type) }
    }

    /// The value of a field that is a message, or bytes.
    ///
    /// # Errors
    /// As [`ProtobufSource::tag`].
    pub fn bytes(&mut self, kind: WireKind) -> ProtobufResult<&'a [u8]> {
        if kind != WireKind::Bytes {
            return Err(ProtobufError::Type);
        }
        let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Malformed)?;
        self.take(length)
    }

    fn take(&mut self, length: usize) -> ProtobufResult<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(ProtobufError::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Skips an unknown field.
    ///
    /// # Errors
    /// As [`ProtobufSource::tag`].
    pub fn skip(&mut self, field: u32, kind: WireKind) -> ProtobufResult<()> {
        self.skip_within(field, kind, 0)
    }

    /// The same within `depth` groups, at most `GROUPS_MAX`.
    fn skip_within(&mut self, field: u32, kind: WireKind, depth: usize) -> ProtobufResult<()> {
        match kind {
            WireKind::Number => self.varint().map(|_| ()),
            WireKind::Eight => self.take(8).map(|_| ()),
            WireKind::Four => self.take(4).map(|_| ()),
            WireKind::Bytes => self.bytes(kind).map(|_| ()),
            WireKind::End => Err(ProtobufError::Malformed),
            WireKind::Begin if depth >= GROUPS_MAX => Err(ProtobufError::Malformed),
            WireKind::Begin => loop {
                match self.tag()?.ok_or(ProtobufError::Short)? {
                    (end, WireKind::End) if end == field => return Ok(()),
                    (_, WireKind::End) => return Err(ProtobufError::Malformed),
                    (inner, kind) => self.skip_within(inner, kind, depth + 1)?,
                }
            },
        }
    }
}

/// The texts of a message and of the messages in it.
///
/// Messages of short texts are valid UTF-8 as a whole, lengths and tags included. To check that
/// once is faster than to check each text.
#[derive(Clone, Copy, Debug)]
pub struct ProtobufTexts<'a>(Option<&'a str>);

impl<'a> ProtobufTexts<'a> {
    /// The texts of `message`.
    #[must_use]
    pub fn of(message: &'a [u8]) -> ProtobufTexts<'a> {
        ProtobufTexts(std::str::from_utf8(message).ok())
    }

    /// The text that a field of the message contains as `bytes`.
    ///
    /// # Errors
    /// [`ProtobufError::Text`].
    pub fn read(self, bytes: &'a [u8]) -> ProtobufResult<&'a str> {
        let text = match self.0 {
            Some(message) => {
                // Bytes of something else are out of range, or other text of this message.
                let start = bytes.as_ptr().addr().wrapping_sub(message.as_ptr().addr());
                message.get(start..start.saturating_add(bytes.len()))
            }
            None => std::str::from_utf8(bytes).ok(),
        };
        text.ok_or(ProtobufError::Text)
    }
}

/// A message that is being written. As in all messages of proto3, fields that are zero or empty
/// take no bytes.
pub struct ProtobufSink(Vec<u8>);

impl ProtobufSink {
    /// A message that follows `begun`.
    pub(crate) fn new(begun: Vec<u8>) -> ProtobufSink {
        ProtobufSink(begun)
    }

    /// All bytes.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Writes a field that is a number. A negative one is passed as `u64` with its sign extended.
    pub fn number(&mut self, field: u32, number: u64) {
        if number != 0 {
            self.tag(field, WireKind::Number);
            self.varint(number);
        }
    }

    /// Writes a field that is a text.
    pub fn text(&mut self, field: u32, text: &str) {
        if !text.is_empty() {
            self.tag(field, WireKind::Bytes);
            self.varint(text.len() as u64);
            self.0.extend_from_slice(text.as_bytes());
        }
    }

    /// Writes a field that is a message, which `write` writes.
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut ProtobufSink)) {
        self.tag(field, WireKind::Bytes);
        let begin = self.0.len();
        // Nearly all lengths take one byte.
        self.0.push(0);
        write(self);
        let end = self.0.len();
        let length = end - begin - 1;
        if length < 0x80 {
            self.0[begin] = length as u8;
            return;
        }
        self.varint(length as u64);
        let bytes = self.0.len() - end;
        self.0[begin + 1..].rotate_right(bytes);
        self.0.remove(begin);
    }

    /// Writes all fields of a generated message.
    pub fn fields_of(&mut self, message: &impl Message) {
        // Encoding fails only without enough space, and the buffer grows.
        let _ = message.encode(&mut self.0);
    }

    fn tag(&mut self, field: u32, kind: WireKind) {
        self.varint(u64::from(field << 3 | kind as u32));
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_not_utf8_is_refused_also_in_a_message_that_is() {
        // The last byte of the text and the first one of the next tag are one character.
        let split = b"\x0a\x01\xc2\x82\x01\x00";
        let whole = b"\x0a\x02\xc2\x82\x12\x00";
        assert!(std::str::from_utf8(split).is_ok() && std::str::from_utf8(whole).is_ok());
        assert_eq!(ProtobufTexts::of(split).read(&split[2..3]), Err(ProtobufError::Text));
        assert_eq!(ProtobufTexts::of(whole).read(&whole[2..4]), Ok("\u{82}"));
        assert_eq!(ProtobufTexts::of(whole).read(&whole[6..]), Ok(""));
        let of_bytes = b"\x0a\x02ok\x12\x01\xff";
        assert_eq!(ProtobufTexts::of(of_bytes).read(&of_bytes[2..4]), Ok("ok"));
        assert_eq!(ProtobufTexts::of(of_bytes).read(&of_bytes[6..]), Err(ProtobufError::Text));
        assert_eq!(ProtobufTexts::of(whole).read(b"elsewhere"), Err(ProtobufError::Text));
    }
}

//! Reads the fields of a protobuf message from its bytes without copying anything.
//!
//! Decoding a message into owned values takes longer than the decision about it, so the messages of
//! each request are read with this. It accepts and refuses the same bytes as generated messages do.
//! Which fields a message has, the doors know.

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

/// The wire type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireKind {
    /// A varint.
    Number,
    /// Eight bytes.
    Eight,
    /// A length and that number of bytes: texts, bytes and messages.
    Bytes,
    /// The begin of a group.
    Begin,
    /// The end of a group.
    End,
    /// Four bytes.
    Four,
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

    fn varint(&mut self) -> ProtobufResult<u64> {
        if let [byte @ ..0x80, rest @ ..] = self.0 {
            self.0 = rest;
            return Ok(u64::from(*byte));
        }
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

    /// The value of a field that is a text.
    ///
    /// # Errors
    /// As [`ProtobufSource::tag`].
    pub fn text(&mut self, kind: WireKind) -> ProtobufResult<&'a str> {
        std::str::from_utf8(self.bytes(kind)?).map_err(|_| ProtobufError::Text)
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

//! Escapes of JSON strings, byte by byte.
//!
//! Two escapes can make one character (surrogates), so the first is kept until what follows is
//! known. Half a pair becomes the replacement character, as UTF-8 has nothing for it.

/// The state of the escape that is being read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EscapeReader {
    phase: EscapePhase,
    /// The digits of `\u` so far.
    value: u16,
    /// The first half of a pair of surrogates, or 0.
    high: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EscapePhase {
    #[default]
    None,
    Backslash,
    /// How many digits of `\u` have been read.
    Digits(u8),
}

impl EscapeReader {
    /// A backslash has been read.
    pub(super) fn begin(&mut self) {
        self.phase = EscapePhase::Backslash;
    }

    /// Whether the next byte belongs to an escape.
    pub(super) fn is_open(self) -> bool {
        self.phase != EscapePhase::None
    }

    /// Something other than an escape follows: half a pair stays alone.
    pub(super) fn end_pair(&mut self) -> Option<char> {
        let high = std::mem::take(&mut self.high);
        (high != 0).then_some(char::REPLACEMENT_CHARACTER)
    }

    /// Reads a byte of an escape, and gives its characters to `emit` when it is complete. Returns
    /// false if there is no such escape.
    pub(super) fn read(&mut self, byte: u8, mut emit: impl FnMut(char)) -> bool {
        if let EscapePhase::Digits(count) = self.phase {
            let Some(digit) = char::from(byte).to_digit(16) else { return false };
            self.value = self.value << 4 | digit as u16;
            self.phase = EscapePhase::Digits(count + 1);
            if count == 3 {
                self.phase = EscapePhase::None;
                self.unit(emit);
            }
            return true;
        }
        if byte == b'u' {
            self.value = 0;
            self.phase = EscapePhase::Digits(0);
            return true;
        }
        let Some(one) = simple(byte) else { return false };
        self.phase = EscapePhase::None;
        self.end_pair().into_iter().for_each(&mut emit);
        emit(one);
        true
    }

    /// A complete `\u` with `value`.
    fn unit(&mut self, mut emit: impl FnMut(char)) {
        let pair = [self.high, self.value];
        if self.high != 0
            && let Some(Ok(both)) = char::decode_utf16(pair).next()
        {
            self.high = 0;
            return emit(both);
        }
        self.end_pair().into_iter().for_each(&mut emit);
        match self.value {
            0xd800..0xdc00 => self.high = self.value,
            value => emit(char::from_u32(value.into()).unwrap_or(char::REPLACEMENT_CHARACTER)),
        }
    }
}

/// The character of an escape of one letter.
fn simple(byte: u8) -> Option<char> {
    Some(match byte {
        b'"' | b'\\' | b'/' => char::from(byte),
        b'n' => '\n',
        b't' => '\t',
        b'r' => '\r',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        _ => return None,
    })
}

//! The inside of JSON strings, with their escapes.
//!
//! Two escapes can make one character (surrogates), so the first is kept until the next one is
//! known. Half a pair becomes the replacement character, because UTF-8 cannot express it.

/// The state of the string that is being read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StringReader {
    escape: EscapePhase,
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

impl StringReader {
    /// Reads the rest of a string, or up to an escape, or a byte of an escape. `rest` is not empty;
    /// `find` finds the first quote or backslash. Gives what was read to `emit`. Returns how many
    /// bytes that is, and whether the string has ended; `None` if there is no such escape.
    pub(super) fn read(
        &mut self,
        rest: &[u8],
        find: impl Fn(&[u8]) -> Option<usize>,
        mut emit: impl FnMut(&[u8]),
    ) -> Option<(usize, bool)> {
        let mut emit_char = |one: char| emit(one.encode_utf8(&mut [0; 4]).as_bytes());
        if self.escape != EscapePhase::None {
            return self.escape(rest[0], emit_char).map(|()| (1, false));
        }
        let plain = find(rest).unwrap_or(rest.len());
        let end = rest.get(plain).copied();
        if plain > 0 || end == Some(b'"') {
            self.end_pair().into_iter().for_each(&mut emit_char);
        }
        if plain > 0 {
            emit(&rest[..plain]);
        }
        if end == Some(b'\\') {
            self.escape = EscapePhase::Backslash;
        }
        Some((plain + usize::from(end.is_some()), end == Some(b'"')))
    }

    /// Something other than an escape follows: half a pair stays alone.
    fn end_pair(&mut self) -> Option<char> {
        let high = std::mem::take(&mut self.high);
        (high != 0).then_some(char::REPLACEMENT_CHARACTER)
    }

    /// Reads a byte of an escape, and gives its characters to `emit` when it is complete. `None` if
    /// there is no such escape.
    fn escape(&mut self, byte: u8, mut emit: impl FnMut(char)) -> Option<()> {
        if let EscapePhase::Digits(count) = self.escape {
            let digit = char::from(byte).to_digit(16)?;
            self.value = self.value << 4 | digit as u16;
            self.escape = EscapePhase::Digits(count + 1);
            if count == 3 {
                self.escape = EscapePhase::None;
                self.unit(emit);
            }
            return Some(());
        }
        if byte == b'u' {
            self.value = 0;
            self.escape = EscapePhase::Digits(0);
            return Some(());
        }
        let one = simple(byte)?;
        self.escape = EscapePhase::None;
        self.end_pair().into_iter().for_each(&mut emit);
        emit(one);
        Some(())
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

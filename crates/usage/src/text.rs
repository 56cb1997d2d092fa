//! The bounded beginning of a text that arrives in pieces.
//!
//! For values that must be read as a whole, such as the name of a model. The rest is dropped; a
//! text that is only measured or hashed needs no such buffer.

/// The first `MAX` bytes of a text.
#[derive(Clone, Debug)]
pub(crate) struct ShortText<const MAX: usize> {
    bytes: [u8; MAX],
    length: usize,
    is_cut: bool,
}

impl<const MAX: usize> ShortText<MAX> {
    pub(crate) fn new() -> Self {
        ShortText { bytes: [0; MAX], length: 0, is_cut: false }
    }

    pub(crate) fn clear(&mut self) {
        self.length = 0;
        self.is_cut = false;
    }

    pub(crate) fn push(&mut self, piece: &[u8]) {
        let fits = piece.len().min(MAX - self.length);
        self.bytes[self.length..self.length + fits].copy_from_slice(&piece[..fits]);
        self.length += fits;
        self.is_cut |= fits < piece.len();
    }

    /// The bytes that were kept.
    pub(crate) fn kept(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The text; `None` if it did not fit.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        (!self.is_cut).then(|| self.kept())
    }

    /// The bytes that were kept, as text. A character that did not fit is left out, and bytes that
    /// are not UTF-8 are replaced.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::from_utf8_lossy(self.kept()).into_owned();
        if self.is_cut && text.ends_with(char::REPLACEMENT_CHARACTER) {
            text.pop();
        }
        text
    }
}

//! Answers that are compressed: a copy of them is decoded while they pass.
//!
//! gzip, and deflate in the frame of zlib as HTTP has it. A small answer can decode to a very large
//! one, so only a proportionate part is read: [`EXTRA_BYTES`], and [`RATIO_MAX`] bytes for each
//! byte that has arrived. The output of models compresses to a third, repeated frames of events to
//! a fiftieth. After that, or after an error, no more is read.

use super::answer::AnswerText;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use std::io::{self, Write};

/// How many decoded bytes are read in any case.
const EXTRA_BYTES: u64 = 1 << 20;
/// How many decoded bytes are read for each encoded one.
const RATIO_MAX: u64 = 200;

/// The text of an answer, decoded.
#[derive(Debug)]
pub(super) struct CodedText {
    decoder: TextDecoder,
    /// Whether an error or the bound has ended the reading.
    is_over: bool,
}

#[derive(Debug)]
enum TextDecoder {
    Plain(AnswerText),
    Gzip(MultiGzDecoder<BoundedText>),
    Deflate(ZlibDecoder<BoundedText>),
}

impl CodedText {
    /// Decodes `Content-Encoding: coding` for `text`; `None` if that cannot be decoded.
    pub(super) fn new(text: AnswerText, coding: &[u8]) -> Option<CodedText> {
        let bounded = |text| BoundedText { text, left: EXTRA_BYTES };
        let coding = coding.trim_ascii();
        let is = |name: &[u8]| coding.eq_ignore_ascii_case(name);
        let decoder = if coding.is_empty() || is(b"identity") {
            TextDecoder::Plain(text)
        } else if is(b"gzip") || is(b"x-gzip") {
            TextDecoder::Gzip(MultiGzDecoder::new(bounded(text)))
        } else if is(b"deflate") {
            TextDecoder::Deflate(ZlibDecoder::new(bounded(text)))
        } else {
            return None;
        };
        Some(CodedText { decoder, is_over: false })
    }

    /// Reads a piece of the answer as it is sent.
    pub(super) fn read(&mut self, bytes: &[u8]) {
        if self.is_over {
            return;
        }
        let more = RATIO_MAX.saturating_mul(bytes.len() as u64);
        let result = match &mut self.decoder {
            TextDecoder::Plain(text) => return text.read(bytes),
            TextDecoder::Gzip(decoder) => {
                decoder.get_mut().allow(more);
                decoder.write_all(bytes).and_then(|()| decoder.flush())
            }
            TextDecoder::Deflate(decoder) => {
                decoder.get_mut().allow(more);
                decoder.write_all(bytes).and_then(|()| decoder.flush())
            }
        };
        self.is_over = result.is_err();
    }

    /// The text that has been read.
    pub(super) fn text(&self) -> &AnswerText {
        match &self.decoder {
            TextDecoder::Plain(text) => text,
            TextDecoder::Gzip(decoder) => &decoder.get_ref().text,
            TextDecoder::Deflate(decoder) => &decoder.get_ref().text,
        }
    }
}

/// A text of which only a limited number of bytes is read.
#[derive(Debug)]
struct BoundedText {
    text: AnswerText,
    left: u64,
}

impl BoundedText {
    fn allow(&mut self, more: u64) {
        self.left = self.left.saturating_add(more);
    }
}

impl Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or(io::ErrorKind::FileTooLarge)?;
        self.text.read(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

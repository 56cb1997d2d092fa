//! Reads the tokens that an answer states, and counts those of a stream that states none.
//!
//! The values that are read: `sink.rs`; their meaning: `counts.rs`; the form of an answer:
//! `answer.rs`; its compression: `coding.rs`. Only numbers are kept, so there is no bound on the
//! length of an event or of a whole answer.

mod answer;
mod coding;
pub(crate) mod counts;
mod sink;

use crate::dialect::Dialect;
use answer::AnswerText;
use coding::CodedText;
use counts::TokenUsage;

/// Reads an answer piece by piece as it passes, however it is cut.
#[derive(Debug)]
pub struct UsageReader(CodedText);

impl UsageReader {
    /// A reader of an answer with the headers `Content-Type: content_type` and `Content-Encoding:
    /// coding`, both empty if absent. Without a known type, the first byte tells events from JSON.
    /// `None` if the coding is not identity, gzip or deflate.
    #[must_use]
    pub fn new(dialect: Dialect, content_type: &[u8], coding: &[u8]) -> Option<UsageReader> {
        CodedText::new(AnswerText::new(dialect, content_type), coding).map(UsageReader)
    }

    /// Reads a piece of the answer.
    pub fn read(&mut self, bytes: &[u8]) {
        self.0.read(bytes);
    }

    /// The newest usage that the answer has stated completely: of a stream, the last one.
    #[must_use]
    pub fn stated(&self) -> Option<TokenUsage> {
        self.0.text().sink.stated()
    }

    /// The output tokens of a stream so far, counted by its complete events: each piece of text, of
    /// reasoning or of a tool call is one, or a quarter of its bytes if that is more. 0 for an
    /// answer that is not a stream.
    #[must_use]
    pub fn counted(&self) -> u64 {
        self.0.text().sink.counted()
    }
}

#[cfg(test)]
mod tests;

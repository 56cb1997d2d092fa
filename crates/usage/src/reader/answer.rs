//! The text of an answer: events, or JSON, one text or many.
//!
//! A stream of Ollama has one JSON text per line. A text ends where its JSON ends, so a single
//! answer over many lines needs no other treatment. After a text that is not JSON, the next line is
//! tried.

use super::sink::AnswerSink;
use crate::dialect::Dialect;
use crate::json::JsonScanner;
use crate::sse::{SsePart, SseParts};
use memchr::memchr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerFormat {
    /// The header does not state it; the first byte will show it.
    Unknown,
    Events,
    Json,
}

/// Reads the text of an answer piece by piece.
#[derive(Debug)]
pub(super) struct AnswerText {
    format: AnswerFormat,
    parts: SseParts,
    scanner: JsonScanner,
    pub(super) sink: AnswerSink,
}

impl AnswerText {
    /// An answer with the header `Content-Type: content_type`.
    pub(super) fn new(dialect: Dialect, content_type: &[u8]) -> AnswerText {
        let kind = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
        let kind = kind.trim_ascii().to_ascii_lowercase();
        let format = match &kind[..] {
            b"text/event-stream" => AnswerFormat::Events,
            kind if kind.windows(4).any(|some| some == b"json") => AnswerFormat::Json,
            _ => AnswerFormat::Unknown,
        };
        let mut text = AnswerText {
            format,
            parts: SseParts::new(),
            scanner: JsonScanner::new(),
            sink: AnswerSink::new(dialect),
        };
        text.sink.counts = format == AnswerFormat::Events || dialect == Dialect::Ollama;
        text
    }

    pub(super) fn read(&mut self, bytes: &[u8]) {
        match self.format {
            AnswerFormat::Events => self.events(bytes),
            AnswerFormat::Json => self.json(bytes),
            AnswerFormat::Unknown => self.unknown(bytes),
        }
    }

    /// Detects the format by the first byte that is neither a space nor part of a byte order mark.
    fn unknown(&mut self, bytes: &[u8]) {
        let is_void = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, 0xef | 0xbb | 0xbf);
        let Some(first) = bytes.iter().position(|byte| !is_void(byte)) else { return };
        self.format = match bytes[first] {
            b'{' | b'[' => AnswerFormat::Json,
            _ => AnswerFormat::Events,
        };
        self.sink.counts |= self.format == AnswerFormat::Events;
        self.read(&bytes[first..]);
    }

    fn events(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (used, part) = self.parts.next(rest);
            match part {
                SsePart::DataLine => _ = self.scanner.read(b"\n", &mut self.sink),
                SsePart::Data => _ = self.scanner.read(&rest[..used], &mut self.sink),
                SsePart::End => self.end_text(),
                _ => {}
            }
            rest = &rest[used..];
        }
    }

    fn json(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.scanner.is_broken() {
                let Some(end) = memchr(b'\n', rest) else { return };
                rest = &rest[end..];
                self.end_text();
            }
            rest = &rest[self.scanner.read(rest, &mut self.sink)..];
            if self.scanner.is_done() {
                self.end_text();
            }
        }
    }

    fn end_text(&mut self) {
        self.sink.end(self.scanner.is_done());
        self.scanner.reset();
    }
}

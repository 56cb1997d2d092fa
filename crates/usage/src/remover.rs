//! Removes the event with the usage from a stream, for a client that did not ask for it.
//!
//! `include_usage` makes a backend send one more event before the end: an object with an empty
//! array `choices` and an object `usage`. That event is removed together with its blank line.
//! Everything else passes byte for byte. This includes the `"usage": null` that some backends then
//! add to all other events: to remove it, those events would have to be encoded again, and clients
//! of the API ignore it. A usage beside choices passes as well, since backends send it unasked.
//!
//! **No delay.** An incomplete event is held back only while it may be the one to remove. It passes
//! once its data is not an object, `choices` is not an empty array, or `usage` is not an object. In
//! the events of all known servers this is seen before the first token. Comments pass at once. At
//! most [`HELD_BYTES_MAX`] are held back.

use crate::json::{Container, JsonScanner, JsonSink, Key};
use crate::sse::{SsePart, SseParts};
use bytes::Bytes;

/// The maximum number of bytes of an event that are held back; a larger one passes.
const HELD_BYTES_MAX: usize = 64 * 1024;

/// Removes events that only state the usage from a stream of OpenAI's API.
#[derive(Debug)]
pub struct UsageEventRemover {
    parts: SseParts,
    scanner: JsonScanner,
    event: UsageOnly,
    progress: EventProgress,
    /// The bytes of an undecided event that came with earlier pieces.
    held: Vec<u8>,
}

/// The state of the current event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventProgress {
    /// Between two events. `removed`: the one before was removed, and an LF may still belong to it.
    Between { removed: bool },
    /// It may still be the one to remove.
    Undecided,
    /// It passes.
    Passes,
}

impl UsageEventRemover {
    /// At the beginning of a stream.
    #[must_use]
    pub fn new() -> UsageEventRemover {
        UsageEventRemover {
            parts: SseParts::new(),
            scanner: JsonScanner::new(),
            event: UsageOnly::default(),
            progress: EventProgress::Between { removed: false },
            held: Vec::new(),
        }
    }

    /// Handles a piece of the stream. Returns the bytes that go to the client now. A piece without
    /// anything to remove or hold back is returned unchanged, without a copy.
    pub fn pass(&mut self, bytes: Bytes) -> Bytes {
        let mut piece = PassingPiece { bytes, out: Vec::new(), from: 0, event: 0 };
        let mut at = 0;
        while at < piece.bytes.len() {
            let (used, part) = self.parts.next(&piece.bytes[at..]);
            self.part(part, at, used, &mut piece);
            at += used;
        }
        if self.progress != EventProgress::Undecided {
            return piece.rest(at);
        }
        if self.held.len() + at - piece.event > HELD_BYTES_MAX {
            self.decide(&mut piece);
            return piece.rest(at);
        }
        self.held.extend_from_slice(&piece.bytes[piece.event..]);
        let until = piece.event;
        piece.rest(until)
    }

    /// Handles the end of the stream. Returns the remaining bytes: an event without its end.
    pub fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }

    fn part(&mut self, part: SsePart, at: usize, used: usize, piece: &mut PassingPiece) {
        match (part, self.progress) {
            (part, EventProgress::Between { removed }) if is_between(part) => {
                if removed && part == SsePart::LineFeed {
                    piece.drop_to(at + 1);
                }
                self.progress = EventProgress::Between { removed: false };
            }
            (SsePart::End, EventProgress::Undecided) if self.is_usage_only() => {
                piece.remove(at + used);
                self.held.clear();
                self.begin_event(EventProgress::Between { removed: true });
            }
            (SsePart::End, progress) => {
                if progress == EventProgress::Undecided {
                    self.decide(piece);
                }
                self.begin_event(EventProgress::Between { removed: false });
            }
            (_, EventProgress::Passes) => {}
            (part, progress) => {
                if progress != EventProgress::Undecided {
                    self.progress = EventProgress::Undecided;
                    piece.event = at;
                }
                self.look_at(part, at, used, piece);
            }
        }
    }

    /// Reads a part of an undecided event.
    fn look_at(&mut self, part: SsePart, at: usize, used: usize, piece: &mut PassingPiece) {
        let data: &[u8] = match part {
            SsePart::Data => &piece.bytes[at..at + used],
            SsePart::DataLine => b"\n",
            _ => return,
        };
        let read = self.scanner.read(data, &mut self.event);
        let more = data[read..].iter().any(|byte| !byte.is_ascii_whitespace());
        if self.event.is_other || more {
            self.decide(piece);
        }
    }

    fn is_usage_only(&self) -> bool {
        let UsageOnly { has_choices, has_usage, is_other } = self.event;
        self.scanner.is_done() && has_choices && has_usage && !is_other
    }

    /// The event passes, together with the bytes of it that were held back.
    fn decide(&mut self, piece: &mut PassingPiece) {
        self.progress = EventProgress::Passes;
        // The held bytes came before this piece, so no byte of this piece precedes them.
        piece.out.append(&mut self.held);
    }

    fn begin_event(&mut self, progress: EventProgress) {
        self.progress = progress;
        self.scanner.reset();
        self.event = UsageOnly::default();
    }
}

impl Default for UsageEventRemover {
    fn default() -> UsageEventRemover {
        UsageEventRemover::new()
    }
}

/// Whether bytes of this kind begin no event.
fn is_between(part: SsePart) -> bool {
    matches!(part, SsePart::LineFeed | SsePart::Between | SsePart::Comment)
}

/// A piece of the stream, and the bytes of it that pass.
struct PassingPiece {
    bytes: Bytes,
    /// The bytes that pass before `from`, if they are not one slice of the piece.
    out: Vec<u8>,
    /// The beginning of the bytes that have not been passed, held or removed yet.
    from: usize,
    /// Where the undecided event begins: 0 if in an earlier piece.
    event: usize,
}

impl PassingPiece {
    /// Removes the event, which ends at `end`.
    fn remove(&mut self, end: usize) {
        self.out.extend_from_slice(&self.bytes[self.from..self.event]);
        self.drop_to(end);
    }

    /// Drops the bytes up to `end` that have not passed.
    fn drop_to(&mut self, end: usize) {
        self.from = end;
        self.event = end;
    }

    /// All that passes, with the bytes up to `end`.
    fn rest(mut self, end: usize) -> Bytes {
        if self.out.is_empty() {
            return self.bytes.slice(self.from..end);
        }
        self.out.extend_from_slice(&self.bytes[self.from..end]);
        self.out.into()
    }
}

/// Whether the data of an event is an object with no choices and a usage.
#[derive(Clone, Copy, Debug, Default)]
struct UsageOnly {
    has_choices: bool,
    has_usage: bool,
    /// It certainly is not.
    is_other: bool,
}

impl UsageOnly {
    /// A value that is neither array nor object.
    fn plain(&mut self, path: &[Key]) {
        self.is_other |= matches!(path, [] | [Key::Choices | Key::Usage] | [Key::Choices, _]);
    }
}

impl JsonSink for UsageOnly {
    fn open(&mut self, path: &[Key], kind: Container, _: u64) -> bool {
        match (path, kind) {
            ([], Container::Object) => return true,
            ([Key::Choices], Container::Array) => {
                self.has_choices = true;
                return true;
            }
            ([Key::Usage], Container::Object) => self.has_usage = true,
            ([] | [Key::Choices | Key::Usage] | [Key::Choices, _], _) => self.is_other = true,
            _ => {}
        }
        false
    }

    fn begin_text(&mut self, path: &[Key]) {
        self.plain(path);
    }

    fn scalar(&mut self, path: &[Key], _: &[u8], _: u64) {
        self.plain(path);
    }
}

#[cfg(test)]
mod tests;

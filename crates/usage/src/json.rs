//! A scanner of JSON that arrives in pieces. It reports what it reads and keeps nothing.
//!
//! Why not a crate: bodies are cut anywhere, and a string may have many megabytes (images,
//! embeddings) of which only the length or a hash is needed. Existing push parsers collect each
//! string as a whole before they report it (actson), or need it in one buffer (json-event-parser);
//! others need the whole text. They also do not report the positions of values, which are needed to
//! insert `include_usage` into a text.
//!
//! The scanner is lenient where it costs nothing: it checks neither numbers nor UTF-8. Text that is
//! certainly not JSON ends the scan ([`JsonScanner::is_broken`]). Containers that are not needed
//! are skipped at the speed of a search for brackets, however deep they are.

mod key;
mod string;

pub(crate) use key::Key;

use crate::text::ShortText;
use memchr::memchr2;
use string::StringReader;

/// The maximum depth of containers that are read; deeper ones are skipped.
const DEPTH_MAX: usize = 32;
/// The longest name of a member, and the longest number, that are read, in bytes.
const TOKEN_BYTES_MAX: usize = 64;

/// The two kinds of values that contain others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    Object,
    Array,
}

/// The receiver of a scanner's reports. `path` leads to the value; a member of the outermost object
/// has a path of one step. `at` is the number of bytes before a place.
pub(crate) trait JsonSink {
    /// The key of a member called `name` of the container at `path`.
    fn key(&mut self, _path: &[Key], name: &[u8]) -> Key {
        Key::of(name)
    }

    /// A container begins; `at`: its bracket. Returns whether to read its content. If not, or if it
    /// is too deep, neither its content nor its end is reported.
    fn open(&mut self, path: &[Key], kind: Container, at: u64) -> bool;

    /// A container whose content was read has ended; `at`: behind its bracket.
    fn close(&mut self, _path: &[Key], _at: u64) {}

    /// A string begins.
    fn begin_text(&mut self, _path: &[Key]) {}

    /// A piece of a string, without escapes. Where it is cut depends on how the text arrives.
    fn text(&mut self, _path: &[Key], _piece: &[u8]) {}

    /// A string has ended.
    fn end_text(&mut self, _path: &[Key]) {}

    /// A number, `true`, `false` or `null`; `at`: its first byte. Longer ones than
    /// [`TOKEN_BYTES_MAX`] are not reported.
    fn scalar(&mut self, path: &[Key], token: &[u8], at: u64);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanState {
    /// A value must follow.
    Value,
    /// A value, or the end of an empty array.
    FirstItem,
    /// A name, or the end of an empty object.
    FirstName,
    /// A name must follow.
    NextName,
    Colon,
    CommaOrEnd,
    InName,
    InText,
    InScalar,
    Skipped,
    SkippedText,
    SkippedEscape,
    Done,
    Broken,
}

/// A scanner of one JSON text.
#[derive(Clone, Debug)]
pub(crate) struct JsonScanner {
    state: ScanState,
    /// How many containers are open, and the step to the value in each of them.
    depth: usize,
    path: [Key; DEPTH_MAX],
    /// Which of them are arrays, a bit for each.
    arrays: u32,
    /// How many containers are open within one that is skipped, itself included.
    skipped: u64,
    /// The name or scalar that is being read, if it is cut.
    token: ShortText<TOKEN_BYTES_MAX>,
    string: StringReader,
    /// The number of bytes read.
    at: u64,
}

impl JsonScanner {
    pub(crate) fn new() -> JsonScanner {
        JsonScanner {
            state: ScanState::Value,
            depth: 0,
            path: [Key::Other; DEPTH_MAX],
            arrays: 0,
            skipped: 0,
            token: ShortText::new(),
            string: StringReader::default(),
            at: 0,
        }
    }

    /// Begins the next text.
    pub(crate) fn reset(&mut self) {
        self.state = ScanState::Value;
        (self.depth, self.arrays, self.at) = (0, 0, 0);
        self.token.clear();
        self.string = StringReader::default();
    }

    /// Whether the text is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.state == ScanState::Done
    }

    /// Whether the text is no JSON.
    pub(crate) fn is_broken(&self) -> bool {
        self.state == ScanState::Broken
    }

    /// Reads a piece of the text. Returns how many bytes of it were read: all, unless the text ends
    /// or breaks before.
    pub(crate) fn read(&mut self, bytes: &[u8], sink: &mut impl JsonSink) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_done() && !self.is_broken() {
            let used = match self.state {
                ScanState::InText => self.text(rest, sink),
                ScanState::InName => self.name(rest, sink),
                ScanState::InScalar => self.scalar(rest, sink),
                ScanState::Skipped => self.skip(rest),
                ScanState::SkippedText | ScanState::SkippedEscape => self.skip_text(rest),
                _ => self.structure(rest[0], sink),
            };
            self.at += used as u64;
            rest = &rest[used..];
        }
        bytes.len() - rest.len()
    }

    /// Reads a byte between values.
    fn structure(&mut self, byte: u8, sink: &mut impl JsonSink) -> usize {
        use ScanState::{Colon, CommaOrEnd, FirstItem, FirstName, NextName, Value};
        match (self.state, byte) {
            (_, b' ' | b'\t' | b'\n' | b'\r') => {}
            (Value | FirstItem, b'"') => {
                self.state = ScanState::InText;
                sink.begin_text(&self.path[..self.depth]);
            }
            (FirstName | NextName, b'"') => {
                self.state = ScanState::InName;
                self.token.clear();
            }
            (Colon, b':') => self.state = Value,
            (CommaOrEnd, b',') => self.state = if self.is_in_array() { Value } else { NextName },
            (CommaOrEnd | FirstItem, b']') if self.is_in_array() => self.close(sink),
            (CommaOrEnd | FirstName, b'}') if !self.is_in_array() => self.close(sink),
            (Value | FirstItem, b'{') => self.open(Container::Object, sink),
            (Value | FirstItem, b'[') => self.open(Container::Array, sink),
            (Value | FirstItem, byte) if is_of_scalar(byte) => {
                self.state = ScanState::InScalar;
                self.token.clear();
                return 0;
            }
            // The byte order mark that some files begin with.
            (Value, 0xef | 0xbb | 0xbf) if self.depth == 0 => {}
            _ => self.state = ScanState::Broken,
        }
        1
    }

    fn is_in_array(&self) -> bool {
        self.arrays >> (self.depth - 1) & 1 == 1
    }

    fn open(&mut self, kind: Container, sink: &mut impl JsonSink) {
        let is_wanted = sink.open(&self.path[..self.depth], kind, self.at);
        if !is_wanted || self.depth == DEPTH_MAX {
            self.skipped = 1;
            self.state = ScanState::Skipped;
            return;
        }
        let bit = 1 << self.depth;
        match kind {
            Container::Array => {
                self.arrays |= bit;
                self.path[self.depth] = Key::Item;
                self.state = ScanState::FirstItem;
            }
            Container::Object => {
                self.arrays &= !bit;
                self.state = ScanState::FirstName;
            }
        }
        self.depth += 1;
    }

    fn close(&mut self, sink: &mut impl JsonSink) {
        self.depth -= 1;
        sink.close(&self.path[..self.depth], self.at + 1);
        self.end_value();
    }

    fn end_value(&mut self) {
        self.state = if self.depth == 0 { ScanState::Done } else { ScanState::CommaOrEnd };
    }

    /// Reads the rest of a string, or up to an escape, or a byte of an escape.
    fn text(&mut self, rest: &[u8], sink: &mut impl JsonSink) -> usize {
        let path = &self.path[..self.depth];
        let find = |rest: &[u8]| memchr2(b'"', b'\\', rest);
        let read = self.string.read(rest, find, |piece| sink.text(path, piece));
        if let Some((_, true)) = read {
            sink.end_text(path);
            self.end_value();
        }
        self.used(read)
    }

    /// As `text`, for the name of a member.
    fn name(&mut self, rest: &[u8], sink: &mut impl JsonSink) -> usize {
        // Most names are too short for `memchr2`.
        let find = |rest: &[u8]| rest.iter().position(|byte| matches!(byte, b'"' | b'\\'));
        let read = self.string.read(rest, find, |piece| self.token.push(piece));
        if let Some((_, true)) = read {
            let (path, last) = self.path[..self.depth].split_at_mut(self.depth - 1);
            last[0] = self.token.whole().map_or(Key::Other, |name| sink.key(path, name));
            self.state = ScanState::Colon;
        }
        self.used(read)
    }

    /// How many bytes were read of a string; `None`: it is broken.
    fn used(&mut self, read: Option<(usize, bool)>) -> usize {
        let Some((used, _)) = read else {
            self.state = ScanState::Broken;
            return 1;
        };
        used
    }

    /// Reads a number or a word. Only the byte behind it shows that it has ended.
    fn scalar(&mut self, rest: &[u8], sink: &mut impl JsonSink) -> usize {
        let length = rest.iter().position(|byte| !is_of_scalar(*byte)).unwrap_or(rest.len());
        self.token.push(&rest[..length]);
        match rest.get(length) {
            None => {}
            Some(b',' | b']' | b'}' | b' ' | b'\t' | b'\n' | b'\r') => {
                self.at += length as u64;
                if let Some(token) = self.token.whole() {
                    let at = self.at - token.len() as u64;
                    sink.scalar(&self.path[..self.depth], token, at);
                }
                self.at -= length as u64;
                self.end_value();
            }
            Some(_) => self.state = ScanState::Broken,
        }
        length
    }

    /// Skips up to the end of the container, or the beginning of a string.
    fn skip(&mut self, rest: &[u8]) -> usize {
        let mut used = 0;
        while let Some(next) = rest[used..].iter().position(|byte| STRUCTURAL[*byte as usize]) {
            used += next + 1;
            match rest[used - 1] {
                b'"' => {
                    self.state = ScanState::SkippedText;
                    return used;
                }
                b'{' | b'[' => self.skipped += 1,
                _ => {
                    self.skipped -= 1;
                    if self.skipped == 0 {
                        self.end_value();
                        return used;
                    }
                }
            }
        }
        rest.len()
    }

    fn skip_text(&mut self, rest: &[u8]) -> usize {
        if self.state == ScanState::SkippedEscape {
            self.state = ScanState::SkippedText;
            return 1;
        }
        let Some(end) = memchr2(b'"', b'\\', rest) else { return rest.len() };
        self.state = match rest[end] {
            b'"' => ScanState::Skipped,
            _ => ScanState::SkippedEscape,
        };
        end + 1
    }
}

/// The bytes that matter in a container that is skipped.
const STRUCTURAL: [bool; 256] = {
    let mut table = [false; 256];
    table[b'"' as usize] = true;
    table[b'{' as usize] = true;
    table[b'}' as usize] = true;
    table[b'[' as usize] = true;
    table[b']' as usize] = true;
    table
};

/// Whether a number, `true`, `false` or `null` may contain this byte.
fn is_of_scalar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

#[cfg(test)]
mod tests;

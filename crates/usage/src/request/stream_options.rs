//! Inserts `"stream_options": {"include_usage": true}` into the text of a request.
//!
//! Only the necessary bytes change; the text is not written again. Text that is not valid JSON
//! stays unchanged. So does text that has a relevant member twice, because it is not known which of
//! the two a backend uses. `stream_options` of an unexpected type is left for the backend to
//! refuse.

use crate::json::{Container, JsonScanner, JsonSink, Key};
use serde_json::value::RawValue;
use std::ops::Range;

/// The whole body `body`, changed so that the stream that it asks for reports its usage. `None` if
/// that is not possible or not necessary.
pub(super) fn with_usage(body: &[u8]) -> Option<Vec<u8>> {
    let mut options = StreamOptions::default();
    JsonScanner::new().read(body, &mut options);
    let (range, text) = options.change()?;
    // The scanner is lenient, but text that parsers may read in different ways is not changed.
    serde_json::from_slice::<&RawValue>(body).ok()?;
    let rest = body.get(range.end..)?;
    Some([&body[..range.start], text.as_bytes(), rest].concat())
}

/// The options that the text has.
#[derive(Default)]
struct StreamOptions {
    /// The place behind the first bracket of the text.
    begin: Option<usize>,
    /// How often these members occur, and `include_usage`.
    streams: u32,
    options: u32,
    includes: u32,
    /// The place behind the bracket of `stream_options`.
    inside: Option<usize>,
    has_members: bool,
    /// A `null` or `false` to replace.
    replaced: Option<Range<usize>>,
    /// Something has an unexpected type, or needs no change.
    is_odd: bool,
}

impl StreamOptions {
    /// Which bytes to replace, and by what.
    fn change(self) -> Option<(Range<usize>, &'static str)> {
        if self.is_odd || self.streams != 1 || self.options > 1 || self.includes > 1 {
            return None;
        }
        match (self.options, self.includes, self.inside, self.replaced) {
            (0, ..) => {
                let at = self.begin?;
                Some((at..at, "\"stream_options\":{\"include_usage\":true},"))
            }
            (_, 0, None, Some(null)) => Some((null, "{\"include_usage\":true}")),
            (_, 1, Some(_), Some(value)) => Some((value, "true")),
            (_, 0, Some(at), None) if self.has_members => Some((at..at, "\"include_usage\":true,")),
            (_, 0, Some(at), None) => Some((at..at, "\"include_usage\":true")),
            _ => None,
        }
    }
}

impl JsonSink for StreamOptions {
    fn key(&mut self, path: &[Key], name: &[u8]) -> Key {
        let key = Key::of(name);
        match (path, key) {
            ([], Key::Stream) => self.streams += 1,
            ([], Key::StreamOptions) => self.options += 1,
            ([Key::StreamOptions], key) => {
                self.has_members = true;
                self.includes += u32::from(key == Key::IncludeUsage);
            }
            _ => {}
        }
        key
    }

    fn open(&mut self, path: &[Key], kind: Container, at: u64) -> bool {
        let inside = usize::try_from(at).ok().map(|at| at + 1);
        match (path, kind) {
            ([], Container::Object) => self.begin = inside,
            ([Key::StreamOptions], Container::Object) => self.inside = inside,
            ([Key::StreamOptions] | [Key::StreamOptions, Key::IncludeUsage], _) => {
                self.is_odd = true;
                return false;
            }
            _ => return false,
        }
        true
    }

    fn begin_text(&mut self, path: &[Key]) {
        self.is_odd |=
            matches!(path, [Key::StreamOptions] | [Key::StreamOptions, Key::IncludeUsage]);
    }

    fn scalar(&mut self, path: &[Key], token: &[u8], at: u64) {
        let may_change: &[&[u8]] = match path {
            [Key::StreamOptions] => &[b"null"],
            [Key::StreamOptions, Key::IncludeUsage] => &[b"null", b"false"],
            _ => return,
        };
        if !may_change.contains(&token) {
            self.is_odd = true;
        } else if let Ok(at) = usize::try_from(at) {
            self.replaced = Some(at..at + token.len());
        }
    }
}

//! A path as limits see it, whichever way the backend reads it.
//!
//! Backends differ: some treat `%2f` and `\` as slashes, some cut `;parameters` off each segment,
//! some merge `//`, some resolve `..` before or after any of these steps, some ignore case.
//! Therefore a path is read in the most liberal way: decoded, split at every character that may be
//! a slash, without parameters, empty segments and `.` segments. The only further step of a backend
//! is to remove segments at a `..`, and backends differ in which. So a path with a `..` may mean
//! any subsequence of the remaining segments. It counts as one resource, `/..`; otherwise a client
//! could choose the key under which it is counted. No browser sends such a path.
//!
//! The result is used only for comparing and counting; the path is forwarded exactly as it was
//! sent. A path that needs no decoding is borrowed after one pass over its bytes.

use alloc::borrow::Cow;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

/// The form under which all paths with a `..` segment are counted.
const CLIMBING_PATH: &str = "/..";

/// The parsed path of a request.
#[derive(Clone, Debug)]
pub(super) struct RequestPath<'a> {
    /// The segments, each with a slash before it; `/` if there are none. Each character has one
    /// form.
    text: Cow<'a, str>,
    /// Whether there is a `..` segment, or a possible slash that may be part of parameters.
    climbs: bool,
    /// Whether all backends split the path into the same segments.
    certain: bool,
}

/// A token of a path.
enum PathToken {
    Slash,
    /// A character that some backends treat as a slash.
    PerhapsSlash,
    /// The start of a segment's parameters.
    Parameters,
    Plain(char),
    /// A byte that is written only in percent-encoded form.
    Code(u8),
}

impl<'a> RequestPath<'a> {
    pub(super) fn read(path: &'a str) -> RequestPath<'a> {
        if !is_plain(path) {
            return RequestPath::decoded(path);
        }
        let text = path.strip_suffix('/').filter(|text| !text.is_empty()).unwrap_or(path);
        RequestPath { text: Cow::Borrowed(text), climbs: false, certain: true }
    }

    fn decoded(path: &str) -> RequestPath<'a> {
        let mut reader = PathReader {
            text: String::with_capacity(path.len() + 1),
            start: 1,
            climbs: false,
            certain: true,
        };
        reader.text.push('/');
        let mut rest = path.strip_prefix('/').unwrap_or(path).as_bytes();
        let mut cut = false;
        while let Some(sign) = next(&mut rest) {
            let perhaps = matches!(sign, PathToken::PerhapsSlash);
            reader.certain &= !perhaps && !matches!(sign, PathToken::Parameters);
            // For a backend that does not treat it as a slash, the parameters continue here.
            reader.climbs |= perhaps && cut;
            match sign {
                PathToken::Slash | PathToken::PerhapsSlash => {
                    reader.end_segment(false);
                    cut = false;
                }
                PathToken::Parameters => cut = true,
                PathToken::Plain(_) | PathToken::Code(_) if cut => {}
                PathToken::Plain(sign) => reader.text.push(sign),
                // Writing to a String cannot fail.
                PathToken::Code(byte) => _ = write!(reader.text, "%{byte:02X}"),
            }
        }
        reader.end_segment(true);
        let PathReader { mut text, climbs, certain, .. } = reader;
        if text.len() > 1 {
            text.pop();
        }
        RequestPath { text: Cow::Owned(text), climbs, certain: certain && !climbs }
    }

    /// The form under which the path is counted.
    pub(super) fn normal(self) -> Cow<'a, str> {
        if self.climbs { Cow::Borrowed(CLIMBING_PATH) } else { self.text }
    }

    /// Like [`RequestPath::normal`], but borrowed.
    pub(super) fn as_str(&self) -> &str {
        if self.climbs { CLIMBING_PATH } else { &self.text }
    }

    /// The segments of a path with a `..` segment. Any of them may not count. `None` for any other
    /// path.
    pub(super) fn climbing(&self) -> Option<Vec<&str>> {
        self.climbs.then(|| self.text.split('/').collect())
    }

    /// Whether all backends split the path into the same segments.
    pub(super) fn is_certain(&self) -> bool {
        self.certain
    }
}

/// The state of parsing a path.
struct PathReader {
    /// The segments so far, with a slash at the end.
    text: String,
    /// Offset at which the current segment begins.
    start: usize,
    climbs: bool,
    certain: bool,
}

impl PathReader {
    /// Ends the current segment and begins the next. Removes the segment if it is empty or `.`.
    fn end_segment(&mut self, last: bool) {
        match self.text.get(self.start..).unwrap_or_default() {
            segment @ ("" | ".") => {
                self.certain &= last && segment.is_empty();
                self.text.truncate(self.start);
            }
            segment => {
                self.climbs |= segment == "..";
                self.text.push('/');
                self.start = self.text.len();
            }
        }
    }
}

/// Removes the next token from the start of `rest`.
fn next(rest: &mut &[u8]) -> Option<PathToken> {
    let (first, behind) = rest.split_first()?;
    let code = behind.first_chunk().filter(|_| *first == b'%').and_then(|digits| byte(*digits));
    *rest = behind.get(if code.is_some() { 2 } else { 0 }..).unwrap_or_default();
    Some(match code.unwrap_or(*first) {
        b'/' if code.is_none() => PathToken::Slash,
        b'/' | b'\\' => PathToken::PerhapsSlash,
        b';' if code.is_none() => PathToken::Parameters,
        byte @ (b'%' | b'?' | b'#' | b';') => PathToken::Code(byte),
        byte if byte.is_ascii_graphic() => PathToken::Plain(char::from(byte)),
        byte => PathToken::Code(byte),
    })
}

/// The byte that two hexadecimal digits encode.
fn byte(digits: [u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? * 16 + low?).ok()
}

/// Whether the path contains nothing that has several forms or that backends read in different
/// ways.
fn is_plain(path: &str) -> bool {
    let mut before = 0;
    let plain = |byte: &u8| {
        let pair = (core::mem::replace(&mut before, *byte), *byte);
        IS_PLAIN_BYTE[usize::from(*byte)] && !matches!(pair, (b'/', b'/' | b'.'))
    };
    path.starts_with('/') && path.as_bytes().iter().all(plain)
}

/// Marks the bytes that have one form and one meaning.
static IS_PLAIN_BYTE: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0u8;
    while byte < 128 {
        let odd = matches!(byte, b'%' | b';' | b'\\' | b'?' | b'#');
        plain[byte as usize] = byte.is_ascii_graphic() && !odd;
        byte += 1;
    }
    plain
};

//! A path as limits see it, whichever way the backend reads it.
//!
//! Backends differ: some take `%2f` and `\` for slashes, some cut `;parameters` off each segment,
//! some merge `//`, some resolve `..`, before or after any of these, some take any case. A path is
//! therefore read in the most liberal way: decoded, split at whatever may be a slash, without
//! parameters, empty and `.` segments. All that backends do further is to leave out segments where
//! there is a `..`, and they differ on which. So a path with a `..` may be whatever the remaining
//! segments spell in their order, and counts as one resource, `/..`: otherwise a client could
//! choose what it is counted by. No browser sends such a path.
//!
//! The reading is only compared and counted by: what is forwarded is the path as it was sent. A
//! path that needs no reading is borrowed, at the cost of one look at each byte.

use alloc::borrow::Cow;
use alloc::string::String;
use core::fmt::Write;

/// What all paths with a `..` segment are counted by.
const CLIMBING: &str = "/..";

/// The path of a request, read.
#[derive(Clone, Debug)]
pub(super) struct Path<'a> {
    /// Its segments, a slash before each; `/` if there is none. Each character has one form.
    text: Cow<'a, str>,
    /// There is a `..`, or a slash that may be a part of parameters.
    climbs: bool,
    /// All backends split it into the same segments.
    certain: bool,
}

/// What a path is made of.
enum Sign {
    Slash,
    /// What some backends take for a slash.
    PerhapsSlash,
    /// Parameters of a segment begin.
    Parameters,
    Plain(char),
    /// A byte that is only written as a code.
    Code(u8),
}

impl<'a> Path<'a> {
    pub(super) fn read(path: &'a str) -> Path<'a> {
        if !is_plain(path) {
            return Path::decoded(path);
        }
        let text = path.strip_suffix('/').filter(|text| !text.is_empty()).unwrap_or(path);
        Path { text: Cow::Borrowed(text), climbs: false, certain: true }
    }

    fn decoded(path: &str) -> Path<'a> {
        let mut reader = Reader {
            text: String::with_capacity(path.len() + 1),
            start: 1,
            climbs: false,
            certain: true,
        };
        reader.text.push('/');
        let mut rest = path.strip_prefix('/').unwrap_or(path).as_bytes();
        let mut cut = false;
        while let Some(sign) = next(&mut rest) {
            let perhaps = matches!(sign, Sign::PerhapsSlash);
            reader.certain &= !perhaps && !matches!(sign, Sign::Parameters);
            // Where it is no slash, the parameters go on.
            reader.climbs |= perhaps && cut;
            match sign {
                Sign::Slash | Sign::PerhapsSlash => {
                    reader.end_segment(false);
                    cut = false;
                }
                Sign::Parameters => cut = true,
                Sign::Plain(_) | Sign::Code(_) if cut => {}
                Sign::Plain(sign) => reader.text.push(sign),
                // Writing to a String cannot fail.
                Sign::Code(byte) => _ = write!(reader.text, "%{byte:02X}"),
            }
        }
        reader.end_segment(true);
        let Reader { mut text, climbs, certain, .. } = reader;
        if text.len() > 1 {
            text.pop();
        }
        Path { text: Cow::Owned(text), climbs, certain: certain && !climbs }
    }

    /// What it is counted by.
    pub(super) fn normal(self) -> Cow<'a, str> {
        if self.climbs { Cow::Borrowed(CLIMBING) } else { self.text }
    }

    /// The same, borrowed.
    pub(super) fn as_str(&self) -> &str {
        if self.climbs { CLIMBING } else { &self.text }
    }

    /// Whether some backend may read it as `prefix`, which is a normal path, or as what lies below.
    pub(super) fn may_lie_below(&self, prefix: &str) -> bool {
        if !self.climbs {
            return is_below(&self.text, prefix, str::eq_ignore_ascii_case);
        }
        let mut segments = self.text.split('/');
        let mut wanted = prefix.split('/').filter(|segment| !segment.is_empty());
        wanted.all(|wanted| segments.any(|segment| segment.eq_ignore_ascii_case(wanted)))
    }

    /// Whether every backend reads it so.
    pub(super) fn lies_below(&self, prefix: &str) -> bool {
        self.certain && is_below(&self.text, prefix, str::eq)
    }
}

fn is_below(text: &str, prefix: &str, same: impl Fn(&str, &str) -> bool) -> bool {
    let prefix = prefix.trim_end_matches('/');
    let rest = text.get(prefix.len()..).unwrap_or("no");
    (rest.is_empty() || rest.starts_with('/'))
        && text.get(..prefix.len()).is_some_and(|begin| same(begin, prefix))
}

/// A path that is being read.
struct Reader {
    /// The segments so far, and a slash.
    text: String,
    /// Where the present segment begins.
    start: usize,
    climbs: bool,
    certain: bool,
}

impl Reader {
    /// Ends a segment and begins the next; forgets it if it means nothing.
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

/// Takes the next sign off.
fn next(rest: &mut &[u8]) -> Option<Sign> {
    let (first, behind) = rest.split_first()?;
    let code = behind.first_chunk().filter(|_| *first == b'%').and_then(|digits| byte(*digits));
    *rest = behind.get(if code.is_some() { 2 } else { 0 }..).unwrap_or_default();
    Some(match code.unwrap_or(*first) {
        b'/' if code.is_none() => Sign::Slash,
        b'/' | b'\\' => Sign::PerhapsSlash,
        b';' if code.is_none() => Sign::Parameters,
        byte @ (b'%' | b'?' | b'#' | b';') => Sign::Code(byte),
        byte if byte.is_ascii_graphic() => Sign::Plain(char::from(byte)),
        byte => Sign::Code(byte),
    })
}

/// The byte that two hexadecimal digits name.
fn byte(digits: [u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? * 16 + low?).ok()
}

/// Whether there is nothing in it that backends read in several ways, or that has several forms.
fn is_plain(path: &str) -> bool {
    let mut before = 0;
    let plain = |byte: &u8| {
        let pair = (core::mem::replace(&mut before, *byte), *byte);
        PLAIN[usize::from(*byte)] && !matches!(pair, (b'/', b'/' | b'.'))
    };
    path.starts_with('/') && path.as_bytes().iter().all(plain)
}

/// The bytes that have one form and one meaning.
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0u8;
    while byte < 128 {
        let odd = matches!(byte, b'%' | b';' | b'\\' | b'?' | b'#');
        plain[byte as usize] = byte.is_ascii_graphic() && !odd;
        byte += 1;
    }
    plain
};

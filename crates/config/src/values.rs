//! Single values from their text: numbers, durations, sizes, names, paths.
//!
//! Each function returns the value, or a message that says what is expected. Nothing here knows
//! keys or places; `keys` adds the range and `reader` the key and the place.

use crate::fault::nearest;
use evenkeel_core::units::{Nanos, QuantityParseError};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum length of the name of a limit, header or cookie, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// One hour, the longest interval of messages to a collector.
pub const HOUR: Nanos = Nanos::from_secs(3_600);
/// One day, the longest duration of most keys.
pub const DAY: Nanos = Nanos::from_secs(86_400);
/// A leap year, the longest duration of any key.
pub const YEAR: Nanos = Nanos::from_secs(366 * 86_400);

/// Result of reading a single value from its text. The error says what is expected; each function
/// here returns it for any other text.
pub type Read<T> = Result<T, String>;

/// Checks that a value is within a range.
pub fn within<T: PartialOrd + Display>(value: T, range: RangeInclusive<T>) -> Read<T> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(format!("must be from {} to {}", range.start(), range.end()))
}

/// Reads a part: a number from 0 to 1.
pub fn part(text: &str) -> Read<f64> {
    within(text.parse().map_err(|_| "not a number from 0 to 1".to_owned())?, 0.0..=1.0)
}

/// Reads one of several words.
pub fn one_of<T: Clone>(text: &str, words: &[(&str, T)]) -> Read<T> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| value.clone()).ok_or_else(|| {
        let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let meant = synonym(text, &all).or_else(|| nearest(text, &all));
        let meant = meant.map(|word| format!("; did you mean `{word}`?"));
        format!("must be one of: {}{}", all.join(", "), meant.unwrap_or_default())
    })
}

/// Words of other programs, each with those of Evenkeel that may be meant, the likeliest first.
const SYNONYMS: [(&[&str], &[&str]); 7] = [
    (&["deny", "refuse", "429", "503"], &["reject"]),
    (&["block", "ban", "drop", "forbid", "403"], &["deny", "reject"]),
    (&["wait", "throttle", "slow", "sleep"], &["delay", "queue"]),
    (&["yes", "on", "enabled", "1"], &["true"]),
    (&["no", "off", "disabled", "0"], &["false"]),
    (&["warning"], &["warn"]),
    (&["plain", "logfmt", "console"], &["text"]),
];

/// The word that people mean who know another program.
fn synonym<'k>(text: &str, known: &[&'k str]) -> Option<&'k str> {
    let (_, meant) = SYNONYMS.iter().find(|(words, _)| words.contains(&text))?;
    meant.iter().find_map(|word| known.iter().find(|known| *known == word)).copied()
}

/// Declares an enumeration with the word for each value: `Json = "json"`. `WORDS` has all of them,
/// in the order of the variants.
macro_rules! word_enum {
    (
        $(#[$about:meta])*
        $visible:vis enum $name:ident { $($(#[$meta:meta])* $variant:ident = $word:literal,)+ }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible enum $name { $($(#[$meta])* $variant,)+ }

        impl $name {
            /// The word for each value, in the order of the variants.
            $visible const WORDS: &'static [(&'static str, $name)] =
                &[$(($word, $name::$variant)),+];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($name::WORDS[*self as usize].0)
            }
        }
    };
}
pub(crate) use word_enum;

/// Reads a duration such as `250ms`.
pub fn duration(text: &str) -> Read<Nanos> {
    text.parse().map_err(|error: QuantityParseError| match count(text) {
        Ok(_) if text.len() <= 9 => format!("has no unit; write {text}s, {text}ms or {text}m"),
        _ => error.to_string(),
    })
}

/// A duration as the standard library has it.
pub fn std_time(time: Nanos) -> Duration {
    Duration::from_nanos(time.0)
}

/// Reads `true` or `false`.
pub fn truth(text: &str) -> Read<bool> {
    one_of(text, &[("true", true), ("false", false)])
}

/// Reads a whole number, without a sign.
pub fn count(text: &str) -> Read<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| plain).ok_or_else(|| "not a whole number".to_owned())
}

/// Reads a whole number of any type.
pub fn whole<T: TryFrom<u64>>(text: &str) -> Read<T> {
    T::try_from(count(text)?).map_err(|_| "too large".to_owned())
}

/// Reads a number of bytes: `65536`, `64k`, `10m`, `1g`.
pub fn size<T: TryFrom<u64>>(text: &str) -> Read<T> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = count(number).ok().and_then(|n| n.checked_mul(1 << shift));
    let bytes = bytes.and_then(|bytes| T::try_from(bytes).ok());
    bytes.ok_or_else(|| "not a size; write 65536, 64k, 10m or 1g".to_owned())
}

/// Reads the path of a file.
pub fn path(text: &str) -> Read<PathBuf> {
    match text {
        "" => Err("name a file".to_owned()),
        _ => Ok(PathBuf::from(text)),
    }
}

/// Reads the name of a header, converted to lower case.
pub fn header_name(text: &str) -> Read<Box<str>> {
    Ok(token(text)?.to_ascii_lowercase().into())
}

/// Reads a name with the characters that headers, cookies and methods allow (RFC 9110, 5.6.2).
pub fn token(text: &str) -> Read<Box<str>> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    name_of(text, fits)
}

/// Reads the name of a limit. It becomes a label of metrics, so few characters are allowed.
pub fn name(text: &str) -> Read<Box<str>> {
    name_of(text, |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn name_of(text: &str, fits: impl Fn(u8) -> bool) -> Read<Box<str>> {
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(fits) {
        return Err(format!("a name has 1 to {NAME_BYTES_MAX} letters, digits or - _ ."));
    }
    Ok(text.into())
}

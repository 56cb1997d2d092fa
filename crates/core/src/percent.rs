//! Decodes percent-encoded texts (RFC 3986, 2.1).
//!
//! A `%` without two hexadecimal digits behind it stands for itself, as in most backends. Which
//! texts are decoded, and which readings of them there are: `classify`.

use alloc::borrow::Cow;
use alloc::vec::Vec;

/// The bytes of a text. `plus`: what a `+` stands for; a space in a query.
pub(crate) fn decoded(text: &str, plus: u8) -> Cow<'_, [u8]> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(text.as_bytes());
    }
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        let pair = behind.first_chunk::<2>().filter(|_| *first == b'%');
        let code = pair.and_then(|[high, low]| u8::try_from(digit(high)? * 16 + digit(low)?).ok());
        bytes.push(code.unwrap_or(if *first == b'+' { plus } else { *first }));
        rest = behind.get(if code.is_some() { 2 } else { 0 }..).unwrap_or_default();
    }
    Cow::Owned(bytes)
}

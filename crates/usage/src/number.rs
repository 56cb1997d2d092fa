//! Numbers of tokens as JSON has them: whole, or with a point or an exponent.
//!
//! A count is bounded, so that no sum of several can overflow and no backend can charge a client
//! for more than is possible.

/// The most tokens that anything is said to have; a larger number counts as this one.
pub const TOKENS_MAX: u64 = 1_000_000_000;
/// How many bytes of a text are counted as a token where nobody has counted its tokens.
pub(crate) const BYTES_PER_TOKEN: u64 = 4;

/// The number of tokens that a JSON number states, cut down to a whole one; `None` if it is
/// negative or no number.
pub(crate) fn tokens(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let number = match text.parse::<u64>() {
        Ok(number) => number,
        // As a float also if there are too many digits. The conversion saturates.
        Err(_) => text.parse::<f64>().ok()? as u64,
    };
    Some(number.min(TOKENS_MAX))
}

#[cfg(test)]
mod tests {
    use super::{TOKENS_MAX, tokens};

    #[test]
    fn odd_numbers_are_bounded_or_ignored() {
        for (text, number) in [
            ("0", Some(0)),
            ("12", Some(12)),
            ("12.0", Some(12)),
            ("12.9", Some(12)),
            ("1.2e1", Some(12)),
            ("99999999999999999999999999", Some(TOKENS_MAX)),
            ("1e999", Some(TOKENS_MAX)),
            ("-1", None),
            ("-0.5", None),
            ("null", None),
            ("inf", None),
            ("NaN", None),
            ("1x", None),
            ("", None),
        ] {
            assert_eq!(tokens(text.as_bytes()), number, "{text}");
        }
    }
}

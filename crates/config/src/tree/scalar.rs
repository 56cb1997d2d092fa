//! The type of a scalar: numbers, booleans and nulls of YAML 1.1, and tags.
//!
//! Rule files of the rate limit service are interpreted like the reference server's library does:
//! `0x10`, `010` and `0b11` are integers, `_` may separate digits, `yes` and `on` are true, dates
//! are strings. A tag takes precedence. Evenkeel's own configuration has no tags, and there each
//! key defines its type (`reader`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The type and value of a scalar without quotes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarKind {
    /// `null`, `~`, or empty text.
    Null,
    /// `true`, `no`, `on` and similar words.
    Bool(bool),
    /// An integer.
    Whole(i64),
    /// Any other number, also an integer beyond 64 bits.
    Float(f64),
    /// None of these: a string.
    Text,
}

impl ScalarKind {
    /// Interprets `text`.
    #[must_use]
    pub fn of(text: &str) -> ScalarKind {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => return ScalarKind::Null,
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                return ScalarKind::Bool(true);
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off"
            | "OFF" => return ScalarKind::Bool(false),
            ".nan" | ".NaN" | ".NAN" => return ScalarKind::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
                return ScalarKind::Float(f64::INFINITY);
            }
            "-.inf" | "-.Inf" | "-.INF" => return ScalarKind::Float(f64::NEG_INFINITY),
            _ => {}
        }
        if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) {
            return ScalarKind::Text;
        }
        let text = text.replace('_', "");
        whole(&text).or_else(|| float(&text)).unwrap_or(ScalarKind::Text)
    }
}

/// Parses `12`, `-0x1F`, `0o17`, `017`, `0b11`.
fn whole(text: &str) -> Option<ScalarKind> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (digits, radix) = match digits.get(..2) {
        Some("0x" | "0X") => (&digits[2..], 16),
        Some("0o" | "0O") => (&digits[2..], 8),
        Some("0b" | "0B") => (&digits[2..], 2),
        Some(_) if digits.starts_with('0') => (&digits[1..], 8),
        _ => (digits, 10),
    };
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let number = u64::from_str_radix(digits, radix).ok()?;
    let signed = if text.starts_with('-') { -i128::from(number) } else { number.into() };
    match i64::try_from(signed) {
        Ok(number) => Some(ScalarKind::Whole(number)),
        Err(_) if signed > 0 => Some(ScalarKind::Float(signed as f64)),
        Err(_) => None,
    }
}

/// Parses `1.5`, `.5`, `1.`, `1e3`, but no names such as `inf`.
fn float(text: &str) -> Option<ScalarKind> {
    let number = |c: char| c.is_ascii_digit() || ".eE+-".contains(c);
    let number = text.chars().all(number).then(|| text.parse::<f64>().ok())??;
    number.is_finite().then_some(ScalarKind::Float(number))
}

/// Applies a tag to a scalar. Returns its text, and whether [`ScalarKind::of`] interprets it; if
/// not, it is a string.
///
/// # Errors
/// If the text does not fit the tag.
pub fn tagged(tag: &str, text: String) -> Result<(String, bool), String> {
    let kind = ScalarKind::of(&text);
    let fits = match (tag, kind) {
        ("null", ScalarKind::Null)
        | ("bool", ScalarKind::Bool(_))
        | ("int", ScalarKind::Whole(_)) => true,
        ("float", ScalarKind::Float(_)) => true,
        // A float always has a decimal point.
        ("float", ScalarKind::Whole(number)) => return Ok((format!("{:?}", number as f64), true)),
        ("timestamp", ScalarKind::Text) if is_date(&text) => return Ok((text, false)),
        ("binary", _) => return unpacked(&text).map(|text| (text, false)),
        ("null" | "bool" | "int" | "float" | "timestamp", _) => false,
        _ => return Ok((text, false)),
    };
    match fits {
        true => Ok((text, true)),
        false => Err(format!("the value is not a !!{tag}")),
    }
}

fn unpacked(text: &str) -> Result<String, String> {
    let text: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let bytes = STANDARD.decode(text).map_err(|_| "the value of !!binary is not base64")?;
    String::from_utf8(bytes).map_err(|_| "the value of !!binary is not UTF-8 text".to_owned())
}

/// Whether a text begins with a date. The rest of the text is not checked in detail.
fn is_date(text: &str) -> bool {
    let mut parts = text.splitn(3, '-');
    let mut number = |lengths: std::ops::RangeInclusive<usize>| {
        let part = parts.next().unwrap_or_default();
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        lengths.contains(&digits)
            && part.bytes().skip(digits).all(|b| b"Tt :.+-Zz0123456789".contains(&b))
    };
    number(4..=4) && number(1..=2) && number(1..=2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_quotes_stands_for_what_yaml_1_1_says() {
        for (text, kind) in [
            ("~", ScalarKind::Null),
            ("", ScalarKind::Null),
            ("on", ScalarKind::Bool(true)),
            ("N", ScalarKind::Bool(false)),
            ("tRUE", ScalarKind::Text),
            ("12", ScalarKind::Whole(12)),
            ("+1", ScalarKind::Whole(1)),
            ("-0", ScalarKind::Whole(0)),
            ("0x10", ScalarKind::Whole(16)),
            ("0X1f", ScalarKind::Whole(31)),
            ("0x1_0", ScalarKind::Whole(16)),
            ("010", ScalarKind::Whole(8)),
            ("0o17", ScalarKind::Whole(15)),
            ("-0b11", ScalarKind::Whole(-3)),
            ("1_000", ScalarKind::Whole(1_000)),
            ("1__0", ScalarKind::Whole(10)),
            ("9223372036854775807", ScalarKind::Whole(i64::MAX)),
            ("9223372036854775808", ScalarKind::Float(9_223_372_036_854_775_808.0)),
            ("99999999999999999999", ScalarKind::Float(1e20)),
            ("08", ScalarKind::Float(8.0)),
            ("1.5", ScalarKind::Float(1.5)),
            (".5", ScalarKind::Float(0.5)),
            ("-.5", ScalarKind::Float(-0.5)),
            ("1.", ScalarKind::Float(1.0)),
            ("12e03", ScalarKind::Float(12_000.0)),
            ("685_230.15", ScalarKind::Float(685_230.15)),
            ("-.Inf", ScalarKind::Float(f64::NEG_INFINITY)),
            ("1e999", ScalarKind::Text),
            ("0x", ScalarKind::Text),
            ("0x-1", ScalarKind::Text),
            ("++1", ScalarKind::Text),
            ("_1", ScalarKind::Text),
            (".", ScalarKind::Text),
            ("inf", ScalarKind::Text),
            ("1:30", ScalarKind::Text),
            ("2001-01-01", ScalarKind::Text),
            ("10.0.0.1", ScalarKind::Text),
            ("0x1\u{e9}", ScalarKind::Text),
            ("0\u{e9}", ScalarKind::Text),
        ] {
            assert_eq!(ScalarKind::of(text), kind, "{text}");
        }
        assert!(matches!(ScalarKind::of(".NaN"), ScalarKind::Float(number) if number.is_nan()));
    }

    #[test]
    fn a_tag_says_what_a_text_stands_for() {
        for (tag, text, expected) in [
            ("str", "null", Ok(("null", false))),
            ("str", "", Ok(("", false))),
            ("anything", "5", Ok(("5", false))),
            ("int", "5", Ok(("5", true))),
            ("int", "5.0", Err("the value is not a !!int")),
            ("float", "0x10", Ok(("16.0", true))),
            ("float", "1.5", Ok(("1.5", true))),
            ("bool", "yes", Ok(("yes", true))),
            ("bool", "x", Err("the value is not a !!bool")),
            ("null", "", Ok(("", true))),
            ("null", "x", Err("the value is not a !!null")),
            ("timestamp", "2001-01-01", Ok(("2001-01-01", false))),
            ("timestamp", "x", Err("the value is not a !!timestamp")),
            ("binary", "aGVs\n bG8=", Ok(("hello", false))),
            ("binary", "!", Err("the value of !!binary is not base64")),
            ("binary", "/w==", Err("the value of !!binary is not UTF-8 text")),
        ] {
            let read = tagged(tag, text.to_owned());
            let read = read.as_ref().map(|(text, plain)| (text.as_str(), *plain));
            assert_eq!(read.map_err(String::as_str), expected, "{tag} {text}");
        }
    }
}

//! What is said of networks: AS numbers and countries, as files write them and tables hold them.
//!
//! A table holds a number above 0 for each range. For an AS it is its number, for a country its two
//! letters.

use std::fmt;

/// The field that a database is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkField {
    /// The number of the autonomous system that announces the address.
    Asn,
    /// The country of the address.
    Country,
}

impl NetworkField {
    /// The name in the configuration and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            NetworkField::Asn => "asn",
            NetworkField::Country => "country",
        }
    }

    /// The meaning of a value of the field, for error messages.
    pub(super) const fn what(self) -> &'static str {
        match self {
            NetworkField::Asn => "an AS number",
            NetworkField::Country => "a country code such as DE",
        }
    }

    /// The value in a table for a text of a file, 0 if the text says that there is none.
    pub(super) fn parse(self, text: &str) -> Option<u32> {
        match self {
            NetworkField::Asn => {
                let digits = text.strip_prefix("AS").unwrap_or(text);
                let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
                digits.parse().ok().filter(|_| is_number)
            }
            NetworkField::Country => CountryCode::parse(text),
        }
    }
}

/// A country as in ISO 3166: two capital letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountryCode([u8; 2]);

impl CountryCode {
    /// The value in a table for a text of a file.
    fn parse(text: &str) -> Option<u32> {
        match text.as_bytes() {
            // ZZ is what the standard leaves to its users; tables write it for an unknown country.
            b"" | b"-" | b"None" | b"ZZ" => Some(0),
            [first, second] if first.is_ascii_alphabetic() && second.is_ascii_alphabetic() => {
                let code = [first, second].map(u8::to_ascii_uppercase);
                Some(u32::from(u16::from_be_bytes(code)))
            }
            _ => None,
        }
    }

    /// The country of a value in a table.
    pub(super) fn from_value(value: u32) -> Option<CountryCode> {
        let [_, _, first, second] = value.to_be_bytes();
        (value != 0).then_some(CountryCode([first, second]))
    }

    /// The two letters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for CountryCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

//! The weight of a class of requests when requests compete for capacity.
//!
//! A weight is a whole number of thousandths, so that shares are equal on all machines. See `queue`
//! for its effect. The limits that apply to a request define its weight.

use super::{QuantityParseError, decimal};
use core::fmt;
use core::str::FromStr;

/// A share relative to other classes, in thousandths: from 0.001 to 1000 times the common share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(u32);

/// The common share, in thousandths.
const ONE: u32 = 1_000;
/// The maximum weight, in thousandths.
const MAX: u32 = 1_000_000;

impl Weight {
    /// The common share, which is that of a request without a weight.
    pub const ONE: Weight = Weight(ONE);

    /// A weight of `thousandths` of a common share, clamped to the range from 1 to 1 000 000.
    #[must_use]
    pub const fn new(thousandths: u32) -> Weight {
        match thousandths {
            0 => Weight(1),
            1..=MAX => Weight(thousandths),
            _ => Weight(MAX),
        }
    }

    /// The weight in thousandths of a common share.
    #[must_use]
    pub const fn thousandths(self) -> u32 {
        self.0
    }

    /// The weight of a request that belongs to both classes: the product, within the same bounds.
    #[must_use]
    pub const fn times(self, other: Weight) -> Weight {
        let product = self.0 as u64 * other.0 as u64 / ONE as u64;
        Weight::new(if product > MAX as u64 { MAX } else { product as u32 })
    }
}

impl FromStr for Weight {
    type Err = QuantityParseError;

    fn from_str(text: &str) -> Result<Weight, QuantityParseError> {
        let times = decimal(text.trim()).ok_or(QuantityParseError::Weight)?;
        let thousandths = times * f64::from(ONE) + 0.5;
        let fits = (1.0..f64::from(MAX) + 1.0).contains(&thousandths);
        if fits { Ok(Weight(thousandths as u32)) } else { Err(QuantityParseError::Weight) }
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / f64::from(ONE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn weights_are_read_and_written() {
        for (text, thousandths) in
            [("4", 4_000), ("0.25", 250), (" 1 ", 1_000), ("0.001", 1), ("1000", 1_000_000)]
        {
            let weight: Weight = text.parse().expect(text);
            assert_eq!(weight.thousandths(), thousandths, "{text}");
            assert_eq!(weight.to_string(), text.trim());
        }
        for text in ["", "0", "-1", "0.0004", "1000.1", "nan", "inf", "4x", "25%"] {
            assert_eq!(text.parse::<Weight>(), Err(QuantityParseError::Weight), "{text}");
        }
    }

    #[test]
    fn who_is_of_two_classes_has_the_product() {
        let times = |a, b| Weight::new(a).times(Weight::new(b)).thousandths();
        assert_eq!(times(4_000, 250), 1_000);
        assert_eq!(times(4_000, 1_000), 4_000);
        assert_eq!(times(100_000, 100_000), 1_000_000);
        assert_eq!(times(10, 10), 1);
        assert_eq!((Weight::new(0).thousandths(), Weight::new(u32::MAX).thousandths()), (1, MAX));
    }
}

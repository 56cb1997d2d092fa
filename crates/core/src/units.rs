//! Quantities as types: a point in time, a duration, a cost, a rate, a share, a weight.
//!
//! All are plain numbers underneath, and all arithmetic saturates: a hostile or absurd value ends
//! at a bound and never wraps. Text forms (`250ms`, `10%`, `5/m`) are parsed here, because the
//! configuration, the command line and cost headers all use them. This module reads no clock; see
//! ARCHITECTURE.md, "Time".

use core::fmt;
use core::str::FromStr;

mod weight;

pub use weight::Weight;

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
/// The cost of one token of weight one.
const TOKEN: u64 = SECOND / 1_000;

/// A point in time: nanoseconds since the Unix epoch. The range ends in the year 2554.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The epoch; as the `full_at` of a bucket it means "full".
    pub const ZERO: Time = Time(0);

    /// The point in time that is `length` later.
    #[must_use]
    pub const fn plus(self, length: Nanos) -> Time {
        Time(self.0.saturating_add(length.0))
    }

    /// The point in time that is `length` earlier; at least the epoch.
    #[must_use]
    pub const fn minus(self, length: Nanos) -> Time {
        Time(self.0.saturating_sub(length.0))
    }

    /// Time from `earlier` to this point; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Time) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// The number of the whole second that contains this point, counted from the epoch.
    #[must_use]
    pub const fn second(self) -> u64 {
        self.0 / SECOND
    }
}

/// A duration in nanoseconds. Parsed from `250ms 30s 5m 1h 1d` (also `us` and `ns`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl From<Nanos> for core::time::Duration {
    fn from(nanos: Nanos) -> core::time::Duration {
        core::time::Duration::from_nanos(nanos.0)
    }
}

impl Nanos {
    /// A duration of zero.
    pub const ZERO: Nanos = Nanos(0);

    /// `n` milliseconds.
    #[must_use]
    pub const fn from_millis(n: u64) -> Nanos {
        Nanos(n.saturating_mul(1_000_000))
    }

    /// `n` seconds.
    #[must_use]
    pub const fn from_secs(n: u64) -> Nanos {
        Nanos(n.saturating_mul(SECOND))
    }

    /// `seconds` rounded to the nearest nanosecond; negative and NaN become zero.
    #[must_use]
    pub fn from_secs_f64(seconds: f64) -> Nanos {
        Nanos(rounded(seconds * SECOND as f64))
    }

    /// The duration in seconds, for output.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / SECOND as f64
    }

    /// The duration in whole seconds, rounded up and at least one: the form of a `Retry-After`
    /// header.
    #[must_use]
    pub const fn retry_after_secs(self) -> u64 {
        let seconds = self.0.div_ceil(SECOND);
        if seconds == 0 { 1 } else { seconds }
    }

    /// The sum, saturating.
    #[must_use]
    pub const fn plus(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }

    /// The difference, never below zero.
    #[must_use]
    pub const fn minus(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
}

/// The cost of a request: nanoseconds of CPU time, billionths of a hit, or millionths of a token of
/// a language model. They share one unit so that they share one arithmetic: a second of CPU time,
/// one hit and a thousand tokens are 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(pub u64);

impl Cost {
    /// A cost of zero.
    pub const ZERO: Cost = Cost(0);

    /// `n` hits.
    #[must_use]
    pub const fn hits(n: u64) -> Cost {
        Cost(n.saturating_mul(SECOND))
    }

    /// The cost of `time` of CPU time.
    #[must_use]
    pub const fn cpu(time: Nanos) -> Cost {
        Cost(time.0)
    }

    /// `n` tokens of weight one.
    #[must_use]
    pub const fn tokens(n: u64) -> Cost {
        Cost(n.saturating_mul(TOKEN))
    }

    /// The sum, saturating.
    #[must_use]
    pub const fn plus(self, other: Cost) -> Cost {
        Cost(self.0.saturating_add(other.0))
    }

    /// The difference, never below zero.
    #[must_use]
    pub const fn minus(self, other: Cost) -> Cost {
        Cost(self.0.saturating_sub(other.0))
    }

    /// The cost in whole hits; a fraction of a hit counts as one.
    #[must_use]
    pub const fn whole_hits(self) -> u64 {
        self.0.div_ceil(SECOND)
    }

    /// The cost in CPU-seconds, in hits or in thousands of tokens.
    #[must_use]
    pub fn as_units(self) -> f64 {
        self.0 as f64 / SECOND as f64
    }
}

/// Cost per time. It is stored as the time that one unit of cost takes to be refilled. Every bucket
/// needs this quotient, and it is exact for rates such as five a minute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Nanoseconds per nano-unit of cost; finite and above zero.
    slope: f64,
}

impl Rate {
    /// A rate of `cost` every `period`; `None` if either is zero.
    #[must_use]
    pub fn per(cost: Cost, period: Nanos) -> Option<Rate> {
        ExactRate::new(cost, period).map(ExactRate::rate)
    }

    /// The exact bits of the rate, as a snapshot stores them.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.slope.to_bits()
    }

    /// Restores a rate from the result of [`Rate::to_bits`]; `None` if the bits are invalid.
    #[must_use]
    pub fn from_bits(bits: u64) -> Option<Rate> {
        let slope = f64::from_bits(bits);
        (slope > 0.0 && slope.is_finite()).then_some(Rate { slope })
    }

    /// The rate multiplied by `factor`; `None` if the result is not a valid rate.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Option<Rate> {
        let slope = self.slope / factor;
        (slope > 0.0 && slope.is_finite()).then_some(Rate { slope })
    }

    /// Time that `cost` takes to be refilled.
    #[must_use]
    pub fn time_for(self, cost: Cost) -> Nanos {
        Nanos(rounded(cost.0 as f64 * self.slope))
    }

    /// Cost that is refilled in `time`.
    #[must_use]
    pub fn cost_in(self, time: Nanos) -> Cost {
        Cost(rounded(time.0 as f64 / self.slope))
    }

    /// The rate in units (CPU-seconds or hits) per second.
    #[must_use]
    pub fn per_second(self) -> f64 {
        1.0 / self.slope
    }
}

/// A cost in every period, with both values exactly as given, while a [`Rate`] rounds them. Parsed
/// from `10/s 100/m 5000/h 1/d`, `1/5s` or `1 per 5s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExactRate {
    cost: Cost,
    period: Nanos,
}

impl ExactRate {
    /// One hit, or one CPU-second, each second.
    pub const ONE_PER_SECOND: ExactRate = ExactRate { cost: Cost(SECOND), period: Nanos(SECOND) };

    /// A pace of `cost` every `period`; `None` if either is zero.
    #[must_use]
    pub fn new(cost: Cost, period: Nanos) -> Option<ExactRate> {
        (cost.0 > 0 && period.0 > 0).then_some(ExactRate { cost, period })
    }

    /// The cost that is refilled within a period; above zero.
    #[must_use]
    pub const fn cost(self) -> Cost {
        self.cost
    }

    /// The length of a period; above zero.
    #[must_use]
    pub const fn period(self) -> Nanos {
        self.period
    }

    /// The same pace as a rate.
    #[must_use]
    pub fn rate(self) -> Rate {
        Rate { slope: self.period.0 as f64 / self.cost.0 as f64 }
    }
}

/// A share of the server's CPU time. Parsed from `10%` or `0.1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuShare(f64);

impl CpuShare {
    /// A share from a fraction above 0 and at most 1; `None` for any other number.
    #[must_use]
    pub fn new(fraction: f64) -> Option<CpuShare> {
        (fraction > 0.0 && fraction <= 1.0).then_some(CpuShare(fraction))
    }

    /// The share as a fraction of one.
    #[must_use]
    pub const fn fraction(self) -> f64 {
        self.0
    }

    /// The rate that this share of `cpus` CPU-seconds per second amounts to; `None` if `cpus` is
    /// not a positive number.
    #[must_use]
    pub fn of(self, cpus: f64) -> Option<Rate> {
        let slope = 1.0 / (self.0 * cpus);
        (slope > 0.0 && slope.is_finite()).then_some(Rate { slope })
    }
}

/// Rounds to the nearest whole number. Negative numbers and NaN become 0, and a number that is too
/// large becomes the maximum.
fn rounded(x: f64) -> u64 {
    (x + 0.5) as u64
}

/// A text that is not a valid quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantityParseError {
    /// Not of the form `250ms 30s 5m 1h 1d`.
    Duration,
    /// Not of the form `10%` or `0.1`, or not above 0 and at most 1.
    Share,
    /// Not of the form `10/s 100/m 5000/h 1/d` or `1/5s`, or zero.
    Rate,
    /// Not of the form `4` or `0.25`, or not from 0.001 to 1000.
    Weight,
}

impl fmt::Display for QuantityParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuantityParseError::Duration => "not a duration; write 250ms, 30s, 5m, 1h or 1d",
            QuantityParseError::Share => "not a share; write 10% or 0.1, above 0 and at most 1",
            QuantityParseError::Rate => "not a rate; write 10/s, 100/m, 5000/h, 1/d or 1/5s",
            QuantityParseError::Weight => "not a weight; write 4 or 0.25",
        })
    }
}

impl core::error::Error for QuantityParseError {}

/// Parses a plain decimal number: digits with at most one point, without exponent or sign.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = text.parse::<f64>().ok()?;
    (plain && number.is_finite()).then_some(number)
}

impl FromStr for Nanos {
    type Err = QuantityParseError;

    fn from_str(text: &str) -> Result<Nanos, QuantityParseError> {
        let (number, unit) = measure(text).ok_or(QuantityParseError::Duration)?;
        let number = decimal(number).ok_or(QuantityParseError::Duration)?;
        Ok(Nanos(rounded(number * unit.0 as f64)))
    }
}

impl FromStr for CpuShare {
    type Err = QuantityParseError;

    fn from_str(text: &str) -> Result<CpuShare, QuantityParseError> {
        let text = text.trim();
        let fraction = match text.strip_suffix('%') {
            Some(percent) => decimal(percent.trim_end()).map(|p| p / 100.0),
            None => decimal(text),
        };
        fraction.and_then(CpuShare::new).ok_or(QuantityParseError::Share)
    }
}

impl FromStr for ExactRate {
    type Err = QuantityParseError;

    fn from_str(text: &str) -> Result<ExactRate, QuantityParseError> {
        let parts = text.split_once('/').or_else(|| text.split_once("per"));
        let (count, period) = parts.ok_or(QuantityParseError::Rate)?;
        let period = match measure(period).ok_or(QuantityParseError::Rate)? {
            ("", unit) => unit,
            _ => period.parse().map_err(|_| QuantityParseError::Rate)?,
        };
        let count = decimal(count.trim()).ok_or(QuantityParseError::Rate)?;
        ExactRate::new(Cost(rounded(count * SECOND as f64)), period).ok_or(QuantityParseError::Rate)
    }
}

impl FromStr for Rate {
    type Err = QuantityParseError;

    fn from_str(text: &str) -> Result<Rate, QuantityParseError> {
        text.parse().map(ExactRate::rate)
    }
}

/// Splits a duration into its number, which may be absent, and the length of its unit.
fn measure(text: &str) -> Option<(&str, Nanos)> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let unit = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" | "msec" => 1_000_000,
        "s" | "sec" | "second" | "seconds" => SECOND,
        "m" | "min" | "minute" | "minutes" => 60 * SECOND,
        "h" | "hr" | "hour" | "hours" => 3_600 * SECOND,
        "d" | "day" | "days" => 86_400 * SECOND,
        _ => return None,
    };
    Some((number.trim_end(), Nanos(unit)))
}

/// Uses the largest unit that leaves a short number: `1500ms`, `250ms`, `2m`, `40us`.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 6] = [
            (86_400 * SECOND, "d"),
            (3_600 * SECOND, "h"),
            (60 * SECOND, "m"),
            (SECOND, "s"),
            (1_000_000, "ms"),
            (1_000, "us"),
        ];
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let whole = UNITS.iter().find(|(unit, _)| self.0.is_multiple_of(*unit));
        if let Some((unit, name)) = whole.filter(|(unit, _)| self.0 / unit < 10_000) {
            return write!(f, "{}{name}", self.0 / unit);
        }
        match self.0 {
            n if n >= SECOND => write!(f, "{:.3}s", self.as_secs_f64()),
            n if n >= 1_000_000 => write!(f, "{:.3}ms", n as f64 / 1e6),
            n => write!(f, "{n}ns"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn durations_are_read_and_written() {
        for (text, nanos) in [
            ("250ms", 250_000_000),
            ("30s", 30 * SECOND),
            ("5m", 300 * SECOND),
            ("1h", 3_600 * SECOND),
            ("1d", 86_400 * SECOND),
            ("1.5s", 1_500_000_000),
            ("1300us", 1_300_000),
            ("0s", 0),
        ] {
            assert_eq!(text.parse(), Ok(Nanos(nanos)), "{text}");
        }
        for bad in ["", "s", "30", "-1s", "1e9s", "1 s s", "NaNs", "infs", "1.2.3s", "1w"] {
            assert_eq!(bad.parse::<Nanos>(), Err(QuantityParseError::Duration), "{bad}");
        }
        assert_eq!(Nanos(1_050_000_000).to_string(), "1050ms");
        assert_eq!(Nanos::from_secs(120).to_string(), "2m");
    }

    #[test]
    fn shares_and_rates_are_read() {
        assert_eq!("10%".parse(), Ok(CpuShare(0.1)));
        assert_eq!("0.1".parse(), Ok(CpuShare(0.1)));
        for bad in ["0", "0%", "101%", "1.1", "-1%", "NaN", "x"] {
            assert_eq!(bad.parse::<CpuShare>(), Err(QuantityParseError::Share), "{bad}");
        }
        let five_a_minute: Rate = "5/m".parse().expect("a rate");
        assert_eq!(five_a_minute.time_for(Cost::hits(1)), Nanos::from_secs(12));
        let slow: Rate = "1 per 5s".parse().expect("a rate");
        assert_eq!(slow.time_for(Cost::hits(3)), Nanos::from_secs(15));
        for (text, wait) in
            [("1/2s", 2_000), ("10/2min", 12_000), ("7per  min", 8_572), ("1.5/sec", 667)]
        {
            let rate: Rate = text.parse().expect(text);
            assert_eq!(rate.time_for(Cost::hits(1)).0.div_ceil(1_000_000), wait, "{text}");
        }
        for bad in
            ["0/s", "5", "5/x", "/s", "-1/s", "1 per 0s", "1e3/s", "1/0s", "1/2", "1/", "1/2 2s"]
        {
            assert_eq!(bad.parse::<Rate>(), Err(QuantityParseError::Rate), "{bad}");
        }
    }

    #[test]
    fn t1_a_share_of_the_cpus_is_a_rate() {
        for (share, cpus, rate) in [(0.5, 1.0, 0.5), (1.0, 4.0, 4.0), (0.1, 4.0, 0.4)] {
            let got = CpuShare(share).of(cpus).expect("positive").per_second();
            assert!((got - rate).abs() < 1e-12, "{share} of {cpus}");
        }
        assert_eq!(CpuShare(0.5).of(0.0), None);
    }

    #[test]
    fn retry_after_is_whole_seconds_and_never_zero() {
        assert_eq!(Nanos::ZERO.retry_after_secs(), 1);
        assert_eq!(Nanos(SECOND + 1).retry_after_secs(), 2);
    }
}

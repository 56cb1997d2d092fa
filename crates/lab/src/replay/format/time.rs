//! Parsers for times and durations in the forms that logs use.
//!
//! A time without a zone is taken as UTC. Times before 1970 are rejected.

use evenkeel_core::units::{Nanos, SECOND, Time};
use jiff::civil::DateTime;
use jiff::tz::Offset;
use jiff::{Timestamp, civil};

/// The latest time that is accepted: the year 2200.
const LATEST_EPOCH_SECOND: i64 = 7_258_118_400;
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Parses `10/Oct/2000:13:55:36 -0700`, the form of nginx, Apache and HAProxy. The zone may be
/// missing, and the seconds may have a fraction.
pub fn common(text: &str) -> Option<Time> {
    let (date, zone) = text.split_once(' ').unwrap_or((text, "+0000"));
    let bytes = date.as_bytes();
    let shaped = bytes.len() >= 20 && date.is_ascii();
    let marks = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':')];
    if !shaped || marks.iter().any(|(at, mark)| bytes[*at] != *mark) {
        return None;
    }
    let month = MONTHS.iter().position(|name| *name == &date[3..6])? as i8 + 1;
    let number = |from: usize, to: usize| date[from..to].parse::<i16>().ok();
    let day = civil::Date::new(number(7, 11)?, month, number(0, 2)? as i8).ok()?;
    let nanos = match &date[20..] {
        "" => 0,
        rest => fraction(rest.strip_prefix(['.', ','])?)?,
    };
    // A leap second counts as the second before it.
    let second = number(18, 20)?.min(59) as i8;
    let time = civil::Time::new(number(12, 14)? as i8, number(15, 17)? as i8, second, nanos);
    at(day.to_datetime(time.ok()?), offset(zone)?)
}

/// Parses `-0700` or `+02:00`.
fn offset(text: &str) -> Option<Offset> {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let (hours, minutes) = (digits.get(..2)?, digits.get(2..4)?);
    let seconds = hours.parse::<i32>().ok()? * 3_600 + minutes.parse::<i32>().ok()? * 60;
    Offset::from_seconds(if text.starts_with('-') { -seconds } else { seconds }).ok()
}

fn at(time: DateTime, offset: Offset) -> Option<Time> {
    instant(offset.to_timestamp(time).ok()?)
}

fn instant(time: Timestamp) -> Option<Time> {
    let second = time.as_second();
    let good = (0..LATEST_EPOCH_SECOND).contains(&second);
    let nanos = u64::try_from(time.subsec_nanosecond()).ok()?;
    good.then(|| Time(second as u64 * SECOND + nanos))
}

/// Parses `2016-04-15T20:17:00.310Z`, with any zone.
pub fn iso(text: &str) -> Option<Time> {
    instant(text.parse::<Timestamp>().ok()?)
}

/// Parses `2016-04-15` and `20:17:00`, in UTC.
pub fn date_and_time(date: &str, time: &str) -> Option<Time> {
    let date: civil::Date = date.parse().ok()?;
    at(date.to_datetime(time.parse().ok()?), Offset::UTC)
}

/// Parses seconds since 1970, with or without a fraction.
pub fn epoch(text: &str) -> Option<Time> {
    let length = seconds(text)?;
    let good = length.0 / SECOND < LATEST_EPOCH_SECOND as u64;
    good.then_some(Time(length.0))
}

/// Parses the digits after a point as nanoseconds; finer digits are ignored.
fn fraction(digits: &str) -> Option<i32> {
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits = digits.get(..9).unwrap_or(digits);
    let scale = 10_i32.pow(9 - digits.len() as u32);
    digits.parse::<i32>().ok().map(|number| number * scale)
}

/// Parses a duration in seconds, such as `1.25` or `3`; no sign, no exponent.
pub fn seconds(text: &str) -> Option<Nanos> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let whole: u64 = plain(whole)?;
    Some(Nanos(whole.checked_mul(SECOND)?.checked_add(u64::try_from(fraction(part)?).ok()?)?))
}

/// Parses a whole number of units of `unit` nanoseconds.
pub fn units(text: &str, unit: u64) -> Option<Nanos> {
    plain(text)?.checked_mul(unit).map(Nanos)
}

fn plain(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// Parses the seconds that nginx writes for several servers that it tried, and adds them up.
pub fn sum(text: &str) -> Option<Nanos> {
    let each = text.split([',', ':', ' ']).filter(|word| !matches!(*word, "" | "-"));
    let mut all = each.map(seconds).peekable();
    all.peek()?;
    all.try_fold(Nanos::ZERO, |sum, one| Some(sum.plus(one?)))
}

/// A duration of zero was not really zero: half of the finest step of its log is assumed instead.
pub fn at_least(length: Nanos, finest: Nanos) -> Nanos {
    if length == Nanos::ZERO { Nanos(finest.0 / 2) } else { length }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_every_form() {
        let noon = Time(1_700_000_000 * SECOND);
        assert_eq!(common("14/Nov/2023:22:13:20 +0000"), Some(noon));
        assert_eq!(common("14/Nov/2023:15:13:20 -0700"), Some(noon));
        assert_eq!(common("14/Nov/2023:22:13:20.250"), Some(noon.plus(Nanos::from_millis(250))));
        assert_eq!(iso("2023-11-14T22:13:20.25Z"), Some(noon.plus(Nanos::from_millis(250))));
        assert_eq!(iso("2023-11-15T00:13:20+02:00"), Some(noon));
        assert_eq!(date_and_time("2023-11-14", "22:13:20"), Some(noon));
        assert_eq!(epoch("1700000000.250"), Some(noon.plus(Nanos::from_millis(250))));
        for bad in ["", "14/Nov/2023", "99/Nov/2023:22:13:20 +0000", "14/Nov/2023:22:13:20 x"] {
            assert_eq!(common(bad), None, "{bad}");
        }
        for bad in ["14/Nov/1923:22:13:20 +0000", "14/ovN/2023:22:13:20", "14/Nov/20é3:22:13:2"] {
            assert_eq!(common(bad), None, "{bad}");
        }
        assert_eq!((iso("1969-01-01T00:00:00Z"), iso("soon"), epoch("-1")), (None, None, None));
    }

    #[test]
    fn lengths_are_read_to_the_nanosecond() {
        assert_eq!(seconds("1.25"), Some(Nanos::from_millis(1_250)));
        assert_eq!(seconds("0.0000000019"), Some(Nanos(1)));
        assert_eq!(units("1500", 1_000), Some(Nanos(1_500_000)));
        assert_eq!(sum("0.100, 0.200 : 0.300"), Some(Nanos::from_millis(600)));
        assert_eq!(sum("0.100, -"), Some(Nanos::from_millis(100)));
        for bad in ["", "-", "-1", "1e3", "99999999999999999999", "1.", "1.x"] {
            assert_eq!((seconds(bad), sum(bad)), (None, None), "{bad}");
        }
        assert_eq!(at_least(Nanos::ZERO, Nanos::from_millis(1)), Nanos(500_000));
    }
}

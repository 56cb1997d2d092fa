//! The cost of a request as the backend reports it in a header of its response.
//!
//! Four forms are read: the metric `cpu` of `Server-Timing` (W3C; its `dur` in milliseconds), the
//! request cost `cpu` of an ORCA load report as text or JSON (in seconds), a plain number of
//! seconds, and a number with a unit. Binary ORCA reports are not read. A value that cannot be true
//! is an error and changes nothing: the caller uses the clock instead, and counts the error.

use crate::units::{Nanos, SECOND};
use core::fmt;

/// The largest cost of a single request that is accepted.
const COST_MAX: Nanos = Nanos::from_secs(3_600);

/// Why the value of a cost header was not accepted. The fault is the backend's. No state
/// was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderCostError {
    /// A number is missing where one is required.
    Number,
    /// Negative, not a number, or more than an hour.
    Range,
}

impl fmt::Display for HeaderCostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HeaderCostError::Number => "the cost header contains no number",
            HeaderCostError::Range => {
                "the value of the cost header is negative, not a number or over an hour"
            }
        })
    }
}

impl core::error::Error for HeaderCostError {}

/// The CPU time in the value of a header. `None`: the value is well-formed but says nothing about
/// CPU time, for instance a `Server-Timing` with other metrics. If the header has several lines,
/// call this for each of them. Of several values the first counts.
///
/// # Errors
/// The value cannot be true: see [`HeaderCostError`].
pub fn header_cost(value: &[u8]) -> Result<Option<Nanos>, HeaderCostError> {
    let value = value.trim_ascii();
    if let Some(report) = after_word(value, b"TEXT") {
        return orca_text(report);
    }
    if let Some(report) = after_word(value, b"JSON") {
        return orca_json(report);
    }
    if value.starts_with(b"{") {
        return orca_json(value);
    }
    if value.iter().any(|b| b";,=\"".contains(b)) {
        return server_timing(value);
    }
    match quantity(value, 1.0) {
        // A single word is a metric of `Server-Timing` without a duration.
        Err(HeaderCostError::Number) if !value.iter().any(u8::is_ascii_digit) => Ok(None),
        cost => cost.map(Some),
    }
}

/// The text after `word` and a space.
fn after_word<'a>(value: &'a [u8], word: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = value.split_at_checked(word.len())?;
    let spaced = rest.first().is_some_and(u8::is_ascii_whitespace);
    (spaced && head.eq_ignore_ascii_case(word)).then(|| rest.trim_ascii())
}

/// `db;dur=53, cpu;desc="of all, really";dur=2.4`
fn server_timing(value: &[u8]) -> Result<Option<Nanos>, HeaderCostError> {
    for metric in pieces(value, b',') {
        let mut parts = pieces(metric, b';').map(<[u8]>::trim_ascii);
        if !parts.next().is_some_and(|name| name.eq_ignore_ascii_case(b"cpu")) {
            continue;
        }
        let dur = parts.filter_map(pair).find(|(name, _)| name.eq_ignore_ascii_case(b"dur"));
        if let Some((_, value)) = dur {
            return quantity(unquoted(value), 1e-3).map(Some);
        }
    }
    Ok(None)
}

/// `cpu_utilization=0.3, request_cost.cpu=0.012`; early reports wrote a colon.
fn orca_text(report: &[u8]) -> Result<Option<Nanos>, HeaderCostError> {
    let mut pairs = pieces(report, b',').filter_map(pair);
    match pairs.find(|(name, _)| *name == b"request_cost.cpu") {
        Some((_, value)) => quantity(unquoted(value), 1.0).map(Some),
        None => Ok(None),
    }
}

/// `{"cpu_utilization": 0.3, "request_cost": {"cpu": 0.012}}`: the member `cpu` of the member
/// `request_cost`. Everything else is skipped, well-formed or not.
fn orca_json(report: &[u8]) -> Result<Option<Nanos>, HeaderCostError> {
    let (mut rest, mut depth, mut costs) = (report, 0_u32, false);
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'{' | b'[' => depth = depth.saturating_add(1),
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let (name, after) = rest.split_at(string_end(rest));
                rest = after.strip_prefix(b"\"").unwrap_or(after).trim_ascii_start();
                let Some(value) = rest.strip_prefix(b":") else { continue };
                if depth == 1 {
                    costs = name == b"request_cost" || name == b"requestCost";
                } else if depth == 2 && costs && name == b"cpu" {
                    return quantity(json_scalar(value), 1.0).map(Some);
                }
                rest = value;
            }
            _ => {}
        }
    }
    Ok(None)
}

/// The length of the string that starts here: up to its closing quote, or to the end of the text.
fn string_end(text: &[u8]) -> usize {
    let mut escaped = false;
    let end = text.iter().position(|b| {
        let closes = *b == b'"' && !escaped;
        escaped = *b == b'\\' && !escaped;
        closes
    });
    end.unwrap_or(text.len())
}

/// A number, or the content of a JSON string that holds one.
fn json_scalar(value: &[u8]) -> &[u8] {
    let value = value.trim_ascii_start();
    match value.strip_prefix(b"\"") {
        Some(text) => &text[..string_end(text)],
        None => value.split(|b| b",}]".contains(b)).next().unwrap_or_default(),
    }
}

/// The pieces of `text` between `separator`s outside quotes.
fn pieces(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |b| {
        let plain = !escaped;
        escaped = quoted && plain && *b == b'\\';
        if *b == b'"' && plain {
            quoted = !quoted;
        }
        *b == separator && !quoted
    })
}

/// A name and a value.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// Splits `name=value` or `name:value`, and trims both.
fn pair(text: &[u8]) -> Option<Pair<'_>> {
    let at = text.iter().position(|b| b"=:".contains(b))?;
    Some((text[..at].trim_ascii(), text[at + 1..].trim_ascii()))
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").map_or(value, |text| &text[..string_end(text)])
}

/// A number with a unit, or one without, in units of `plain` seconds.
fn quantity(value: &[u8], plain: f64) -> Result<Nanos, HeaderCostError> {
    const UNITS: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let text = core::str::from_utf8(value).map_err(|_| HeaderCostError::Number)?.trim();
    let with_unit =
        UNITS.iter().find_map(|(unit, size)| text.strip_suffix(unit).map(|number| (number, *size)));
    let (number, size) = with_unit.unwrap_or((text, plain));
    let number: f64 = number.trim_end().parse().map_err(|_| HeaderCostError::Number)?;
    let seconds = number * size;
    let credible = seconds >= 0.0 && seconds * SECOND as f64 <= COST_MAX.0 as f64;
    credible.then(|| Nanos::from_secs_f64(seconds)).ok_or(HeaderCostError::Range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    fn cost(value: &str) -> Result<Option<Nanos>, HeaderCostError> {
        header_cost(value.as_bytes())
    }

    #[test]
    fn numbers_are_seconds_unless_they_say_otherwise() {
        for (value, micros) in [
            ("0.012", 12_000),
            ("12ms", 12_000),
            ("12 ms", 12_000),
            ("1300us", 1_300),
            ("1300000ns", 1_300),
            ("1.5s", 1_500_000),
            (" 3 ", 3_000_000),
            ("1.2e-3", 1_200),
            ("0", 0),
            ("3600", 3_600_000_000),
        ] {
            assert_eq!(cost(value), Ok(Some(Nanos(micros * 1_000))), "{value}");
        }
    }

    #[test]
    fn server_timing_is_milliseconds_of_the_metric_cpu() {
        for value in [
            "cpu;dur=12.3",
            "CPU;DUR=12.3",
            "cpu; dur = \"12.3\"",
            "miss, db;dur=53, cpu;desc=\"a, \\\"b\\\"; dur=1\";dur=12.3, cpu;dur=99",
            "cpu, cpu;dur=12.3",
        ] {
            assert_eq!(cost(value), Ok(Some(Nanos(12_300_000))), "{value}");
        }
        for value in ["", "miss", "db;dur=53", "cpu", "cpu;desc=x", "total;desc=\"cpu;dur=3\""] {
            assert_eq!(cost(value), Ok(None), "{value}");
        }
    }

    #[test]
    fn orca_reports_are_seconds_of_the_request_cost_cpu() {
        for value in [
            "TEXT cpu_utilization=0.3, request_cost.cpu=0.012",
            "TEXT request_cost.cpu:0.012",
            "JSON {\"cpu_utilization\": 0.3, \"request_cost\": {\"x\\\"\": 1, \"cpu\": 0.012}}",
            "{\"requestCost\":{\"cpu\":\"0.012\"}}",
        ] {
            assert_eq!(cost(value), Ok(Some(Nanos(12_000_000))), "{value}");
        }
        for value in [
            "TEXT cpu_utilization=0.3",
            "JSON {\"cpu\": 3, \"utilization\": {\"cpu\": 1}, \"request_cost\": \"cpu\"}",
            "JSON {",
        ] {
            assert_eq!(cost(value), Ok(None), "{value}");
        }
    }

    #[test]
    fn what_cannot_be_true_is_refused() {
        for value in [
            "-1",
            "-1ms",
            "NaN",
            "inf",
            "1e300",
            "3600.1",
            "3601s",
            "cpu;dur=-1",
            "cpu;dur=nan",
            "cpu;dur=3600001",
            "TEXT request_cost.cpu=-0.1",
            "JSON {\"request_cost\":{\"cpu\":\"NaN\"}}",
        ] {
            assert_eq!(cost(value), Err(HeaderCostError::Range), "{value}");
        }
        for value in ["12x", "1 2", "1.2.3", "cpu;dur=", "cpu;dur=x", "TEXT request_cost.cpu=x"] {
            assert_eq!(cost(value), Err(HeaderCostError::Number), "{value}");
        }
        let long: String = core::iter::repeat_n('{', 100_000).collect();
        assert_eq!(cost(&long), Ok(None));
        assert_eq!(header_cost(b"\xff\xfe 7"), Err(HeaderCostError::Number));
    }
}

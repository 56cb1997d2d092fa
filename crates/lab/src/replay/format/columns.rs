//! CloudFront's standard log: columns separated by tabs, named by a line that begins with
//! `#Fields:`.
//!
//! Words are percent-encoded, some of them twice. The time is the end of the answer. Requests that
//! the cache answered never reached the site; they are marked as cached.

use super::common::status;
use super::time;
use crate::replay::entry::{LineDraft, LogFields};
use evenkeel_core::units::Nanos;
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// The names of the columns, in the order of the columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogColumns(Vec<String>);

/// The maximum number of columns; further ones are ignored.
const COLUMNS_MAX: usize = 128;

impl LogColumns {
    /// Takes over the column names if the line has them.
    pub fn learn(&mut self, line: &str) {
        if let Some(names) = line.strip_prefix("#Fields:") {
            let names = names.split_whitespace().take(COLUMNS_MAX);
            self.0 = names.map(str::to_ascii_lowercase).collect();
        }
    }

    /// Parses one line; `None` also if the names are not known yet.
    pub fn parse<'a>(&self, line: &'a str) -> Option<LineDraft<'a>> {
        let value = |name: &str| {
            let column = self.0.iter().position(|known| known == name)?;
            line.split('\t').nth(column).filter(|value| *value != "-")
        };
        let decoded = |name: &str| value(name).map(decoded);
        let has = |name: &str| self.0.iter().any(|known| known == name);
        let at = time::date_and_time(value("date")?, value("time")?)?;
        let query = value("cs-uri-query").filter(|query| !query.is_empty());
        let path = decoded("cs-uri-stem")?;
        let target = match query {
            Some(query) => Cow::from(format!("{path}?{query}")),
            None => path,
        };
        let took = value("time-taken").and_then(time::seconds);
        let cached = matches!(value("x-edge-result-type"), Some("Hit" | "Redirect"));
        let mut headers = Vec::new();
        headers.extend(decoded("cs(cookie)").map(|cookie| ("cookie".to_owned(), cookie.into())));
        Some(LineDraft {
            time: at,
            coarse: true,
            took: took.map(|took| time::at_least(took, Nanos::from_millis(1))),
            peer: value("c-ip")?.parse().ok(),
            method: value("cs-method")?.into(),
            target,
            host: value("x-host-header").or(value("cs(host)")).map(Cow::from),
            agent: decoded("cs(user-agent)"),
            referrer: decoded("cs(referer)"),
            tells: LogFields {
                agent: has("cs(user-agent)"),
                referrer: has("cs(referer)"),
                host: has("cs(host)") || has("x-host-header"),
                took: has("time-taken"),
                headers: false,
            },
            status: status(value("sc-status").unwrap_or("-"))?,
            cached,
            headers,
            ..LineDraft::default()
        })
    }
}

/// Decodes percent-encoding, twice if the text was encoded twice.
fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return text.into();
    }
    let once = percent_decode_str(text).decode_utf8_lossy();
    match text.contains("%25") {
        true => percent_decode_str(&once).decode_utf8_lossy().into_owned().into(),
        false => once,
    }
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn words_are_decoded_once_or_twice_and_faulty_codes_stay() {
        for (text, plain) in [
            ("a-b", "a-b"),
            ("Mozilla%2F5.0%20(X11)", "Mozilla/5.0 (X11)"),
            ("Mozilla/5.0%2520(X11)", "Mozilla/5.0 (X11)"),
            ("%C3%A4", "ä"),
            ("%zz%4%", "%zz%4%"),
            ("%+1", "%+1"),
            ("%ff", "\u{fffd}"),
        ] {
            assert_eq!(decoded(text), plain, "{text}");
        }
    }
}

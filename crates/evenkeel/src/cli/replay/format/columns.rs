//! CloudFront's standard log: columns parted by tabs, named by a line that begins with `#Fields:`.
//!
//! Words are percent-encoded, some of them twice. The time is when the answer was over. What the
//! cache answered itself never reached the site, and is marked as such.

use super::common::status;
use super::time;
use crate::cli::replay::entry::{Draft, Tells};
use evenkeel_core::units::Nanos;
use std::borrow::Cow;

/// Which column is which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns(Vec<String>);

/// Columns beyond this are not looked at.
const COLUMNS_MAX: usize = 128;

impl Columns {
    /// Takes over the names, if the line has them.
    pub fn learn(&mut self, line: &str) {
        if let Some(names) = line.strip_prefix("#Fields:") {
            let names = names.split_whitespace().take(COLUMNS_MAX);
            self.0 = names.map(str::to_ascii_lowercase).collect();
        }
    }

    /// One line; `None` also before the names are known.
    pub fn parse<'a>(&self, line: &'a str) -> Option<Draft<'a>> {
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
        Some(Draft {
            time: at,
            coarse: true,
            took: took.map(|took| time::at_least(took, Nanos::from_millis(1))),
            peer: value("c-ip")?.parse().ok(),
            method: value("cs-method")?.into(),
            target,
            host: value("x-host-header").or(value("cs(host)")).map(Cow::from),
            agent: decoded("cs(user-agent)"),
            referrer: decoded("cs(referer)"),
            tells: Tells {
                agent: has("cs(user-agent)"),
                referrer: has("cs(referer)"),
                host: has("cs(host)") || has("x-host-header"),
                took: has("time-taken"),
                headers: false,
            },
            status: status(value("sc-status").unwrap_or("-"))?,
            cached,
            headers,
            ..Draft::default()
        })
    }
}

/// Percent-encoding undone, twice where it was done twice.
fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return text.into();
    }
    let once = decode(text);
    let twice = text.contains("%25");
    (if twice { decode(&once) } else { once }).into()
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = text.get(at + 1..at + 3).and_then(|code| u8::from_str_radix(code, 16).ok());
        match code {
            Some(byte) if bytes[at] == b'%' => {
                out.push(byte);
                at += 3;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

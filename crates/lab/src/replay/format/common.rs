//! The common log format and the variants of nginx and Apache: combined, with a virtual host in
//! front, with durations and forwarded addresses at the end.
//!
//! The words after the user agent have no fixed order. A word with a name (`rt=0.012`) is
//! recognised by its name. A number with a point is in seconds (nginx). A whole number is in
//! microseconds (Apache's `%D`), unless all numbers of the log are so small that they must be whole
//! seconds (`%T`), which are useless as a cost. If a line has several times, the shortest is that
//! of the backend.

use super::time;
use super::token::{LogToken, LogTokens};
use crate::replay::entry::{LineDraft, LogFields, StampMoment};
use evenkeel_core::units::Nanos;
use std::borrow::Cow;
use std::net::IpAddr;

/// Whole numbers at the end of lines are microseconds, not seconds, if one of them is at least
/// this.
const MICROS_FROM: u64 = 100;
/// Numbers with a point from this on are times, not durations: the year 2001.
const EPOCH_FROM: Nanos = Nanos::from_secs(1_000_000_000);

/// The unit of whole numbers at the end of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WholeNumberUnit {
    #[default]
    Micros,
    /// Seconds, which are too coarse to be useful.
    Seconds,
}

/// The unit of whole numbers at the end of these lines, derived from the largest of them.
pub fn whole<'a>(lines: impl Iterator<Item = &'a str>) -> WholeNumberUnit {
    let largest = lines.filter_map(|line| {
        let mut tokens = LogTokens(line);
        head(&mut tokens, &mut LineDraft::default())?;
        let numbers = tokens.filter_map(|token| match token {
            LogToken::Bare(word) => word.parse::<u64>().ok(),
            _ => None,
        });
        numbers.max()
    });
    match largest.max() {
        Some(number) if number < MICROS_FROM => WholeNumberUnit::Seconds,
        _ => WholeNumberUnit::Micros,
    }
}

pub fn parse(line: &str, whole: WholeNumberUnit) -> Option<LineDraft<'_>> {
    let mut draft = LineDraft { coarse: true, ..LineDraft::default() };
    let mut tokens = LogTokens(line);
    head(&mut tokens, &mut draft)?;
    tokens.for_each(|token| behind(token, &mut draft, whole));
    Some(draft)
}

/// Parses up to the user agent, or up to the size if there is no user agent.
fn head<'a>(tokens: &mut LogTokens<'a>, draft: &mut LineDraft<'a>) -> Option<()> {
    let first = tokens.bare()?;
    match first.parse::<IpAddr>() {
        Ok(peer) => draft.peer = Some(peer),
        // A virtual host before the address.
        Err(_) => {
            draft.host = Some(first.into());
            draft.tells.host = true;
            draft.peer = Some(tokens.bare()?.parse().ok()?);
        }
    }
    // Two names, the second of which may contain spaces; then the time.
    let stamp = tokens.by_ref().take(8).find_map(|token| match token {
        LogToken::Bracketed(text) => Some(text),
        _ => None,
    })?;
    draft.time = time::common(stamp)?;
    draft.coarse = !stamp.contains(['.', ',']);
    request(tokens.quoted()?, draft);
    draft.status = status(tokens.bare()?)?;
    tokens.bare()?;
    let mut rest = *tokens;
    if let (Some(referrer), Some(agent)) = (rest.quoted(), rest.quoted()) {
        draft.referrer = named(referrer);
        draft.agent = named(agent);
        draft.tells = LogFields { agent: true, referrer: true, ..draft.tells };
        *tokens = rest;
    }
    Some(())
}

/// Parses `GET /path HTTP/1.1`. Text that is no request leaves method and path empty.
pub fn request<'a>(text: &'a str, draft: &mut LineDraft<'a>) {
    let (method, rest) = text.split_once(' ').unwrap_or(("", text));
    let target = rest.rsplit_once(" HTTP/").map_or(rest, |(target, _)| target);
    draft.method = method.into();
    draft.target = if method.is_empty() { "/".into() } else { target.into() };
}

/// Parses a status; servers write a hyphen or a negative number if there was no answer.
pub fn status(text: &str) -> Option<u16> {
    match text {
        "-" | "-1" => Some(0),
        _ => text.parse().ok().filter(|status| *status < 1_000),
    }
}

/// The text, unless it is empty or a hyphen for an absent value.
pub fn named(text: &str) -> Option<Cow<'_, str>> {
    if matches!(text, "" | "-") { None } else { Some(text.into()) }
}

fn behind<'a>(token: LogToken<'a>, draft: &mut LineDraft<'a>, whole: WholeNumberUnit) {
    let text = token.text();
    if let (LogToken::Bare(_), Some((name, value))) = (token, text.split_once('=')) {
        return by_name(name, value.trim_matches('"'), draft);
    }
    match (token, text.contains('.')) {
        (LogToken::Bare(_), true) if time::sum(text).is_some() => seconds(text, draft),
        (LogToken::Bare(_), false) if whole == WholeNumberUnit::Micros => {
            took(time::units(text, 1_000), Nanos(1_000), StampMoment::Start, draft);
        }
        _ if is_list(text) => draft.forwarded = Some(text.into()),
        _ if is_host(text) => {
            draft.host = Some(text.into());
            draft.tells.host = true;
        }
        _ => {}
    }
}

/// Interprets a number with a point: a duration, or the time at which the request ended.
fn seconds<'a>(text: &'a str, draft: &mut LineDraft<'a>) {
    let Some(length) = time::sum(text) else { return };
    if length < EPOCH_FROM {
        return took(Some(length), Nanos::from_millis(1), StampMoment::End, draft);
    }
    if let Some(at) = time::epoch(text) {
        (draft.time, draft.coarse) = (at, false);
    }
}

fn by_name<'a>(name: &str, value: &'a str, draft: &mut LineDraft<'a>) {
    let milli = Nanos::from_millis(1);
    match name {
        "rt"
        | "request_time"
        | "time"
        | "urt"
        | "upstream"
        | "upstream_time"
        | "upstream_response_time"
        | "duration" => {
            took(time::sum(value), milli, StampMoment::End, draft);
        }
        "ms" => took(time::units(value, milli.0), milli, StampMoment::End, draft),
        "us" | "D" => took(time::units(value, 1_000), Nanos(1_000), StampMoment::Start, draft),
        "msec" => seconds(value, draft),
        "cost" => draft.cost = named(value),
        "host" | "vhost" | "server_name" => {
            draft.host = named(value);
            draft.tells.host = true;
        }
        "xff" | "forwarded" | "x_forwarded_for" | "http_forwarded" => {
            draft.forwarded = named(value)
        }
        _ => {}
    }
}

/// Sets the times of a line: the shortest is that of the backend, the longest that of the whole
/// request. A log with microseconds is Apache's, which records the arrival of a request.
fn took(length: Option<Nanos>, finest: Nanos, stamp: StampMoment, draft: &mut LineDraft<'_>) {
    let Some(length) = length.map(|length| time::at_least(length, finest)) else { return };
    draft.tells.took = true;
    draft.stamp = stamp;
    draft.took = Some(draft.took.map_or(length, |known| known.min(length)));
    draft.total = Some(draft.total.map_or(length, |known| known.max(length)));
}

/// Whether a text is a list of addresses separated by commas.
fn is_list(text: &str) -> bool {
    text.split(',').all(|one| one.trim().parse::<IpAddr>().is_ok())
}

/// Whether a word can be the name of a host.
pub fn is_host(text: &str) -> bool {
    let name = text.split(':').next().unwrap_or_default();
    let letters = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    letters && name.contains('.') && name.bytes().any(|b| b.is_ascii_alphabetic())
}

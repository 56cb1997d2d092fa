//! HAProxy's HTTP log, with or without the prefix of syslog.
//!
//! `address:port [date] frontend backend/server TR/Tw/Tc/Tr/Ta status bytes cookies flags counts
//! queues {captures} "request"`. The date is the arrival of the request. The backend works from the
//! end of connecting to the end of the answer. Captured headers have no names, so the parser
//! guesses each from its form.

use super::common::{is_host, named, request, status};
use super::time;
use crate::replay::entry::{LineDraft, LogFields, StampMoment};
use evenkeel_core::units::Nanos;
use std::net::IpAddr;

pub fn parse(line: &str) -> Option<LineDraft<'_>> {
    let open = line.find(" [").filter(|at| at + 2 < line.len())?;
    // Syslog may use brackets of its own; a date has a slash after the day.
    let open = match line.as_bytes().get(open + 4) {
        Some(b'/') => open,
        _ => open + 2 + line[open + 2..].find(" [")?,
    };
    let peer = peer(line[..open].rsplit(' ').next()?)?;
    let (date, rest) = line.get(open + 2..)?.split_once("] ")?;
    let begin = rest.find('"')?;
    let (words, asked) = (&rest[..begin], &rest[begin + 1..]);
    let mut draft = LineDraft {
        time: time::common(date)?,
        stamp: StampMoment::Start,
        peer: Some(peer),
        ..LineDraft::default()
    };
    let mut words = words.split(' ').filter(|word| !word.is_empty()).skip(2);
    let timers = words.next()?;
    (draft.took, draft.tells.took) = (took(timers)?, true);
    draft.status = status(words.next()?)?;
    request(asked.trim_end().trim_end_matches('"'), &mut draft);
    if let Some((_, captured)) = rest[..begin].split_once('{') {
        captures(captured.split('}').next().unwrap_or_default(), &mut draft);
    }
    Some(draft)
}

/// Parses `192.0.2.1:33317`, or an IPv6 address and a port.
fn peer(text: &str) -> Option<IpAddr> {
    let (address, port) = text.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    address.trim_matches(['[', ']']).parse().ok()
}

/// How long the backend worked, from timers in milliseconds: the total without waiting for the
/// request, for a queue slot and for a connection. `Some(None)`: the request did not reach the
/// backend.
fn took(timers: &str) -> Option<Option<Nanos>> {
    let mut five = [0_i64; 5];
    let mut parts = timers.split('/');
    for slot in &mut five {
        *slot = parts.next()?.trim_start_matches('+').parse().ok()?;
    }
    let [request, waited, connected, answered, total] = five;
    if parts.next().is_some() {
        return None;
    }
    let before = [request, waited, connected].into_iter().map(|part| part.max(0));
    let worked = total.saturating_sub(before.sum());
    let unit = Nanos::from_millis(1);
    let length = u64::try_from(worked).ok().map(|ms| Nanos(ms.saturating_mul(unit.0)));
    let came = connected >= 0 || answered >= 0;
    Some(length.filter(|_| came).map(|length| time::at_least(length, unit)))
}

fn captures<'a>(captured: &'a str, draft: &mut LineDraft<'a>) {
    for piece in captured.split('|') {
        if piece.starts_with("http://") || piece.starts_with("https://") {
            draft.referrer = Some(piece.into());
            draft.tells.referrer = true;
        } else if is_agent(piece) {
            draft.agent = named(piece);
            draft.tells.agent = true;
        } else if is_host(piece) {
            draft.host = Some(piece.into());
            draft.tells = LogFields { host: true, ..draft.tells };
        } else if piece.split(',').all(|one| one.trim().parse::<IpAddr>().is_ok()) {
            draft.forwarded = Some(piece.into());
        }
    }
}

/// Whether a word begins with the name of a program and its version.
fn is_agent(text: &str) -> bool {
    let product = text.split(' ').next().unwrap_or_default();
    let (name, version) = product.split_once('/').unwrap_or_default();
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
    first && version.bytes().next().is_some_and(|b| b.is_ascii_digit())
}

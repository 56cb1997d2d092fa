//! Access logs of AWS load balancers: the classic one and the one for applications.
//!
//! `[type] time name client:port target:port before backend after status target-status received
//! sent "request" "user-agent" ...`. The second of the three durations is that of the backend. The
//! time of an application balancer is the end of the answer. Requests that no target received have
//! no durations.

use super::common::{named, request, status};
use super::time;
use super::token::LogTokens;
use crate::replay::entry::{LineDraft, LogFields, StampMoment};
use evenkeel_core::units::Nanos;
use std::net::IpAddr;

/// The first words of lines of an application balancer.
const KINDS: [&str; 6] = ["http", "https", "h2", "grpcs", "ws", "wss"];

pub fn parse(line: &str) -> Option<LineDraft<'_>> {
    let mut tokens = LogTokens(line);
    let first = tokens.bare()?;
    let application = KINDS.contains(&first);
    let at = time::iso(if application { tokens.bare()? } else { first })?;
    tokens.bare()?;
    let (address, port) = tokens.bare()?.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    tokens.bare()?;
    let finest = if application { Nanos::from_millis(1) } else { Nanos(1_000) };
    let [before, backend, after] = [tokens.bare()?, tokens.bare()?, tokens.bare()?];
    let lengths = [before, backend, after].map(|text| part(text).map(Option::unwrap_or_default));
    let [before, worked, after] = lengths;
    let total = before?.plus(worked?).plus(after?);
    let mut draft = LineDraft {
        time: at,
        stamp: if application { StampMoment::End } else { StampMoment::Start },
        took: part(backend)?.map(|took| time::at_least(took, finest)),
        total: Some(total),
        peer: address.trim_matches(['[', ']']).parse::<IpAddr>().ok(),
        status: status(tokens.bare()?)?,
        tells: LogFields { agent: true, host: true, took: true, ..LogFields::default() },
        ..LineDraft::default()
    };
    // A connection that was switched to another protocol.
    if first.starts_with("ws") {
        draft.took = None;
    }
    let asked = tokens.nth(3)?.text();
    request(asked, &mut draft);
    draft.agent = tokens.quoted().and_then(named);
    Some(draft)
}

/// Parses seconds; `Some(None)` for -1, which means that this step did not happen.
fn part(text: &str) -> Option<Option<Nanos>> {
    match text {
        "-1" | "-1.0" | "-" => Some(None),
        _ => time::seconds(text).map(Some),
    }
}

//! Envoy's default access log, and Istio's, which has more words.
//!
//! `[start] "method path protocol" status flags ... received sent duration upstream-time
//! "x-forwarded-for" "user-agent" "request-id" "authority" "upstream"`. The address of the peer is
//! the last one in X-Forwarded-For, because Envoy adds it there; Istio also writes it after the
//! other words.

use super::common::{named, request, status};
use super::time;
use super::token::{LogToken, LogTokens};
use crate::replay::entry::{LineDraft, LogFields, StampMoment};
use evenkeel_core::units::Nanos;
use std::net::{IpAddr, SocketAddr};

pub fn parse(line: &str) -> Option<LineDraft<'_>> {
    let mut tokens = LogTokens(line);
    let mut draft = LineDraft {
        time: time::iso(tokens.bracketed()?)?,
        stamp: StampMoment::Start,
        tells: LogFields { agent: true, host: true, took: true, ..LogFields::default() },
        ..LineDraft::default()
    };
    request(tokens.quoted()?, &mut draft);
    draft.status = status(tokens.bare()?)?;
    let rest: Vec<LogToken<'_>> = tokens.take(32).collect();
    let names = names(&rest)?;
    let [duration, upstream] = [rest.get(names - 2)?, rest.get(names - 1)?].map(|t| t.text());
    let milli = Nanos::from_millis(1);
    draft.took = time::units(duration, milli.0).map(|took| time::at_least(took, milli));
    // The time until the head of the answer, if the answer came from a backend.
    if upstream == "-" {
        draft.took = draft.took.map(|_| Nanos::ZERO);
    }
    let quoted = |at: usize| rest.get(names + at).map_or("", |token| token.text());
    draft.agent = named(quoted(1));
    draft.host = named(quoted(3));
    let peer = rest.iter().skip(names + 5).filter_map(|token| address(token.text())).nth(2);
    let (before, last) = quoted(0).rsplit_once(',').unwrap_or(("", quoted(0)));
    match (peer, last.trim().parse::<IpAddr>().ok()) {
        (Some(peer), _) => {
            draft.peer = Some(peer);
            draft.forwarded = named(quoted(0));
        }
        (None, peer) => {
            draft.peer = peer;
            draft.forwarded = named(before);
        }
    }
    Some(draft)
}

/// The index at which five quoted words begin, after at least four bare ones.
fn names(words: &[LogToken<'_>]) -> Option<usize> {
    let quoted = |token: &LogToken<'_>| matches!(token, LogToken::Quoted(_));
    (4..words.len().saturating_sub(4)).find(|at| words[*at..*at + 5].iter().all(quoted))
}

fn address(text: &str) -> Option<IpAddr> {
    text.parse::<SocketAddr>().ok().map(|address| address.ip())
}

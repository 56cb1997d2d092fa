//! The busiest minute: all its requests, and how each went without and with limits.
//!
//! The CPU time of a minute is known only at its end, and the results of its requests even later.
//! So the current minute and the busiest minute so far are kept, each with a bound.

use crate::replay::play::ReplayOutcome;
use crate::replay::play::baseline::RecordedRequest;
use evenkeel_core::units::{Nanos, SECOND};
use std::net::IpAddr;

/// The maximum number of requests of one minute that are kept.
const MINUTE_REQUESTS_MAX: usize = 500_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinuteRequest {
    pub client: IpAddr,
    /// The time from request to answer without limits, as in the log.
    pub without: Nanos,
    /// The time from request to answer with the limits; `None` if it was refused or has not ended
    /// yet.
    pub with: Option<Nanos>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Minute {
    /// The number of the minute since 1970.
    pub number: u64,
    /// The CPU time that all its requests needed.
    pub needed: Nanos,
    /// The number of requests that arrived.
    pub requests: u64,
    /// The maximum number of requests that ran at once without limits.
    pub beside: usize,
    /// The requests in the order of arrival, up to a bound.
    pub kept: Vec<MinuteRequest>,
    /// The number of its first request among all requests.
    first: u64,
}

/// The current minute, and the busiest minute so far.
#[derive(Clone, Debug, Default)]
pub struct MinuteTracker {
    on: Minute,
    busiest: Minute,
}

impl MinuteTracker {
    /// Counts the arrival of request number `number`.
    pub fn arrive(&mut self, number: u64, was: &RecordedRequest) {
        let minute = was.entry.start.0 / SECOND / 60;
        if minute != self.on.number {
            let next = Minute { number: minute, first: number, ..Minute::default() };
            let over = std::mem::replace(&mut self.on, next);
            if over.needed > self.busiest.needed {
                self.busiest = over;
            }
        }
        self.on.requests += 1;
        self.on.needed = self.on.needed.plus(was.needed);
        self.on.beside = self.on.beside.max(was.beside);
        if self.on.kept.len() < MINUTE_REQUESTS_MAX {
            let client = was.entry.address;
            self.on.kept.push(MinuteRequest { client, without: was.took, with: None });
        }
    }

    /// Records the result of a request, if its minute is kept.
    pub fn over(&mut self, outcome: &ReplayOutcome) {
        for minute in [&mut self.on, &mut self.busiest] {
            let place = outcome.number.checked_sub(minute.first);
            let kept = place.and_then(|place| minute.kept.get_mut(usize::try_from(place).ok()?));
            if let Some(kept) = kept.filter(|_| !outcome.refused) {
                kept.with = Some(outcome.took());
            }
        }
    }

    pub fn busiest(&self) -> &Minute {
        if self.on.needed > self.busiest.needed { &self.on } else { &self.busiest }
    }
}

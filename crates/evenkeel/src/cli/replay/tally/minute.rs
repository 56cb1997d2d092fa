//! The busiest minute: every request that came within it, how it went without limits and with them.
//!
//! Which minute needs most is known when it is over, and what became of its requests later still;
//! so the minute that is on and the busiest so far are kept, each with a bound.

use crate::cli::replay::play::Outcome;
use crate::cli::replay::play::was::Was;
use evenkeel_core::units::{Nanos, SECOND};
use std::net::IpAddr;

/// Requests of one minute that are kept.
const KEPT_MAX: usize = 500_000;

/// One request of a minute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// Who asked.
    pub client: IpAddr,
    /// From request to answer, as it was.
    pub without: Nanos,
    /// The same with the limits; `None` if it was refused.
    pub with: Option<Nanos>,
}

/// A minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Minute {
    /// Its number since 1970.
    pub number: u64,
    /// The CPU time that all its requests needed.
    pub needed: Nanos,
    /// How many came.
    pub requests: u64,
    /// The most that ran at once, as it was.
    pub beside: usize,
    /// The requests.
    pub kept: Vec<Kept>,
    /// The number of the first of them among all requests.
    first: u64,
}

/// The minute that is on, and the busiest.
#[derive(Clone, Debug, Default)]
pub struct Minutes {
    on: Minute,
    busiest: Minute,
}

impl Minutes {
    /// Request number `number` comes.
    pub fn arrive(&mut self, number: u64, was: &Was) {
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
        if self.on.kept.len() < KEPT_MAX {
            let client = was.entry.address;
            self.on.kept.push(Kept { client, without: was.took, with: None });
        }
    }

    /// And this became of it.
    pub fn over(&mut self, outcome: &Outcome) {
        for minute in [&mut self.on, &mut self.busiest] {
            let place = outcome.number.checked_sub(minute.first);
            let kept = place.and_then(|place| minute.kept.get_mut(usize::try_from(place).ok()?));
            if let Some(kept) = kept.filter(|_| !outcome.refused) {
                kept.with = Some(outcome.took());
            }
        }
    }

    /// The busiest of all.
    pub fn busiest(&self) -> &Minute {
        if self.on.needed > self.busiest.needed { &self.on } else { &self.busiest }
    }
}

//! An entry of the table of known clients: two words.
//!
//! The use of the entries: `known_clients`. Which of them instances share: `shared`.

use super::super::standing::TICKET_AGE_MAX;
use crate::units::{Nanos, Time};

/// A client that was not served for this long is a stranger again.
pub const FORGOTTEN_AFTER: Nanos = Nanos::from_secs(86_400);
/// The number of requests that a client must have been served before the pressure to count as one
/// that was here before. One is not enough: a swarm has sent one from each of many addresses.
pub const HISTORY_SERVED_MIN: u64 = 2;
/// A stamp is never further from the present than this when it is charged: in the past, so that a
/// long absence is worth no more than a short one; in the future, so that it is soon forgiven.
pub const STAMP_REACH: Nanos = TICKET_AGE_MAX;
/// The low bits of the second word of an entry are the number of served requests, then come those
/// of [`Sharing`]. The others are those of the stamp, so its resolution is a millisecond.
const SERVED_BITS: u32 = 18;
const SERVED_MAX: u64 = (1 << SERVED_BITS) - 1;
const SHARING_BITS: u32 = 2;
const STAMP_SHIFT: u32 = SERVED_BITS + SHARING_BITS;
const STAMP_MASK: u64 = !((1 << STAMP_SHIFT) - 1);

/// Whether a client is to be reported to other instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// It was served here since it was last sent to others.
    Due = 0,
    /// It was sent to others.
    Done = 1,
    /// It was served twice only under pressure. It is not sent to others.
    Withheld = 2,
    /// Others have sent it, and it was not served here.
    Foreign = 3,
}

impl Sharing {
    /// From the two lowest bits.
    pub fn of(bits: u64) -> Sharing {
        match bits & 3 {
            0 => Sharing::Due,
            1 => Sharing::Done,
            2 => Sharing::Withheld,
            _ => Sharing::Foreign,
        }
    }
}

/// An entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownClient {
    /// When it was served for the [`HISTORY_SERVED_MIN`]th time, or last if that is to come. If
    /// that was under pressure: when it was first served after it.
    pub since: Time,
    pub stamp: Time,
    pub served: u64,
    pub sharing: Sharing,
}

impl KnownClient {
    pub fn of(state: &[u64]) -> KnownClient {
        KnownClient {
            since: Time(state[0]),
            stamp: Time(state[1] & STAMP_MASK),
            served: state[1] & SERVED_MAX,
            sharing: Sharing::of(state[1] >> SERVED_BITS),
        }
    }

    pub fn write(self, state: &mut [u64]) {
        state[0] = self.since.0;
        let sharing = (self.sharing as u64) << SERVED_BITS;
        state[1] = self.stamp.0 & STAMP_MASK | sharing | self.served.min(SERVED_MAX);
    }

    /// Counts a request that gets its turn.
    pub fn count(&mut self, under_pressure: bool, now: Time) {
        self.served += 1;
        let is_withheld = self.sharing == Sharing::Withheld;
        if self.served <= HISTORY_SERVED_MIN || is_withheld && !under_pressure {
            self.since = now;
            self.sharing = if under_pressure { Sharing::Withheld } else { Sharing::Due };
        } else if !is_withheld {
            self.sharing = Sharing::Due;
        }
    }

    pub fn is_forgotten(self, now: Time) -> bool {
        now.since(self.stamp) >= FORGOTTEN_AFTER.plus(STAMP_REACH)
    }

    /// The worth of an entry for eviction. Clients that were served more often are worth more, in
    /// four steps; those that were served by other instances only come after the first. Then those
    /// with a later stamp.
    pub fn worth(state: &[u64], now: Time) -> u64 {
        let known = KnownClient::of(state);
        if known.served == 0 || known.is_forgotten(now) {
            return 0;
        }
        let steps = match u64::from(known.served.ilog2().min(3)) {
            0 => 0,
            _ if known.sharing == Sharing::Foreign => 1,
            steps => 1 + steps,
        };
        steps << 60 | known.stamp.0 >> STAMP_SHIFT
    }
}

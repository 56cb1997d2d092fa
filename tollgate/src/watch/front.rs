//! Notices when a proxy stands in front that nobody has named: most requests then come from its
//! one address, and all users share one bucket.
//!
//! The sign is an address that is not trusted and yet sends forwarded headers. Whether one such
//! address sends most of the traffic is found by majority vote (Boyer and Moore): one candidate,
//! one tally, no memory of anybody else. A tally above half of all votes proves a majority, so
//! there is no false alarm; an address with more than three quarters of the traffic is
//! always found.

use std::net::IpAddr;
use tollgate_core::units::{Nanos, Time};

/// How long votes are collected.
const PERIOD: Nanos = Nanos::from_secs(60);
/// Fewer requests than this in a period say nothing.
const VOTES_MIN: u64 = 200;

/// Counts the votes of one period after the other.
#[derive(Debug, Default)]
pub struct Front {
    ends: Time,
    votes: u64,
    candidate: Option<IpAddr>,
    tally: u64,
}

impl Front {
    /// One request: from which address, and whether that address sent forwarded headers without
    /// being trusted. Returns the address that most of the last period came from, if there was
    /// one: once per period.
    pub fn seen(&mut self, peer: IpAddr, forwards: bool, now: Time) -> Option<IpAddr> {
        let found = (now >= self.ends).then(|| self.result()).flatten();
        if now >= self.ends {
            *self = Front { ends: now.plus(PERIOD), ..Front::default() };
        }
        self.vote(forwards.then_some(peer));
        found
    }

    fn vote(&mut self, vote: Option<IpAddr>) {
        self.votes += 1;
        match vote {
            Some(peer) if self.tally == 0 => {
                self.candidate = Some(peer);
                self.tally = 1;
            }
            Some(peer) if self.candidate == Some(peer) => self.tally += 1,
            _ => self.tally = self.tally.saturating_sub(1),
        }
    }

    fn result(&self) -> Option<IpAddr> {
        let most = self.votes >= VOTES_MIN && self.tally > self.votes / 2;
        self.candidate.filter(|_| most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    /// What is found at the end of a period in which request `n` came as `from` says.
    fn found(count: u64, from: impl Fn(u64) -> (IpAddr, bool)) -> Option<IpAddr> {
        let mut front = Front::default();
        let start = Time::ZERO.plus(PERIOD);
        for n in 0..count {
            let (peer, forwards) = from(n);
            assert_eq!(front.seen(peer, forwards, start), None);
        }
        front.seen(peer(99), false, start.plus(PERIOD))
    }

    #[test]
    fn a_proxy_that_nobody_named_is_found() {
        assert_eq!(found(1_000, |n| (peer((n % 5 / 4) as u8), true)), Some(peer(0)));
    }

    #[test]
    fn direct_clients_and_quiet_hours_raise_no_alarm() {
        assert_eq!(found(1_000, |_| (peer(1), false)), None);
        assert_eq!(found(1_000, |n| (peer((n % 3) as u8), true)), None);
        assert_eq!(found(100, |_| (peer(1), true)), None);
    }
}

//! Notices when a proxy stands in front that nobody has named: most requests then come from its
//! one address, and all users share one bucket.
//!
//! The sign is an address that is not trusted and yet sends forwarded headers. Whether one such
//! address sends most of the traffic is found by majority vote (Boyer and Moore): one candidate,
//! one tally, no memory of anybody else. A tally above half of all votes proves a majority, so
//! there is no false alarm; an address with more than three quarters of the traffic is
//! always found.

use evenkeel_core::units::{Nanos, Time};
use std::net::IpAddr;

/// How long votes are collected.
const PERIOD: Nanos = Nanos::from_secs(60);
/// Fewer requests than this in a period say nothing.
const VOTES_MIN: u64 = 100;
/// The pause before the same address is spoken of again.
const PAUSE: Nanos = Nanos::from_secs(600);

/// Counts the votes of one period after the other.
#[derive(Debug, Default)]
pub struct Front {
    period: Period,
    /// Who was spoken of, and until when that is enough: one per period at most, so they are few.
    told: Vec<(IpAddr, Time)>,
}

#[derive(Debug, Default)]
struct Period {
    ends: Time,
    votes: u64,
    candidate: Option<IpAddr>,
    tally: u64,
}

impl Front {
    /// One request: from which address, and whether that address sent forwarded headers without
    /// being trusted. Returns what [`Front::tick`] does.
    pub fn seen(&mut self, peer: IpAddr, forwards: bool, now: Time) -> Option<IpAddr> {
        let found = self.tick(now);
        if self.period.votes == 0 {
            self.period.ends = now.plus(PERIOD);
        }
        self.period.vote(forwards.then_some(peer));
        found
    }

    /// Returns the address that most of the last period came from, once, if the period is over,
    /// there was such an address, and it was not spoken of in the last ten minutes.
    pub fn tick(&mut self, now: Time) -> Option<IpAddr> {
        if now < self.period.ends {
            return None;
        }
        let peer = std::mem::take(&mut self.period).result()?;
        self.told.retain(|(_, until)| now < *until);
        if self.told.iter().any(|(told, _)| *told == peer) {
            return None;
        }
        self.told.push((peer, now.plus(PAUSE)));
        Some(peer)
    }
}

impl Period {
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
        front.tick(start.plus(PERIOD))
    }

    #[test]
    fn it_is_told_when_the_minute_is_over_and_again_after_ten() {
        let mut front = Front::default();
        let mut told = Vec::new();
        for second in 0..1_300 {
            let now = Time::ZERO.plus(PERIOD).plus(Nanos::from_secs(second));
            for _ in 0..2 {
                let found = front.seen(peer(1), true, now);
                told.extend(found.map(|peer| (second, peer)));
            }
        }
        assert_eq!(told, [(60, peer(1)), (660, peer(1)), (1_260, peer(1))]);
    }

    #[test]
    fn a_proxy_that_nobody_named_is_found() {
        assert_eq!(found(1_000, |n| (peer((n % 5 / 4) as u8), true)), Some(peer(0)));
    }

    #[test]
    fn direct_clients_and_quiet_hours_raise_no_alarm() {
        assert_eq!(found(1_000, |_| (peer(1), false)), None);
        assert_eq!(found(1_000, |n| (peer((n % 3) as u8), true)), None);
        assert_eq!(found(99, |_| (peer(1), true)), None);
        assert_eq!(found(100, |_| (peer(1), true)), Some(peer(1)));
    }
}

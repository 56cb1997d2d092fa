//! Detects a proxy in front of Evenkeel that the configuration does not name. Most requests then
//! come from its one address, and all users share one bucket.
//!
//! The sign is an untrusted address that sends forwarded headers. A majority vote (Boyer and Moore)
//! finds whether one such address sends most of the traffic. It needs one candidate, one tally and
//! no memory of other addresses. A tally above half of all votes proves a majority, so there are no
//! false alarms. An address with more than three quarters of the traffic is always found.

use evenkeel_core::units::{Nanos, Time};
use std::net::IpAddr;

/// The length of a voting period.
const VOTING_PERIOD: Nanos = Nanos::from_secs(60);
/// A period with fewer requests than this has no result.
const VOTES_MIN: u64 = 100;
/// The pause before the same address is reported again.
const REPORT_PAUSE: Nanos = Nanos::from_secs(600);

/// Counts the votes of the current period and remembers what was reported.
#[derive(Debug, Default)]
pub struct UntrustedProxyDetector {
    period: VotingPeriod,
    /// The reported addresses, and until when each is not reported again. At most one is added each
    /// period, so the list stays short.
    told: Vec<(IpAddr, Time)>,
}

#[derive(Debug, Default)]
struct VotingPeriod {
    ends: Time,
    votes: u64,
    candidate: Option<IpAddr>,
    tally: u64,
}

impl UntrustedProxyDetector {
    /// Counts one request from `peer`; `forwards` says that `peer` sent forwarded headers without
    /// being trusted. Returns the same as [`UntrustedProxyDetector::tick`].
    pub fn seen(&mut self, peer: IpAddr, forwards: bool, now: Time) -> Option<IpAddr> {
        let found = self.tick(now);
        if self.period.votes == 0 {
            self.period.ends = now.plus(VOTING_PERIOD);
        }
        self.period.vote(forwards.then_some(peer));
        found
    }

    /// Returns the address that sent most requests of the last period, once after the period is
    /// over. Returns `None` if there is no such address or it was reported in the last ten minutes.
    pub fn tick(&mut self, now: Time) -> Option<IpAddr> {
        if now < self.period.ends {
            return None;
        }
        let peer = std::mem::take(&mut self.period).result()?;
        self.told.retain(|(_, until)| now < *until);
        if self.told.iter().any(|(told, _)| *told == peer) {
            return None;
        }
        self.told.push((peer, now.plus(REPORT_PAUSE)));
        Some(peer)
    }
}

impl VotingPeriod {
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

    /// The address found at the end of a period in which `from` gives the peer and the flag of
    /// request `n`.
    fn found(count: u64, from: impl Fn(u64) -> (IpAddr, bool)) -> Option<IpAddr> {
        let mut front = UntrustedProxyDetector::default();
        let start = Time::ZERO.plus(VOTING_PERIOD);
        for n in 0..count {
            let (peer, forwards) = from(n);
            assert_eq!(front.seen(peer, forwards, start), None);
        }
        front.tick(start.plus(VOTING_PERIOD))
    }

    #[test]
    fn it_is_told_when_the_minute_is_over_and_again_after_ten() {
        let mut front = UntrustedProxyDetector::default();
        let mut told = Vec::new();
        for second in 0..1_300 {
            let now = Time::ZERO.plus(VOTING_PERIOD).plus(Nanos::from_secs(second));
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

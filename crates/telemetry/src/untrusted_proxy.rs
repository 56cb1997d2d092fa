//! Detects proxies in front of Evenkeel that the configuration does not name. Most requests then
//! come from their few addresses, and all users share few buckets.
//!
//! The sign is an untrusted address that sends forwarded headers. A bounded count of the heaviest
//! addresses (Misra and Gries) needs no memory of other addresses and never counts too much: a
//! tally above half of all requests proves a majority, so there are no false alarms. An address
//! with more than half of the traffic is found, unless many other addresses send forwarded headers
//! as well.
//! `evenkeel doctor` shows the counts of all addresses that were found.

use evenkeel_core::units::{Nanos, Time};
use std::net::IpAddr;

/// The length of a voting period.
const VOTING_PERIOD: Nanos = Nanos::from_secs(60);
/// A period with fewer requests than this has no result.
const VOTES_MIN: u64 = 100;
/// The pause before the same address is reported again.
const REPORT_PAUSE: Nanos = Nanos::from_secs(600);
/// The number of addresses that are counted at once.
const CANDIDATES_MAX: usize = 8;

/// The headers that name the client of a proxy, in the order of the bits of
/// [`ForwardingHeaders`].
pub const FORWARDING_HEADERS: [&str; 6] = [
    "x-forwarded-for",
    "x-real-ip",
    "forwarded",
    "cf-connecting-ip",
    "true-client-ip",
    "fastly-client-ip",
];

/// A set of [`FORWARDING_HEADERS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardingHeaders(u8);

impl ForwardingHeaders {
    /// Those of the headers that a request contains.
    pub fn of(contains: impl Fn(&str) -> bool) -> ForwardingHeaders {
        let bits = FORWARDING_HEADERS.iter().enumerate();
        let bits = bits.filter(|(_, name)| contains(name)).map(|(bit, _)| 1 << bit);
        ForwardingHeaders(bits.fold(0, |all, bit: u8| all | bit))
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Their names, in lower case.
    pub fn names(self) -> Vec<&'static str> {
        let all = FORWARDING_HEADERS.into_iter().enumerate();
        all.filter(|(bit, _)| self.0 & (1 << bit) != 0).map(|(_, name)| name).collect()
    }
}

/// What a request says about the address of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRequest {
    /// It comes from a trusted proxy.
    Trusted {
        /// It has the header in which the proxy names the client.
        has_address: bool,
    },
    /// It comes from a peer that is not trusted, with these headers nevertheless.
    Other(ForwardingHeaders),
}

/// Counts the votes of the current period and remembers what was reported.
#[derive(Debug, Default)]
pub struct UntrustedProxyDetector {
    period: VotingPeriod,
    /// The last period that has ended.
    last: VotingPeriod,
    /// The reported addresses, and until when each is not reported again. At most one is added each
    /// period, so the list stays short.
    told: Vec<(IpAddr, Time)>,
}

/// The votes of a period: requests, and how many of them came from untrusted addresses with
/// forwarded headers.
#[derive(Clone, Debug, Default)]
pub struct VotingPeriod {
    ends: Time,
    /// All requests.
    pub votes: u64,
    /// Requests from untrusted peers with forwarded headers.
    pub forwarding: u64,
    /// The headers of those requests.
    pub headers: ForwardingHeaders,
    /// The addresses with most of those requests; the counts are lower bounds.
    pub candidates: Vec<(IpAddr, u64)>,
}

impl UntrustedProxyDetector {
    /// Counts one request from `peer`; `headers` are the forwarded headers that `peer` sent without
    /// being trusted. Returns the same as [`UntrustedProxyDetector::tick`].
    pub fn seen(&mut self, peer: IpAddr, headers: ForwardingHeaders, now: Time) -> Option<IpAddr> {
        let found = self.tick(now);
        if self.period.votes == 0 {
            self.period.ends = now.plus(VOTING_PERIOD);
        }
        self.period.vote(peer, headers);
        found
    }

    /// Returns the address that sent most requests of the last period, once after the period is
    /// over. Returns `None` if there is no such address or it was reported in the last ten minutes.
    pub fn tick(&mut self, now: Time) -> Option<IpAddr> {
        if now < self.period.ends || self.period.votes == 0 {
            return None;
        }
        self.last = std::mem::take(&mut self.period);
        let peer = self.last.result()?;
        self.told.retain(|(_, until)| now < *until);
        if self.told.iter().any(|(told, _)| *told == peer) {
            return None;
        }
        self.told.push((peer, now.plus(REPORT_PAUSE)));
        Some(peer)
    }

    /// Forgets the votes, because other proxies are trusted now.
    pub fn start_anew(&mut self) {
        (self.period, self.last) = Default::default();
    }

    /// The votes of the current period if they are many, otherwise those of the last one.
    pub fn votes(&self) -> &VotingPeriod {
        let is_enough = self.period.votes >= VOTES_MIN || self.last.votes == 0;
        if is_enough { &self.period } else { &self.last }
    }
}

impl VotingPeriod {
    fn vote(&mut self, peer: IpAddr, headers: ForwardingHeaders) {
        self.votes += 1;
        if headers.is_empty() {
            return;
        }
        self.forwarding += 1;
        self.headers.0 |= headers.0;
        let known = self.candidates.iter_mut().find(|(known, _)| *known == peer);
        if let Some((_, tally)) = known {
            *tally += 1;
        } else if self.candidates.len() < CANDIDATES_MAX {
            self.candidates.push((peer, 1));
        } else {
            self.candidates.iter_mut().for_each(|(_, tally)| *tally -= 1);
            self.candidates.retain(|(_, tally)| *tally > 0);
        }
    }

    fn result(&self) -> Option<IpAddr> {
        let (peer, tally) = self.candidates.iter().max_by_key(|(_, tally)| *tally)?;
        (self.votes >= VOTES_MIN && *tally > self.votes / 2).then_some(*peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    fn headers(forwards: bool) -> ForwardingHeaders {
        ForwardingHeaders::of(|name| forwards && ["x-forwarded-for", "forwarded"].contains(&name))
    }

    /// The address found at the end of a period in which `from` gives the peer and the flag of
    /// request `n`.
    fn found(count: u64, from: impl Fn(u64) -> (IpAddr, bool)) -> Option<IpAddr> {
        let mut front = UntrustedProxyDetector::default();
        let start = Time::ZERO.plus(VOTING_PERIOD);
        for n in 0..count {
            let (peer, forwards) = from(n);
            assert_eq!(front.seen(peer, headers(forwards), start), None);
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
                let found = front.seen(peer(1), headers(true), now);
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
    #[test]
    fn the_addresses_of_a_network_of_proxies_are_counted() {
        let mut front = UntrustedProxyDetector::default();
        let start = Time::ZERO.plus(VOTING_PERIOD);
        for n in 0..1_000 {
            front.seen(peer((n % 4) as u8), headers(true), start);
        }
        let votes = front.votes();
        assert_eq!((votes.votes, votes.forwarding), (1_000, 1_000));
        assert_eq!(votes.headers.names(), ["x-forwarded-for", "forwarded"]);
        assert_eq!(votes.candidates, [0, 1, 2, 3].map(|n| (peer(n), 250)));
        assert_eq!(front.tick(start.plus(VOTING_PERIOD)), None, "none has most of them");
        front.seen(peer(9), headers(false), start.plus(VOTING_PERIOD));
        assert_eq!(front.votes().forwarding, 1_000, "one request tells less than the last period");
    }

    #[test]
    fn the_number_of_candidates_is_bounded() {
        let mut front = UntrustedProxyDetector::default();
        for n in 0..1_000_u32 {
            let address = IpAddr::from([10, 0, (n >> 8) as u8, n as u8]);
            front.seen(address, headers(true), Time::ZERO.plus(VOTING_PERIOD));
        }
        assert!(front.votes().candidates.len() <= CANDIDATES_MAX);
    }
}

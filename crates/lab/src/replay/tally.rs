//! The counts of a replay: clients, networks, limits, and numbers over time.
//!
//! Every collection is bounded, so a log of any length is played in the same memory; entries that
//! do not fit are counted. This file judges nothing: `people` and `report` do so at the end.

mod agents;
mod bounded;
pub mod minute;
mod series;
pub mod share_needs;
pub mod visitor;

use super::play::ReplayOutcome;
use super::play::baseline::{RecordedRequest, is_file};
use agents::AgentNames;
use bounded::BoundedMap;
use evenkeel_config::settings::{DenyRule, ProxySettings};
use evenkeel_core::classify::{self, RequestAttributes};
use evenkeel_core::key::{KeyHash, network};
use evenkeel_core::limit::{KeyPart, Limit};
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::PlaybackNote;
use minute::MinuteTracker;
use series::TimeSeries;
use share_needs::{ShareBuckets, ShareNeeds};
use std::net::IpAddr;
use visitor::{ClientTally, RequestResults};

/// The maximum number of clients that are kept.
const VISITORS_MAX: usize = 400_000;
/// The maximum number of networks of each size that are kept.
const NETWORKS_MAX: usize = 100_000;
/// The maximum number of buckets of each limit that are kept for the report.
const KEYS_MAX: usize = 20_000;

/// The two sizes of networks, in bits of IPv4 and IPv6: those of the default limits.
pub const NETWORK_SIZES: [(u8, u8); 2] = [(24, 48), (16, 32)];

/// The decisions of one bucket of a limit.
#[derive(Clone, Debug, Default)]
pub struct BucketTally {
    /// The name of the bucket, made of the values that the limit counts by.
    pub name: String,
    /// The results of the requests on which the bucket decided.
    pub fate: RequestResults,
    /// The number of requests that it would have held up or refused if its limit were not in shadow
    /// mode.
    pub would: u32,
}

pub type LimitDecisions = BoundedMap<KeyHash, BucketTally>;

/// All clients of a network together.
#[derive(Clone, Debug, Default)]
pub struct NetworkTally {
    /// The CPU time that their requests needed.
    pub needed: Nanos,
    /// The shares that would have been enough.
    pub needs: ShareNeeds,
}

/// The sums over all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplayTotals {
    pub requests: u64,
    /// The CPU time that they needed.
    pub needed: Nanos,
    /// Requests that no limit held up or refused.
    pub passed: u64,
    /// Requests for files that belong to pages.
    pub files: u64,
    /// Requests with a `Referer` header.
    pub referred: u64,
    /// Requests that named a client behind an address that is not trusted.
    pub forwarded: u64,
    /// The arrival of the first request.
    pub first: Time,
    /// The arrival of the last request.
    pub last: Time,
    pub fate: RequestResults,
}

/// A limit, or a rule that denies requests. The latter come after all limits.
pub struct TalliedLimit {
    pub name: Box<str>,
    /// What happens to a request over the limit.
    pub action: &'static str,
    pub shadow: bool,
    /// The parts of its key.
    pub by: Vec<KeyPart>,
}

impl TalliedLimit {
    /// The limits of the proxy and its rules that deny requests.
    pub fn all(proxy: &ProxySettings) -> Vec<TalliedLimit> {
        let limit = |limit: &Limit| TalliedLimit {
            name: limit.name.clone(),
            action: limit.action(proxy.action).name(),
            shadow: limit.shadow,
            by: limit.by.clone(),
        };
        let rule = |rule: &DenyRule| TalliedLimit {
            name: rule.name.clone(),
            action: "deny",
            shadow: rule.shadow,
            by: vec![KeyPart::Ip { v4: 32, v6: 128 }],
        };
        proxy.limits.iter().map(limit).chain(proxy.denials.iter().map(rule)).collect()
    }
}

pub struct ReplayTally {
    /// The sums over all requests.
    pub totals: ReplayTotals,
    pub visitors: BoundedMap<IpAddr, ClientTally>,
    /// The counts of networks, in the order of [`NETWORK_SIZES`].
    pub networks: [BoundedMap<IpAddr, NetworkTally>; NETWORK_SIZES.len()],
    /// The names with which clients identify themselves.
    pub agents: AgentNames,
    pub limits: Vec<TalliedLimit>,
    /// The decisions of each limit, by bucket, in the order of `limits`.
    pub decided: Vec<LimitDecisions>,
    /// The numbers over time.
    pub series: TimeSeries,
    pub minutes: MinuteTracker,
    buckets: ShareBuckets,
}

impl ReplayTally {
    pub fn new(limits: Vec<TalliedLimit>, cpus: f64) -> ReplayTally {
        let networks = || BoundedMap::new(NETWORKS_MAX, |network: &NetworkTally| network.needed.0);
        let felt = |bucket: &BucketTally| u64::from(bucket.fate.felt()) + u64::from(bucket.would);
        let decided = limits.iter().map(|_| BoundedMap::new(KEYS_MAX, felt)).collect();
        let weight = |visitor: &ClientTally| {
            // Clients that were refused or had to wait are forgotten after all others.
            visitor.needed.0.saturating_add(u64::from(visitor.fate.felt()) << 32)
        };
        ReplayTally {
            totals: ReplayTotals::default(),
            visitors: BoundedMap::new(VISITORS_MAX, weight),
            networks: [networks(), networks()],
            agents: AgentNames::default(),
            limits,
            decided,
            series: TimeSeries::default(),
            minutes: MinuteTracker::default(),
            buckets: ShareBuckets::new(cpus),
        }
    }

    /// Counts the arrival of request number `number`.
    pub fn arrive(&mut self, number: u64, was: &RecordedRequest) {
        let (entry, needed) = (&was.entry, was.needed);
        let agent = self.agents.number(entry.agent());
        let (visitor, _) = self.visitors.entry(entry.address);
        visitor.arrive(was, agent);
        visitor.needs.add(&self.buckets, needed, entry.start);
        for (networks, (v4, v6)) in self.networks.iter_mut().zip(NETWORK_SIZES) {
            let (known, _) = networks.entry(network(entry.address, v4, v6));
            known.needed = known.needed.plus(needed);
            known.needs.add(&self.buckets, needed, entry.start);
        }
        self.series.arrive(was);
        self.minutes.arrive(number, was);
        let totals = &mut self.totals;
        if totals.requests == 0 {
            totals.first = entry.start;
        }
        totals.requests += 1;
        totals.needed = totals.needed.plus(needed);
        totals.files += u64::from(is_file(entry.path()));
        totals.referred += u64::from(!matches!(entry.referrer(), "" | "-"));
        totals.forwarded += u64::from(entry.forwarded);
        totals.last = totals.last.max(entry.start);
    }

    /// Counts the result of a request that arrived before.
    pub fn over(&mut self, outcome: &ReplayOutcome) {
        self.totals.fate.add(outcome);
        let decisive = outcome.decisive();
        self.totals.passed += u64::from(decisive.is_none());
        if let Some(visitor) = self.visitors.get_mut(&outcome.was.entry.address) {
            visitor.fate.add(outcome);
        }
        self.series.over(outcome);
        self.minutes.over(outcome);
        if let Some(note) = decisive {
            self.bucket(outcome, note).into_iter().for_each(|bucket| bucket.fate.add(outcome));
        }
        for note in outcome.notes.iter().filter(|note| note.shadow) {
            self.bucket(outcome, note).into_iter().for_each(|bucket| bucket.would += 1);
        }
    }

    fn bucket(&mut self, outcome: &ReplayOutcome, note: &PlaybackNote) -> Option<&mut BucketTally> {
        let key = note.reason.key;
        let place = usize::from(key.limit);
        let (limit, decided) = (self.limits.get(place)?, self.decided.get_mut(place)?);
        let (bucket, made) = decided.entry(key.hash);
        if made {
            bucket.name = classify::name(&limit.by, &outcome.was.entry, key.hash);
        }
        Some(bucket)
    }
}

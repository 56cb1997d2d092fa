//! The counts of a replay: clients, networks, limits, and numbers over time.
//!
//! Every collection is bounded, so a log of any length is played in the same memory; entries that
//! do not fit are counted. This file judges nothing: `people` and `report` do so at the end.

pub mod agents;
pub mod bounded;
pub mod minute;
pub mod needs;
pub mod series;
pub mod visitor;

use super::play::Outcome;
use super::play::was::{Was, is_file};
use agents::Agents;
use bounded::Bounded;
use evenkeel_core::classify::{self, Attributes};
use evenkeel_core::key::{KeyHash, network};
use evenkeel_core::limit::Limit;
use evenkeel_core::units::{Nanos, Time};
use evenkeel_engine::Note;
use minute::Minutes;
use needs::{Buckets, Needs};
use series::Series;
use std::net::IpAddr;
use visitor::{Fate, Visitor};

/// The maximum number of clients that are kept.
const VISITORS_MAX: usize = 400_000;
/// The maximum number of networks of each size that are kept.
const NETWORKS_MAX: usize = 100_000;
/// The maximum number of buckets of each limit that are kept for the report.
const KEYS_MAX: usize = 20_000;

/// The two sizes of networks, in bits of IPv4 and IPv6: those of the default limits.
pub const SIZES: [(u8, u8); 2] = [(24, 48), (16, 32)];

/// The decisions of one bucket of a limit.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    /// The name of the bucket, made of the values that the limit counts by.
    pub name: String,
    /// The results of the requests on which the bucket decided.
    pub fate: Fate,
    /// The number of requests that it would have held up or refused if its limit were not in shadow
    /// mode.
    pub would: u32,
}

/// The decisions of one limit, by bucket.
pub type Decided = Bounded<KeyHash, Bucket>;

/// All clients of a network together.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// The CPU time that their requests needed.
    pub needed: Nanos,
    /// The shares that would have been enough.
    pub needs: Needs,
}

/// The sums over all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// The number of requests.
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
    /// The results of all requests.
    pub fate: Fate,
}

/// All counts of a replay.
pub struct Tally {
    /// The sums over all requests.
    pub totals: Totals,
    /// The counts of each client.
    pub visitors: Bounded<IpAddr, Visitor>,
    /// The counts of networks, in the order of [`SIZES`].
    pub networks: [Bounded<IpAddr, Network>; SIZES.len()],
    /// The names with which clients identify themselves.
    pub agents: Agents,
    /// The limits of the door.
    pub limits: Vec<Limit>,
    /// The decisions of each limit, by bucket, in the order of `limits`.
    pub decided: Vec<Decided>,
    /// The numbers over time.
    pub series: Series,
    /// The busiest minute.
    pub minutes: Minutes,
    buckets: Buckets,
}

impl Tally {
    /// Makes an empty tally.
    #[must_use]
    pub fn new(limits: Vec<Limit>, cpus: f64) -> Tally {
        let networks = || Bounded::new(NETWORKS_MAX, |network: &Network| network.needed.0);
        let felt = |bucket: &Bucket| u64::from(bucket.fate.felt()) + u64::from(bucket.would);
        let decided = limits.iter().map(|_| Bounded::new(KEYS_MAX, felt)).collect();
        let weight = |visitor: &Visitor| {
            // Clients that were refused or had to wait are forgotten after all others.
            visitor.needed.0.saturating_add(u64::from(visitor.fate.felt()) << 32)
        };
        Tally {
            totals: Totals::default(),
            visitors: Bounded::new(VISITORS_MAX, weight),
            networks: [networks(), networks()],
            agents: Agents::default(),
            limits,
            decided,
            series: Series::default(),
            minutes: Minutes::default(),
            buckets: Buckets::new(cpus),
        }
    }

    /// Counts the arrival of request number `number`.
    pub fn arrive(&mut self, number: u64, was: &Was) {
        let (entry, needed) = (&was.entry, was.needed);
        let agent = self.agents.number(entry.agent());
        let (visitor, _) = self.visitors.entry(entry.address);
        visitor.arrive(was, agent);
        visitor.needs.add(&self.buckets, needed, entry.start);
        for (networks, (v4, v6)) in self.networks.iter_mut().zip(SIZES) {
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
    pub fn over(&mut self, outcome: &Outcome) {
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

    /// The bucket that made the decision in `note`.
    fn bucket(&mut self, outcome: &Outcome, note: &Note) -> Option<&mut Bucket> {
        let key = note.reason.key;
        let place = usize::from(key.limit);
        let (limit, decided) = (self.limits.get(place)?, self.decided.get_mut(place)?);
        let (bucket, made) = decided.entry(key.hash);
        if made {
            bucket.name = classify::name(limit, &outcome.was.entry, key.hash);
        }
        Some(bucket)
    }
}

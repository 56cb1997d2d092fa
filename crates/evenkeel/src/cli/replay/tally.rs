//! What is counted while a log is played: clients, networks, limits, and figures over time.
//!
//! Everything has a bound, so a log of any length is played in the same memory; what did not fit is
//! counted. Nothing is judged here: that is `people` and `report`, when all is over.

pub mod agents;
pub mod bounded;
pub mod minute;
pub mod needs;
pub mod series;
pub mod visitor;

use super::play::Outcome;
use super::play::was::{Was, is_file};
use crate::engine::Note;
use agents::Agents;
use bounded::Bounded;
use evenkeel_core::classify::{self, Attributes};
use evenkeel_core::key::{KeyHash, network};
use evenkeel_core::limit::Limit;
use evenkeel_core::units::{Nanos, Time};
use minute::Minutes;
use needs::{Buckets, Needs};
use series::Series;
use std::net::IpAddr;
use visitor::{Fate, Visitor};

/// Clients that are kept.
const VISITORS_MAX: usize = 400_000;
/// Networks of each size that are kept.
const NETWORKS_MAX: usize = 100_000;
/// Buckets of each limit that are told of.
const KEYS_MAX: usize = 20_000;

/// The two sizes of networks, in bits of IPv4 and IPv6: those of the default limits.
pub const SIZES: [(u8, u8); 2] = [(24, 48), (16, 32)];

/// What one bucket of a limit decided.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    /// What it counts by.
    pub name: String,
    /// What became of requests that it decided on.
    pub fate: Fate,
    /// How many requests it would have kept or refused, were its limit not in shadow.
    pub would: u32,
}

/// What a limit decided, by bucket.
pub type Decided = Bounded<KeyHash, Bucket>;

/// All clients of a network together.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// CPU time.
    pub needed: Nanos,
    /// Which shares would have been enough.
    pub needs: Needs,
}

/// All requests together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// How many.
    pub requests: u64,
    /// CPU time that they needed.
    pub needed: Nanos,
    /// Requests that found no limit in their way.
    pub passed: u64,
    /// Files beside pages.
    pub files: u64,
    /// Requests that name where they came from.
    pub referred: u64,
    /// Requests that named somebody behind an address that is not trusted.
    pub forwarded: u64,
    /// When the first came.
    pub first: Time,
    /// When the last came.
    pub last: Time,
    /// What became of them.
    pub fate: Fate,
}

/// Everything that is counted.
pub struct Tally {
    /// All together.
    pub totals: Totals,
    /// Each client.
    pub visitors: Bounded<IpAddr, Visitor>,
    /// Networks, by [`SIZES`].
    pub networks: [Bounded<IpAddr, Network>; SIZES.len()],
    /// What clients call themselves.
    pub agents: Agents,
    /// The limits.
    pub limits: Vec<Limit>,
    /// What each of them decided, by bucket.
    pub decided: Vec<Decided>,
    /// Over time.
    pub series: Series,
    /// The busiest minute.
    pub minutes: Minutes,
    buckets: Buckets,
}

impl Tally {
    /// Nothing yet.
    #[must_use]
    pub fn new(limits: Vec<Limit>, cpus: f64) -> Tally {
        let networks = || Bounded::new(NETWORKS_MAX, |network: &Network| network.needed.0);
        let felt = |bucket: &Bucket| u64::from(bucket.fate.felt()) + u64::from(bucket.would);
        let decided = limits.iter().map(|_| Bounded::new(KEYS_MAX, felt)).collect();
        let weight = |visitor: &Visitor| {
            // Who was refused or had to wait is not forgotten before those who did not.
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

    /// Request number `number` comes.
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

    /// And this became of it.
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

    /// The bucket that decided.
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
